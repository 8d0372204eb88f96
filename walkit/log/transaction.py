"""Many records under one claim: transactions (all or nothing) and groups of tickets (not atomic)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from walkit._internal.arguments import refuse
from walkit._internal.text import counted, lsn_range
from walkit.commit.ticket import SingleTicket, Ticket, TicketHost
from walkit.errors import LogClosedError
from walkit.log.validate import DELETE, PUT, as_bytes, as_stamp, transaction_ticket
from walkit.record import AppendResult


class Transaction:
    """Operations that are appended together when the `with` block ends: all or nothing.

    They share one frame, so a crash keeps all of them or none. An exception in the block appends nothing. One thread at
    a time may use it. After the block `result` says where the operations are (None where there were none).
    """

    def __init__(
        self, host: TicketHost, limit_bytes: int, append: Callable[[SingleTicket], AppendResult]
    ) -> None:
        self._host = host
        self._limit_bytes = limit_bytes
        self._append = append
        self._operations: list[tuple[int, bytes | None, bytes | None, int | None]] = []
        self._open = self._used = False
        self.result: AppendResult | None = None

    def _add(self, kind: int, key: Any, value: Any, timestamp: datetime | int | None) -> None:
        if not self._open:
            raise LogClosedError("the transaction is over, or was not begun with `with`")
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
        self._open = False
        if kind is None and self._operations:
            self.result = self._append(transaction_ticket(self._host, self._limit_bytes, self._operations))


class TicketList:
    """One claim on many records that may stand in several frames: waits for all of them, in order."""

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
        """Wait until all records are acknowledged and return where they are.

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
