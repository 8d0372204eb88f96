"""How many times one set of measurements is another, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000
BOOTSTRAP_FROM = 5
"""With fewer measurements on a side, resampling them shows little: the interval is from the least to the most."""
LEVEL = 95.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """A ratio with its interval. `low` and `high` are None if there is one measurement on a side."""

    value: float
    low: float | None
    high: float | None
    number: int
    """Measurements on the side that has fewer, or pairs."""
    way: str
    """The meaning of the value and the interval."""

    @property
    def differs(self) -> bool | None:
        """Whether the interval excludes 1; None without an interval."""
        return None if self.low is None or self.high is None else not self.low <= 1.0 <= self.high


def ratio_of(over: Sequence[float], under: Sequence[float], *, paired: bool = False, seed: int = 7) -> Ratio:
    """Return `over` / `under`, both above 0 and each of at least one measurement.

    `paired`: the measurements at the same place were taken one right after the other, so that the machine's moods are
    in both; the ratio is the median of those of the pairs. Else it is the ratio of the medians. From five measurements
    on the interval is a 95 % bootstrap one, by percentiles. ValueError for nothing, for pairs of another number, and
    for a value that is not above 0.
    """
    top, bottom = np.asarray(over, dtype=np.float64), np.asarray(under, dtype=np.float64)
    if not top.size or not bottom.size or (paired and top.size != bottom.size):
        raise ValueError(f"{top.size} measurements over {bottom.size}")
    if not (np.isfinite(top).all() and np.isfinite(bottom).all() and top.min() > 0 and bottom.min() > 0):
        raise ValueError("measurements are above 0")
    number = int(min(top.size, bottom.size))
    pairs = top / bottom if paired else None
    value = float(np.median(top) / np.median(bottom) if pairs is None else np.median(pairs))
    what = "ratio of the medians" if pairs is None else "median of the pairs' ratios"
    if number == 1:
        return Ratio(value=value, low=None, high=None, number=1, way="one measurement: no interval is known")
    if number < BOOTSTRAP_FROM:
        ends = (
            (top.min() / bottom.max(), top.max() / bottom.min())
            if pairs is None
            else (pairs.min(), pairs.max())
        )
        low, high = float(ends[0]), float(ends[1])
        return Ratio(value=value, low=low, high=high, number=number, way=f"{what}, least to most")
    pick = np.random.default_rng(seed)
    if pairs is None:
        tops = np.median(pick.choice(top, (RESAMPLES, top.size)), axis=1)
        drawn = tops / np.median(pick.choice(bottom, (RESAMPLES, bottom.size)), axis=1)
    else:
        drawn = np.median(pick.choice(pairs, (RESAMPLES, pairs.size)), axis=1)
    low, high = (float(end) for end in np.percentile(drawn, ((100 - LEVEL) / 2, (100 + LEVEL) / 2)))
    return Ratio(value=value, low=low, high=high, number=number, way=f"{what}, 95 % bootstrap interval")
