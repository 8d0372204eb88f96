"""The memory of a view: a bounded past, and all of the time in few points. No panel, no log, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple

import numpy as np

from walkit.measure import FrameSample, LatencyHistogram, RunEvent
from walkit.measure.downsampled import FINE_ROWS, Downsampled, Int64Array, fine_counts, percentile_ns
from walkit.metrics import LogStatistics
from walkit.plots import LiveSeries
from walkit.plots.live_load import LATENCY_EDGES_S, Band, LoadSeries

NAN = float("nan")


class Point(NamedTuple):
    """The values of one interval. The fields and units are those of `walkit.plots.LiveSeries`; nan is unseen."""

    time_s: float
    records_per_s: float = NAN
    p50_us: float = NAN
    p99_us: float = NAN
    max_us: float = NAN
    write_us: float = NAN
    queue_records: float = NAN
    frame_records: float = NAN
    frame_bytes: float = NAN
    in_flight: float = NAN
    p999_us: float = NAN
    frames_per_s: float = NAN
    raw_per_s: float = NAN
    queue_max: float = NAN


PERCENTILES = {"p50_us": 50.0, "p99_us": 99.0, "p999_us": 99.9}
OF_FRAMES = ("write_us", "frame_records", "frame_bytes")
"""Means over frames; the others are means over time, ..."""
MOST = ("max_us", "queue_max")
"""... and these the most of an interval."""


class Stretch(NamedTuple):
    """Intervals next to each other, as one."""

    point: Point
    width_s: float
    """How much time its intervals are, without gaps."""
    counts: Int64Array
    """Records by latency, between the FINE_EDGES_NS."""
    frames: FrameSample | None
    """The frames of the interval with the slowest one."""
    gap_before: bool
    """Whether nothing was seen for a while before it, or in it."""


class Overview:
    """Takes every point, and remembers at most so many stretches. Used by one thread."""

    def __init__(self, stretches_max: int) -> None:
        self._stretches: Downsampled[Stretch] = Downsampled(_joined, stretches_max)
        self._last_s = NAN
        self._gap = False

    def add(self, point: Point, counts: Int64Array, frames: FrameSample | None) -> None:
        """Take the newest point, with the latencies and frames of its interval. One of nans alone is a gap."""
        if all(value != value for value in point[1:]):
            self._gap = True
        else:
            width_s = point.time_s - self._last_s if self._last_s == self._last_s else 0.0
            self._stretches.add(Stretch(point, width_s, counts, frames, self._gap))
            self._gap = False
        self._last_s = point.time_s

    def rows(self) -> list[Stretch]:
        """Return the stretches, oldest first; one that follows a gap has a row of nans before it, at its start time."""
        found: list[Stretch] = []
        for each in self._stretches:
            if each.gap_before:
                at_s = each.point.time_s - each.width_s
                earliest_s = found[-1].point.time_s if found else at_s
                nothing = np.zeros(FINE_ROWS, np.int64)
                found.append(Stretch(Point(max(at_s, earliest_s)), 0.0, nothing, None, False))
            found.append(each)
        return found


def _joined(earlier: Stretch, later: Stretch) -> Stretch:
    one, other = earlier.point, later.point
    # Where no single latencies are seen all have one array of zeros.
    counts = earlier.counts + later.counts if later.counts.any() else earlier.counts
    widths = (earlier.width_s or 1e-9, later.width_s or 1e-9)
    frames = tuple(
        width * (point.frames_per_s if point.frames_per_s == point.frames_per_s else 0.0) or 1e-9
        for width, point in zip(widths, (one, other), strict=True)
    )
    mean = {
        name: _mean((getattr(one, name), getattr(other, name)), frames if name in OF_FRAMES else widths)
        for name in Point._fields
    }
    mean |= {name: float(np.fmax(getattr(one, name), getattr(other, name))) for name in MOST}
    mean["time_s"] = other.time_s
    if counts.any():
        mean |= {name: percentile_ns(counts, percent) / 1000 for name, percent in PERCENTILES.items()}
    return Stretch(
        Point(**mean),
        earlier.width_s + later.width_s,
        counts,
        slowest_of((earlier.frames, later.frames)),
        earlier.gap_before or later.gap_before,
    )


def _mean(values: tuple[float, float], weights: tuple[float, ...]) -> float:
    """Return the weighted mean of the known values; nan without any."""
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value == value]
    whole = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / whole if known else NAN


def slowest_of(samples: Iterable[FrameSample | None]) -> FrameSample | None:
    """Return the sample with the slowest frame, or None."""
    known = [sample for sample in samples if sample is not None]
    return max(known, key=slowest_ns) if known else None


def slowest_ns(sample: FrameSample) -> int:
    """Return how long the slowest frame took, from its sealing to its acknowledgement."""
    return int(sample.acked_ns[sample.slowest] - sample.sealed_ns[sample.slowest])


POINTS_MAX = 480
"""Two minutes of the four points a second that a child writer tells."""
EVENTS_MAX = 200
BANDS_MAX = 24
NOTHING: Int64Array = np.zeros(FINE_ROWS, np.int64)
"""Latencies of an interval without any."""
ROWS = len(LATENCY_EDGES_S) - 1


class Detail(NamedTuple):
    """The latencies and frames seen in one interval."""

    counts: Int64Array
    """Records by latency, between one of `walkit.measure.downsampled.FINE_EDGES_NS` and the next."""
    frames: FrameSample | None


def detail_of(latency: LatencyHistogram | None, frames: FrameSample | None) -> Detail:
    """Return the detail of an interval with these latencies and frames."""
    return Detail(NOTHING if latency is None else fine_counts(latency), frames)


class History:
    """The newest points and events. Memory is bounded, however long something is watched. Used by one thread.

    Each point has the latencies and frames seen in its interval, if the source has them. `whole_series` covers all of
    the time in a bounded number of points.
    """

    def __init__(self, points_max: int = POINTS_MAX, events_max: int = EVENTS_MAX) -> None:
        self._points: deque[Point] = deque(maxlen=points_max)
        self._details: deque[Detail] = deque(maxlen=points_max)
        self._events: deque[RunEvent] = deque(maxlen=events_max)
        self._bands: deque[Band] = deque(maxlen=BANDS_MAX)
        self._overview = Overview(points_max)
        self.points_seen = 0
        """How many points were added, those that are forgotten included."""

    def add(
        self,
        points: Iterable[Point] = (),
        events: Iterable[RunEvent] = (),
        *,
        details: Iterable[Detail] = (),
        bands: Iterable[Band] = (),
    ) -> None:
        """Add points and events; `details` belong to the points, in their order; the last ones may be left out.

        A point that is older than the last one is a mistake of its source: ValueError.
        """
        for point, detail in zip_longest(points, details, fillvalue=None):
            if point is None:
                raise ValueError("more details than points")
            if self._points and point.time_s < self._points[-1].time_s:
                raise ValueError(f"a point at {point.time_s} s after one at {self._points[-1].time_s} s")
            self._points.append(point)
            self._details.append(detail or Detail(NOTHING, None))
            self._overview.add(point, *self._details[-1])
            self.points_seen += 1
        self._events.extend(events)
        self._bands.extend(bands)
        self._check()

    def _check(self) -> None:
        """Assert that all parts belong to the same points; between two calls of `add`."""
        assert len(self._points) == len(self._details) <= self.points_seen
        newest = list(islice(reversed(self._points), 2))
        assert len(newest) < 2 or newest[1].time_s <= newest[0].time_s, "points are not in the order of time"
        assert bool(self._points) == bool(self.points_seen), "points were seen, and none is remembered"

    def __len__(self) -> int:
        """Return the number of points that are remembered."""
        return len(self._points)

    @property
    def last(self) -> Point | None:
        """The newest point."""
        return self._points[-1] if self._points else None

    def series(self, newest: int | None = None) -> LiveSeries:
        """Return everything that is remembered, as columns; events older than the first point are left out.

        `newest`: only so many points, the newest ones.
        """
        points = list(self._points)
        points = points if newest is None else points[len(points) - min(newest, len(points)) :]
        return self._columns(points, all_of_it=self.points_seen <= len(points))

    def _columns(self, points: Sequence[Point], *, all_of_it: bool) -> LiveSeries:
        table = np.array(points, dtype=np.float64).reshape(-1, len(Point._fields))
        first_s = -np.inf if all_of_it or not len(table) else table[0, 0]
        return LiveSeries(
            **dict(zip(Point._fields, table.T.copy(), strict=True)),
            events=tuple(event for event in self._events if event.time_s >= first_s),
        )

    def since(self, begin_s: float) -> int:
        """Return how many of the newest points are of `begin_s` or later."""
        found = 0
        for point in reversed(self._points):
            if point.time_s < begin_s:
                break
            found += 1
        return found

    def load_series(self, label: str, newest: int, *, slowest: bool = False) -> LoadSeries:
        """Return the newest points with the latencies and frames seen, under a name.

        The frames are those of the newest interval that has some; with `slowest`, around the slowest frame of all.
        """
        count = min(newest, len(self._points))
        first = len(self._points) - count
        details = list(islice(self._details, first, None))
        frames = [each.frames for each in details if each.frames is not None]
        chosen = slowest_of(frames) if slowest else frames[-1] if frames else None
        return self._load_series(label, self.series(count), [each.counts for each in details], chosen)

    def whole_series(self, label: str, *, slowest: bool = False) -> LoadSeries:
        """Return the same of all the time there was: the longer it is, the more intervals are one point.

        Percentiles of such a point are those of all its records, to 4 %; rates are means, and a gap ends a curve.
        """
        rows = self._overview.rows()
        newest = next((each.frames for each in reversed(self._details) if each.frames is not None), None)
        return self._load_series(
            label,
            self._columns([row.point for row in rows], all_of_it=True),
            [row.counts for row in rows],
            slowest_of(row.frames for row in rows) if slowest else newest,
        )

    def _load_series(
        self, label: str, live: LiveSeries, counts: Sequence[Int64Array], frames: FrameSample | None
    ) -> LoadSeries:
        fine = np.array(counts, np.int64).reshape(-1, ROWS, FINE_ROWS // ROWS)
        return LoadSeries(
            label=label,
            live=live,
            latency_counts=fine.sum(axis=2),
            bands=tuple(self._bands),
            frames=frames,
        )


def point_between(
    before: LogStatistics,
    after: LogStatistics,
    *,
    time_s: float,
    interval_s: float,
    latency: LatencyHistogram | None = None,
    queue: tuple[float, float] | None = None,
) -> Point:
    """Return what happened between two snapshots of one opening of a log, `interval_s` apart; `time_s` is the later.

    `latency` covers the records acknowledged between them, and `queue` the mean and the most that waited, if known.
    Marks (frames without records) count neither as frames nor as bytes of frames that carry records if nothing else was
    written.
    """
    records = after.records_acked - before.records_acked
    written = after.frames_written - before.frames_written
    frames = written - (after.marker_frames - before.marker_frames)
    moved_bytes = after.frame_bytes - before.frame_bytes
    known = latency.percentiles((50.0, 99.0, 99.9, 100.0)) if latency is not None and latency.count else {}
    return Point(
        time_s=time_s,
        records_per_s=records / interval_s if interval_s > 0 else NAN,
        p50_us=known.get(50.0, NAN) / 1_000,
        p99_us=known.get(99.0, NAN) / 1_000,
        max_us=known.get(100.0, NAN) / 1_000,
        write_us=(after.write_ns - before.write_ns) / written / 1_000 if written else NAN,
        queue_records=float(after.queue_records) if queue is None else queue[0],
        queue_max=NAN if queue is None else queue[1],
        frame_records=records / frames if frames else NAN,
        frame_bytes=moved_bytes / written if frames else NAN,
        # Times of writes that overlap add up, so over the interval they are how many were under way.
        in_flight=(after.write_ns - before.write_ns) / 1e9 / interval_s if interval_s > 0 else NAN,
        p999_us=known.get(99.9, NAN) / 1_000,
        frames_per_s=frames / interval_s if interval_s > 0 else NAN,
    )
