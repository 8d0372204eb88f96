"""Ctrl-C for the main thread at a chosen place: shared by the tests of what waits for threads."""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType

from tests.commit.places import GUARD_S, Task

LOOKS = 20
"""The main thread stands where it was seen so often, one after the other."""


def interrupt_in(*names: str) -> Task:
    """Send SIGINT to the main thread once it stands in functions of all these names; returns when it has left.

    A signal that comes just before a lock is waited for does not end the waiting, and is handled when another one does:
    who stands there still is shot at again, and gets one KeyboardInterrupt.
    """
    main = threading.main_thread().ident
    assert main is not None

    def place() -> tuple[FrameType, int] | None:
        innermost = frame = sys._current_frames()[main]
        entered = set[str]()
        while frame is not None:
            entered.add(frame.f_code.co_name)
            frame = frame.f_back  # type: ignore[assignment]
        return (innermost, innermost.f_lasti) if entered.issuperset(names) else None

    def shoot() -> None:
        deadline, shot, looks, before = time.monotonic() + GUARD_S, False, 0, None
        while time.monotonic() < deadline:
            now = place()
            if shot and now is None:
                return
            looks, before = (looks + 1 if now is not None and now == before else 0), now
            if looks == LOOKS:
                signal.pthread_kill(main, signal.SIGINT)
                shot, looks = True, 0
            time.sleep(0.0005)
        raise AssertionError(f"the main thread did not come to {names}, or did not leave it, in {GUARD_S} s")

    return Task(shoot)
