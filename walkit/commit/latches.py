"""How threads of the commit path wait for one another: latches, the signal after each frame, the order of sealing."""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections.abc import Callable
from time import monotonic
from typing import Any

from walkit._internal.locks import marked
from walkit._internal.threads import MEMORY_TRIES


def open_latch(latch: Any) -> None:
    """Open a latch; one that is open already (its caller was elected, too) stays open."""
    try:
        latch.release()
    except RuntimeError:
        return


def new_latch() -> Any:
    """Return a latch: a lock that one thread waits to acquire, and that another releases once, to open it."""
    latch = allocate_lock()
    latch.acquire()
    return latch


class CommitSignal:
    """Notified by the leader, under the driver's lock, after each frame; costs one comparison if no thread waits.

    A thread waits at a latch of its own and without the lock. A condition variable would take the lock again before it
    raises a KeyboardInterrupt, and a second one in that moment would release another thread's lock.
    """

    def __init__(self, lock: Any = None) -> None:
        self.lock = lock or threading.RLock()
        """Held while the awaited state changes."""
        # Both lists are replaced or appended under `lock`; opened latches leave the list.
        self._latches: list[Any] = []
        self._callbacks: list[Callable[[], object]] = []
        # Written under `lock`. True whenever one of the lists has an entry, so the leader may skip `notify_locked`
        # on False.
        self.wanted = False
        """Whether anything waits; saves the leader a call."""

    @property
    def waiting(self) -> int:
        """How many wait for the next frame."""
        return len(self._latches)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `predicate()` holds; it is asked under the lock after each frame. False after `timeout` s."""
        deadline = None if timeout is None else monotonic() + timeout
        over = False
        latch: Any = None
        while True:
            with marked(), self.lock:
                if over:  # not notified, so it is still in the list
                    self._latches = [each for each in self._latches if each is not latch]
                if predicate():
                    return True
                if over:
                    return False
                latch = new_latch()
                self._latches.append(latch)
                self.wanted = True
            left = -1 if deadline is None else min(max(deadline - monotonic(), 0), threading.TIMEOUT_MAX)
            over = not latch.acquire(timeout=left)

    def forget_waiters(self) -> None:
        """Forget all waiters: in a forked child, none of them exists."""
        self._latches, self._callbacks = [], []
        self.wanted = False

    def _check(self) -> None:
        """Assert that the leader is asked to look where anything waits; needs the lock held."""
        assert self.wanted or not (self._latches or self._callbacks), "a thread waits that nothing wakes"

    def call_next_locked(self, callback: Callable[[], object]) -> None:
        """Call back once after the next frame, from the leader: it must only wake something. Needs the lock held."""
        self._callbacks.append(callback)
        self.wanted = True

    def notify(self) -> None:
        """Wake all waiters, and make the callbacks. Takes the lock."""
        with marked(), self.lock:
            callbacks = self.notify_locked()
        call_all(callbacks)

    def notify_locked(self) -> list[Callable[[], object]]:
        """Wake all waiters, and return the callbacks to make once the lock is free. Needs the lock held."""
        if self._latches:
            for latch in self._latches:
                open_latch(latch)
            self._latches = []  # only now: where an interrupt comes up above, the next call opens them all
        # Always a new list: the caller looks at the old one without the lock, and must not find later waiters in it.
        callbacks, self._callbacks = self._callbacks, []
        self.wanted = False
        return callbacks


def call_all(callbacks: list[Callable[[], object]]) -> None:
    """Make the calls that `CommitSignal.notify_locked` has returned, without the lock; again if one lacks memory."""
    tries = 0
    while callbacks:
        try:
            callbacks[0]()
            del callbacks[0]
        except MemoryError:
            tries += 1
            if tries >= MEMORY_TRIES:
                raise


class SealSequencer:
    """Numbers come from `draw_locked`; each is waited for with `wait` and given up with `end`, once. Any thread."""

    def __init__(self) -> None:
        # Guards all below except `_drawn`. Taken without the commit lock, by leaders only; nothing is called under
        # it.
        self._lock = threading.Lock()
        # Written under the commit lock, with the group that gets the number: so turns are in the order of `take`.
        self._drawn = 0
        # Only grows. The leader with this number seals; all lower numbers were given up.
        self._current = 0
        self._over: set[int] = set()
        self._abandoned = False
        self._latches: dict[int, Any] = {}

    def draw_locked(self) -> int:
        """Return the next number; the caller's lock keeps others away."""
        number = self._drawn
        self._drawn += 1
        return number

    def wait(self, number: int) -> None:
        """Return when all earlier numbers are given up, or the order is."""
        with self._lock:
            if self._current == number or self._abandoned:
                return
            self._latches[number] = latch = new_latch()
        latch.acquire()

    def end(self, number: int) -> None:
        """Give a number up, whether its turn has come or not. Never waits."""
        with self._lock:
            self._over.add(number)
            while self._current in self._over:
                self._over.remove(self._current)
                self._current += 1
            latch = self._latches.pop(self._current, None)
        if latch is not None:
            latch.release()

    def _check(self) -> None:
        """Assert that waiting and abandoned numbers come after the current one; needs the caller's lock held."""
        with self._lock:
            assert 0 <= self._current <= self._drawn
            assert all(self._current < number < self._drawn for number in (*self._over, *self._latches))

    def abandon(self) -> None:
        """Let everything pass: nothing is sealed from now on, and a hung thread may hold a number."""
        with self._lock:
            self._abandoned = True
            for latch in self._latches.values():
                open_latch(latch)
            self._latches.clear()  # only now: after a MemoryError above, the next call opens them all
