"""The thread driver: runs the ordering core on real storage with threads.

With one frame in flight, the caller that finds nobody leading becomes the leader: it takes all that waits, writes it
as one frame with one sync, and releases the others itself (the leader/follower commit of LevelDB and RocksDB). That is
what makes one writer as fast as the device: no other thread is on its path. Callers that do not wait (`submit`,
asyncio) are led by the committer thread. Callbacks and observers run on the delivery thread.

What is under the lock is small: queueing, taking, marking. Encoding, writing, syncing and releasing are not.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, Final

from walkit.commit.committer import Committer
from walkit.commit.core import OrderingCore, Tick
from walkit.commit.counters import CommitCounters
from walkit.commit.delivery import Delivery
from walkit.commit.frame import SealedFrame
from walkit.commit.interrupts import Uninterrupted, on_main_thread
from walkit.commit.news import News
from walkit.commit.place import FramePlace
from walkit.commit.ticket import Ticket, TicketCallback, gather, new_gate, open_gate
from walkit.commit.timer import CommitTimer
from walkit.errors import LogClosedError, LogFullError, LogPoisonedError, StorageError, WalkitError
from walkit.events import EventSink
from walkit.format.frame import prepare_body
from walkit.format.layout import FRAME_HEADER_BYTES

LEAD: Final = object()
FULL: Final = object()


class CommitDriver:
    """The commit path of one open log. All methods are safe from any thread unless they say otherwise."""

    def __init__(
        self,
        core: OrderingCore[Ticket],
        place: FramePlace,
        *,
        events: EventSink,
        name: str,
        sync_writes: bool,
        codec: str | None,
        queue_bytes_max: int,
        clock_us: Callable[[], int],
    ) -> None:
        self.core = core
        self.place = place
        self.events = events
        self.delivery = Delivery(name, events)
        self.queue_bytes_max = queue_bytes_max
        self.refusal: WalkitError | None = None
        self.counters = CommitCounters()
        self._name = name
        self._sync_writes = sync_writes
        self._codec = codec
        self._clock_us = clock_us
        self._lock = threading.Lock()
        self._news = News(self._lock)
        self._leading = False
        self._committer = Committer(name, lambda: self._lead(to_the_end=True))
        self._timer = (
            CommitTimer(name, self._tick, self._act) if core.idle_mark_us or core.interval_us else None
        )
        self._sync_lock = threading.Lock()
        self._stopped = False

    # -- ways in

    def append(self, ticket: Ticket) -> bool:
        """Queue the ticket and return when it is done; False where the queue has no room (nothing was queued).

        The caller may write its own and others' frames meanwhile. Raises what refuses the log.
        """
        if on_main_thread():
            with Uninterrupted():
                gate = self._enter(ticket, can_lead=False)
                if gate is LEAD:
                    self._lead()
        else:
            gate = self._enter(ticket, can_lead=True)
            if gate is LEAD:
                self._lead()
        if gate is FULL:
            return False
        waits = gate is not LEAD
        while waits:
            gate.acquire()
            if ticket.promoted:
                ticket.promoted = False
                self._lead()
            waits = not ticket.done()
        return True

    def _enter(self, ticket: Ticket, *, can_lead: bool) -> Any:
        """Queue the ticket; return a gate to wait at, LEAD where the caller has to lead, FULL where nothing was done.

        A gate is opened when the ticket is done or, for a caller that can lead, when it is its turn to lead.
        """
        core = self.core
        with self._lock:
            if self.refusal is not None:
                raise self.refused()
            if core.pending and core.pending_bytes + ticket.size_bytes > self.queue_bytes_max:
                return FULL
            core.submit(ticket)
            if not self._leading:
                self._leading = True
                return LEAD
            ticket.can_lead = can_lead
            ticket.waiter = gate = new_gate()
            return gate

    def enqueue(self, ticket: Ticket) -> bool:
        """Queue the ticket and return at once; False where the queue has no room. Raises what refuses the log."""
        if on_main_thread():
            with Uninterrupted():
                return self._enqueue(ticket)
        return self._enqueue(ticket)

    def _enqueue(self, ticket: Ticket) -> bool:
        core = self.core
        with self._lock:
            if self.refusal is not None:
                raise self.refused()
            if core.pending and core.pending_bytes + ticket.size_bytes > self.queue_bytes_max:
                return False
            core.submit(ticket)
            if self._leading:
                return True
            self._leading = True
        self._committer.wake()
        return True

    def wait_for_room(self, size_bytes: int, timeout: float | None) -> bool:
        """Wait until a submission of this size would find room; False after `timeout` seconds."""
        core = self.core
        return self._news.wait_for(
            lambda: (
                self.refusal is not None
                or not core.pending
                or core.pending_bytes + size_bytes <= self.queue_bytes_max
            ),
            timeout,
        )

    def on_room(self, callback: Callable[[], object]) -> None:
        """Call back once when the queue has moved (from the leader: it must only wake something)."""
        with self._lock:
            if self.core.pending and self.refusal is None:
                self._news.call_next_locked(callback)
                return
        callback()

    def withdraw(self, ticket: Ticket) -> bool:
        """Take a ticket back before any frame took it; then nothing of it is ever written."""
        with self._lock:
            return self.core.withdraw(ticket)

    def refused(self) -> WalkitError:
        """Return a fresh copy of the error that refuses work now."""
        return LogClosedError() if self.refusal is None else copy.copy(self.refusal)

    # -- what tickets ask

    def attach_waiter(self, ticket: Ticket) -> Any:
        """See TicketHost."""
        with self._lock:
            if ticket.done():
                return None
            if ticket.waiter is None:
                ticket.waiter = new_gate()
            return ticket.waiter

    def attach_callback(self, ticket: Ticket, callback: TicketCallback) -> None:
        """See TicketHost."""
        with self._lock:
            if not ticket.done():
                if ticket.callbacks is None:
                    ticket.callbacks = []
                ticket.callbacks.append(callback)
                return
        self.delivery.put((ticket, callback))

    # -- leading

    def _lead(self, to_the_end: bool = False) -> None:
        """Write one frame, then hand the lead on; the committer goes on until nothing waits."""
        interrupt: BaseException | None = None
        while True:
            with self._lock:
                group = self.core.take()
            try:
                if group:
                    self._commit(group)
            except BaseException as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
                self._fail(error, group)
                if not isinstance(error, Exception):
                    interrupt = error
            if not self._hand_over(to_the_end):
                break
        if interrupt is not None:
            raise interrupt

    def _hand_over(self, to_the_end: bool = False) -> bool:
        """Pass the lead on; True where the caller keeps it (`to_the_end`, and something waits)."""
        successor: Ticket | None = None
        wake_committer = False
        with self._lock:
            callbacks = self._news.tell_locked()
            pending = self.core.pending
            keeps = to_the_end and bool(pending)
            if not pending:
                self._leading = False
            elif not to_the_end:
                successor = next((t for t in pending if t.can_lead), None)
                wake_committer = successor is None
                if successor is not None:
                    successor.promoted = True
        for callback in callbacks:
            callback()
        if wake_committer:
            self._committer.wake()
        elif successor is not None:
            open_gate(successor.waiter)
        return keeps

    def _commit(self, group: Sequence[Ticket]) -> None:
        core = self.core
        begun = perf_counter_ns()
        columns, user_bytes = gather(group)
        body = prepare_body(columns, self._codec)
        footprint = body.footprint(core.alignment)
        if core.needs_segment(footprint):
            try:
                self._begin_segment()
            except LogFullError as error:
                with self._lock:
                    waiting = self.core.refuse()
                self._release([SealedFrame.refused([*group, *waiting], error)])
                return
        frame = core.seal(
            group, body, self._clock_us(), user_bytes=user_bytes, columns=columns if core.sinks else None
        )
        self.counters.padding_bytes += footprint - body.stored_bytes - FRAME_HEADER_BYTES
        self.counters.prepare_ns += perf_counter_ns() - begun
        self._write(frame)

    def _begin_segment(self) -> None:
        core = self.core
        if not self._sync_writes and core.written_position > core.durable_position:
            self.sync()
        core.segment_ready(
            self.place.begin_segment(
                position=core.position, first_lsn=core.appended_lsn + 1, chain=core.chain
            )
        )

    def _write(self, frame: SealedFrame) -> None:
        begun = perf_counter_ns()
        self.place.write(frame, sync=self._sync_writes)
        self.counters.wrote(frame, perf_counter_ns() - begun, self._sync_writes)
        with self._lock:
            acknowledged = self.core.written(frame, durable=self._sync_writes)
            failure = self.core.failure if frame.state == "sealed" else None
        if failure is not None:
            self._fail(failure)  # a sync failed on another thread before this frame was sealed
        if self._sync_writes and acknowledged:
            self.place.publish(self.core.durable_position, self.core.durable_lsn)
        self._release(acknowledged)

    def _release(self, frames: list[SealedFrame]) -> None:
        """Tell waiters and the delivery thread that these frames are done, frame by frame."""
        observed = bool(self.delivery.observers)
        for frame in frames:
            deliver = observed and frame.count > 0
            for ticket in frame.submissions:
                if ticket.waiter is not None:
                    open_gate(ticket.waiter)
                if ticket.callbacks is not None:
                    deliver = True
            if deliver:
                self.delivery.put(frame)
            else:
                frame.forget()
        if self._timer is not None and self._timer.parked:
            self._timer.wake()

    def _fail(self, cause: BaseException, group: Sequence[Ticket] = ()) -> None:
        """Fail everything on its way at once, and take nothing more. `group` may have been taken and not sealed."""
        with self._lock:
            frames, waiting = self.core.fail(cause)
            waiting[:0] = [t for t in group if t.frame is None]
            if self.refusal is None:
                self.refusal = LogPoisonedError(
                    f"an earlier write failed ({cause!r}); close the log and open it again: "
                    "recovery finds out what survived"
                )
            if waiting:
                frames.append(SealedFrame.refused(waiting, self.refusal))
        self.events.emit("walkit.log.poison", cause=repr(cause), acked_lsn=self.core.acked_lsn)
        self._release(frames)

    # -- syncs, marks, time

    def sync(self) -> None:
        """Make everything durable that was written before this call; the caller has waited for its own records."""
        with self._sync_lock:
            with self._lock:
                if self.core.failure is not None or self._stopped:
                    raise self.refused()
                point = self.core.sync_begin()
            if point.position <= self.core.durable_position:
                return
            try:
                self.place.sync()
            except StorageError as error:
                self._fail(error)
                raise
            self.counters.syncs += 1
            with self._lock:
                self.core.synced(point)
            self.place.publish(self.core.durable_position, self.core.durable_lsn)
        if self._timer is not None and self._timer.parked:
            self._timer.wake()

    def _tick(self) -> Tick:
        with self._lock:
            return self.core.tick(self._clock_us())

    def _act(self, tick: Tick) -> None:
        if tick.sync:
            self.sync()
        if tick.mark:
            self._write_mark()

    def _write_mark(self) -> None:
        """Write a frame without records, if the log is still idle and its segment has room."""
        core = self.core
        with self._lock:
            if self._leading or self.refusal is not None or core.pending or not core.needs_mark:
                return
            self._leading = True
        try:
            if not core.needs_segment(core.alignment * 2):
                self._write(core.seal_mark(self._clock_us()))
                self.counters.marks_written += 1
        except StorageError as error:
            self._fail(error)
        finally:
            self._hand_over()

    # -- the end

    def is_free(self) -> bool:
        """Say whether the lock is free now: not held by this very thread either (a finaliser may run anywhere)."""
        if not self._lock.acquire(blocking=False):
            return False
        self._lock.release()
        return True

    def wait_acked(self) -> None:
        """Wait until everything that was queued before this call is acknowledged, or the log has failed."""
        with self._lock:
            target = self.core.queued_lsn
        self._news.wait_for(lambda: self.core.acked_lsn >= target or self._is_idle())

    def _is_idle(self) -> bool:
        return not self._leading and not self.core.pending

    def stop(self, refusal: WalkitError) -> None:
        """Refuse new work, finish what is queued, end the threads. Callbacks still queued are delivered."""
        with self._lock:
            if self.refusal is None:
                self.refusal = refusal
        self._news.wait_for(self._is_idle)
        with self._sync_lock:
            self._stopped = True  # no sync is under way any more: what comes now may close the files
        self._committer.close()
        if self._timer is not None:
            self._timer.close()
        self.delivery.close()

    def after_fork(self, refusal: WalkitError) -> None:
        """In a forked child: refuse everything, and forget locks that a thread of the parent may have held."""
        self._lock = threading.Lock()
        self._news = News(self._lock)
        self.refusal = refusal
