"""The end of a frame: the thread that wrote it wakes the waiters, and the delivery thread runs user code.

The thread that has written a frame opens the latches of its waiters and wakes asyncio's event loops (neither runs user
code), once per frame and last of all: a loop that wakes while this thread still runs only goes to sleep again at the
interpreter's lock. Several frames in flight end on several threads, so one of them at a time completes, for all.

Callbacks, observers and event loops that are not asyncio's have the delivery thread, in LSN order, under no lock. A
callback that blocks delays only its like, one that raises is reported as an event and nothing else happens: the commit
path never waits for user code (AutoMQ ran callbacks on an I/O thread under the callback lock: #1808). Of an observer,
which is called for every frame, the first error is an event, and later ones are counted. Wakers run no user code and
are called by the committing thread itself: a thread between them and it would cost each frame two switches.

Frames that wait for the delivery thread are bounded in bytes: beyond `bytes_max` only the LSNs of acknowledged frames
are kept, and observers get the frames from the log when their turn comes. A callback waits with its ticket, whose
record is released.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

from walkit._internal.locks import marked, once, refuse_holder
from walkit._internal.threads import MEMORY_TRIES, LogThread, reserve_stack
from walkit._main_thread import uninterrupted
from walkit.commit.asyncio_wait import TaskWait, Waits, put_wait, waits_of, wake_all
from walkit.commit.core import OrderingCore
from walkit.commit.frame import SealedFrame
from walkit.commit.latches import CommitSignal, new_latch, open_latch
from walkit.commit.ticket import CAN_LEAD, Batch, Caller, Submitted, Ticket, TicketCallback
from walkit.commit.timer import DeviceWatch
from walkit.events import EventSink

Observer = Callable[[Any], object]
"""Takes a SealedFrame."""
Waker = Callable[[], object]
"""Wakes something; it neither waits nor raises, as a committing thread calls it."""


def with_callbacks(submissions: Sequence[Any]) -> list[Ticket]:
    """Return the tickets that want to be called back, in LSN order; a batch forgets those of its records."""
    found: list[Ticket] = []
    for submission in submissions:
        if submission.shared:
            found += submission.attached
            submission.attached = []
        elif submission.callbacks is not None:
            found.append(submission)
    return found


class ErrorCount:
    """Counts an observer's errors; the first is an event."""

    def __init__(self, callback: object, events: EventSink) -> None:
        self.count = 0
        self._callback, self._events = callback, events

    def __call__(self, error: BaseException) -> None:
        """Count an error."""
        self.count += 1
        if self.count == 1:
            self._events.emit("walkit.callback.fail", what=name_of(self._callback), error=repr(error))


def name_of(callback: Any) -> str:
    """Return the module and qualified name of a callback; of an object that is called, those of its class."""
    while isinstance(callback, partial):
        callback = callback.func
    named = callback if hasattr(callback, "__qualname__") else type(callback)
    return f"{getattr(named, '__module__', None) or 'builtins'}.{named.__qualname__}"


class SpilledFrames:
    """Acknowledged frames that observers have not seen and of which nothing but the LSNs is kept."""

    __slots__ = ("first_lsn", "frames", "last_lsn", "taken")

    def __init__(self, frame: SealedFrame) -> None:
        self.first_lsn = frame.first_lsn
        self.last_lsn = frame.last_lsn
        self.frames = 1
        self.taken = False
        """Whether the delivery thread reads them: then it no longer grows."""


class Delivery:
    """The delivery thread; it starts with the first delivery."""

    def __init__(self, name: str, events: EventSink) -> None:
        self._name = name
        self._events = events
        self.on_failure: Callable[[BaseException], object] = lambda _: None
        """Called with an error that is not of user code; raises nothing."""
        # Any thread appends, the delivery thread alone takes from the left; each by one call, so no lock guards it.
        self._queue: deque[tuple[Any, Any]] = deque()
        self._wake = new_latch()
        # Guards `_thread` and the tuples of observers, wakers and listeners, which are replaced and never changed.
        # Taken without the commit lock; no other lock is taken under it.
        self._lock = threading.RLock()
        self._thread: LogThread | None = None
        self._closing = False
        # Written by the delivery thread only; set back under `_lock`, with `_drained` notified.
        self._busy = False
        self._drained = CommitSignal(self._lock)
        self.observers: tuple[Observer, ...] = ()
        self.wakers: tuple[Waker, ...] = ()
        """Called after each acknowledged frame by the thread that completes it: for readers of the log itself."""
        self.bytes_max: int | None = None
        """Most bytes of frames that wait for observers. None: no bound."""
        self.reread: Callable[[int, int], Iterator[SealedFrame]] | None = None
        """Reads acknowledged frames from the log, by their first and last LSN; raises if they are absent."""
        self.durable_listeners: tuple[Callable[[int], object], ...] = ()
        """Called on the delivery thread, with the durable LSN, after a sync has moved it."""
        self._lost: dict[Observer, Callable[[Exception], object]] = {}
        """Called when an observer cannot be given its frames."""
        self._raised: dict[Observer, ErrorCount] = {}
        self.errors = 0
        """How many errors observers and callbacks have raised."""
        # Guards the last SpilledFrames of the queue and `_spilled_frames`: one thread adds to it while the other
        # takes it. Taken alone.
        self._spilled_lock = threading.RLock()
        self._spilled_frames = 0
        # Each is moved by one thread: the one that puts, and the delivery thread.
        self._put_bytes = self._done_bytes = 0

    @property
    def waiting(self) -> int:
        """Deliveries that have not been made yet."""
        return len(self._queue) + self._busy + self._spilled_frames

    @property
    def waiting_bytes(self) -> int:
        """Bytes of frames that wait for observers."""
        return self._put_bytes - self._done_bytes

    @property
    def is_current(self) -> bool:
        """Whether the caller is the delivery thread itself."""
        return self._thread is threading.current_thread()

    def put(self, frame: SealedFrame, observers: tuple[Observer, ...]) -> None:
        """Queue a frame that is done, for those that observed when it was. Called in LSN order.

        An observer that comes later would see it, and not the frames after it that had none: a gap.
        """
        held, limit = self._put_bytes - self._done_bytes, self.bytes_max
        seen = bool(observers) and frame.count > 0 and frame.state == "acked"
        if seen and (limit is None or not held or held + frame.footprint <= limit):
            self._put_bytes += frame.footprint
            self._put(frame, observers)
            return
        self.put_tickets(with_callbacks(frame.submissions))
        if seen:
            self._put_spilled(frame, observers)
        frame.forget()

    def _put_spilled(self, frame: SealedFrame, observers: tuple[Observer, ...]) -> None:
        """Keep no more of the frame than that it is there; one after the other, they are one thing to keep."""
        with once(self._spilled_lock), self._spilled_lock:
            try:
                last, receiver = self._queue[-1]
            except IndexError:  # another thread has just taken the last one
                last = receiver = None
            if isinstance(last, SpilledFrames) and receiver == observers and not last.taken:
                last.last_lsn = frame.last_lsn
                last.frames += 1
                self._spilled_frames += 1
                return
        self._put(SpilledFrames(frame), observers)

    def put_tickets(self, tickets: list[Ticket]) -> None:
        """Queue tickets that are done and have callbacks."""
        for ticket in tickets:
            ticket.release_payload()
        if tickets:
            self._put(tickets, None)

    def put_callback(self, ticket: Ticket, callback: TicketCallback) -> None:
        """Queue one callback that came after its ticket was done."""
        self._put(ticket, callback)

    def durable_moved(self, lsn: int) -> None:
        """A sync has put more on stable storage: queue a call of each in `durable_listeners`. From any thread."""
        for act in self.durable_listeners:
            self._put(lsn, act)

    def _put(self, item: Any, receiver: Any) -> None:
        self._queue.append((item, receiver))
        if self._thread is None or self._closing:
            self._start()
        open_latch(self._wake)

    def add_observer(
        self,
        observer: Observer,
        lost: Callable[[Exception], object] | None = None,
        *,
        callback: object = None,
    ) -> ErrorCount:
        """Call `observer(frame)` for every frame acknowledged from now on; return the count of its errors.

        If frames cannot be given to it, because they were trimmed or cannot be read, it is dropped and `lost(error)` is
        called. The event of its first error names `callback`, if given.
        """
        raised = ErrorCount(observer if callback is None else callback, self._events)
        with once(self._lock), self._lock:
            self._lost[observer] = lost or (lambda _: None)
            self._raised[observer] = raised
            self.observers = (*self.observers, observer)
            self._check()
        return raised

    def _check(self) -> None:
        """Assert that all is kept of each observer; needs the lock held. Ctrl-C may leave more, of one that went."""
        assert set(self.observers) <= self._lost.keys() & self._raised.keys()
        assert self.errors >= 0 and self._spilled_frames >= 0

    def remove_observer(self, observer: Observer) -> None:
        """Remove an observer; on return no new call begins."""
        with once(self._lock), self._lock:
            self.observers = tuple(o for o in self.observers if o != observer)
            self._lost.pop(observer, None)
            self._raised.pop(observer, None)
            self._check()

    def add_waker(self, waker: Waker) -> None:
        """Have it called after every frame acknowledged from now on."""
        with once(self._lock), self._lock:
            self.wakers = (*self.wakers, waker)

    def remove_waker(self, waker: Waker) -> None:
        """Remove a waker; does nothing if it was not added. A frame that is done at this moment may still call it."""
        with once(self._lock), self._lock:
            self.wakers = tuple(each for each in self.wakers if each != waker)

    def wake(self) -> None:
        """Call every waker: a frame with records is acknowledged."""
        for waker in self.wakers:
            waker()

    def add_durable_listener(self, act: Callable[[int], object]) -> None:
        """Call `act(durable LSN)` on the delivery thread after each sync that belongs to no frame."""
        with once(self._lock), self._lock:
            self.durable_listeners = (*self.durable_listeners, act)

    def remove_durable_listener(self, act: Callable[[int], object]) -> None:
        """Remove a listener; does nothing if it was not added."""
        with once(self._lock), self._lock:
            self.durable_listeners = tuple(each for each in self.durable_listeners if each != act)

    def drop_observer(self, observer: Observer, after_lsn: int, error: Exception) -> None:
        """Drop an observer that cannot be given the frames after an LSN: an event, and its `lost(error)`."""
        lost = self._lost.get(observer)
        self.remove_observer(observer)
        self._events.emit("walkit.observer.lose", after_lsn=after_lsn, error=repr(error))
        if lost is not None:
            self._call(lost, error)

    def _start(self) -> None:
        with marked(), self._lock:  # foreign code within may queue more, and no thread be there for it
            if self._thread is not None:
                return
            thread = LogThread(target=self._run, name=f"walkit-delivery {self._name}", daemon=True)
            try:
                with uninterrupted():
                    thread.start()
                    self._thread = thread
                return
            except RuntimeError as error:  # the system has none to give
                missing = error
        self.on_failure(missing)

    def _run(self) -> None:
        queue, me = self._queue, cast(LogThread, threading.current_thread())
        while True:
            self._wake.acquire()
            self._busy = True
            while queue:
                item, receiver = queue.popleft()
                try:
                    self._make(item, receiver)
                except BaseException as error:  # noqa: BLE001 - later deliveries are made all the same
                    self.on_failure(error)
                del item, receiver
            with once(self._lock), self._lock:
                self._busy = bool(queue)
                self._drained.notify_locked()
                if self._closing and not queue:
                    self._thread = None
                    if (
                        not queue or self._thread is not None
                    ):  # foreign code has queued more, and perhaps started one
                        return
                    self._thread = me

    def _make(self, item: Any, receiver: Any) -> None:
        """Make one delivery: of frames not kept, of a frame, to tickets, to a task, or of an argument to a callback."""
        if isinstance(item, SpilledFrames):
            self._catch_up(item, receiver)
        elif isinstance(receiver, tuple):
            self._deliver(item, receiver)
        elif receiver is None:
            self._call_back(item)
        elif isinstance(receiver, TaskWait):
            self.wake_tasks(waits_of(receiver))
        else:
            self._call(receiver, item)

    def _deliver(self, frame: SealedFrame, observers: tuple[Observer, ...]) -> None:
        try:
            self._call_back(with_callbacks(frame.submissions))
            if frame.state == "acked" and frame.count:
                for observer in observers:
                    if observer in self.observers:
                        self._observe(observer, frame)
        finally:
            frame.forget()
            self._done_bytes += frame.footprint

    def _catch_up(self, spilled: SpilledFrames, observers: tuple[Observer, ...]) -> None:
        """Give observers the frames that were not kept for them, read from the log."""
        with once(self._spilled_lock), self._spilled_lock:
            spilled.taken = True
            self._spilled_frames -= spilled.frames - 1
        after = spilled.first_lsn - 1
        try:
            if self.reread is None or not self._readers(observers):
                return
            for frame in self.reread(spilled.first_lsn, spilled.last_lsn):
                for observer in self._readers(observers):
                    self._observe(observer, frame)
                after = frame.last_lsn
        except Exception as error:  # noqa: BLE001 - whatever it is, the observers get the error, and see no gap
            for observer in self._readers(observers):
                self.drop_observer(observer, after, error)

    def _readers(self, observers: tuple[Observer, ...]) -> list[Observer]:
        """Return those that still observe."""
        return [o for o in observers if o in self.observers]

    def _call_back(self, tickets: Sequence[Ticket]) -> None:
        waits: list[TaskWait] = []
        for ticket in tickets:
            for callback in ticket.callbacks or ():
                if isinstance(callback, TaskWait):
                    waits.append(callback)
                else:
                    self._call(callback, ticket)
        if waits:
            self.wake_tasks(waits_of(*waits))

    def wake_tasks(self, waits: Waits) -> None:
        """Have tasks go on, each of their loops woken once. From any thread: it runs no user code.

        A loop that cannot be woken is an event of the delivery thread: a leader must not run an event's callback.
        """
        for loop, group in waits.items():
            tries = 0
            while tries < MEMORY_TRIES:
                try:
                    loop.call_soon_threadsafe(wake_all, loop, group)
                except MemoryError:
                    tries += 1
                    continue
                except Exception as error:  # noqa: BLE001 - a loop of another make is user code
                    if any(wait.waiting for wait in group):
                        what = "the loop is closed" if isinstance(error, RuntimeError) else repr(error)
                        self._put(what, self._report_loop)
                break

    def _report_loop(self, error: str) -> None:
        self._events.emit("walkit.callback.fail", what="event loop", error=error)

    def _call(self, callback: Callable[[Any], object], argument: object) -> None:
        try:
            callback(argument)
        except BaseException as error:  # noqa: BLE001 - user code (CancelledError too); its failure is an event
            self.errors += 1
            self._events.emit("walkit.callback.fail", what=name_of(callback), error=repr(error))

    def _observe(self, observer: Observer, frame: SealedFrame) -> None:
        try:
            observer(frame)
        except BaseException as error:  # noqa: BLE001 - user code, and the next frame may please it
            self.errors += 1
            raised = self._raised.get(observer)
            if raised is not None:  # it has left itself
                raised(error)

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all that was queued before has been delivered; False after `timeout` seconds."""
        if self._thread is None or self.is_current:
            return self._thread is not None or not self._queue
        refuse_holder()
        open_latch(self._wake)
        return self._drained.wait_for(lambda: not self._queue and not self._busy, timeout)

    def close(self, timeout: float | None = 5.0) -> bool:
        """Deliver all queued calls, then end the thread; False if a callback still blocks after `timeout`."""
        self._closing = True
        if self._queue:
            self._start()  # a thread may be available by now for earlier entries
        thread = self._thread
        if thread is None or self.is_current:
            return True
        open_latch(self._wake)
        thread.join(timeout)
        return thread.ended


WAKE_FANOUT = 2
"""How many callers of a frame are woken at a time; each wakes the next. Python runs one thread at a time in any case:
one that is woken too early only goes to sleep again at the interpreter's lock.
"""


def open_latches(frame: SealedFrame, waits: Waits) -> bool:
    """Open the latches of waiters for a finished frame; say whether a callback is to be made.

    Callers that wait in `append` are woken one after the other: each opens its `next_latch`. Waits of tasks are added
    to `waits`. Repeated if it finds no memory: opened latches stay open.
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
    """Completes tickets: registers their waiters, and wakes them. The TicketHost of a driver's tickets.

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
        # The commit lock: see `DeviceWatch.lock`.
        self.lock = lock
        self.signal = signal
        self.delivery = delivery
        self.watch = watch
        # Appended under the commit lock, so its order is that of acknowledgement. The head is taken by the thread
        # that has `_busy` only.
        self._queue: deque[tuple[Callable[[Any], None], Any]] = deque()
        # Held by the thread that completes all queued frames. Taken without the commit lock, and before the locks
        # of `Delivery`. A thread that finds it taken leaves its frames in `_queue`: the holder looks again afterwards.
        self._busy = threading.Lock()

    # -- for tickets

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
            self.delivery.wake()

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
            self.delivery.wake()

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
        """Complete all queued frames, unless another thread does, which then takes this too."""
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
