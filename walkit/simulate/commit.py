"""The commit path in virtual time: the same ordering core and policies as on real storage, over a modelled device.

Nothing here waits: the clock jumps from event to event, so a minute of a slow volume takes a second or two, and the
same seed gives the same run, bit for bit. What is simulated is what the core decides and what the device does. Threads,
wake-ups and the interpreter lock are not; `Host` models the time that preparing frames takes one processor.
Frames are sealed for real, headers and checksums included, but have no bodies: nothing is stored.
"""

from __future__ import annotations

import errno
import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from walkit._internal.arguments import check_number
from walkit.commit.core import OrderingCore
from walkit.commit.frame import SealedFrame
from walkit.commit.policy import Policy
from walkit.errors import StorageError
from walkit.format.body import COLUMN_BYTES_PER_RECORD
from walkit.format.frame import FrameIdentity, PreparedBody
from walkit.format.layout import ALIGNMENT_BUFFERED, CODEC_NONE, FRAME_HEADER_BYTES
from walkit.models.device import NS_PER_US, Device
from walkit.simulate.replicas import ModelledReplicas, Replicas

Int64s = npt.NDArray[np.int64]

IDENTITY = FrameIdentity(log_id=1, epoch=1, epoch_id=1)


@dataclass(frozen=True, kw_only=True)
class Host:
    """The time of one processor for a frame before the device gets it: a serial cost, as under Python's lock."""

    frame_us: float = 0.0
    record_us: float = 0.0

    def __post_init__(self) -> None:
        for option in ("frame_us", "record_us"):
            check_number(getattr(self, option), option)

    def prepare_ns(self, records: int) -> int:
        """Return the nanoseconds that a frame of so many records takes."""
        return round((self.frame_us + self.record_us * records) * NS_PER_US)


class Call(NamedTuple):
    """The load of one writer: records in one submission, and the bytes of all their keys and values."""

    records: int
    key_bytes: int
    value_bytes: int
    due_ns: int | None = None
    """When it is meant to begin; None: when the call before is done."""


Sizes: TypeAlias = tuple[int, int, int, int | None]
"""A `Call`, or a tuple of the same."""


class Request:
    """A writer's call under way: one object for each writer, which makes one call after the other.

    Times are virtual nanoseconds. The core sets `first_lsn` and `frame` when it seals.
    """

    __slots__ = (
        "call",
        "calls",
        "count",
        "due_ns",
        "first_lsn",
        "frame",
        "intended_ns",
        "key_bytes",
        "size_bytes",
        "submitted_us",
        "value_bytes",
        "writer",
    )
    submitted_us: int
    first_lsn: int
    frame: SealedFrame | None
    latch: Any = None
    callbacks: list[Any] | None = None

    def __init__(self, writer: int, calls: Iterator[Sizes]) -> None:
        self.writer = writer
        self.calls = calls
        self.call: Sizes | None = None

    def begin(self, now_ns: int) -> int | None:
        """Go to the next call and return when it is meant to begin, which may be past; None if there is none."""
        call = next(self.calls, None)
        if call is None:
            return None
        if call is not self.call:
            self.call = call
            self.count, key_bytes, value_bytes, self.due_ns = call
            self.key_bytes, self.value_bytes = key_bytes, value_bytes
            self.size_bytes = key_bytes + value_bytes + self.count * COLUMN_BYTES_PER_RECORD
        intended_ns = now_ns if self.due_ns is None else self.due_ns
        self.intended_ns = intended_ns
        return intended_ns


Event: TypeAlias = Request | tuple[SealedFrame, bool] | Callable[[], None] | None
"""A call that arrives, a frame that lands or fails, something of a replica, or a look at the queue."""
UNACKED_BYTES_MAX = 64 << 20
"""The bound of frames that wait for replicas: that of a log with the default `queue_bytes_max`."""


class Step(NamedTuple):
    """One input or output of the core, to compare drivers.

    `what` is "submit" (by number of the writer), "seal", "land" or "break" (a write succeeded or failed), "acknowledge"
    or "fail" (by first LSN of the frame).
    """

    now_ns: int
    what: str
    number: int


class CommitSimulation:
    """One log in virtual time. Give it writers, then `run()`; the columns hold what was seen.

    A writer begins its next call when the one before is acknowledged, and not before that call is due. A frame that has
    landed lets the next one be sealed before the writers it released come back, as with threads: with one frame in
    flight, a closed loop falls into two cohorts, of which one is written while the other waits.
    """

    def __init__(
        self,
        device: Device,
        *,
        in_flight: int = 1,
        completion: bool = False,
        policy: Policy | None = None,
        frame_bytes_max: int = 4 << 20,
        segment_bytes: int = 64 << 20,
        alignment: int = ALIGNMENT_BUFFERED,
        host: Host | None = None,
        replicas: Replicas | None = None,
        trace: Callable[[Step], object] | None = None,
    ) -> None:
        self.device = device
        self.now_ns = 0
        self.core: OrderingCore[Request] = OrderingCore(
            IDENTITY,
            last_lsn=0,
            position=0,
            chain=0,
            alignment=alignment,
            frame_bytes_max=frame_bytes_max,
            in_flight_max=in_flight,
            completion_order=completion,
            policy=policy,
        )
        self.error: StorageError | None = None
        """Why the log was poisoned: the modelled device failed."""
        self.failed_requests = 0
        """Requests without acknowledgement, because the log was poisoned."""
        self.on_event: Callable[[str], object] | None = None
        """Called with the name of what happens now: `walkit.segment.rotate`."""
        self.frames = Columns(
            "sealed_ns", "landed_ns", "passed_ns", "acknowledged_ns", "records", "footprint", "calls"
        )
        self._intended_ns = array("q")
        self._counts = array("q")
        self._writing = 0
        self.padding_bytes = self.user_bytes = 0
        self._segment_bytes = segment_bytes
        self._prepare_ns = None if host is None or host == Host() else host.prepare_ns
        self._host_free_ns = 0
        self._events: list[tuple[int, int, Event]] = []
        self._replicas: ModelledReplicas | None = None
        if replicas is not None:
            self.core.ack_limit_lsn, self.core.unacked_bytes_max = 0, UNACKED_BYTES_MAX
            self._replicas = ModelledReplicas(
                replicas, device.seed, lambda: self.now_ns, self._push, self._reached
            )
        self._arriving: deque[Request] = deque()
        """Calls that arrive at this instant, after all events of it."""
        self._sequence = 0
        self._writers = 0
        self._looks_at_ns = -1
        self._trace = trace

    def add_writer(self, calls: Iterator[Sizes]) -> None:
        """Add a writer that makes these calls one after the other. In time order with `due_ns`."""
        self._begin_next((Request(self._writers, calls),))
        self._writers += 1

    # -- the run

    def run(self, until_ns: int | None = None) -> None:
        """Go through events in order until there are none, or until the clock would pass `until_ns`."""
        events, arriving, core, trace = self._events, self._arriving, self.core, self._trace
        end_ns = math.inf if until_ns is None else until_ns
        in_flight_max, submit = core.in_flight_max, core.submit
        while True:
            if arriving and not (events and events[0][0] <= self.now_ns):
                what: Event = arriving.popleft()
            elif events and events[0][0] <= end_ns:
                self.now_ns, _, what = heappop(events)
            else:
                break
            if type(what) is Request:
                if self.error is not None:
                    self.failed_requests += 1
                    continue
                submit(what, self.now_ns // NS_PER_US)
                if trace is not None:
                    trace(Step(self.now_ns, "submit", what.writer))
            elif type(what) is tuple:
                self._land(*what)
            elif callable(what):
                what()
            if core.pending and self._writing < in_flight_max:
                self._seal_ready()
        if until_ns is not None:
            self.now_ns = max(self.now_ns, until_ns)

    def _push(self, at_ns: int, what: Event) -> None:
        self._sequence += 1
        heappush(self._events, (at_ns, self._sequence, what))

    def _begin_next(self, writers: Iterable[Request]) -> None:
        """Start the next calls of writers that wait for nothing."""
        now_ns, arrive_now = self.now_ns, self._arriving.append
        for request in writers:
            due_ns = request.begin(now_ns)
            if due_ns is None:
                continue
            if due_ns <= now_ns:
                arrive_now(request)
            else:
                self._sequence += 1
                heappush(self._events, (due_ns, self._sequence, request))

    def _seal_ready(self) -> None:
        """Seal frames as long as the core lets them go, each when the processor is free for it."""
        core, now_ns, in_flight_max = self.core, self.now_ns, self.core.in_flight_max
        while core.pending and self._writing < in_flight_max:
            if now_ns < self._host_free_ns:
                self._look_at(self._host_free_ns)
                return
            group = core.take(now_ns // NS_PER_US)
            if not group:
                if core.seal_at_us is not None:
                    self._look_at(core.seal_at_us * NS_PER_US)
                return
            self._seal(group)

    def _look_at(self, at_ns: int) -> None:
        """Ask the core again at that time; one question for several that ask for the same."""
        if self._looks_at_ns != at_ns:
            self._looks_at_ns = at_ns
            self._push(at_ns, None)

    def _seal(self, group: Sequence[Request]) -> None:
        core, now_ns = self.core, self.now_ns
        count, stored_bytes, user_bytes = body_sizes(group)
        body, footprint = body_of(count, stored_bytes, core.alignment)
        if core.needs_segment(footprint):
            core.segment_ready(core.position + self._segment_bytes)
            if self.on_event is not None:
                self.on_event("walkit.segment.rotate")
        frame = core.seal(group, body, now_ns // NS_PER_US, user_bytes=user_bytes)
        frame.target = now_ns
        self.padding_bytes += footprint - FRAME_HEADER_BYTES - stored_bytes
        begins_ns = now_ns
        if self._prepare_ns is not None:
            begins_ns = self._host_free_ns = now_ns + self._prepare_ns(count)
        _, done_ns, failed = self.device.submit(begins_ns, footprint)
        self._writing += 1
        self._push(done_ns, (frame, failed))
        if self._trace is not None:
            self._trace(Step(now_ns, "seal", frame.first_lsn))

    def _land(self, frame: SealedFrame, failed: bool) -> None:
        now_ns, trace = self.now_ns, self._trace
        self._writing -= 1
        if failed:
            self._fail(frame)
            return
        frame.target = (frame.target, now_ns)
        core, passed = self.core, self.core.written_position
        acknowledged = core.written(frame, durable=True, now_us=now_ns // NS_PER_US)
        if trace is not None:
            trace(Step(now_ns, "land", frame.first_lsn))
        if self._replicas is not None and core.written_position > passed:
            for each in core.unacked:
                if each.position >= passed:
                    each.target = (*each.target, now_ns)
            self._replicas.send(core.written_lsn, core.written_position - passed)
        self._acknowledge(acknowledged)

    def _reached(self, lsn: int) -> None:
        """So many replicas as are waited for have all up to this LSN."""
        self.core.ack_limit_lsn = max(lsn, self.core.ack_limit_lsn)
        self._acknowledge(self.core.acknowledge())

    def _acknowledge(self, acknowledged: Sequence[SealedFrame]) -> None:
        now_ns, trace = self.now_ns, self._trace
        for done in acknowledged:
            group: Any = done.submissions
            sealed_ns, landed_ns, *passed_ns = done.target
            self.frames.add(
                sealed_ns,
                landed_ns,
                *(passed_ns or (now_ns,)),
                now_ns,
                done.count,
                done.footprint,
                len(group),
            )
            self.user_bytes += done.user_bytes
            if trace is not None:
                trace(Step(now_ns, "acknowledge", done.first_lsn))
            intended, counted = self._intended_ns.append, self._counts.append
            for request in group:
                intended(request.intended_ns)
                counted(request.count)
            self._begin_next(group)

    @property
    def acknowledged(self) -> int:
        """How many calls are acknowledged."""
        return len(self._counts)

    def requests(self) -> dict[str, Int64s]:
        """Return the acknowledged calls, in the order of their frames' acknowledgements, as arrays of one length.

        intended_ns, sealed_ns, landed_ns, passed_ns (by the written prefix), acknowledged_ns: virtual nanoseconds;
        count: records.
        """
        calls = np.asarray(self.frames.column("calls"), np.int64)
        times = {
            name: np.repeat(np.asarray(self.frames.column(name), np.int64), calls)
            for name in ("sealed_ns", "landed_ns", "passed_ns", "acknowledged_ns")
        }
        own = {"intended_ns": self._intended_ns, "count": self._counts}
        return {**times, **{name: np.array(column, np.int64) for name, column in own.items()}}

    def _fail(self, frame: SealedFrame) -> None:
        """The device failed under this frame: it and all after it are lost, and no writer continues."""
        if self.error is None:
            self.error = StorageError("the modelled device failed", errno=errno.EIO)
        lost, waiting = self.core.fail(self.error, frame)
        self.failed_requests += len(waiting) + sum(len(f.submissions) for f in lost)
        if self._trace is not None:
            self._trace(Step(self.now_ns, "break", frame.first_lsn))
            for failed in lost:
                self._trace(Step(self.now_ns, "fail", failed.first_lsn))


class Columns:
    """Rows of whole numbers, kept as one array; `column(name)` gives one of them."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self._numbers = array("q")
        self._pack = Struct(f"{len(names)}q").pack

    def add(self, *row: int) -> None:
        """Add a row: a number for each name."""
        self._numbers.frombytes(self._pack(*row))

    def column(self, name: str) -> array[int]:
        """Return a copy of the column of this name."""
        return self._numbers[self.names.index(name) :: len(self.names)]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._numbers) // len(self.names)


def body_sizes(group: Sequence[Request]) -> tuple[int, int, int]:
    """Return the records of a group, the bytes of the body that they would have, and those of keys and values.

    Exact for calls of one record; the lengths within a call of several count as different ones.
    """
    first = group[0]
    first_key, first_value = first.key_bytes, first.value_bytes
    count = keys = values = 0
    same_keys = same_values = True
    for request in group:
        key_bytes, value_bytes = request.key_bytes, request.value_bytes
        count += request.count
        keys += key_bytes
        values += value_bytes
        if key_bytes != first_key:
            same_keys = False
        if value_bytes != first_value:
            same_values = False
    one_each = count == len(group)
    key_lengths = 4 if (same_keys and one_each) or not keys else 4 * count
    value_lengths = 4 if same_values and one_each else 4 * count
    return count, 1 + key_lengths + value_lengths + keys + values, keys + values


@lru_cache(maxsize=4096)
def body_of(count: int, stored_bytes: int, alignment: int) -> tuple[PreparedBody, int]:
    """Return a body of this size without its bytes, and the bytes its frame takes. A body is immutable."""
    body = PreparedBody(count, 0, CODEC_NONE, [], stored_bytes, stored_bytes, 0)
    return body, body.footprint(alignment)
