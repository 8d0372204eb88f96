"""What a delta reader may be given: numbers and limits out of their bounds are refused before anything is opened."""

from __future__ import annotations

from walkit._arguments import as_seconds
from walkit.errors import OptionsError
from walkit.replication.delta.messages import DELTA_VERSION_MAX, DELTA_VERSION_MIN
from walkit.replication.delta.replayer import ReplayLimits

SECONDS_MAX = 86_400.0
CACHE_BYTES_MAX = 1 << 40


def check_reader_options(
    version: int, checkpoint_s: float, interval_ms: float, cache_bytes: int, limits: object
) -> None:
    """Refuse what no reader can have: OptionsError."""
    if version not in range(DELTA_VERSION_MIN, DELTA_VERSION_MAX + 1):
        raise OptionsError(f"version={version!r}: 0, 1 or 2", option="version", wanted=version)
    for value, name in ((checkpoint_s, "checkpoint_s"), (interval_ms, "interval_ms")):
        if not 0 <= as_seconds(value, name) <= SECONDS_MAX:
            raise OptionsError(f"{name}={value!r}: from 0 to {SECONDS_MAX:,}", option=name, wanted=value)
    if limits is not None and not isinstance(limits, ReplayLimits):
        raise OptionsError(f"limits={limits!r:.80}: ReplayLimits", option="limits", wanted=limits)
    if type(cache_bytes) is not int or not 0 <= cache_bytes <= CACHE_BYTES_MAX:
        raise OptionsError(
            f"cache_bytes={cache_bytes!r}: a whole number from 0 (none) to {CACHE_BYTES_MAX:,}",
            option="cache_bytes",
            wanted=cache_bytes,
        )
