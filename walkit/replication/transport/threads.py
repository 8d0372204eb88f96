"""The threads of a primary, a replica and a delta reader: of a loop, of each call; the clock that they go by."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from walkit._internal.threads import LogThread, WakeEvent
from walkit._main_thread import uninterrupted


class LoopThread:
    """Runs a loop on one thread of its own, at most once. Every method is safe from any thread.

    `run` looks first whether it is to stop: `stop` does not wait for a thread that has not reached `run` yet.
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
        """The name of the thread; empty before the start."""
        thread = self._thread
        return "" if thread is None else thread.name

    def start(self, name: str) -> None:
        """Start the thread, the first time; of two calls at once the other one returns without waiting.

        RuntimeError or MemoryError if the system has no thread left: then the next call tries again.
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


class ByteBudget:
    """Counts the bytes that one thread has taken in and another has not dealt with yet. `close` is for any thread.

    What is taken in may be over the limit once; then nothing more is until the rest is dealt with.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        """Written by the thread that takes in."""
        self._given = 0
        """Written by the thread that deals with it."""
        self._closed = False
        self._changed = WakeEvent()

    def take(self, size: int) -> None:
        """Count so many bytes more."""
        self._taken += size

    def release(self, size: int) -> None:
        """Count so many bytes as dealt with."""
        self._given += size
        self._changed.set()

    def wait(self) -> None:
        """Wait until there is room or the budget is closed. Called by the thread that takes in, before the next."""
        while not self._closed and self._taken - self._given >= self._limit:
            self._changed.wait()

    def close(self) -> None:
        """End every wait: nothing runs that could receive more."""
        self._closed = True
        self._changed.set()


class DaemonExecutor(Executor):
    """Runs each call of a server on a new daemon thread.

    The threads of a ThreadPoolExecutor are joined when the interpreter ends, so a primary that was not stopped would
    keep its process alive forever. If the system has no thread left, a call waits for one: an error of `submit` would
    end the only thread of gRPC that takes calls, and the server with it, for good and in silence.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have `fn` run on a thread, as soon as there is one, and return its future."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - the future raises it
                future.set_exception(error)

        self._waiting.append(run)
        self.start_waiting()
        return future

    def start_waiting(self) -> None:
        """Start a thread for each call that waits for one; to be called now and then."""
        for _ in range(len(self._waiting)):
            try:
                LogThread(target=self._run_one, name="walkit-publisher", daemon=True).start()
            except (RuntimeError, MemoryError):
                return

    def _run_one(self) -> None:
        try:
            run = self._waiting.popleft()
        except IndexError:
            return  # another one of two that were started for one call has it
        run()


def now_ms() -> float:
    """Return the milliseconds of the monotonic clock."""
    return time.monotonic() * 1000
