"""The replica's own store: the keyed table that its imported records come to. It can be read, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from walkit._text import counted
from walkit.commit.commit_signal import CommitSignal
from walkit.errors import LogClosedError
from walkit.read.view import frames_to_batches
from walkit.recovery.report import report_html
from walkit.replication.frame_batch import FrameRun
from walkit.replication.imported_log import ImportedLog
from walkit.state.applier import Follower
from walkit.state.replay import replay
from walkit.state.surface import KeyedSurface
from walkit.state.table import KeyedTable


class ReplicaStore(KeyedSurface):
    """A durable dict of bytes to bytes, as of the last record that was applied. Safe from any thread.

    Every record in it is on the replica's stable storage. A frame is applied whole, so a transaction is seen all or
    not at all.
    """

    def __init__(self, log: ImportedLog) -> None:
        """Replay what the log holds already."""
        self.log = log
        self._table = KeyedTable()
        self._follower = Follower(self._table, 0)
        self._news = CommitSignal()
        replay(log, self._table)
        self._follower.applied_lsn = self._table.applied_lsn

    def feed(self, run: FrameRun) -> None:
        """Apply the records of frames that were just imported. Called by the importing thread, in order."""
        first = self._follower.applied_lsn + 1
        frames = ((header, frame) for header, frame in run.frames() if header.records)
        with self._follower.lock:
            for batch in frames_to_batches(frames, first, None):
                self._table.apply_arrow(batch)
                self._follower.applied_lsn = self._table.applied_lsn
        self.wake()

    def wait_for(self, lsn: int, timeout: float | None, over: Callable[[], bool] = lambda: False) -> bool:
        """Wait until this LSN is applied; False where the time is over, the log closed, or `over` holds before."""
        self._news.wait_for(lambda: self.log.closed or self.applied_lsn >= lsn or over(), timeout)
        return self.applied_lsn >= lsn

    def wake(self) -> None:
        """Wake the waiting threads, to look again."""
        with self._news.lock:
            self._news.notify_locked()

    @property
    def applied_lsn(self) -> int:
        """LSN of the last record in the store."""
        return self._follower.applied_lsn

    def _see_acknowledged(self) -> None:
        if self.log.closed:
            raise LogClosedError(f"the replica at {self.log.location} is stopped")

    def __repr__(self) -> str:
        return f"<ReplicaStore {self.log.location}: {counted(len(self._table), 'key')} at LSN {self.applied_lsn}>"

    def _repr_html_(self) -> str:
        facts = [("live keys", f"{len(self._table):,}"), ("applied LSN", f"{self.applied_lsn:,}")]
        return report_html(f"replica's store {self.log.location}", facts)
