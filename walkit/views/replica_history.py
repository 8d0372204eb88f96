"""A session's history of one process of a primary or replica: points and states, bounded. No panel."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np

from walkit.plots import LagSeries, StateBar

POINTS_MAX = 480
"""Two minutes of four lines per second."""
SPANS_MAX = 120
NAN = float("nan")


class ReplicaHistory:
    """Takes the lines of a child, over all of its lives. `take` is for the thread that reads them, the rest for any."""

    def __init__(self, name: str, zero_s: float) -> None:
        self.name = name
        self._zero_s = zero_s
        """The clock's time at which the figures begin."""
        self._lock = threading.Lock()
        self._points: deque[tuple[float, float, float, float]] = deque(maxlen=POINTS_MAX)
        self._past: deque[tuple[str, float, float, str]] = deque(maxlen=SPANS_MAX)
        self._spans: list[tuple[str, float, float | None, str]] = []

    def take(self, line: dict[str, Any]) -> None:
        """Take a line of a replica, or one of a primary, which has no lag."""
        status = line.get("status")
        with self._lock:
            if status is None:
                if not self._spans:
                    self._spans = [("serving", line["clock_s"], None, "")]
                return
            self._spans = [(s["state"], s["since"], s["until"], s["why"]) for s in status["history"]]
            self._check_locked()

    def note_lag(self, clock_s: float, follower: dict[str, Any] | None) -> None:
        """Take a lag: the primary reports a replica's, a delta reader its own; None if unknown."""
        with self._lock:
            found = follower or {}
            values = [found.get(name) for name in ("lag_records", "lag_bytes", "lag_ms")]
            records, size, ms = (NAN if value is None else float(value) for value in values)
            self._points.append((clock_s - self._zero_s, records, size, ms))

    @property
    def newest(self) -> tuple[float | None, float | None, float | None]:
        """The newest lag in records, bytes and milliseconds; None if unknown."""
        with self._lock:
            records, size, ms = self._points[-1][1:] if self._points else (NAN, NAN, NAN)
        return (
            None if records != records else records,
            None if size != size else size,
            None if ms != ms else ms,
        )

    def end(self, state: str, clock_s: float, why: str = "") -> None:
        """The process has ended: its states are closed, and `state` follows until its next life."""
        with self._lock:
            self._close(clock_s)
            self._spans = [(state, clock_s, None, why)]
            self._check_locked()

    def begin(self, clock_s: float) -> None:
        """Another life begins."""
        with self._lock:
            self._close(clock_s)
            self._check_locked()

    def _check(self) -> None:
        """Assert the invariants between two steps: at most the last state lasts, and none of a life before does."""
        with self._lock:
            self._check_locked()

    def _check_locked(self) -> None:
        """See `_check`; needs the lock held."""
        assert all(until is not None for _, _, until, _ in self._spans[:-1]), (
            "a state lasts that another follows"
        )
        assert all(until is not None for _, _, until, _ in self._past), "a state of an earlier life lasts"

    def _close(self, clock_s: float) -> None:
        self._past.extend(
            (s, since, clock_s if until is None else until, w) for s, since, until, w in self._spans
        )
        self._spans = []

    def lag(self) -> LagSeries:
        """Return the points as columns."""
        with self._lock:
            points = np.array(self._points, np.float64).reshape(-1, 4)
        at, records, size, ms = points.T.copy()
        return LagSeries(name=self.name, time_s=at, records=records, bytes=size, ms=ms)

    def bars(self, now_s: float, since_s: float) -> list[StateBar]:
        """Return the states as bars up to `now_s`, those that ended before `since_s` left out; both on the clock."""
        with self._lock:
            spans = [*self._past, *((s, b, now_s if e is None else e, w) for s, b, e, w in self._spans)]
        zero = self._zero_s
        return [
            StateBar(
                lane=self.name,
                state=state,
                start_s=max(begin, since_s) - zero,
                end_s=max(end, begin) - zero,
                why=why,
            )
            for state, begin, end, why in spans
            if end >= since_s
        ]
