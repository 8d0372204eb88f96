"""Tickets: a caller's claim on records that are on their way to the log."""

from __future__ import annotations

import copy
from _thread import TIMEOUT_MAX, allocate_lock
from collections.abc import Callable, Generator
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from walkit._internal.text import counted
from walkit.commit.asyncio_wait import TaskWait, is_woken_at_once
from walkit.commit.frame import SealedFrame
from walkit.errors import CommitFailedError, WaitTimeoutError
from walkit.format.body import COLUMN_BYTES_PER_RECORD, Columns
from walkit.record import AppendResult

if TYPE_CHECKING:
    from walkit.commit.core import OrderingCore


class TicketHost(Protocol):
    """What a ticket asks of the driver that took it."""

    @property
    def core(self) -> OrderingCore[Any]:
        """The core whose marks an error names."""

    def attach_latch(self, ticket: Ticket) -> Any:
        """Return a lock that is released when the ticket is done; None where it is done already."""

    def attach_task_wait(self, ticket: Ticket, wait: TaskWait) -> bool:
        """Have a task woken when the ticket is done; False where it is done, or wakes one already."""

    def attach_callback(self, ticket: Ticket, callback: TicketCallback) -> None:
        """Run the callback on the delivery thread when the ticket is done, or soon when it already is."""


TicketCallback = TaskWait | Callable[["Ticket"], object]


new_tuple = tuple.__new__
"""Makes a named tuple without a call of its class, which every record would pay."""


class LeaderState(IntEnum):
    """What the caller of a ticket has to do with leading."""

    NO_LEADER = 0
    """Never elected: its caller does not wait, or on the main thread, or leads at once."""
    CAN_LEAD = 1
    """Its caller waits in the queue, and may be elected."""
    TO_LEAD = 2
    """Its caller was elected, and is woken."""
    HAS_LED = 3
    """Its caller has led, and waits for its ticket."""
    HAS_LEFT = 4
    """Its caller waits no more."""


NO_LEADER: Final = LeaderState.NO_LEADER
CAN_LEAD: Final = LeaderState.CAN_LEAD
TO_LEAD: Final = LeaderState.TO_LEAD
HAS_LED: Final = LeaderState.HAS_LED
HAS_LEFT: Final = LeaderState.HAS_LEFT


class Ticket:
    """Records that were submitted: wait for them, await them, or be called back.

    From any thread: `result(timeout=None)` blocks until the records are acknowledged as their durability level
    promises; `exception`, `done`, `add_done_callback` are those of `concurrent.futures.Future`, but there is no
    cancelling: what was submitted is written. `await ticket` works on any event loop.
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
        """Make room for what waits for it; under the driver's lock, before it is done."""

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
        """Return why nothing of the records is ever written; None where that is not certain by now."""
        frame = self.frame
        return None if frame is None or frame.state != "refused" else self._error()

    def result(self, timeout: float | None = None) -> AppendResult:
        """Wait until the records are acknowledged and return where they are; raise what became of them otherwise.

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
        """Wait, and return the error of the records, or None where they are acknowledged."""
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
        if frame.state == "refused":
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


def new_latch() -> Any:
    """Return a latch: a lock that one thread waits to acquire, and that another releases once, to open it."""
    latch = allocate_lock()
    latch.acquire()
    return latch


def open_latch(latch: Any) -> None:
    """Open a latch; one that is open already (its caller was elected, too) stays open."""
    try:
        latch.release()
    except RuntimeError:
        return
