"""The timer thread: asks the core what the passing of time asks for, and sees that it is done.

It sleeps until the core's next wake-up; with nothing to wait for it parks, and costs nothing until frames come again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from walkit.commit.core import Tick
from walkit.commit.interrupts import uninterrupted
from walkit.commit.ticket import new_gate, open_gate
from walkit.threads import EndingThread

RETRY_US = 1_000_000
"""When the timer looks again after a look that failed: the log takes no more, but calls may hang."""


class CommitTimer:
    """Runs `act(tick())` when it is time, after `nap_us()` at the latest. The thread starts with the first `wake`."""

    def __init__(
        self,
        name: str,
        tick: Callable[[], Tick],
        act: Callable[[Tick], None],
        nap_us: Callable[[], int | None] = lambda: None,
        *,
        broken: Callable[[BaseException], object],
    ) -> None:
        """`broken` is called with what a look or an act raised, and raises nothing."""
        self._name = name
        self._tick = tick
        self._act = act
        self._nap_us = nap_us
        self._broken = broken
        self._bell = new_gate()
        """A gate and not an Event, whose lock an interrupt of the main thread could leave locked."""
        self._starting = threading.Lock()
        self._thread: EndingThread | None = None
        self._closing = False
        self.parked = True
        """Whether a frame has to call `wake`. Set before the last look at the core, so that no frame is missed."""

    def wake(self) -> None:
        """There is something to wait for again. Called by the leader, and by who has synced."""
        self.parked = False
        with self._starting:
            if self._thread is None:
                thread = EndingThread(target=self._run, name=f"walkit-timer {self._name}", daemon=True)
                with uninterrupted():
                    thread.start()
                    self._thread = thread
        open_gate(self._bell)

    def _run(self) -> None:
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
        tick = self._tick()
        if tick.wake_in_us is None:
            self.parked = True
            tick = self._tick()
        self._act(tick)
        waits = [us for us in (tick.wake_in_us, self._nap_us()) if us is not None]
        return min(waits) if waits else None

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        open_gate(self._bell)
        with self._starting:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
