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
        self.ended = threading.Event()
        self._process = os.getpid()

    def run(self) -> None:
        """See threading.Thread."""
        try:
            super().run()
        finally:
            self.ended.set()

    def join(self, timeout: float | None = None) -> None:
        """See threading.Thread. In a forked child, where the thread is not, it returns at once."""
        waits = self.ident is not None and self._process == os.getpid()
        if waits and not self.ended.wait(timeout):
            return
        super().join(timeout)
