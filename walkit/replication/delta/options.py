"""What a delta reader may be given: numbers and limits out of their bounds are refused before anything is opened."""

from __future__ import annotations

from walkit._internal.arguments import check_kind, check_number, check_whole
from walkit.replication.delta.messages import DELTA_VERSION_MAX
from walkit.replication.delta.replayer import ReplayLimits

SECONDS_MAX = 86_400.0


def check_reader_options(version: int, checkpoint_s: float, interval_ms: float, limits: object) -> None:
    """Refuse what no reader can have: OptionsError."""
    check_whole(version, "version", 0, DELTA_VERSION_MAX)
    check_number(checkpoint_s, "checkpoint_s", 0, SECONDS_MAX)
    check_number(interval_ms, "interval_ms", 0, SECONDS_MAX)
    check_kind(limits, ReplayLimits, "limits")
