"""The write-ahead log as people use it, and how it describes itself."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from walkit._internal.arguments import as_lsn, as_seconds, check_choice, refuse
from walkit._internal.arrow import pa
from walkit._internal.html import tag
from walkit._internal.text import lsn_range
from walkit._internal.threads import WakeEvent, reserve_stack
from walkit.commit.ports import FrameObserver
from walkit.commit.ticket import BatchSlot, Ticket
from walkit.config import LogOptions, Retention
from walkit.errors import CallbackError
from walkit.events import EventSink
from walkit.format.manifest import Manifest
from walkit.log.append import Appender, TicketList, Transaction
from walkit.log.columns import bundle_of, rows_of, rows_of_arrow
from walkit.log.follow import as_they_come, followed
from walkit.log.log_parts import LogParts
from walkit.log.observe import Observation, ObservedFrames
from walkit.log.resources import LogResources, close_dropped, watch_exit
from walkit.log.retention import RetentionProgress, RetentionReport
from walkit.log.trim import WASTE_RATIO_DEFAULT, TrimReport
from walkit.log.validate import DELETE, PUT, Values, make_ticket
from walkit.metrics import LogStatistics
from walkit.read.claim import LEASE_S_DEFAULT, Claim
from walkit.read.cursor import CursorApi
from walkit.read.inventory import SegmentShown, segments_html
from walkit.read.read_api import resolved
from walkit.read.reader import folder_source
from walkit.read.view import View
from walkit.record import AppendResult, Kind, Record
from walkit.recovery.report import Cut, RecoveryReport
from walkit.segments.consumer_files import ClaimFact
from walkit.storage.interface import Storage


def statistics_of(parts: LogParts) -> LogStatistics:
    """Return a frozen snapshot of the named metrics."""
    core, driver, segments = parts.core, parts.driver, parts.segments
    counters = driver.counters
    shown = parts.contents.segments()
    return LogStatistics(
        appended_lsn=core.appended_lsn,
        acked_lsn=core.acked_lsn,
        durable_lsn=core.durable_lsn,
        first_lsn=parts.contents.first_lsn,
        records_appended=core.appended_lsn - segments.epoch_began.last_lsn,
        records_acked=core.acked_lsn - segments.epoch_began.last_lsn,
        user_bytes=counters.user_bytes,
        frames_written=counters.frames_written,
        frame_bytes=counters.frame_bytes,
        padding_bytes=counters.padding_bytes,
        alignment=core.alignment,
        marker_frames=counters.marker_frames,
        syncs=counters.syncs,
        write_ns=counters.write_ns,
        prepare_ns=counters.prepare_ns,
        queue_records=core.pending_records,
        queue_bytes=core.pending_bytes,
        queue_bytes_max=driver.queue_bytes_max,
        deliveries_waiting=driver.delivery.waiting,
        callback_errors=driver.delivery.errors,
        rotations=segments.rotations,
        segments=len(shown),
        log_bytes=sum(s.end_position - s.start_position for s in shown),
        unacked_records=driver.ack_limit.unacked_records,
        late_records=driver.ack_limit.late_records,
        payload_dead_bytes=counters.payload_dead_bytes,
        poisoned=int(core.failure is not None),
    )


def log_html(
    title: str, state: str, marks: Mapping[str, int], segments: Sequence[SegmentShown], cuts: Sequence[Cut]
) -> str:
    """Return LSN marks, segments and the last cuts as HTML, readable on dark and on light."""
    return tag(
        "div",
        tag("b", title),
        f" ({state})",
        tag(
            "table",
            tag("tr", *(tag("td", name, " ", tag("b", f"{lsn:,}")) for name, lsn in marks.items())),
        ),
        segments_html(segments, marks, cuts),
    )


if TYPE_CHECKING:
    from walkit.read.payloads import Payloads, PayloadUsage

_open_logs: weakref.WeakSet[WriteAheadLog] = weakref.WeakSet()


class Freeing(Protocol):
    """Frees the payload log of a log, on another thread."""

    def usage(self) -> PayloadUsage:
        """Count what is live and dead in it."""

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to free; False after `timeout` seconds. StorageError."""


class WriteAheadLog(CursorApi):
    """A log that is open for writing. Made by `walkit.open`; a context manager. Safe from any thread.

    An acknowledgement promises the log's durability level: "sync" (the default) means that the records are on
    stable storage when `append` returns. Records are acknowledged in LSN order, except with `ack_order="completion"`:
    there each frame is as soon as it is written, and `acked_lsn` is the last LSN with everything before it: that far
    readers, observers and other processes see.
    """

    def __init__(self, resources: LogResources, recovery: RecoveryReport) -> None:
        self.parts = parts = resources.parts
        """The parts of the log, for objects built on it."""
        self._resources = resources
        self._recovery = recovery
        self._opened_at = time.time()
        self._lifetime, self._core = parts.lifetime, parts.core
        self._driver = parts.driver
        self._limit_bytes = min(parts.core.body_bytes_max, parts.options.queue_bytes_max)
        self._appender = Appender(parts.driver, parts.options, self._limit_bytes, parts.records_max)
        self.open_payloads = folder_source
        self._freeing: Freeing | None = None
        self._finalizer = weakref.finalize(self, close_dropped, resources)
        watch_exit()
        _open_logs.add(self)

    def payload_usage(self) -> PayloadUsage | None:
        """Count what is live and dead in the payload log, in values and bytes; None without one. Reads this log.

        GapError if records or snapshots are dropped meanwhile; LogClosedError.
        """
        self._refuse_closed()
        return None if self._freeing is None else self._freeing.usage()

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
        LogExhaustedError, LogClosedError, LogPoisonedError, CallbackError (called back during a frame):
        nothing was written; CommitFailedError: outcome unknown.
        """
        if timeout is timestamp is None and type(value) is bytes and (key is None or type(key) is bytes):
            result = self._driver.append_put(key, value)
            if result is not None:
                return result
        ticket = make_ticket(self._driver, self._limit_bytes, PUT, key, value, timestamp)
        return self._appender.append(ticket, timeout)

    def delete(self, key: Any, timestamp: datetime | int | None = None) -> AppendResult:
        """Append a tombstone for `key` and return when it is acknowledged. Raises the errors of `append`."""
        if key is None:
            refuse("key", key, "a tombstone needs a key; nothing was written")
        ticket = make_ticket(self._driver, self._limit_bytes, DELETE, key, None, timestamp)
        return self._appender.append(ticket, None)

    def submit(self, value: Any, key: Any = None, timestamp: datetime | int | None = None) -> Ticket:
        """Queue one record and return its Ticket at once; nothing is durable yet.

        Blocks only if the queue is full and `on_full="block"`; on an event loop's thread a full queue raises
        LogFullError instead.
        """
        if timestamp is None and type(value) is bytes and (key is None or type(key) is bytes):
            queued = self._driver.enqueue_put(key, value, BatchSlot())
            if queued is not None:
                return queued
        ticket = make_ticket(self._driver, self._limit_bytes, PUT, key, value, timestamp)
        self._appender.enqueue(ticket)
        return ticket

    async def append_async(
        self, value: Any, key: Any = None, timestamp: datetime | int | None = None
    ) -> AppendResult:
        """Append one record without blocking the event loop: waits for room, then until it is acknowledged.

        Cancelling stops the waiting, not a record that was queued already.
        """
        entry = self._driver
        if timestamp is None and type(value) is bytes and (key is None or type(key) is bytes):
            while (queued := entry.enqueue_awaited(key, value)) is None:
                await self._appender.room_async()
            return await queued
        ticket = make_ticket(self._driver, self._limit_bytes, PUT, key, value, timestamp)
        return await self._appender.append_async(ticket)

    def submit_many(self, values: Values, keys: Values | None = None) -> TicketList:
        """Queue many records and return one ticket for all of them; not atomic if they need several frames.

        Blocks and refuses as `submit` does; once a part is queued, the ticket reports a refusal of the rest.
        """
        self._refuse_closed()
        return self._appender.submit_rows(rows_of(values, keys, self._limit_bytes))

    def append_many(self, values: Values, keys: Values | None = None) -> AppendResult:
        """Append many records (a list of bytes, or an Arrow binary array) and return when all are acknowledged.

        Not atomic: an error carries `acknowledged_prefix`, the number of records of this call that were acknowledged.
        The records of other callers may come between them. Waits for room, except with `on_full="raise"` and a queue
        that is full before any of these records is in it.
        """
        self._refuse_closed()
        return self._appender.append_rows(rows_of(values, keys, self._limit_bytes))

    def append_arrow(self, records: Any) -> AppendResult:
        """Append the records of an Arrow table or batch, one a row, and return when all are acknowledged.

        Columns: value (binary), and perhaps key (binary), kind (1 put, 2 delete, 3 bundle; default put) and timestamp
        (with a time zone, or whole microseconds since 1970). Nulls are absent. 64-bit offsets, dictionaries, slices and
        chunks are taken; text is refused, as `str` is elsewhere; whatever has `__arrow_c_stream__` is taken as a table.
        The bytes are copied. Otherwise as `append_many`.

        OptionsError for other columns (lsn too: the log gives LSNs itself), for a delete without a key or with a value,
        for a bundle that cannot be decoded, for a timestamp that is not whole microseconds of the years 1 to 9999, and
        for Arrow data with invalid offsets, indices or buffers; RecordTypeError, RecordTooLargeError: nothing was
        written.
        """
        self._refuse_closed()
        return self._appender.append_rows(rows_of_arrow(records))

    def append_bundle(self, batch: pa.RecordBatch, key: Any = None) -> AppendResult:
        """Append any Arrow batch as one record of kind bundle; `record.arrow()` gives the same batch back.

        The value is an Arrow IPC stream, so schema, metadata, dictionaries, nulls and nested columns come back as they
        were. All or nothing, because one record is. RecordTypeError unless it is a RecordBatch, OptionsError
        for one that Arrow IPC cannot hold or that has invalid offsets, indices or buffers; otherwise as `append`.
        """
        value = bundle_of(batch, self._limit_bytes)
        ticket = make_ticket(self._driver, self._limit_bytes, int(Kind.BUNDLE), key, value, None)
        return self._appender.append(ticket, None)

    def transaction(self) -> Transaction:
        """Return a context manager that appends its operations all or nothing; nothing on an exception.

        `async with` takes it, too, and then its end does not block the event loop.
        """
        return Transaction(self._driver, self._limit_bytes, self._appender)

    def sync(self) -> int:
        """Make everything that was appended before this call durable; return the durable LSN."""
        self._refuse_closed()
        self._driver.wait_written()
        self._driver.sync()
        return self.durable_lsn

    # -- reading

    def _now(self) -> tuple[View, int]:
        self._refuse_closed()
        newest = self._core.written_lsn
        return self.parts.contents.view(), newest

    def _cursor_storage(self) -> Storage:
        self._refuse_closed()
        return self.parts.storage

    def _claims_of(self, manifest: Manifest) -> list[ClaimFact]:
        return self.parts.claims.facts(manifest)

    def _drop_claim(self, name: str) -> bool:
        return self.parts.own_claims.drop(name)

    def _make_durable(self, lsn: int) -> int:
        """See CursorApi."""
        return self.durable_lsn if self.durable_lsn >= lsn else self.sync()

    def _refuse_closed(self) -> None:
        reserve_stack()
        if self._lifetime.closed:
            raise self._driver.refused()

    def follow(self, first_lsn: int, timeout: float | None = None) -> Iterator[Record]:
        """Yield records from `first_lsn` on, and continue with new ones as they are written.

        Ends when the log is closed, after its last record, or, with `timeout`, after that many seconds without a new
        record. LogPoisonedError when the log has failed, after its last acknowledged record. GapError if a record
        was trimmed or compacted away before it was yielded: never a skip.
        """
        self._refuse_closed()
        return self._follow(max(as_lsn(first_lsn, "first_lsn"), 1), timeout)

    def _follow(self, wanted: int, timeout: float | None) -> Iterator[Record]:
        wake = WakeEvent()  # this method is the iterator, which keeps the log open
        yield from as_they_come(followed(self.parts, self, wanted, wake), wake, timeout)

    # -- marks

    @property
    def first_lsn(self) -> int:
        """The oldest LSN that can still be read; one more than the last if the log is empty."""
        return self.parts.contents.first_lsn

    @property
    def appended_lsn(self) -> int:
        """The last LSN given to a record; 0 in an empty log."""
        return self._core.appended_lsn

    @property
    def acked_lsn(self) -> int:
        """The last LSN acknowledged, with everything before it."""
        return self._core.acked_lsn

    @property
    def durable_lsn(self) -> int:
        """The last LSN on stable storage, with everything before it."""
        return self._core.durable_lsn

    @property
    def recovery(self) -> RecoveryReport:
        """The findings and actions of this opening."""
        return self._recovery

    @property
    def events(self) -> EventSink:
        """Where the log's events go; listeners can be added to it."""
        return self.parts.events

    @property
    def options(self) -> LogOptions:
        """The options of this opening."""
        return self.parts.options

    @property
    def location(self) -> str:
        """Where the log is: a path or a URL."""
        return self.parts.storage.location

    @property
    def closed(self) -> bool:
        """Whether the log has been closed."""
        return self._lifetime.closed

    def statistics(self) -> LogStatistics:
        """Return a frozen snapshot of the log's named metrics."""
        return statistics_of(self.parts)

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until the maintenance thread has no job left: True, or False if `timeout` seconds are over first.

        On return with True each segment that was full is sealed and has its index file, the space for the frames to
        come is prepared and zeroed, everything is dropped that the log's `retention` allows, and the payload log is
        freed as far as it can be. A job that has failed counts as done (event `walkit.maintenance.fail`); work for
        records appended meanwhile is waited for, too.

        LogPoisonedError if the log has failed: the next opening seals its segments. LogClosedError;
        StorageError if the device does not answer within `write_timeout_ms`; CallbackError on the maintenance thread
        itself, as from a finaliser.
        """
        maintenance = self.parts.segments.maintenance
        self._refuse_closed()
        maintenance.refuse_current()
        if self.parts.events.is_busy():
            raise CallbackError
        ends_s = None if timeout is None else time.monotonic() + as_seconds(timeout)
        idle = maintenance.wait_idle(None if timeout is None else as_seconds(timeout))
        if idle and self._freeing is not None:
            idle = self._freeing.wait_idle(None if ends_s is None else max(ends_s - time.monotonic(), 0))
        if self._driver.refusal is not None:
            raise self._driver.refused()
        return idle

    # -- consumers and maintenance

    def hold(self, name: str, first_lsn: int, lease_s: float = LEASE_S_DEFAULT) -> Claim:
        """Keep records from `first_lsn` on from being trimmed, by a claim; durable, and in force, on return.

        For a consumer in this process: `advance` is in memory, and the claim ends with `release` alone. After the
        process has died it counts for its lease; the log's next writer takes it over by its name. A consumer in another
        process takes its claim with `walkit.claim`.

        OptionsError for a name, an LSN or a lease that no claim has, and for an LSN more than one after the end.
        GapError if records from `first_lsn` on are gone. ClaimError if another consumer has the name, or the log
        has 256 claims of this kind. StorageError: ETIMEDOUT if the claims' lock is not free in time.
        """
        self._refuse_closed()
        return self.parts.own_claims.take(name, first_lsn, lease_s)

    def trim(self, up_to_lsn: int, *, waste_ratio: float = WASTE_RATIO_DEFAULT) -> TrimReport:
        """Drop records at or below `up_to_lsn`, never past a claim, never past the durable LSN.

        Moves the low watermark, and removes the segments that lie wholly below it. Of one that straddles it, the frames
        above are copied as they are into one that takes its place, if those below are at least `waste_ratio` (0 to
        1) of its bytes; 1 keeps it, and a compacted or the newest sealed segment stays as it is anyway. Returns the new
        low watermark, with the totals dropped. If a store keeps a state beside the log, never past its newest snapshot
        either. StorageError: the next trim drops the rest; the report has the error of a failed copy. errno is
        ETIMEDOUT if a consumer does not free the claims' lock.
        """
        self._refuse_closed()
        return self.parts.trimmer.trim(as_lsn(up_to_lsn, "up_to_lsn"), waste_ratio)

    def drain(self, up_to_lsn: int) -> Iterator[Record]:
        """Yield the records up to `up_to_lsn`, and trim up to there once the last of them has been taken.

        Not before: an iterator that is left alone, or that an error ends, removes nothing, and draining again yields
        all of it again. Acknowledged records are made durable first; records appended after the call stay.
        With claims or a store's state, some of the yielded records may stay: see `trim`.

        GapError if another trim or compaction takes a segment away meanwhile; StorageError if the trim fails.
        """
        view, newest = self._now()
        last_lsn = min(as_lsn(up_to_lsn, "up_to_lsn"), newest)
        self._make_durable(last_lsn)
        return self._drain(view, last_lsn)

    def _drain(self, view: View, last_lsn: int) -> Iterator[Record]:
        for record in resolved(self, view.record_batches(view.first_lsn, last_lsn)):
            _ = record.value  # the trim may free one that is kept in a payload log
            yield record
        self.parts.trimmer.trim(last_lsn)

    def enforce_retention(
        self, limits: Retention | None = None, *, progress: RetentionProgress | None = None
    ) -> RetentionReport:
        """Drop the segments that the log's `retention` asks for, or these limits; durable on return. Any thread.

        With `LogOptions(retention=...)` that is done after each seal, on the maintenance thread. `progress` is
        called with (files removed, files to remove). Never past a claim, unless the log is over its hard
        cap: then it is dropped, with the event `walkit.claim.drop`. Never dropped are the newest segment that
        holds a record, records that are not durable and, with a state, records newer than its newest snapshot.

        StorageError: the next call does the rest. LogClosedError.
        """
        self._refuse_closed()
        return self.parts.retention.enforce(limits, progress=progress)

    def observe(
        self, callback: Callable[[ObservedFrames], object], at: Literal["acked", "durable"] = "acked"
    ) -> Observation:
        """Call `callback(ObservedFrames)` for every frame acknowledged from now on: in order, on the delivery thread.

        With `at="durable"` each frame is shown when it is on stable storage with everything before it: at level "sync"
        that is the same moment, at "interval" after the next sync, at "none" after `sync()`. Frames that only the
        closing of the log makes durable are not shown.

        No lock is held, and the commit path does not wait; of a callback that raises the first error is an event, all
        are counted. One that is slow gets older frames from the log, not from memory: see Observation.
        """
        self._refuse_closed()
        check_choice(at, ("acked", "durable"), "at")
        core = self._core
        return Observation(
            self._driver.delivery,
            callback,
            durable_lsn=None if at == "acked" else lambda: core.durable_lsn,
        )

    def observe_writes(self, observer: FrameObserver) -> None:
        """Let an observer see each frame as it is written, on the thread that writes it; see FrameObserver.

        For measurement: the observer's time delays the frame. Any number may observe; `unobserve_writes` ends it.
        """
        self._refuse_closed()
        self._driver.add_write_observer(observer)

    def unobserve_writes(self, observer: FrameObserver) -> None:
        """Remove an observer of `observe_writes`: a frame whose write begins after this call is not shown."""
        self._driver.remove_write_observer(observer)

    def close(self) -> None:
        """Write the queue, seal the log and free it. Closing twice does nothing.

        From a callback of `events=` it returns at once, and the log closes when the callback has returned. An interrupt
        (Ctrl-C) does not end the closing: it is raised when the log is closed and free, or after two seconds, and the
        log closes by itself when the device has answered.
        """
        self._resources.close()
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
        parts, core = self.parts, self._core
        state = "closed" if self.closed else "poisoned" if core.failure is not None else "open"
        marks = {
            "first": self.first_lsn,
            "durable": core.durable_lsn,
            "acked": core.acked_lsn,
            "appended": core.appended_lsn,
        }
        return log_html(
            f"log {self.location}",
            f"{state}, durability {parts.options.durability}",
            marks,
            parts.contents.segments(),
            self._recovery.cuts,
        )


def open_logs() -> list[WriteAheadLog]:
    """Return the logs that are open for writing in this process, oldest first."""
    return sorted((log for log in _open_logs if not log.closed), key=lambda log: log._opened_at)


def link_values(
    log: WriteAheadLog,
    limit_bytes: int,
    payloads: Payloads,
    freeing: Freeing,
    close: Callable[[], object],
) -> None:
    """Let a log take values up to a limit that may be beyond a frame's: its ways in send them elsewhere already.

    `payloads` has the values for readers, and `close` is called when nothing is queued anymore.
    """
    parts = log.parts
    log._limit_bytes, log._payloads, log._freeing = limit_bytes, payloads, freeing
    log._resources.after_stop = close
    log._appender = Appender(parts.driver, parts.options, limit_bytes, parts.records_max)
