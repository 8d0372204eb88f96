"""A program whose calls find no memory: one allocation of each call fails. Prints their results, and those of others.

`python -m tests.commit.starved FOLDER IN_FLIGHT STEP` makes a log for each allocation that fails, one in STEP of each
call, and calls it on another thread: as allocations of all threads count, the main one only waits at a lock meanwhile.
"""

from __future__ import annotations

import _testcapi  # type: ignore[import-not-found]
import json
import logging
import os
import sys
import threading
import warnings
from _thread import allocate_lock
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import walkit
from tests.commit.starving_calls import CALLS, STORE_CALLS, prepared
from tests.support.logs import tiny
from tests.support.threads import GUARD_S
from walkit._internal.threads import current_frames
from walkit.errors import WalkitError

OWN_S = 3.0
"""How long a call gets whose allocation fails: CPython hangs in some."""
SPAN = 300
"""Of each call one of so many allocations fails."""
STORE_SPAN = 11
"""A call of a Store's makes more of them: each eleventh counts."""
OF_CPYTHON = {
    "start": "Thread.start waits forever for a thread that found no memory to begin",
}
"""Functions of CPython's threading in which a call hangs that no program can end, and why."""


def stack_of(thread: threading.Thread) -> list[str]:
    """Return the functions that a thread is in, the innermost first."""
    frame: Any = current_frames().get(thread.ident or 0)
    found = []
    while frame is not None:
        found.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")
        frame = frame.f_back
    return found


def starve(act: Callable[[], object], nth: int) -> str:
    """Make a call whose n-th allocation fails; return its result."""
    begin, ended, became = allocate_lock(), allocate_lock(), ["ended"]
    begin.acquire()
    ended.acquire()

    def run() -> None:
        begin.acquire()
        try:
            _testcapi.set_nomemory(nth, nth + 1)
            try:
                act()
            finally:
                _testcapi.remove_mem_hooks()
        except BaseException as error:  # the test asks for its kind
            became[0] = "typed" if isinstance(error, WalkitError) else type(error).__name__
        ended.release()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    begin.release()
    if ended.acquire(True, OWN_S):
        return became[0]
    _testcapi.remove_mem_hooks()
    stack = stack_of(thread)
    ours = [each for each in stack if each.startswith("threading.py:") and each[13:] in OF_CPYTHON]
    return "hang of CPython" if ours else f"hang at {stack[:6]}"


def others_of(log: walkit.WriteAheadLog) -> str:
    """Append, sync and close on other threads; return the results."""
    for name, act in (("append", lambda: log.append(b"after")), ("sync", log.sync), ("close", log.close)):
        told: list[BaseException] = []

        def run(act: Any = act, told: list[BaseException] = told) -> None:
            try:
                act()
            except BaseException as error:  # any error is reported
                told.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(GUARD_S / 2)
        if thread.is_alive():
            return f"{name} hangs at {stack_of(thread)[:6]}"
        if told and not isinstance(told[0], WalkitError):
            return f"{name}: {told[0]!r}"
    return "others end"


def reopened(log: walkit.WriteAheadLog) -> str:
    """Close a log a second time and open it: it has left no lock."""
    log.close()
    try:
        walkit.open(log.location, options=tiny()).close()
    except BaseException as error:  # any error is reported
        return f"open: {error!r}"
    return "others end"


def main(folder: str, in_flight: int, step: int) -> None:
    """Starve one call after the other, and print the counts."""
    warnings.simplefilter("ignore")
    logging.getLogger("walkit").setLevel(logging.CRITICAL + 1)
    threading.excepthook = lambda _: None
    sys.unraisablehook = lambda _: None
    found: Counter[str] = Counter()
    numbers = (
        (number, call, nth if call in CALLS else nth * STORE_SPAN)
        for number, call in enumerate((*CALLS, *STORE_CALLS))
        for nth in range(1 + number % step, SPAN, step)
    )
    for number, call, nth in numbers:
        log, act = prepared(call, Path(folder) / f"{number}-{nth}", in_flight)
        became = starve(act, nth)
        found[became] += 1
        if not became.startswith("hang"):
            ended = "others end" if log.closed else others_of(log)
            if ended == "others end":
                ended = reopened(log)
            found[ended if ended == "others end" else f"{call}, {nth}: {ended}"] += 1
    print(json.dumps(found), flush=True)
    if "hang of CPython" in found:
        os._exit(0)  # a log whose thread hangs there cannot close


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
