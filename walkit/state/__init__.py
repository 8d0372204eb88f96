"""The meaning of records: the one reconciliation rule, state machines, snapshots and replay.

Nothing here knows of threads or of appending; `walkit.Store` puts a log and a keyed table together.
"""

from __future__ import annotations

from walkit.state.applier import Follower
from walkit.state.counter import Counter
from walkit.state.diff import DIFF_SCHEMA, DiffCounts, diff
from walkit.state.diff_report import DiffReport, diff_report
from walkit.state.load_snapshot import Restored, restore_newest
from walkit.state.machine import (
    ArrowStateMachine,
    StateImage,
    StateMachine,
    take_image,
)
from walkit.state.reconcile import Winner, reconcile, reconcile_arrow
from walkit.state.replay import ReplayReport, replay
from walkit.state.snapshot import (
    SnapshotInfo,
    SnapshotWrite,
    identity_at,
    read_snapshot,
    snapshot_lsns,
    snapshot_name,
    verify_snapshot,
    write_snapshot,
)
from walkit.state.table import KeyedTable

__all__ = [
    "DIFF_SCHEMA",
    "ArrowStateMachine",
    "Counter",
    "DiffCounts",
    "DiffReport",
    "Follower",
    "KeyedTable",
    "ReplayReport",
    "Restored",
    "SnapshotInfo",
    "SnapshotWrite",
    "StateImage",
    "StateMachine",
    "Winner",
    "diff",
    "diff_report",
    "identity_at",
    "read_snapshot",
    "reconcile",
    "reconcile_arrow",
    "replay",
    "restore_newest",
    "snapshot_lsns",
    "snapshot_name",
    "take_image",
    "verify_snapshot",
    "write_snapshot",
]
