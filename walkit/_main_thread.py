"""The main thread and Ctrl-C: held back while it leads a frame, and kept from cutting long work, which a worker does.

A KeyboardInterrupt between two steps of a commit would leave a frame half notified. The main thread is the only one
that gets it, and the only one that may set signal handlers, so it holds SIGINT back for the one frame it writes. The C
module under `signal` is called directly: the enum conversions of the Python module cost more than the rest.

An exception of a signal handler (KeyboardInterrupt, mostly) can come up after every call that the main thread makes,
also between taking a lock and the `try` that frees it, and in the middle of `threading.Condition`, which is Python code
and then keeps its lock forever. Other threads get no signals. So opening, closing, trimming and their like run on a
worker if the main thread asks for them, with the callbacks for progress that they have. The main thread waits for one
lock meanwhile, and then sends the worker's events.

An interrupt ends the waiting, and never the work in the middle of a step. A scan or a compaction ends at its next
check, the rest runs to its end. The main thread waits `GRACE_S` for that, then raises the interrupt; a second one ends
this waiting too, and the worker continues by itself.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar, cast

from walkit._internal.locks import refuse_holder
from walkit._internal.threads import LogThread, reserve_stack
from walkit.errors import CallbackError
from walkit.events import EventSink, Outbox

SIGINT: int = _signal.SIGINT
IGNORED: int = _signal.SIG_IGN
"""Returned by `getsignal` for an ignored signal: this object, a small int."""
getsignal: Callable[[int], Any] = _signal.getsignal
set_handler: Callable[[int, Any], Any] = _signal.signal

MAIN = threading.main_thread().ident


def on_main_thread() -> bool:
    """Say whether the caller is the main thread, where interrupts arrive."""
    return threading.get_ident() == MAIN


class Uninterrupted:
    """Holds SIGINT back for a `with` block; an interrupt meanwhile is handled at its end. Main thread only.

    A process that ignores SIGINT goes on to ignore it: a child that is started meanwhile inherits that.
    """

    __slots__ = ("_held", "_previous")

    def __enter__(self) -> None:
        self._held: list[tuple[int, FrameType | None]] = []
        previous = getsignal(SIGINT)
        # None: the handler is not Python's, and could not be put back.
        self._previous: Any = None if previous is IGNORED else previous
        if self._previous is not None:
            set_handler(SIGINT, self._hold)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._held.append((number, frame))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is None:
            return
        set_handler(SIGINT, self._previous)
        if self._held and callable(self._previous):
            self._previous(*self._held[0])
        elif self._held and self._previous == _signal.SIG_DFL:
            _signal.raise_signal(SIGINT)


def uninterrupted() -> AbstractContextManager[None]:
    """Hold SIGINT back if the caller is the main thread; other threads receive none.

    A thread is started and noted under it: struck in between, it would count as running and never run, or run and never
    be ended.
    """
    return Uninterrupted() if on_main_thread() else nullcontext()


GRACE_S = 2.0
"""How long the main thread waits, once it was interrupted, for the work to end: a device may hang."""

T = TypeVar("T")


class Abandoned(BaseException):
    """Raised on a worker if the main thread was interrupted and takes no result: the work ends early."""


class _Task(Generic[T]):
    """One function that a worker calls, and its result."""

    def __init__(
        self,
        function: Callable[[], T],
        name: str,
        events: EventSink | None,
        undo: Callable[[T], object] | None,
    ) -> None:
        self.error: BaseException | None = None
        self.box = Outbox()
        """The events of the worker; the main thread sends them when it has waited."""
        self._function, self._name, self._events, self._undo = function, name, events, undo
        self._result: T | None = None
        self.fate: dict[str, str] = {}
        """Whether the function ended or was abandoned first. Worker and main thread each set it by one call of C."""
        self._thread = LogThread(target=copy_context().run, args=(self._run,), name=f"walkit-{name}")

    @property
    def abandoned(self) -> bool:
        """Whether the main thread was interrupted before the function had ended."""
        return self.fate.get("is") == "abandoned"

    def start(self) -> bool:
        """Start the thread; False if the system has none to give, or the interpreter is ending."""
        try:
            with uninterrupted():
                self._thread.start()
        except RuntimeError:
            return False
        return True

    def _run(self) -> None:
        _here.task = self
        with self.box:
            try:
                self._result = self._function()
            except BaseException as error:  # noqa: BLE001 - raised by the main thread
                self.error = error
            if self.fate.setdefault("is", "ended") != "ended":
                self._discard()

    def outcome(self) -> T:
        """Wait for the end of the thread, send its events, and return or raise the outcome of the function."""
        self._thread.join()
        self.box.send()
        if self.error is not None:
            raise self.error
        return cast(T, self._result)

    def abandon(self, fate: str) -> None:
        """The main thread was interrupted: undo the result on another thread, and wait `GRACE_S` at most for that."""
        self.box.leave()
        if fate == "ended":
            self._thread = LogThread(target=self._discard, name=self._thread.name)
            self.start()
        if self._thread.ident is not None:  # None if interrupted before it was started
            self._thread.wait(GRACE_S)

    def _discard(self) -> None:
        error, self.error = self.error, None
        try:
            if error is None and self._undo is not None:
                self._undo(cast(T, self._result))
        except BaseException as failure:  # noqa: BLE001 - reported, like a failure of the function itself
            error = failure
        if error is not None and not isinstance(error, Abandoned) and self._events is not None:
            self._events.emit("walkit.maintenance.fail", job=self._name, error=str(error))


class _Here(threading.local):
    task: _Task[Any] | None = None


_here = _Here()


def run_uninterrupted(
    function: Callable[[], T],
    name: str,
    *,
    events: EventSink | None = None,
    undo: Callable[[T], object] | None = None,
) -> T:
    """Return or raise the outcome of `function()`; the main thread has a worker call it, so that no interrupt cuts it.

    CallbackError if the calling thread is in a step of the log's own, and so must not wait for others.

    If the main thread is interrupted, it raises that and no caller gets the result: the worker calls `undo(result)`; an
    error that no caller gets is the event `walkit.maintenance.fail` with the job `name`. Context variables are those of
    the caller. If no thread can be started, at the end of the process, the caller's thread calls the function.
    """
    reserve_stack()
    refuse_holder()
    if events is not None and events.is_busy():
        raise CallbackError
    if not on_main_thread():
        return function()
    task = _Task(function, name, events, undo)
    try:
        if task.start():
            return task.outcome()
    except BaseException as error:
        if error is task.error:
            task.error = None  # it refers to this frame
        else:
            # A second signal comes up after this call of C at the earliest: the worker is told before that.
            task.abandon(task.fate.setdefault("is", "abandoned"))
        raise
    return function()


def end_if_abandoned() -> None:
    """Raise Abandoned on a worker that no thread waits for. Called at points where the work may end early."""
    if _here.task is not None and _here.task.abandoned:
        raise Abandoned


def abandonment() -> Callable[[], bool]:
    """Return a function that tells, on any thread, whether the work of the calling worker was abandoned."""
    task = _here.task
    return lambda: task is not None and task.abandoned


def ending_early(progress: Callable[..., object] | None) -> Callable[..., Any] | None:
    """Return a function to call for `progress`, on any thread, that ends the work of this worker once it is abandoned.

    None only if there is neither a worker nor a callback.
    """
    task = _here.task
    if task is None:
        return progress

    def report(*arguments: Any) -> None:
        if task.abandoned:
            raise Abandoned
        if progress is not None:
            progress(*arguments)

    return report
