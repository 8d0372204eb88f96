"""The engine of a log that is open for writing: everything that outlives the user's object until it is closed.

The user's `WriteAheadLog` holds the engine; the threads hold only the engine. So a log that is dropped without
close() is collected, and closes itself with a ResourceWarning.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace

from walkit.commit.batch import Submitted
from walkit.commit.core import OrderingCore
from walkit.commit.driver import CommitDriver
from walkit.commit.interrupts import uninterrupted
from walkit.commit.to_end import relayed, run_to_end
from walkit.config import ALIGNMENT_BUFFERED, ALIGNMENT_DIRECT, LogOptions
from walkit.errors import LogClosedError, LogExistsError, LogLockedError, LogNotFoundError, OptionsError
from walkit.events import EventSink
from walkit.format.frame import FrameIdentity
from walkit.format.layout import DURABLE_CELL_BYTES, SegmentFlag, align_up
from walkit.format.manifest import (
    MANIFEST_NAME,
    LogEnd,
    Manifest,
    encode_manifest,
)
from walkit.log.capacity import place_of
from walkit.log.closing import finish_in_time
from walkit.log.holds import Hold
from walkit.log.level import note_level
from walkit.log.manifest_store import (
    DURABLE_NAME,
    LOCK_NAME,
    NEW_NAME,
    ManifestStore,
    load_manifest,
    write_whole,
)
from walkit.log.observe import acknowledged_frames
from walkit.log.openview import view_of_open
from walkit.log.planning import next_epoch, plan_recovery, tell_recovery
from walkit.log.reader import LogView
from walkit.log.recovery import RecoveryPlan
from walkit.log.report import PhaseClock, RecoveryReport
from walkit.log.retention import retain_by_itself
from walkit.log.scan import Progress, read_mark
from walkit.log.segments import SegmentSet
from walkit.log.straddle import Straddle
from walkit.log.tidy import apply_plan, settle_unsealed
from walkit.log.trim import Leftovers
from walkit.metrics import LogStatistics
from walkit.storage.base import DirectStorage, LockHolder, Storage, StorageLock
from walkit.threads import Bell

_engines: weakref.WeakSet[LogEngine] = weakref.WeakSet()


class LogEngine:
    """Storage, manifest, segments and commit driver of one open log."""

    def __init__(
        self, storage: Storage, lock: StorageLock, options: LogOptions, events: EventSink, plan: RecoveryPlan
    ) -> None:
        self.storage = storage
        self.options = options
        self.events = events
        self.store = ManifestStore(storage, plan.findings.manifest)
        self.recovery: RecoveryReport | None = None
        self.holds: dict[str, Hold] = {}
        self.released: set[str] = set()
        self.followers: set[Bell] = set()
        self.closed = False
        self.ended = False
        self.opened_at = time.time()
        self._lock = lock
        self._close_lock = threading.RLock()
        self.trimming = threading.RLock()
        self.leftovers = Leftovers(storage)
        self.state_lsn: int | None = None
        """LSN of the newest durable snapshot of a state that is made of this log; None where none is kept."""
        self.closers: list[Callable[[], object]] = []
        """Called at the beginning of close: ends what works on the files beside the log's own threads."""
        self.straddle = Straddle(self)

    def start(self, plan: RecoveryPlan) -> None:
        """Apply the plan and make the commit path ready. Starts no thread and writes no segment."""
        number = next_epoch(plan.manifest)  # before anything is changed: there may be none
        apply_plan(self.storage, self.store, plan)
        note_level(self.store, self.options.durability)
        manifest = self.store.current
        end = manifest.end
        self.identity = FrameIdentity(manifest.log_id, number, secrets.randbits(64) | 1)
        began = replace(end, last_lsn=max(end.last_lsn, manifest.low_watermark, manifest.checkpoint_lsn))
        name = os.path.basename(self.storage.location.rstrip("/")) or "log"
        alignment = self._alignment()
        core: OrderingCore[Submitted] = OrderingCore(
            self.identity,
            last_lsn=began.last_lsn,
            position=align_up(began.position, alignment),
            chain=began.chain,
            alignment=alignment,
            frame_bytes_max=int(self.options.frame_bytes_max),
            in_flight_max=self.options.in_flight,
            completion=manifest.ack_order == "completion",
            window_bytes=self.options.window_bytes,
            policy=self.options.policy,
            ack_when_durable=self.options.durability == "sync",
            idle_mark_us=self.options.idle_mark_ms * 1000,
            interval_us=int(self.options.interval_s * 1e6) if self.options.durability == "interval" else 0,
        )
        self.segments = SegmentSet(
            self.storage,
            self.store,
            self.options,
            identity=self.identity,
            epoch_began=began,
            cell=self.storage.cell(DURABLE_NAME, DURABLE_CELL_BYTES, writable=True),
            mark=plan.findings.mark,
            events=self.events,
            name=name,
            alignment=alignment,
        )
        if self.options.in_flight > 1:
            self.segments.window_bytes = core.window_bytes
        if core.completion:
            self.segments.flags |= SegmentFlag.COMPLETION_ORDER
        offset_ns = time.time_ns() - time.monotonic_ns()
        self.driver = CommitDriver(
            core,
            place_of(self),
            events=self.events,
            name=name,
            sync_writes=self.options.durability == "sync",
            codec=self.options.codec,
            queue_bytes_max=self.options.queue_bytes_max,
            clock_us=lambda: (time.monotonic_ns() + offset_ns) // 1000,
            write_timeout_us=(self.options.write_timeout_ms or 0) * 1000,
        )
        self.driver.on_poison = self._wake_followers
        self.segments.watched = self.driver.watched
        self.segments.poison = self.segments.upkeep.broken = self.driver.poison
        delivery = self.driver.delivery
        delivery.bytes_max = self.options.queue_bytes_max
        delivery.reread = lambda first_lsn, last_lsn: acknowledged_frames(self, first_lsn, last_lsn)
        retain_by_itself(self)
        self.core = core
        _engines.add(self)

    def _alignment(self) -> int:
        """Return the alignment of the frames to come: that of direct I/O where it is wanted and the place takes it."""
        if not self.options.direct_io:
            return ALIGNMENT_BUFFERED
        storage = self.storage
        why_not = "the storage has none"
        if isinstance(storage, DirectStorage):
            why_not = storage.why_not_direct() or ""
        if not why_not:
            return ALIGNMENT_DIRECT
        self.events.emit("walkit.log.buffered", location=storage.location, reason=why_not)
        return ALIGNMENT_BUFFERED

    @property
    def first_lsn(self) -> int:
        """The oldest LSN that can still be read."""
        # The open segments first: one that is sealed meanwhile is in the manifest then, and not in neither.
        open_segments = list(self.segments.open_segments)
        manifest = self.store.current
        sealed = manifest.sealed
        begun = [s.header.first_lsn for s in open_segments if s.header is not None]
        oldest = sealed[0].first_lsn if sealed else begun[0] if begun else manifest.end.last_lsn + 1
        return max(oldest, manifest.low_watermark + 1)

    def view(self) -> LogView:
        """Return what can be read now: all that is acknowledged."""
        return view_of_open(self.storage, self.store, self.segments, self.core.written_position)

    def statistics(self) -> LogStatistics:
        """Return a frozen snapshot of the named metrics."""
        core, driver, manifest = self.core, self.driver, self.store.current
        counters = driver.counters
        open_segments = list(self.segments.open_segments)
        open_bytes = sum(
            s.end_position - s.header.start_position for s in open_segments if s.header is not None
        )
        return LogStatistics(
            appended_lsn=core.appended_lsn,
            acked_lsn=core.acked_lsn,
            durable_lsn=core.durable_lsn,
            first_lsn=self.first_lsn,
            records_appended=core.appended_lsn - self.segments.epoch_began.last_lsn,
            records_acked=core.acked_lsn - self.segments.epoch_began.last_lsn,
            user_bytes=counters.user_bytes,
            frames_written=counters.frames_written,
            frame_bytes=counters.frame_bytes,
            padding_bytes=counters.padding_bytes,
            alignment=core.alignment,
            marks_written=counters.marks_written,
            syncs=counters.syncs,
            write_ns=counters.write_ns,
            prepare_ns=counters.prepare_ns,
            queue_records=core.pending_records,
            queue_bytes=core.pending_bytes,
            queue_bytes_max=driver.queue_bytes_max,
            deliveries_waiting=driver.delivery.waiting,
            callback_errors=driver.delivery.errors,
            rotations=self.segments.rotations,
            segments=len(manifest.sealed) + len(open_segments),
            log_bytes=sum(s.size_bytes for s in manifest.sealed) + open_bytes,
            poisoned=int(core.failure is not None),
        )

    def close(self) -> None:
        """Finish what is queued, seal, let go of everything. Closing twice does nothing; the lock is freed always.

        StorageError where the device hangs: see `finish_in_time`. An interrupt ends no closing: see `run_to_end`.
        """
        if self.closed and self.driver.delivery.is_current:
            return  # the closing thread waits for this very callback
        if self.events.is_calling:
            # The thread is in the midst of the log's own work, and would wait for itself.
            with uninterrupted():
                threading.Thread(target=self._close, name="walkit-close").start()
            return
        run_to_end(self._close, "close", events=self.events)

    def _close(self) -> None:
        with self._close_lock:
            if self.closed:
                return
            for closer in self.closers:
                closer()
            self.closed = True
            try:
                self.driver.stop(LogClosedError(f"the log at {self.storage.location} is closed"))
            except BaseException:
                self.closed = False  # frames may still be written, so the lock must not go
                raise
            try:
                finish_in_time(self, self._end)
            finally:
                self.ended = True
                self._wake_followers()

    def _end(self) -> None:
        """Free the lock: nothing of this log is written any more."""
        _engines.discard(self)
        self._lock.release()
        self.ended = True
        self._wake_followers()
        self.events.emit("walkit.log.close", location=self.storage.location)

    def _wake_followers(self) -> None:
        for follower in list(self.followers):
            follower.set()

    def forget(self) -> None:
        """In a forked child: this copy is dead, the parent's log goes on untouched."""
        self.closed = True
        self.driver.after_fork(
            LogClosedError(
                "this is a forked child's copy of the log; the parent has it open. Open it anew here"
            )
        )
        self.ended = True
        self._close_lock, self.trimming = threading.RLock(), threading.RLock()
        self.closers.clear()
        self.store.forget()
        self.segments.forget()
        self._lock.forget()


def _after_fork_in_child() -> None:
    for engine in list(_engines):
        engine.forget()
    _engines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def open_engine(
    storage: Storage, mode: str, options: LogOptions, events: EventSink, progress: Progress | None = None
) -> LogEngine:
    """Open or create a log for writing. The lock is held on return; on an error it is not, and nothing was changed."""
    clock, progress = PhaseClock(), relayed(progress)
    with clock.phase("open") as detail:
        existed = _require_a_log(storage, mode)
        lock = storage.lock(LOCK_NAME)
        if isinstance(lock, LockHolder):
            raise LogLockedError(
                storage.location, pid=lock.pid, command=lock.command, same_process=lock.same_process
            )
        try:
            created = not existed and MANIFEST_NAME not in storage.names()
            if mode == "x" and not created:
                raise LogExistsError(storage.location)
            manifest = _create(storage, options) if created else load_manifest(storage)
            _check_stored(manifest, options)
            mark = read_mark(storage)
            detail["segments"] = len(manifest.segments)
        except BaseException:
            lock.release()
            raise
    try:
        with clock.phase("scan") as detail:
            settle_unsealed(storage, manifest, salvage=options.recovery == "salvage")
            plan = plan_recovery(storage, manifest, mark, options.recovery, progress=progress)
            detail["unsealed"] = len(plan.findings.unsealed)
        clock.split_off("verify", plan.findings.verify_s)
        with clock.phase("apply"):
            engine = LogEngine(storage, lock, options, events, plan)
            engine.start(plan)
    except BaseException:
        lock.release()
        raise
    engine.recovery = recovery_report(storage, options, clock, plan, created)
    tell_recovery(events, engine.recovery)
    events.emit("walkit.log.open", location=storage.location, verdict=engine.recovery.verdict)
    return engine


def _require_a_log(storage: Storage, mode: str) -> bool:
    """Make the folder of a new log; refuse what is not a log before anything is written. Say whether one is there."""
    try:
        load_manifest(storage)
    except LogNotFoundError:
        storage.create()
        return False
    if mode == "x":
        raise LogExistsError(storage.location)
    return True


def _create(storage: Storage, options: LogOptions) -> Manifest:
    manifest = Manifest(
        log_id=secrets.randbits(64) | 1,
        created_us=time.time_ns() // 1000,
        ack_order=options.ack_order or "append",
    )
    if DURABLE_NAME in storage.names():
        storage.remove(DURABLE_NAME)  # of a log that was removed by hand: its promises are not this log's
    write_whole(storage, MANIFEST_NAME, NEW_NAME, encode_manifest(manifest))
    return manifest


def _check_stored(manifest: Manifest, options: LogOptions) -> None:
    if options.ack_order is not None and options.ack_order != manifest.ack_order:
        raise OptionsError(
            f"ack_order={options.ack_order!r}, and the log was made with {manifest.ack_order!r}: "
            "it is fixed for its life",
            option="ack_order",
            wanted=options.ack_order,
            stored=manifest.ack_order,
        )


def recovery_report(
    storage: Storage, options: LogOptions, clock: PhaseClock, plan: RecoveryPlan, created: bool
) -> RecoveryReport:
    """Return what an opening found, and what its plan did."""
    findings = plan.findings
    scanned = [f for f in (*findings.sealed, *findings.unsealed) if f.bytes_scanned]
    clean = not findings.unsealed and not plan.cuts and not plan.steps
    with clock.phase("ready"):
        pass
    end: LogEnd = plan.end
    return RecoveryReport(
        location=storage.location,
        policy=plan.policy,
        verdict="created" if created else "clean" if clean else "recovered",
        phases=tuple(clock.phases),
        cuts=plan.cuts,
        holes=plan.holes,
        lost=plan.lost,
        decisions=plan.decisions,
        segments=len(plan.manifest.segments),
        segments_scanned=len(scanned),
        frames_scanned=sum(f.frames for f in scanned),
        records_scanned=sum(f.records for f in scanned),
        bytes_scanned=sum(f.bytes_scanned for f in scanned),
        last_lsn=max(end.last_lsn, plan.manifest.low_watermark),
        end_position=end.position,
        promised_position=findings.promised_position,
    )
