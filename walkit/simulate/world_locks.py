"""Locks, queues, events and pools of a world: see `threading`, `queue` and `concurrent.futures`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import Empty
from typing import Any, Self

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


class Event:
    """A `threading.Event` of a world."""

    def __init__(self, runner: Runner) -> None:
        self._unset = Lock(runner)
        self._unset.acquire()

    def set(self) -> None:
        """See threading.Event."""
        if self._unset.locked():
            self._unset.release()

    def wait(self) -> None:
        """See threading.Event."""
        with self._unset:  # the next thread that waits follows
            pass


class Task:
    """A `Future` of a world, on a thread of its own."""

    def __init__(self, runner: Runner, do: Callable[[], Any]) -> None:
        self._do, self._done = do, Event(runner)
        self._value: Any = None
        self._error: Exception | None = None
        assert runner.life is not None
        runner.spawn(runner.life, self._run, "pool")

    def _run(self) -> None:
        try:
            self._value = self._do()
        except Exception as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        self._done.set()

    def result(self) -> Any:
        """See Future."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value


class Pool:
    """A `ThreadPoolExecutor` of a world."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def submit(self, do: Callable[..., Any], *args: Any) -> Task:
        """See Executor."""
        return Task(self._runner, lambda: do(*args))

    def map(self, do: Callable[..., Any], items: Iterable[Any]) -> Iterator[Any]:
        """See Executor."""
        tasks = [self.submit(do, item) for item in items]
        return (task.result() for task in tasks)

    def shutdown(self, **_: object) -> None:
        """See Executor."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for nothing: each result was taken."""
