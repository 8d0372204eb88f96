"""Callers that wait in the queue: how they get into it, wait for their frame or for the lead, and leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from walkit.commit.batch import ANY_THREAD, BatchQueue, Caller, WaitingCaller
from walkit.commit.election import LeaderElection
from walkit.commit.frame_writer import FrameWriter
from walkit.commit.ticket import (
    CAN_LEAD,
    HAS_LED,
    HAS_LEFT,
    NO_LEADER,
    TO_LEAD,
    LeaderState,
    SingleTicket,
    new_latch,
    open_latch,
)

LEAD: Final = object()
FULL: Final = object()
"""What `CallerQueue.queue_locked` returns where there is nothing to wait at: see there."""
RECHECK_S = 0.2
"""How often a caller that was interrupted while it waited looks whether its ticket is done."""


class CallerQueue:
    """Callers that wait, among others that do. Methods that end in `_locked` need the lock held."""

    def __init__(
        self,
        writer: FrameWriter,
        election: LeaderElection,
        batches: BatchQueue,
        lead: Callable[[], object],
    ) -> None:
        """`lead` writes the frame of a caller that was elected."""
        self._core = writer.core
        self._clock = writer.clock
        self._election = election
        self._batches = batches
        self._lead = lead
        self._queue_bytes_max = batches.queue_bytes_max
        self._plain = election.plain
        self._asks_time = election.asks_time

    def queue_put_locked(
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
        if len(election.leading) < election.places and (self._plain or election.ready_locked()):
            election.leading[thread] = True
        else:
            caller.next_latch, caller.latch = None, latch
            batch.callers.append(caller)
            caller.lead = CAN_LEAD
        return caller

    def queue_locked(self, thread: int, ticket: SingleTicket, lead: LeaderState) -> Any:
        """Queue a ticket among others; return LEAD with a place taken, FULL, or the latch of its caller."""
        core, election = self._core, self._election
        now_us = self._clock.us() if self._asks_time else 0
        if core.inbox:
            core.take_in(now_us)
        if core.pending_bytes + ticket.size_bytes > self._queue_bytes_max and core.pending:
            return FULL
        latch = new_latch()
        core.submit(ticket, now_us)
        if len(election.leading) < election.places and (self._plain or election.ready_locked()):
            election.leading[thread] = True
            return LEAD
        ticket.thread, ticket.next_latch = thread, None
        ticket.latch, ticket.lead = latch, lead
        return latch

    def wait_to_lead(self, ticket: Caller, latch: Any) -> None:
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
                self._lead()
            # It may have been done before it led: another leader had taken it.
            if ticket.frame is not None and (
                ticket.frame.notified or (ticket.lead == HAS_LED and ticket.done())
            ):
                break
            latch.acquire(timeout=RECHECK_S)
        if ticket.next_latch is not None and ticket.lead == CAN_LEAD:
            open_latch(ticket.next_latch)
        ticket.lead = HAS_LEFT
