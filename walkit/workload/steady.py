"""A steady load without an end, driven into a log by a child process: what the dashboard watches. The parent's side.

The child appends until it is told to stop, and writes a JSON line four times a second: the metrics of its log, the
latencies since the line before as a histogram, and the events. It keeps its log small by trimming the older half.
"""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import asdict, dataclass
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Self, get_args

from walkit.config import MIB, Durability, LogOptions
from walkit.errors import OptionsError
from walkit.measure import LatencyHistogram
from walkit.metrics import LogStatistics
from walkit.workload.policies import policy_named
from walkit.workload.process import TalkingChild

LINES_WAITING_MAX = 1200
"""Lines that are kept for a parent that does not read: five minutes. Older ones are dropped."""

Style = Literal["threads", "tasks"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SteadyLoad:
    """What is appended, over and over: a closed loop of writers, each with one record under way."""

    writers: int = 8
    style: Style = "threads"
    """Each writer is a thread that calls `append`, or an asyncio task that awaits `append_async`."""
    record_bytes: int = 100
    """Bytes of each value; there is no key."""
    durability: Durability = "sync"
    in_flight: int = 1
    """Frames written at the same time."""
    ack_order: Literal["append", "completion"] = "append"
    """Fixed for a log's life: another order needs another log."""
    policy: str = "take-all"
    """When a frame is sealed, by a name that `policy_named` knows."""

    def __post_init__(self) -> None:
        for option, most in (("writers", 1024), ("record_bytes", MIB), ("in_flight", 1024)):
            value = getattr(self, option)
            if type(value) is not int or not 1 <= value <= most:
                raise OptionsError(
                    f"{option}={value!r}: a whole number from 1 to {most:,}", option=option, wanted=value
                )
        for option, allowed in (
            ("style", get_args(Style)),
            ("durability", get_args(Durability)),
            ("ack_order", ("append", "completion")),
        ):
            value = getattr(self, option)
            if value not in allowed:
                raise OptionsError(f"{option}={value!r}: it is one of {allowed}", option=option, wanted=value)
        policy_named(self.policy)

    @property
    def options(self) -> LogOptions:
        """How the log is opened: segments small enough that rotation and trim are seen."""
        return LogOptions(
            durability=self.durability,
            segment_bytes=16 * MIB,
            in_flight=self.in_flight,
            ack_order=self.ack_order,
            policy=policy_named(self.policy),
        )

    def __str__(self) -> str:
        """Say it in words, for the status line."""
        who = f"{self.writers} {'writer thread' if self.style == 'threads' else 'asyncio task'}"
        many = "" if self.writers == 1 else "s"
        said = f"{who}{many}, {self.record_bytes:,} bytes a record, durability {self.durability}"
        if self.in_flight > 1 or self.ack_order != "append":
            said += f", {self.in_flight} frames in flight, acknowledged in {self.ack_order} order"
        return said if self.policy == "take-all" else f"{said}, frames sealed by {self.policy}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SteadyLine:
    """What the child said in one line."""

    at_ns: int
    """When, on the machine's monotonic clock."""
    statistics: LogStatistics
    """Of the log, since the child opened it."""
    latency: LatencyHistogram | None
    """Of the records acknowledged since the line before; None where there were none."""
    events: tuple[tuple[int, str, dict[str, Any]], ...]
    """(time, name, attributes) of what the log told since the line before."""


class SteadyWriter:
    """A child process that drives a SteadyLoad into the log at `path`. A context manager: no child is left behind.

    Used by one thread, but for `read`, `statistics`, `writing` and `kill`, which any thread may call. If this process
    dies, the child ends too.
    """

    def __init__(self, path: str | os.PathLike[str], load: SteadyLoad | None = None) -> None:
        self.path = os.path.abspath(path)
        self.load = load or SteadyLoad()
        self._lines: deque[SteadyLine] = deque(maxlen=LINES_WAITING_MAX)
        self._statistics: LogStatistics | None = None
        text = json.dumps(asdict(self.load))
        self._child = TalkingChild(["walkit.workload.steady_process", self.path, text], self._take)

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._child.pid

    @property
    def statistics(self) -> LogStatistics | None:
        """The metrics of the newest line; None before the first. What they call acknowledged is acknowledged."""
        return self._statistics

    @property
    def writing(self) -> bool:
        """Whether lines may still come."""
        return self._child.talking

    @property
    def killed_ns(self) -> int | None:
        """When `kill` was called, on the machine's monotonic clock."""
        return self._child.killed_ns

    def start(self) -> None:
        """Start the child. ChildWriterError: it cannot be."""
        self._child.start()

    def _take(self, said: dict[str, Any]) -> None:
        line = SteadyLine(
            at_ns=said["at_ns"],
            statistics=LogStatistics(**said["statistics"]),
            latency=None if said["latency"] is None else LatencyHistogram.decode(said["latency"]),
            events=tuple((at_ns, name, attributes) for at_ns, name, attributes in said["events"]),
        )
        self._statistics = line.statistics
        self._lines.append(line)

    def read(self) -> list[SteadyLine]:
        """Return the lines that have come since the last call, oldest first; never waits."""
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return lines

    def wait_for(self, records: int, timeout: float) -> bool:
        """Wait until the child's log has so many records acknowledged; False where it ended or time ran out."""
        deadline = monotonic() + timeout
        while True:
            ended = not self._child.talking
            found = self._statistics
            if found is not None and found.records_acked >= records:
                return True
            if ended or monotonic() >= deadline:
                return False
            with self._child.changed:
                self._child.changed.wait(0.1)

    def stop(self) -> None:
        """Let the writers finish the record under way and the child close its log, and wait for that.

        Raises ChildWriterError where the child failed, also before it was told to stop.
        """
        self._child.send(b"stop\n")
        self._child.wait()

    def kill(self) -> None:
        """End the child with SIGKILL: it can do nothing about it, and nothing more."""
        self._child.kill()

    def wait(self) -> bool:
        """Wait for the child's end; True where `kill` ended it at work. Raises ChildWriterError where it failed."""
        return self._child.wait()

    def close(self) -> None:
        """Kill the child if it is still there, and free what it used. Closing twice does nothing."""
        self._child.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
