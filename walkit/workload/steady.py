"""A steady load without an end, driven into a log by a child process, for the dashboard. The parent's side.

The child appends until it is asked to stop, and writes a JSON line four times a second: the metrics of its log, the
latencies since the line before as a histogram, the frames around the slowest one, and the events. It keeps its log
small by trimming the older half.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from walkit._internal.arguments import check_bool, check_choice, check_whole, refuse
from walkit.config import MIB, Durability, LogOptions
from walkit.format.layout import FRAME_HEADER_BYTES
from walkit.measure import FrameSample, LatencyHistogram, RawRate
from walkit.metrics import LogStatistics
from walkit.models.device import DISKS
from walkit.storage.file import DIRECT_BYTES
from walkit.workload.policies import policy_named
from walkit.workload.process import TalkingChild

LINES_WAITING_MAX = 1200
"""Lines that are kept for a parent that does not read: five minutes. Older ones are dropped."""
WRITERS_MAX = 1024
ARRIVALS_PER_S_MAX = 1_000_000
SEED_MAX = 2**31
COLUMN_BYTES = 6
"""Bytes of a record in a frame beside its value, about."""
BLOCK_BYTES = 64
"""Alignment of frames in the page cache."""

Style = Literal["threads", "tasks"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ContinuousLoad:
    """The load: writers that append again and again, each with one record under way."""

    writers: int = 8
    style: Style = "threads"
    """Each writer is a thread that calls `append`, or an asyncio task that awaits `append_async`."""
    record_bytes: int = 100
    """Bytes of each value; records have no key."""
    durability: Durability = "sync"
    in_flight: int = 1
    """Frames written at the same time."""
    ack_order: Literal["append", "completion"] = "append"
    """Fixed for a log's life: another order needs another log."""
    policy: str = "take-all"
    """When a frame is sealed, by a name that `policy_named` knows."""
    arrivals_per_s: int = 0
    """Records that arrive in a second, at random, whether or not a writer is free; their latency counts from then. 0: a
    closed loop, in which a writer begins its next record when the last one is acknowledged."""
    direct_io: bool = False
    """Write past the page cache."""
    device: str = ""
    """A disk of `walkit.models.PRESETS`: a volume as slow as that, in the child's memory. Empty: this disk."""
    raw: bool = False
    """Measure the bare device before the first record and, in a closed loop, again in turn with the writers."""
    seed: int = 7
    """Fixes values, arrivals and the modelled device's latencies."""

    def __post_init__(self) -> None:
        check_whole(self.writers, "writers", 1, WRITERS_MAX)
        check_whole(self.record_bytes, "record_bytes", 1, MIB)
        check_whole(self.in_flight, "in_flight", 1, 1024)
        check_whole(self.arrivals_per_s, "arrivals_per_s", 0, ARRIVALS_PER_S_MAX)
        check_whole(self.seed, "seed", 0, SEED_MAX)
        check_choice(self.style, get_args(Style), "style")
        check_choice(self.durability, get_args(Durability), "durability")
        check_choice(self.ack_order, ("append", "completion"), "ack_order")
        check_choice(self.device, ("", *DISKS), "device")
        check_bool(self.direct_io, "direct_io")
        check_bool(self.raw, "raw")
        policy_named(self.policy)
        if self.device and self.direct_io:
            refuse("direct_io", True, "not with a modelled device, which has no page cache to write past")

    @property
    def place(self) -> str:
        """Where the log is, in words: this disk, or the device that is modelled."""
        return f"{self.device}, modelled" if self.device else "this disk"

    @property
    def expected_frame_bytes(self) -> int:
        """Bytes of a frame of this load, about: the bare device is measured with this size."""
        kind, _, number = self.policy.partition(":")
        records = 1 if self.arrivals_per_s or kind == "one-record" else max(self.writers // 2, 1)
        if kind == "capped":
            records = min(records, int(number))
        size = FRAME_HEADER_BYTES + records * (self.record_bytes + COLUMN_BYTES)
        alignment = DIRECT_BYTES if self.direct_io else BLOCK_BYTES
        return int(min(-(-size // alignment) * alignment, MIB))

    @property
    def options(self) -> LogOptions:
        """How the log is opened: segments small enough that rotation and trim are seen."""
        return LogOptions(
            durability=self.durability,
            segment_bytes=16 * MIB,
            in_flight=self.in_flight,
            ack_order=self.ack_order,
            policy=policy_named(self.policy),
            direct_io=self.direct_io,
        )

    @property
    def short(self) -> str:
        """The load in a few words, for a band of a figure."""
        words = [f"{self.writers} {self.style}", f"{self.record_bytes:,} B"]
        if self.arrivals_per_s:
            words.append(f"{self.arrivals_per_s:,}/s arrive")
        if self.durability != "sync":
            words.append(self.durability)
        if self.in_flight > 1 or self.ack_order != "append":
            words.append(f"{self.in_flight} in flight, {self.ack_order} order")
        if self.policy != "take-all":
            words.append(self.policy)
        if self.direct_io:
            words.append("direct I/O")
        return ", ".join(words)

    def __str__(self) -> str:
        """Return `short` with the device, for the status line."""
        return f"{self.short}, on a modelled {self.device}" if self.device else self.short


@dataclass(frozen=True, kw_only=True, slots=True)
class SteadyLine:
    """One line of the child."""

    at_ns: int
    """When, on the machine's monotonic clock."""
    statistics: LogStatistics
    """Of the log, since the child opened it."""
    latency: LatencyHistogram | None
    """Latencies of the records acknowledged since the line before, or None."""
    events: tuple[tuple[int, str, dict[str, Any]], ...]
    """(time, name, attributes) of the log's events since the line before."""
    frames: FrameSample | None = None
    """The frames around the slowest one since the line before, or None."""
    raw: RawRate | None = None
    """The rate of the bare device, in the line after its measurement, during which nothing was appended."""
    queue: tuple[float, float] | None = None
    """How many records waited for their frame since the line before: their mean and the most; None if unknown."""

    @classmethod
    def of_plain(cls, said: dict[str, Any]) -> Self:
        """Return the line that the child has written as JSON."""
        return cls(
            at_ns=said["at_ns"],
            statistics=LogStatistics(**said["statistics"]),
            latency=None if said["latency"] is None else LatencyHistogram.decode(said["latency"]),
            events=tuple((at_ns, name, attributes) for at_ns, name, attributes in said["events"]),
            frames=None if said.get("frames") is None else FrameSample.of_plain(said["frames"]),
            raw=None if said.get("raw") is None else RawRate(**said["raw"]),
            queue=said.get("queue"),
        )


class SteadyWriter(TalkingChild):
    """A child process that drives a ContinuousLoad into the log at `path`.

    Used by one thread, except `read`, `statistics`, `talking` and `kill`, which any thread may call.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        load: ContinuousLoad | None = None,
        on_line: Callable[[SteadyLine], object] | None = None,
    ) -> None:
        """`on_line` is called with each line as it comes, on the thread that reads them; it ends before `wait` does."""
        self._on_line = on_line
        self.path = os.path.abspath(path)
        self.load = load or ContinuousLoad()
        self._lines: deque[SteadyLine] = deque(maxlen=LINES_WAITING_MAX)
        self._statistics: LogStatistics | None = None
        given = {"path": self.path, "load": asdict(self.load)}
        super().__init__("walkit.workload.steady_process:drive", given, self._take)

    @property
    def statistics(self) -> LogStatistics | None:
        """The metrics of the newest line; None before the first. Its acknowledged records are acknowledged."""
        return self._statistics

    def _take(self, said: dict[str, Any]) -> None:
        line = SteadyLine.of_plain(said)
        self._statistics = line.statistics
        self._lines.append(line)
        if self._on_line is not None:
            self._on_line(line)

    def read(self) -> list[SteadyLine]:
        """Return the lines that have come since the last call, oldest first; never waits."""
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return lines

    def wait_for(self, records: int, timeout: float) -> bool:
        """Wait until the child's log has so many records acknowledged; False if it ended or time ran out."""

        def there() -> bool:
            return self._statistics is not None and self._statistics.records_acked >= records

        return self.wait_until(there, timeout)

    def stop(self) -> None:
        """Let the writers finish the record under way and the child close its log, and wait for that.

        Raises ChildWriterError if the child failed, also before it was asked to stop.
        """
        self.send(b"stop\n")
        self.wait()
