"""The time by which segments are stamped and grow old."""

from __future__ import annotations

import time
from collections.abc import Callable

from walkit.record import wall_us

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It runs while the machine sleeps, and cannot be set."""


def _passed_us() -> int:
    return time.clock_gettime_ns(_CLOCK) // 1000


class PassedTime:
    """The wall clock's time at an opening, and the time that has passed since. Safe from any thread."""

    def __init__(
        self, wall_us: Callable[[], int] = wall_us, passed_us: Callable[[], int] = _passed_us
    ) -> None:
        self._wall_us, self._passed_us = wall_us, passed_us
        self.opened_us = wall_us()
        self._offset_us = self.opened_us - passed_us()

    def us(self) -> int:
        """Return the time, microseconds since 1970: no step of the wall clock is in it."""
        return max(self._passed_us() + self._offset_us, 0)

    def ahead_us(self) -> int:
        """Return by how much the wall clock was set since the opening; below 0 if it was set back."""
        return self._wall_us() - self.us()
