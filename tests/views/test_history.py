"""The memory of views: bounded, in order, and the arithmetic between two snapshots of a log's metrics."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest

from walkit.measure import LatencyHistogram, RunEvent
from walkit.metrics import LogStatistics
from walkit.plots import LiveSeries
from walkit.views.history import History, Point, detail_of, point_between


def test_a_history_is_bounded_and_counts_what_it_dropped() -> None:
    """Ten times as many points and events as fit: the newest stay, in order, events before the first point go too."""
    history = History(points_max=50, events_max=20)
    for i in range(500):
        history.add([Point(float(i), records_per_s=2.0 * i)], [RunEvent(float(i), "seal", {"i": i})])
    series = history.series()
    assert (len(history), len(series), history.points_seen) == (50, 50, 500)
    assert series.time_s.tolist() == list(range(450, 500))
    assert series.records_per_s.tolist() == [2.0 * i for i in range(450, 500)]
    assert [event.time_s for event in series.events] == list(range(480, 500))
    history.add([Point(float(i)) for i in range(500, 550)])
    assert history.series().events == ()


def test_the_whole_is_covered_in_bounded_points() -> None:
    """A thousand intervals in at most 50 points: rates by hand, percentiles of all records, the gap."""
    history, rng = History(points_max=50), np.random.default_rng(7)
    spent = []
    for i in range(1, 1001):
        took = rng.lognormal(12, 1, 100).astype(int)
        spent.append(took)
        latency = LatencyHistogram.from_samples(took)
        at_s = i * 0.25 + (60 if i > 500 else 0)
        if i == 501:
            history.add([Point(at_s - 0.25)])
        history.add(
            [
                Point(
                    at_s,
                    records_per_s=float(i),
                    frames_per_s=2.0,
                    frame_records=float(i % 2),
                    max_us=i,
                    queue_max=i,
                )
            ],
            details=[detail_of(latency, None)],
        )
    whole = history.whole_series("all")
    live = whole.live
    known = np.isfinite(live.records_per_s)
    assert 25 <= known.sum() <= 50 and len(live) == known.sum() + 1
    assert live.time_s[known][-1] == 310 and live.max_us[known][-1] == live.queue_max[known][-1] == 1000
    assert (np.diff(live.time_s) >= 0).all()
    assert whole.latency_counts.sum() == 100_000
    records = whole.latency_counts.sum(axis=1)[known]
    assert np.average(live.records_per_s[known], weights=records) == pytest.approx(500.5, rel=0.01)
    assert live.frame_records[known][2:-2] == pytest.approx(0.5)
    first = int(np.flatnonzero(known)[1])
    in_one = round((live.time_s[known][1] - live.time_s[known][0]) / 0.25)
    exact = np.percentile(np.concatenate(spent[in_one : 2 * in_one]), (50, 99)) / 1000
    assert (live.p50_us[first], live.p99_us[first]) == pytest.approx(tuple(exact), rel=0.06)
    assert len(history.load_series("newest", 50).live) == 50


def test_an_empty_history_is_empty_columns() -> None:
    """Nothing seen: no points, every column there, of length 0; an event alone stands."""
    history = History()
    assert history.last is None
    assert {name: len(column) for name, column in history.series().columns().items()} == dict.fromkeys(
        Point._fields, 0
    )
    history.add(events=[RunEvent(1.0, "open", {})])
    assert len(history.series().events) == 1


def test_points_and_columns_have_the_same_fields() -> None:
    """The fields of a point are the columns of the figure's series, in that order."""
    assert (*Point._fields, "events") == tuple(f.name for f in fields(LiveSeries))


def test_time_does_not_run_backwards() -> None:
    """A point that is older than the last one is refused; one at the same time is not."""
    history = History()
    history.add([Point(1.0), Point(1.0)])
    with pytest.raises(ValueError, match="after one at"):
        history.add([Point(0.5)])


def test_between_two_snapshots() -> None:
    """Rates, means and percentiles of known numbers: 300 records in 10 frames and 2 marks within half a second."""
    before = LogStatistics(
        records_acked=100, frames_written=5, marker_frames=1, frame_bytes=1_000, write_ns=10**6
    )
    after = LogStatistics(
        records_acked=400,
        frames_written=17,
        marker_frames=3,
        frame_bytes=13_000,
        write_ns=13 * 10**6,
        queue_records=7,
    )
    latency = LatencyHistogram.from_samples([100_000] * 98 + [900_000] * 2)
    point = point_between(before, after, time_s=9.0, interval_s=0.5, latency=latency)
    assert (point.time_s, point.records_per_s, point.queue_records) == (9.0, 600.0, 7.0)
    assert (point.frame_records, point.frame_bytes, point.write_us) == (30.0, 1_000.0, 1_000.0)
    assert point.p50_us == pytest.approx(100, rel=1e-3)
    assert point.p99_us == point.max_us == pytest.approx(900, rel=1e-3)
    seen = point_between(before, after, time_s=9.0, interval_s=0.5, queue=(2.5, 9))
    assert (seen.queue_records, seen.queue_max) == (2.5, 9) and math.isnan(point.queue_max)


def test_an_idle_interval_has_a_rate_and_no_means() -> None:
    """Nothing written, and a mark alone: 0 records/s, and nan for undefined means."""
    still = LogStatistics(records_acked=100, frames_written=5)
    marked = LogStatistics(
        records_acked=100, frames_written=6, marker_frames=1, frame_bytes=64, write_ns=1_000
    )
    for after in (still, marked):
        point = point_between(still, after, time_s=1.0, interval_s=0.5)
        assert point.records_per_s == 0
        assert all(map(math.isnan, (point.p50_us, point.p99_us, point.frame_records, point.frame_bytes)))
