"""Batches: single records that were submitted one after the other, and are one submission to the core.

A record costs its caller three or four steps here, and the leader next to nothing: keys and values stand in lists, as
the encoder wants them, and LSNs, acknowledgement and failure come to the batch. The ticket of a record is its batch and
its place in there; who waits for it is noted when somebody does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from walkit.commit.frame import SealedFrame
from walkit.commit.ticket import NO_LEADER, SingleTicket, Ticket, TicketHost, new_tuple
from walkit.format.body import Columns
from walkit.record import AppendResult

if TYPE_CHECKING:
    import asyncio

    from walkit.commit.core import OrderingCore

BATCH_BYTES_MAX = 256 << 10
"""Where a batch ends, if a frame does not end before: a frame takes whole batches, and should be filled by them."""


class Batch:
    """Records of one kind byte, in order. It grows, under the driver's lock, while it is the last that waits."""

    __slots__ = (
        "attached",
        "callers",
        "first_lsn",
        "frame",
        "futures",
        "host",
        "keys",
        "kind",
        "size_bytes",
        "submitted_us",
        "values",
    )
    shared = True
    lead = NO_LEADER
    waiter: Any = None
    callbacks: list[Any] | None = None

    def __init__(self, host: TicketHost, kind: int, key: bytes | None, value: bytes, size_bytes: int) -> None:
        self.host = host
        self.kind = kind
        self.keys: Any = None if key is None else [key]
        self.values = [value]
        self.size_bytes = size_bytes
        self.submitted_us = 0
        self.first_lsn = 0
        self.frame: SealedFrame | None = None
        self.futures: list[asyncio.Future[None]] = []
        """What event loops wait for."""
        self.attached: list[BatchTicket] = []
        """Tickets that somebody waits for, or wants to be called back for."""
        self.callers: list[CallerTicket] = []
        """Those whose callers wait in line, and may lead."""

    @property
    def count(self) -> int:
        """Records in it; none once it was let go."""
        return len(self.values)

    @property
    def columns(self) -> Columns:
        """The records, for the encoder; once the batch is taken, and grows no more."""
        count, keys = len(self.values), self.keys
        if keys is not None and len(keys) > count:  # of a caller that was interrupted
            keys = keys[:count]
        return Columns(count, self.kind, keys, self.values)

    def let_go(self) -> list[BatchTicket]:
        """Forget the records and who waits; return the tickets with callbacks, in LSN order."""
        called = [ticket for ticket in self.attached if ticket.callbacks is not None]
        called.sort(key=lambda ticket: ticket.index)
        self.keys, self.values, self.futures, self.callers, self.attached = None, [], [], [], called
        return called


class BatchTicket(Ticket):
    """A ticket for one record of a batch. See Ticket."""

    __slots__ = ("batch", "callbacks", "future", "index", "waiter")
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
            self.waiter = self.future = self.callbacks = None
            self.batch.attached.append(self)


class CallerTicket(BatchTicket):
    """A ticket for one record of a batch, whose caller waits. See SingleTicket for the way of the lead."""

    __slots__ = ("lead", "next_gate")
    lead: int
    next_gate: Any
    waiter: Any


Caller: TypeAlias = SingleTicket | CallerTicket
"""The ticket of a caller that waits in line, and may lead."""
Submitted: TypeAlias = SingleTicket | Batch
"""What the core of a thread driver has in its line."""


class BatchLine:
    """Puts single records into the core's line. Needs the driver's lock held."""

    def __init__(self, core: OrderingCore[Submitted], host: TicketHost) -> None:
        self._core = core
        self._host = host
        self._bytes_max = min(BATCH_BYTES_MAX, core.body_bytes_max)

    def join(
        self,
        ticket: BatchTicket,
        kind: int,
        key: bytes | None,
        value: bytes,
        size_bytes: int,
        future: asyncio.Future[None] | None = None,
    ) -> Batch:
        """Queue one record, and give its ticket its place; `future` is resolved when it is done.

        As in `WaitingLine.submit`, the call that makes the record part of the queue comes last: an interrupt strikes
        before it, and what was noted by then is of no record, or after it.
        """
        core = self._core
        batch: Batch | None = core.batch
        if batch is None or batch.kind != kind or batch.size_bytes + size_bytes > self._bytes_max:
            ticket.batch = batch = Batch(self._host, kind, key, value, size_bytes)
            ticket.index = 0
            if future is not None:
                batch.futures.append(future)
            core.submit(batch)
            core.batch = batch
            return batch
        values = batch.values
        ticket.batch = batch
        ticket.index = index = len(values)
        if key is not None:
            keys = batch.keys
            if len(keys) != index:  # that of a caller who was interrupted
                del keys[index:]
            keys.append(key)
        if future is not None:
            batch.futures.append(future)
        batch.size_bytes += size_bytes
        core.pending_bytes += size_bytes
        core.pending_records += 1
        values.append(value)
        return batch
