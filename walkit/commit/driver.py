"""The thread driver: runs the ordering core on real storage with threads.

With one frame in flight, the caller that finds nobody leading becomes the leader: it takes all that waits, writes it
as one frame with one sync, and releases the others itself (the leader/follower commit of LevelDB and RocksDB). That is
what makes one writer as fast as the device: no other thread is on its path. With `in_flight` frames as many callers
lead at the same time. Callers that do not wait (`submit`, asyncio) are led by the writer threads. Callbacks and
observers run on the delivery thread.

What is under the lock is small: queueing, taking, marking. Encoding, writing, syncing and releasing are not.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from walkit.commit.batch import BATCH_BYTES_MAX, Batch, BatchTicket, Submitted
from walkit.commit.core import OrderingCore
from walkit.commit.frame import SealedFrame
from walkit.commit.interrupts import MAIN, Uninterrupted
from walkit.commit.leading import Leading, call_all
from walkit.commit.news import News
from walkit.commit.place import FramePlace
from walkit.commit.ticket import (
    CAN_LEAD,
    HAS_LED,
    HAS_LEFT,
    NO_LEADER,
    TO_LEAD,
    SingleTicket,
    Ticket,
    TicketCallback,
    new_gate,
    open_gate,
)
from walkit.errors import RecordTooLargeError, WalkitError
from walkit.events import EventSink
from walkit.format.body import COLUMN_BYTES_PER_RECORD
from walkit.format.layout import HAS_KEY, HAS_VALUE
from walkit.record import Kind

if TYPE_CHECKING:
    import asyncio

LEAD: Final = object()
FULL: Final = object()
STOP_LOOK_S = 0.2
PUT_VALUE: Final = Kind.PUT.value | HAS_VALUE
PUT_KEYED: Final = PUT_VALUE | HAS_KEY


class CommitDriver(Leading):
    """The commit path of one open log. All methods are safe from any thread unless they say otherwise."""

    def __init__(
        self,
        core: OrderingCore[Submitted],
        place: FramePlace,
        *,
        events: EventSink,
        name: str,
        sync_writes: bool,
        codec: str | None,
        queue_bytes_max: int,
        clock_us: Callable[[], int],
        write_timeout_us: int = 0,
    ) -> None:
        super().__init__(
            core,
            place,
            events=events,
            name=name,
            sync_writes=sync_writes,
            codec=codec,
            clock_us=clock_us,
            write_timeout_us=write_timeout_us,
        )
        self.queue_bytes_max = queue_bytes_max
        self._record_bytes_max = min(core.body_bytes_max, queue_bytes_max)
        self._batch_bytes_max = min(BATCH_BYTES_MAX, core.body_bytes_max)

    @property
    def hung(self) -> bool:
        """Whether a call to the device was found to hang, and may still be under way."""
        return self._watch.hung

    # -- ways in

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
        try:
            gate.acquire()
            if ticket.lead == CAN_LEAD:
                if ticket.next_gate is not None:
                    ticket.next_gate.release()
                ticket.lead = HAS_LEFT
                return True
        finally:
            if ticket.lead != HAS_LEFT:
                self._leave_line(ticket, gate)
        return True

    def _append_on_main(self, ticket: SingleTicket) -> bool:
        """See `append`. The main thread gets interrupts, so it never leads for others that wait for it."""
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

    def _wait_led(self, ticket: SingleTicket, gate: object) -> bool:
        """Wait for the ticket of a caller who has led: another frame may have it. False where the queue was full."""
        if gate is FULL:
            return False
        waiter = self.attach_waiter(ticket)
        if waiter is not None:
            waiter.acquire()
        return True

    def _leave_line(self, ticket: SingleTicket, gate: Any) -> None:
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
            self._wake_interrupted()
            raise
        return True

    def enqueue_put(
        self, key: bytes | None, value: bytes, future: asyncio.Future[None] | None = None
    ) -> Ticket | None:
        """Queue a put that may share a submission with others; None where the queue has no room. See `enqueue`.

        `future` is resolved on its loop, which must be one that `is_woken_at_once`, when the ticket is done. Raises
        RecordTooLargeError, too.

        One function for what others would be asked for: this is most of what a record costs. As in
        `WaitingLine.submit`, the call that makes the record part of the queue comes last.
        """
        if key is None:
            kind, size_bytes = PUT_VALUE, len(value) + COLUMN_BYTES_PER_RECORD
        else:
            kind, size_bytes = PUT_KEYED, len(key) + len(value) + COLUMN_BYTES_PER_RECORD
        if size_bytes > self._record_bytes_max:
            raise RecordTooLargeError(size_bytes, self._record_bytes_max)
        core = self.core
        ticket: Ticket
        try:
            with self._lock:
                if self.refusal is not None:
                    raise self.refused()
                if core.pending_bytes + size_bytes > self.queue_bytes_max and core.pending:
                    return None
                batch: Batch | None = core.batch
                if (
                    batch is None
                    or batch.kind != kind
                    or batch.size_bytes + size_bytes > self._batch_bytes_max
                ):
                    ticket = self._begin_batch(kind, key, value, size_bytes, future)
                else:
                    values = batch.values
                    ticket = BatchTicket()
                    ticket.batch = batch
                    ticket.index = index = len(values)
                    if key is not None:
                        keys = batch.keys
                        if len(keys) != index:  # that of a caller who was interrupted
                            del keys[index:]
                        keys.append(key)
                    if future is not None:
                        batch.futures.append(future)
                    batch.size_bytes += size_bytes
                    core.pending_bytes += size_bytes
                    core.pending_records += 1
                    values.append(value)
                if self._leaders >= self._slots or (self._asked and self._writers.running):
                    return ticket
                self._asked = True
            self._writers.wake()
        except WalkitError:
            raise
        except BaseException:
            self._wake_interrupted()
            raise
        return ticket

    def _begin_batch(
        self,
        kind: int,
        key: bytes | None,
        value: bytes,
        size_bytes: int,
        future: asyncio.Future[None] | None,
    ) -> Ticket:
        """Queue the first record of a batch; needs the lock held."""
        core = self.core
        if self._timed:  # a policy is told of every submission, and cuts between them
            single = SingleTicket(self, kind, key or b"", value)
            single.future = future
            core.submit(single, self._clock_us())
            return single
        batch = Batch(self, kind, key, value, size_bytes)
        if future is not None:
            batch.futures.append(future)
        ticket = BatchTicket()
        ticket.batch = batch
        ticket.index = 0
        core.submit(batch)
        core.batch = batch
        return ticket

    def _wake_interrupted(self) -> None:
        """Let a writer thread look for what was perhaps queued, before another interrupt comes."""
        self._writers.calls.put(True)
        self._writers.wake()

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

    def withdraw(self, ticket: SingleTicket) -> bool:
        """Take a ticket back before any frame took it; then nothing of it is ever written."""
        with self._lock:
            withdrawn = self.core.withdraw(ticket)
            callbacks = self._news.tell_locked() if withdrawn else []
        call_all(callbacks)
        return withdrawn

    # -- what tickets ask

    def attach_waiter(self, ticket: Any) -> Any:
        """See TicketHost."""
        with self._lock:
            if ticket.done():
                return None
            ticket.attach()
            if ticket.waiter is None:
                ticket.waiter = new_gate()
            return ticket.waiter

    def attach_future(self, ticket: Any, future: asyncio.Future[None]) -> bool:
        """See TicketHost."""
        with self._lock:
            if ticket.done():
                return False
            ticket.attach()
            if ticket.future is not None:
                return False
            ticket.future = future
            return True

    def attach_callback(self, ticket: Any, callback: TicketCallback) -> None:
        """See TicketHost."""
        with self._lock:
            if not ticket.done():
                ticket.attach()
                if ticket.callbacks is None:
                    ticket.callbacks = []
                ticket.callbacks.append(callback)
                return
        self.delivery.put_callback(ticket, callback)

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
            self.core.flush()
        self._kick()
        self._news.wait_for(lambda: self.core.acked_lsn >= target or self._is_idle())

    def _is_idle(self) -> bool:
        if self._watch.hung and self._leaders <= len(self._watch):
            return True  # who leads still hangs on the device, and everybody has been told
        return not self._leaders and not self.core.pending

    def stop(self, refusal: WalkitError) -> None:
        """Refuse new work, finish what is queued, end the threads. Callbacks still queued are delivered."""
        with self._lock:
            if self.refusal is None:
                self.refusal = refusal
            self.core.flush()
        self._kick()
        self._news.wait_for(self._is_idle)
        self._stopped = True  # a sync that comes now is refused: what comes next may close the files
        while not self._hand.close(STOP_LOOK_S) and not self._watch.hung:
            pass
        self._writers.close(wait=not self._watch.hung)
        if self._timer is not None:
            self._timer.close()
        self.delivery.close()

    def after_fork(self, refusal: WalkitError) -> None:
        """In a forked child: refuse everything, and forget locks that a thread of the parent may have held.

        Tickets that were on their way fail here, so that nobody waits for the parent's threads; the parent's copies
        go their own way.
        """
        self._lock = threading.Lock()
        self._news = News(self._lock)
        self.refusal = refusal
        core = self.core
        waiting = [t for group in self._taken.values() for t in group if t.frame is None]
        SealedFrame.refused([*waiting, *core.refuse()], refusal)
        for frame in core.in_flight:
            if frame.state == "sealed":
                frame.error, frame.state = refusal, "failed"
