"""Sources of views: a live log, the pipe of a child process, a recorded Run. No panel in here."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import perf_counter_ns
from typing import Any, Protocol

from walkit.log.wal import WriteAheadLog
from walkit.measure import LatencyHistogram, RawRate, Run, RunEvent, file_system
from walkit.measure.recorder import RecorderTail, recorder_of
from walkit.measure.run import plain
from walkit.metrics import LogStatistics
from walkit.plots.live_load import Band
from walkit.storage.address import FILES
from walkit.views.history import EVENTS_MAX, Detail, Point, detail_of, point_between
from walkit.workload.steady import SteadyLine, SteadyWriter

IDLE_NS = 2_000_000_000
"""A log to which nothing is appended for as long is idle."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The news of a source since its last read, and its state now."""

    status: str
    """One sentence: the source, and its activity."""
    points: list[Point] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    details: list[Detail] = field(default_factory=list)
    """Of the points, where single latencies and frames are seen."""
    bands: list[Band] = field(default_factory=list)
    """Configurations that were started."""
    raw: str = ""
    """The bare device's rate, its measurement, and when. Empty: not known."""
    statistics: LogStatistics | None = None
    """The newest metrics of the log; None if unknown."""
    latency: LatencyHistogram | None = None
    """Latencies of all known records; None: single records are not seen."""
    totals: Point | None = None
    """The numbers of a finished Run, instead of those of its last interval."""
    warnings: tuple[str, ...] = ()
    """Caveats about the numbers."""
    problem: str | None = None
    """A sentence with the error, and its remedy."""
    ended: bool = False
    """Nothing more will come."""


class Source(Protocol):
    """Something to watch. Asked by one thread, never waits."""

    def read(self) -> Reading:
        """Return the new reading."""

    def close(self) -> None:
        """Stop watching; closing twice does nothing."""


def warnings_of(path: str | None, durability: str) -> tuple[str, ...]:
    """Return the caveats about the numbers of a log at `path`, worst first."""
    place = None if path is None or "://" in path else file_system(path.removeprefix(FILES))
    found = []
    if place is not None and place.tmpfs:
        found.append(f"{place.type}: sync means nothing here")
    if durability == "none":
        found.append("durability none: an acknowledged record may be lost")
    return tuple(found)


class LogSource:
    """A log that is open in this process, through its statistics and events. It does not keep the log open.

    Statistics know no single records. The latencies of records are those that `walkit.workload.drive` records while it
    drives this log; without it there is the mean time of a write and sync of a frame.
    """

    def __init__(self, log: WriteAheadLog) -> None:
        self._log = weakref.ref(log)
        self._sink = log.events
        self._name, self._durability = log.location, log.options.durability
        self._warnings = warnings_of(log.location, self._durability)
        self._start_ns = self._last_ns = self._active_ns = perf_counter_ns()
        self._last = log.statistics()
        self._is_idle = False
        self._events: deque[tuple[int, str, dict[str, Any]]] = deque(maxlen=EVENTS_MAX)
        self._tail: RecorderTail | None = None
        self._latency: LatencyHistogram | None = None
        self._sink.add_listener(self._event)

    def _event(self, name: str, attributes: dict[str, Any]) -> None:
        self._events.append((perf_counter_ns(), name, attributes))

    def read(self) -> Reading:
        """Return one point for the time since the last call; none while nothing is appended."""
        log = self._log()
        events = []
        while self._events:
            at_ns, name, attributes = self._events.popleft()
            events.append(RunEvent((at_ns - self._start_ns) / 1e9, name, _plain(attributes)))
        if log is None or log.closed:
            self.close()
            return Reading(
                status=f"The log {self._name} is closed.",
                events=events,
                statistics=self._last,
                warnings=self._warnings,
                ended=True,
            )
        now_ns, before, after = perf_counter_ns(), self._last, log.statistics()
        moves = (after.appended_lsn, after.acked_lsn) != (before.appended_lsn, before.acked_lsn)
        self._active_ns = now_ns if moves else self._active_ns
        was_idle, self._is_idle = self._is_idle, now_ns - self._active_ns > IDLE_NS
        latency = self._driven(log)
        point = point_between(
            before,
            after,
            time_s=(now_ns - self._start_ns) / 1e9,
            interval_s=(now_ns - self._last_ns) / 1e9,
            latency=latency,
        )
        # The figures continue with a gap.
        gap = [Point((self._last_ns - self._start_ns) / 1e9)] if was_idle else []
        self._last, self._last_ns = after, now_ns
        idle = ""
        if self._is_idle:
            ran = ", showing the last run" if after.appended_lsn else ""
            idle = f" Idle since {_clock(self._active_ns)}{ran}."
        return Reading(
            status=f"The log {self._name} is open, durability {self._durability}.{idle}",
            points=[] if self._is_idle else [*gap, point],
            details=[]
            if self._is_idle
            else [*(detail_of(None, None) for _ in gap), detail_of(latency, None)],
            events=events,
            statistics=after,
            latency=self._latency,
            warnings=self._warnings,
            problem="A write or sync failed, and the log takes no more: close it and open it again."
            if after.poisoned
            else None,
        )

    def _driven(self, log: WriteAheadLog) -> LatencyHistogram | None:
        """Return the latencies that a driver has recorded since the last reading."""
        heard = None if self._tail is None else self._tail.read()
        recorder = recorder_of(log)
        if self._tail is not None and recorder is not self._tail.recorder:
            self._tail = None
        if self._tail is None and recorder is not None:
            self._tail, self._latency = RecorderTail(recorder), None
            first = self._tail.read()
            heard = first if heard is None else heard
        if heard is not None:
            known = [heard] if self._latency is None else [self._latency, heard]
            self._latency = LatencyHistogram.merged(known)
        return heard

    def close(self) -> None:
        """Stop listening to the log's events."""
        self._sink.remove_listener(self._event)


class ChildSource:
    """The child process of a steady load, through its pipe. `start_ns` is time 0 of the points; None: the first line.

    Closing it does not end the child, which belongs to its session.
    """

    def __init__(self, writer: SteadyWriter, start_ns: int | None = None) -> None:
        self.writer = writer
        self.start_ns = start_ns
        self._last: SteadyLine | None = None
        self._raw: RawRate | None = None
        self._raw_said = ""
        self._latency = LatencyHistogram()
        self._warnings = warnings_of(None if writer.load.device else writer.path, writer.load.durability)

    def read(self) -> Reading:
        """Return a point for each line that has come."""
        writing = self.writer.talking  # before the lines: no line follows the last one
        points: list[Point] = []
        details: list[Detail] = []
        bands: list[Band] = []
        events: list[RunEvent] = []
        heard: list[LatencyHistogram] = []
        for line in self.writer.read():
            start_ns = self.start_ns = line.at_ns if self.start_ns is None else self.start_ns
            if line.raw is not None:
                self._raw, self._raw_said = line.raw, str(line.raw)
                if line.raw.rounds:
                    self._raw_said += f", measured at {_clock(line.at_ns)}"
            if self._last is None:
                bands.append(Band((line.at_ns - start_ns) / 1e9, self.writer.load.short))
            points.append(self._point(line, start_ns))
            details.append(detail_of(line.latency, line.frames))
            events += [RunEvent((at - start_ns) / 1e9, name, _plain(more)) for at, name, more in line.events]
            if line.latency is not None:
                heard.append(line.latency)
            self._last = line
        if heard:
            self._latency = LatencyHistogram.merged([self._latency, *heard])
        return Reading(
            status=f"Writing: {self.writer.load}." if writing else f"Not writing: {self.writer.load}.",
            points=points,
            details=details,
            bands=bands,
            raw=self._raw_said,
            events=events,
            statistics=None if self._last is None else self._last.statistics,
            latency=self._latency,
            warnings=self._warnings,
            ended=not writing,
        )

    def _point(self, line: SteadyLine, start_ns: int) -> Point:
        last, time_s = self._last, (line.at_ns - start_ns) / 1e9
        if last is None or line.raw is not None:
            # A gap to an earlier child's points, or to those before the bare device's turn.
            return Point(time_s)
        point = point_between(
            last.statistics,
            line.statistics,
            time_s=time_s,
            interval_s=(line.at_ns - last.at_ns) / 1e9,
            latency=line.latency,
            queue=line.queue,
        )
        return point if self._raw is None else point._replace(raw_per_s=self._raw.writes_per_s)

    def close(self) -> None:
        """Do nothing: it holds nothing."""


class RunSource:
    """A Run that was recorded: its numbers, and nothing that moves."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def read(self) -> Reading:
        """Return the numbers of the whole Run."""
        run = self.run
        when = run.started_at.strftime("%Y-%m-%d %H:%M:%S %Z")
        return Reading(
            status=f"Recorded: {run.name}, {when}, durability {run.durability}, {run.arrival} loop.",
            latency=run.latency.get("total"),
            totals=_totals(run),
            warnings=run.warnings,
            ended=True,
        )

    def close(self) -> None:
        """Do nothing: it holds nothing."""


def _clock(at_ns: int) -> str:
    """Return a time of the machine's monotonic clock as the time of the day."""
    then = datetime.now().astimezone() - timedelta(microseconds=(perf_counter_ns() - at_ns) // 1000)
    return then.strftime("%H:%M:%S")


def _totals(run: Run) -> Point:
    frames = run.frames
    point = Point(run.duration_s, records_per_s=run.records_per_s)
    if frames is None:
        return point
    return point._replace(frame_records=frames.records_mean, frame_bytes=frames.bytes_mean)


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    return {str(name): plain(value) for name, value in attributes.items()}
