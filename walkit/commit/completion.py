"""Releasing: waiters and the delivery thread are told that frames are done, in the order of acknowledgement.

Plain waiters are released by whoever comes by, and asyncio's event loops woken (neither runs anybody's code), once for
a frame and last of all: a loop that wakes while who tells of the frame still runs only goes to sleep again at the
interpreter's lock. Callbacks, observers and event loops of other makes are the delivery thread's. Several frames in
flight end on several threads, so one of them at a time releases, for all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from walkit.commit.asyncio_wait import Waits, put_wait
from walkit.commit.batch import Batch, Caller
from walkit.commit.delivery import Delivery, with_callbacks
from walkit.commit.frame import SealedFrame
from walkit.commit.ticket import CAN_LEAD, open_gate

CHAINS = 2
"""How many of those who wait for a frame are woken at a time. Python runs one of them at a time in any case: who is
woken too early only goes to sleep again at the interpreter's lock.

With 64 threads, pairs of processes in which all are woken at once and in two chains, one after the other on a machine
with nothing else to do: the chains make 1.10 times as many records (median of 15 pairs, 0.93 to 1.42), and 1.26 times
on a single core (10 pairs). In a bare sketch, which does nothing but queue and write, it is 0.9 to 1.1; there 1, 2, 4
and 8 chains cannot be told apart.
"""


def open_gates(frame: SealedFrame, waits: Waits) -> bool:
    """Let through who waits for a frame that is done; say whether somebody else is to be told, by a callback.

    Callers that wait in `append` are let through one after the other: each opens its `next_gate`. What tasks await is
    put to `waits`.
    """
    called = False
    callers: list[Caller] = []
    submissions: Sequence[Any] = frame.submissions
    for ticket in submissions:
        if ticket.shared:
            called = _open_batch(ticket, callers, waits) or called
            continue
        if ticket.waiter is not None:
            if ticket.lead == CAN_LEAD:
                callers.append(ticket)
            else:
                open_gate(ticket.waiter)
        if ticket.wait is not None:
            put_wait(waits, ticket.wait)
        if ticket.callbacks is not None:
            called = True
    for ticket, following in zip(callers, callers[CHAINS:], strict=False):
        ticket.next_gate = following.waiter
    frame.told = True
    for ticket in callers[:CHAINS]:
        ticket.waiter.release()
    return called


def _open_batch(batch: Batch, callers: list[Caller], waits: Waits) -> bool:
    """Do the same for who waits for records of a batch; callers in line are put to the others."""
    if batch.wait is not None:
        put_wait(waits, batch.wait)
    for caller in batch.callers:
        if caller.lead == CAN_LEAD:
            callers.append(caller)
        else:
            open_gate(caller.waiter)
    for ticket in batch.attached:
        if ticket.waiter is not None:
            open_gate(ticket.waiter)
        if ticket.wait is not None:
            put_wait(waits, ticket.wait)
    return bool(batch.let_go())


class Releaser:
    """Tells of frames; see the module's words. `tell` for one thread at a time, the queue for many."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._queue: deque[tuple[Callable[[SealedFrame], None], SealedFrame]] = deque()
        self._busy = threading.Lock()

    def tell(self, frame: SealedFrame) -> None:
        """A frame is done, acknowledged in order or failed: tell waiters, callbacks and observers."""
        # Looked up for each frame: who observes from one frame on must see every later one, and none before.
        observers = self._delivery.observers
        waits: Waits = {}
        deliver = open_gates(frame, waits) or (bool(observers) and frame.count > 0)
        if deliver:
            self._delivery.put(frame, observers)
        else:
            frame.forget()
        if waits:
            self._delivery.wake_tasks(waits)

    def tell_landed(self, frame: SealedFrame) -> None:
        """Completion order, a frame has landed: tell waiters and callbacks; observers wait for those before it."""
        waits: Waits = {}
        if open_gates(frame, waits):
            self._delivery.put_tickets(with_callbacks(frame.submissions))
        frame.submissions = ()
        if waits:
            self._delivery.wake_tasks(waits)

    def tell_passed(self, frame: SealedFrame) -> None:
        """Completion order, everything before a frame has landed, too: tell observers."""
        observers = self._delivery.observers
        if observers and frame.count > 0:
            self._delivery.put(frame, observers)
        else:
            frame.forget()

    # -- with several frames in flight

    def queue(self, tell: Callable[[SealedFrame], None], frames: list[SealedFrame]) -> None:
        """Queue what is to be told; under the driver's lock, so that the queue keeps the order."""
        self._queue.extend([(tell, frame) for frame in frames])

    def run(self) -> None:
        """Tell what is queued, unless another thread is at it, which then tells this too."""
        queue = self._queue
        while queue and self._busy.acquire(blocking=False):
            try:
                count = len(queue)
                for _ in range(count):
                    tell, frame = queue.popleft()
                    tell(frame)
            finally:
                self._busy.release()
