"""Locks and queues of a world: see `threading` and `queue`."""

from __future__ import annotations

import threading
from collections import deque
from queue import Empty
from typing import Any

from walkit.simulate.runner import Runner, Thread

LOOK_MS = 0.001
"""The least time of a wait: what only looks again and again lets time pass."""


class Lock:
    """A `threading.Lock` of a world."""

    __slots__ = ("_is_locked", "_runner", "_waiting")

    def __init__(self, runner: Runner) -> None:
        self._runner, self._is_locked = runner, False
        self._waiting: deque[Thread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See threading.Lock."""
        if not self._is_locked:
            self._is_locked = True
            return True
        runner, thread = self._runner, self._runner.here()
        if not blocking or (thread is None and not timeout):
            return False
        assert thread is not None, "the driver of a world must not wait"
        until_ms = None if timeout < 0 else runner.now_ms + max(timeout * 1000, LOOK_MS)
        while self._is_locked:
            self._waiting.append(thread)
            try:
                if (
                    not runner.wait(None if until_ms is None else until_ms - runner.now_ms)
                    and self._is_locked
                ):
                    return False
            finally:
                if thread in self._waiting:
                    self._waiting.remove(thread)
        self._is_locked = True
        return True

    def release(self) -> None:
        """See threading.Lock."""
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        if self._waiting:
            self._runner.wake(self._waiting.popleft())

    def locked(self) -> bool:
        """See threading.Lock."""
        return self._is_locked

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(threading._RLock):  # type: ignore[misc]
    """A `threading.RLock` of a world: Python's own, around such a lock."""

    def __init__(self, runner: Runner) -> None:
        super().__init__()
        self._block = Lock(runner)


class Queue:
    """A `queue.SimpleQueue` of a world."""

    def __init__(self, runner: Runner) -> None:
        self._items: deque[Any] = deque()
        self._filled = Lock(runner)
        self._filled.acquire()

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """See queue.SimpleQueue."""
        self._items.append(item)
        if self._filled.locked():
            self._filled.release()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """See queue.SimpleQueue."""
        while not self._items:
            if not self._filled.acquire(block, -1 if timeout is None else timeout):
                raise Empty
        item = self._items.popleft()
        if self._items and self._filled.locked():  # for the next one that waits
            self._filled.release()
        return item

    def get_nowait(self) -> Any:
        """See queue.SimpleQueue."""
        return self.get(block=False)

    def qsize(self) -> int:
        """See queue.SimpleQueue."""
        return len(self._items)

    def empty(self) -> bool:
        """See queue.SimpleQueue."""
        return not self._items
