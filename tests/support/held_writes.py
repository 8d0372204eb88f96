"""Holding up the writes of a real log's frames: the segments stay what they are, only the moment is the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable

import walkit
from tests.support.threads import GUARD_S
from walkit.commit.frame import SealedFrame


class Held:
    """Observes a log's frames, where the test says when the write of each begins: `may(frame)` is waited for."""

    def __init__(self, log: walkit.WriteAheadLog, may: Callable[[SealedFrame], object]) -> None:
        self._may = may
        log.observe_writes(self)

    def writing(self, frame: SealedFrame) -> None:
        self._may(frame)

    def wrote(self, frame: SealedFrame, began_ns: int, ended_ns: int) -> None:
        pass

    def synced(self, began_ns: int, ended_ns: int) -> None:
        pass


class Gates:
    """Holds the frames whose first LSN is asked for until `let`; others pass."""

    def __init__(self, *first_lsns: int) -> None:
        self.events = {lsn: threading.Event() for lsn in first_lsns}
        self.entered: set[int] = set()

    def __call__(self, frame: SealedFrame) -> None:
        self.entered.add(frame.first_lsn)
        if frame.first_lsn in self.events:
            assert self.events[frame.first_lsn].wait(GUARD_S)

    def let(self, lsn: int) -> None:
        self.events[lsn].set()
