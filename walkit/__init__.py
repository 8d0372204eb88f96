"""walkit: a laboratory for write-ahead logs that is also a real one.

``import walkit`` is light and starts nothing; the rooms `spark`, `measure`, `plots`, `workload` and others load on
first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from walkit.commit import policy
from walkit.compaction import CompactionReport
from walkit.config import LogOptions, Retention, StoreOptions
from walkit.errors import (
    AppendTimeoutError,
    CommitFailedError,
    CommitTimeoutError,
    CorruptionError,
    CursorError,
    DivergenceError,
    FormatVersionError,
    GapError,
    HistoryTrimmedError,
    JournalFullError,
    LogClosedError,
    LogExistsError,
    LogFullError,
    LogLockedError,
    LogNotFoundError,
    LogPoisonedError,
    MissingExtraError,
    NotALogError,
    OptionsError,
    RecordTimeError,
    RecordTooLargeError,
    RecordTypeError,
    SegmentMissingError,
    SnapshotError,
    StorageError,
    WalkitError,
)
from walkit.log.cursor import Cursor
from walkit.log.decision import recovery_table
from walkit.log.examine.verdicts import ScanReport
from walkit.log.inventory import LogInventory
from walkit.log.logreader import LogReader
from walkit.log.observe import DurableFrames
from walkit.log.opening import open_log as open
from walkit.log.opening import scratch
from walkit.log.repair import repair
from walkit.log.report import RecoveryReport
from walkit.log.retention import RetentionReport
from walkit.log.tools import scan, verify
from walkit.log.wal import WriteAheadLog, opened
from walkit.metrics import LogStatistics
from walkit.record import RECORD_SCHEMA, AppendResult, Batch, Kind, Record
from walkit.state.checkpoint import CheckpointReport
from walkit.state.diff import diff
from walkit.state.machine import StateMachine
from walkit.state.past import PastState
from walkit.state.replay import replay
from walkit.store import Store

if TYPE_CHECKING:
    from walkit import measure as measure
    from walkit import plots as plots
    from walkit import replication as replication
    from walkit import simulate as simulate
    from walkit import spark as spark
    from walkit import storage as storage
    from walkit import views as views
    from walkit import workload as workload

__version__ = "0.1.0.dev0"

_ROOMS = ("measure", "plots", "replication", "simulate", "spark", "storage", "testing", "views", "workload")

__all__ = [
    "RECORD_SCHEMA",
    "AppendResult",
    "AppendTimeoutError",
    "Batch",
    "CheckpointReport",
    "CommitFailedError",
    "CommitTimeoutError",
    "CompactionReport",
    "CorruptionError",
    "Cursor",
    "CursorError",
    "DivergenceError",
    "DurableFrames",
    "FormatVersionError",
    "GapError",
    "HistoryTrimmedError",
    "JournalFullError",
    "Kind",
    "LogClosedError",
    "LogExistsError",
    "LogFullError",
    "LogInventory",
    "LogLockedError",
    "LogNotFoundError",
    "LogOptions",
    "LogPoisonedError",
    "LogReader",
    "LogStatistics",
    "MissingExtraError",
    "NotALogError",
    "OptionsError",
    "PastState",
    "Record",
    "RecordTimeError",
    "RecordTooLargeError",
    "RecordTypeError",
    "RecoveryReport",
    "Retention",
    "RetentionReport",
    "ScanReport",
    "SegmentMissingError",
    "SnapshotError",
    "StateMachine",
    "StorageError",
    "Store",
    "StoreOptions",
    "WalkitError",
    "WriteAheadLog",
    "diff",
    "open",
    "opened",
    "policy",
    "recovery_table",
    "repair",
    "replay",
    "scan",
    "scratch",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Load a room on first use."""
    if name in _ROOMS:
        return importlib.import_module(f"walkit.{name}")
    raise AttributeError(f"module 'walkit' has no attribute {name!r}")
