"""Seal order: several threads prepare at the same time, and go on one by one in the order in which they began."""

from __future__ import annotations

import threading
from typing import Any

from walkit.commit.ticket import new_latch, open_latch


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
        """Assert that what waits or is given up early comes after the current number; needs the caller's lock held."""
        with self._lock:
            assert 0 <= self._current <= self._drawn
            assert all(self._current < number < self._drawn for number in (*self._over, *self._latches))

    def abandon(self) -> None:
        """Let everything pass: nothing is sealed any more, and a number may be held by a thread that hangs."""
        with self._lock:
            self._abandoned = True
            for latch in self._latches.values():
                open_latch(latch)
            self._latches.clear()  # only now: after a MemoryError above, the next call opens them all
