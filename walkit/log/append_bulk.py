"""Appending many records in one call: cut into frames, queued one after the other, and waited for together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from walkit.commit.driver import CommitDriver
from walkit.commit.frame import SealedFrame
from walkit.commit.ticket import SingleTicket
from walkit.errors import WalkitError
from walkit.log.append import Appender
from walkit.log.column_input import Rows, tickets_of
from walkit.log.transaction import TicketList
from walkit.record import AppendResult

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
