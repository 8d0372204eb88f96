"""walkit: a laboratory for write-ahead logs that is also a real one.

``import walkit`` is light and starts nothing. It loads the parts that append to a log and read one; the rest (the Store
and its state, scanning, and the rooms `spark`, `measure`, `plots`, `workload` and others) loads when its name is first
used, and pyarrow when something is first read or given as Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from walkit._internal.arrow import load as _load
from walkit.config import LogOptions, Retention, StoreOptions
from walkit.errors import (
    AppendTimeoutError,
    CallbackError,
    ClaimError,
    CommitFailedError,
    CommitTimeoutError,
    CorruptionError,
    CursorDivergedError,
    CursorError,
    DivergenceError,
    FormatVersionError,
    GapError,
    HistoryTrimmedError,
    JournalFullError,
    LogClosedError,
    LogExhaustedError,
    LogExistsError,
    LogFencedError,
    LogFullError,
    LogLockedError,
    LogNotFoundError,
    LogOwnedError,
    LogPoisonedError,
    MissingExtraError,
    NotALoadError,
    NotALogError,
    ObjectConflictError,
    ObjectDeniedError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectRangeError,
    ObjectStoreError,
    ObjectThrottledError,
    ObjectUnknownError,
    ObjectUnsupportedError,
    OptionsError,
    PayloadError,
    PayloadGoneError,
    PayloadUnreachableError,
    RecordTimeError,
    RecordTooLargeError,
    RecordTypeError,
    SegmentMissingError,
    SnapshotError,
    StorageError,
    WaitTimeoutError,
    WalkitError,
)
from walkit.log.observe import ObservedFrames
from walkit.log.open import scratch
from walkit.log.wal import WriteAheadLog, open_logs
from walkit.metrics import LogStatistics
from walkit.objects.entrance import open_log as open
from walkit.read.reader import LogReader
from walkit.record import AppendResult, Batch, Kind, Record
from walkit.recovery.report import RecoveryReport

if TYPE_CHECKING:
    from walkit import bench as bench
    from walkit import crashlab as crashlab
    from walkit import measure as measure
    from walkit import models as models
    from walkit import plots as plots
    from walkit import policy as policy
    from walkit import replication as replication
    from walkit import simulate as simulate
    from walkit import spark as spark
    from walkit import storage as storage
    from walkit import views as views
    from walkit import workload as workload
    from walkit.compaction.report import CompactionReport as CompactionReport
    from walkit.copier.copy_report import CopyReport as CopyReport
    from walkit.copier.log_copy import copy as copy
    from walkit.log.async_log import AsyncLog as AsyncLog
    from walkit.log.retention import RetentionReport as RetentionReport
    from walkit.measure.health import doctor as doctor
    from walkit.objects.entrance import claim as claim
    from walkit.objects.entrance import open_async as open_async
    from walkit.objects.salvage import salvage as salvage
    from walkit.objects.verify import scan as scan
    from walkit.objects.verify import verify as verify
    from walkit.read.claim import Claim as Claim
    from walkit.read.cursor import Cursor as Cursor
    from walkit.read.inventory import LogInventory as LogInventory
    from walkit.read.record_count import lsn_at as lsn_at
    from walkit.record import RECORD_SCHEMA as RECORD_SCHEMA
    from walkit.recovery.decision import recovery_table as recovery_table
    from walkit.recovery.repair import repair as repair
    from walkit.recovery.scan_report import ScanReport as ScanReport
    from walkit.state.checkpoint import CheckpointReport as CheckpointReport
    from walkit.state.diff import diff as diff
    from walkit.state.machine import StateMachine as StateMachine
    from walkit.state.machine_recovery import MachineRecovery as MachineRecovery
    from walkit.state.machine_recovery import checkpoint as checkpoint
    from walkit.state.machine_recovery import recover as recover
    from walkit.state.replay import replay as replay
    from walkit.state.state_at import PastState as PastState
    from walkit.store import Store as Store

__version__ = "0.1.0.dev0"

_ROOMS = (
    *(
        "bench",
        "compaction",
        "crashlab",
        "measure",
        "models",
        "plots",
        "policy",
        "replication",
        "simulate",
        "spark",
        "state",
        "storage",
        "store",
        "testing",
    ),
    *("views", "workload"),
)
# The room of each name loaded on first use: parts that keep state or examine a log take as long as all the rest.
_LATER = {
    "RECORD_SCHEMA": "record",
    "AsyncLog": "log.async_log",
    "CheckpointReport": "state.checkpoint",
    "Claim": "read.claim",
    "CompactionReport": "compaction.report",
    "CopyReport": "copier.copy_report",
    "Cursor": "read.cursor",
    "LogInventory": "read.inventory",
    "MachineRecovery": "state.machine_recovery",
    "PastState": "state.state_at",
    "RetentionReport": "log.retention",
    "ScanReport": "recovery.scan_report",
    "StateMachine": "state.machine",
    "Store": "store",
    "checkpoint": "state.machine_recovery",
    "claim": "objects.entrance",
    "copy": "copier.log_copy",
    "diff": "state.diff",
    "recover": "state.machine_recovery",
    "doctor": "measure.health",
    "load_ipython_extension": "cli.magics",
    "lsn_at": "read.record_count",
    "open_async": "objects.entrance",
    "recovery_table": "recovery.decision",
    "repair": "recovery.repair",
    "replay": "state.replay",
    "salvage": "objects.salvage",
    "scan": "objects.verify",
    "verify": "objects.verify",
}

__all__ = [
    "RECORD_SCHEMA",
    "AppendResult",
    "AppendTimeoutError",
    "AsyncLog",
    "Batch",
    "CallbackError",
    "CheckpointReport",
    "Claim",
    "ClaimError",
    "CommitFailedError",
    "CommitTimeoutError",
    "CompactionReport",
    "CopyReport",
    "CorruptionError",
    "Cursor",
    "CursorDivergedError",
    "CursorError",
    "DivergenceError",
    "FormatVersionError",
    "GapError",
    "HistoryTrimmedError",
    "JournalFullError",
    "Kind",
    "LogClosedError",
    "LogExhaustedError",
    "LogExistsError",
    "LogFencedError",
    "LogFullError",
    "LogInventory",
    "LogLockedError",
    "LogNotFoundError",
    "LogOptions",
    "LogOwnedError",
    "LogPoisonedError",
    "LogReader",
    "LogStatistics",
    "MachineRecovery",
    "MissingExtraError",
    "NotALoadError",
    "NotALogError",
    "ObjectConflictError",
    "ObjectDeniedError",
    "ObjectExistsError",
    "ObjectMissingError",
    "ObjectRangeError",
    "ObjectStoreError",
    "ObjectThrottledError",
    "ObjectUnknownError",
    "ObjectUnsupportedError",
    "ObservedFrames",
    "OptionsError",
    "PastState",
    "PayloadError",
    "PayloadGoneError",
    "PayloadUnreachableError",
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
    "WaitTimeoutError",
    "WalkitError",
    "WriteAheadLog",
    "checkpoint",
    "claim",
    "copy",
    "diff",
    "doctor",
    "lsn_at",
    "open",
    "open_async",
    "open_logs",
    "policy",
    "recover",
    "recovery_table",
    "repair",
    "replay",
    "salvage",
    "scan",
    "scratch",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Load a room, or a name from one, on first use."""
    if name in _ROOMS:
        return _load(f"walkit.{name}")
    if name in _LATER:
        value = globals()[name] = getattr(_load(f"walkit.{_LATER[name]}"), name)
        return value
    raise AttributeError(f"module 'walkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return every public name, loaded or not, and none that this module has only for itself."""
    return sorted({*__all__, *_ROOMS, *(name for name in globals() if name.startswith("__"))})
