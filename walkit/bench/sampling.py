"""Two LSNs sampled while a benchmark runs: those of a log and of its follower."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from walkit._internal.threads import EndingThread

Samples: TypeAlias = npt.NDArray[np.float64]
"""Rows of (time in s, durable LSN of the log, LSN of its follower)."""


class LsnSamples:
    """The samples; one thread writes them, any thread reads."""

    def __init__(self) -> None:
        self._noted: list[tuple[float, int, int]] = []

    def note(self, log_lsn: int, follower_lsn: int) -> None:
        """Note two LSNs of now."""
        self._noted.append((time.perf_counter(), log_lsn, follower_lsn))

    def rows(self) -> Samples:
        """Return the samples so far."""
        return np.array(self._noted, np.float64).reshape(-1, 3)


@contextmanager
def sampled_lsns(lsns: Callable[[], tuple[int, int]], every_s: float) -> Iterator[LsnSamples]:
    """Sample `lsns` at an interval, on a thread of its own, until the block ends."""
    samples, over = LsnSamples(), threading.Event()

    def sample() -> None:
        while not over.wait(every_s):
            samples.note(*lsns())

    thread = EndingThread(target=sample, name="bench-samples", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()
