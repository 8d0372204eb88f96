"""How tasks of event loops wait for their records, and are woken: once for each frame and loop.

A task goes on when what it awaits calls it back, and an `asyncio.Future` does so in a later step of the loop, by a
handle of its own for each task. A TaskWait is awaited in a future's place, by the protocol that every future of other
makes follows (`_asyncio_future_blocking`, as `asyncio.isfuture` knows it), and keeps the call; `wake_all` then makes
the calls of a whole frame in one step of the loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeAlias

if TYPE_CHECKING:
    import asyncio
    from asyncio import AbstractEventLoop
    from contextvars import Context


Wakeup: TypeAlias = "Callable[[asyncio.Future[None]], object]"
"""What makes a task take its next step, by what came of the future it is given."""


def _over(done: asyncio.Future[None]) -> None:
    """In the place of a wakeup that was called, or will not be."""


class TaskWait:
    """One task's wait, to be awaited once, by a task of the loop it is of. Only that loop's thread may touch it.

    Cancelling the task ends the wait at once, as a future's would; what is waited for goes on. It is made by `of`: an
    `__init__` would be a tenth of what a wait costs.
    """

    __slots__ = ("_asyncio_future_blocking", "_context", "_loop", "_wakeup")
    _loop: AbstractEventLoop
    """Where asyncio looks for the loop of what is awaited."""
    _wakeup: Wakeup | None
    _context: Context

    @classmethod
    def of(cls, loop: AbstractEventLoop) -> Self:
        """Return a wait of a task of this loop."""
        wait = cls()
        wait._loop = loop
        wait._wakeup = None
        return wait

    def __await__(self) -> Generator[Any, None, Any]:
        self._asyncio_future_blocking = True
        return iter((self,))  # type: ignore[return-value]  # half the price of a generator

    def add_done_callback(self, wakeup: Wakeup, *, context: Context) -> None:
        """Called by the task that awaits this."""
        if self._wakeup is _over:
            self._loop.call_soon(wakeup, done_future(self._loop), context=context)
            return
        self._wakeup = wakeup
        self._context = context

    def cancel(self, msg: object = None) -> bool:
        """Called by the task when it is cancelled; False where it goes on already."""
        wakeup = self._wakeup
        if wakeup is None or wakeup is _over:
            return False
        self._wakeup = _over
        cancelled: asyncio.Future[None] = self._loop.create_future()
        cancelled.cancel(msg)
        self._loop.call_soon(wakeup, cancelled, context=self._context)
        return True

    @property
    def waiting(self) -> bool:
        """Whether a task waits that was neither woken nor cancelled."""
        return self._wakeup is not None and self._wakeup is not _over

    def wake_from_anywhere(self) -> None:
        """Let the task go on soon, from any thread; does nothing once the loop is closed, and nobody waits on it."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(wake_all, self._loop, ((self,),))


def done_future(loop: AbstractEventLoop) -> asyncio.Future[None]:
    """Return a future that is done."""
    done: asyncio.Future[None] = loop.create_future()
    done.set_result(None)
    return done


Waits: TypeAlias = "dict[AbstractEventLoop, list[Sequence[TaskWait]]]"
"""Waits by their loops, in the order in which their tasks go on; of each loop several sequences."""


def put_wait(waits: Waits, wait: TaskWait) -> None:
    """Put one to the others of its loop; on any thread."""
    waits.setdefault(wait._loop, []).append((wait,))


def waits_of(*waits: TaskWait) -> Waits:
    """Return waits by their loops; on any thread."""
    by_loop: Waits = {}
    for wait in waits:
        put_wait(by_loop, wait)
    return by_loop


def wake_all(loop: AbstractEventLoop, waits: Sequence[Sequence[TaskWait]]) -> None:
    """Let tasks of a loop go on, in this step of it; on the loop's thread only."""
    done = done_future(loop)
    left = chain.from_iterable(waits)
    # A task may end the loop (SystemExit), or run it from within (nest_asyncio): the others go on all the same.
    rest = loop.call_soon(_wake, left, done) if len(waits) > 1 or len(waits[0]) > 1 else None
    _wake(left, done)
    if rest is not None:
        rest.cancel()


def _wake(waits: Iterator[TaskWait], done: asyncio.Future[None]) -> None:
    for wait in waits:
        wakeup, wait._wakeup = wait._wakeup, _over
        if wakeup is not None:
            wait._context.run(wakeup, done)


_woken_at_once: dict[type[AbstractEventLoop], bool] = {}


def _first_running_loop() -> AbstractEventLoop:
    import asyncio

    global running_loop
    running_loop = asyncio.get_running_loop
    return running_loop()


running_loop: Callable[[], AbstractEventLoop] = _first_running_loop
"""Returns the event loop of this thread; RuntimeError where none runs. Asyncio's own, once it is imported: ask for it
as an attribute of this module."""


def is_woken_at_once(loop: AbstractEventLoop) -> bool:
    """Whether waking the loop runs nobody's code, so that it need not wait for the delivery thread."""
    kind = type(loop)
    found = _woken_at_once.get(kind)
    if found is None:
        import asyncio

        found = kind.call_soon_threadsafe is asyncio.BaseEventLoop.call_soon_threadsafe
        _woken_at_once[kind] = found = found or kind.__module__ == "uvloop"
    return found
