"""A plug-in of pytest that makes threads late, to find what holds by chance alone.

    make suite ARGS="-p tests.support.late --ignore=tests/crashlab"

Each thread begins up to 20 ms late, and an interpreter's turn is a tenth as long. A run takes twice the time. The crash
laboratory needs prompt threads: it takes one that sleeps for one that rests, and draws other states.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from typing import Any

from walkit import events

LATE_S = 0.02
TURN_S = 0.0005


def pytest_configure() -> None:
    """Make late what begins from now on."""
    chance, run = random.Random(0), threading.Thread.run

    def late_run(self: threading.Thread) -> None:
        time.sleep(chance.random() * LATE_S)
        run(self)

    def late_start(function: Callable[..., object], given: tuple[Any, ...]) -> int:
        def begin() -> None:
            time.sleep(chance.random() * LATE_S)
            function(*given)

        return start_new_thread(begin, ())

    sys.setswitchinterval(TURN_S)
    threading.Thread.run = late_run  # type: ignore[method-assign]
    events.start_new_thread = late_start  # type: ignore[assignment, attr-defined]
