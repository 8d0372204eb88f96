"""The write-ahead log as people use it."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from walkit.commit import taskwait
from walkit.commit.batch import BatchTicket
from walkit.commit.ticket import SingleTicket, Ticket
from walkit.config import LogOptions, as_lsn, as_seconds
from walkit.errors import (
    AppendTimeoutError,
    CommitTimeoutError,
    GapError,
    LogFullError,
    OptionsError,
)
from walkit.events import EventSink
from walkit.format.manifest import HoldRecord, Manifest
from walkit.log.cursor import CursorPlace, CursorSurface
from walkit.log.dropped import close_dropped, watch_exit
from walkit.log.engine import LogEngine
from walkit.log.holds import live_holds
from walkit.log.intake import DELETE, PUT, make_ticket
from walkit.log.many import ManyWays
from walkit.log.observe import DurableFrames, Observation
from walkit.log.reader import LogView
from walkit.log.report import RecoveryReport
from walkit.log.show import log_html
from walkit.log.transaction import Transaction
from walkit.log.upkeepsurface import UpkeepSurface
from walkit.metrics import LogStatistics
from walkit.record import AppendResult, Record
from walkit.text import lsn_range
from walkit.threads import Bell

_open_logs: weakref.WeakSet[WriteAheadLog] = weakref.WeakSet()


class WriteAheadLog(ManyWays, CursorSurface, UpkeepSurface):
    """A log that is open for writing. Made by `walkit.open`; a context manager. Safe from any thread.

    What an acknowledgement promises is the log's durability level: "sync" (the default) means that the records are on
    stable storage when `append` returns. Records are acknowledged in LSN order, but for `ack_order="completion"`:
    there each frame is as soon as it is written, and `acked_lsn` is the last LSN with everything before it: that far
    readers, observers and other processes see.
    """

    def __init__(self, engine: LogEngine) -> None:
        self._engine = engine
        self._driver = engine.driver
        self._limit_bytes = min(engine.core.body_bytes_max, engine.options.queue_bytes_max)
        self._finalizer = weakref.finalize(self, close_dropped, engine)
        watch_exit()
        _open_logs.add(self)

    # -- appending

    def append(
        self,
        value: Any,
        key: Any = None,
        timestamp: datetime | int | None = None,
        timeout: float | None = None,
    ) -> AppendResult:
        """Append one record and return when it is acknowledged.

        `value` and `key` are bytes or other buffers (copied); None is absent, which is not the same as empty.
        `timestamp` is an aware datetime or microseconds since 1970. With `timeout` seconds the call ends in
        LogFullError if the queue had no room by then, in AppendTimeoutError if the record was still waiting for its
        frame (both: nothing was written), and in CommitTimeoutError if the write was under way: it may still become
        durable. The last two are TimeoutErrors.

        Raises RecordTypeError, RecordTimeError, RecordTooLargeError, OptionsError (no such timeout), LogFullError,
        LogExhaustedError, LogClosedError, LogPoisonedError: nothing was written; CommitFailedError: outcome unknown.
        """
        if timeout is timestamp is None and type(value) is bytes and (key is None or type(key) is bytes):
            result = self._driver.append_put(key, value)
            if result is not None:
                return result
        return self._append(make_ticket(self._driver, self._limit_bytes, PUT, key, value, timestamp), timeout)

    def delete(self, key: Any, timestamp: datetime | int | None = None) -> AppendResult:
        """Append a tombstone for `key` and return when it is acknowledged. Raises what `append` raises."""
        if key is None:
            raise OptionsError("a tombstone needs a key; nothing was written", option="key")
        return self._append(make_ticket(self._driver, self._limit_bytes, DELETE, key, None, timestamp), None)

    def _append(self, ticket: SingleTicket, timeout: float | None) -> AppendResult:
        if timeout is not None:
            return self._append_until(ticket, time.monotonic() + as_seconds(timeout))
        while not self._driver.append(ticket):
            self._make_room(ticket.size_bytes, None)
        return ticket.result(0)

    def _append_until(self, ticket: SingleTicket, deadline: float) -> AppendResult:
        while not self._driver.enqueue(ticket):
            self._make_room(ticket.size_bytes, deadline)
        try:
            return ticket.result(max(deadline - time.monotonic(), 0))
        except TimeoutError:
            if self._driver.withdraw(ticket):
                raise AppendTimeoutError("not written in time; nothing of it was written") from None
            if ticket.done():
                return ticket.result(0)
            raise CommitTimeoutError(
                "the write was under way when the time was over; it may still become durable",
                acked_lsn=self.acked_lsn,
            ) from None

    def _make_room(self, size_bytes: int, deadline: float | None) -> None:
        """Wait for room in the queue, or say that there is none."""
        limit = self._engine.options.queue_bytes_max
        if self._engine.options.on_full == "raise":
            raise LogFullError(
                f"the queue holds {limit:,} bytes already; try again", reason="queue", limit_bytes=limit
            )
        timeout = None if deadline is None else max(deadline - time.monotonic(), 0)
        if not self._driver.wait_for_room(size_bytes, timeout):
            raise LogFullError(
                "the queue found no room in time; nothing was written", reason="queue", limit_bytes=limit
            )

    def submit(self, value: Any, key: Any = None, timestamp: datetime | int | None = None) -> Ticket:
        """Queue one record and return its Ticket at once; nothing is durable yet.

        Blocks only where the queue is full and `on_full="block"`; on an event loop's thread a full queue raises
        LogFullError instead.
        """
        if timestamp is None and type(value) is bytes and (key is None or type(key) is bytes):
            queued = self._driver.enqueue_put(key, value, BatchTicket())
            if queued is not None:
                return queued
        ticket = make_ticket(self._driver, self._limit_bytes, PUT, key, value, timestamp)
        if not self._driver.enqueue(ticket):
            self._enqueue_slowly(ticket)
        return ticket

    def _enqueue_slowly(self, ticket: SingleTicket, *, wait: bool = False) -> None:
        """Queue a ticket when there is room; with `wait` whatever `on_full` says, also on an event loop."""
        if wait:
            while not self._driver.enqueue(ticket):
                self._driver.wait_for_room(ticket.size_bytes, None)
            return
        if _on_event_loop():
            if self._driver.wait_for_room(ticket.size_bytes, 0) and self._driver.enqueue(ticket):
                return
            limit = self._engine.options.queue_bytes_max
            raise LogFullError(
                f"the queue holds {limit:,} bytes; await log.append_async(...) waits for room on an event loop",
                reason="queue",
                limit_bytes=limit,
            )
        while True:
            self._make_room(ticket.size_bytes, None)
            if self._driver.enqueue(ticket):
                return

    async def append_async(
        self, value: Any, key: Any = None, timestamp: datetime | int | None = None
    ) -> AppendResult:
        """Append one record without blocking the event loop: waits for room, then until it is acknowledged.

        Cancelling stops the waiting, not a record that was queued already.
        """
        driver = self._driver
        if timestamp is None and type(value) is bytes and (key is None or type(key) is bytes):
            while (queued := driver.enqueue_awaited(key, value)) is None:
                await self._room_async()
            return await queued
        ticket = make_ticket(driver, self._limit_bytes, PUT, key, value, timestamp)
        while not driver.enqueue(ticket):
            await self._room_async()
        return await ticket

    async def _room_async(self) -> None:
        wait = taskwait.TaskWait(taskwait.running_loop())
        self._driver.on_room(wait.wake_from_anywhere)
        await wait

    def transaction(self) -> Transaction:
        """Return a context manager that appends its operations all or nothing; nothing on an exception."""
        return Transaction(self._driver, self._limit_bytes, lambda ticket: self._append(ticket, None))

    def sync(self) -> int:
        """Make everything that was appended before this call durable; return the durable LSN."""
        self._refuse_closed()
        self._driver.wait_acked()
        self._driver.sync()
        return self.durable_lsn

    # -- reading

    def _now(self) -> tuple[LogView, int]:
        self._refuse_closed()
        newest = self.acked_lsn
        return self._engine.view(), newest

    def _cursor_place(self) -> CursorPlace:
        self._refuse_closed()
        return CursorPlace(self._engine.storage, self._engine.events)

    def _holds_of(self, manifest: Manifest) -> tuple[HoldRecord, ...]:
        return live_holds(self._engine, manifest, tell=False)

    def _make_durable(self, lsn: int) -> int:
        """See CursorSurface."""
        return self.durable_lsn if self.durable_lsn >= lsn else self.sync()

    def _refuse_closed(self) -> None:
        if self._engine.closed:
            raise self._driver.refused()

    def follow(self, first_lsn: int, timeout: float | None = None) -> Iterator[Record]:
        """Yield records from `first_lsn` on, and go on with new ones as they are acknowledged.

        Ends when the log is closed, after its last record, or, with `timeout`, after that many seconds without a new
        record. LogPoisonedError when the log has failed, after its last acknowledged record. GapError where a record
        was trimmed or compacted away before it was yielded: never a skip.
        """
        self._refuse_closed()
        return self._follow(max(as_lsn(first_lsn, "first_lsn"), 1), timeout)

    def _follow(self, wanted: int, timeout: float | None) -> Iterator[Record]:
        engine = self._engine
        news = Bell()
        engine.followers.add(news)
        observation = Observation(engine, lambda _: news.set(), news=True)
        try:
            while True:
                news.clear()
                ended, failed = engine.ended, engine.core.failure is not None and not engine.core.in_flight
                newest = engine.core.acked_lsn
                view = engine.view()
                if wanted < view.complete_from_lsn:
                    raise GapError(wanted, view.complete_from_lsn)
                if wanted <= newest:
                    yield from view.records(wanted, newest)
                    wanted = newest + 1
                elif failed:
                    raise self._driver.refused()
                elif ended or not news.wait(timeout):
                    return
        finally:
            engine.followers.discard(news)
            observation.close()

    # -- marks

    @property
    def first_lsn(self) -> int:
        """The oldest LSN that can still be read; one more than the last where the log is empty."""
        return self._engine.first_lsn

    @property
    def appended_lsn(self) -> int:
        """The last LSN given to a record; 0 where there is none."""
        return self._engine.core.appended_lsn

    @property
    def acked_lsn(self) -> int:
        """The last LSN acknowledged, with everything before it."""
        return self._engine.core.acked_lsn

    @property
    def durable_lsn(self) -> int:
        """The last LSN on stable storage, with everything before it."""
        return self._engine.core.durable_lsn

    @property
    def recovery(self) -> RecoveryReport:
        """What this opening found and did."""
        assert self._engine.recovery is not None
        return self._engine.recovery

    @property
    def events(self) -> EventSink:
        """Where the log's events go; listeners can be added to it."""
        return self._engine.events

    @property
    def options(self) -> LogOptions:
        """The options of this opening."""
        return self._engine.options

    @property
    def location(self) -> str:
        """Where the log is: a path or a URL."""
        return self._engine.storage.location

    @property
    def closed(self) -> bool:
        """Whether the log has been closed."""
        return self._engine.closed

    def statistics(self) -> LogStatistics:
        """Return a frozen snapshot of the log's named metrics."""
        return self._engine.statistics()

    # -- consumers

    def observe(self, callback: Callable[[DurableFrames], object]) -> Observation:
        """Call `callback(DurableFrames)` for every frame acknowledged from now on: in order, on the delivery thread.

        No lock is held, and the commit path does not wait; of a callback that raises the first error is an event, all
        are counted. One that is slow gets older frames from the log, not from memory: see Observation.
        """
        self._refuse_closed()
        return Observation(self._engine, callback)

    def close(self) -> None:
        """Write what is queued, seal the log and free it. Closing twice does nothing.

        From a callback of `events=` it returns at once, and the log closes when the callback has returned. An interrupt
        (Ctrl-C) does not end the closing: it is raised when the log is closed and free, or after two seconds, and the
        log closes by itself when the device has answered.
        """
        self._engine.close()
        self._finalizer.detach()
        _open_logs.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<WriteAheadLog {self.location} {state}: {lsn_range(self.first_lsn, self.acked_lsn)}>"

    def _repr_html_(self) -> str:
        return log_html(self._engine)


def opened() -> list[WriteAheadLog]:
    """Return the logs that are open for writing in this process, oldest first."""
    return sorted((log for log in _open_logs if not log.closed), key=lambda log: log._engine.opened_at)


def _on_event_loop() -> bool:
    if "asyncio" not in sys.modules:  # nobody runs a loop
        return False
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
