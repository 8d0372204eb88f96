"""Ways into the commit path: a caller's records are queued, and perhaps its caller leads.

Single records of plain bytes, which are most of what is ever written, come in by `append_put` and `enqueue_put`: they
share submissions (see `batch`). Everything else is a ticket that is a submission of its own.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from walkit.commit import taskwait
from walkit.commit.batch import (
    ALONE,
    ANYONE,
    NOBODY,
    PUT_KEYED,
    PUT_VALUE,
    Batch,
    BatchLine,
    BatchTicket,
    Caller,
    CallerTicket,
    put_awaited,
    put_beside,
)
from walkit.commit.interrupts import MAIN, Uninterrupted
from walkit.commit.leading import Leading
from walkit.commit.taskwait import TaskWait, is_woken_at_once
from walkit.commit.ticket import (
    CAN_LEAD,
    HAS_LED,
    HAS_LEFT,
    NO_LEADER,
    TO_LEAD,
    SingleTicket,
    Ticket,
    TicketCallback,
    open_gate,
)
from walkit.errors import RecordTooLargeError, WalkitError
from walkit.format.body import COLUMN_BYTES_PER_RECORD
from walkit.record import AppendResult

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

Queued = TypeVar("Queued")
Record = TypeVarTuple("Record")

LEAD: Final = object()
FULL: Final = object()
STOP_LOOK_S = 0.2


class Entering(Leading):
    """How records get into the line. All methods are safe from any thread."""

    def __init__(self, *arguments: Any, queue_bytes_max: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.queue_bytes_max = queue_bytes_max
        self._record_bytes_max = min(self.core.body_bytes_max, queue_bytes_max)
        self._batches = BatchLine(self.core, self, queue_bytes_max)

    # -- callers that wait

    def append_put(self, key: bytes | None, value: bytes) -> AppendResult | None:
        """Append one put and return when it is acknowledged; None where the queue has no room. See `append`.

        Raises RecordTooLargeError, too, and what became of the record.
        """
        if key is None:
            kind, size_bytes = PUT_VALUE, len(value) + COLUMN_BYTES_PER_RECORD
        else:
            kind, size_bytes = PUT_KEYED, len(key) + len(value) + COLUMN_BYTES_PER_RECORD
        if size_bytes > self._record_bytes_max:
            raise RecordTooLargeError(size_bytes, self._record_bytes_max)
        if self._timed or get_ident() == MAIN:
            single = SingleTicket(self, kind, key or b"", value)
            return single.result(0) if self.append(single) else None
        core = self.core
        group = gate = None
        with self._lock:
            if self.refusal is not None:
                raise self.refused()
            if not self._leaders and self._plain and not core.pending:
                self._leaders = 1
                single = SingleTicket(self, kind, key or b"", value)
                self._taken[0] = group = core.submit_and_take(single)
            else:
                caller = CallerTicket()
                caller.lead = NO_LEADER
                batch = self._batches.join(caller, kind, ANYONE, key, value, size_bytes)
                if batch is None:
                    if core.pending_bytes + size_bytes > self.queue_bytes_max and core.pending:
                        return None
                    batch = self._batches.begin(caller, kind, ANYONE, key, value, size_bytes)
                if self._leaders < self._slots and (self._plain or self._ready()):
                    self._leaders += 1
                else:
                    caller.next_gate = None
                    caller.waiter = gate = allocate_lock()
                    gate.acquire()
                    caller.lead = CAN_LEAD
                    batch.callers.append(caller)
        if group is not None:
            self._lead_alone(group)
            return single.result(0)
        if gate is None:
            self._lead()
            self._wait_led(caller, LEAD)
        else:
            self._wait_in_line(caller, gate)
        return caller.result(0)

    def append(self, ticket: SingleTicket) -> bool:
        """Queue the ticket and return when it is done; False where the queue has no room (nothing was queued).

        The caller may write its own and others' frames meanwhile. Raises what refuses the log.
        """
        if get_ident() == MAIN:
            return self._append_on_main(ticket)
        gate = self._enter(ticket, CAN_LEAD)
        if not ticket.lead:
            if type(gate) is tuple:
                self._lead_alone(gate)
                return True
            if gate is LEAD:
                self._lead()
            return self._wait_led(ticket, gate)
        self._wait_in_line(ticket, gate)
        return True

    def _wait_in_line(self, ticket: Caller, gate: Any) -> None:
        """Wait at the gate of a caller that can lead, and let the next one through."""
        try:
            gate.acquire()
            if ticket.lead == CAN_LEAD:
                if ticket.next_gate is not None:
                    ticket.next_gate.release()
                ticket.lead = HAS_LEFT
        finally:
            if ticket.lead != HAS_LEFT:
                self._leave_line(ticket, gate)

    def _append_on_main(self, ticket: SingleTicket) -> bool:
        """See `append`. The main thread gets interrupts, so it never leads for others that wait for it.

        Nor at all with several frames in flight: a signal handler of the host's (for SIGALRM, say) may raise between
        any two calls here, and what it left half done, the leaders of the other frames would wait for.
        """
        if self._parallel:
            return self.enqueue(ticket) and self._wait_led(ticket, LEAD)
        with Uninterrupted():
            gate = self._enter(ticket, NO_LEADER)
            if type(gate) is tuple:
                self._lead_alone(gate)
                return True
            if gate is LEAD:
                self._lead()
        if gate is LEAD or gate is FULL:
            return self._wait_led(ticket, gate)
        gate.acquire()
        return True

    def _wait_led(self, ticket: Ticket, gate: object) -> bool:
        """Wait for the ticket of a caller who has led: another frame may have it. False where the queue was full."""
        if gate is FULL:
            return False
        waiter = self.attach_waiter(ticket)
        if waiter is not None:
            waiter.acquire()
        return True

    def _leave_line(self, ticket: Caller, gate: Any) -> None:
        """Lead, where the gate was opened for that, until the ticket is done; then see that who comes next goes on.

        Also where an exception came from another thread while the caller waited: nobody must wait for it in vain.
        """
        while True:
            if ticket.lead == TO_LEAD:
                ticket.lead = HAS_LED
                self._lead()
            # It may have been done before it led: another leader had taken it.
            if ticket.frame is not None and (ticket.frame.told or (ticket.lead == HAS_LED and ticket.done())):
                break
            gate.acquire(timeout=STOP_LOOK_S)
        if ticket.next_gate is not None and ticket.lead == CAN_LEAD:
            open_gate(ticket.next_gate)
        ticket.lead = HAS_LEFT

    def _enter(self, ticket: SingleTicket, lead: int) -> Any:
        """Queue the ticket; return a gate to wait at, LEAD where the caller has to lead, FULL where nothing was done.

        A group, where the caller leads and its ticket was taken at once: nobody else was there. A gate is opened when
        the ticket is done or, for a caller that can lead, when it is its turn to lead.
        """
        core = self.core
        with self._lock:
            if self.refusal is not None:
                raise self.refused()
            if not self._leaders and self._plain and not core.pending:
                self._leaders = 1
                self._taken[0] = group = core.submit_and_take(ticket)
                return group
            if core.pending_bytes + ticket.size_bytes > self.queue_bytes_max and core.pending:
                return FULL
            core.submit(ticket, self._clock_us() if self._timed else 0)
            if self._leaders < self._slots and (self._plain or self._ready()):
                self._leaders += 1
                return LEAD
            ticket.lead = lead
            ticket.waiter = gate = allocate_lock()
            gate.acquire()
            return gate

    # -- callers that do not wait

    def enqueue(self, ticket: SingleTicket) -> bool:
        """Queue the ticket and return at once; False where the queue has no room. Raises what refuses the log.

        An interrupt (Ctrl-C) strikes before the ticket is queued or after it: `WaitingLine.submit` sees to that. So
        the writer threads ask the policy, which may set the timer: that could not be interrupted anywhere.
        """
        core = self.core
        try:
            with self._lock:
                if self.refusal is not None:
                    raise self.refused()
                if core.pending_bytes + ticket.size_bytes > self.queue_bytes_max and core.pending:
                    return False
                core.submit(ticket, self._clock_us() if self._timed else 0)
                if (self._asked and self._writers.running) or self._leaders >= self._slots:
                    return True
                self._asked = True
            self._writers.wake()
        except WalkitError:
            raise
        except BaseException:
            self._writers.calls.put(True)  # at once: another interrupt may come in any function of Python
            self._writers.wake()
            raise
        return True

    def enqueue_put(
        self, key: bytes | None, value: bytes, ticket: BatchTicket
    ) -> BatchTicket | SingleTicket | None:
        """Queue a put that may share a submission with others; None where the queue has no room. See `enqueue`.

        Returns what to wait for: mostly the new `ticket` that it was given. Raises RecordTooLargeError, too.
        """
        if key is None:
            kind, size_bytes = PUT_VALUE, len(value) + COLUMN_BYTES_PER_RECORD
        else:
            kind, size_bytes = PUT_KEYED, len(key) + len(value) + COLUMN_BYTES_PER_RECORD
        batch = self._batches.join(ticket, kind, get_ident(), key, value, size_bytes)
        if batch is not None and (not batch.ended or self._is_of(batch, ticket.index)):
            return ticket
        if self._timed:  # a policy is told of every submission, and cuts between them
            return self._enqueue_single(kind, key, value)
        if size_bytes > self._record_bytes_max:
            raise RecordTooLargeError(size_bytes, self._record_bytes_max)
        return self._enqueue_locked(self._put_locked, ticket, kind, key, value, size_bytes)

    def enqueue_awaited(self, key: bytes | None, value: bytes) -> Awaitable[AppendResult] | None:
        """Do what `enqueue_put` does for a task of the loop of this thread; return what it awaits at once.

        A batch of this thread's tasks is joined here by the rules of `BatchLine.join`: a call less for every record.
        The loop is asked for only by who begins one: up to Python 3.11 asking is a system call. Where another runs in
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
            and batch.wait is not None
            and batch.owner == (me := get_ident())
            and batch.kind == kind
        ):
            values = batch.values
            grown_bytes = batch.grown_bytes + size_bytes
            if not batch.ended and grown_bytes <= batch.bytes_max:
                batch.owner = NOBODY
                index = len(values)
                if key is not None:
                    put_beside(batch.keys, index, key)
                batch.grown_bytes = grown_bytes
                values.append(value)
                batch.owner = me
                if not batch.ended or self._is_of(batch, index):
                    return put_awaited(batch, index)
        loop = taskwait.running_loop()
        if self._timed or not (ALONE and is_woken_at_once(loop)):
            return self._enqueue_single(kind, key, value)
        if size_bytes > self._record_bytes_max:
            raise RecordTooLargeError(size_bytes, self._record_bytes_max)
        return self._enqueue_locked(self._await_locked, loop, key, value, size_bytes)

    def _is_of(self, batch: Batch, index: int) -> bool:
        """Say whether a batch that ended while its owner put a record to it has the record."""
        with self._lock:
            if self.core.batch is batch:  # who ended it was interrupted
                self.core.end_batch()
            return index < batch.count

    def _enqueue_single(self, kind: int, key: bytes | None, value: bytes) -> SingleTicket | None:
        single = SingleTicket(self, kind, key or b"", value)
        if single.size_bytes > self._record_bytes_max:
            raise RecordTooLargeError(single.size_bytes, self._record_bytes_max)
        return single if self.enqueue(single) else None

    def _enqueue_locked(self, put: Callable[[*Record], Queued | None], *record: *Record) -> Queued | None:
        """Queue a put that did not join a batch of its thread, by `put(*record)`, which returns None without room."""
        try:
            with self._lock:
                if self.refusal is not None:
                    raise self.refused()
                queued = put(*record)
                if queued is None or self._leaders >= self._slots or (self._asked and self._writers.running):
                    return queued
                self._asked = True
            self._writers.wake()
        except WalkitError:
            raise
        except BaseException:
            self._writers.calls.put(True)  # at once: another interrupt may come in any function of Python
            self._writers.wake()
            raise
        return queued

    def _put_locked(
        self, ticket: BatchTicket, kind: int, key: bytes | None, value: bytes, size_bytes: int
    ) -> BatchTicket | None:
        core, batches = self.core, self._batches
        if batches.join(ticket, kind, ANYONE, key, value, size_bytes) is None:
            if core.pending_bytes + size_bytes > self.queue_bytes_max and core.pending:
                return None
            # Threads that submit in turns share batches, or each would begin one for each record.
            last, me = core.batch, get_ident()
            mine = last is None or last.wait is not None or last.owner == me
            batches.begin(ticket, kind, me if mine and ALONE else ANYONE, key, value, size_bytes)
        return ticket

    def _await_locked(
        self, loop: AbstractEventLoop, key: bytes | None, value: bytes, size_bytes: int
    ) -> Awaitable[AppendResult] | None:
        core = self.core
        if core.pending_bytes + size_bytes > self.queue_bytes_max and core.pending:
            return None
        return self._batches.begin_awaited(loop, key, value, size_bytes)

    def attach_waiter(self, ticket: Any) -> Any:
        """See TicketHost."""
        raise NotImplementedError

    def attach_wait(self, ticket: Any, wait: TaskWait) -> bool:
        """See TicketHost."""
        raise NotImplementedError

    def attach_callback(self, ticket: Any, callback: TicketCallback) -> None:
        """See TicketHost."""
        raise NotImplementedError
