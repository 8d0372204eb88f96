"""Callers that do not wait: their records are queued, and the writer threads asked to lead for them.

The way in for a ticket is `enqueue`. Single records of plain bytes, which are most of what is ever written, come in by
its record variant `enqueue_put` and share submissions (see `ticket`); `enqueue_awaited` is the same for a task of an
event loop, which gets something to await in place of a ticket: a ticket and a wait per record would be made to be asked
once.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from walkit._internal.locks import HERE, STEP
from walkit._internal.threads import reserve_stack
from walkit.commit import asyncio_wait
from walkit.commit.asyncio_wait import is_woken_at_once
from walkit.commit.delivery import Completion
from walkit.commit.election import LeaderElection
from walkit.commit.frame_writer import CommitFailure
from walkit.commit.ticket import (
    ALONE,
    ANY_THREAD,
    NO_THREAD,
    PUT_KEYED,
    PUT_VALUE,
    Batch,
    BatchQueue,
    BatchSlot,
    SingleTicket,
    put_at,
    put_awaited,
)
from walkit.errors import LogFullError, RecordTooLargeError, WalkitError
from walkit.format.body import COLUMN_BYTES_PER_RECORD
from walkit.record import AppendResult

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

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
        self._asks_time = election.asks_time

    def enqueue(self, ticket: SingleTicket) -> bool:
        """Queue the ticket and return at once; False where the queue has no room. Raises what refuses the log.

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
        """Queue a put that may share a submission with others; None where the queue has no room. See `enqueue`.

        Returns what to wait for: mostly the new `ticket` that it was given. Raises RecordTooLargeError, too.
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
        if self._asks_time or self.lock._is_owned() or (mark is not None and mark._is_owned()):
            return self._enqueue_single(
                kind, key, value
            )  # a policy sees every submission, and cuts between them
        if size_bytes > self._record_bytes_max:
            raise RecordTooLargeError(size_bytes, self._record_bytes_max)
        return self._enqueue_by(self._put_locked, ticket, kind, key, value, size_bytes)

    def enqueue_awaited(self, key: bytes | None, value: bytes) -> Awaitable[AppendResult] | None:
        """Do what `enqueue_put` does for a task of the loop of this thread; return what it awaits at once.

        A batch of this thread's tasks is joined here by the rules of `BatchQueue.join`: a call less for every record.
        The loop is asked for only where one is begun: up to Python 3.11 asking is a system call. Where another runs in
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
        if foreign or self._asks_time or not (ALONE and is_woken_at_once(loop)):
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
                if election.asked:
                    return queued
                if election.pool.running:
                    # At once: others count on what `asked` says, and foreign code that waits may run here.
                    election.pool.calls.put(True)
                    election.asked = True
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
        core.submit(ticket, self._clock.us() if self._asks_time else 0)
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
