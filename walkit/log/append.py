"""Appending: tickets, of one record or of many, into the queue and until they are acknowledged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain, islice

from walkit._internal.arguments import as_seconds
from walkit._internal.threads import on_event_loop
from walkit.commit import asyncio_wait
from walkit.commit.driver import CommitDriver
from walkit.commit.frame import SealedFrame
from walkit.commit.ticket import SingleTicket
from walkit.config import LogOptions
from walkit.errors import AppendTimeoutError, CommitTimeoutError, LogFullError, WaitTimeoutError, WalkitError
from walkit.log.column_input import Rows, tickets_of
from walkit.log.transaction import TicketList
from walkit.record import AppendResult


class Appender:
    """Brings tickets into the queue of one log as its options say. Safe from any thread."""

    def __init__(self, driver: CommitDriver, options: LogOptions) -> None:
        self._driver = driver
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
        """Wait for room in the queue, or say that there is none."""
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

    async def enqueue_async(self, ticket: SingleTicket) -> None:
        """Queue a ticket, without blocking the event loop while there is no room."""
        while not self._driver.enqueue(ticket):
            await self.room_async()

    async def room_async(self) -> None:
        """Wait until there may be room, without blocking the event loop."""
        wait = asyncio_wait.TaskWait(asyncio_wait.running_loop())
        wake = self._driver.delivery.wake_tasks
        self._driver.on_room(lambda: wake(asyncio_wait.waits_of(wait)))
        await wait


MANY_FRAME_BYTES = 2 << 20
"""A frame of many records is about so large: writing costs more than beginning to write, and the queue stays short."""


class BulkAppender:
    """Appends checked columns of records to one log. Safe from any thread."""

    def __init__(self, driver: CommitDriver, appender: Appender, limit_bytes: int, records_max: int) -> None:
        """`records_max` records stay together at most: fewer than a frame takes where a gate lets in fewer."""
        self._driver = driver
        self._appender = appender
        self._limit_bytes = limit_bytes
        self._records_max = records_max

    def submit(self, rows: Rows) -> TicketList:
        """Queue the records and return one ticket for all; see `WriteAheadLog.submit_many`."""
        return self._queue(self._tickets(rows), wait=False)

    def append(self, rows: Rows) -> AppendResult:
        """Append the records and return when all are acknowledged; see `WriteAheadLog.append_many`."""
        tickets = self._tickets(rows)
        first = list(islice(tickets, 2))
        if len(first) == 1:
            # One frame: the caller writes it itself, if no other is writing, and no thread has to be woken.
            try:
                return self._appender.append(first[0], None)
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
                ticket.after = tickets[-1]  # must not be written without it, where the disk is full
            try:
                self._appender.enqueue(ticket, wait=wait and bool(tickets))
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
