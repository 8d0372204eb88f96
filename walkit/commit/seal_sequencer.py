"""Turns: several threads prepare at the same time, and go on one after the other, in the order in which they began."""

from __future__ import annotations

import threading
from typing import Any

from walkit.commit.ticket import new_gate


class Turns:
    """Numbers are drawn with `draw`, each is waited for with `wait` and given up with `end`, once, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drawn = 0
        self._current = 0
        self._over: set[int] = set()
        self._gates: dict[int, Any] = {}

    def draw(self) -> int:
        """Return the next number; the caller's lock keeps others away."""
        number = self._drawn
        self._drawn += 1
        return number

    def wait(self, number: int) -> None:
        """Return when all earlier numbers are given up."""
        with self._lock:
            if self._current == number:
                return
            self._gates[number] = gate = new_gate()
        gate.acquire()

    def end(self, number: int) -> None:
        """Give a number up, whether its turn has come or not. Never waits."""
        with self._lock:
            self._over.add(number)
            while self._current in self._over:
                self._over.remove(self._current)
                self._current += 1
            gate = self._gates.pop(self._current, None)
        if gate is not None:
            gate.release()
