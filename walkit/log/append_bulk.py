"""The ways to append many records at once: lists, Arrow columns, whole Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from walkit._arrow import pa
from walkit.commit.driver import CommitDriver
from walkit.commit.frame import SealedFrame
from walkit.commit.ticket import ManyTicket, SingleTicket
from walkit.errors import RecordTypeError, WalkitError
from walkit.format.layout import RECORDS_PER_FRAME_MAX
from walkit.log.column_input import Rows, rows_of, rows_of_arrow, tickets_of
from walkit.log.transaction import TicketGroup
from walkit.log.validate import Values, make_ticket
from walkit.record import AppendResult, Kind, encode_bundle

if TYPE_CHECKING:
    from walkit.log.engine import LogEngine

MANY_FRAME_BYTES = 2 << 20
"""A frame of many records is about so large: writing costs more than beginning to write, and the queue stays short."""


class ManyWays:
    """The half of a log's surface that takes many records in one call. Safe from any thread."""

    _engine: LogEngine
    _driver: CommitDriver
    _limit_bytes: int
    _records_max = RECORDS_PER_FRAME_MAX
    """Most records of one call that stay together: fewer than a frame takes where a store's journal has fewer slots."""

    def admit_through(self, driver: Any, records_max: int) -> None:
        """Put something before the commit driver that says what may come in, and has the same ways in.

        What is written in one call may then be cut into frames of so many records. For a store's journal.
        """
        self._driver, self._records_max = driver, records_max

    def _refuse_closed(self) -> None:
        raise NotImplementedError

    def _append(self, ticket: SingleTicket, timeout: float | None) -> AppendResult:
        raise NotImplementedError

    def _enqueue_slowly(self, ticket: SingleTicket, *, wait: bool = False) -> None:
        raise NotImplementedError

    def submit_many(self, values: Values, keys: Values | None = None) -> TicketGroup:
        """Queue many records and return one ticket for all of them; not atomic where they need several frames.

        Blocks and refuses as `submit` does; once a part is queued, a refusal of the rest is told by the ticket.
        """
        self._refuse_closed()
        return self._queue(self._tickets(rows_of(values, keys)), wait=False)

    def append_many(self, values: Values, keys: Values | None = None) -> AppendResult:
        """Append many records (a list of bytes, or an Arrow binary array) and return when all are acknowledged.

        Not atomic: an error carries `acknowledged_prefix`, the number of records of this call that were acknowledged.
        The records of other callers may stand between them. Waits for room, but for `on_full="raise"` and a queue that
        is full before any of these records is in it.
        """
        self._refuse_closed()
        return self._append_rows(rows_of(values, keys))

    def append_arrow(self, records: Any) -> AppendResult:
        """Append the records of an Arrow table or batch, one a row, and return when all are acknowledged.

        Columns: value (binary), and perhaps key (binary), kind (1 put, 2 delete, 3 bundle; default put) and timestamp
        (with a time zone, or whole microseconds since 1970). Nulls are absent. 64-bit offsets, dictionaries, slices and
        chunks are taken; text is refused, as `str` is elsewhere; whatever has `__arrow_c_stream__` is taken as a table.
        The bytes are copied. Otherwise as `append_many`.

        OptionsError for other columns (lsn too: the log gives LSNs itself), for a delete without a key or with a value,
        for a bundle that cannot be decoded, and for a timestamp that is not whole microseconds of the years 1 to 9999;
        RecordTypeError, RecordTooLargeError: nothing was written.
        """
        self._refuse_closed()
        return self._append_rows(rows_of_arrow(records))

    def append_bundle(self, batch: pa.RecordBatch, key: Any = None) -> AppendResult:
        """Append any Arrow batch as one record of kind bundle; `record.arrow()` gives the same batch back.

        The value is an Arrow IPC stream, so schema, metadata, dictionaries, nulls and nested columns come back as they
        were. All or nothing, because one record is. RecordTypeError for what is not a RecordBatch; otherwise raises
        what `append` raises.
        """
        if not isinstance(batch, pa.RecordBatch):
            raise RecordTypeError("bundle", batch, "a pyarrow.RecordBatch; of a table give its batches")
        value = encode_bundle(batch)
        return self._append(
            make_ticket(self._driver, self._limit_bytes, int(Kind.BUNDLE), key, value, None), None
        )

    def _tickets(self, rows: Rows) -> Iterator[ManyTicket]:
        return tickets_of(self._driver, self._limit_bytes, rows, MANY_FRAME_BYTES, self._records_max)

    def _append_rows(self, rows: Rows) -> AppendResult:
        tickets = self._tickets(rows)
        first = list(islice(tickets, 2))
        if len(first) == 1:
            # One frame: the caller writes it itself, if nobody is writing, and no thread has to be woken.
            try:
                return self._append(first[0], None)
            except WalkitError as error:
                vars(error)["acknowledged_prefix"] = 0
                raise
        self._driver.refuse_waiting()
        return self._queue(chain(first, tickets), wait=True).result()

    def _queue(self, waiting: Iterator[ManyTicket], *, wait: bool) -> TicketGroup:
        tickets: list[ManyTicket] = []
        for ticket in waiting:
            if tickets and tickets[-1].refused():
                break  # the disk is full: what follows must not be written without what was refused
            try:
                if not self._driver.enqueue(ticket):
                    self._enqueue_slowly(ticket, wait=wait and bool(tickets))
            except WalkitError as error:
                if not tickets:
                    raise
                SealedFrame.refused([ticket], error)
                tickets.append(ticket)
                break
            tickets.append(ticket)
        core = self._engine.core
        return TicketGroup(tickets, core.acked_lsn, core.position)
