"""Ctrl-C while the main thread leads: held back until the frame is acknowledged, then raised.

A KeyboardInterrupt between two steps of a commit would leave a frame half notified. The main thread is the only one
that gets it, and the only one that may set signal handlers, so it holds SIGINT back for the one frame it writes.

The C module under `signal` is called directly: the enum conversions of the Python module cost more than the rest.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType, TracebackType
from typing import Any

SIGINT: int = _signal.SIGINT
IGNORED: int = _signal.SIG_IGN
"""What `getsignal` returns of an ignored signal: this object, a small int."""
getsignal: Callable[[int], Any] = _signal.getsignal
set_handler: Callable[[int, Any], Any] = _signal.signal

MAIN = threading.main_thread().ident


def on_main_thread() -> bool:
    """Say whether the caller is the main thread, where interrupts arrive."""
    return threading.get_ident() == MAIN


class Uninterrupted:
    """Holds SIGINT back for a `with` block; what came meanwhile is handled at its end. Main thread only.

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
    """Hold SIGINT back where the caller is the main thread; elsewhere there is none.

    A thread is started and noted under it: struck in between, it would count as running and never run, or run and never
    be ended.
    """
    return Uninterrupted() if on_main_thread() else nullcontext()
