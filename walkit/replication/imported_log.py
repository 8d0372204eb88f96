"""The log of a replica: written by frames of its primary alone, at the same LSNs and positions, byte for byte.

Its segments are flagged IMPORTED: what their frames promise is about the primary's disk, and recovery does not use it;
this log's own durable slot and seals say what is on this disk. It has the writer's lock, and readers of other
processes read it like any log. It mints no epoch: its lineage is that of the primary, as far as it has come.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from walkit.commit.to_end import run_to_end
from walkit.config import LogOptions, Retention
from walkit.errors import GapError, LogClosedError, OptionsError
from walkit.events import EventSink
from walkit.format.manifest import EpochRecord, LogEnd, Manifest
from walkit.log.finalizer import watch_exit
from walkit.read.read_api import ReadSurface
from walkit.read.view import LogView
from walkit.record import Record
from walkit.recovery.report import RecoveryReport
from walkit.replication.frame_batch import FrameRun
from walkit.replication.import_engine import ImportEngine, close_dropped
from walkit.replication.imported_segments import ImportedSegments
from walkit.storage.interface import Storage


class ImportedLog(ReadSurface):
    """A replica's log, open for importing: it can be read like any log, and has no append. Safe from any thread.

    Opening takes the writer's lock and recovers; an interrupt (Ctrl-C) of it leaves the lock free. Before the first
    contact with the primary there is no log yet: then it is empty, and `adopt` makes it. Only one thread imports. A log
    that is dropped without `close` closes itself, with a ResourceWarning unless the process is ending.
    """

    def __init__(
        self, storage: Storage, options: LogOptions | None = None, events: EventSink | None = None
    ) -> None:
        """Raises what opening a log for writing raises; then nothing is held and nothing was changed."""
        given = options or LogOptions()
        if given.direct_io:
            raise OptionsError(
                "direct_io=True: a replica keeps the frames of its primary, with their alignment",
                option="direct_io",
                wanted=True,
            )
        if given.retention != Retention():
            raise OptionsError(
                f"retention={given.retention!r}: a replica keeps what its primary has sent",
                option="retention",
                wanted=given.retention,
            )
        sink = events or EventSink()

        def opened() -> ImportEngine:
            # All of it where no interrupt comes: one after the lock and before the finaliser would leave it taken.
            self._engine = engine = ImportEngine(storage, given, sink)
            self._finalizer = weakref.finalize(self, close_dropped, engine)
            watch_exit()
            return engine

        run_to_end(opened, "open", events=sink, undo=ImportEngine.close)

    # -- importing

    def adopt(self, log_id: int, *, created_us: int, ack_order: str, extra: Mapping[str, Any]) -> None:
        """Become a replica of this log, at the first contact; durable on return."""
        self._engine.adopt(log_id, created_us=created_us, ack_order=ack_order, extra=extra)

    def import_run(self, run: FrameRun, lineage: tuple[EpochRecord, ...]) -> LogEnd:
        """Take frames that follow the end of this log; on stable storage on return. Returns the new end.

        `lineage` is the primary's up to the run's epoch. StorageError and LogFullError poison the log: open it again.
        """
        return self._engine.import_run(run, lineage)

    @property
    def adopted(self) -> bool:
        """Whether this is a replica of a log already."""
        return self._engine.adopted

    @property
    def failure(self) -> BaseException | None:
        """The write or sync that has failed, after which nothing is imported; None while all is well."""
        return self._engine.failure

    @property
    def segments(self) -> ImportedSegments:
        """The segments that imported frames are written to; there are none before the log is adopted."""
        return self._engine.segments

    @property
    def recovery(self) -> RecoveryReport | None:
        """What this opening found and did; None where there was no log."""
        return self._engine.recovery

    @property
    def options(self) -> LogOptions:
        """The options of this opening."""
        return self._engine.options

    @property
    def events(self) -> EventSink:
        """Where the log's events go."""
        return self._engine.events

    @property
    def closed(self) -> bool:
        """Whether the log has been closed."""
        return self._engine.closed

    # -- reading

    @property
    def end(self) -> LogEnd:
        """Where the log ends: LSN, position and chain that the next frame must follow. All before it is durable."""
        return self._engine.end

    @property
    def manifest(self) -> Manifest:
        """The manifest of this moment."""
        return self._engine.store.current

    @property
    def storage(self) -> Storage:
        """Where the log is."""
        return self._engine.storage

    @property
    def location(self) -> str:
        """Where the log is: a path or a URL."""
        return self._engine.storage.location

    @property
    def first_lsn(self) -> int:
        """The oldest LSN that can be read; one more than the last where the log is empty."""
        return self._engine.view().first_lsn

    @property
    def durable_lsn(self) -> int:
        """The last LSN imported: all of it is on this replica's stable storage."""
        return self._engine.end.last_lsn

    def _now(self) -> tuple[LogView, int]:
        """See ReadSurface."""
        if self.closed:
            raise LogClosedError(f"the replica's log at {self.location} is closed")
        newest = self._engine.end.last_lsn
        return self._engine.view(), newest

    def follow(self, first_lsn: int, timeout: float | None = None) -> Iterator[Record]:
        """Yield records from `first_lsn` on, and continue as more are imported.

        Ends when the log is closed or, with `timeout`, after that many seconds without a new record. GapError where a
        record has been trimmed: never a skip.
        """
        wanted = max(first_lsn, 1)
        while not self.closed:
            view, newest = self._now()
            if wanted < view.first_lsn:
                raise GapError(wanted, view.first_lsn)
            if wanted <= newest:
                yield from view.records(wanted, newest)
                wanted = newest + 1
            elif not self.wait_for(wanted, timeout):
                return

    def wait_for(self, lsn: int, timeout: float | None = None) -> bool:
        """Wait until this LSN is imported; False where the time is over or the log is closed before."""
        self._engine.news.wait_for(lambda: self.closed or self._engine.end.last_lsn >= lsn, timeout)
        return self._engine.end.last_lsn >= lsn

    def close(self) -> None:
        """Seal what is open and free the log. Closing twice does nothing; an interrupt does not end it."""
        self._engine.close()
        self._finalizer.detach()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<ImportedLog {self.location} {state}: LSN {self._engine.end.last_lsn}>"
