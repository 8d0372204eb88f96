"""Background work at so many bytes a second, so that what people wait for finds the device free."""

from __future__ import annotations

import time
from collections.abc import Callable


class Throttle:
    """Waits after each piece of work for as long as its bytes may take; without a rate it never waits.

    Time that was not used is not saved up: after a pause the work does not go faster than the rate. For one thread.
    """

    def __init__(
        self,
        bytes_per_s: float | None,
        wait: Callable[[float], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate, self._wait, self._clock = bytes_per_s, wait, clock
        self._due_s = 0.0
        self.bytes = 0
        """Bytes of work so far."""

    def spend(self, size_bytes: int) -> None:
        """Note work that was done, and wait until more may be."""
        self.bytes += size_bytes
        if self._rate is None:
            return
        now = self._clock()
        self._due_s = max(self._due_s, now) + size_bytes / self._rate
        self._wait(self._due_s - now)
