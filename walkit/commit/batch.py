"""Batches: single records that were submitted one after the other, and are one submission to the core.

A record costs its caller three or four steps here, and the leader next to nothing: keys and values stand in lists, as
the encoder wants them, and LSNs, acknowledgement and failure come to the batch. The ticket of a record is its batch and
its place in there; who waits for it is noted when somebody does.

While one thread alone submits, it fills a batch without the driver's lock: whoever ends the batch says so first and
counts then; whoever has appended looks afterwards, so that one of them sees the other. What came too late has a place
behind the end, is of no batch, and is queued anew.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from walkit.commit.frame import SealedFrame
from walkit.commit.taskwait import TaskWait
from walkit.commit.ticket import NO_LEADER, SingleTicket, Ticket, TicketHost, new_tuple
from walkit.format.body import Columns
from walkit.format.layout import HAS_KEY
from walkit.record import AppendResult

if TYPE_CHECKING:
    from walkit.commit.core import OrderingCore

ANYONE: Final = 0
NOBODY: Final = -1
"""In the place of a batch's owner; neither is a thread's number."""
ALONE: Final = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether a thread may fill a batch without the lock: it rests on the interpreter's own."""
BATCH_BYTES_MAX = 256 << 10
"""Where a batch ends, if a frame does not end before: a frame takes whole batches, and should be filled by them."""


class Batch:
    """Records of one kind byte, in order; for each or for none of them a task waits (`looped`).

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
        "looped",
        "owner",
        "size_bytes",
        "submitted_us",
        "values",
        "waits",
    )
    shared = True
    lead = NO_LEADER
    waiter: Any = None
    callbacks: list[Any] | None = None

    def __init__(self, host: TicketHost, kind: int, looped: bool, owner: int, bytes_max: int) -> None:
        self.host = host
        self.kind = kind
        self.looped = looped
        self.owner = owner
        """The thread that alone fills it, and needs no lock for that; ANYONE: all may, with the driver's lock.

        NOBODY while a record is put to it: a finaliser or signal handler that submits then begins another.
        """
        self.bytes_max = bytes_max
        """How large it may grow: what joins it needs no other look at what the queue and a frame may hold."""
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self.grown_bytes = 0
        """What its records take at most in a frame's body, as it grows."""
        self.size_bytes = 0
        """The same, once it has ended."""
        self.ended = False
        self._ended_count = 0
        self.submitted_us = 0
        self.first_lsn = 0
        self.frame: SealedFrame | None = None
        self.waits: list[PutWait] = []
        """The tasks of event loops that wait, in the order of the records."""
        self.attached: list[BatchTicket] = []
        """Tickets that somebody waits for, or wants to be called back for."""
        self.callers: list[CallerTicket] = []
        """Those whose callers wait in line, and may lead."""

    @property
    def count(self) -> int:
        """Records in it."""
        return self._ended_count if self.ended else len(self.values)

    def end(self) -> int:
        """It grows no more: return how many records it has. With the lock; called again where it was interrupted."""
        self.ended = True  # before the records are counted: who appends looks at it afterwards
        count = len(self.values)
        self._ended_count = count
        self.size_bytes = self.grown_bytes
        return count

    @property
    def columns(self) -> Columns:
        """The records, for the encoder; once the batch has ended. In new lists: one may still come too late."""
        count = self._ended_count
        keys = self.keys[:count] if self.kind & HAS_KEY else None
        return Columns(count, self.kind, keys, self.values[:count])

    def awaited(self) -> list[PutWait]:
        """Return the waits of tasks; once the batch has ended."""
        return self.waits[: self._ended_count]

    def let_go(self) -> list[BatchTicket]:
        """Forget the records and who waits; return the tickets with callbacks, in LSN order."""
        called = [ticket for ticket in self.attached if ticket.callbacks is not None]
        called.sort(key=lambda ticket: ticket.index)
        self.keys, self.values, self.waits, self.callers, self.attached = [], [], [], [], called
        return called


class BatchTicket(Ticket):
    """A ticket for one record of a batch. See Ticket."""

    __slots__ = ("batch", "callbacks", "index", "wait", "waiter")
    batch: Batch
    index: int

    @property
    def host(self) -> TicketHost:  # type: ignore[override]  # nobody sets it
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
        """See Ticket; the way of one that is acknowledged is made short."""
        batch = self.batch
        frame = batch.frame
        if frame is None or frame.state != "acked":
            return super().result(timeout)
        lsn = batch.first_lsn + self.index
        return new_tuple(AppendResult, (lsn, lsn, frame.position, frame.next_position))

    def done(self) -> bool:
        """See Ticket."""
        frame = self.batch.frame
        return frame is not None and frame.state != "sealed"

    def attach(self) -> None:
        """See Ticket."""
        if not hasattr(self, "waiter"):
            self.waiter = self.wait = self.callbacks = None
            self.batch.attached.append(self)


class CallerTicket(BatchTicket):
    """A ticket for one record of a batch, whose caller waits. See SingleTicket for the way of the lead."""

    __slots__ = ("lead", "next_gate")
    lead: int
    next_gate: Any
    waiter: Any


class PutWait(TaskWait):
    """What a task awaits that appends one record: the record's place in a batch, and the task's wait in one object.

    A ticket beside it would only be made to be asked once.
    """

    __slots__ = ("batch", "index")
    batch: Batch
    index: int

    def result(self, timeout: float | None = None) -> AppendResult:
        """Return where the record is, or raise what became of it; once it has been awaited."""
        batch = self.batch
        frame = batch.frame
        if frame is not None and frame.state == "acked":
            lsn = batch.first_lsn + self.index
            return new_tuple(AppendResult, (lsn, lsn, frame.position, frame.next_position))
        ticket = BatchTicket()
        ticket.batch, ticket.index = self.batch, self.index
        return ticket.result(timeout)


Caller: TypeAlias = SingleTicket | CallerTicket
"""The ticket of a caller that waits in line, and may lead."""
Put = TypeVar("Put", BatchTicket, PutWait)
"""What a caller holds that has queued a record of a batch and does not wait in line."""
Submitted: TypeAlias = SingleTicket | Batch
"""What the core of a thread driver has in its line."""


class BatchLine:
    """Puts single records into the core's line. Needs the driver's lock held, but where a batch's owner joins it."""

    def __init__(self, core: OrderingCore[Submitted], host: TicketHost, queue_bytes_max: int) -> None:
        self._core = core
        self._host = host
        self._queue_bytes_max = queue_bytes_max
        self._bytes_max = min(BATCH_BYTES_MAX, core.body_bytes_max)

    def join(
        self,
        ticket: BatchTicket | PutWait,
        kind: int,
        owner: int,
        key: bytes | None,
        value: bytes,
        size_bytes: int,
    ) -> Batch | None:
        """Put one record to those that wait; None, and nothing is done, where no batch of this owner takes it.

        A batch that grows is in the line, so that the log takes records, the queue has room, and somebody will come for
        it: no more needs to be looked at. Without the lock it may end meanwhile: the caller looks afterwards.

        As in `WaitingLine.submit`, the call that makes the record part of the queue comes last: an interrupt strikes
        before it, and what was noted by then is of no record, or after it.
        """
        batch: Batch | None = self._core.batch
        looped = type(ticket) is PutWait
        if batch is None or batch.owner != owner or batch.kind != kind or batch.looped is not looped:
            return None
        values = batch.values  # before the look at `ended`: a batch that has ended may have let go of its own
        grown_bytes = batch.grown_bytes + size_bytes
        if batch.ended or grown_bytes > batch.bytes_max:
            return None
        batch.owner = NOBODY
        ticket.batch = batch
        ticket.index = index = len(values)
        if key is not None:
            keys = batch.keys
            if len(keys) != index:  # that of a caller who was interrupted
                del keys[index:]
            keys.append(key)
        if looped:
            waits: list[Any] = batch.waits
            if len(waits) != index:
                del waits[index:]
            waits.append(ticket)
        batch.grown_bytes = grown_bytes
        values.append(value)
        batch.owner = owner
        return batch

    def begin(
        self,
        ticket: BatchTicket | PutWait,
        kind: int,
        owner: int,
        key: bytes | None,
        value: bytes,
        size_bytes: int,
    ) -> Batch:
        """Queue one record as the first of a batch; with the lock. See `join`."""
        core = self._core
        room_bytes = max(self._queue_bytes_max - core.pending_bytes, size_bytes)
        looped = isinstance(ticket, PutWait)
        batch = Batch(self._host, kind, looped, owner, min(self._bytes_max, room_bytes))
        ticket.batch = batch
        ticket.index = 0
        if key is not None:
            batch.keys.append(key)
        if isinstance(ticket, PutWait):
            batch.waits.append(ticket)
        batch.grown_bytes = size_bytes
        batch.values.append(value)
        core.begin_batch(batch)
        return batch
