"""The timer thread: asks the core what the passing of time asks for, and sees that it is done.

It sleeps until the core's next wake-up; with nothing to wait for it parks, and costs nothing until frames come again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from walkit.commit.core import Tick


class CommitTimer:
    """Runs `act(tick())` when it is time, after `nap_us()` at the latest. The thread starts with the first `wake`."""

    def __init__(
        self,
        name: str,
        tick: Callable[[], Tick],
        act: Callable[[Tick], None],
        nap_us: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._name = name
        self._tick = tick
        self._act = act
        self._nap_us = nap_us
        self._event = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = False
        self.parked = True
        """Whether a frame has to call `wake`. Set before the last look at the core, so that no frame is missed."""

    def wake(self) -> None:
        """There is something to wait for again. Called by the leader, and by who has synced."""
        self.parked = False
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"walkit-timer {self._name}", daemon=True
                )
                self._thread.start()
        self._event.set()

    def _run(self) -> None:
        while not self._closing:
            tick = self._tick()
            if tick.wake_in_us is None:
                self.parked = True
                tick = self._tick()
            self._act(tick)
            waits = [us for us in (tick.wake_in_us, self._nap_us()) if us is not None]
            self._event.wait(max(min(waits), 0) / 1e6 if waits else None)
            self._event.clear()

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        self._event.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
