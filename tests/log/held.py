"""Holding up the writes of a real log's frames: the segments stay what they are, only the moment is the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable

import walkit
from tests.commit.places import GUARD_S
from walkit.commit.frame import SealedFrame


class Held:
    """The segments of a log, where the test says when the write of each frame begins: `may(frame)` is waited for."""

    def __init__(self, log: walkit.WriteAheadLog, may: Callable[[SealedFrame], object]) -> None:
        self._segments, self._may = log._engine.segments, may
        log._driver.place = self

    def write(self, frame: SealedFrame, *, sync: bool) -> None:
        self._may(frame)
        self._segments.write(frame, sync=sync)

    def begin_segment(self, **named: int) -> int:
        return self._segments.begin_segment(**named)

    def admit(self, frame: SealedFrame) -> None:
        self._segments.admit(frame)

    def passed(self, position: int) -> None:
        self._segments.passed(position)

    def sync(self) -> None:
        self._segments.sync()

    def publish(self, position: int, lsn: int) -> None:
        self._segments.publish(position, lsn)


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
