"""Tasks of event loops that wait for their records, and are woken: once per frame and loop.

A task resumes when its awaitable calls it back, and an `asyncio.Future` does so in a later step of the loop, by a
handle of its own for each task. A TaskWait is awaited in a future's place by any number of tasks, by the protocol that
every future of other makes follows (`_asyncio_future_blocking`, as `asyncio.isfuture` knows it); `wake_all` then makes
the calls of a whole frame in one step of the loop.

Two things that asyncio does not document are used here and nowhere else: the calls that one of its futures keeps
(`_callbacks`), and whether a task was cancelled (`_must_cancel`), which is done without if it is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import asyncio
    from asyncio import AbstractEventLoop
    from contextvars import Context


Wakeup: TypeAlias = "Callable[[asyncio.Future[None]], object]"
"""Makes a task take its next step, given a finished future."""
Calls: TypeAlias = "Sequence[tuple[Wakeup, Context]]"
"""Wakeups of tasks, each with the context to call it in."""


class TaskWait:
    """The one event that tasks of one loop await. Only that loop's thread may touch it, once a task awaits it.

    Cancelling a task ends its waiting, as a future's would; the record stays on its way.
    """

    __slots__ = ("_asyncio_future_blocking", "_kept", "_leaving", "_loop", "add_done_callback", "over")
    add_done_callback: Callable[..., object]
    """Called by a task that begins to wait: that of a future which is never done, and only keeps the calls. So a task
    that waits costs no function of Python."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop  # asyncio reads the loop of an awaitable here
        self._leaving = False
        self.over = False
        """Whether the wait is over."""
        self._keep_anew()

    def _keep_anew(self) -> None:
        from asyncio import Future  # importing walkit does not import asyncio

        # One of asyncio's own, whatever the loop would make: it shows the calls that it keeps, and its repr does so.
        self._kept: Any = Future(loop=self._loop)
        self.add_done_callback = self._kept.add_done_callback

    def __await__(self) -> Generator[Any, None, None]:
        while not self.over:
            self._asyncio_future_blocking = True
            yield self

    def cancel(self, msg: object = None) -> bool:
        """Called by a task that is cancelled. False: this is not cancelled, so the task keeps that it is."""
        if not (self.over or self._leaving):
            self._loop.call_soon(self._wake_cancelled)
            self._leaving = True
        return False

    def _wake_cancelled(self) -> None:
        """Let cancelled tasks go on, each of which then finds that it is; the others wait on.

        A task that does not report whether it is cancelled is woken too, and waits again if it is not.
        """
        self._leaving = False
        if self.over:
            return
        calls, done = self._calls, done_future(self._loop)
        self._keep_anew()
        for wakeup, context in calls:
            if getattr(getattr(wakeup, "__self__", None), "_must_cancel", True):
                self._loop.call_soon(wakeup, done, context=context)
            else:
                self.add_done_callback(wakeup, context=context)

    @property
    def _calls(self) -> Calls:
        return self._kept._callbacks or ()

    def end(self) -> Calls:
        """End the wait and return the calls to make; empty if it had already ended.

        A task that was woken may wait for something else by now.
        """
        if self.over:
            return ()
        self.over = True
        return self._calls

    @property
    def waiting(self) -> bool:
        """Whether a task waits that was neither woken nor cancelled."""
        return not self.over and bool(self._calls)

    def is_of_this_loop(self) -> bool:
        """Whether its loop is the one that runs in this thread."""
        return running_loop() is self._loop


def done_future(loop: AbstractEventLoop) -> asyncio.Future[None]:
    """Return a future that is done."""
    done: asyncio.Future[None] = loop.create_future()
    done.set_result(None)
    return done


Waits: TypeAlias = "dict[AbstractEventLoop, list[TaskWait]]"
"""Waits by their loops, in the order in which their tasks go on."""


def put_wait(waits: Waits, wait: TaskWait) -> None:
    """Put one to the others of its loop; on any thread."""
    waits.setdefault(wait._loop, []).append(wait)


def waits_of(*waits: TaskWait) -> Waits:
    """Return waits by their loops; on any thread."""
    by_loop: Waits = {}
    for wait in waits:
        put_wait(by_loop, wait)
    return by_loop


def wake_all(loop: AbstractEventLoop, waits: Sequence[TaskWait]) -> None:
    """Let the tasks of these waits go on, in this step of their loop; on the loop's thread only."""
    done = done_future(loop)
    left = chain.from_iterable([wait.end() for wait in waits])
    # A task may end the loop (SystemExit), or run it from within (nest_asyncio): the others go on all the same.
    rest = loop.call_soon(_wake, loop, left, done)
    _wake(loop, left, done)
    rest.cancel()


def _wake(
    loop: AbstractEventLoop, calls: Iterable[tuple[Wakeup, Context]], done: asyncio.Future[None]
) -> None:
    try:
        for wakeup, context in calls:
            context.run(wakeup, done)
    except BaseException:
        loop.call_soon(_wake, loop, calls, done)  # those after the one that has raised
        raise


_woken_at_once: dict[type[AbstractEventLoop], bool] = {}


def _first_running_loop() -> AbstractEventLoop:
    import asyncio

    global running_loop
    running_loop = asyncio.get_running_loop
    return running_loop()


running_loop: Callable[[], AbstractEventLoop] = _first_running_loop
"""Returns the event loop of this thread; RuntimeError if none runs. It is asyncio's own, once imported: read it as an
attribute of this module."""


def is_woken_at_once(loop: AbstractEventLoop) -> bool:
    """Whether waking the loop runs no user code, so that it need not wait for the delivery thread."""
    kind = type(loop)
    found = _woken_at_once.get(kind)
    if found is None:
        import asyncio

        found = kind.call_soon_threadsafe is asyncio.BaseEventLoop.call_soon_threadsafe
        _woken_at_once[kind] = found = found or kind.__module__ == "uvloop"
    return found
