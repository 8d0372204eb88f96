"""Threads in a closed loop: each has one call under way, for a time that is measured after one that is not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from time import perf_counter_ns
from typing import TypeAlias, TypeVar

from walkit.log.wal import WriteAheadLog
from walkit.measure import ThreadRecorder
from walkit.measure.recorder import TickFunction

T = TypeVar("T")

WARM_UP_SHARE = 0.1
"""Warm-up before the measured time, as a share of it."""

ENOUGH_S = 0.01
"""Time between two looks at whether enough was measured."""

Loop: TypeAlias = Callable[[Collection[object], TickFunction], object]
"""The work of each thread until the collection is empty; the function gets the time before the first call and after
each."""


def appending(log: WriteAheadLog, value: bytes) -> Loop:
    """Return the loop that appends `value`, and waits for each acknowledgement before the next."""

    def loop(going: Collection[object], tick: TickFunction) -> None:
        append, now = log.append, perf_counter_ns
        tick(now())
        while going:
            append(value)
            tick(now())

    return loop


def drive_threads(
    loop: Loop,
    recorders: Sequence[ThreadRecorder],
    seconds: float,
    begin: Callable[[], T],
    end: Callable[[], T],
    enough: Callable[[], bool] = lambda: True,
) -> tuple[T, T]:
    """Run `loop` on a thread for each recorder; return the results of `begin` and `end` around the measured time.

    It takes `seconds` and a tenth more, and longer for as long as `enough` says False. All threads have ended on
    return, and when Ctrl-C ends it. The first error of any of them ends all, and is raised.
    """
    stop, going, errors = threading.Event(), [True], list[BaseException]()

    def work(tick: TickFunction) -> None:
        try:
            loop(going, tick)
        except BaseException as error:  # noqa: BLE001 - raised below, by the thread that started it
            errors.append(error)
            stop.set()

    threads = [
        threading.Thread(target=work, args=(recorder.tick,), name=f"bench-{number}", daemon=True)
        for number, recorder in enumerate(recorders)
    ]
    try:
        for thread in threads:
            thread.start()
        stop.wait(seconds * WARM_UP_SHARE)
        began = begin()
        stop.wait(seconds)
        while not enough() and not stop.wait(ENOUGH_S):
            pass
        ended = end()
    finally:
        going.clear()
        for thread in threads:
            if thread.is_alive():  # the first that cannot be started leaves others that never were
                thread.join()
    if errors:
        raise errors[0]
    return began, ended
