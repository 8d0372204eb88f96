"""Work that Ctrl-C must not cut in two: done on a thread of its own, while the main thread waits for it.

An exception of a signal handler (KeyboardInterrupt, mostly) can come up after every call that the main thread makes,
also between taking a lock and the `try` that frees it, and in the middle of `threading.Condition`, which is Python code
and then keeps its lock for ever. Other threads get no signals. So opening, closing, trimming and their like run on a
worker where the main thread asks for them; all that the main thread does meanwhile is to wait for one lock.

An interrupt ends the waiting, and never the work in the middle of a step. What can end early (a scan, a compaction)
ends at its next look, the rest runs to its end. The main thread waits `GRACE_S` for that, then raises the interrupt; a
second one ends this waiting too, and the worker continues by itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextvars import copy_context
from time import monotonic
from typing import Any, Generic, TypeVar, cast

from walkit._interrupts import on_main_thread, uninterrupted
from walkit._locks import refuse_holder
from walkit._outbox import Outbox
from walkit._threads import LogThread, reserve_stack
from walkit.commit.ticket import new_latch, open_latch
from walkit.errors import CallbackError
from walkit.events import EventSink

GRACE_S = 2.0
"""How long the main thread waits, once it was interrupted, for the work to end: a device may hang."""

T = TypeVar("T")


class GivenUp(BaseException):
    """Raised on a worker where it may end early: the main thread was interrupted, and takes no result."""


class _Errand(Generic[T]):
    """One function that a worker does, and what became of it."""

    def __init__(
        self,
        function: Callable[[], T],
        name: str,
        events: EventSink | None,
        undo: Callable[[T], object] | None,
    ) -> None:
        self.name = name
        self.ended = False
        self.error: BaseException | None = None
        self._function, self._events, self._undo = function, events, undo
        self._result: T | None = None
        self._fate: dict[str, str] = {}
        """Whether it has ended or was given up, as the first of the two has set it, in one call."""

    def do(self) -> None:
        """Call the function. Where the main thread has given it up, undo what it made, and report its failure."""
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            self.error = error
        if self._fate.setdefault("is", "ended") != "ended":
            self._forsake()
        self.ended = True

    def give_up(self) -> bool:
        """Give the outcome up. True where the function had ended: then the caller sees to `forsaken`."""
        return self._fate.setdefault("is", "given up") == "ended"

    def forsaken(self) -> _Errand[None] | None:
        """Return the errand that undoes what this one, which has ended, has made; None where there is nothing."""
        if self.error is None and self._undo is None:
            return None
        return _Errand(self._forsake, self.name, self._events, None)

    def _forsake(self) -> None:
        error, self.error = self.error, None
        result, self._result = self._result, None
        try:
            if error is None and self._undo is not None:
                self._undo(cast(T, result))
        except BaseException as failure:  # noqa: BLE001 - reported, like a failure of the function itself
            error = failure
        if error is not None and not isinstance(error, GivenUp) and self._events is not None:
            self._events.emit("walkit.upkeep.fail", job=self.name, error=str(error))

    def outcome(self) -> T:
        """Return or raise what the function did."""
        if self.error is not None:
            raise self.error
        return cast(T, self._result)


class _Worker:
    """A thread that does an errand, and has the main thread, which waits, call what has to be called there."""

    def __init__(self, errand: _Errand[Any]) -> None:
        self.given_up = False
        self.over = False
        self.box = Outbox()
        """The events of the errand, which the main thread sends after its wait."""
        self._errand = errand
        self._gate = new_latch()
        """Where the worker waits while the main thread makes a call for it."""
        self._asking = threading.RLock()  # what a callback asks for may call back
        self._question: tuple[Callable[..., object], tuple[Any, ...]] | None = None
        self._answer: list[BaseException | None] = []
        self._nested: _Errand[Any] | None = None
        self._thread = LogThread(target=copy_context().run, args=(self._run,), name=f"walkit-{errand.name}")

    def start(self) -> bool:
        """Start the thread; False where none can be: the system has none to give, or the interpreter is ending."""
        try:
            with uninterrupted():
                self._thread.start()
        except RuntimeError:
            return False
        return True

    def _run(self) -> None:
        _current.worker = self
        with self.box:
            self._errand.do()
        self.over = True
        open_latch(_main.bell)

    # -- the worker's side

    def ask(self, callback: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
        """Have the main thread make a call, and wait for it; raises what it raises."""
        if self.given_up:
            raise GivenUp
        if callback is None:
            return
        if on_main_thread():
            callback(*arguments)
            return
        with self._asking:
            self._answer = []
            self._question = callback, arguments
            open_latch(_main.bell)
            while not self._answer:
                self._gate.acquire()
                nested, self._nested = self._nested, None
                if nested is not None:
                    nested.do()
                    open_latch(_main.bell)
                elif self.given_up and not self._answer:
                    raise GivenUp
            error = self._answer.pop()
        if error is not None:
            raise error

    # -- the main thread's side

    def reply(self) -> None:
        """Make the call that the worker asks for, if it does."""
        question, self._question = self._question, None
        if question is None:
            return
        callback, arguments = question
        error, before = None, _main.asked_by
        _main.asked_by = self
        try:
            callback(*arguments)
        except BaseException as raised:  # noqa: BLE001 - raised on the worker, which asked for the call
            error = raised
        finally:
            _main.asked_by = before
        self._answer.append(error)
        open_latch(self._gate)

    def hand_in(self, errand: _Errand[Any]) -> None:
        """Have the worker, which waits for a call that the main thread makes, do another errand meanwhile."""
        self._nested = errand
        open_latch(self._gate)
        _main.serve(errand)

    def join(self) -> None:
        """Wait for the thread's end; its errand has ended."""
        self._thread.join()

    def wait_given_up(self) -> None:
        """Let the errand end early where it can, and wait for its end, `GRACE_S` at the most."""
        if self._thread.ident is None:
            return  # interrupted before it was started
        self.given_up = True
        open_latch(self._gate)
        deadline = monotonic() + GRACE_S
        while not self.over and (left := deadline - monotonic()) > 0:
            _main.bell.acquire(timeout=left)


class _MainThread:
    """What the main thread waits for: one bell for all, as a signal handler may make it wait for more meanwhile."""

    def __init__(self) -> None:
        self.bell = new_latch()
        self.workers: list[_Worker] = []
        self.asked_by: _Worker | None = None
        """The worker for which it makes a call at this moment."""

    def serve(self, errand: _Errand[Any]) -> None:
        """Wait until the errand has ended, and make the calls that workers ask for."""
        while not errand.ended:
            self.bell.acquire()
            for worker in self.workers:
                worker.reply()
        # What rang meanwhile may have been for an errand that is waited for further out.
        open_latch(self.bell)

    def have_done(self, worker: _Worker, errand: _Errand[Any]) -> bool:
        """Start a worker and wait for its end; False where it cannot be started."""
        # First, and in one step: a signal handler may come in between.
        others, self.workers = self.workers, [*self.workers, worker]
        if started := worker.start():
            self.serve(errand)
            worker.join()
        self.workers = [w for w in others if not w.over]  # what they made is their callers' alone
        return started


class _Current(threading.local):
    worker: _Worker | None = None


_current = _Current()
_main = _MainThread()


def _renew() -> None:
    global _main
    _main = _MainThread()


# A child forked in a callback that a worker asked for has the main thread, and not the worker.
os.register_at_fork(after_in_child=_renew)


def run_to_end(
    function: Callable[[], T],
    name: str,
    *,
    events: EventSink | None = None,
    undo: Callable[[T], object] | None = None,
) -> T:
    """Return or raise what `function()` does; on the main thread another thread calls it, so that no interrupt cuts it.

    CallbackError if the calling thread is in a step of the log's own, and so must not wait for others.

    Interrupted, the main thread raises that, and no caller gets the result: `undo(result)` is called on the worker; an
    error that no caller gets is the event `walkit.upkeep.fail` with the job `name`. Context variables are those of
    the caller. Where no thread can be started, at the end of the process, the function is called here.
    """
    reserve_stack()

    def work() -> T:
        # Also on a worker that does it while it waits for a callback, perhaps with locks.
        refuse_holder()
        return function()

    if events is not None and events.is_busy():
        raise CallbackError
    if not on_main_thread():
        return work()
    errand = _Errand(work, name, events, undo)
    worker = _main.asked_by
    if worker is not None:  # a callback: what it asks for may need locks which that worker holds
        return _hand_in(worker, errand)
    worker = _Worker(errand)
    try:
        if _main.have_done(worker, errand):
            worker.box.send()
            return errand.outcome()
    except BaseException as error:
        if error is errand.error:
            errand.error = None  # it refers to this frame
        else:
            _give_up(worker, errand)
        raise
    return work()


def _hand_in(worker: _Worker, errand: _Errand[T]) -> T:
    try:
        worker.hand_in(errand)
        return errand.outcome()
    except BaseException as error:
        if error is errand.error:
            errand.error = None
        elif errand.give_up() and (rest := errand.forsaken()) is not None:
            worker.hand_in(rest)
        raise


def _give_up(worker: _Worker, errand: _Errand[Any]) -> None:
    """The main thread was interrupted: see that nothing is left of what no caller takes."""
    worker.box.leave()
    if errand.give_up():
        rest = errand.forsaken()
        if rest is None:
            return
        worker = _Worker(rest)
        worker.box.leave()
        worker.start()
    worker.wait_given_up()


def relayed(callback: Callable[..., object] | None) -> Callable[..., Any] | None:
    """Return what a worker calls in the place of a caller's callback, which is then called on the caller's thread.

    It ends the work (`GivenUp`) once no thread waits for it any more; for that alone it stands for None, too. On a
    thread that is no worker it is the callback itself.
    """
    worker = _current.worker
    if worker is None:
        return callback
    return lambda *arguments: worker.ask(callback, arguments)


def end_if_given_up() -> None:
    """Raise GivenUp on a worker for which no thread waits any more. Called where the work may end early."""
    worker = _current.worker
    if worker is not None and worker.given_up:
        raise GivenUp


def given_up_here() -> Callable[[], bool]:
    """Return what says, on any thread, whether no thread waits any more for the work of the calling worker."""
    worker = _current.worker
    return lambda: worker is not None and worker.given_up
