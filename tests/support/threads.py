"""Threads of tests whose errors are not lost, and waiting for a condition that must come."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

GUARD_S = 30.0
"""How long a test waits for what must come; only a failing test ever waits so long."""


def wait_until(predicate: Callable[[], object], what: str = "") -> None:
    """Wait until the predicate holds; a failure names what did not come."""
    deadline = time.monotonic() + GUARD_S
    while not predicate():
        assert time.monotonic() < deadline, f"waited {GUARD_S} s for {what or predicate}"
        time.sleep(0.0005)


class Task:
    """A thread that keeps what its function returned or raised."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._function, self._arguments = function, arguments
        self.value: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.value = self._function(*self._arguments)
        except BaseException as error:
            self.error = error

    def join(self) -> Task:
        """Wait for the end; a thread that hangs fails the test."""
        self.thread.join(GUARD_S)
        assert not self.thread.is_alive(), f"{self._function} hangs"
        return self

    def result(self) -> Any:
        """Return what the function returned; raise what it raised."""
        self.join()
        if self.error is not None:
            raise self.error
        return self.value


def raise_in_thread(task: Task, error: type[BaseException]) -> None:
    """Raise an exception in the thread of a task, as another thread may; it comes up when the thread runs again."""
    assert task.thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(task.thread.ident), ctypes.py_object(error))
