"""Threads that `close` waits for, the event that wakes a thread that waits, and the stack that a call needs."""

from __future__ import annotations

import gc
import os
import sys
import threading
from _thread import allocate_lock
from functools import partial
from time import sleep
from types import FrameType
from typing import Any, Final

STACK_FRAMES: Final = 32
"""How many calls deep walkit's own code goes at most, from a public call down to the device."""


def _calls(left: int) -> None:
    if left:
        _calls(left - 1)


def _nested(depth: int) -> tuple[Any, ...]:
    kinds: tuple[Any, ...] = ()
    for _ in range(depth):
        kinds = (kinds,)
    return kinds


# Up to 3.11 calls of C and of Python are counted together, and `isinstance` goes down a nested tuple as deep as it is.
# Later only calls of Python tell how much of the stack is left.
reserve_stack = partial(isinstance, None, _nested(STACK_FRAMES))
if sys.version_info >= (3, 12):
    reserve_stack = partial(_calls, STACK_FRAMES)
"""Raises RecursionError if the stack has no room for what follows. Called before a lead, lock or count is taken.

Functions of Python give back what a call has taken, and a full stack would refuse them.
"""

MEMORY_TRIES: Final = 256
"""How often a step that others wait for is tried again if it finds no memory. Counting so far allocates nothing."""
START_STEP_S: Final = 0.0001
"""The time between two looks at whether a thread that has started runs."""
WAIT_STEP_S: Final = 0.25
"""The time after which a wait for a thread lets a pending signal be handled."""


def current_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by its identifier.

    CPython up to 3.12 holds the lock of its list of threads meanwhile. A collection that clears a `threading.local`
    wants the same lock, and the process hangs for good (python/cpython#106883), so that none may begin.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()


class WakeEvent:
    """Wakes one thread that waits; the wait clears it. Used like `threading.Event`, from any thread.

    One lock underneath, whose every step is one call in C. An Event is Python code: an interrupt of the main thread
    (Ctrl-C) in the middle of it can leave its inner lock taken, and every other thread that sets it hangs forever.
    """

    __slots__ = ("_gate",)

    def __init__(self) -> None:
        # Taken while it is not set: `set` frees it, the thread that waits takes it again. Guards nothing.
        self._gate = allocate_lock()
        self._gate.acquire()

    def set(self) -> None:
        """Wake the waiting thread, or the next one to wait."""
        try:
            self._gate.release()
        except RuntimeError:
            return  # it was set already

    def clear(self) -> None:
        """Forget what was set before."""
        self._gate.acquire(blocking=False)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False after `timeout` seconds."""
        if timeout is None:
            return self._gate.acquire()
        return self._gate.acquire(timeout=min(max(timeout, 0), threading.TIMEOUT_MAX))


class Latch:
    """Is set once, for good; any number of threads wait for that. Made of one lock, as `WakeEvent` is."""

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        # Taken until it is set; each thread that waited frees it for the next one. Guards nothing.
        self._gate = allocate_lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Let the threads continue that wait, and those that will."""
        self._is_set = True
        try:
            self._gate.release()
        except RuntimeError:
            return  # it was set already

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False after `timeout` seconds."""
        seconds = -1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)
        if not self._is_set and self._gate.acquire(timeout=seconds):
            try:
                self._gate.release()  # for the next one that waits
            except RuntimeError:
                return True  # it was set a second time
        return self._is_set


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
        self.began = False
        """Whether its work has started; also if it cannot."""
        self._end = threading.Lock()
        """Held until it has ended. A lock and not an Event, whose own lock an interrupt could leave locked."""
        self._end.acquire()
        self._process = os.getpid()

    def start(self) -> None:
        """See threading.Thread. RuntimeError also for a thread that found no memory to begin its work."""
        super().start()
        while not self.began and self.is_alive():  # CPython counts it as started a few steps before
            sleep(START_STEP_S)
        if not self.began:
            self.ended = self.began = True
            self._end.release()
            raise RuntimeError("the thread found no memory to begin its work")

    def run(self) -> None:
        """See threading.Thread."""
        self.began = True
        try:
            super().run()
        finally:
            self.ended = True
            self._end.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until its work is over; False after `timeout` seconds, or in a forked child. Once it was started."""
        if self._process == os.getpid() and not self.ended:
            if timeout is None:
                # CPython handles a signal that comes just before it waits for a lock only after that: so in steps.
                while self._process == os.getpid() and not self.wait(WAIT_STEP_S):  # a handler may fork
                    pass
            elif self._end.acquire(timeout=max(timeout, 0)):
                self._end.release()  # an interrupt may skip this: `ended` is set by then
        return self.ended

    def join(self, timeout: float | None = None) -> None:
        """See threading.Thread. In a forked child, which lacks the thread, it returns at once."""
        waits = self.ident is not None and self._process == os.getpid()
        if waits and not self.wait(timeout):
            return
        super().join(timeout)


class LogThread(EndingThread):
    """A thread of the log's own, and not one of the program: others wait for its work, so it waits for none of them."""

    def run(self) -> None:
        """See threading.Thread."""
        _here.is_log_thread = True
        super().run()


class _Here(threading.local):
    is_log_thread = False


_here = _Here()


def on_log_thread() -> bool:
    """Say whether the calling thread is one of a log's own, of any log."""
    return _here.is_log_thread


def on_event_loop() -> bool:
    """Return whether an event loop of asyncio runs in the calling thread, which must not wait then."""
    if "asyncio" not in sys.modules:  # no loop yet
        return False
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
