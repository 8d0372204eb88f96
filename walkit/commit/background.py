"""Work of the commit path that no leader does: syncs, marker frames, replicas' acknowledgements, time limits.

The timer thread only looks. The device worker calls the device, so each call is watched; a sync's waiters are
woken by its end, or by the watch.

`AckLimit` is the second bound on acknowledgement: how far others (replicas) have the durable records. Without it what
is written is acknowledged; with it the smaller of both. All that follows from an acknowledgement (callers, tickets,
tasks, callbacks, observers, the sink) follows from the core's one mark, which `OrderingCore.acknowledge` moves. Frames
are then completed by whichever thread moves it, so all of them go through the queue of `Completion`.
"""

from __future__ import annotations

import errno
import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns

from walkit._internal.arguments import refuse
from walkit._internal.locks import once
from walkit._internal.threads import LogThread
from walkit._main_thread import uninterrupted
from walkit.commit.core import NO_LIMIT, OrderingCore
from walkit.commit.election import LeaderElection
from walkit.commit.frame import Tick
from walkit.commit.frame_writer import CommitCounters, CommitFailure, FrameWriter, publish_locked
from walkit.commit.latches import call_all, new_latch, open_latch
from walkit.commit.ports import FrameObserver, FrameSink
from walkit.commit.ticket import Submitted
from walkit.commit.timer import CommitTimer
from walkit.errors import StorageError, WalkitError


class DeviceWorker:
    """Does jobs one after the other on a thread of its own, which starts with the first. Safe from any thread."""

    def __init__(
        self, name: str, on_failure: Callable[[BaseException], object], serving: set[int] | None = None
    ) -> None:
        """`on_failure` is called with an error that a job raised all the same, and raises nothing.

        `serving` gets the thread's number while it runs.
        """
        self._name = name
        self._serving: set[int] = set() if serving is None else serving
        self._on_failure = on_failure
        # Guards `_jobs`, `_doing`, `_closing` and the start of the thread. Taken alone, never around a job.
        self._guard = threading.RLock()
        self._wake = new_latch()
        """A latch and not an Event, whose lock an interrupt of the main thread could leave locked."""
        self._jobs: deque[tuple[str, Callable[[], object]]] = deque()
        self._doing = ""
        self._closing = False
        self._thread: LogThread | None = None

    @property
    def is_current(self) -> bool:
        """Whether the caller is the device worker itself."""
        return self._thread is threading.current_thread()

    def do(self, name: str, job: Callable[[], object]) -> bool:
        """Queue a job, which raises nothing; False once it is closed: then it is never done.

        RuntimeError if the system has no thread to give: then it is not queued.
        """
        with once(self._guard), self._guard:
            if self._closing:
                return False
            if self._thread is None:
                thread = LogThread(target=self._run, name=f"walkit-device {self._name}", daemon=True)
                with uninterrupted():
                    thread.start()
                    self._thread = thread
            self._jobs.append((name, job))
            self._check()
        open_latch(self._wake)
        return True

    def do_once(self, name: str, job: Callable[[], object]) -> None:
        """Queue a job unless one of this name is queued or under way."""
        with once(self._guard), self._guard:
            if self._doing == name or any(queued == name for queued, _ in self._jobs):
                return
        self.do(name, job)

    def _run(self) -> None:
        thread = threading.get_ident()
        self._serving.add(thread)
        try:
            self._do_jobs()
        finally:
            self._serving.discard(thread)

    def _do_jobs(self) -> None:
        while True:
            with once(self._guard), self._guard:
                self._doing, job = self._jobs.popleft() if self._jobs else ("", None)
                if job is None and self._closing:
                    return
            if job is None:
                self._wake.acquire()
            else:
                try:
                    job()
                except BaseException as error:  # noqa: BLE001 - later jobs are waited for, too
                    self._on_failure(error)

    def _check(self) -> None:
        """Assert that a thread serves the jobs that wait or run; needs the guard held."""
        assert self._thread is not None or not (self._jobs or self._doing), (
            "jobs wait, and no thread does them"
        )

    def close(self, timeout: float) -> bool:
        """Take no more, and end once all queued jobs are done; False if they are not after `timeout` s."""
        with once(self._guard), self._guard:
            self._closing = True
        open_latch(self._wake)
        if self._thread is None or self.is_current:
            return True
        self._thread.join(timeout)
        return self._thread.ended


class BackgroundSyncer:
    """Syncs unsynced writes on the device worker: one sync at a time. Safe from any thread."""

    def __init__(
        self,
        core: OrderingCore[Submitted],
        frame_sink: FrameSink,
        failure: CommitFailure,
        *,
        worker: DeviceWorker,
        timer: CommitTimer | None,
        counters: CommitCounters,
    ) -> None:
        # The commit lock: see `DeviceWatch.lock`.
        self.lock = failure.lock
        self.worker = worker
        self.write_observers: tuple[FrameObserver, ...] = ()
        # Written by `CommitDriver.stop`, once, after the last leader has ended; syncs read it under the commit
        # lock.
        self.stopped = False
        """Whether a sync that is asked for now is refused: the files may be closed next."""
        self._core = core
        self._frame_sink = frame_sink
        self._signal = failure.completion.signal
        self._failure = failure
        self._watch = failure.completion.watch
        self._timer = timer
        self._counters = counters

    def sync(self) -> None:
        """Make everything durable that was written before this call; the caller has waited for its own records.

        Raises the log's refusal (at once if the device hangs) and the StorageError of a failed sync.
        """
        self._watch.refuse_waiting()
        self.sync_for_leader()

    def sync_for_leader(self) -> None:
        """Do the same for a leader, which waits for the sync that its frame needs."""
        if self.worker.is_current:
            self.sync_now()
            return
        with self.lock:
            if self._core.failure is not None or self.stopped:
                raise self._failure.refused()
            point = self._core.sync_begin()
        if point.position <= self._core.durable_position:
            return
        ended: list[BaseException | None] = []
        if not self.worker.do("sync", lambda: self._sync_for(ended)):
            raise self._failure.refused()
        self._signal.wait_for(lambda: bool(ended) or self._watch.hung)
        if not ended:
            raise self._failure.refused()
        if ended[0] is not None:
            raise ended[0]
        if self._core.durable_position < point.position:
            raise self._failure.refused()  # the log has failed meanwhile: the sync's result proves nothing

    def _sync_for(self, ended: list[BaseException | None]) -> None:
        """Sync, put the error or None to `ended`, and wake the thread that waits for it."""
        error: BaseException | None = None
        try:
            self.sync_now()
        except BaseException as problem:  # noqa: BLE001 - raised by the thread that waits
            error = problem
        ended.append(error)
        self._signal.notify()

    def sync_now(self) -> None:
        """Sync on this thread, which is the device worker."""
        core = self._core
        with self.lock:
            if core.failure is not None or self.stopped:
                raise self._failure.refused()
            point = core.sync_begin()
        if point.position <= core.durable_position:
            return
        began = perf_counter_ns()
        self._watch.begin(began)
        try:
            self._frame_sink.sync()
            for observer in self.write_observers:
                observer.synced(began, perf_counter_ns())
        except Exception as error:
            self._failure.fail(error)
            raise
        finally:
            self._watch.end()
        self._counters.syncs += 1
        with self.lock:
            core.synced(point)
            problem = publish_locked(core, self._frame_sink)
        if problem is not None:
            self._failure.fail(problem)
            raise problem
        self._failure.completion.delivery.durable_moved(point.lsn)
        if self._timer is not None and self._timer.parked:
            self._timer.wake()


class AckLimit:
    """Moves the limit of one log, and completes the records that it acknowledges or gives up. Safe from any thread."""

    def __init__(
        self,
        writer: FrameWriter,
        election: LeaderElection,
        timer: CommitTimer,
        bytes_max: int,
    ) -> None:
        """Where `bytes_max` bytes of frames wait for the limit, the log takes nothing more."""
        # The commit lock: see `DeviceWatch.lock`.
        self.lock = writer.lock
        # Written under the commit lock by `begin` and `end`; the timer reads it without.
        self.on_late: Callable[[], object] | None = None
        """Called by the timer when a waiting frame is late; None unless `begin` was called."""
        # Written under the commit lock.
        self.late_records = 0
        """How many records were given up since the log was opened."""
        # Written once, under the commit lock, by `CommitDriver.stop`.
        self.stopped = False
        """Whether the log is closed: then nothing waits, and nothing is delivered."""
        self._core, self._failure, self._writer = writer.core, writer.failure, writer
        self._election, self._timer = election, timer
        self._core.unacked_bytes_max = bytes_max

    @property
    def is_waiting(self) -> bool:
        """Whether callers wait for the limit; under the lock."""
        return self._core.timed_out < len(self._core.unacked)

    @property
    def unacked_records(self) -> int:
        """How many records are written and not acknowledged."""
        return max(self._core.written_lsn - self._core.acked_lsn, 0)

    def begin(self, timeout_us: int, on_late: Callable[[], object]) -> None:
        """Acknowledge nothing more until `raise_to`. OptionsError if `begin` was called before, and not `end`.

        RuntimeError if the system has no thread to give. From now on leaders go by the way of groups, for good: the
        lone writer's completes its frame itself.
        """
        if not self.stopped:
            self._timer.wake()
        with self.lock:
            if self.stopped:
                return
            if self.on_late is not None:
                refuse(
                    "ack_replicas", None, "another primary of this log waits for replicas; stop that first"
                )
            self.on_late = on_late
            self._writer.queues, self._writer.timer = True, self._timer
            self._election.plain = False
            self._core.ack_timeout_us = timeout_us
            self._core.ack_limit_lsn = self._core.acked_lsn
        self._timer.wake()  # it may sleep for longer than this time-out

    def raise_to(self, lsn: int) -> None:
        """Others have all up to this LSN: acknowledge it. An LSN below an earlier one changes nothing."""
        if lsn > self._core.ack_limit_lsn:
            self._move(lsn)

    def lift(self) -> None:
        """Acknowledge written records, as without a limit, until `restore`."""
        self._move(NO_LIMIT)

    def restore(self, lsn: int) -> None:
        """Have a limit again: others have all up to this LSN."""
        with self.lock:
            self._core.ack_limit_lsn = max(lsn, self._core.acked_lsn)

    def give_up_late(self, error: BaseException) -> int:
        """Fail the records that have waited too long; return their number."""
        return self._move(0, error, self._writer.clock.us() - self._core.ack_timeout_us)

    def end(self, error: BaseException | None) -> int:
        """Remove the limit; with an error, fail the waiting records first. Return how many failed."""
        with self.lock:
            self.on_late = None
            self._core.ack_timeout_us = 0
        return self._move(NO_LIMIT, error)

    def _move(self, lsn: int, error: BaseException | None = None, until_us: int | None = None) -> int:
        """Give up waiting records, with an error, then raise the limit to at least this, and complete the results."""
        core, completion = self._core, self._failure.completion
        with uninterrupted():
            with self.lock:
                if self.stopped:
                    return 0
                done = [] if error is None else core.fail_unacked(error, until_us)
                records = sum(frame.count for frame in done)
                self.late_records += records
                core.ack_limit_lsn = max(lsn, core.ack_limit_lsn)
                done += core.acknowledge()
                completion.queue_in_order_locked(done)
                callbacks = completion.signal.notify_locked()
            call_all(callbacks)
            if core.ack_sink_failure is not None and core.unacked:
                self._failure.fail(*core.ack_sink_failure)
            completion.run()
            self._election.kick()  # a full queue may have room
        return records


class BackgroundWork:
    """The timer's work: syncs and marker frames that are due, frames held back or late, hung calls."""

    def __init__(
        self,
        syncer: BackgroundSyncer,
        writer: FrameWriter,
        election: LeaderElection,
        ack_limit: AckLimit,
    ) -> None:
        # The commit lock: see `DeviceWatch.lock`.
        self.lock = writer.lock
        self._core = writer.core
        self._syncer = syncer
        self._writer = writer
        self._election = election
        self._ack_limit = ack_limit
        self._failure = writer.failure
        self._signal = writer.completion.signal
        self._watch = writer.watch
        self.nap_us = writer.watch.nap_us

    def tick(self) -> Tick:
        """See TimedWork."""
        with self.lock:
            return self._core.tick(self._writer.clock.us())

    def act(self, tick: Tick) -> None:
        """See TimedWork."""
        worker = self._syncer.worker
        if self._watch.limit_ns and len(self._watch):
            self._fail_hung()
        if tick.sync:
            worker.do_once("timer's sync", lambda: _quietly(self._syncer.sync_now))
        if tick.marker:
            worker.do_once("marker", lambda: _quietly(self._write_marker))
        if tick.seal:
            self._election.kick()
        on_late = self._ack_limit.on_late
        if tick.late and on_late is not None:
            on_late()

    def _fail_hung(self) -> None:
        """Fail frames whose calls to the device hang, and all after them; late frames are never acknowledged."""
        hanging = self._watch.hanging()
        if not hanging:
            return
        frames = [frame for frame in hanging if frame is not None and frame.state == "sealed"]
        error = StorageError(
            f"the device has not answered for {self._watch.limit_ns / 1e9:g} s (write_timeout_ms)",
            errno=errno.ETIMEDOUT,
        )
        if frames:
            self._failure.fail(error, min(frames, key=lambda frame: frame.position))
        elif None in hanging and self._core.failure is None:
            self._failure.fail(error, unsealed=True)
        if not self._watch.hung:
            # Also where all of it has failed before: `close` waits for the calls of frames that have failed, too.
            self._watch.hung = True
            self._signal.notify()

    def _write_marker(self) -> None:
        """Write a frame without records, if the log is still idle and its segment has room."""
        thread = get_ident()
        try:
            self._lead_marker(thread)
        finally:
            if thread in self._election.leading:
                self._election.hand_over()

    def _lead_marker(self, thread: int) -> None:
        core, writer, election = self._core, self._writer, self._election
        with self.lock:
            if election.leading or self._failure.refusal is not None or core.pending or not core.needs_marker:
                return
            if core.needs_segment(core.alignment * 2):
                return
            election.leading[thread] = True
            marker = core.seal_marker(writer.clock.us())
            turn = writer.sequencer.draw_locked() if writer.parallel else 0
        try:
            assigned = writer.assign(marker)
        finally:
            if writer.parallel:
                writer.sequencer.end(turn)
        if assigned:
            writer.write(marker)
            writer.counters.marker_frames += marker.state == "acked"


def _quietly(act: Callable[[], None]) -> None:
    """Act for the timer: an error has poisoned the log, and its tickets are complete."""
    with suppress(WalkitError):  # an error of anything else is the timer's to report
        act()
