"""Threads that are waited for by whoever closes what they work on."""

from __future__ import annotations

import os
import threading
from typing import Any


class EndingThread(threading.Thread):
    """A thread that says itself when it has ended, so that an interrupted `join` can be done again.

    In Python 3.11 a `join` that Ctrl-C ends takes the thread for stopped while it runs (what bpo-45274 added there
    looks whether the thread's lock is held, and it is held by the thread): the next one returns at once, and files
    would be closed and locks freed under a thread that still writes.
    """

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.ended = False
        """Whether its work is over; unlike `is_alive` true also where an interrupted `join` took it for stopped."""
        self._end = threading.Lock()
        """Held until it has ended. A lock and not an Event, whose own lock an interrupt could leave locked."""
        self._end.acquire()
        self._process = os.getpid()

    def run(self) -> None:
        """See threading.Thread."""
        try:
            super().run()
        finally:
            self.ended = True
            self._end.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until its work is over; False after `timeout` seconds, or in a forked child. Once it was started."""
        here = self._process == os.getpid()
        if here and not self.ended and self._end.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            self._end.release()
        return self.ended

    def join(self, timeout: float | None = None) -> None:
        """See threading.Thread. In a forked child, where the thread is not, it returns at once."""
        waits = self.ident is not None and self._process == os.getpid()
        if waits and not self.wait(timeout):
            return
        super().join(timeout)
