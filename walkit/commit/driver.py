"""The thread driver: runs the ordering core on real storage with threads.

With one frame in flight, the caller that finds no leader becomes the leader: it takes all that waits, writes it as one
frame with one sync, and completes the others itself (the leader/follower commit of LevelDB and RocksDB). That makes one
writer as fast as the device: no other thread is on its path. With `in_flight` frames as many callers lead at the same
time. Callers that do not wait (`submit`, asyncio) are led by the writer threads, and so is a crowd of those that do.
Callbacks and observers run on the delivery thread.

The lock covers only small steps: queueing, taking, marking. Encoding, writing, syncing and completing are
outside it.

Each part has fields of its own and is handed to those that need it: the core with the queue (`core`), the leader
election and the writer threads (`election`), callers that wait and lead, and callers that do not (`ways_in`),
the frame writer and failure (`frame_writer`), syncs, marker frames and replicas' acknowledgements (`background`,
`timer`), completion and delivery (`delivery`). Threads wait for one another by `latches`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from walkit.commit.background import AckLimit, BackgroundSyncer, BackgroundWork, DeviceWorker
from walkit.commit.core import OrderingCore
from walkit.commit.delivery import Completion, Delivery
from walkit.commit.election import LeaderElection, WriterPool
from walkit.commit.frame import SealedFrame
from walkit.commit.frame_writer import CommitCounters, CommitFailure, FrameWriter
from walkit.commit.latches import CommitSignal, call_all
from walkit.commit.ports import AdmissionGate, FrameObserver, FrameSink
from walkit.commit.ticket import BatchQueue, SingleTicket, Submitted
from walkit.commit.timer import CommitClock, CommitTimer, DeviceWatch
from walkit.commit.ways_in import Leader, Submitter
from walkit.errors import AppendTimeoutError, WalkitError
from walkit.events import EventSink
from walkit.format.body import Columns


class _LockHolder(Protocol):
    lock: Any


CLOSE_RECHECK_S = 0.2
"""How often `stop` looks whether the device worker hangs."""


TICKET_WAYS: Final = ("append", "enqueue")
WAYS_IN: Final = (*TICKET_WAYS, "append_put", "enqueue_put", "enqueue_awaited")
"""The ways in for records: for a ticket, and for one put."""


def _admitted(gate: AdmissionGate, way: Callable[..., Any], *, by_ticket: bool) -> Callable[..., Any]:
    """Return a way in that asks the gate first, and is without room if the gate has none."""

    def enter(first: Any, *rest: Any) -> Any:
        if not gate.admit(first.count if by_ticket else 1):
            return None
        try:
            return way(first, *rest)
        finally:
            gate.entered()

    return enter


class CommitDriver:
    """The commit path of one open log. All methods are safe from any thread unless they say otherwise.

    The ways in (`WAYS_IN`) and the methods for tickets (a `TicketHost`) are those of its parts, without a step between;
    a gate is the one step before them (`guard`). Each way in returns False or None if the queue or the gate has no
    room.
    """

    def __init__(
        self,
        core: OrderingCore[Submitted],
        frame_sink: FrameSink,
        *,
        events: EventSink,
        name: str,
        sync_writes: bool,
        codec: str | None,
        queue_bytes_max: int,
        clock: CommitClock,
        write_timeout_us: int = 0,
    ) -> None:
        self.core = core
        self.events = events
        self.queue_bytes_max = queue_bytes_max
        self.counters = CommitCounters()
        self.watch = DeviceWatch(write_timeout_us * 1000)
        # The commit lock: see `DeviceWatch.lock`.
        self.lock = lock = self.watch.lock
        self.signal = CommitSignal(lock)
        self.delivery = Delivery(name, events)
        completion = Completion(core, lock, signal=self.signal, delivery=self.delivery, watch=self.watch)
        self.failure = failure = CommitFailure(completion, events)
        self.poison = self.delivery.on_failure = failure.poison
        # Its thread starts with the first `wake`; parts without it never wake it.
        self.timer = CommitTimer(name, on_failure=failure.poison, serving=self.watch.serving)
        is_timed = core.idle_marker_us or core.interval_us or write_timeout_us or core.policy is not None
        timer = self.timer if is_timed else None
        self.watch.on_wake = self.timer.wake
        self.syncer = BackgroundSyncer(
            core,
            frame_sink,
            failure,
            worker=DeviceWorker(name, failure.poison, self.watch.serving),
            timer=timer,
            counters=self.counters,
        )
        self.writer = FrameWriter(
            core,
            frame_sink,
            failure,
            timer=timer,
            clock=clock,
            counters=self.counters,
            sync=self.syncer.sync_for_leader,
            sync_writes=sync_writes,
            codec=codec,
        )
        self.election = LeaderElection(
            core, self.watch, signal=self.signal, timer=timer, clock=clock, events=events
        )
        self.batches = BatchQueue(core, completion, queue_bytes_max)
        submitter = Submitter(self.election, failure, completion, self.batches)
        self.leader = Leader(self.writer, self.election, self.batches, submitter.enqueue, events)
        self.election.pool = WriterPool(
            name, self.election.places, self.leader.lead_for_others, failure.poison, self.watch.serving
        )
        events.is_busy, events.is_leading = self.watch.is_busy, self.watch.is_leading
        self.ack_limit = AckLimit(self.writer, self.election, self.timer, queue_bytes_max)
        self.timer.work = work = BackgroundWork(self.syncer, self.writer, self.election, self.ack_limit)
        parts = (self.watch, self.signal, completion, failure, self.syncer, self.writer, self.ack_limit)
        # All have the one lock of `DeviceWatch`, for speed by a field of their own; see there for its order.
        self._lock_holders: tuple[_LockHolder, ...] = (*parts, self.election, self.leader, submitter, work)
        """Every part that keeps the lock: a forked child gives all of them another (`after_fork`)."""
        self._gate: AdmissionGate | None = None
        self._give_ways_in(submitter, completion)

    def _give_ways_in(self, submitter: Submitter, completion: Completion) -> None:
        self.append_put, self.append = self.leader.append_put, self.leader.append
        self.enqueue, self.enqueue_put = submitter.enqueue, submitter.enqueue_put
        self.enqueue_awaited = submitter.enqueue_awaited
        self.attach_latch, self.attach_task_wait = completion.attach_latch, completion.attach_task_wait
        self.attach_callback = completion.attach_callback
        self.refused, self.refuse_waiting = self.failure.refused, self.watch.refuse_waiting
        self.sync, self.watched = self.syncer.sync, self.watch.watched

    def guard(self, gate: AdmissionGate) -> None:
        """Have each way in ask a gate first. Called once, before anything is queued."""
        gate.attach(self)
        self._gate = gate
        for name in WAYS_IN:
            setattr(self, name, _admitted(gate, getattr(self, name), by_ticket=name in TICKET_WAYS))

    @property
    def refusal(self) -> WalkitError | None:
        """The error that refuses all work once the log has failed or is closed; None before."""
        return self.failure.refusal

    @property
    def hung(self) -> bool:
        """Whether a call to the device was found to hang, and may still be under way."""
        return self.watch.hung

    # -- the queue

    def wait_for_room(self, size_bytes: int, timeout: float | None) -> bool:
        """Wait until a submission of this size would find room; False after `timeout` seconds.

        Raises the refusal of the records if the gate has kept them out, and has no room in time.
        """
        if self._gate is not None and self._gate.wait(timeout):
            return True
        core = self.core
        self.refuse_waiting()
        return self.signal.wait_for(
            lambda: (
                self.failure.refusal is not None
                or not core.pending
                or core.pending_bytes + size_bytes <= self.queue_bytes_max
            ),
            timeout,
        )

    def on_space(self, callback: Callable[[], object]) -> None:
        """Call back once when there may be room (from the leader: it must only wake something)."""
        if self._gate is not None and self._gate.on_space(callback):
            return
        with self.lock:
            if self.core.pending and self.failure.refusal is None:
                self.signal.call_next_locked(callback)
                return
        callback()

    def queued_lsn(self) -> int:
        """Return the LSN that the last record queued by now will have, if nothing is refused."""
        core = self.core
        with self.lock:
            # A frame may be sealed meanwhile: first its LSNs are given, then it is no longer counted as taken.
            appended = core.appended_lsn
            queued = core.queued_lsn
            while core.appended_lsn != appended:
                appended = core.appended_lsn
                queued = core.queued_lsn
        return queued

    def withdraw(self, ticket: SingleTicket) -> bool:
        """Take a ticket back before any frame took it; then nothing of it is ever written."""
        with self.lock:
            withdrawn = self.core.withdraw(ticket)
            if withdrawn:
                SealedFrame.refused([ticket], AppendTimeoutError("it was withdrawn"))
            callbacks = self.signal.notify_locked() if withdrawn else []
        call_all(callbacks)
        self.election.kick()  # it may have held back others
        return withdrawn

    def release(self, ticket: SingleTicket, columns: Columns, size_bytes: int) -> bool:
        """Let a held ticket be written, with these records; False if it waits no longer. See `held` of the core."""
        with self.lock:
            released = self.core.release(ticket, size_bytes)
            if released:
                ticket.columns, ticket.value = columns, b""
            callbacks = self.signal.notify_locked()
        call_all(callbacks)
        self.election.kick()
        return released

    def refuse(self, ticket: SingleTicket, error: WalkitError) -> None:
        """Fail a ticket that still waits: nothing of it is written. Does nothing for another."""
        completion = self.failure.completion
        with self.lock:
            if self.core.withdraw(ticket):
                completion.queue_in_order_locked([SealedFrame.refused([ticket], error)])
            callbacks = self.signal.notify_locked()
        call_all(callbacks)
        completion.run()
        self.election.kick()

    def wrap(self, ways: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
        """Replace these ways in, and return those that were there. Before anything is queued."""
        before = {name: getattr(self, name) for name in ways}
        for name, way in ways.items():
            assert name in WAYS_IN
            setattr(self, name, way)
        return before

    def add_write_observer(self, observer: FrameObserver) -> None:
        """Let an observer see the frames written from now on."""
        with self.lock:
            self.writer.write_observers = self.syncer.write_observers = (
                *self.writer.write_observers,
                observer,
            )

    def remove_write_observer(self, observer: FrameObserver) -> None:
        """Let it see no frame whose write begins from now on; does nothing if it was not added."""
        with self.lock:
            others = tuple(each for each in self.writer.write_observers if each is not observer)
            self.writer.write_observers = self.syncer.write_observers = others

    # -- the end

    def is_free(self) -> bool:
        """Say whether the lock is free now: not held by this very thread either (a finaliser may run anywhere)."""
        if self.watch.is_calling or not self.lock.acquire(blocking=False):
            return False
        self.lock.release()
        return True

    def wait_written(self) -> None:
        """Wait until everything that was queued before this call is written, or the log has failed."""
        self.refuse_waiting()
        with self.lock:
            target = self.core.queued_lsn
            self.core.flush()
        self.election.kick()
        self.signal.wait_for(lambda: self.core.written_lsn >= target or self._is_idle())

    def _is_idle(self) -> bool:
        leaders, watch = self.election.leaders, self.watch
        if watch.hung and leaders <= len(watch):
            return True  # the leaders still hang on the device, and all tickets are complete
        return not leaders and not self.core.pending and not self.core.inbox

    def stop(self, refusal: WalkitError) -> None:
        """Refuse new work, finish the queue, end the threads. Callbacks still queued are delivered.

        Waits for replicas last until their time is over.
        """
        with self.lock:
            if self.failure.refusal is None:
                self.failure.refusal = refusal
            self.core.flush()
        self.election.kick()
        self.signal.wait_for(self._is_idle)
        self.signal.wait_for(lambda: not self.ack_limit.is_waiting)
        with self.lock:
            self.ack_limit.stopped = True
        self.syncer.stopped = True
        while not self.syncer.worker.close(CLOSE_RECHECK_S) and not self.watch.hung:
            pass
        self.election.pool.close(wait=not self.watch.hung)
        self.timer.close()
        self.delivery.close()

    def after_fork(self, refusal: WalkitError) -> None:
        """In a forked child: refuse everything, and forget the lock, which a thread of the parent may have held.

        Tickets that were on their way fail here: the parent's threads, which would complete them, are not there. The
        parent's copies go on untouched.
        """
        self.lock = threading.RLock()
        self.watch.leading.clear()
        self.watch.serving.clear()
        for part in self._lock_holders:
            part.lock = self.lock
        self.signal.forget_waiters()
        self.failure.refuse_fork(refusal)
