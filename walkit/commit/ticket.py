"""Tickets: a caller's claim on records that are on their way to the log."""

from __future__ import annotations

import contextlib
import copy
from _thread import TIMEOUT_MAX, allocate_lock
from array import array
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from walkit.commit.frame import SealedFrame
from walkit.errors import CommitFailedError
from walkit.format.body import COLUMN_BYTES_PER_RECORD, Columns
from walkit.format.layout import HAS_KEY, HAS_TIMESTAMP, HAS_VALUE
from walkit.format.packed import PackedBytes
from walkit.record import AppendResult

if TYPE_CHECKING:
    import asyncio

    from walkit.commit.core import OrderingCore


class TicketHost(Protocol):
    """What a ticket asks of the driver that took it."""

    @property
    def core(self) -> OrderingCore[Any]:
        """The core whose marks an error names."""

    def attach_waiter(self, ticket: Ticket) -> Any:
        """Return a lock that is released when the ticket is done; None where it is done already."""

    def attach_callback(self, ticket: Ticket, callback: TicketCallback) -> None:
        """Run the callback on the delivery thread when the ticket is done, or soon when it already is."""


class LoopWaiter:
    """An asyncio future to be resolved on its own loop; wake-ups of one frame and loop are put together."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()

    def wake(self) -> None:
        """Resolve the future; on the loop's thread only."""
        if not self.future.done():
            self.future.set_result(None)

    def wake_from_anywhere(self) -> None:
        """Resolve the future soon, from any thread; does nothing once the loop is closed, and nobody waits on it."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.wake)


TicketCallback = LoopWaiter | Callable[["Ticket"], object]


class Ticket:
    """Records that were submitted: wait for them, await them, or be called back.

    From any thread: `result(timeout=None)` blocks until the records are acknowledged as their durability level
    promises; `exception`, `done`, `add_done_callback` are those of `concurrent.futures.Future`, but there is no
    cancelling: what was submitted is on its way. `await ticket` works on any event loop.
    """

    __slots__ = (
        "callbacks",
        "can_lead",
        "columns",
        "count",
        "first_lsn",
        "frame",
        "host",
        "key",
        "kind",
        "promoted",
        "size_bytes",
        "timestamp",
        "value",
        "waiter",
    )
    count: int
    columns: Columns | None

    def __init__(self, host: TicketHost, kind: int, key: bytes, value: bytes, timestamp: int = 0) -> None:
        self.host = host
        self.kind = kind
        self.key = key
        self.value = value
        self.timestamp = timestamp
        self.size_bytes = len(key) + len(value) + COLUMN_BYTES_PER_RECORD
        self.count = 1
        self.columns = None
        self.first_lsn = 0
        self.frame: SealedFrame | None = None
        self.waiter: Any = None
        self.can_lead = False
        self.promoted = False
        self.callbacks: list[TicketCallback] | None = None

    def done(self) -> bool:
        """Say whether the records are acknowledged or have failed."""
        frame = self.frame
        return frame is not None and frame.state != "sealed"

    def refused(self) -> bool:
        """Say whether it is certain by now that nothing of the records is ever written."""
        return self.frame is not None and self.frame.state == "refused"

    def result(self, timeout: float | None = None) -> AppendResult:
        """Wait until the records are acknowledged and return where they are; raise what became of them otherwise.

        TimeoutError after `timeout` seconds: the records are still on their way, and the ticket may be asked again.
        """
        self._wait(timeout)
        error = self._error()
        if error is not None:
            raise error
        return self.outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the error of the records, or None where they are acknowledged."""
        self._wait(timeout)
        return self._error()

    def add_done_callback(self, callback: Callable[[Ticket], object]) -> None:
        """Call `callback(ticket)` on the delivery thread when done; in LSN order with all other callbacks."""
        self.host.attach_callback(self, callback)

    def __await__(self) -> Generator[Any, None, AppendResult]:
        """Wait without blocking the event loop."""
        yield from self.settled()
        return self.result(0)

    def settled(self) -> Generator[Any, None, None]:
        """Wait without blocking the event loop until the ticket is done, whatever became of it."""
        if not self.done():
            import asyncio

            waiter = LoopWaiter(asyncio.get_running_loop())
            self.host.attach_callback(self, waiter)
            yield from waiter.future.__await__()

    def outcome(self) -> AppendResult:
        """Return where the records are; only once they are acknowledged."""
        frame = self.frame
        assert frame is not None
        return AppendResult(
            self.first_lsn, self.first_lsn + self.count - 1, frame.position, frame.next_position
        )

    def _wait(self, timeout: float | None) -> None:
        if self.done():
            return
        gate = self.host.attach_waiter(self)
        if gate is None:
            return
        if not gate.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), TIMEOUT_MAX)):
            raise TimeoutError(f"not acknowledged within {timeout} s; the records are still on their way")
        gate.release()

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


class ManyTicket(Ticket):
    """A ticket for several records, which stay together in one frame."""

    __slots__ = ()

    def __init__(self, host: TicketHost, columns: Columns, size_bytes: int) -> None:
        super().__init__(host, 0, b"", b"")
        self.columns = columns
        self.count = columns.count
        self.size_bytes = size_bytes


def new_gate() -> Any:
    """Return a lock that is held until the thing it stands for is done."""
    gate = allocate_lock()
    gate.acquire()
    return gate


def open_gate(gate: Any) -> None:
    """Let through who waits at a gate; one that is open already (its caller was handed the lead, too) stays open."""
    try:
        gate.release()
    except RuntimeError:
        return


def gather(tickets: Sequence[Ticket]) -> tuple[Columns, int]:
    """Return (the columns of a frame, its user bytes) from the tickets that share it, in their order."""
    if len(tickets) == 1:
        return _gather_one(tickets[0])
    tickets = list(tickets)
    many = [t.columns for t in tickets if t.columns is not None]
    if not many:
        return _gather_singles(tickets)
    if len(many) == len(tickets) and all(_is_packed(c) for c in many):
        return _gather_packed(many), sum(t.size_bytes - COLUMN_BYTES_PER_RECORD * t.count for t in tickets)
    kinds: list[int] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    stamps: list[int] = []
    for ticket in tickets:
        columns = ticket.columns
        if columns is None:
            kinds.append(ticket.kind)
            keys.append(ticket.key)
            values.append(ticket.value)
            stamps.append(ticket.timestamp)
            continue
        n = columns.count
        kinds.extend([columns.kinds] * n if isinstance(columns.kinds, int) else columns.kinds)
        keys.extend(_or_empty(columns.keys, n))
        values.extend(_or_empty(columns.values, n))
        stamps.extend([0] * n if columns.timestamps is None else columns.timestamps)
    return _columns(kinds, keys, values, stamps), sum(map(len, keys)) + sum(map(len, values))


def _or_empty(items: Sequence[bytes] | PackedBytes | None, count: int) -> Iterable[bytes]:
    return [b""] * count if items is None else items


def _is_packed(columns: Columns) -> bool:
    return all(items is None or isinstance(items, PackedBytes) for items in (columns.keys, columns.values))


def _gather_packed(many: list[Columns]) -> Columns:
    """Put packed columns below each other without making an object of any record."""
    kinds: int | bytes
    if len({c.kinds if isinstance(c.kinds, int) else -1 for c in many}) == 1 and isinstance(
        many[0].kinds, int
    ):
        kinds = many[0].kinds
    else:
        kinds = b"".join(
            bytes((c.kinds,)) * c.count if isinstance(c.kinds, int) else bytes(c.kinds) for c in many
        )
    stamps: array[int] | None = None
    if any(c.timestamps is not None for c in many):
        stamps = array("q")
        for columns in many:
            stamps.extend(array("q", columns.timestamps or bytes(8 * columns.count)))
    return Columns(
        sum(c.count for c in many),
        kinds,
        _stacked([(c.count, c.keys) for c in many]),
        _stacked([(c.count, c.values) for c in many]),
        stamps,
    )


def _stacked(columns: list[tuple[int, Sequence[bytes] | PackedBytes | None]]) -> PackedBytes | None:
    if all(items is None for _, items in columns):
        return None
    return PackedBytes.joined(
        [items if isinstance(items, PackedBytes) else PackedBytes.empties(count) for count, items in columns]
    )


def _gather_one(ticket: Ticket) -> tuple[Columns, int]:
    columns, kind = ticket.columns, ticket.kind
    if columns is None:
        columns = Columns(
            1,
            kind,
            (ticket.key,) if kind & HAS_KEY else None,
            (ticket.value,) if kind & HAS_VALUE else None,
            (ticket.timestamp,) if kind & HAS_TIMESTAMP else None,
        )
    return columns, ticket.size_bytes - COLUMN_BYTES_PER_RECORD * ticket.count


def _gather_singles(tickets: list[Ticket]) -> tuple[Columns, int]:
    columns = _columns(
        [t.kind for t in tickets],
        [t.key for t in tickets],
        [t.value for t in tickets],
        [t.timestamp for t in tickets],
    )
    return columns, sum(t.size_bytes for t in tickets) - COLUMN_BYTES_PER_RECORD * len(tickets)


def _columns(kinds: list[int], keys: list[bytes], values: list[bytes], stamps: list[int]) -> Columns:
    seen = set(kinds)
    present = 0
    for kind in seen:
        present |= kind
    return Columns(
        len(kinds),
        kinds[0] if len(seen) == 1 else kinds,
        keys if present & HAS_KEY else None,
        values if present & HAS_VALUE else None,
        stamps if present & HAS_TIMESTAMP else None,
    )
