"""Ctrl-C while the main thread leads: held back until the frame is acknowledged, then raised.

A KeyboardInterrupt between two steps of a commit would leave a frame half told. The main thread is the only one that
gets it, and the only one that may set signal handlers, so it holds SIGINT back for the one frame it writes.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_MAIN = threading.main_thread().ident


def on_main_thread() -> bool:
    """Say whether the caller is the main thread, where interrupts arrive."""
    return threading.get_ident() == _MAIN


class Uninterrupted:
    """Holds SIGINT back for a `with` block; what came meanwhile is handled at its end. Main thread only."""

    __slots__ = ("_held", "_previous")

    def __enter__(self) -> None:
        self._held: list[tuple[int, FrameType | None]] = []
        self._previous: Any = signal.getsignal(signal.SIGINT)
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._hold)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._held.append((number, frame))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is None:
            return
        signal.signal(signal.SIGINT, self._previous)
        if self._held and callable(self._previous):
            self._previous(*self._held[0])
