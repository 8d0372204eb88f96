"""Batches: single records that were submitted one after the other, and are one submission to the core.

A record costs its caller three or four steps here, and the leader next to nothing: keys and values stand in lists, as
the encoder wants them, and LSNs, acknowledgement and failure come to the batch. The ticket of a record is its batch and
its place in there; who waits for it is noted when somebody does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from walkit.commit.frame import SealedFrame
from walkit.commit.ticket import NO_LEADER, SingleTicket, Ticket, TicketHost
from walkit.format.body import Columns

if TYPE_CHECKING:
    import asyncio

    from walkit.commit.core import OrderingCore

BATCH_BYTES_MAX = 256 << 10
BATCH_RECORDS_MAX = 4096
"""Where a batch ends: a frame takes whole batches, and should be filled by them."""


class Batch:
    """Records of one kind byte, in order. It grows, under the driver's lock, while it is the last that waits."""

    __slots__ = (
        "attached",
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
        self.keys = None if key is None else [key]
        self.values = [value]
        self.size_bytes = size_bytes
        self.submitted_us = 0
        self.first_lsn = 0
        self.frame: SealedFrame | None = None
        self.futures: list[asyncio.Future[None]] = []
        """What event loops wait for."""
        self.attached: list[BatchTicket] = []
        """Tickets that somebody waits for, or wants to be called back for."""

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
        self.keys, self.values, self.futures, self.attached = None, [], [], called
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

    def attach(self) -> None:
        """See Ticket."""
        if not hasattr(self, "waiter"):
            self.waiter = self.future = self.callbacks = None
            self.batch.attached.append(self)


Submitted: TypeAlias = SingleTicket | Batch
"""What the core of a thread driver has in its line."""

new_ticket = BatchTicket.__new__
"""A call of the class with an `__init__` of Python would be the dearest step of all."""


class BatchLine:
    """Puts single records into the core's line. Under the driver's lock."""

    def __init__(self, core: OrderingCore[Submitted], host: TicketHost) -> None:
        self._core = core
        self._host = host
        self._bytes_max = min(BATCH_BYTES_MAX, core.body_bytes_max)
        self._last: Batch | None = None

    def submit(
        self,
        kind: int,
        key: bytes | None,
        value: bytes,
        size_bytes: int,
        future: asyncio.Future[None] | None = None,
    ) -> BatchTicket:
        """Queue one record and return its ticket; `future` is resolved when it is done.

        As in `WaitingLine.submit`, the call that makes the record part of the queue comes last: an interrupt strikes
        before it, and what was noted by then is of no record, or after it.
        """
        core, batch = self._core, self._last
        pending = core.pending
        ticket = new_ticket(BatchTicket)
        if (
            batch is None
            or not pending
            or pending[-1] is not batch
            or batch.kind != kind
            or batch.size_bytes + size_bytes > self._bytes_max
            or len(batch.values) >= BATCH_RECORDS_MAX
        ):
            self._last = ticket.batch = batch = Batch(self._host, kind, key, value, size_bytes)
            ticket.index = 0
            if future is not None:
                batch.futures.append(future)
            core.submit(batch)
            return ticket
        values, keys = batch.values, batch.keys
        ticket.batch = batch
        ticket.index = index = len(values)
        if keys is not None:
            if len(keys) != index:
                del keys[index:]
            keys.append(key)  # type: ignore[arg-type]  # the kind says that there is one
        if future is not None:
            batch.futures.append(future)
        batch.size_bytes += size_bytes
        core.pending_bytes += size_bytes
        core.pending_records += 1
        values.append(value)
        return ticket
