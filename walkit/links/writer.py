"""Writes large values: first to the payload log, and then as links to the log.

A ticket with a large value is queued at once, so it has its place, and is held: neither it nor a later ticket is
written (`OrderingCore.held`). One thread takes held tickets in the order of the queue, appends their values to the
payload log, and releases each ticket, with links instead of its values, once all of them are durable. So payloads
have LSNs in the order of their records, and `floor` needs to look for the first link alone.

A payload of a record that is withdrawn, refused or never written is dead. It goes with those before the oldest live
link.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from walkit._internal.locks import WORK, marked
from walkit._internal.threads import Latch, LogThread, WakeEvent
from walkit.commit.policy import CappedFrames
from walkit.commit.ticket import PUT_KEYED, PUT_VALUE, BatchSlot, SingleTicket, Ticket
from walkit.config import LogOptions
from walkit.errors import (
    LogClosedError,
    PayloadUnreachableError,
    RecordTooLargeError,
    WaitTimeoutError,
    WalkitError,
)
from walkit.format.body import Columns, PackedBytes, one_record
from walkit.format.checksum import crc32c
from walkit.format.layout import KIND_MASK
from walkit.log.log_parts import LogParts
from walkit.log.wal import WriteAheadLog
from walkit.read.payloads import LINK
from walkit.read.view import View
from walkit.record import LINK_BYTES, AppendResult, Kind, Link

MIB: Final = 1 << 20
FRAME_GOAL_BYTES: Final = MIB
"""A frame of the payload log takes about so much, or one value: who reads a value reads its frame."""
VALUE_BYTES_MAX: Final = 64 * MIB
RETRY_S: Final = 0.2
"""How long the writer waits before it opens a payload log again that was away."""
CLOSE_S: Final = 60.0


def payload_options(options: LogOptions) -> LogOptions:
    """Return the options of the payload log of a log with these options."""
    return LogOptions(
        segment_bytes=VALUE_BYTES_MAX + 2 * MIB,
        frame_bytes_max=VALUE_BYTES_MAX + MIB,
        queue_bytes_max=max(options.queue_bytes_max, VALUE_BYTES_MAX + MIB),
        write_timeout_ms=options.write_timeout_ms,
        policy=CappedFrames(size_bytes=FRAME_GOAL_BYTES),
    )


@dataclass(slots=True, eq=False)
class Held:
    """A ticket's values, and which of them go to the payload log."""

    values: list[bytes]
    """Of all its records, as long as it is held."""
    rows: list[int]
    """The records whose values go."""
    deadline_s: float
    """When it is refused, by the monotonic clock."""
    size_bytes: int
    """The bytes of its records with links instead of values, as a ticket counts them."""
    payloads: list[Ticket] = field(default_factory=list)
    """The tickets of the values in the payload log."""


def has_large(ticket: SingleTicket, over: int) -> bool:
    """Say whether any value of a ticket is larger than `over` bytes."""
    columns = ticket.columns
    if columns is None:
        return len(ticket.value) > over
    values = columns.values
    if isinstance(values, PackedBytes):
        return int(values.lengths.max(initial=0)) > over
    return values is not None and max(map(len, values), default=0) > over


def columns_of(ticket: SingleTicket) -> Columns:
    """Return the records of a ticket as columns."""
    return ticket.columns or one_record(ticket.kind, ticket.key, ticket.value, ticket.timestamp)


def kinds_of(columns: Columns) -> list[int]:
    """Return the kind byte of each record."""
    return [columns.kinds] * columns.count if isinstance(columns.kinds, int) else list(columns.kinds)


def linked(columns: Columns, held: Held, links: list[Link]) -> Columns:
    """Return the records of a held ticket with links instead of its large values."""
    kinds, values = kinds_of(columns), held.values.copy()
    for row, link in zip(held.rows, links, strict=True):
        kinds[row] = kinds[row] & ~KIND_MASK | LINK
        values[row] = link.encode()
    return Columns(columns.count, kinds, columns.keys, values, columns.timestamps)


def close_opened(opening: Future[WriteAheadLog]) -> None:
    """Close the log of an opening whose caller has left."""
    if opening.exception() is None:
        opening.result().close()


class PayloadWriter:
    """Writes the large values of one open log to its payload log. All public methods are safe from any thread.

    It knows parts of the log and not the user's object, so that this one can be dropped.
    """

    def __init__(
        self, parts: LogParts, open_log: Callable[[], WriteAheadLog], payload_log: WriteAheadLog
    ) -> None:
        """`open_log` opens the payload log again, after a failure; `payload_log` is open."""
        assert parts.options.link_over is not None
        self._over: int = parts.options.link_over
        self._parts, self._driver, self._core = parts, parts.driver, parts.core
        self._open_log, self.location = open_log, parts.storage.location
        self.log_id = payload_log.parts.manifest_store.current.log_id
        # Replaced by the writer's thread alone; read by any.
        self.log = payload_log
        """The payload log. It may have failed, and is replaced then when it is needed."""
        self._limit_bytes = min(self._core.body_bytes_max, self._driver.queue_bytes_max)
        timeout_ms = parts.options.write_timeout_ms
        self._timeout_s = float("inf") if timeout_ms is None else timeout_ms / 1000
        self._wake, self._closing = WakeEvent(), Latch()
        self._cause: WalkitError | None = None
        """Why the payload log is away; of the writer's thread."""
        # Appended by the writer's thread, and taken from the left with the driver's lock held.
        self._released: deque[tuple[int, SingleTicket]] = deque()
        """Each ticket that was released and is perhaps not written yet, with the payload that was settled before."""
        self._settled_lsn = payload_log.acked_lsn
        self._ways = self._driver.wrap(
            {
                "append": self._append,
                "enqueue": self._enqueue,
                "append_put": self._append_put,
                "enqueue_put": self._enqueue_put,
                "enqueue_awaited": self._enqueue_awaited,
            }
        )
        self._thread = LogThread(target=self._run, name="walkit-payloads", daemon=True)
        self._thread.start()

    # -- ways in

    def _append_put(self, key: bytes | None, value: bytes) -> AppendResult | None:
        """See `Leader.append_put`; None for a large value, too: the log comes with a ticket then."""
        return None if len(value) > self._over else self._ways["append_put"](key, value)

    def _enqueue_put(self, key: bytes | None, value: bytes, ticket: BatchSlot) -> Ticket | None:
        return None if len(value) > self._over else self._ways["enqueue_put"](key, value, ticket)

    def _enqueue_awaited(self, key: bytes | None, value: bytes) -> Awaitable[AppendResult] | None:
        if len(value) <= self._over:
            return self._ways["enqueue_awaited"](key, value)  # type: ignore[no-any-return]
        kind, host = PUT_VALUE if key is None else PUT_KEYED, self._driver.failure.completion
        single = SingleTicket(host, kind, key or b"", value)
        return single if self._enqueue(single) else None

    def _append(self, ticket: SingleTicket) -> bool:
        held = self._held(ticket)
        if held is None:
            return bool(self._ways["append"](ticket))
        self._driver.refuse_waiting()
        if not self._hold(ticket, held):
            return False
        latch = self._driver.attach_latch(ticket)
        if latch is not None:
            latch.acquire()
        return True

    def _enqueue(self, ticket: SingleTicket) -> bool:
        held = self._held(ticket)
        return bool(self._ways["enqueue"](ticket)) if held is None else self._hold(ticket, held)

    def _held(self, ticket: SingleTicket) -> Held | None:
        """Return the large values of a ticket, or None; RecordTooLargeError for what neither log can take."""
        size, held = ticket.size_bytes, None
        if has_large(ticket, self._over):
            columns = columns_of(ticket)
            values = list(columns.values or ())
            # A delete has no value, so each large one is that of a put or a bundle.
            rows = [row for row, value in enumerate(values) if len(value) > self._over]
            largest = max(len(values[row]) for row in rows)
            if largest > VALUE_BYTES_MAX:
                raise RecordTooLargeError(largest, VALUE_BYTES_MAX, "value", is_fixed=True)
            size -= sum(len(values[row]) - LINK_BYTES for row in rows)
            held = Held(values, rows, time.monotonic() + self._timeout_s, size)
        if size > self._limit_bytes:
            raise RecordTooLargeError(size, self._limit_bytes)
        return held

    def _hold(self, ticket: SingleTicket, held: Held) -> bool:
        """Queue a ticket that waits for its payloads; False without room."""
        queued = False
        self._core.held[ticket] = held  # first: it is never queued and not held
        try:
            queued = bool(self._ways["enqueue"](ticket))
        finally:
            if not queued:
                self._core.held.pop(ticket, None)
        self._wake.set()
        return queued

    # -- the writer's thread

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            try:
                while waiting := self._waiting():
                    cause = self._write(waiting)
                    self._cause = cause
                    if cause is not None:
                        # The payload log is away: all that is held is tried again, in the same order.
                        self._refuse_late(cause)
                        self._closing.wait(RETRY_S)
            except BaseException as error:  # noqa: BLE001 - its callers must not wait forever
                self._driver.poison(error)

    def _waiting(self) -> list[tuple[SingleTicket, Held]]:
        """Return the held tickets, in the order of the queue."""
        core = self._core
        if not core.held:
            return []
        with self._driver.lock:
            core.take_in(self._driver.election.clock.us())
            return [(t, core.held[t]) for t in core.pending if t in core.held]  # type: ignore[misc]

    def _write(self, waiting: list[tuple[SingleTicket, Held]]) -> WalkitError | None:
        """Write the payloads of held tickets, and release each in order. Return why the payload log is away."""
        try:
            log = self._ready()
            for _, held in waiting:
                held.payloads = [log.submit(held.values[row]) for row in held.rows]
        except WalkitError as error:
            return error
        causes = (self._finish(ticket, held) for ticket, held in waiting)
        return next((cause for cause in causes if cause is not None), None)

    def _finish(self, ticket: SingleTicket, held: Held) -> WalkitError | None:
        """Wait for the payloads of a ticket, and release it. Return the error of a payload log that has failed.

        A ticket that the payload log refuses, though it works, is refused: its disk is full, or the time is over.
        """
        columns = columns_of(ticket)
        kinds, links = kinds_of(columns), list[Link]()
        try:
            for row, payload in zip(held.rows, held.payloads, strict=True):
                left_s = held.deadline_s - time.monotonic()
                found = payload.result(None if left_s == float("inf") else max(left_s, 0))
                value, kind = held.values[row], Kind(kinds[row] & KIND_MASK)
                crc = crc32c(value)
                links.append(Link(self.log_id, found.epoch_id, found.first_lsn, len(value), crc, kind))
        except WalkitError as error:
            if self.log.parts.driver.refusal is not None:
                return error
            self._refuse(ticket, error)
            return None
        # First: a trim meanwhile must not free its payloads. All from the last settled one on waits for this record:
        # on object storage a newer writer of the log may have written some, and then this frame is refused.
        self.settled()
        self._released.append((self._settled_lsn, ticket))
        if self._driver.release(ticket, linked(columns, held, links), held.size_bytes):
            self._settled_lsn = links[-1].lsn
        return None  # one that was withdrawn or refused has dead payloads

    def _ready(self) -> WriteAheadLog:
        """Return the payload log, opened again if it has failed. WalkitError if it is still away."""
        if self.log.parts.driver.refusal is None:
            return self.log
        opening = Future[WriteAheadLog]()
        LogThread(target=self._reopen, args=(opening,), name="walkit-payloads-open", daemon=True).start()
        while not wait([opening], RETRY_S).done:
            self._refuse_late(self._cause or WaitTimeoutError("the payload log did not answer in time"))
            if self._closing.is_set():
                opening.add_done_callback(close_opened)
                raise LogClosedError(f"the log at {self.location} is closed")
        self.log = opening.result()
        return self.log

    def _reopen(self, opening: Future[WriteAheadLog]) -> None:
        try:
            # LogFencedError if the log has a newer writer: the payload log is that one's, too.
            self._parts.manifest_store.update(lambda manifest: manifest)
            with suppress(WalkitError):
                self.log.close()
            opening.set_result(self._open_log())
        except BaseException as error:  # noqa: BLE001 - raised by the writer's thread
            opening.set_exception(error)

    def _refuse_late(self, cause: WalkitError) -> None:
        """Refuse what has waited for its payloads as long as it may."""
        now_s = time.monotonic()
        for ticket, held in self._waiting():
            if held.deadline_s <= now_s:
                self._refuse(ticket, cause)

    def _refuse(self, ticket: SingleTicket, cause: WalkitError) -> None:
        error = PayloadUnreachableError(
            f"a value was not written to the payload log {self.log.location} ({cause}); "
            f"nothing of the record was written to {self.location}",
            location=self.location,
        )
        error.__cause__ = cause
        self._driver.refuse(ticket, error)

    # -- reading, space and end

    def now(self) -> tuple[View, int]:
        """Return what can be read of the payload log now, and its last LSN."""
        return self.log.parts.contents.view(), self.log.acked_lsn

    def settled(self) -> tuple[int, int]:
        """Return the acknowledged LSN, and a payload LSN up to which each payload has its record by then or is dead."""
        with marked(WORK), self._driver.lock:  # each view from now on has what is acknowledged now
            acked_lsn = self._core.acked_lsn
            while self._released:
                lsn, ticket = self._released[0]
                frame = ticket.frame
                if frame is None or frame.last_lsn > acked_lsn:  # one that was refused has no LSN
                    return acked_lsn, lsn
                self._released.popleft()
            return acked_lsn, self._settled_lsn

    def close(self) -> None:
        """End the thread, and close the payload log. Nothing is queued by now."""
        self._closing.set()
        self._wake.set()
        self._thread.join(CLOSE_S)
        self.log.close()
