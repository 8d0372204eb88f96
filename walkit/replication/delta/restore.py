"""Where a delta reader without a checkpoint begins: the newest snapshot, and what compaction leaves no states of."""

from __future__ import annotations

from walkit.errors import CorruptionError, DivergenceError, GapError, HistoryTrimmedError, SnapshotError
from walkit.events import EventSink
from walkit.read.reader import LogReader, live_view
from walkit.read.view import LogView
from walkit.replication.delta.loader import Reached
from walkit.replication.delta.state import ReaderState
from walkit.replication.logs.source import StoredSource
from walkit.segments.manifest_store import load_manifest
from walkit.state.replay import replay
from walkit.state.restore import restore_newest
from walkit.state.snapshot import identity_at
from walkit.storage.interface import Storage

ATTEMPTS_MAX = 8
"""How often a beginning is tried anew because the writer's own checkpoints overtook it."""


def refuse_gone(storage: Storage, lsn: int) -> None:
    """Raise GapError where the record after `lsn` was trimmed: without a claim nothing has kept it."""
    low = load_manifest(storage).low_watermark
    if low > lsn:
        raise GapError(lsn + 1, low + 1)


def refuse_short(storage: Storage, lsn: int) -> None:
    """Raise DivergenceError where the log ends before `lsn`, of which a reader's checkpoint is."""
    end = StoredSource(storage).durable()[0]
    if end < lsn:
        raise DivergenceError(
            f"the checkpoint is of LSN {lsn:,}, and the log ends at {end:,}: what the reader has applied was cut",
            first_lsn=end + 1,
        )


def restored_state(storage: Storage, state: ReaderState, events: EventSink) -> Reached:
    """Restore the log's newest snapshot, and replay what compaction leaves no states of; return how far that is.

    All up to there is durable. What comes after it is complete, so it can be read in ranges.
    """
    for attempt in range(ATTEMPTS_MAX):
        view = live_view(storage)
        try:
            return _restored_from(view, storage, state, events)
        except (CorruptionError, GapError, HistoryTrimmedError, SnapshotError):
            # A writer's checkpoint may take away what is looked at, or make a snapshot that was not there yet.
            if attempt == ATTEMPTS_MAX - 1 or load_manifest(storage).generation == view.manifest.generation:
                raise
    raise AssertionError("the last attempt returns or raises")


def _restored_from(view: LogView, storage: Storage, state: ReaderState, events: EventSink) -> Reached:
    manifest, table = view.manifest, state.table
    durable = StoredSource(storage).durable()[0]
    table.restore((), 0)
    restored = restore_newest(storage, manifest, table, events, first_lsn=view.first_lsn, last_lsn=durable)
    lsn = restored.lsn
    if lsn + 1 < view.complete_from_lsn:
        with LogReader(storage, events) as reader:
            lsn = replay(reader, table, last_lsn=durable).applied_lsn
    return Reached(lsn, identity_at(manifest, lsn).epoch_id)
