"""Tickets: a caller's claim on records that are on their way, of one record, of several, or of one in a batch.

Single records that are submitted one after the other are one submission to the core, a batch. A record costs its caller
three or four steps here, and the leader next to nothing: keys and values are kept in lists, as the encoder takes them,
and the batch gets LSNs, acknowledgement and failure. The ticket of a record is its batch and its index there; fields
for waiters are added when a thread or task waits.

While one thread alone submits, it fills a batch without the driver's lock. The thread that ends the batch sets `ended`
and counts afterwards; the thread that appends looks at `ended` afterwards, so that one of them sees the other. A record
that came too late has an index after the end, belongs to no batch, and is queued again.
"""

from __future__ import annotations

import copy
import sys
from _thread import TIMEOUT_MAX, get_ident
from collections.abc import Awaitable, Callable, Generator
from enum import IntEnum
from types import coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from walkit._internal.text import counted
from walkit.commit.asyncio_wait import TaskWait, is_woken_at_once
from walkit.commit.frame import SealedFrame
from walkit.errors import CommitFailedError, WaitTimeoutError
from walkit.format.body import COLUMN_BYTES_PER_RECORD, Columns
from walkit.format.layout import HAS_KEY, HAS_VALUE
from walkit.record import AppendResult, Kind

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from walkit.commit.core import OrderingCore


class TicketHost(Protocol):
    """The driver, as its tickets use it."""

    @property
    def core(self) -> OrderingCore[Any]:
        """The core whose marks an error names."""

    def attach_latch(self, ticket: Ticket) -> Any:
        """Return a lock that is released when the ticket is done; None if it is done already."""

    def attach_task_wait(self, ticket: Ticket, wait: TaskWait) -> bool:
        """Have a task woken when the ticket is done; False if it is done, or wakes one already."""

    def attach_callback(self, ticket: Ticket, callback: TicketCallback) -> None:
        """Run the callback on the delivery thread when the ticket is done, or soon when it already is."""


TicketCallback = TaskWait | Callable[["Ticket"], object]


new_tuple = tuple.__new__
"""Makes a named tuple without a call of its class, which every record would pay."""


class LeaderState(IntEnum):
    """A ticket's caller, in relation to leading."""

    NO_LEADER = 0
    """Never elected: its caller does not wait, or on the main thread, or leads at once."""
    CAN_LEAD = 1
    """Its caller waits in the queue, and may be elected."""
    TO_LEAD = 2
    """Its caller was elected, and is woken."""
    HAS_LED = 3
    """Its caller has led, and waits for its ticket."""
    HAS_LEFT = 4
    """Its caller no longer waits."""


NO_LEADER: Final = LeaderState.NO_LEADER
CAN_LEAD: Final = LeaderState.CAN_LEAD
TO_LEAD: Final = LeaderState.TO_LEAD
HAS_LED: Final = LeaderState.HAS_LED
HAS_LEFT: Final = LeaderState.HAS_LEFT


class Ticket:
    """Records that were submitted: wait for them, await them, or be called back.

    From any thread: `result(timeout=None)` blocks until the records are acknowledged as their durability level
    promises; `exception`, `done`, `add_done_callback` are those of `concurrent.futures.Future`, but there is no
    cancelling: submitted records are written. `await ticket` works on any event loop.
    """

    __slots__ = ()
    count = 1
    host: TicketHost
    """The driver that took it."""
    frame: SealedFrame | None
    """The frame that holds its records; None before they are sealed."""
    first_lsn: int
    """LSN of its first record, once it has a frame."""
    callbacks: list[TicketCallback] | None

    def add_waiter(self) -> None:
        """Make room for its waiter; under the driver's lock, before it is done."""

    def release_payload(self) -> None:
        """Forget the records: a ticket that is kept must not keep their bytes."""

    def __repr__(self) -> str:
        frame, records = self.frame, counted(self.count, "record")
        if frame is None:
            return f"<Ticket: {records}, waiting>"
        if not self.done():
            return f"<Ticket: {records} from LSN {self.first_lsn:,}, on the way>"
        if frame.state == "acked":
            return f"<Ticket: {records} from LSN {self.first_lsn:,}, acknowledged>"
        return f"<Ticket: {records}, {frame.state}: {frame.error!r}>"

    def done(self) -> bool:
        """Say whether the records are acknowledged or have failed."""
        frame = self.frame
        return frame is not None and frame.state != "sealed"

    def refusal(self) -> BaseException | None:
        """Return why nothing of the records is ever written; None if that is not certain by now."""
        frame = self.frame
        return None if frame is None or frame.state != "refused" else self._error()

    def result(self, timeout: float | None = None) -> AppendResult:
        """Wait until the records are acknowledged and return their position, or raise their error.

        WaitTimeoutError after `timeout` seconds: the records are still on their way, and the ticket may be asked again.
        """
        frame = self.frame
        if frame is None or frame.state != "acked":
            self._wait(timeout)
            error = self._error()
            if error is not None:
                raise error
            frame = self.frame
            assert frame is not None
        first_lsn = self.first_lsn
        last_lsn = first_lsn + self.count - 1
        return new_tuple(
            AppendResult, (first_lsn, last_lsn, frame.position, frame.next_position, frame.epoch_id)
        )

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the error of the records, or None if they are acknowledged."""
        self._wait(timeout)
        return self._error()

    def add_done_callback(self, callback: Callable[[Ticket], object]) -> None:
        """Call `callback(ticket)` on the delivery thread when done; in LSN order with all other callbacks."""
        self.host.attach_callback(self, callback)

    def __await__(self) -> Generator[Any, None, AppendResult]:
        """Wait without blocking the event loop."""
        yield from self.wait_done()
        return self.result(0)

    def wait_done(self) -> Generator[Any, None, None]:
        """Wait without blocking the event loop until the ticket is done, whatever became of it."""
        if self.done():
            return
        import asyncio

        loop = asyncio.get_running_loop()
        wait = TaskWait(loop)
        if not (is_woken_at_once(loop) and self.host.attach_task_wait(self, wait)):
            if self.done():
                return
            self.host.attach_callback(self, wait)
        yield from wait.__await__()

    def outcome(self) -> AppendResult:
        """Return where the records are; only once they are acknowledged."""
        assert self.frame is not None and self.frame.state == "acked"
        return self.result(0)

    def _wait(self, timeout: float | None) -> None:
        if self.done():
            return
        latch = self.host.attach_latch(self)
        if latch is None:
            return
        if not latch.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), TIMEOUT_MAX)):
            raise WaitTimeoutError(f"not acknowledged within {timeout} s; the records are still on their way")
        latch.release()

    def _error(self) -> BaseException | None:
        frame = self.frame
        if frame is None or frame.error is None:
            return None
        if frame.state == "refused" or isinstance(frame.error, CommitFailedError):
            refused = copy.copy(frame.error)
            refused.__cause__ = frame.error.__cause__
            return refused
        failed = CommitFailedError(
            f"the write failed ({frame.error}); whether the records survive is known only after opening again",
            acked_lsn=self.host.core.acked_lsn,
        )
        failed.__cause__ = frame.error
        return failed


class SingleTicket(Ticket):
    """A ticket for one submission: a record, or with `columns` records that stay together in one frame.

    Its caller may lead, and take it back. One of three classes: this one, BatchSlot (a record of a batch), and
    WaitingCaller, which no caller gets to see: it is a BatchSlot with the fields of a thread that waits, which millions
    of tickets that are only submitted would carry for nothing.
    """

    __slots__ = (
        "after",
        "callbacks",
        "columns",
        "count",
        "first_lsn",
        "frame",
        "host",
        "key",
        "kind",
        "latch",
        "lead",
        "next_latch",
        "size_bytes",
        "submitted_us",
        "task_wait",
        "thread",
        "timestamp",
        "value",
    )
    shared = False
    after: Ticket | None
    """If that one was refused, this one is refused, too: it was queued before this one, by the same call."""
    submitted_us: int
    """Set when it is queued."""
    thread: int
    """The number of the thread that waits for it; set with `lead`, if that thread can lead."""
    next_latch: Any
    """The latch of another caller, which this one opens once its own was opened; set with `lead`, too."""

    def __init__(self, host: TicketHost, kind: int, key: bytes, value: bytes, timestamp: int = 0) -> None:
        self.host = host
        self.kind = kind
        self.key = key
        self.value = value
        self.timestamp = timestamp
        self.size_bytes = len(key) + len(value) + COLUMN_BYTES_PER_RECORD
        self.count = 1
        self.columns: Columns | None = None
        self.after = None
        self.frame: SealedFrame | None = None
        self.lead: LeaderState = NO_LEADER
        self.latch: Any = None
        """A latch that is opened when the ticket is done or its caller is elected; None if no thread waits."""
        self.task_wait: TaskWait | None = None
        """The wait of a task: it ends on the task's loop when the ticket is done."""
        self.callbacks = None

    @classmethod
    def of_columns(cls, host: TicketHost, columns: Columns, size_bytes: int) -> SingleTicket:
        """Return the ticket of several records, which take at most `size_bytes` in the body of a frame."""
        ticket = cls(host, 0, b"", b"")
        ticket.columns, ticket.count, ticket.size_bytes = columns, columns.count, size_bytes
        return ticket

    def release_payload(self) -> None:
        """See Ticket."""
        self.key = self.value = b""
        self.columns = None


ANY_THREAD: Final = 0
NO_THREAD: Final = -1
"""In the place of a batch's owner; neither is a thread's number."""
ALONE: Final = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether a thread may fill a batch without the lock: it rests on the interpreter's own."""
PUT_VALUE: Final = Kind.PUT.value | HAS_VALUE
PUT_KEYED: Final = PUT_VALUE | HAS_KEY
BATCH_BYTES_MAX = 256 << 10
"""Where a batch ends, if a frame does not end before: a frame takes whole batches, and should be filled by them."""


class Batch:
    """Records of one kind byte, in order; for each of them a task of one loop waits, or for none (`wait` is None).

    It grows while it is the last that waits.
    """

    __slots__ = (
        "_ended_count",
        "attached",
        "bytes_max",
        "callers",
        "ended",
        "first_lsn",
        "frame",
        "grown_bytes",
        "host",
        "keys",
        "kind",
        "owner",
        "size_bytes",
        "submitted_us",
        "task_wait",
        "values",
    )
    shared = True
    lead = NO_LEADER
    latch: Any = None
    callbacks: list[Any] | None = None

    def __init__(
        self, host: TicketHost, kind: int, loop: AbstractEventLoop | None, owner: int, bytes_max: int
    ) -> None:
        self.host = host
        self.kind = kind
        self.owner = owner
        """The thread that alone fills it, and needs no lock for that; ANY_THREAD: all may, with the driver's lock.

        NO_THREAD while a record is put to it: a finaliser or signal handler that submits then begins another.
        """
        self.bytes_max = bytes_max
        """How large it may grow: a joining record needs no other check against the limits of queue and frame."""
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self.grown_bytes = 0
        """Upper bound of its records' bytes in a frame's body, as it grows."""
        self.size_bytes = 0
        """The same, once it has ended."""
        # Written once, under the commit lock, by `end`; the owner reads it without the lock after each record.
        self.ended = False
        self._ended_count = 0
        self.submitted_us = 0
        self.first_lsn = 0
        self.frame: SealedFrame | None = None
        self.task_wait = TaskWait(loop) if loop is not None else None
        """The wait of tasks of the loop that ran in the owner's thread when it began."""
        self.attached: list[BatchSlot] = []
        """Tickets with a latch, a task or a callback."""
        self.callers: list[WaitingCaller] = []
        """Tickets whose callers wait in the queue, and may be elected."""

    @property
    def count(self) -> int:
        """Records in it."""
        return self._ended_count if self.ended else len(self.values)

    def end(self) -> int:
        """End its growth and return its number of records. With the lock; called again if interrupted."""
        self.ended = True  # before the records are counted: a caller that appends looks at it afterwards
        count = len(self.values)
        self._ended_count = count
        self.size_bytes = self.grown_bytes
        return count

    @property
    def records(self) -> tuple[list[bytes], list[bytes]]:
        """The keys, if it has any, and the values; once it has ended. In new lists: one may still come too late."""
        count = self._ended_count
        return self.keys[:count], self.values[:count]

    @property
    def columns(self) -> Columns:
        """The records as columns, once it has ended: for a frame that others share, or an `ack_sink` that keeps it."""
        keys, values = self.records
        return Columns(len(values), self.kind, keys if self.kind & HAS_KEY else None, values)

    def release_payload(self) -> list[BatchSlot]:
        """Forget the records and waiters; return the tickets with callbacks, in LSN order."""
        called = self.attached
        if called:
            called = [ticket for ticket in called if ticket.callbacks is not None]
            called.sort(key=lambda ticket: ticket.index)
        self.keys, self.values, self.callers, self.attached = [], [], [], called
        return called


class BatchSlot(Ticket):
    """A ticket for one record of a batch. See Ticket."""

    __slots__ = ("batch", "callbacks", "index", "latch", "task_wait")
    batch: Batch
    index: int

    @property
    def host(self) -> TicketHost:  # type: ignore[override]  # it is never set
        """See Ticket."""
        return self.batch.host

    @property
    def frame(self) -> SealedFrame | None:  # type: ignore[override]  # the core sets that of the batch
        """See Ticket."""
        return self.batch.frame

    @property
    def first_lsn(self) -> int:  # type: ignore[override]  # the core sets that of the batch
        """See Ticket."""
        return self.batch.first_lsn + self.index

    def result(self, timeout: float | None = None) -> AppendResult:
        """See Ticket; short for a record that is acknowledged."""
        batch = self.batch
        frame = batch.frame
        if frame is None or frame.state != "acked":
            return super().result(timeout)
        lsn = batch.first_lsn + self.index
        return new_tuple(AppendResult, (lsn, lsn, frame.position, frame.next_position, frame.epoch_id))

    def done(self) -> bool:
        """See Ticket."""
        frame = self.batch.frame
        return frame is not None and frame.state != "sealed"

    def add_waiter(self) -> None:
        """See Ticket."""
        if not hasattr(self, "latch"):
            self.latch = self.task_wait = self.callbacks = None
            self.batch.attached.append(self)


class WaitingCaller(BatchSlot):
    """A ticket for one record of a batch, whose caller waits. See SingleTicket and LeaderState."""

    __slots__ = ("lead", "next_latch", "thread")
    lead: LeaderState
    thread: int
    next_latch: Any
    latch: Any


@coroutine
def put_awaited(batch: Batch, index: int) -> Generator[Any, None, AppendResult]:
    """Return where a record of a batch of tasks is, once it is acknowledged, or raise its error.

    A ticket and a wait of its own would only be made to be asked once.
    """
    wait: Any = batch.task_wait
    try:
        while not wait.over:  # as in TaskWait.__await__: a call less for each record
            wait._asyncio_future_blocking = True
            yield wait
    except RuntimeError:
        # Asyncio's, where another loop has come to run in this thread than the one that the wait is of.
        if wait.is_of_this_loop():
            raise
        yield from _ticket_of(batch, index).wait_done()
    frame = batch.frame
    if frame is not None and frame.state == "acked":
        lsn = batch.first_lsn + index
        return new_tuple(AppendResult, (lsn, lsn, frame.position, frame.next_position, frame.epoch_id))
    return _ticket_of(batch, index).result(0)


def _ticket_of(batch: Batch, index: int) -> BatchSlot:
    ticket = BatchSlot()
    ticket.batch, ticket.index = batch, index
    return ticket


Caller: TypeAlias = SingleTicket | WaitingCaller
"""The ticket of a caller that waits in the queue, and may be elected."""
Submitted: TypeAlias = SingleTicket | Batch
"""A submission in the queue of a thread driver's core."""


class BatchQueue:
    """Puts single records into the core's queue. Needs the driver's lock held, but where a batch's owner joins it."""

    def __init__(self, core: OrderingCore[Submitted], host: TicketHost, queue_bytes_max: int) -> None:
        self._core = core
        self._host = host
        self.queue_bytes_max = queue_bytes_max
        self._bytes_max = min(BATCH_BYTES_MAX, core.body_bytes_max)

    def join(
        self, ticket: BatchSlot, kind: int, owner: int, key: bytes | None, value: bytes, size_bytes: int
    ) -> Batch | None:
        """Put one record to those that wait; None, with nothing done, if no batch of this owner takes it.

        A batch that grows is in the queue, so that the log takes records, the queue has room, and a leader will take
        it: no more needs to be looked at. Without the lock it may end meanwhile: the caller looks afterwards.

        As in `OrderingCore.submit`, the call that makes the record part of the queue comes last: an interrupt
        strikes before it, with notes that belong to no record, or after it.
        """
        batch: Batch | None = self._core.batch
        if batch is None or batch.owner != owner or batch.kind != kind or batch.task_wait is not None:
            return None
        values = batch.values  # before the look at `ended`: a batch that has ended may have released its own
        grown_bytes = batch.grown_bytes + size_bytes
        if batch.ended or grown_bytes > batch.bytes_max:
            return None
        batch.owner = NO_THREAD
        ticket.batch = batch
        ticket.index = index = len(values)
        if key is not None:
            put_at(batch.keys, index, key)
        batch.grown_bytes = grown_bytes
        values.append(value)
        batch.owner = owner
        return batch

    def begin_locked(
        self, ticket: BatchSlot, kind: int, owner: int, key: bytes | None, value: bytes, size_bytes: int
    ) -> Batch:
        """Queue one record as the first of a batch. See `join`."""
        batch = self._new(kind, None, owner, size_bytes)
        ticket.batch = batch
        ticket.index = 0
        self._queue_first(batch, key, value)
        return batch

    def begin_awaited_locked(
        self, loop: AbstractEventLoop, key: bytes | None, value: bytes, size_bytes: int
    ) -> Awaitable[AppendResult]:
        """As `begin_locked` for a task of `loop`, whose thread alone fills it; return its awaitable."""
        batch = self._new(PUT_VALUE if key is None else PUT_KEYED, loop, get_ident(), size_bytes)
        self._queue_first(batch, key, value)
        return put_awaited(batch, 0)

    def _new(self, kind: int, loop: AbstractEventLoop | None, owner: int, size_bytes: int) -> Batch:
        room_bytes = max(self.queue_bytes_max - self._core.pending_bytes, size_bytes)
        batch = Batch(self._host, kind, loop, owner, min(self._bytes_max, room_bytes))
        batch.grown_bytes = size_bytes
        return batch

    def _queue_first(self, batch: Batch, key: bytes | None, value: bytes) -> None:
        if key is not None:
            batch.keys.append(key)
        batch.values.append(value)
        self._core.begin_batch(batch)


def put_at(column: list[bytes], index: int, item: bytes) -> None:
    """Append to a column the item for the next value; an interrupted caller may have left another."""
    if len(column) != index:
        del column[index:]
    column.append(item)
