"""All that a history has seen, in a bounded number of points: the more time there is, the more each of them covers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from walkit.measure import FrameSample
from walkit.measure.condensed import FINE_ROWS, Condensed, Int64Array, percentile_ns

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


PERCENTILES = {"p50_us": 50.0, "p99_us": 99.0, "p999_us": 99.9}
OF_FRAMES = ("write_us", "frame_records", "frame_bytes")
"""Means over frames; the others are means over time."""


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
        self._stretches: Condensed[Stretch] = Condensed(_joined, stretches_max)
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
    mean |= {"time_s": other.time_s, "max_us": float(np.fmax(one.max_us, other.max_us))}
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
    return max(known, key=_slowest_ns) if known else None


def _slowest_ns(sample: FrameSample) -> int:
    return int(sample.acked_ns[sample.slowest] - sample.sealed_ns[sample.slowest])
