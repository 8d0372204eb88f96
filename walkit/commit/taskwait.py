"""How tasks of event loops wait for their records, and are woken: once for each frame and loop.

A task goes on when what it awaits calls it back, and an `asyncio.Future` does so in a later step of the loop, by a
handle of its own for each task. A TaskWait is awaited in a future's place, by the protocol that every future of other
makes follows (`_asyncio_future_blocking`, as `asyncio.isfuture` knows it), and keeps the call; `wake_all` then makes
the calls of a whole frame in one step of the loop.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import asyncio
    from contextvars import Context


Wakeup: TypeAlias = "Callable[[asyncio.Future[None]], object]"
"""What makes a task take its next step, by what came of the future it is given."""


def _over(done: asyncio.Future[None]) -> None:
    """In the place of a wakeup that was called, or will not be."""


class TaskWait:
    """One task's wait, to be awaited once, by a task of the loop it was made on. Only that loop's thread may touch it.

    Cancelling the task ends the wait at once, as a future's would; what is waited for goes on.
    """

    __slots__ = ("_asyncio_future_blocking", "_context", "_loop", "_wakeup")
    _loop: asyncio.AbstractEventLoop
    """Where asyncio looks for the loop of what is awaited."""
    _wakeup: Wakeup | None
    _context: Context

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wakeup = None

    def __await__(self) -> Generator[Any, None, None]:
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
    def over(self) -> bool:
        """Whether the task was called or cancelled: nothing is left to do for it."""
        return self._wakeup is _over

    def wake_from_anywhere(self) -> None:
        """Let the task go on soon, from any thread; does nothing once the loop is closed, and nobody waits on it."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(wake_all, deque((self,)))


def done_future(loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """Return a future that is done."""
    done: asyncio.Future[None] = loop.create_future()
    done.set_result(None)
    return done


def by_loop(waits: Sequence[TaskWait]) -> list[tuple[asyncio.AbstractEventLoop, deque[TaskWait]]]:
    """Return waits grouped by their loops; from any thread."""
    loops = {wait._loop for wait in waits}
    if len(loops) == 1:
        return [(loops.pop(), deque(waits))]
    return [(loop, deque(wait for wait in waits if wait._loop is loop)) for loop in loops]


def wake_all(waits: deque[TaskWait]) -> None:
    """Let tasks of one loop go on, in this step of it; on the loop's thread only. Takes them out of `waits`."""
    if not waits:
        return
    loop = waits[0]._loop
    done = done_future(loop)
    # A task may end the loop (SystemExit), or run it from within (nest_asyncio): the others go on all the same.
    rest = loop.call_soon(wake_all, waits) if len(waits) > 1 else None
    while waits:
        wait = waits.popleft()
        wakeup, wait._wakeup = wait._wakeup, _over
        if wakeup is not None:
            wait._context.run(wakeup, done)
    if rest is not None:
        rest.cancel()


_woken_at_once: dict[type[asyncio.AbstractEventLoop], bool] = {}


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this thread; RuntimeError where none runs. An import statement takes thrice as long."""
    module: Any = sys.modules.get("asyncio")
    if module is None:
        raise RuntimeError("no running event loop")
    loop: asyncio.AbstractEventLoop = module.get_running_loop()
    return loop


def is_woken_at_once(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether waking the loop runs nobody's code, so that it need not wait for the delivery thread."""
    kind = type(loop)
    found = _woken_at_once.get(kind)
    if found is None:
        import asyncio

        found = kind.call_soon_threadsafe is asyncio.BaseEventLoop.call_soon_threadsafe
        _woken_at_once[kind] = found = found or kind.__module__ == "uvloop"
    return found
