"""The thread of a loop: started once, and waited for by whoever ends the loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from walkit._interrupts import uninterrupted
from walkit._threads import LogThread


class LoopThread:
    """Runs a loop on one thread of its own, at most once. Every method is safe from any thread."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._unstarted = deque([True])
        self._thread: LogThread | None = None

    @property
    def begun(self) -> bool:
        """Whether it was started, or is being started."""
        return self._thread is not None

    @property
    def ended(self) -> bool:
        """Whether it was started and has ended."""
        return self._thread is not None and self._thread.ended

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._thread is not None and not self._thread.ended

    @property
    def name(self) -> str:
        """What the thread is called; empty before the start."""
        return "" if self._thread is None else self._thread.name

    def start(self, name: str) -> None:
        """Start the thread, the first time. RuntimeError where the system has none to give; then try again."""
        with uninterrupted():
            try:
                self._unstarted.pop()  # of two callers at once one starts it; a lock might be the caller's own already
            except IndexError:
                return
            thread = LogThread(target=self._run, name=name, daemon=True)
            self._thread = thread  # first: a concurrent stop waits for it
            try:
                thread.start()
            except RuntimeError:
                self._thread = None
                self._unstarted.append(True)
                raise

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread's end; returns at once on the thread itself.

        One that has not come to life yet is not waited for: its loop looks first whether it is to stop.
        """
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.ident is not None:
            thread.join(timeout)

    def hangs(self) -> bool:
        """Whether it is at work still, seen from another thread that has waited for its end."""
        thread = self._thread
        return (
            thread is not None
            and thread is not threading.current_thread()
            and thread.ident is not None
            and not thread.ended
        )
