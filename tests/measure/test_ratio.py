"""The ratio of two sets of measurements, and its interval: by hand, and by how often it holds the truth."""

from __future__ import annotations

import numpy as np
import pytest

from walkit.measure import ratio_of


@pytest.mark.parametrize(
    ("over", "under", "paired", "value", "low", "high"),
    [
        ([6.0], [3.0], False, 2.0, None, None),
        ([6.0, 9.0], [3.0, 3.0], False, 2.5, 2.0, 3.0),
        ([6.0, 9.0], [3.0, 4.5], True, 2.0, 2.0, 2.0),
        ([1.0, 4.0, 9.0], [1.0, 2.0, 3.0], True, 2.0, 1.0, 3.0),
    ],
    ids=["one", "two", "pairs", "three-pairs"],
)
def test_ratios_by_hand(
    over: list[float], under: list[float], paired: bool, value: float, low: float | None, high: float | None
) -> None:
    """One measurement has no interval; few have the least and the most."""
    found = ratio_of(over, under, paired=paired)
    assert (found.value, found.low, found.high) == (value, low, high)
    assert found.number == min(len(over), len(under))
    assert found.differs is (None if low is None else not low <= 1 <= (high or 0))


@pytest.mark.parametrize(
    ("over", "under", "paired"),
    [
        ([], [1.0], False),
        ([1.0], [], False),
        ([1.0, 2.0], [1.0], True),
        ([0.0], [1.0], False),
        ([np.nan], [1.0], False),
    ],
)
def test_what_has_no_ratio_is_refused(over: list[float], under: list[float], paired: bool) -> None:
    """Nothing, pairs of another number, what is not above 0: ValueError."""
    with pytest.raises(ValueError, match="measurements"):
        ratio_of(over, under, paired=paired)


@pytest.mark.parametrize("paired", [False, True])
def test_the_interval_holds_the_true_ratio_most_of_the_time(paired: bool) -> None:
    """Draw 200 experiments of 10 rounds with a known truth: 85 % of the intervals hold it, pairs are narrower."""
    pick = np.random.default_rng(3)
    held, widths = 0, []
    for _ in range(200):
        mood = pick.lognormal(0, 0.3, 10)
        under = 100 * mood * pick.lognormal(0, 0.05, 10)
        over = 150 * mood * pick.lognormal(0, 0.05, 10)
        found = ratio_of(over.tolist(), under.tolist(), paired=paired)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1.5 <= found.high
        widths.append(found.high - found.low)
    assert held >= 170
    assert bool(np.median(widths) < 0.2) is paired
