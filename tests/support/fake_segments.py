"""A sink for frames that tests can hold up, fail, and look into, and a commit driver over it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.support.threads import GUARD_S, Task, wait_until
from walkit.commit.core import OrderingCore
from walkit.commit.driver import CommitDriver
from walkit.commit.frame import SealedFrame
from walkit.commit.ticket import BatchSlot, SingleTicket, Submitted
from walkit.commit.timer import CommitClock
from walkit.errors import StorageError
from walkit.events import EventSink
from walkit.format.frame import FrameIdentity
from walkit.format.layout import HAS_VALUE
from walkit.record import AppendResult


class Sink:
    """Frames go to a list. `hold` makes the next write wait; `failures` are raised by the next calls of a kind."""

    def __init__(self, segment_bytes: int = 1 << 30) -> None:
        self.segment_bytes = segment_bytes
        self.frames: list[SealedFrame] = []
        self.assigned: list[SealedFrame] = []
        self.passed_position = 0
        self.segments: list[int] = []
        self.published: list[tuple[int, int]] = []
        self.syncs = 0
        self.failures: dict[str, list[BaseException]] = {}
        self.entered = threading.Event()
        self.released = threading.Event()
        self.released.set()
        self.before_sync: Callable[[], object] = lambda: None

    def hold(self) -> None:
        """Let the next writes wait until `release`."""
        self.entered.clear()
        self.released.clear()

    def release(self) -> None:
        """Let what waits go on."""
        self.released.set()

    def fail(self, call: str, *errors: BaseException) -> None:
        """Let the next calls of "begin_segment", "write", "mark" (a write too) or "sync" raise."""
        self.failures.setdefault(call, []).extend(errors)

    def _maybe_fail(self, call: str) -> None:
        if self.failures.get(call):
            raise self.failures[call].pop(0)

    def begin_segment(self, *, position: int, first_lsn: int, chain: int) -> int:
        self._maybe_fail("begin_segment")
        self.segments.append(position)
        return position + self.segment_bytes

    def assign(self, frame: SealedFrame) -> None:
        self.assigned.append(frame)

    def passed(self, position: int) -> None:
        self.passed_position = position

    def write(self, frame: SealedFrame, *, sync: bool) -> None:
        self.entered.set()
        assert self.released.wait(GUARD_S)
        self._maybe_fail("write" if frame.count else "mark")
        self.frames.append(frame)

    def sync(self) -> None:
        self.before_sync()
        self._maybe_fail("sync")
        self.syncs += 1

    def publish(self, position: int, lsn: int) -> None:
        self.published.append((position, lsn))


class GatedSink(Sink):
    """Every write waits until the test lets its frame land, or fail; so any order of completions can be had."""

    def __init__(self, segment_bytes: int = 1 << 30) -> None:
        super().__init__(segment_bytes)
        self.gates: dict[int, threading.Event] = {}
        self.errors: dict[int, BaseException] = {}
        self.open = False

    def write(self, frame: SealedFrame, *, sync: bool) -> None:
        gate = self.gates.setdefault(frame.position, threading.Event())
        if not self.open:
            assert gate.wait(GUARD_S)
        if frame.position in self.errors:
            raise self.errors[frame.position]
        self.frames.append(frame)

    def let(self, frame: SealedFrame, error: BaseException | None = None) -> None:
        """Let the write of a frame return, or raise."""
        if error is not None:
            self.errors[frame.position] = error
        self.gates.setdefault(frame.position, threading.Event()).set()

    def release(self) -> None:
        """Let everything return, now and later."""
        super().release()
        self.open = True
        for gate in list(self.gates.values()):
            gate.set()


def io_error(text: str = "gone") -> StorageError:
    """Return what a storage raises."""
    return StorageError(text, errno=5, name="segment")


class DriverHarness:
    """A driver on a `Sink`, with a clock that tests move, and the events it sent."""

    def __init__(
        self,
        *,
        place: Sink | None = None,
        sync_writes: bool = True,
        queue_bytes_max: int = 1 << 20,
        write_timeout_us: int = 0,
        **core: Any,
    ) -> None:
        self.place = place or Sink(core.pop("segment_bytes", 1 << 30))
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.clock: Callable[[], int] = lambda: 0
        self.core: OrderingCore[Submitted] = OrderingCore(
            FrameIdentity(1, 1, 1),
            last_lsn=0,
            position=0,
            chain=0,
            alignment=64,
            frame_bytes_max=core.pop("frame_bytes_max", 1 << 20),
            ack_when_durable=sync_writes,
            **core,
        )
        self.driver = CommitDriver(
            self.core,
            self.place,
            events=EventSink(lambda name, facts: self.events.append((name, facts))),
            name="test",
            sync_writes=sync_writes,
            codec=None,
            queue_bytes_max=queue_bytes_max,
            clock=CommitClock(lambda: self._now_us() * 1000),
            write_timeout_us=write_timeout_us,
        )

    def _now_us(self) -> int:
        return self.clock()

    def ticket(self, value: bytes = b"v") -> SingleTicket:
        """Return a ticket that was not queued."""
        return SingleTicket(self.driver, 1 | HAS_VALUE, b"", value)

    def queued(self, value: bytes = b"v") -> SingleTicket:
        """Return a ticket that was queued."""
        ticket = self.ticket(value)
        assert self.driver.enqueue(ticket)
        return ticket

    def in_flight(self, count: int) -> list[SealedFrame]:
        """Queue so many records, one per frame if the policy allows it; return the frames, all being written."""
        tickets = [self.queued(b"%d" % n) for n in range(count)]
        place = self.place
        assert isinstance(place, GatedSink)
        wait_until(
            lambda: all(t.frame is not None and t.frame.position in place.gates for t in tickets), "writes"
        )
        return [t.frame for t in tickets if t.frame is not None]

    def append(self, value: bytes = b"v") -> SingleTicket:
        """Append as a caller does who waits, and may lead."""
        ticket = self.ticket(value)
        assert self.driver.append(ticket)
        return ticket

    def leader_in_write(self) -> Task:
        """Return a caller of `append` that leads, and hangs in its write."""
        self.place.hold()
        task = Task(self.append, b"lead")
        assert self.place.entered.wait(GUARD_S)
        return task

    def put(self, value: bytes = b"v") -> AppendResult:
        """Append a put as a caller does who waits, and may lead, and shares a submission with others."""
        result = self.driver.append_put(None, value)
        assert result is not None
        return result

    def putted(self, value: bytes = b"v", key: bytes | None = None) -> BatchSlot:
        """Return the ticket of a put that was queued, and shares a submission with others."""
        ticket = self.driver.enqueue_put(key, value, BatchSlot())
        assert isinstance(ticket, BatchSlot)
        return ticket

    def _waits(self, records: int) -> bool:
        return self.core.pending_records == records

    def waiting(self, count: int) -> list[Task]:
        """Start so many callers of `put`, one after the other, while a frame is being written; return them."""
        tasks: list[Task] = []
        before = self.core.pending_records
        for number in range(count):
            tasks.append(Task(self.put, b"%d" % number))
            wait_until(partial(self._waits, before + number + 1), "a caller to wait")
        return tasks
