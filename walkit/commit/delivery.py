"""Delivery: callbacks, observers and event loops that are not asyncio's, on one thread, in LSN order, under no lock.

A callback that blocks delays only its like, one that raises is reported as an event and nothing else happens: the
commit path never waits for user code (AutoMQ ran callbacks on an I/O thread under the callback lock: #1808).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from walkit.commit.frame import SealedFrame
from walkit.commit.ticket import LoopWaiter, Ticket, TicketCallback, resolve_all
from walkit.events import EventSink

if TYPE_CHECKING:
    import asyncio

Observer = Callable[[SealedFrame], object]


class Delivery:
    """The delivery thread; it starts with the first delivery."""

    def __init__(self, name: str, events: EventSink) -> None:
        self._name = name
        self._events = events
        self._queue: deque[tuple[Any, Any]] = deque()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._busy = False
        self._drained = threading.Condition(self._lock)
        self.observers: tuple[Observer, ...] = ()

    @property
    def waiting(self) -> int:
        """Deliveries that have not been made yet."""
        return len(self._queue) + self._busy

    @property
    def is_current(self) -> bool:
        """Whether the caller is the delivery thread itself."""
        return self._thread is threading.current_thread()

    def put(self, frame: SealedFrame, observers: tuple[Observer, ...]) -> None:
        """Queue a frame that is done, for those who observed when it was. Called in LSN order.

        Who comes later would see it and not the frames after it that nobody had to be told of, which is a gap.
        """
        self._put(frame, observers)

    def put_tickets(self, tickets: list[Any]) -> None:
        """Queue tickets that are done and have callbacks."""
        self._put(tickets, None)

    def put_callback(self, ticket: Ticket, callback: TicketCallback) -> None:
        """Queue one callback that came after its ticket was done."""
        self._put(ticket, callback)

    def _put(self, what: Any, whom: Any) -> None:
        self._queue.append((what, whom))
        if self._thread is None or self._closing:
            self._start()
        self._wake.set()

    def observe(self, observer: Observer) -> None:
        """Call `observer(frame)` for every frame acknowledged from now on."""
        with self._lock:
            self.observers = (*self.observers, observer)

    def leave(self, observer: Observer) -> None:
        """End what `observe` began; on return no new call begins."""
        with self._lock:
            self.observers = tuple(o for o in self.observers if o != observer)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"walkit-delivery {self._name}", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        queue = self._queue
        while True:
            self._wake.wait()
            self._wake.clear()
            self._busy = True
            while queue:
                what, whom = queue.popleft()
                if isinstance(whom, tuple):
                    self._deliver(what, whom)
                elif whom is None:
                    self._call_back(what)
                elif isinstance(whom, LoopWaiter):
                    self.wake_loops([whom.future])
                else:
                    self._call(whom, what)
                del what, whom
            with self._lock:
                self._busy = bool(queue)
                self._drained.notify_all()
                if self._closing and not queue:
                    self._thread = None
                    return

    def _deliver(self, frame: SealedFrame, observers: tuple[Observer, ...]) -> None:
        self._call_back(frame.submissions)
        if frame.state == "acked" and frame.count:
            for observer in observers:
                if observer in self.observers:
                    self._call(observer, frame)
        frame.forget()

    def _call_back(self, tickets: Sequence[Any]) -> None:
        loops: list[asyncio.Future[None]] = []
        for ticket in tickets:
            callbacks: list[TicketCallback] | None = getattr(ticket, "callbacks", None)
            if not callbacks:
                continue
            for callback in callbacks:
                if isinstance(callback, LoopWaiter):
                    loops.append(callback.future)
                else:
                    self._call(callback, ticket)
        if loops:
            self.wake_loops(loops)

    def wake_loops(self, futures: Sequence[asyncio.Future[None]]) -> None:
        """Have futures resolved on their loops, each loop woken once. From any thread: it runs nobody's code."""
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for future in futures:
            by_loop.setdefault(future.get_loop(), []).append(future)
        for loop, group in by_loop.items():
            try:
                loop.call_soon_threadsafe(resolve_all, group)
            except RuntimeError:
                self._events.emit("walkit.callback.fail", what="event loop", error="the loop is closed")

    def _call(self, callback: Callable[[Any], object], argument: object) -> None:
        try:
            callback(argument)
        except BaseException as error:  # noqa: BLE001 - user code (CancelledError too); its failure is an event
            self._events.emit("walkit.callback.fail", what=repr(callback), error=repr(error))

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all that was queued before has been delivered; False after `timeout` seconds."""
        if self._thread is None or self.is_current:
            return True
        self._wake.set()
        with self._lock:
            return self._drained.wait_for(lambda: not self._queue and not self._busy, timeout)

    def close(self, timeout: float | None = 5.0) -> bool:
        """Deliver what is queued, then end the thread; False where a callback still blocks after `timeout`."""
        self._closing = True
        thread = self._thread
        if thread is None or self.is_current:
            return True
        self._wake.set()
        thread.join(timeout)
        return not thread.is_alive()
