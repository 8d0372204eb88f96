"""The threads on which a delta reader reads the log, side by side."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

from walkit._threads import LogThread

STOP_S = 5.0
"""How long a stop waits for reads that are under way: a storage may hang."""


class Workers:
    """A few threads that do jobs in order of their coming; each starts when it is first needed."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._threads: list[LogThread] = []

    def do(self, job: Callable[[], object]) -> None:
        """Have a thread do this. Called by one thread, which bounds how many jobs there are at a time.

        RuntimeError where the system has no thread to give, and there is none yet.
        """
        if len(self._threads) < self._most:
            thread = LogThread(target=self._work, name=self._name, daemon=True)
            try:
                thread.start()
                self._threads.append(thread)  # only now: `stop` cannot wait for one that never began
            except RuntimeError:  # those that there are do it
                if not self._threads:
                    raise
        self._jobs.put(job)

    def stop(self) -> None:
        """End the threads once their jobs are done, and wait for that; a read that hangs is waited for a while."""
        for _ in self._threads:
            self._jobs.put(None)
        until = time.monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
