"""Timeline against a brute force over lists."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walkit.measure import Timeline
from walkit.measure.timeline import BUCKETS_WANTED, round_width

samples = st.lists(
    st.tuples(st.integers(0, 10_500_000), st.integers(0, 10**9), st.integers(1, 5)), min_size=0, max_size=80
)


def nearest_rank(latencies: list[int], p: float) -> float:
    return (
        sorted(latencies)[max(1, int(p * len(latencies) / 100 + 0.5)) - 1] / 1_000 if latencies else math.nan
    )


@settings(deadline=None)
@given(taken=samples)
def test_buckets_agree_with_brute_force(taken: list[tuple[int, int, int]]) -> None:
    """Ten 1 ms buckets over 10.4 ms, the last taking the rest: all columns by filtering lists."""
    completed, latency, records = (
        (list(column) for column in zip(*taken, strict=True)) if taken else ([], [], [])
    )
    line = Timeline.from_samples(completed, latency, records=records, duration_s=0.0104, bucket_s=0.001)
    assert len(line) == 10
    assert line.start_s[-1] == pytest.approx(0.009)
    assert line.width_s.sum() == pytest.approx(0.0104)
    assert line.width_s[-1] == pytest.approx(0.0014)
    for index in range(10):
        inside = [(v, n) for c, v, n in taken if min(c // 1_000_000, 9) == index]
        spread = [v for v, n in inside for _ in range(n)]
        assert line.records[index] == len(spread)
        assert line.records_per_s[index] == pytest.approx(len(spread) / line.width_s[index])
        for found, expected in (
            (line.p50_us[index], nearest_rank(spread, 50)),
            (line.p99_us[index], nearest_rank(spread, 99)),
            (line.max_us[index], max(spread) / 1_000 if spread else math.nan),
        ):
            assert found == pytest.approx(expected, nan_ok=True)


def test_a_steady_stream_has_a_steady_rate() -> None:
    """One record a ms for 2.3 s in half-second buckets: 1,000 records/s in each, the short last one too."""
    completed = np.arange(2300) * 1_000_000
    line = Timeline.from_samples(completed, np.full(2300, 5_000), duration_s=2.3, bucket_s=0.5)
    assert len(line) == 5
    assert line.records_per_s.tolist() == pytest.approx([1000.0] * 5)
    assert line.middle_s.tolist() == pytest.approx([0.25, 0.75, 1.25, 1.75, 2.15])
    assert list(line.to_pandas().columns)[-1] == "records_per_s"


@pytest.mark.parametrize(
    ("duration_s", "width_s"), [(0.0, 0.001), (0.2, 0.001), (10, 0.05), (61, 0.5), (3600, 20)]
)
def test_width_is_round_and_gives_few_buckets(duration_s: float, width_s: float) -> None:
    """Widths are 1, 2 or 5 times a power of ten and make at most BUCKETS_WANTED buckets."""
    assert round_width(duration_s) == pytest.approx(width_s)
    assert len(Timeline.from_samples([], [], duration_s=duration_s)) <= BUCKETS_WANTED


def test_a_run_without_length_has_one_bucket_and_no_rate() -> None:
    """Duration 0 divides by nothing: one bucket, rate 0, the record still counted."""
    line = Timeline.from_samples([0], [7_000], duration_s=0.0)
    assert (line.records.tolist(), line.records_per_s.tolist(), line.max_us.tolist()) == ([1], [0.0], [7.0])


def test_equal_by_value_and_read_only() -> None:
    """Timelines with gaps (nan) are equal if their numbers are, and cannot be written to."""
    one, same, other = (
        Timeline.from_samples([0, 2_500_000], [1_000, last], duration_s=0.003, bucket_s=0.001)
        for last in (2_000, 2_000, 3_000)
    )
    assert one == same
    assert one != other
    assert one != "timeline"
    with pytest.raises(ValueError, match="read-only"):
        one.records[0] = 1


@pytest.mark.parametrize(
    ("completed", "latency", "records", "duration_s", "bucket_s"),
    [
        ([-1], [1], None, 1, None),
        ([1], [-1], None, 1, None),
        ([1], [1], [0], 1, None),
        ([1, 2], [1], None, 1, None),
        ([1], [1], None, -1, None),
        ([1], [1], None, 1, 0),
    ],
)
def test_impossible_samples_are_refused(
    completed: list[int],
    latency: list[int],
    records: list[int] | None,
    duration_s: float,
    bucket_s: float | None,
) -> None:
    """Negative times, counts below 1, lengths that differ and invalid widths raise ValueError."""
    with pytest.raises(ValueError, match="must"):
        Timeline.from_samples(completed, latency, records=records, duration_s=duration_s, bucket_s=bucket_s)


@pytest.mark.parametrize(("buckets", "columns"), [(0, 1), (1, 1), (7, 7), (60, 60), (169, 60)])
def test_a_picture_has_few_columns_of_its_rates(buckets: int, columns: int) -> None:
    """Buckets of rising rates: at most sixty columns, the last of full height, each with its rate in words."""
    rising = np.arange(buckets) * 10
    line = Timeline(
        start_s=np.arange(buckets, dtype=float),
        width_s=np.ones(buckets),
        records=rising,
        **dict.fromkeys(("p50_us", "p99_us", "max_us"), np.ones(buckets)),
    )
    heights = [int(height) for height in re.findall(r";height:(\d+)px\"></span>", line.picture())]
    assert len(heights) == columns and heights == sorted(heights)
    assert heights[-1] == (48 if buckets > 1 else 0)
    parts = np.array_split(rising, max(columns, 1)) if buckets else []
    assert all(f"{part.mean():,.0f} records/s for {len(part):.2g} s" in line.picture() for part in parts)
