"""A series of any length in bounded memory: when it is full, neighbours are joined, and all of it stays covered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from walkit.measure.histogram import LatencyHistogram

Int64Array = npt.NDArray[np.int64]
T = TypeVar("T")

FINE_ROWS = 256
FINE_EDGES_NS = np.logspace(3, 11, FINE_ROWS + 1)
"""Edges of the rows in which latencies are counted to be joined: 1 µs to 100 s, 32 rows for each power of ten."""


class Downsampled(Generic[T]):
    """At most `size_max` elements, each of which joins as many as the others; only the newest may join fewer.

    `join(earlier, later)` makes one of two neighbours. Used by one thread.
    """

    def __init__(self, join: Callable[[T, T], T], size_max: int) -> None:
        if size_max < 2:
            raise ValueError(f"a series of at most {size_max} cannot be halved")
        self._join, self._size_max = join, size_max
        self._elements: list[T] = []
        self.each = 1
        """How many of those that were added an element joins."""
        self._in_last = 0

    def add(self, element: T) -> None:
        """Take the newest element."""
        if self._elements and self._in_last < self.each:
            self._elements[-1] = self._join(self._elements[-1], element)
            self._in_last += 1
            return
        if len(self._elements) == self._size_max:
            self._halve()
            self.add(element)
            return
        self._elements.append(element)
        self._in_last = 1

    def _halve(self) -> None:
        found = self._elements
        pairs = [self._join(*found[at : at + 2]) for at in range(0, len(found) - 1, 2)]
        odd = len(found) % 2
        self._elements = [*pairs, *found[len(found) - odd :]]
        self._in_last = self.each if odd else 2 * self.each
        self.each *= 2

    def __len__(self) -> int:
        """Return the number of elements."""
        return len(self._elements)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the elements, oldest first."""
        return iter(self._elements)


def fine_counts(latency: LatencyHistogram | None) -> Int64Array:
    """Return records by latency between the FINE_EDGES_NS; zeros without a histogram."""
    return np.zeros(FINE_ROWS, np.int64) if latency is None else latency.counts_between(FINE_EDGES_NS)


def percentile_ns(counts: Int64Array, percentile: float) -> float:
    """Return a percentile of counts between the FINE_EDGES_NS, to 4 % (the middle of its row); nan without records."""
    reached = np.cumsum(counts)
    if not reached[-1]:
        return float("nan")
    row = int(np.searchsorted(reached, max(round(reached[-1] * percentile / 100), 1)))
    return float(np.sqrt(FINE_EDGES_NS[row] * FINE_EDGES_NS[row + 1]))
