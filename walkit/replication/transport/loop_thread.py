"""The thread of a loop: started once, and waited for by whatever ends the loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from walkit._interrupts import uninterrupted
from walkit._threads import LogThread


class LoopThread:
    """Runs a loop on one thread of its own, at most once. Every method is safe from any thread.

    `run` looks first whether it is to stop: a thread that was just started, and has not begun it, is not waited for.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._unstarted = deque([True])
        """Taken by the one call that starts the thread: a lock might be held already by the thread that a finaliser
        interrupts."""
        self._thread: LogThread | None = None

    @property
    def begun(self) -> bool:
        """Whether it was started, or is being started."""
        return self._thread is not None

    @property
    def ended(self) -> bool:
        """Whether it was started and has ended."""
        thread = self._thread
        return thread is not None and thread.ended

    @property
    def running(self) -> bool:
        """Whether it was started, or is being started, and has not ended."""
        thread = self._thread
        return thread is not None and not thread.ended

    @property
    def name(self) -> str:
        """What the thread is called; empty before the start."""
        thread = self._thread
        return "" if thread is None else thread.name

    def start(self, name: str) -> None:
        """Start the thread, the first time; of two calls at once the other one returns without waiting.

        RuntimeError or MemoryError where the system has no thread to give: then the next call tries again.
        """
        with uninterrupted():
            try:
                self._unstarted.pop()
            except IndexError:
                return
            thread = LogThread(target=self._run, name=name, daemon=True)
            self._thread = thread  # first: a concurrent stop waits for it
            try:
                thread.start()
            except (RuntimeError, MemoryError):
                self._thread = None
                self._unstarted.append(True)
                raise
            self._check()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread's end, at most `timeout` seconds; returns at once on the thread itself."""
        thread = self._thread
        if thread is not None and self._is_waited_for(thread):
            thread.join(timeout)

    def hangs(self) -> bool:
        """Whether it is at work still, seen from another thread that has waited for its end."""
        thread = self._thread
        return thread is not None and self._is_waited_for(thread) and not thread.ended

    @staticmethod
    def _is_waited_for(thread: LogThread) -> bool:
        return thread is not threading.current_thread() and thread.ident is not None

    def _check(self) -> None:
        """Assert that the thread was started by the one call that may; while no start is under way."""
        assert len(self._unstarted) == (self._thread is None), "a loop could be started twice, or never again"
