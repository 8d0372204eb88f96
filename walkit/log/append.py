"""Appending: tickets, of one record, of many or of a transaction, into the queue and until they are acknowledged."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import datetime
from itertools import chain, islice
from types import TracebackType
from typing import Any, Self

from walkit._internal.arguments import as_seconds, refuse
from walkit._internal.text import counted, lsn_range
from walkit._internal.threads import on_event_loop
from walkit.commit import asyncio_wait
from walkit.commit.driver import CommitDriver
from walkit.commit.frame import SealedFrame
from walkit.commit.ticket import SingleTicket, Ticket, TicketHost
from walkit.config import LogOptions
from walkit.errors import (
    AppendTimeoutError,
    CommitTimeoutError,
    LogClosedError,
    LogFullError,
    WaitTimeoutError,
    WalkitError,
)
from walkit.log.columns import Rows, tickets_of
from walkit.log.validate import DELETE, PUT, as_bytes, as_stamp, transaction_ticket
from walkit.record import AppendResult


class Transaction:
    """Operations that are appended together when the `with` or `async with` block ends: all or nothing.

    They share one frame, so a crash keeps all of them or none. An exception in the block appends nothing. One thread at
    a time may use it. After the block `result` says where the operations are (None for an empty block). Cancelling
    the end of an `async with` block stops the waiting: once its frame has its place, it may still become durable.
    """

    def __init__(self, host: TicketHost, limit_bytes: int, appender: Appender) -> None:
        self._host = host
        self._limit_bytes = limit_bytes
        self._appender = appender
        self._operations: list[tuple[int, bytes | None, bytes | None, int | None]] = []
        self._open = self._used = False
        self.result: AppendResult | None = None

    def _add(self, kind: int, key: Any, value: Any, timestamp: datetime | int | None) -> None:
        if not self._open:
            raise LogClosedError("the transaction is over, or was not started with `with`")
        self._operations.append(
            (
                kind,
                None if key is None else as_bytes(key, "key", self._limit_bytes),
                None if value is None else as_bytes(value, "value", self._limit_bytes),
                as_stamp(timestamp),
            )
        )

    def put(self, key: Any, value: Any, timestamp: datetime | int | None = None) -> None:
        """Set a key to a value."""
        if key is None:
            refuse("key", key, "put needs a key; append(value) makes an event without one")
        self._add(PUT, key, value, timestamp)

    def delete(self, key: Any, timestamp: datetime | int | None = None) -> None:
        """Add a tombstone for a key."""
        if key is None:
            refuse("key", key, "a tombstone needs a key; nothing was written")
        self._add(DELETE, key, None, timestamp)

    def append(self, value: Any, key: Any = None, timestamp: datetime | int | None = None) -> None:
        """Add a record; without a key it is an event, outside keyed state."""
        self._add(PUT, key, value, timestamp)

    def __len__(self) -> int:
        return len(self._operations)

    def __repr__(self) -> str:
        state = "open" if self._open else "over" if self._used else "not begun"
        where = "" if self.result is None else f" at {lsn_range(self.result.first_lsn, self.result.last_lsn)}"
        return f"<Transaction {state}: {counted(len(self), 'operation')}{where}>"

    def __enter__(self) -> Self:
        if self._used:
            raise LogClosedError("a transaction is used once")
        self._open = self._used = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ticket = self._end(kind)
        if ticket is not None:
            self.result = self._appender.append(ticket, None)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ticket = self._end(kind)
        if ticket is not None:
            self.result = await self._appender.append_async(ticket)

    def _end(self, kind: type[BaseException] | None) -> SingleTicket | None:
        """End the block; return the ticket to append, or None after an error or without operations."""
        self._open = False
        if kind is not None or not self._operations:
            return None
        return transaction_ticket(self._host, self._limit_bytes, self._operations)


class TicketList:
    """One claim on many records that may be in several frames: waits for all of them, in order."""

    def __init__(self, tickets: Sequence[Ticket], last_lsn: int, position: int, epoch_id: int) -> None:
        self._tickets = tickets
        self._nothing = AppendResult(last_lsn + 1, last_lsn, position, position, epoch_id)

    def done(self) -> bool:
        """Say whether all records are acknowledged, or any has failed."""
        return all(t.done() for t in self._tickets)

    @property
    def acknowledged(self) -> int:
        """How many records, from the first on, are acknowledged by now."""
        count = 0
        for ticket in self._tickets:
            if not ticket.done() or ticket.exception(0) is not None:
                break
            count += ticket.count
        return count

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for all, and return the first error with its `acknowledged_prefix`, or None."""
        for ticket in self._tickets:
            error = ticket.exception(timeout)
            if error is not None:
                vars(error)["acknowledged_prefix"] = self.acknowledged
                return error
        return None

    def result(self, timeout: float | None = None) -> AppendResult:
        """Wait until all records are acknowledged and return their position.

        `first_lsn` is that of the first record and `last_lsn` that of the last; records of other callers may stand
        between two frames. With `timeout`, each frame is waited for that long.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        if not self._tickets:
            return self._nothing
        first, last = self._tickets[0].outcome(), self._tickets[-1].outcome()
        return AppendResult(first.first_lsn, last.last_lsn, first.position, last.next_position, last.epoch_id)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback(self)` on the delivery thread once the last frame is done."""
        if not self._tickets:
            callback(self)
            return
        last = next((t for t in reversed(self._tickets) if not t.done()), self._tickets[-1])
        last.add_done_callback(lambda _: callback(self))

    def __await__(self) -> Generator[Any, None, AppendResult]:
        """Wait without blocking the event loop."""
        for ticket in self._tickets:
            yield from ticket.wait_done()
        return self.result(0)


MANY_FRAME_BYTES = 2 << 20
"""A frame of many records is about so large: writing costs more than beginning to write, and the queue stays short."""


class Appender:
    """Brings tickets into the queue of one log as its options say. Safe from any thread."""

    def __init__(self, driver: CommitDriver, options: LogOptions, limit_bytes: int, records_max: int) -> None:
        """`records_max` records stay together at most: fewer than a frame takes if a gate lets in fewer."""
        self._driver = driver
        self._limit_bytes = limit_bytes
        self._records_max = records_max
        self._queue_bytes_max = options.queue_bytes_max
        self._refuses = options.on_full == "raise"

    def append(self, ticket: SingleTicket, timeout: float | None) -> AppendResult:
        """Queue the ticket and return when it is acknowledged; see `WriteAheadLog.append`."""
        if timeout is not None:
            return self._append_until(ticket, time.monotonic() + as_seconds(timeout))
        while not self._driver.append(ticket):
            self._make_room(ticket.size_bytes, None)
        return ticket.result(0)

    def _append_until(self, ticket: SingleTicket, deadline: float) -> AppendResult:
        self._driver.refuse_waiting()
        while not self._driver.enqueue(ticket):
            self._make_room(ticket.size_bytes, deadline)
        try:
            return ticket.result(max(deadline - time.monotonic(), 0))
        except WaitTimeoutError:
            if self._driver.withdraw(ticket):
                raise AppendTimeoutError("not written in time; nothing of it was written") from None
            if ticket.done():
                return ticket.result(0)
            raise CommitTimeoutError(
                "the write was under way when the time was over; it may still become durable",
                acked_lsn=self._driver.core.acked_lsn,
            ) from None

    def _make_room(self, size_bytes: int, deadline: float | None) -> None:
        """Wait for room in the queue, or raise LogFullError."""
        limit = self._queue_bytes_max
        if self._refuses:
            raise LogFullError(
                f"the queue holds {limit:,} bytes already; try again", reason="queue", limit_bytes=limit
            )
        timeout = None if deadline is None else max(deadline - time.monotonic(), 0)
        if not self._driver.wait_for_room(size_bytes, timeout):
            raise LogFullError(
                "the queue found no room in time; nothing was written", reason="queue", limit_bytes=limit
            )

    def enqueue(self, ticket: SingleTicket, *, wait: bool = False) -> None:
        """Queue a ticket when there is room; with `wait` whatever `on_full` says, also on an event loop."""
        driver = self._driver
        if wait:
            while not driver.enqueue(ticket):
                driver.wait_for_room(ticket.size_bytes, None)
            return
        if driver.enqueue(ticket):
            return
        if on_event_loop():
            if driver.wait_for_room(ticket.size_bytes, 0) and driver.enqueue(ticket):
                return
            limit = self._queue_bytes_max
            raise LogFullError(
                f"the queue holds {limit:,} bytes; await log.append_async(...) waits for room on an event loop",
                reason="queue",
                limit_bytes=limit,
            )
        while True:
            self._make_room(ticket.size_bytes, None)
            if driver.enqueue(ticket):
                return

    async def append_async(self, ticket: SingleTicket) -> AppendResult:
        """Queue a ticket, and return when it is acknowledged; the event loop is blocked by neither."""
        while not self._driver.enqueue(ticket):
            await self.room_async()
        return await ticket

    async def room_async(self) -> None:
        """Wait until there may be room, without blocking the event loop."""
        wait = asyncio_wait.TaskWait(asyncio_wait.running_loop())
        wake = self._driver.delivery.wake_tasks
        self._driver.on_space(lambda: wake(asyncio_wait.waits_of(wait)))
        await wait

    # -- many records, as checked columns

    def submit_rows(self, rows: Rows) -> TicketList:
        """Queue the records and return one ticket for all; see `WriteAheadLog.submit_many`."""
        return self._queue(self._tickets(rows), wait=False)

    def append_rows(self, rows: Rows) -> AppendResult:
        """Append the records and return when all are acknowledged; see `WriteAheadLog.append_many`."""
        tickets = self._tickets(rows)
        first = list(islice(tickets, 2))
        if len(first) == 1:
            # One frame: the caller writes it itself, if no other is writing, and no thread has to be woken.
            try:
                return self.append(first[0], None)
            except WalkitError as error:
                vars(error)["acknowledged_prefix"] = 0
                raise
        self._driver.refuse_waiting()
        return self._queue(chain(first, tickets), wait=True).result()

    def _tickets(self, rows: Rows) -> Iterator[SingleTicket]:
        return tickets_of(self._driver, self._limit_bytes, rows, MANY_FRAME_BYTES, self._records_max)

    def _queue(self, waiting: Iterator[SingleTicket], *, wait: bool) -> TicketList:
        tickets: list[SingleTicket] = []
        for ticket in waiting:
            if tickets:
                ticket.after = tickets[-1]  # must not be written without it, if the disk is full
            try:
                self.enqueue(ticket, wait=wait and bool(tickets))
            except WalkitError as error:
                if not tickets:
                    raise
                SealedFrame.refused([ticket], error)
                tickets.append(ticket)
                break
            finally:
                ticket.after = None
            tickets.append(ticket)
        core = self._driver.core
        return TicketList(tickets, core.acked_lsn, core.position, core.identity.epoch_id)
