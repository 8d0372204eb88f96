"""The replica's own store: the keyed table that its imported records come to. It can be read, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable

from walkit._internal.locks import STATE, alone, marked, once
from walkit._internal.report import report_html
from walkit._internal.text import counted
from walkit.commit.latches import CommitSignal
from walkit.config import StoreOptions
from walkit.errors import HistoryTrimmedError, LogClosedError
from walkit.read.view import frames_to_batches
from walkit.replication.logs.imported_log import ImportedLog
from walkit.replication.protocol.frame_run import FrameRun
from walkit.state.applier import Follower
from walkit.state.checkpoint import Checkpointer, CheckpointReport, CheckpointThread
from walkit.state.machine_recovery import MachineRecovery, recover
from walkit.state.mapping_api import MappingApi
from walkit.state.replay import replay
from walkit.state.snapshot import snapshot_lsns
from walkit.state.table import KeyedTable


def _recovered(log: ImportedLog) -> tuple[MachineRecovery, KeyedTable, int]:
    """Return how the state of a log was made, the state, and the LSN from which on it is made."""
    table = KeyedTable()
    try:
        return recover(log, table), table, 1
    except HistoryTrimmedError:
        if any(lsn >= log.manifest.low_watermark for lsn in snapshot_lsns(log.storage)):
            raise  # there was a state of this log, and it cannot be had
    table, first_lsn = KeyedTable(), log.first_lsn
    report = replay(log, table, first_lsn=first_lsn)
    return MachineRecovery(snapshot=None, refused=(), replay=report), table, first_lsn


class ReplicaStore(MappingApi):
    """A durable dict of bytes to bytes, as of the last record that was applied. Safe from any thread.

    Every record in it is on the replica's stable storage. A frame is applied whole, so a transaction is seen all or
    not at all. Its checkpoints are the replica's own: snapshots in the replica's folder, of which the primary knows
    nothing, and with which its log can begin.
    """

    def __init__(self, log: ImportedLog, checkpoint_every: int | None = None) -> None:
        """Restore the newest good snapshot of the replica's folder, then replay the records after it.

        With `checkpoint_every` a checkpoint is taken by itself after so many records, on another thread, and not before
        records were imported: what its primary does not have is not to be made the only state. Raises what
        `walkit.recover` raises; OptionsError.
        """
        self.options = StoreOptions(checkpoint_every=checkpoint_every)
        self.log = log
        self._table = KeyedTable()
        self.begins_lsn = 1
        """From which record on the state is made. More than 1 for a log that was trimmed and never had a snapshot: then
        it has what the records since say, and no key of which no record is left."""
        self._applied = CommitSignal()
        self._recovery: MachineRecovery | None = None
        self._beginning = threading.RLock()
        self._checkpointer: Checkpointer | None = None
        self._checkpoint_thread: CheckpointThread | None = None
        if log.adopted:
            self._recovery, self._table, self.begins_lsn = _recovered(log)
        # The threads of checkpoints know the follower, and not this object: one that is dropped is collected.
        self._follower = Follower(self._table, log.durable_lsn)
        if log.adopted:
            self._checkpoints()

    def _checkpoints(self) -> Checkpointer:
        """Return the checkpointer, made when there is a log."""
        with once(self._beginning), self._beginning:
            if self._checkpointer is None:
                self._checkpointer = self._begin_checkpoints()
            return self._checkpointer

    def _begin_checkpoints(self) -> Checkpointer:
        log, restored = self.log, None if self._recovery is None else self._recovery.snapshot
        checkpointer = Checkpointer(
            log.storage,
            log.options.codec,
            log.manifest_store,
            lambda lsn: None,  # applied records were imported, which is durable
            log.segments.maintenance,
            log.maintenance.trimmer,
            log.maintenance.orphan_files,
            log.lifetime,
            log.events,
            machine=self._table,
            follower=self._follower,
            restored=restored,
        )
        after = self.options.checkpoint_after
        if after is not None:
            self._checkpoint_thread = CheckpointThread(
                checkpointer, after, log.location, log.marks, log.lifetime, log.events
            )
        return checkpointer

    def reload(self) -> None:
        """Load the state from the replica's log again, as it was replaced. Called by the importing thread.

        Raises the errors of `walkit.recover`; then the state is as before.
        """
        recovery, table, begins_lsn = _recovered(self.log)
        with once(self._beginning), self._beginning:
            self._recovery, self._table, self.begins_lsn = recovery, table, begins_lsn
            self._follower = Follower(table, self.log.durable_lsn)
            self._checkpointer = self._checkpoint_thread = None  # they ended with the log that they were for
        self._checkpoints()
        self._check()
        self.wake()

    def _check(self) -> None:
        """Assert the invariants between two imports, on the importing thread: the log can give this state."""
        with once(self._beginning), self._beginning:
            assert self._checkpoint_thread is None or self._checkpointer is not None
            assert self._recovery is not None or self.begins_lsn == 1
        assert 0 <= self._table.applied_lsn <= self._follower.applied_lsn
        assert self.log.closed or self._follower.applied_lsn <= self.log.durable_lsn, (
            "a record that may be lost was applied"
        )

    def feed(self, run: FrameRun) -> None:
        """Apply the records of frames that were just imported. Called by the importing thread, in order."""
        if self._checkpointer is None:
            self._checkpoints()
        first = self._follower.applied_lsn + 1
        frames = ((header, frame) for header, frame in run.frames() if header.records)
        with alone(STATE), self._follower.lock:
            for batch in frames_to_batches(frames, first, None):
                self._table.apply_arrow(batch)
                self._follower.applied_lsn = self._table.applied_lsn
        if self._checkpoint_thread is not None:
            self._checkpoint_thread.reached(self._follower.applied_lsn)
        self.wake()

    def checkpoint(self, *, trim: bool = True) -> CheckpointReport:
        """Save the state beside the replica's log, and drop the records that it replaces; see `Store.checkpoint`.

        Durable on return: a snapshot, the low watermark, the trim, in this order; claims in this folder keep
        the log back. The next opening replays only the records after it. LogNotFoundError before the first contact with
        the primary; LogClosedError, SnapshotError, StorageError. Any thread.
        """
        self._see_acknowledged()
        self.log.require_log()
        return self._checkpoints().checkpoint(trim=trim)

    def wait_for(self, lsn: int, timeout: float | None = None) -> bool:
        """Wait until this LSN is applied; False if the time is over, or the log closed before.

        `Replica.wait_for` also compares the histories.
        """
        self.wait_until(lambda: self.applied_lsn >= lsn, timeout)
        return self.applied_lsn >= lsn

    def wait_until(self, holds: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait until this holds, the log is closed, or the time is over; asked at each `wake`, and under a lock."""
        self._applied.wait_for(lambda: self.log.closed or holds(), timeout)

    def wake(self) -> None:
        """Wake the waiting threads, to look again."""
        with marked(), self._applied.lock:
            self._applied.notify_locked()

    @property
    def applied_lsn(self) -> int:
        """LSN of the last record in the store."""
        return self._follower.applied_lsn

    @property
    def recovery(self) -> MachineRecovery | None:
        """The snapshot that the state was restored from, and the records replayed after it; None without a log."""
        return self._recovery

    @property
    def snapshot_lsn(self) -> int:
        """LSN of the newest snapshot taken or restored; 0 without one."""
        return 0 if self._checkpointer is None else self._checkpointer.snapshot_lsn

    def _see_acknowledged(self) -> None:
        if self.log.closed:
            raise LogClosedError(f"the replica at {self.log.location} is stopped")

    def __repr__(self) -> str:
        return f"<ReplicaStore {self.log.location}: {counted(len(self._table), 'key')} at LSN {self.applied_lsn}>"

    def _repr_html_(self) -> str:
        facts = [("live keys", f"{len(self._table):,}"), ("applied LSN", f"{self.applied_lsn:,}")]
        facts.append(("newest snapshot at LSN", f"{self.snapshot_lsn:,}" if self.snapshot_lsn else "none"))
        return report_html(f"replica's store {self.log.location}", facts)
