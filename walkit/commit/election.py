"""Leader election: which thread takes the queue and writes the next frame; the writer threads, if no caller does.

At most `in_flight` threads lead. `leading` has a place for each, under the id of its thread, so one statement takes or
frees a place. An elected caller finds its place taken for it. Writer threads lead for tickets and event loops. They are
woken to look for work, and a redundant wake-up does no harm.
"""

from __future__ import annotations

import contextlib
import threading
from _thread import get_ident, start_new_thread
from collections.abc import Callable, Sequence
from itertools import islice
from queue import SimpleQueue
from time import sleep
from typing import Final

from walkit._internal.locks import marked
from walkit._internal.threads import MEMORY_TRIES, START_STEP_S, LogThread
from walkit._main_thread import on_main_thread, uninterrupted
from walkit.commit.core import OrderingCore
from walkit.commit.latches import CommitSignal, call_all, open_latch
from walkit.commit.ticket import CAN_LEAD, TO_LEAD, Batch, Caller, Submitted
from walkit.commit.timer import CommitClock, CommitTimer, DeviceWatch
from walkit.events import EventSink


class WriterPool:
    """Calls `look()` once per wake-up, on a free thread; threads start on demand."""

    def __init__(
        self,
        name: str,
        count: int,
        look: Callable[[], None],
        on_failure: Callable[[BaseException], object] = lambda _: None,
        serving: set[int] | None = None,
    ) -> None:
        """`on_failure` is called with the error of a look or of a thread's start, and raises nothing.

        `serving` has the ids of the running threads.
        """
        self._serving: set[int] = set() if serving is None else serving
        self._name = name
        self._on_failure = on_failure
        self._count = count
        self._look = look
        self.calls: SimpleQueue[bool] = SimpleQueue()
        self._threads: list[LogThread] = []
        # Guards `_threads`, `_count` and `full`. Taken without the commit lock; no lock is taken under it.
        self.starting = threading.RLock()
        """Held while a thread is started."""
        # Set by each writer thread as it begins, and never reset. Read under the commit lock by threads that queue:
        # only a running thread will take their item from `calls`.
        self.running = False
        """Whether a thread runs, and so answers a wake-up."""
        self.full = False
        """Whether all of them run."""

    def wake(self) -> None:
        """Wake a thread to look for work; a redundant call does no harm.

        If the system cannot start a thread, the running ones suffice. If none runs, `on_failure` gets the
        RuntimeError: no record may wait forever.
        """
        self.calls.put(True)
        if (len(self._threads) < self._count or not self.running) and not self.calls.empty():
            try:
                if self._count > 1 and on_main_thread():
                    # One call, which no signal handler interrupts: `Thread.start` waits in Python code.
                    start_new_thread(self._start_or_break, ())
                else:
                    self._start()
            except RuntimeError as error:
                self._miss(error)

    def wake_from_within(self) -> None:
        """Do the same without a lock, for foreign code on a thread that may hold those of this pool."""
        self.calls.put(True)
        if not self.running:
            start_new_thread(self._start_or_break, ())

    def _start_or_break(self) -> None:
        try:
            self._start()
        except RuntimeError as error:
            self._miss(error)

    def _miss(self, error: RuntimeError) -> None:
        if not self._threads:
            self._on_failure(error)

    def prepare(self) -> None:
        """Start the first thread before it is needed; does nothing if the system has none to give."""
        with contextlib.suppress(RuntimeError):
            if not self._threads:
                self._start()

    def _start(self) -> None:
        with marked(), self.starting:
            if len(self._threads) < self._count:
                name = f"walkit-commit {self._name}"
                if self._count > 1:
                    name = f"{name} {len(self._threads)}"
                thread = LogThread(target=self._run, name=name, daemon=True)
                with uninterrupted():
                    thread.start()
                    while not (self.running or thread.ended):
                        sleep(START_STEP_S)
                    if thread.ended:
                        raise RuntimeError("a writer thread found no memory to begin its work")
                    self._threads.append(thread)
                    self.full = len(self._threads) == self._count

    def _run(self) -> None:
        tries = 0  # callers depend on the thread: a failed look is reported, and it looks again
        while tries < MEMORY_TRIES:
            try:
                if self._count:  # a thread without memory for its end has already taken the call that ends it
                    self._serve()
                self._serving.discard(get_ident())
                self.calls.put(False)  # for the next one
                return
            except MemoryError:
                tries += 1

    def _serve(self) -> None:
        self.running = True
        self._serving.add(get_ident())
        while self.calls.get():
            try:
                self._look()
            except BaseException as error:  # noqa: BLE001 - it counts as running, and is woken again
                self._on_failure(error)

    def close(self, *, wait: bool = True) -> None:
        """End the threads; `wake` may not be called afterwards. May be called again if it was interrupted."""
        with marked(), self.starting:  # a thread that is starting counts, too
            self._count = 0  # a concurrent start finds no place
            threads = list(self._threads)
        self.calls.put(False)
        for thread in threads:
            if wait and thread is not threading.current_thread():
                thread.join()


WRITER_THREAD_MIN_WAITERS: Final = 8
"""If so many callers of single records wait, the writer thread leads until none waits."""
GIVEN: Final = 0
"""The key of a place that is reserved for the writer thread until it takes it."""


class LeaderElection:
    """Counts the leaders and elects the next one. Methods that end in `_locked` need the lock held."""

    pool: WriterPool
    """The writer threads; set before anything is queued."""

    def __init__(
        self,
        core: OrderingCore[Submitted],
        watch: DeviceWatch,
        *,
        signal: CommitSignal,
        timer: CommitTimer | None,
        clock: CommitClock,
        events: EventSink,
    ) -> None:
        # The commit lock: see `DeviceWatch.lock`.
        self.lock = watch.lock
        self.leading = watch.leading
        """Threads that lead now, by their numbers."""
        self.places = core.in_flight_max
        """The most threads that may lead at a time."""
        # Reset once, under the commit lock, by `AckLimit.begin`; read under it.
        self.plain = self.places == 1 and core.policy is None
        """Whether all waiting records may be taken when no thread leads."""
        self.needs_time = core.policy is not None
        """Whether the core needs the time: only policies use it."""
        # Written under the commit lock. True means that an item is in `pool.calls`, which a writer thread takes;
        # `claim` of that thread sets it back before it looks at the queue, so no request is lost.
        self.is_notified = False
        """Whether the writer threads were woken, and have not looked yet."""
        self._seal_at_us: int | None = None
        """The time for which the timer was last woken."""
        self._core = core
        self._signal = signal
        self._timer = timer
        self.clock = clock
        self.events = events

    @property
    def leaders(self) -> int:
        """How many threads lead now."""
        return len(self.leading)

    def ready_locked(self) -> bool:
        """Return whether a frame can be taken now; if a policy delays it, the timer checks again in time."""
        core = self._core
        ready = core.ready(self.clock.us() if self.needs_time else 0)
        due = core.seal_at_us
        if due != self._seal_at_us:
            self._seal_at_us = due
            if due is not None and self._timer is not None:
                try:
                    self._timer.wake()
                except (
                    RuntimeError
                ) as error:  # the system has no thread to give, so nothing would ask again in time
                    core.policy, core.policy_error = None, error
                    return core.ready()
        return ready

    def claim(self) -> bool:
        """Take a place for a writer thread that looks; False without a free place or work."""
        core, leading, thread = self._core, self.leading, get_ident()
        with self.lock:
            self.is_notified = False
            if core.inbox:
                core.take_in(self.clock.us() if self.needs_time else 0)
            if GIVEN in leading:
                leading[thread] = True
                del leading[GIVEN]
            elif len(leading) < self.places and core.pending and (self.plain or self.ready_locked()):
                leading[thread] = True
            else:
                return False
        return True

    def hand_over(self, keep: bool = False) -> bool:
        """Free the place, or pass it to the next leader; True if the caller keeps it.

        With `keep` the caller keeps it if records wait. After a MemoryError it tries again: no step is half done, and
        others wait for it.
        """
        tries = 0
        while tries < MEMORY_TRIES:
            try:
                return self._hand_over(keep)
            except MemoryError:
                tries += 1
        self.leading.pop(get_ident(), None)
        return False

    def _hand_over(self, keep: bool) -> bool:
        successor: Caller | WriterPool | None = None
        signal, core = self._signal, self._core
        prepare = False
        with self.lock:
            if core.inbox:
                core.take_in(self.clock.us() if self.needs_time else 0)
            waiting = core.pending and self.ready_locked()
            if not waiting or not keep or self.events.kept:
                self.leading.pop(get_ident(), None)
                keep = False
            if waiting and not keep:
                prepare = not self.pool.running and self._is_crowded_locked()
                successor = self.elect_locked()
            callbacks = signal.notify_locked() if signal.wanted else []
        try:
            if callbacks:
                call_all(callbacks)
        finally:
            if successor is not None:
                self.start(successor)
        if prepare:
            self.pool.prepare()
        if not keep and self.events.kept:
            self.events.send_kept()
        return keep

    def _is_crowded_locked(self) -> bool:
        """Return whether so many callers wait that the writer thread should lead."""
        if not self.plain:
            return False
        first = islice(self._core.pending, WRITER_THREAD_MIN_WAITERS)
        return sum(len(s.callers) for s in first if isinstance(s, Batch)) >= WRITER_THREAD_MIN_WAITERS

    def elect_locked(self) -> Caller | WriterPool | None:
        """Return the next leader, to be started without the lock; None without a free place or work.

        It is the oldest waiting caller that can lead, with a place taken for it; otherwise the writer threads, which
        take a place themselves. With one frame in flight and many callers it is the writer thread: its place is taken,
        and it is woken here. It leads frame after frame without a thread switch, and the device writes while the
        callers of the previous frame return.
        """
        core, leading = self._core, self.leading
        if len(leading) >= self.places or not core.pending or not self.ready_locked():
            return None
        if self.pool.running and self._is_crowded_locked():
            # First: if an exception of another thread is raised after it, the writer finds a place to take.
            self.pool.calls.put(True)
            leading[GIVEN] = True
            return None
        for submission in core.pending:
            callers: Sequence[Caller] = ()
            if isinstance(submission, Batch):
                callers = submission.callers
            elif submission.lead == CAN_LEAD:
                callers = (submission,)
            for ticket in callers:
                if ticket.lead == CAN_LEAD:
                    leading[ticket.thread] = True
                    ticket.lead = TO_LEAD
                    return ticket
        if self.is_notified:
            return None
        if self.pool.running:
            self.pool.calls.put(True)
            self.is_notified = True
        return None if self.pool.full else self.pool

    def start(self, leader: Caller | WriterPool) -> None:
        """Wake the leader that `elect_locked` has returned, without the lock."""
        if isinstance(leader, WriterPool):
            leader.wake()
        else:
            open_latch(leader.latch)

    def _check(self) -> None:
        """Assert the invariants between two steps; needs the lock held."""
        assert self.leaders <= self.places

    def kick(self) -> None:
        """Start a leader if a frame is due: time has passed, or a caller waits for the whole queue."""
        with self.lock:
            leader = self.elect_locked()
        if leader is not None:
            self.start(leader)
