"""How long to wait before trying again: doubling, capped, jittered. Randomness comes from outside."""

from __future__ import annotations

import random
from collections.abc import Callable

BACKOFF_FIRST_MS = 50.0
BACKOFF_MOST_MS = 5_000.0


class Backoff:
    """Delays of a subscriber that reconnects. Each is drawn between half of its bound and the bound.

    (Kevo's factor of 1.5 in whole seconds stayed at one second; the bound here is a float and doubles.)
    """

    def __init__(
        self,
        first_ms: float = BACKOFF_FIRST_MS,
        most_ms: float = BACKOFF_MOST_MS,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.first_ms, self.most_ms = first_ms, most_ms
        self._chance = chance
        self.failures = 0
        """How many there were since something went well."""

    def next_ms(self) -> float:
        """Return the delay after one more failure."""
        bound = min(self.first_ms * 2.0 ** min(self.failures, 64), self.most_ms)
        self.failures += 1
        return bound * (0.5 + 0.5 * self._chance())

    def reset(self) -> None:
        """Start again with the first delay, after a success."""
        self.failures = 0
