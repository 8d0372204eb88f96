"""LatencyHistogram against numpy, against the package's own recording, and through its encodings."""

from __future__ import annotations

import math
import pickle
import sys
import time
from typing import Literal

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from walkit.errors import MissingExtraError
from walkit.measure.histogram import HIGHEST_NS, SIGNIFICANT_DIGITS, LatencyHistogram

latencies = st.lists(
    st.one_of(st.integers(0, 5_000), st.integers(0, 10**9), st.integers(0, HIGHEST_NS)),
    min_size=1,
    max_size=60,
)
EDGES = [0, 1, 1023, 1024, 2047, 2048, 2049, 4095, 4096, 2**31 - 1, 2**31, 2**45, HIGHEST_NS]


def nearest_rank(samples: list[int], p: float) -> int:
    return sorted(samples)[max(1, int(p * len(samples) / 100 + 0.5)) - 1]


@settings(deadline=None)
@given(samples=latencies, p=st.floats(0.001, 100))
def test_percentile_is_nearest_rank_within_precision(samples: list[int], p: float) -> None:
    """Any percentile of any samples: never below the sample of that rank, at most a thousandth above."""
    exact = nearest_rank(samples, p)
    assert exact <= LatencyHistogram.from_samples(np.array(samples)).percentile(p) <= exact * 1.001


def test_percentiles_agree_with_numpy() -> None:
    """200,000 lognormal latencies: the usual percentiles and the mean are numpy's, within the precision."""
    samples = np.random.default_rng(7).lognormal(12, 1, 200_000).astype(np.int64)
    histogram = LatencyHistogram.from_samples(samples)
    for p, found in histogram.percentiles((50, 90, 99, 99.9)).items():
        assert found == pytest.approx(np.percentile(samples, p), rel=2e-3)
    assert histogram.mean == pytest.approx(samples.mean(), rel=1e-3)
    assert histogram.count == 200_000
    assert histogram.min <= samples.min()
    assert histogram.min == pytest.approx(samples.min(), rel=1e-3)
    assert histogram.max >= samples.max()
    assert histogram.max == pytest.approx(samples.max(), rel=1e-3)
    assert histogram.max == histogram.percentile(100)


@settings(deadline=None)
@given(samples=latencies)
def test_folding_equals_recording_one_by_one(samples: list[int]) -> None:
    """Folding by numpy leaves the counters that the package's record_value leaves, edges included."""
    by_hand = HdrHistogram(1, HIGHEST_NS, SIGNIFICANT_DIGITS)
    for value in samples + EDGES:
        assert by_hand.record_value(value)
    assert LatencyHistogram.from_samples(np.array(samples + EDGES)).encode().encode() == by_hand.encode()


@settings(deadline=None)
@given(samples=latencies, counts=st.lists(st.integers(1, 1000), min_size=60, max_size=60))
def test_counts_stand_for_repeated_samples(samples: list[int], counts: list[int]) -> None:
    """A latency with a count is the same as that many samples of it."""
    weights = counts[: len(samples)]
    weighted = LatencyHistogram.from_samples(samples, counts=weights)
    assert weighted == LatencyHistogram.from_samples(np.repeat(samples, weights))
    assert weighted.count == sum(weights)


@settings(deadline=None)
@given(left=latencies, right=latencies)
def test_merge_encode_buckets_and_pickle_keep_everything(left: list[int], right: list[int]) -> None:
    """Merging is folding the joined samples; base64, buckets and pickle give an equal histogram back."""
    both = LatencyHistogram.merged(map(LatencyHistogram.from_samples, (left, right)))
    assert both == LatencyHistogram.from_samples(left + right) != LatencyHistogram()
    low, high, counts = both.buckets()
    assert counts.sum() == len(left) + len(right)
    assert (low <= high).all()
    assert (low[1:] > high[:-1]).all()
    for back in (
        LatencyHistogram.decode(both.encode()),
        LatencyHistogram.from_samples(low, counts=counts),
        pickle.loads(pickle.dumps(both)),
    ):
        assert back == both
        assert back.percentiles() == both.percentiles()
        assert back.count == both.count
        assert (back.min, back.max, back.mean) == (both.min, both.max, both.mean)


def test_merging_changes_neither_side() -> None:
    """The parts of a merge are as they were, and a merge of nothing is empty."""
    part = LatencyHistogram.from_samples([1, 2, 3])
    whole = LatencyHistogram.merged([part, part])
    assert (whole.count, part.count, LatencyHistogram.merged([]).count) == (6, 3, 0)


def test_empty_histogram_says_nan() -> None:
    """Without samples no statistic is a number that could be taken for a latency; encoding still works."""
    empty = LatencyHistogram.from_samples(np.empty(0, dtype=np.int64))
    assert empty.count == 0
    assert len(empty.buckets().counts) == 0
    assert all(math.isnan(x) for x in (empty.min, empty.max, empty.mean, empty.percentile(50)))
    assert LatencyHistogram.decode(empty.encode()) == empty
    assert "nan" in empty._repr_html_()


@pytest.mark.parametrize(("unit", "ns"), [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)])
def test_units(unit: Literal["ns", "us", "ms", "s"], ns: int) -> None:
    """The same latencies given in each unit, as floats, make the same histogram."""
    samples = np.array([2_000_000_000, 3_500_000_000])
    assert LatencyHistogram.from_samples(samples / ns, unit=unit) == LatencyHistogram.from_samples(samples)


@pytest.mark.parametrize(
    ("samples", "counts"),
    [
        ([-1], None),
        ([HIGHEST_NS + 1], None),
        ([float("nan")], None),
        ([float("inf")], None),
        ([[1, 2]], None),
        ([1, 2], [1]),
        ([1, 2], [1, 0]),
    ],
)
def test_impossible_samples_are_refused(samples: list[float], counts: list[int] | None) -> None:
    """Negative, endless and absurd latencies, shapes that differ and counts below 1 raise ValueError."""
    with pytest.raises(ValueError, match=r"latenc|counts"):
        LatencyHistogram.from_samples(samples, counts=counts)


@pytest.mark.parametrize("payload", ["", "no histogram", HdrHistogram(1, 1000, 2).encode()])
def test_foreign_payloads_are_refused(payload: str | bytes) -> None:
    """Another text, or a payload of another range and precision, raises ValueError."""
    with pytest.raises(ValueError, match="histogram"):
        LatencyHistogram.decode(payload)


@pytest.mark.parametrize("p", [-1, 100.5, float("nan")])
def test_impossible_percentiles_are_refused(p: float) -> None:
    """A percentile outside 0..100 raises ValueError."""
    with pytest.raises(ValueError, match="percentiles"):
        LatencyHistogram.from_samples([1]).percentile(p)


def test_folding_a_million_is_fast() -> None:
    """A million samples fold in far less than the second that recording one by one takes."""
    samples = np.random.default_rng(7).lognormal(12, 1, 1_000_000).astype(np.int64)
    started = time.thread_time()
    assert LatencyHistogram.from_samples(samples).count == 1_000_000
    assert time.thread_time() - started < 0.7


def test_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hdrhistogram, making a histogram raises the error that names the extra."""
    monkeypatch.setitem(sys.modules, "hdrh.histogram", None)
    with pytest.raises(MissingExtraError, match=r"\[measure\]") as caught:
        LatencyHistogram()
    assert (caught.value.extra, caught.value.package) == ("measure", "hdrhistogram")
