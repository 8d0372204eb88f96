"""The ways in for records: callers that wait, one of which leads for all, and callers that do not.

The leader takes the queue, writes it as one frame with one sync, and completes it. A caller that finds the path idle
writes its own frame (`_write_alone`, the way of a lone writer). Another that waits is in the queue, and may be elected
as the next leader. For callers that do not wait the writer threads are asked to lead.

Each kind has a way in for a ticket and one for a put of plain bytes. Such puts are most of all records, and share
submissions (see `ticket`). `enqueue_awaited` is the same for a task of an event loop, which gets something to await
instead of a ticket: a ticket and a wait per record would be made to be asked once.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from walkit._internal.locks import HERE, STEP
from walkit._internal.threads import reserve_stack
from walkit._main_thread import MAIN, Uninterrupted
from walkit.commit import asyncio_wait
from walkit.commit.asyncio_wait import is_woken_at_once
from walkit.commit.delivery import Completion
from walkit.commit.election import LeaderElection
from walkit.commit.frame_writer import CommitFailure, FrameWriter, prepare
from walkit.commit.latches import call_all, new_latch, open_latch
from walkit.commit.ticket import (
    ALONE,
    ANY_THREAD,
    CAN_LEAD,
    HAS_LED,
    HAS_LEFT,
    NO_LEADER,
    NO_THREAD,
    PUT_KEYED,
    PUT_VALUE,
    TO_LEAD,
    Batch,
    BatchQueue,
    BatchSlot,
    Caller,
    LeaderState,
    SingleTicket,
    Submitted,
    Ticket,
    WaitingCaller,
    new_tuple,
    put_at,
    put_awaited,
)
from walkit.errors import CallbackError, LogFullError, RecordTooLargeError, WalkitError
from walkit.events import EventSink
from walkit.format.body import COLUMN_BYTES_PER_RECORD
from walkit.format.frame import prepare_one
from walkit.format.layout import FRAME_HEADER_BYTES
from walkit.record import AppendResult

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


LED: Final = object()
"""Returned by `Leader._enter_and_lead` if the ticket is done."""


LEAD: Final = object()
FULL: Final = object()
"""Returned by `Leader._queue_locked` without anything to wait at: see there."""
RECHECK_S = 0.2
"""How often a caller that was interrupted while it waited looks whether its ticket is done."""


class Leader:
    """The ways in for callers that wait, and the work of a thread that leads. Safe from any thread.

    Methods that end in `_locked` need the lock held.
    """

    def __init__(
        self,
        writer: FrameWriter,
        election: LeaderElection,
        batches: BatchQueue,
        enqueue: Callable[[SingleTicket], bool],
        events: EventSink,
    ) -> None:
        """`enqueue` queues a ticket for the writer threads."""
        # The commit lock: see `DeviceWatch.lock`.
        self.lock = writer.lock
        self._core = core = writer.core
        self._writer = writer
        self._election = election
        self._batches = batches
        self._enqueue = enqueue
        self._events = events
        self._completion = writer.completion
        self._queue_bytes_max = batches.queue_bytes_max
        self._record_bytes_max = min(core.body_bytes_max, batches.queue_bytes_max)
        self._needs_time = election.needs_time
        self._parallel = writer.parallel
        self._failure = writer.failure
        self._taken = writer.failure.taken
        self._leading = election.leading
        self._serving = writer.watch.serving
        self._signal = writer.completion.signal
        self._delivery = writer.completion.delivery
        self._frame_sink = writer.frame_sink
        self._sync_writes = writer.sync_writes
        self._codec = writer.codec
        self._watch = writer.watch
        self._timer = writer.timer
        self._counters = writer.counters
        self._now_ns, self._offset_ns = writer.clock
        # Written under the commit lock: the event of a policy that failed is sent once.
        self._policy_reported = False

    # -- ways in

    def append_put(self, key: bytes | None, value: bytes) -> AppendResult | None:
        """Append one put and return when it is acknowledged; None if the queue has no room. See `append`.

        Raises RecordTooLargeError, too, and the record's error.
        """
        if key is None:
            kind, size_bytes = PUT_VALUE, len(value) + COLUMN_BYTES_PER_RECORD
        else:
            kind, size_bytes = PUT_KEYED, len(key) + len(value) + COLUMN_BYTES_PER_RECORD
        if size_bytes > self._record_bytes_max:
            raise RecordTooLargeError(size_bytes, self._record_bytes_max)
        thread = get_ident()
        if self._needs_time or thread == MAIN:
            single = SingleTicket(self._completion, kind, key or b"", value)
            return single.result(0) if self.append(single) else None
        reserve_stack()
        leading, mark = self._leading, HERE.__dict__.get(STEP)
        if thread in leading or thread in self._serving or self.lock._is_owned():
            raise CallbackError
        if mark is not None and mark._is_owned():
            raise CallbackError
        core = self._core
        group: Sequence[Submitted] = ()
        caller, waits = None, False
        try:
            with self.lock:
                if self._failure.refusal is not None:
                    raise self._failure.refused()
                if not leading and self._election.plain and not core.pending and not core.inbox:
                    single = SingleTicket(self._completion, kind, key or b"", value)
                    leading[thread] = single
                    group = self._taken[0] = core.submit_and_take(single)
                else:
                    caller = self._queue_put_locked(thread, kind, key, value, size_bytes)
                    if caller is None:
                        return None
                    waits = caller.lead == CAN_LEAD
            if caller is None:
                return self._write_alone(thread, single, group) or single.result()
            if waits:
                self._wait_to_lead(caller, caller.latch)
                return caller.result(0)
            self.lead()
        except BaseException as error:
            self._clean_up(group, error)
            raise
        self._wait_done(caller, LEAD)
        return caller.result(0)

    def _clean_up(self, group: Sequence[Submitted], error: BaseException) -> None:
        """See that no thread waits for a caller that met an error: give up its group and lead if it still has them."""
        if get_ident() in self._leading:
            try:
                if group:
                    self._failure.fail_group(group, error)
            finally:
                self._election.hand_over()
        elif isinstance(error, MemoryError):
            self._election.kick()  # it may have queued a record, and not have come to leading for it

    def append(self, ticket: SingleTicket) -> bool:
        """Queue the ticket and return when it is done; False if the queue has no room (nothing was queued).

        The caller may write its own and others' frames meanwhile. Raises the log's refusal.
        """
        reserve_stack()
        thread, mark = get_ident(), HERE.__dict__.get(STEP)
        if thread in self._leading or thread in self._serving or self.lock._is_owned():
            raise CallbackError
        if mark is not None and mark._is_owned():
            raise CallbackError
        if thread == MAIN:
            return self._append_on_main(ticket)
        entered = self._enter_and_lead(ticket, CAN_LEAD)
        if entered is LED:
            return True
        if not ticket.lead:
            return self._wait_done(ticket, entered)
        self._wait_to_lead(ticket, entered)
        return True

    def _append_on_main(self, ticket: SingleTicket) -> bool:
        """See `append`. The main thread gets interrupts, so it is never elected: others would wait for it.

        With several frames in flight it does not lead at all: a signal handler of the host's (for SIGALRM, say) may
        raise between any two calls here, and the leaders of the other frames would wait for its half-done work.
        """
        if self._parallel:
            self._watch.refuse_waiting()
            return self._enqueue(ticket) and self._wait_done(ticket, LEAD)
        with Uninterrupted():
            entered = self._enter_and_lead(ticket, NO_LEADER)
        if entered is LED:
            return True
        if entered is LEAD or entered is FULL:
            return self._wait_done(ticket, entered)
        entered.acquire()
        return True

    def _enter_and_lead(self, ticket: SingleTicket, lead: LeaderState) -> Any:
        """Queue the ticket, and lead if the caller has to; return a latch to wait at if it has not.

        Otherwise LED if the ticket is done, LEAD if another frame may have it, FULL if nothing was done. A
        latch is opened when the ticket is done or, for a caller that can lead, when it is elected.
        """
        thread, core, leading = get_ident(), self._core, self._leading
        group: Sequence[Submitted] = ()
        try:
            with self.lock:
                if self._failure.refusal is not None:
                    raise self._failure.refused()
                if not leading and self._election.plain and not core.pending and not core.inbox:
                    leading[thread] = ticket
                    group = self._taken[0] = core.submit_and_take(ticket)
                else:
                    entered = self._queue_locked(thread, ticket, lead)
                    if entered is not LEAD:
                        return entered
            if group:
                self._write_alone(thread, ticket, group)
                frame = ticket.frame
                return LEAD if frame is None or frame.state == "sealed" else LED
            self.lead()
        except BaseException as error:
            self._clean_up(group, error)
            raise
        return LEAD

    # -- waiting

    def _queue_put_locked(
        self, thread: int, kind: int, key: bytes | None, value: bytes, size_bytes: int
    ) -> WaitingCaller | None:
        """Queue a put among others; None without room. The caller leads at once if `lead` is not CAN_LEAD."""
        core, election = self._core, self._election
        if core.inbox:
            core.take_in()
        caller, latch = WaitingCaller(), new_latch()
        caller.lead, caller.thread = NO_LEADER, thread
        batch = self._batches.join(caller, kind, ANY_THREAD, key, value, size_bytes)
        if batch is None:
            if core.pending_bytes + size_bytes > self._queue_bytes_max and core.pending:
                return None
            batch = self._batches.begin_locked(caller, kind, ANY_THREAD, key, value, size_bytes)
        if len(election.leading) < election.places and (self._election.plain or election.ready_locked()):
            election.leading[thread] = True
        else:
            caller.next_latch, caller.latch = None, latch
            batch.callers.append(caller)
            caller.lead = CAN_LEAD
        return caller

    def _queue_locked(self, thread: int, ticket: SingleTicket, lead: LeaderState) -> Any:
        """Queue a ticket among others; return LEAD with a place taken, FULL, or the latch of its caller."""
        core, election = self._core, self._election
        now_us = self._writer.clock.us() if self._needs_time else 0
        if core.inbox:
            core.take_in(now_us)
        if core.pending_bytes + ticket.size_bytes > self._queue_bytes_max and core.pending:
            return FULL
        latch = new_latch()
        core.submit(ticket, now_us)
        if len(election.leading) < election.places and (self._election.plain or election.ready_locked()):
            election.leading[thread] = True
            return LEAD
        ticket.thread, ticket.next_latch = thread, None
        ticket.latch, ticket.lead = latch, lead
        return latch

    def _wait_to_lead(self, ticket: Caller, latch: Any) -> None:
        """Wait at the latch of a caller that can lead, until its ticket is done; then wake the next caller."""
        try:
            latch.acquire()
            if ticket.lead == CAN_LEAD:
                if ticket.next_latch is not None:
                    ticket.next_latch.release()
                ticket.lead = HAS_LEFT
        finally:
            if ticket.lead != HAS_LEFT:
                self._leave_queue(ticket, latch)

    def _leave_queue(self, ticket: Caller, latch: Any) -> None:
        """Lead, if the latch was opened for that, until the ticket is done; then wake the next caller.

        Also if an exception came from another thread while the caller waited: others may wait for its step.
        """
        while True:
            if ticket.lead == TO_LEAD:
                ticket.lead = HAS_LED
                self.lead()
            # It may have been done before it led: another leader had taken it.
            if ticket.frame is not None and (
                ticket.frame.notified or (ticket.lead == HAS_LED and ticket.done())
            ):
                break
            latch.acquire(timeout=RECHECK_S)
        if ticket.next_latch is not None and ticket.lead == CAN_LEAD:
            open_latch(ticket.next_latch)
        ticket.lead = HAS_LEFT

    def _wait_done(self, ticket: Ticket, entered: object) -> bool:
        """Wait for the ticket of a caller that has led: another frame may have it. False if the queue was full."""
        if entered is FULL:
            return False
        latch = self._completion.attach_latch(ticket)
        if latch is not None:
            latch.acquire()
        return True

    # -- leading

    def _write_alone(self, me: int, ticket: SingleTicket, group: Sequence[Submitted]) -> AppendResult | None:
        """Write the frame of a caller that found the path idle; return the result, unless others came meanwhile.

        The way of a lone writer. The rules are the core's; rare cases are FrameWriter's, which does this for groups.
        """
        core, writer, watch, counters, alone = self._core, self._writer, self._watch, self._counters, False
        problem: BaseException | None = None
        try:
            start_ns = perf_counter_ns()
            if ticket.columns is None and core.ack_sink is None:
                body = prepare_one(ticket.kind, ticket.key, ticket.value, ticket.timestamp, self._codec)
                user_bytes, columns = ticket.size_bytes - COLUMN_BYTES_PER_RECORD, None
            else:
                body, user_bytes, columns = prepare(group, self._codec, keep=core.ack_sink is not None)
            counters.prepare_ns += perf_counter_ns() - start_ns
            if not core.has_room(body):
                writer.make_room(body)
            self._taken.pop(0, None)
            if ticket.frame is not None:  # refused, or failed by another thread
                return None
            now_us = (self._now_ns() + self._offset_ns) // 1000
            frame = core.seal(group, body, now_us, user_bytes=user_bytes, columns=columns)
            counters.padding_bytes += frame.footprint - FRAME_HEADER_BYTES - body.stored_bytes
            if core.failure is not None and core.has_failed(frame):  # by a sync, before this frame was sealed
                self._failure.fail(core.failure, frame)
                return None
            self._frame_sink.assign(frame)
            start_ns = perf_counter_ns()
            watch.calls[me] = (start_ns, frame)
            watch.active = True
            if watch.asleep:
                watch.wake()
            try:
                if writer.write_observers:
                    writer.write_observed(frame)
                else:
                    self._frame_sink.write(frame, sync=self._sync_writes)
            finally:
                watch.calls.pop(me, None)
            with self.lock:
                counters.frames_written += 1
                counters.frame_bytes += frame.footprint
                counters.user_bytes += frame.user_bytes
                counters.syncs += self._sync_writes
                counters.write_ns += perf_counter_ns() - start_ns
                acked = core.written(frame, durable=self._sync_writes)
                if self._sync_writes and (acked or core.unacked):
                    try:  # other processes see it before any caller does
                        self._frame_sink.publish(core.durable_position, core.durable_lsn)
                    except BaseException as error:  # noqa: BLE001 - whatever it is, the tickets must be completed
                        problem = error
                if frame.state == "acked" and not (ticket.latch or ticket.task_wait or ticket.callbacks):
                    alone = not (core.pending or self._signal.wanted or self._delivery.observers)
                if alone:
                    self._leading.pop(me, None)
            if not alone or problem or core.failure or (self._timer and self._timer.parked):
                writer.finish(frame, acked, problem)
                return None
            frame.forget()
            for waker in self._delivery.wakers:
                waker()
            first_lsn, last_lsn, at = frame.first_lsn, frame.last_lsn, frame.position
            return new_tuple(AppendResult, (first_lsn, last_lsn, at, frame.next_position, frame.epoch_id))
        except BaseException as error:  # noqa: BLE001 - raised again there, once the group is complete
            self._failure.fail_group_or_raise(group, error)
            return None
        finally:
            if not alone or self._events.kept:
                self._election.hand_over()

    def lead(self, keep: bool = False) -> None:
        """Write one frame, then hand the lead over; with `keep` go on until nothing is to be taken."""
        interrupt: BaseException | None = None
        core, signal, election, sequencer = self._core, self._signal, self._election, self._writer.sequencer
        callbacks: list[Callable[[], object]] = []
        while True:
            group: Sequence[Submitted] = ()
            turn = started = 0
            try:
                with self.lock:
                    group = core.take(self._writer.clock.us() if self._needs_time else 0)
                    if group:
                        turn = sequencer.draw_locked() if self._parallel else 0
                        self._taken[turn] = group
                        if signal.wanted:
                            callbacks = signal.notify_locked()
                    another = group and not self._election.plain and election.elect_locked()
                if another:
                    election.start(another)
                if callbacks:
                    call_all(callbacks)
                    callbacks = []
                started = 1
                if group:
                    self._writer.commit(group, turn)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the tickets must be completed
                if not isinstance(error, Exception):
                    interrupt = (
                        error  # raised in its thread at the end; tickets of a started frame are complete
                    )
                if interrupt is None or not started:
                    self._failure.fail_group(group, error)
                if group and self._parallel and not started:
                    sequencer.end(turn)
            if not election.hand_over(keep):
                break
        if core.policy_error is not None:
            self._report_policy_error(core.policy_error)
        if interrupt is not None:
            raise interrupt

    def lead_for_others(self) -> None:
        """Write the group that waits for a writer thread, if a place is free: the work of the writer pool."""
        try:
            if self._election.claim():
                self.lead(keep=True)
        finally:
            if get_ident() in self._leading:  # an error struck before it led
                self._election.hand_over()
        if self._events.kept:
            self._events.send_kept()

    def _report_policy_error(self, error: BaseException) -> None:
        with self.lock:
            reported, self._policy_reported = self._policy_reported, True
        if not reported:
            self._events.emit("walkit.policy.fail", error=repr(error))


Queued = TypeVar("Queued")
Record = TypeVarTuple("Record")


class Submitter:
    """The ways in for callers that do not wait. All methods are safe from any thread."""

    def __init__(
        self, election: LeaderElection, failure: CommitFailure, completion: Completion, batches: BatchQueue
    ) -> None:
        self.core = core = completion.core
        # The commit lock: see `DeviceWatch.lock`.
        self.lock = completion.lock
        self._election = election
        self._failure = failure
        self._completion = completion
        self._batches = batches
        self._clock = election.clock
        self._queue_bytes_max = batches.queue_bytes_max
        self._record_bytes_max = min(core.body_bytes_max, batches.queue_bytes_max)
        self._needs_time = election.needs_time

    def enqueue(self, ticket: SingleTicket) -> bool:
        """Queue the ticket and return at once; False if the queue has no room. Raises the log's refusal.

        An interrupt (Ctrl-C) strikes before the ticket is queued or after it: `OrderingCore.submit` sees to that. So
        the writer threads ask the policy, which may set the timer: that could not be interrupted anywhere.
        """
        mark = HERE.__dict__.get(STEP)
        if self.lock._is_owned() or (mark is not None and mark._is_owned()):
            self._put_in(ticket)
            return True
        return self._enqueue_by(self._submit_locked, ticket) is not None

    def enqueue_put(
        self, key: bytes | None, value: bytes, ticket: BatchSlot
    ) -> BatchSlot | SingleTicket | None:
        """Queue a put that may share a submission with others; None if the queue has no room. See `enqueue`.

        Returns the object to wait for: mostly the given new `ticket`. Raises RecordTooLargeError, too.
        """
        if key is None:
            kind, size_bytes = PUT_VALUE, len(value) + COLUMN_BYTES_PER_RECORD
        else:
            kind, size_bytes = PUT_KEYED, len(key) + len(value) + COLUMN_BYTES_PER_RECORD
        batch = None
        if not self.core.inbox:
            batch = self._batches.join(ticket, kind, get_ident(), key, value, size_bytes)
        if batch is not None and (not batch.ended or self._is_of(batch, ticket.index)):
            return ticket
        mark = HERE.__dict__.get(STEP)
        if self._needs_time or self.lock._is_owned() or (mark is not None and mark._is_owned()):
            return self._enqueue_single(
                kind, key, value
            )  # a policy sees every submission, and cuts between them
        if size_bytes > self._record_bytes_max:
            raise RecordTooLargeError(size_bytes, self._record_bytes_max)
        return self._enqueue_by(self._put_locked, ticket, kind, key, value, size_bytes)

    def enqueue_awaited(self, key: bytes | None, value: bytes) -> Awaitable[AppendResult] | None:
        """As `enqueue_put` for a task of this thread's loop; return its awaitable at once.

        A batch of this thread's tasks is joined here by the rules of `BatchQueue.join`: a call less for every record.
        The loop is read only for a new batch: up to Python 3.11 that is a system call. If another runs in
        this thread by now, `put_awaited` sees to it.
        """
        size_bytes = len(value) + COLUMN_BYTES_PER_RECORD
        kind = PUT_VALUE
        if key is not None:
            size_bytes += len(key)
            kind = PUT_KEYED
        batch = self.core.batch
        if (
            batch is not None
            and batch.task_wait is not None
            and batch.owner == (me := get_ident())
            and batch.kind == kind
            and not self.core.inbox
        ):
            values = batch.values
            grown_bytes = batch.grown_bytes + size_bytes
            if not batch.ended and grown_bytes <= batch.bytes_max:
                batch.owner = NO_THREAD
                index = len(values)
                if key is not None:
                    put_at(batch.keys, index, key)
                batch.grown_bytes = grown_bytes
                values.append(value)
                batch.owner = me
                if not batch.ended or self._is_of(batch, index):
                    return put_awaited(batch, index)
        loop = asyncio_wait.running_loop()
        mark = HERE.__dict__.get(STEP)
        foreign = self.lock._is_owned() or (mark is not None and mark._is_owned())
        if foreign or self._needs_time or not (ALONE and is_woken_at_once(loop)):
            return self._enqueue_single(kind, key, value)
        if size_bytes > self._record_bytes_max:
            raise RecordTooLargeError(size_bytes, self._record_bytes_max)
        return self._enqueue_by(self._await_locked, loop, key, value, size_bytes)

    def _is_of(self, batch: Batch, index: int) -> bool:
        """Say whether a batch that ended while its owner put a record to it has the record."""
        with self.lock:
            if self.core.batch is batch:  # the thread that ended it was interrupted
                self.core.end_batch()
            return index < batch.count

    def _enqueue_single(self, kind: int, key: bytes | None, value: bytes) -> SingleTicket | None:
        single = SingleTicket(self._completion, kind, key or b"", value)
        if single.size_bytes > self._record_bytes_max:
            raise RecordTooLargeError(single.size_bytes, self._record_bytes_max)
        return single if self.enqueue(single) else None

    def _enqueue_by(self, put: Callable[[*Record], Queued | None], *record: *Record) -> Queued | None:
        """Queue by `put(*record)`, which returns None without room, and ask the writer threads to lead for it."""
        reserve_stack()
        election = self._election
        try:
            with self.lock:
                if self._failure.refusal is not None:
                    raise self._failure.refused()
                queued = put(*record)
                if queued is None or len(election.leading) >= election.places:
                    return queued
                if election.is_notified:
                    return queued
                if election.pool.running:
                    # At once: others rely on `is_notified`, and foreign code that waits may run here.
                    election.pool.calls.put(True)
                    election.is_notified = True
                    if election.pool.full:
                        return queued
            election.pool.wake()
        except WalkitError:
            raise
        except BaseException:
            election.pool.calls.put(True)  # at once: another interrupt may come in any function of Python
            election.pool.wake()
            raise
        return queued

    def _put_in(self, ticket: SingleTicket) -> None:
        """Queue a ticket of foreign code on a thread that has locks, in the middle of a step: see `put_in`.

        A writer thread takes it in, or the next call that queues or takes something. LogFullError if the queue has no
        room: the thread may not wait.
        """
        core = self.core
        if self._failure.refusal is not None:
            raise self._failure.refused()
        if ticket.after is not None and (refused := ticket.after.refusal()) is not None:
            raise refused
        if core.pending_bytes + ticket.size_bytes > self._queue_bytes_max and (core.pending or core.inbox):
            raise LogFullError(
                f"the queue holds {self._queue_bytes_max:,} bytes, and this thread may not wait; nothing was written",
                reason="queue",
                limit_bytes=self._queue_bytes_max,
            )
        core.put_in(ticket)
        self._election.pool.wake_from_within()

    def _submit_locked(self, ticket: SingleTicket) -> SingleTicket | None:
        core = self.core
        if ticket.after is not None and (refused := ticket.after.refusal()) is not None:
            raise refused
        if core.pending_bytes + ticket.size_bytes > self._queue_bytes_max and core.pending:
            return None
        core.submit(ticket, self._clock.us() if self._needs_time else 0)
        return ticket

    def _put_locked(
        self, ticket: BatchSlot, kind: int, key: bytes | None, value: bytes, size_bytes: int
    ) -> BatchSlot | None:
        core, batches = self.core, self._batches
        if batches.join(ticket, kind, ANY_THREAD, key, value, size_bytes) is None:
            if core.pending_bytes + size_bytes > self._queue_bytes_max and core.pending:
                return None
            # Threads that submit in turns share batches, or each would begin one for each record.
            last, me = core.batch, get_ident()
            mine = last is None or last.task_wait is not None or last.owner == me
            batches.begin_locked(ticket, kind, me if mine and ALONE else ANY_THREAD, key, value, size_bytes)
        return ticket

    def _await_locked(
        self, loop: AbstractEventLoop, key: bytes | None, value: bytes, size_bytes: int
    ) -> Awaitable[AppendResult] | None:
        core = self.core
        if core.pending_bytes + size_bytes > self._queue_bytes_max and core.pending:
            return None
        return self._batches.begin_awaited_locked(loop, key, value, size_bytes)
