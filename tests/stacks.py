"""Frames of running threads, for tests that must know where a thread stands."""

from __future__ import annotations

import gc
import sys
from types import FrameType


def current_frames() -> dict[int, FrameType]:
    """Return each thread's innermost frame, by identifier of the thread.

    CPython up to 3.12 holds the lock of its list of threads meanwhile; a collection that clears a `threading.local`
    then wants the same lock, and the process hangs for good (python/cpython#106883). So nothing is collected.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()
