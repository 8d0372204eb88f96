"""Background work of the commit path: syncs beside the frames, marker frames, and the time limit of device calls.

The timer thread only looks. The device worker calls the device, so that each call is watched; what waits for a sync is
woken by its end, or by the watch.
"""

from __future__ import annotations

import errno
import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns

from walkit._internal.locks import once
from walkit._internal.threads import LogThread
from walkit._main_thread import uninterrupted
from walkit.commit.ack_limit import AckLimit
from walkit.commit.core import OrderingCore
from walkit.commit.election import LeaderElection
from walkit.commit.frame import Tick
from walkit.commit.frame_writer import CommitCounters, CommitFailure, FrameWriter, publish_locked
from walkit.commit.latches import new_latch, open_latch
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
        self._bell = new_latch()
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

        RuntimeError where the system has no thread to give: then it is not queued.
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
        open_latch(self._bell)
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
                self._bell.acquire()
            else:
                try:
                    job()
                except BaseException as error:  # noqa: BLE001 - what comes later is waited for, too
                    self._on_failure(error)

    def _check(self) -> None:
        """Assert that a thread is there for what is queued or under way; needs the guard held."""
        assert self._thread is not None or not (self._jobs or self._doing), (
            "jobs wait, and no thread does them"
        )

    def close(self, timeout: float) -> bool:
        """Take no more, and end once what is queued has been done; False where that is not so after `timeout` s."""
        with once(self._guard), self._guard:
            self._closing = True
        open_latch(self._bell)
        if self._thread is None or self.is_current:
            return True
        self._thread.join(timeout)
        return self._thread.ended


class BackgroundSyncer:
    """Syncs what was written without sync, on the device worker: one sync at a time. Safe from any thread."""

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

        Raises what refuses the log, at once where the device is found to hang, and the StorageError of a failed sync.
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
            raise self._failure.refused()  # the log has failed meanwhile: what the sync says is not to be believed

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


class BackgroundWork:
    """What the timer has done: syncs and marker frames that are due, frames held back or late, hung calls."""

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
        """Fail frames whose calls to the device hang, and all after them; what lands later is never acknowledged."""
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
            writer.counters.marks_written += marker.state == "acked"


def _quietly(act: Callable[[], None]) -> None:
    """Act for the timer: an error has poisoned the log, and its tickets are complete."""
    with suppress(WalkitError):  # an error of anything else is the timer's to report
        act()
