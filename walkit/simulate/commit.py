"""The commit path in virtual time: the same ordering core and policies as on real storage, over a modelled device.

Nothing here waits: the clock jumps from event to event, so a minute of a slow volume takes a second or two, and the
same seed gives the same run, bit for bit. What is simulated is what the core decides and what the device does. Threads,
wake-ups and the interpreter lock are not; `Host` stands for the time that preparing frames takes one processor.
Frames are sealed for real, headers and checksums included, but have no bodies: nothing is stored.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from walkit.commit.core import OrderingCore
from walkit.commit.frame import SealedFrame
from walkit.commit.policy import Policy
from walkit.errors import OptionsError, StorageError
from walkit.format.body import COLUMN_BYTES_PER_RECORD
from walkit.format.frame import FrameIdentity, PreparedBody
from walkit.format.layout import ALIGNMENT_BUFFERED, CODEC_NONE, FRAME_HEADER_BYTES
from walkit.storage.device import NS_PER_US, Device

Int64s = npt.NDArray[np.int64]

IDENTITY = FrameIdentity(log_id=1, epoch=1, epoch_id=1)

_ARRIVED, _LANDED, _LOOK = range(3)


@dataclass(frozen=True, kw_only=True)
class Host:
    """What one processor spends on a frame before the device gets it: a serial cost, as under Python's lock."""

    frame_us: float = 0.0
    record_us: float = 0.0

    def __post_init__(self) -> None:
        for option in ("frame_us", "record_us"):
            value = getattr(self, option)
            if not value >= 0:
                raise OptionsError(f"{option}={value!r}: a number from 0", option=option, wanted=value)

    def prepare_ns(self, records: int) -> int:
        """Return the nanoseconds that a frame of so many records takes."""
        return round((self.frame_us + self.record_us * records) * NS_PER_US)


class Call(NamedTuple):
    """What one writer asks for: records in one submission, and the bytes of all their keys and values."""

    records: int
    key_bytes: int
    value_bytes: int
    due_ns: int | None = None
    """When it is meant to begin; None: when the call before is done."""


class Request:
    """A call under way. Times are virtual nanoseconds. The core sets `first_lsn` and `frame` when it seals."""

    __slots__ = ("call", "count", "first_lsn", "frame", "intended_ns", "size_bytes", "writer")
    first_lsn: int
    frame: SealedFrame | None
    waiter: Any = None
    callbacks: list[Any] | None = None

    def __init__(self, writer: int, call: Call, intended_ns: int) -> None:
        self.writer = writer
        self.call = call
        self.count, key_bytes, value_bytes, _ = call
        self.size_bytes = key_bytes + value_bytes + self.count * COLUMN_BYTES_PER_RECORD
        self.intended_ns = intended_ns


class Step(NamedTuple):
    """One thing that the core was told or said, for those who compare drivers.

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
            completion=completion,
            policy=policy,
        )
        self.error: StorageError | None = None
        """Why the log was poisoned: the modelled device failed."""
        self.failed_requests = 0
        """Requests that nobody acknowledged, because the log was poisoned."""
        self.on_event: Callable[[str], object] | None = None
        """Called with the name of what happens now: `walkit.segment.rotate`."""
        self.frames = Columns("sealed_ns", "landed_ns", "acknowledged_ns", "records", "footprint", "calls")
        self._intended_ns = array("q")
        self._counts = array("q")
        self._writing = 0
        self.padding_bytes = self.user_bytes = 0
        self._segment_bytes = segment_bytes
        self._host = host or Host()
        self._host_free_ns = 0
        self._events: list[tuple[int, int, int, Any]] = []
        self._sequence = 0
        self._writers: list[Iterator[Call]] = []
        self._looks_at_ns = -1
        self._trace = trace

    def add_writer(self, calls: Iterator[Call]) -> None:
        """Add a writer that makes these calls one after the other. In time order with `due_ns`."""
        self._writers.append(calls)
        self._next_of(len(self._writers) - 1, 0)

    # -- the run

    def run(self, until_ns: int | None = None) -> None:
        """Go through events in order until there are none, or until the clock would pass `until_ns`."""
        events = self._events
        while events and (until_ns is None or events[0][0] <= until_ns):
            self.now_ns, _, kind, payload = heappop(events)
            if kind == _ARRIVED:
                self._arrive(payload)
            elif kind == _LANDED:
                self._land(*payload)
            self._seal_what_may()
        if until_ns is not None:
            self.now_ns = max(self.now_ns, until_ns)

    def _push(self, at_ns: int, kind: int, payload: Any) -> None:
        self._sequence += 1
        heappush(self._events, (at_ns, self._sequence, kind, payload))

    def _next_of(self, writer: int, now_ns: int) -> None:
        call = next(self._writers[writer], None)
        if call is None:
            return
        due_ns = call[3]
        self._sequence += 1
        if due_ns is None or due_ns <= now_ns:
            request = Request(writer, call, now_ns if due_ns is None else due_ns)
            heappush(self._events, (now_ns, self._sequence, _ARRIVED, request))
        else:
            heappush(self._events, (due_ns, self._sequence, _ARRIVED, Request(writer, call, due_ns)))

    def _arrive(self, request: Request) -> None:
        if self.error is not None:
            self.failed_requests += 1
            return
        self.core.submit(request, self.now_ns // NS_PER_US)
        if self._trace is not None:
            self._trace(Step(self.now_ns, "submit", request.writer))

    def _seal_what_may(self) -> None:
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
            self._push(at_ns, _LOOK, None)

    def _seal(self, group: Sequence[Request]) -> None:
        core = self.core
        body, user_bytes = body_of(group)
        footprint = body.footprint(core.alignment)
        if core.needs_segment(footprint):
            core.segment_ready(core.position + self._segment_bytes)
            if self.on_event is not None:
                self.on_event("walkit.segment.rotate")
        frame = core.seal(group, body, self.now_ns // NS_PER_US, user_bytes=user_bytes)
        self.padding_bytes += footprint - FRAME_HEADER_BYTES - body.stored_bytes
        sealed_ns = self.now_ns
        begins_ns = self._host_free_ns = sealed_ns + self._host.prepare_ns(body.count)
        service = self.device.submit(begins_ns, footprint)
        self._writing += 1
        self._push(service.done_ns, _LANDED, (frame, sealed_ns, service.failed))
        if self._trace is not None:
            self._trace(Step(sealed_ns, "seal", frame.first_lsn))

    def _land(self, frame: SealedFrame, sealed_ns: int, failed: bool) -> None:
        self._writing -= 1
        if failed:
            self._fail(frame)
            return
        frame.target = (sealed_ns, self.now_ns)
        acknowledged = self.core.written(frame, durable=True, now_us=self.now_ns // NS_PER_US)
        if self._trace is not None:
            self._trace(Step(self.now_ns, "land", frame.first_lsn))
        for done in acknowledged:
            self._acknowledge(done)

    def _acknowledge(self, frame: SealedFrame) -> None:
        now_ns = self.now_ns
        sealed_ns, landed_ns = frame.target
        if self._trace is not None:
            self._trace(Step(now_ns, "acknowledge", frame.first_lsn))
        group: Any = frame.submissions
        self.frames.add(sealed_ns, landed_ns, now_ns, frame.count, frame.footprint, len(group))
        self.user_bytes += frame.user_bytes
        self._intended_ns.extend([request.intended_ns for request in group])
        self._counts.extend([request.count for request in group])
        for request in group:
            self._next_of(request.writer, now_ns)
        frame.forget()

    @property
    def acknowledged(self) -> int:
        """How many calls are acknowledged."""
        return len(self._counts)

    def requests(self) -> dict[str, Int64s]:
        """Return the acknowledged calls, in the order of their frames' acknowledgements, as arrays of one length.

        intended_ns, sealed_ns, landed_ns, acknowledged_ns: virtual nanoseconds; count: records.
        """
        calls = np.asarray(self.frames.column("calls"), np.int64)
        times = {
            name: np.repeat(np.asarray(self.frames.column(name), np.int64), calls)
            for name in ("sealed_ns", "landed_ns", "acknowledged_ns")
        }
        own = {"intended_ns": self._intended_ns, "count": self._counts}
        return {**times, **{name: np.array(column, np.int64) for name, column in own.items()}}

    def _fail(self, frame: SealedFrame) -> None:
        """The device failed under this frame: it and all behind it are lost, and no writer goes on."""
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

    def add(self, *row: int) -> None:
        """Add a row: a number for each name."""
        self._numbers.extend(row)

    def column(self, name: str) -> array[int]:
        """Return a copy of the column of this name."""
        return self._numbers[self.names.index(name) :: len(self.names)]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._numbers) // len(self.names)


def body_of(group: Sequence[Request]) -> tuple[PreparedBody, int]:
    """Return the body that these records would have, without its bytes; and the bytes of keys and values.

    Exact for calls of one record; the lengths within a call of several count as different ones.
    """
    count = keys = values = 0
    _, first_key, first_value, _ = group[0].call
    same_keys = same_values = True
    for request in group:
        records, key_bytes, value_bytes, _ = request.call
        count += records
        keys += key_bytes
        values += value_bytes
        same_keys = same_keys and records == 1 and key_bytes == first_key
        same_values = same_values and records == 1 and value_bytes == first_value
    key_lengths = 4 if same_keys or not keys else 4 * count
    stored = 1 + key_lengths + (4 if same_values else 4 * count) + keys + values
    return PreparedBody(count, 0, CODEC_NONE, [], stored, stored, 0), keys + values
