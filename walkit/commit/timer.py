"""The timer thread: asks the core what the passing of time asks for, and sees that it is done.

It sleeps until the core's next wake-up; with nothing to wait for it parks, and costs nothing until frames come again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from walkit._internal.interrupts import uninterrupted
from walkit._internal.locks import marked
from walkit._internal.threads import LogThread
from walkit.commit.frame import Tick
from walkit.commit.ticket import new_latch, open_latch

RETRY_US = 1_000_000
"""When the timer looks again after a look that failed: the log takes no more, but calls may hang."""


class CommitClock(NamedTuple):
    """The time that frames carry: a clock that never goes back, and what it takes to make wall time of it."""

    now_ns: Callable[[], int]
    offset_ns: int = 0

    def us(self) -> int:
        """Return the time in microseconds since 1970."""
        return (self.now_ns() + self.offset_ns) // 1000


class TimedWork(Protocol):
    """What the timer asks, and has done."""

    def tick(self) -> Tick:
        """Return what the passing of time asks for now."""

    def act(self, tick: Tick) -> None:
        """See that it is done."""

    def nap_us(self) -> int | None:
        """Return how long the timer may sleep at most; None: until it is woken."""


class CommitTimer:
    """Has its work ask and act when it is time. The thread starts with the first `wake`."""

    work: TimedWork
    """Set before the first `wake`."""

    def __init__(
        self, name: str, *, broken: Callable[[BaseException], object], serving: set[int] | None = None
    ) -> None:
        """`broken` is called with what a look or an act raised, and raises nothing.

        `serving` gets the thread's number while it runs.
        """
        self._name = name
        self._serving: set[int] = set() if serving is None else serving
        self._broken = broken
        self._bell = new_latch()
        """A latch and not an Event, whose lock an interrupt of the main thread could leave locked."""
        # Guards the start of the thread. May be taken under the commit lock, and no lock is taken under it.
        self._starting = threading.RLock()
        self._thread: LogThread | None = None
        self._begun = False
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
        open_latch(self._bell)

    def _start(self) -> None:
        if self._thread is None and not self._begun:
            self._begun = True  # foreign code may wake it while it starts
            try:
                thread = LogThread(target=self._run, name=f"walkit-timer {self._name}", daemon=True)
                with uninterrupted():
                    thread.start()
                    self._thread = thread
            finally:
                self._begun = False

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
                self._broken(error)
                wait_us = RETRY_US
            self._bell.acquire(
                timeout=-1 if wait_us is None else min(max(wait_us, 0) / 1e6, threading.TIMEOUT_MAX)
            )

    def _look(self) -> int | None:
        """Do what is due; return how long there is nothing to do, None where a frame or `close` wakes the timer."""
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
        open_latch(self._bell)
        with marked(), self._starting:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
