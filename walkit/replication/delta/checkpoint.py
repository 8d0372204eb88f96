"""Where a delta reader begins: its own checkpoint, in a folder of its own, or the log's newest snapshot.

A checkpoint is the reader's state, and of which record of which history it is. Without one the newest snapshot is
restored, and the compacted records after it are replayed.
"""

from __future__ import annotations

import uuid
from contextlib import suppress

from walkit._internal.arguments import refuse
from walkit.errors import (
    CorruptionError,
    DivergenceError,
    GapError,
    HistoryTrimmedError,
    SnapshotError,
    StorageError,
)
from walkit.events import EventSink
from walkit.format.manifest import MANIFEST_NAME, Manifest
from walkit.read.reader import found_lsn
from walkit.read.view import View
from walkit.replication.delta.loader import Reached
from walkit.replication.delta.state import ReaderState
from walkit.replication.logs.secret_file import read_private, write_private
from walkit.replication.logs.source import SharedLog
from walkit.segments.manifest_store import load_manifest
from walkit.segments.writer_lock import take_writer_lock
from walkit.state.load_snapshot import restore_newest
from walkit.state.machine import StateImage
from walkit.state.replay import replay
from walkit.state.snapshot import (
    SnapshotInfo,
    identity_at,
    read_snapshot,
    snapshot_lsns,
    snapshot_name,
    write_snapshot,
)
from walkit.state.table import KeyedTable
from walkit.storage.address import Place, storage_at
from walkit.storage.interface import create_private

OWNER_NAME = "delta-reader"
KEPT = 2
"""Number of snapshots kept: if the newest is damaged, the one before it is used while the log reaches back."""
ATTEMPTS_MAX = 8
"""Number of attempts to begin, as the writer's own checkpoints may overtake each."""


class DeltaCheckpoint:
    """The folder of one reader's checkpoints; one reader at a time has it. One thread at a time.

    A snapshot appears under its name whole or not at all, so a killed reader continues with the one before.
    """

    def __init__(self, place: Place, log_id: int, events: EventSink) -> None:
        """Take the folder; LogLockedError if another reader has it, DivergenceError if it belongs to another log.

        A copy of a reader's folder has the state, but is not that reader: it gets an owner of its own, with an event,
        so that the two have a claim each. OptionsError for the folder of a log.
        """
        self.storage = storage_at(place)
        if self.storage.exists() and MANIFEST_NAME in self.storage.names():
            refuse("checkpoint", place, "a folder for this reader alone, not a log's")
        create_private(self.storage)
        self._lock = lock = take_writer_lock(self.storage)
        try:
            found = read_private(self.storage, OWNER_NAME)
            facts = {"owner": uuid.uuid4().hex, "log_id": f"{log_id:016x}"} if found is None else found.facts
            if facts.get("log_id") != f"{log_id:016x}":
                raise DivergenceError(
                    f"the checkpoint at {self.storage.location} is of log {facts.get('log_id')}, and this is log "
                    f"{log_id:016x}. Nothing was changed",
                    first_lsn=1,
                )
            try:
                self.owner = uuid.UUID(hex=facts["owner"])
            except (KeyError, TypeError, ValueError) as error:
                raise CorruptionError(
                    f"the file {OWNER_NAME} at {self.storage.location} has no owner",
                    segment=OWNER_NAME,
                    expected="a UUID",
                    found=facts.get("owner"),
                ) from error
            if found is not None and found.is_copy:
                was, self.owner = self.owner, uuid.uuid4()
                events.emit("walkit.checkpoint.copied", location=self.storage.location, owner=was.hex)
            if found is None or found.written != found.found:
                own = {"owner": self.owner.hex, "log_id": facts["log_id"]}
                write_private(self.storage, OWNER_NAME, own)
        except BaseException:
            lock.release()
            raise

    def restore(self, manifest: Manifest, table: KeyedTable, events: EventSink) -> SnapshotInfo | None:
        """Restore the newest good snapshot, or return None. Damaged ones are passed over, with an event.

        DivergenceError for one of another history of the log: the reader's records were cut since.
        """
        for lsn in reversed(snapshot_lsns(self.storage)):
            try:
                return read_snapshot(self.storage, lsn, table, identity=identity_at(manifest, lsn))
            except SnapshotError as error:
                if error.stage == "identity":
                    raise DivergenceError(
                        str(error), first_lsn=min(lsn, manifest.end.last_lsn + 1)
                    ) from error
                events.emit("walkit.snapshot.skip", lsn=lsn, error=str(error))
                table.restore((), 0)
        return None

    def save(self, image: StateImage, reached: Reached, manifest: Manifest) -> int:
        """Write the state durably, and remove older ones; return its LSN. SnapshotError, DivergenceError, StorageError.

        The epoch is that of the applied record, so a snapshot of a cut history is never taken for one of the log.
        """
        self._lock.look()  # a folder that was only renamed is still this reader's
        identity = identity_at(manifest, reached.lsn)
        if identity.epoch_id != reached.epoch_id and reached.epoch_id:
            raise DivergenceError(
                f"record {reached.lsn:,} belongs to another epoch now: the reader's records were cut",
                first_lsn=min(reached.lsn, manifest.end.last_lsn + 1),
            )
        info = write_snapshot(
            self.storage, image, identity=identity, make_durable=lambda lsn: None, codec="zstd"
        )
        for lsn in snapshot_lsns(self.storage)[:-KEPT]:
            with suppress(StorageError):
                self.storage.remove(snapshot_name(lsn))
        return info.lsn

    def close(self) -> None:
        """Free the folder."""
        self._lock.release()


def refuse_gone(log: SharedLog, lsn: int) -> None:
    """Raise GapError if the record after `lsn` was trimmed: without a claim nothing has kept it."""
    low = log.manifest().low_watermark
    if low > lsn:
        raise GapError(lsn + 1, low + 1)


def refuse_short(log: SharedLog, lsn: int) -> None:
    """Raise DivergenceError if the log ends before `lsn`, the LSN of a reader's checkpoint."""
    if (end := _durable_lsn(log, lsn)) < lsn:
        raise DivergenceError(
            f"the checkpoint is of LSN {lsn:,}, and the log ends at {end:,}: the reader's records were cut",
            first_lsn=end + 1,
        )


def _durable_lsn(log: SharedLog, known_lsn: int) -> int:
    """Return how far the log is durable. `known_lsn` was durable once: the log is as long, unless it was cut."""
    lsn = log.end_and_manifest()[0][0]
    if lsn >= known_lsn or log.storage is None:
        return lsn
    return max(lsn, min(found_lsn(log.storage, known_lsn), known_lsn))


def restored_state(log: SharedLog, state: ReaderState, events: EventSink) -> Reached:
    """Restore the log's newest snapshot, and replay the compacted records after it; return the LSN reached.

    All up to there is durable. The records after it are complete, so they can be read in ranges.
    """
    for attempt in range(ATTEMPTS_MAX):
        view = log.view()
        try:
            return _restored_from(view, log, state, events)
        except (CorruptionError, GapError, HistoryTrimmedError, SnapshotError):
            # A writer's checkpoint may remove the files being read, or make a new snapshot.
            # Read again: on object storage a view may be of a moment before that checkpoint.
            newest = log.manifest() if log.storage is None else load_manifest(log.storage)
            if attempt == ATTEMPTS_MAX - 1 or newest.generation == view.manifest.generation:
                raise
    raise AssertionError("the last attempt returns or raises")


def _restored_from(view: View, log: SharedLog, state: ReaderState, events: EventSink) -> Reached:
    manifest, table = view.manifest, state.table
    durable = _durable_lsn(log, max(snapshot_lsns(view.storage), default=0))
    table.restore((), 0)
    restored = restore_newest(
        view.storage, manifest, table, events, first_lsn=view.first_lsn, last_lsn=durable
    )
    lsn = restored.lsn
    if lsn + 1 < view.complete_from_lsn:
        with log.reader(events) as reader:
            lsn = replay(reader, table, last_lsn=durable).applied_lsn
    return Reached(lsn, identity_at(manifest, lsn).epoch_id)
