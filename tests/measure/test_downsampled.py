"""A series in bounded memory: everything that was added is in it once, in order, in elements of one size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from walkit.measure import LatencyHistogram
from walkit.measure.downsampled import Downsampled, fine_counts, percentile_ns


@settings(max_examples=examples(200), deadline=None)
@given(count=st.integers(0, 500), size_max=st.integers(2, 33))
def test_nothing_is_lost_and_nothing_grows(count: int, size_max: int) -> None:
    """Add tuples that are joined by putting them together: all in order, never more than fit, the last shorter."""
    series: Downsampled[tuple[int, ...]] = Downsampled(lambda one, other: one + other, size_max)
    for number in range(count):
        series.add((number,))
        assert len(series) <= size_max
    assert [number for element in series for number in element] == list(range(count))
    sizes = [len(element) for element in series]
    assert all(size == series.each for size in sizes[:-1])
    assert not sizes or 1 <= sizes[-1] <= series.each


def test_a_series_of_one_is_refused() -> None:
    """A bound below two leaves nothing to join: ValueError."""
    with pytest.raises(ValueError, match="at most 1"):
        Downsampled(lambda one, other: one, 1)


@settings(max_examples=examples(100), deadline=None)
@given(values=st.lists(st.integers(1_000, 10**11 - 1), min_size=1, max_size=60), p=st.floats(1, 100))
def test_percentiles_of_counts_are_those_of_the_samples(values: list[int], p: float) -> None:
    """Counts of any latencies between 1 µs and 100 s: a percentile is within a row of the histogram's."""
    latency = LatencyHistogram.from_samples(values)
    found = percentile_ns(fine_counts(latency), p)
    assert found == pytest.approx(latency.percentile(p), rel=0.04)
    assert np.isnan(percentile_ns(fine_counts(None), p))
