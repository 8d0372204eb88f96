"""Completion: what waits for tickets is woken when their frame is done, in the order of acknowledgement.

The thread that has written a frame opens the latches of its waiters and wakes asyncio's event loops (neither runs user
code), once per frame and last of all: a loop that wakes while this thread still runs only goes to sleep again at the
interpreter's lock. Callbacks, observers and event loops of other makes are the delivery thread's. Several frames in
flight end on several threads, so one of them at a time completes, for all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from walkit._internal.locks import refuse_holder
from walkit._internal.threads import MEMORY_TRIES, reserve_stack
from walkit.commit.asyncio_wait import TaskWait, Waits, put_wait
from walkit.commit.batch import Batch, Caller, Submitted
from walkit.commit.commit_signal import CommitSignal
from walkit.commit.core import OrderingCore
from walkit.commit.delivery import Delivery, with_callbacks
from walkit.commit.frame import SealedFrame
from walkit.commit.ticket import CAN_LEAD, TicketCallback, new_latch, open_latch
from walkit.commit.watch import DeviceWatch

WAKE_FANOUT = 2
"""How many callers of a frame are woken at a time; each wakes the next. Python runs one thread at a time in any case:
one that is woken too early only goes to sleep again at the interpreter's lock.
"""


def open_latches(frame: SealedFrame, waits: Waits) -> bool:
    """Open the latches of what waits for a frame that is done; say whether a callback is to be made.

    Callers that wait in `append` are woken one after the other: each opens its `next_latch`. What tasks await is put to
    `waits`. Repeated if it finds no memory: what was opened stays open.
    """
    called = False
    callers: list[Caller] = []
    submissions: Sequence[Any] = frame.submissions
    for ticket in submissions:
        if ticket.shared:
            _open_batch(ticket, callers, waits)
            continue
        if ticket.latch is not None:
            if ticket.lead == CAN_LEAD:
                callers.append(ticket)
            else:
                open_latch(ticket.latch)
        if ticket.task_wait is not None:
            put_wait(waits, ticket.task_wait)
        if ticket.callbacks is not None:
            called = True
    for ticket, following in zip(callers, callers[WAKE_FANOUT:], strict=False):
        ticket.next_latch = following.latch
    frame.notified = True
    for ticket in callers[:WAKE_FANOUT]:
        open_latch(ticket.latch)
    for ticket in submissions:
        if ticket.shared:
            called = bool(ticket.release_payload()) or called
    return called


def _open_batch(batch: Batch, callers: list[Caller], waits: Waits) -> None:
    """Do the same for records of a batch; callers that wait in the queue are put to `callers`."""
    if batch.task_wait is not None:
        put_wait(waits, batch.task_wait)
    for caller in batch.callers:
        if caller.lead == CAN_LEAD:
            callers.append(caller)
        else:
            open_latch(caller.latch)
    for ticket in batch.attached:
        if ticket.latch is not None:
            open_latch(ticket.latch)
        if ticket.task_wait is not None:
            put_wait(waits, ticket.task_wait)


class Completion:
    """Completes tickets: registers what waits for them, and wakes it. The TicketHost of a driver's tickets.

    `complete` and its like are for one thread at a time, everything else for any.
    """

    def __init__(
        self,
        core: OrderingCore[Submitted],
        lock: Any,
        *,
        signal: CommitSignal,
        delivery: Delivery,
        watch: DeviceWatch,
    ) -> None:
        self.core = core
        self.lock = lock
        self.signal = signal
        self.delivery = delivery
        self.watch = watch
        # Appended under the commit lock, so its order is that of acknowledgement. The head is taken by the thread
        # that has `_busy` only.
        self._queue: deque[tuple[Callable[[Any], None], Any]] = deque()
        # Held by the thread that completes what is queued, for all. Taken without the commit lock, and before the locks
        # of `Delivery`. A thread that finds it taken leaves its frames in `_queue`: the holder looks again afterwards.
        self._busy = threading.Lock()

    # -- what tickets ask

    def attach_latch(self, ticket: Any) -> Any:
        """See TicketHost."""
        self.watch.refuse_waiting()
        with self.lock:
            if ticket.done():
                return None
            ticket.add_waiter()
            if ticket.latch is None:
                ticket.latch = new_latch()
            return ticket.latch

    def attach_task_wait(self, ticket: Any, wait: TaskWait) -> bool:
        """See TicketHost."""
        with self.lock:
            if ticket.done():
                return False
            ticket.add_waiter()
            if ticket.task_wait is not None:
                return False
            ticket.task_wait = wait
            return True

    def attach_callback(self, ticket: Any, callback: TicketCallback) -> None:
        """See TicketHost."""
        reserve_stack()
        refuse_holder()
        with self.lock:
            if not ticket.done():
                ticket.add_waiter()
                if ticket.callbacks is None:
                    ticket.callbacks = []
                ticket.callbacks.append(callback)
                return
        self.delivery.put_callback(ticket, callback)

    # -- frames that are done

    def complete(self, frame: SealedFrame) -> None:
        """Wake the waiters, callbacks and observers of a frame that is acknowledged in order, or failed."""
        self._insist(self._complete, frame)

    def _insist(self, complete: Callable[[SealedFrame], None], frame: SealedFrame) -> None:
        """Complete a frame; try again if it finds no memory, as threads wait for that."""
        tries = 0
        while tries < MEMORY_TRIES:
            try:
                complete(frame)
                return
            except MemoryError:
                tries += 1

    def _complete(self, frame: SealedFrame) -> None:
        # Looked up for each frame: an observer sees every frame from one on, and none before.
        observers = self.delivery.observers
        waits: Waits = {}
        deliver = open_latches(frame, waits) or (bool(observers) and frame.count > 0)
        if deliver:
            self.delivery.put(frame, observers)
        else:
            frame.forget()
        if waits:
            self.delivery.wake_tasks(waits)
        if frame.count:
            self.delivery.ring()

    def _complete_landed(self, frame: SealedFrame) -> None:
        """Completion order, a frame has landed: wake waiters and callbacks; observers wait for those before it."""
        waits: Waits = {}
        if open_latches(frame, waits):
            self.delivery.put_tickets(with_callbacks(frame.submissions))
        frame.submissions = ()
        if waits:
            self.delivery.wake_tasks(waits)

    def _complete_passed(self, frame: SealedFrame) -> None:
        """Completion order, everything before a frame has landed, too: show it to observers."""
        observers = self.delivery.observers
        if observers and frame.count > 0:
            self.delivery.put(frame, observers)
        else:
            frame.forget()
        if frame.count:
            self.delivery.ring()

    # -- from several threads; the queue keeps the order, so the driver's lock is held

    def queue_in_order_locked(self, frames: list[SealedFrame]) -> None:
        """Queue frames for `complete`, all of them in one step."""
        if frames:
            self._queue.append((self._complete_each, frames))

    def queue_landed_locked(self, landed: list[SealedFrame], passed: list[SealedFrame]) -> None:
        """Completion order: queue frames that have landed, and take those that the prefix has passed."""
        self._queue.extend([(self._complete_landed, frame) for frame in landed])
        self._queue.extend([(self._complete_passed, frame) for frame in passed])
        passed.clear()

    def run(self) -> None:
        """Complete what is queued, unless another thread does, which then takes this too."""
        queue, tries = self._queue, 0
        while queue and self._busy.acquire(blocking=False):
            try:
                while queue:
                    complete, frames = queue[0]
                    complete(frames)
                    queue.popleft()  # only now: a completion that finds no memory is tried again
            except MemoryError:
                tries += 1
                if tries >= MEMORY_TRIES:
                    queue.popleft()
                    raise
            except BaseException:
                queue.popleft()
                raise
            finally:
                self._busy.release()

    def _complete_each(self, frames: list[SealedFrame]) -> None:
        while frames:
            self._complete(frames[0])
            del frames[0]
