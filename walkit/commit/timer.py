"""Time on the commit path: the clock of frames, the timer thread, and the watch over calls to the device that hang.

The timer sleeps until the core's next wake-up; with nothing to wait for it parks, and costs nothing until frames come
again. The watch knows, too, which threads must not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

from walkit._internal.locks import WORK, holds, marked
from walkit._internal.threads import LogThread
from walkit._main_thread import uninterrupted
from walkit.commit.frame import SealedFrame, Tick
from walkit.commit.latches import new_latch, open_latch
from walkit.errors import CallbackError

GRACE_NS = 1_000_000_000


class DeviceWatch:
    """Knows the calls to the device by their threads; the timer asks which of them take too long. Safe from any thread.

    A call hangs when it was seen to be late and is still under way a grace time after that: a process that was stopped
    (SIGSTOP, a debugger) finds its calls late when it continues, although the device has answered long ago. A limit of
    0 watches nothing.
    """

    def __init__(self, limit_ns: int) -> None:
        self.limit_ns = limit_ns
        self.grace_ns = min(GRACE_NS, limit_ns)
        # Written by the timer thread only, once, under no lock: waiters look again after `CommitSignal.notify`.
        self.hung = False
        """Whether a call was found to hang, and its waiters have failed; it may be under way still."""
        self.asleep = limit_ns > 0
        """Whether the timer has to be woken for the next call; False again while calls come."""
        self.active = False
        """Whether anything was called since the last look."""
        # Each thread writes its own entry only, by one call; the timer reads copies. So no lock guards it.
        self.calls: dict[int, tuple[int, SealedFrame | None]] = {}
        """By thread: when its call began, and for which frame; None for one that is not about one frame."""
        # The commit lock: it guards the queue, the lead and the core. It is taken first; only
        # `CommitTimer._starting` may be taken under it. No call to the device and no user code except a policy runs
        # under it.
        self.lock: Any = threading.RLock()
        """The driver's lock. An RLock says whether this very thread has it, from the call on that takes it."""
        # Written under the commit lock, and by the leader itself, which takes out its own entry by one call. `len`
        # is the number of leads taken; it is at most `LeaderElection.places`.
        self.leading: dict[int, object] = {}
        """Threads that lead a frame, by their numbers; see LeaderElection."""
        # Each thread adds and removes its own number only.
        self.serving: set[int] = set()
        """The log's own threads that others wait for: writer, device, maintenance and timer."""
        self.on_wake: Callable[[], object] = lambda: None
        """Wakes the timer that looks for calls that hang."""
        self._late: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.calls)

    def begin(self, begun_ns: int, frame: SealedFrame | None = None) -> None:
        """The calling thread is about to call the device, for a frame or for all of it."""
        self.calls[threading.get_ident()] = (begun_ns, frame)
        self.active = True
        if self.asleep:
            self.wake()

    def wake(self) -> None:
        """Wake the timer for a call that begins."""
        self.asleep = False
        self.on_wake()

    @contextmanager
    def watched(self, frame: SealedFrame) -> Iterator[None]:
        """Watch the calling thread's wait on a frame's behalf: if that hangs, the frame fails."""
        self.begin(perf_counter_ns(), frame)
        try:
            yield
        finally:
            self.end()

    @property
    def is_calling(self) -> bool:
        """Whether the calling thread was called back (by the collector, a signal, an observer) in the log's own work.

        It holds a lock, leads, calls the device, or is a thread that others wait for: a log that waits on such a
        thread would wait for itself.
        """
        thread = threading.get_ident()
        return self.is_busy() or thread in self.calls or thread in self.serving or holds(WORK)

    def is_leading(self) -> bool:
        """Say whether the calling thread leads a frame."""
        return threading.get_ident() in self.leading

    def is_busy(self) -> bool:
        """Say whether the calling thread leads a frame or has a lock that others wait for."""
        return threading.get_ident() in self.leading or self.lock._is_owned() or holds()

    def refuse_waiting(self) -> None:
        """CallbackError if the caller is inside the log's own work: it must not wait."""
        thread = threading.get_ident()
        if thread in self.calls or thread in self.serving or self.is_busy():
            raise CallbackError

    def end(self) -> None:
        """The calling thread is back."""
        self.calls.pop(threading.get_ident(), None)

    def hanging(self) -> list[SealedFrame | None]:
        """Return the frames whose calls hang; None for a call that is not about one frame."""
        calls, now = list(self.calls.values()), perf_counter_ns()
        late = {start_ns: frame for start_ns, frame in calls if now - start_ns >= self.limit_ns}
        self._late = {start_ns: self._late.get(start_ns, now) for start_ns in late}
        return [late[start_ns] for start_ns, seen in self._late.items() if now - seen >= self.grace_ns]

    def nap_us(self) -> int | None:
        """Return how long the timer may sleep at most; None, and `asleep`, if nothing was called for a while."""
        if not self.limit_ns:
            return None
        calls, now = list(self.calls.values()), perf_counter_ns()
        waits = [start_ns + self.limit_ns - now for start_ns, _ in calls if start_ns not in self._late]
        waits += [seen + self.grace_ns - now for seen in self._late.values() if now - seen < self.grace_ns]
        if waits:
            return max(min(waits) // 1000, 1)
        if not self.active and not calls:
            self.asleep = True  # before the last look at the calls, so that none is missed
            if not self.calls:
                return None
            self.asleep = False
        self.active = False
        return self.limit_ns // 1000


RETRY_US = 1_000_000
"""When the timer looks again after a look that failed: the log takes no more, but calls may hang."""


class CommitClock(NamedTuple):
    """The time that frames carry: a clock that never goes back, and its conversion to wall time."""

    now_ns: Callable[[], int]
    offset_ns: int = 0

    def us(self) -> int:
        """Return the time in microseconds since 1970."""
        return (self.now_ns() + self.offset_ns) // 1000


class TimedWork(Protocol):
    """The timer's questions and tasks."""

    def tick(self) -> Tick:
        """Return the work that is due now."""

    def act(self, tick: Tick) -> None:
        """See that it is done."""

    def nap_us(self) -> int | None:
        """Return how long the timer may sleep at most; None: until it is woken."""


class CommitTimer:
    """Has its work ask and act when it is time. The thread starts with the first `wake`."""

    work: TimedWork
    """Set before the first `wake`."""

    def __init__(
        self, name: str, *, on_failure: Callable[[BaseException], object], serving: set[int] | None = None
    ) -> None:
        """`on_failure` is called with the error of a look or an act, and raises nothing.

        `serving` gets the thread's number while it runs.
        """
        self._name = name
        self._serving: set[int] = set() if serving is None else serving
        self._on_failure = on_failure
        self._wake = new_latch()
        """A latch and not an Event, whose lock an interrupt of the main thread could leave locked."""
        # Guards the start of the thread. May be taken under the commit lock, and no lock is taken under it.
        self._starting = threading.RLock()
        self._thread: LogThread | None = None
        self._is_starting = False
        """Whether its start is under way."""
        self._closing = False
        # Written by the timer thread before its last look, and by `wake`. A frame that lands after that look sees
        # True and wakes the timer; one that lands before it is seen by the look.
        self.parked = True
        """Whether a frame has to call `wake`. Set before the last look at the core, so that no frame is missed."""

    def wake(self) -> None:
        """Look again: there is something to wait for. Called after a frame was written, and after a sync."""
        self.parked = False
        if self._thread is None:
            with marked(), self._starting:
                self._start()
        open_latch(self._wake)

    def _start(self) -> None:
        if self._thread is None and not self._is_starting:
            self._is_starting = True  # foreign code may wake it while it starts
            try:
                thread = LogThread(target=self._run, name=f"walkit-timer {self._name}", daemon=True)
                with uninterrupted():
                    thread.start()
                    self._thread = thread
            finally:
                self._is_starting = False

    def _run(self) -> None:
        thread = threading.get_ident()
        self._serving.add(thread)
        try:
            self._look_in_time()
        finally:
            self._serving.discard(thread)

    def _look_in_time(self) -> None:
        while not self._closing:
            try:
                wait_us = self._look()
            except BaseException as error:  # noqa: BLE001 - without the timer nothing is synced, nor found to hang
                self._on_failure(error)
                wait_us = RETRY_US
            self._wake.acquire(
                timeout=-1 if wait_us is None else min(max(wait_us, 0) / 1e6, threading.TIMEOUT_MAX)
            )

    def _look(self) -> int | None:
        """Do the work that is due; return the time to the next, None if a frame or `close` wakes the timer."""
        work = self.work
        tick = work.tick()
        if tick.wake_in_us is None:
            self.parked = True
            tick = work.tick()
        work.act(tick)
        waits = [us for us in (tick.wake_in_us, work.nap_us()) if us is not None]
        return min(waits) if waits else None

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        open_latch(self._wake)
        with marked(), self._starting:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
