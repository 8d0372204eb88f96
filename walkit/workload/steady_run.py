"""The Run of a steady load, made of the lines of its child, from its start to its end."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from datetime import UTC, datetime
from math import nan
from typing import NamedTuple

import numpy as np

from walkit.measure import (
    FrameSummary,
    LatencyHistogram,
    MachineFacts,
    RawRate,
    Run,
    RunEvent,
    Timeline,
)
from walkit.measure.downsampled import Downsampled, Int64Array, fine_counts, percentile_ns
from walkit.measure.machine import walkit_version
from walkit.workload.steady import ContinuousLoad, SteadyLine

INTERVALS_MAX = 400
"""Most intervals of a timeline; of a longer load each covers more time."""
EVENTS_MAX = 200
"""Most events of a Run, the newest ones."""


class Interval(NamedTuple):
    """The records acknowledged between two times, in seconds from the first line."""

    start_s: float
    end_s: float
    records: int
    p50_us: float
    p99_us: float
    max_us: float
    counts: Int64Array


class SteadyRecord:
    """Takes the lines of one child, and makes a Run of them. Its memory is bounded. Used by one thread at a time."""

    def __init__(self, path: str, load: ContinuousLoad) -> None:
        self._path, self._load = path, load
        self._started_at = datetime.now(UTC)
        self._first: SteadyLine | None = None
        self._last: SteadyLine | None = None
        self._raw: RawRate | None = None
        self._turns_ns = 0
        self._latency = LatencyHistogram()
        self._intervals: Downsampled[Interval] = Downsampled(_joined, INTERVALS_MAX)
        self._events: deque[RunEvent] = deque(maxlen=EVENTS_MAX)

    def take(self, line: SteadyLine) -> None:
        """Take the next line."""
        self._raw = line.raw or self._raw
        if self._first is None or self._last is None:
            self._first = self._last = line
            self._started_at = datetime.now(UTC)
            return
        if line.raw is not None:
            self._turns_ns += line.at_ns - self._last.at_ns  # not time of the Run
        begin_ns, latency = self._first.at_ns + self._turns_ns, line.latency
        if line.raw is None:
            self._intervals.add(_interval(self._last, line, begin_ns))
        if latency is not None:
            self._latency = LatencyHistogram.merged([self._latency, latency])
        self._events.extend(RunEvent((at - begin_ns) / 1e9, name, more) for at, name, more in line.events)
        self._last = line

    def run(self, *, interrupted: bool = False, failure: str | None = None) -> Run | None:
        """Return the Run of the lines so far; None if no record was acknowledged between the first and the last."""
        first, last, load = self._first, self._last, self._load
        if first is None or last is None:
            return None
        before, after = first.statistics, last.statistics
        frames = FrameSummary.between(before, after)
        if not frames.records:
            return None
        start, end, counts, p50, p99, most = np.array([each[:6] for each in self._intervals]).T
        raw = self._raw
        return Run(
            name=load.short,
            started_at=self._started_at,
            duration_s=(last.at_ns - first.at_ns - self._turns_ns) / 1e9,
            records=frames.records,
            durability=load.durability,
            machine=MachineFacts.here(None if load.device else self._path),
            latency={"total": self._latency},
            timeline=Timeline(
                start_s=start, width_s=end - start, records=counts, p50_us=p50, p99_us=p99, max_us=most
            ),
            arrival="open" if load.arrivals_per_s else "closed",
            operations={"append": frames.records},
            seed=load.seed,
            options={"load": asdict(load)},
            bytes_user=after.user_bytes - before.user_bytes,
            bytes_written=frames.frame_bytes,
            syncs=after.syncs - before.syncs,
            frames=frames,
            events=tuple(self._events),
            interrupted=interrupted,
            failure=failure,
            labels={
                "modelled": bool(load.device),
                **({} if raw is None else {"raw_writes_per_s": raw.writes_per_s}),
            },
            walkit_version=walkit_version(),
        )


def _interval(last: SteadyLine, line: SteadyLine, begin_ns: int) -> Interval:
    latency = line.latency
    p50, p99, most = (
        (nan, nan, nan) if latency is None else (latency.percentile(p) / 1000 for p in (50.0, 99.0, 100.0))
    )
    return Interval(
        (last.at_ns - begin_ns) / 1e9,
        (line.at_ns - begin_ns) / 1e9,
        line.statistics.records_acked - last.statistics.records_acked,
        p50,
        p99,
        most,
        fine_counts(latency),
    )


def _joined(earlier: Interval, later: Interval) -> Interval:
    counts = earlier.counts + later.counts
    return Interval(
        earlier.start_s,
        later.end_s,
        earlier.records + later.records,
        percentile_ns(counts, 50.0) / 1000,
        percentile_ns(counts, 99.0) / 1000,
        float(np.fmax(earlier.max_us, later.max_us)),
        counts,
    )
