"""Releasing: waiters and the delivery thread are told that frames are done, in the order of acknowledgement.

Plain waiters are released by whoever comes by (opening a gate runs nobody's code); callbacks, observers and event loops
are the delivery thread's. Several frames in flight end on several threads, so one of them at a time releases, for all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from walkit.commit.delivery import Delivery
from walkit.commit.frame import SealedFrame
from walkit.commit.ticket import open_gate


class Releaser:
    """Tells of frames; see the module's words. `tell` for one thread at a time, the queue for many."""

    def __init__(self, delivery: Delivery, publish: Callable[[], None]) -> None:
        self._delivery = delivery
        self._publish = publish
        self._queue: deque[tuple[Callable[[SealedFrame], None], SealedFrame]] = deque()
        self._busy = threading.Lock()

    def tell(self, frame: SealedFrame) -> None:
        """A frame is done, acknowledged in order or failed: tell waiters, callbacks and observers."""
        # Looked up for each frame: who observes from one frame on must see every later one, and none before.
        observers = self._delivery.observers
        deliver = bool(observers) and frame.count > 0
        for ticket in frame.submissions:
            if ticket.waiter is not None:
                open_gate(ticket.waiter)
            if ticket.callbacks is not None:
                deliver = True
        if deliver:
            self._delivery.put(frame, observers)
        else:
            frame.forget()

    def tell_landed(self, frame: SealedFrame) -> None:
        """Completion order, a frame has landed: tell waiters and callbacks; observers wait for those before it."""
        tickets = frame.submissions
        frame.submissions = ()
        for ticket in tickets:
            if ticket.waiter is not None:
                open_gate(ticket.waiter)
        called = [ticket for ticket in tickets if ticket.callbacks is not None]
        if called:
            self._delivery.put_tickets(called)

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
        """Tell what is queued, unless another thread is at it, which then tells this too. Publishes before it tells."""
        queue = self._queue
        while queue and self._busy.acquire(blocking=False):
            try:
                count = len(queue)
                self._publish()
                for _ in range(count):
                    tell, frame = queue.popleft()
                    tell(frame)
            finally:
                self._busy.release()
