"""Ctrl-C of a command: a KeyboardInterrupt that the interpreter drops is sent once more.

An exception in a finaliser or in the callback of a weak reference (`WeakSet` has one) goes to `sys.unraisablehook`
and no further: a Ctrl-C that is handled in one of these would be lost, and the command would go on.
"""

from __future__ import annotations

import _thread
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from walkit._internal.threads import WakeEvent, current_frames
from walkit._main_thread import MAIN, on_main_thread

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

LOOK_S = 0.001


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Send SIGINT to the main thread again in the block if the interpreter has dropped its KeyboardInterrupt."""
    previous = sys.unraisablehook
    sent: list[WakeEvent] = []

    def hook(dropped: UnraisableHookArgs, /) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt) and on_main_thread():
            sent.append(WakeEvent())
            _thread.start_new_thread(_send_again, (sys._getframe(), sent[-1]))
        else:
            previous(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = previous
        # The last call of the block may have dropped it: then it is raised here, and not after the block.
        for event in sent:
            event.wait()


def _send_again(hook: FrameType, sent: WakeEvent) -> None:
    """Send SIGINT to the main thread once it has left the hook: raised within it, it would be dropped once more."""
    assert MAIN is not None
    while _runs(hook):
        time.sleep(LOOK_S)
    signal.pthread_kill(MAIN, signal.SIGINT)
    sent.set()


def _runs(hook: FrameType) -> bool:
    frame = current_frames().get(MAIN or 0)
    while frame is not None and frame is not hook:
        frame = frame.f_back
    return frame is hook
