"""The log of a replica: written by frames of its primary alone, at the same LSNs and positions, byte for byte.

Its segments are flagged IMPORTED: what their frames promise is about the primary's disk, and recovery does not use it;
this log's own durable cell and seals say what is on this disk. It has the writer's lock, and readers of other
processes read it like any log. It mints no epoch: its lineage is that of the primary, as far as it has come.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from walkit.commit.commit_signal import News
from walkit.commit.frame import SealedFrame
from walkit.commit.to_end import run_to_end
from walkit.config import LogOptions, Retention
from walkit.errors import (
    GapError,
    LogClosedError,
    LogLockedError,
    LogNotFoundError,
    LogPoisonedError,
    OptionsError,
    WalkitError,
)
from walkit.events import EventSink
from walkit.format.frame import FrameIdentity
from walkit.format.layout import DURABLE_CELL_BYTES, SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import (
    MANIFEST_NAME,
    EpochRecord,
    LogEnd,
    Manifest,
    encode_manifest,
    prepared_record,
)
from walkit.format.segment import SegmentHeader
from walkit.log.engine import recovery_report
from walkit.read.openview import view_of_open
from walkit.read.read_api import ReadSurface
from walkit.read.view import LogView
from walkit.record import Record
from walkit.recovery.apply import apply_plan, settle_unsealed
from walkit.recovery.planning import plan_recovery, tell_recovery
from walkit.recovery.report import PhaseClock, RecoveryReport
from walkit.recovery.scan import read_mark
from walkit.replication.frame_batch import FrameRun
from walkit.segments.manifest_store import (
    DURABLE_NAME,
    LOCK_NAME,
    NEW_NAME,
    ManifestStore,
    load_manifest,
    write_whole,
)
from walkit.segments.segment_set import SegmentSet
from walkit.storage.interface import LockHolder, Storage

NO_IDENTITY = FrameIdentity(0, 0, 0)

_open_logs: weakref.WeakSet[ImportedLog] = weakref.WeakSet()


class ImportedSegments(SegmentSet):
    """Segments that hold the frames of another log. One thread imports."""

    lineage: tuple[EpochRecord, ...] = ()
    """The primary's epochs up to the one of the frames that are imported now."""
    run: FrameRun | None = None

    def take_epoch(self, identity: FrameIdentity, lineage: tuple[EpochRecord, ...]) -> None:
        """Frames of this epoch come next; a segment that was made ahead for another one is dropped."""
        with self._prepare_lock:
            self.identity, self.lineage = identity, lineage
            spare, self._spare = self._spare, None
            if spare is not None:
                spare.file.close()
                self._drop_spare(spare)

    def place(self, run: FrameRun) -> None:
        """Write the frames of a run, durable on return, into as many segments as they need."""
        first = 0
        while first < len(run.headers):
            stop = self._fitting(run, first)
            if stop == first:
                self._begin(run, first)
                stop = max(self._fitting(run, first), first + 1)  # a segment takes one frame, however large
            self._write_frames(run, first, stop)
            first = stop

    def _fitting(self, run: FrameRun, first: int) -> int:
        """Return the index behind the last frame, from `first` on, that the segment in use has room for."""
        room, stop = self._room_for(run, first), first
        while stop < len(run.headers) and run.headers[stop].end_position <= room:
            stop += 1
        return stop

    def _room_for(self, run: FrameRun, first: int) -> int:
        """Return the position up to which the segment in use takes frames of the run; 0 where it takes none."""
        segment, header = self.current, None if self.current is None else self.current.header
        if segment is None or header is None:
            return 0
        same = (header.epoch, header.epoch_id) == (run.identity.epoch, run.identity.epoch_id)
        limits = (header.alignment, header.frame_bytes_max) == (
            run.limits.alignment,
            run.limits.frame_bytes_max,
        )
        if not (same and limits and segment.end_position == run.headers[first].position):
            return 0
        return header.start_position + segment.size - SEGMENT_HEADER_BYTES

    def _begin(self, run: FrameRun, first: int) -> None:
        header = run.headers[first]
        self.run = run
        self.begin_segment(position=header.position, first_lsn=header.first_lsn, chain=header.chain)

    def _write_frames(self, run: FrameRun, first: int, stop: int) -> None:
        headers = run.headers[first:stop]
        begin, end = headers[0].position, headers[-1].end_position
        data = run.data[begin - run.start_position : end - run.start_position]
        last = headers[-1]
        frames = SealedFrame(
            (),
            first_lsn=headers[0].first_lsn,
            count=last.last_lsn - headers[0].first_lsn + 1,
            position=begin,
            footprint=end - begin,
            header_crc=last.header_crc,
            buffers=[data],
            user_bytes=0,
            columns=None,
        )
        self.admit(frames)
        self.write(frames, sync=True)
        self.passed(end)
        assert self.current is not None
        self.current.frames += len(headers) - 1

    def _header_of(self, number: int, position: int, first_lsn: int, chain: int) -> SegmentHeader:
        run = self.run
        assert run is not None
        return SegmentHeader(
            log_id=self.identity.log_id,
            epoch=self.identity.epoch,
            epoch_id=self.identity.epoch_id,
            number=number,
            start_position=position,
            previous_end=run.after.position if position == run.start_position else position,
            first_lsn=first_lsn,
            chain=chain,
            alignment=run.limits.alignment,
            frame_bytes_max=run.limits.frame_bytes_max,
            created_us=time.time_ns() // 1000,
            flags=SegmentFlag.IMPORTED,
        )

    def _with_prepared(self, manifest: Manifest, number: int) -> Manifest:
        """Name a prepared segment in the manifest, and with it the epochs that the log has come to."""
        record = prepared_record(number, self.identity.epoch, self.options.segment_bytes)
        following = max(manifest.next_segment, number + 1)
        return manifest.next(
            segments=(*manifest.segments, record), next_segment=following, lineage=self.lineage
        )


class ImportedLog(ReadSurface):
    """A replica's log, open for importing: it can be read like any log, and has no append. Safe from any thread.

    Opening takes the writer's lock and recovers. Before the first contact with the primary there is no log yet: then
    it is empty, and `adopt` makes it. Only one thread imports.
    """

    def __init__(
        self, storage: Storage, options: LogOptions | None = None, events: EventSink | None = None
    ) -> None:
        """Raises what opening a log for writing raises; then nothing is held and nothing was changed."""
        self.options = options or LogOptions()
        if self.options.direct_io:
            raise OptionsError(
                "direct_io=True: a replica keeps the frames of its primary, with their alignment",
                option="direct_io",
                wanted=True,
            )
        if self.options.retention != Retention():
            raise OptionsError(
                f"retention={self.options.retention!r}: a replica keeps what its primary has sent",
                option="retention",
                wanted=self.options.retention,
            )
        self.storage, self.events = storage, events or EventSink()
        self.closed = self.adopted = False
        self.recovery: RecoveryReport | None = None
        self.failure: BaseException | None = None
        self._news, self._closing = News(), threading.RLock()
        storage.create()
        lock = storage.lock(LOCK_NAME)
        if isinstance(lock, LockHolder):
            raise LogLockedError(
                storage.location, pid=lock.pid, command=lock.command, same_process=lock.same_process
            )
        self._lock = lock
        self._store = ManifestStore(storage, Manifest(log_id=0))
        try:
            self._open()
        except BaseException:
            self.closed = True
            lock.release()
            raise
        _open_logs.add(self)

    def _open(self) -> None:
        clock = PhaseClock()
        with clock.phase("open") as detail:
            try:
                manifest = load_manifest(self.storage)
            except LogNotFoundError:
                self._end = LogEnd()
                return
            mark = read_mark(self.storage)
            detail["segments"] = len(manifest.segments)
        with clock.phase("scan") as detail:
            policy = self.options.recovery
            settle_unsealed(self.storage, manifest, salvage=policy == "salvage")
            plan = plan_recovery(self.storage, manifest, mark, policy)
            detail["unsealed"] = len(plan.findings.unsealed)
        clock.split_off("verify", plan.findings.verify_s)
        with clock.phase("apply"):
            self._store = ManifestStore(self.storage, manifest)
            apply_plan(self.storage, self._store, plan)
        self.recovery = recovery_report(self.storage, self.options, clock, plan, False)
        self._begin()
        tell_recovery(self.events, self.recovery)

    def _begin(self) -> None:
        manifest = self._store.current
        self._end = manifest.end
        self.segments = ImportedSegments(
            self.storage,
            self._store,
            self.options,
            identity=NO_IDENTITY,
            epoch_began=manifest.end,
            cell=self.storage.cell(DURABLE_NAME, DURABLE_CELL_BYTES, writable=True),
            mark=read_mark(self.storage),
            events=self.events,
            name=os.path.basename(self.storage.location.rstrip("/")) or "replica",
        )
        self.segments.poison = self.segments.upkeep.broken = self._poison
        self.adopted = True

    def adopt(self, log_id: int, *, created_us: int, ack_order: str, extra: Mapping[str, Any]) -> None:
        """Become a replica of this log, at the first contact; durable on return."""
        assert not self.adopted and not self.closed
        manifest = Manifest(log_id=log_id, created_us=created_us, ack_order=ack_order, extra=dict(extra))
        if DURABLE_NAME in self.storage.names():
            # Of a log that was removed by hand: its promises are not this log's.
            self.storage.remove(DURABLE_NAME)
        write_whole(self.storage, MANIFEST_NAME, NEW_NAME, encode_manifest(manifest))
        self._store = ManifestStore(self.storage, manifest)
        self._begin()

    def import_run(self, run: FrameRun, lineage: tuple[EpochRecord, ...]) -> LogEnd:
        """Take frames that follow the end of this log; on stable storage on return. Returns the new end.

        `lineage` is the primary's up to the run's epoch. StorageError and LogFullError poison the log: open it again.
        """
        if self.closed:
            raise LogClosedError(f"the replica's log at {self.location} is closed")
        if self.failure is not None:
            raise LogPoisonedError(f"an earlier write failed ({self.failure}); open the replica again")
        assert run.after == self._end and run.identity.log_id == self._store.current.log_id
        segments = self.segments
        try:
            if segments.identity != run.identity:
                segments.take_epoch(run.identity, lineage)
            segments.place(run)
        except WalkitError as error:
            # Some of the frames may be there already, a full disk included: only an opening can tell.
            self._poison(error)
            raise
        end = run.end
        segments.publish(end.position, end.last_lsn)
        with self._news.lock:
            self._end = end
            self._news.tell_locked()
        return end

    def _poison(self, cause: BaseException) -> None:
        """Import nothing more: a write or sync has failed, here or on the upkeep thread."""
        self.failure = self.failure or cause
        self.events.emit("walkit.log.poison", cause=repr(cause), acked_lsn=self._end.last_lsn)

    # -- reading

    @property
    def end(self) -> LogEnd:
        """Where the log ends: LSN, position and chain that the next frame must follow. All before it is durable."""
        return self._end

    @property
    def manifest(self) -> Manifest:
        """The manifest of this moment."""
        return self._store.current

    @property
    def location(self) -> str:
        """Where the log is: a path or a URL."""
        return self.storage.location

    @property
    def first_lsn(self) -> int:
        """The oldest LSN that can be read; one more than the last where the log is empty."""
        return self._view().first_lsn

    @property
    def durable_lsn(self) -> int:
        """The last LSN imported: all of it is on this replica's stable storage."""
        return self._end.last_lsn

    def _view(self) -> LogView:
        if not self.adopted:
            return LogView(self.storage, self._store.current, ())
        return view_of_open(self.storage, self._store, self.segments, self._end.position)

    def _now(self) -> tuple[LogView, int]:
        """See ReadSurface."""
        if self.closed:
            raise LogClosedError(f"the replica's log at {self.location} is closed")
        newest = self._end.last_lsn
        return self._view(), newest

    def follow(self, first_lsn: int, timeout: float | None = None) -> Iterator[Record]:
        """Yield records from `first_lsn` on, and go on as they are imported.

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
        self._news.wait_for(lambda: self.closed or self._end.last_lsn >= lsn, timeout)
        return self._end.last_lsn >= lsn

    def close(self) -> None:
        """Seal what is open and free the log. Closing twice does nothing; an interrupt does not end it."""
        run_to_end(self._close, "close", events=self.events)

    def _close(self) -> None:
        with self._closing:  # who comes second returns when the lock is free, too
            if self.closed:
                return
            if self.adopted:
                self.segments.upkeep.close()  # first: no file is closed, no lock freed under its job
            with self._news.lock:
                self.closed = True
                self._news.tell_locked()
            try:
                if self.adopted:
                    self.segments.close(poisoned=self.failure is not None)
            finally:
                self._store.close()
                self._lock.release()

    def forget(self) -> None:
        """In a forked child: this copy is dead, the parent's log goes on untouched."""
        self.closed = True
        self._news, self._closing = News(), threading.RLock()
        self._store.forget()
        if self.adopted:
            self.segments.forget()
        self._lock.forget()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<ImportedLog {self.location} {state}: LSN {self._end.last_lsn}>"


def _after_fork_in_child() -> None:
    for log in list(_open_logs):
        if not log.closed:
            log.forget()
    _open_logs.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
