"""What a view remembers: points and events of a bounded past, and nothing that grows. No panel, no log, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from walkit.measure import LatencyHistogram, Run, RunEvent
from walkit.metrics import LogStatistics
from walkit.plots import LiveSeries

POINTS_MAX = 480
"""Two minutes of the four points a second that a child writer tells."""
EVENTS_MAX = 200
NAN = float("nan")


class Point(NamedTuple):
    """What was seen in one interval. The fields and units are those of `walkit.plots.LiveSeries`; nan is unseen."""

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


class History:
    """The newest points and events. Memory is bounded, however long something is watched. Used by one thread."""

    def __init__(self, points_max: int = POINTS_MAX, events_max: int = EVENTS_MAX) -> None:
        self._points: deque[Point] = deque(maxlen=points_max)
        self._events: deque[RunEvent] = deque(maxlen=events_max)
        self.points_seen = 0
        """How many points were added, those that are forgotten included."""

    def add(self, points: Iterable[Point] = (), events: Iterable[RunEvent] = ()) -> None:
        """Take what is new. A point that is older than the last one is a mistake of its source: ValueError."""
        for point in points:
            if self._points and point.time_s < self._points[-1].time_s:
                raise ValueError(f"a point at {point.time_s} s after one at {self._points[-1].time_s} s")
            self._points.append(point)
            self.points_seen += 1
        self._events.extend(events)

    def __len__(self) -> int:
        """Return the number of points that are remembered."""
        return len(self._points)

    @property
    def last(self) -> Point | None:
        """The newest point."""
        return self._points[-1] if self._points else None

    def series(self) -> LiveSeries:
        """Return everything that is remembered, as columns; events older than the first point are left out."""
        table = np.array(self._points, dtype=np.float64).reshape(-1, len(Point._fields))
        first_s = table[0, 0] if len(table) and self.points_seen > len(self._points) else -np.inf
        return LiveSeries(
            **dict(zip(Point._fields, table.T.copy(), strict=True)),
            events=tuple(event for event in self._events if event.time_s >= first_s),
        )


def point_between(
    before: LogStatistics,
    after: LogStatistics,
    *,
    time_s: float,
    interval_s: float,
    latency: LatencyHistogram | None = None,
) -> Point:
    """Return what happened between two snapshots of one opening of a log, `interval_s` apart; `time_s` is the later.

    `latency` is of the records acknowledged between them, where it is known. Frames that are marks (without records)
    count neither as frames nor as bytes of frames that carry records where nothing else was written.
    """
    records = after.records_acked - before.records_acked
    written = after.frames_written - before.frames_written
    frames = written - (after.marks_written - before.marks_written)
    moved_bytes = after.frame_bytes - before.frame_bytes
    known = latency.percentiles((50.0, 99.0, 100.0)) if latency is not None and latency.count else {}
    return Point(
        time_s=time_s,
        records_per_s=records / interval_s if interval_s > 0 else NAN,
        p50_us=known.get(50.0, NAN) / 1_000,
        p99_us=known.get(99.0, NAN) / 1_000,
        max_us=known.get(100.0, NAN) / 1_000,
        write_us=(after.write_ns - before.write_ns) / written / 1_000 if written else NAN,
        queue_records=float(after.queue_records),
        frame_records=records / frames if frames else NAN,
        frame_bytes=moved_bytes / written if frames else NAN,
        # Times of writes that overlap add up, so over the interval they are how many were under way.
        in_flight=(after.write_ns - before.write_ns) / 1e9 / interval_s if interval_s > 0 else NAN,
    )


def points_of_run(run: Run) -> list[Point]:
    """Return the timeline of a recorded Run as points, one per bucket, at its end; what it does not hold is nan."""
    line = run.timeline
    ends = line.start_s + line.width_s
    columns = (ends, line.records_per_s, line.p50_us, line.p99_us, line.max_us)
    return [Point(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]
