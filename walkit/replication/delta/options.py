"""What a delta reader may be given: numbers and limits out of their bounds are refused before anything is opened."""

from __future__ import annotations

from walkit._arguments import as_seconds, refuse
from walkit.replication.delta.messages import DELTA_VERSION_MAX, DELTA_VERSION_MIN
from walkit.replication.delta.replayer import ReplayLimits

SECONDS_MAX = 86_400.0
CACHE_BYTES_MAX = 1 << 40


def check_reader_options(
    version: int, checkpoint_s: float, interval_ms: float, cache_bytes: int, limits: object
) -> None:
    """Refuse what no reader can have: OptionsError."""
    if version not in range(DELTA_VERSION_MIN, DELTA_VERSION_MAX + 1):
        refuse("version", version, "0, 1 or 2")
    for value, name in ((checkpoint_s, "checkpoint_s"), (interval_ms, "interval_ms")):
        if not 0 <= as_seconds(value, name) <= SECONDS_MAX:
            refuse(name, value, f"from 0 to {SECONDS_MAX:,}")
    if limits is not None and not isinstance(limits, ReplayLimits):
        refuse("limits", limits, "ReplayLimits")
    if type(cache_bytes) is not int or not 0 <= cache_bytes <= CACHE_BYTES_MAX:
        refuse("cache_bytes", cache_bytes, f"a whole number from 0 (none) to {CACHE_BYTES_MAX:,}")
