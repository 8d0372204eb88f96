"""Waiting for the commit path to move: for room, for an acknowledgement, for idleness."""

from __future__ import annotations

import threading
from collections.abc import Callable


class News:
    """Told by the leader, under the driver's lock, after each frame; costs one comparison where nobody waits."""

    def __init__(self, lock: threading.Lock) -> None:
        self._condition = threading.Condition(lock)
        self._lock = lock
        self._waiting = 0
        self._callbacks: list[Callable[[], object]] = []

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `predicate()` holds; it is asked under the lock after each frame. False after `timeout` s."""
        with self._lock:
            self._waiting += 1
            try:
                return self._condition.wait_for(predicate, timeout)
            finally:
                self._waiting -= 1

    def call_next_locked(self, callback: Callable[[], object]) -> None:
        """Call back once after the next frame, from the leader: it must only wake something. Needs the lock held."""
        self._callbacks.append(callback)

    def tell_locked(self) -> list[Callable[[], object]]:
        """Wake who waits, and return the callbacks to make once the lock is free. Needs the lock held."""
        if self._waiting:
            self._condition.notify_all()
        callbacks = self._callbacks
        if callbacks:
            self._callbacks = []
        return callbacks
