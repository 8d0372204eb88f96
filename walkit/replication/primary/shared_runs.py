"""Frames for several sessions of a primary: read and checked once, kept for a moment."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from walkit._internal.locks import once
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.replication.protocol.frame_run import FrameRun

KEPT_BYTES = 16 << 20
KEPT_S = 1.0
"""Sessions that are at the same place ask within this time; one that is elsewhere reads for itself."""
RUN_BYTES_MAX = 4 << 20
"""A frame that is larger is not kept: each session that sends it reads it."""


@dataclass(frozen=True, slots=True)
class _Kept:
    run: FrameRun
    lineage: tuple[EpochRecord, ...]
    until_s: float


class SharedRuns:
    """Keeps the runs that were read last, in bounded memory. Safe from any thread.

    Nothing is kept while one session alone uses it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._kept: OrderedDict[tuple[int, LogEnd], _Kept] = OrderedDict()
        self._size = self._users = 0
        self.reads = 0
        """How many runs were put in."""

    @property
    def kept_bytes(self) -> int:
        """The bytes that are kept now."""
        return self._size

    def enter(self) -> None:
        """One session more uses it."""
        with once(self._lock), self._lock:
            self._users += 1

    def leave(self) -> None:
        """One session fewer uses it; the last but one takes all that is kept with it."""
        with once(self._lock), self._lock:
            self._users -= 1
            if self._users < 2:
                self._kept.clear()
                self._size = 0
            self._check()

    def get(
        self, log_id: int, after: LogEnd, limit_bytes: int
    ) -> tuple[FrameRun, tuple[EpochRecord, ...]] | None:
        """Return the run that follows `after` in this log, with the lineage of its source, or None."""
        with once(self._lock), self._lock:
            kept = self._kept.get((log_id, after))
            if kept is None or kept.until_s < time.monotonic() or len(kept.run.data) > limit_bytes:
                return None
            return kept.run, kept.lineage

    def put(self, run: FrameRun, lineage: tuple[EpochRecord, ...]) -> None:
        """Keep a run that was read, if another session may need it."""
        if len(run.data) > RUN_BYTES_MAX:
            return
        key = (run.identity.log_id, run.after)
        with once(self._lock), self._lock:
            if self._users < 2:
                return
            self.reads += 1
            self._drop(key)
            self._kept[key] = _Kept(run, lineage, time.monotonic() + KEPT_S)
            self._size += len(run.data)
            while self._size > KEPT_BYTES:
                self._drop(next(iter(self._kept)))
            self._check()

    def _drop(self, key: tuple[int, LogEnd]) -> None:
        dropped = self._kept.pop(key, None)
        if dropped is not None:
            self._size -= len(dropped.run.data)

    def _check(self) -> None:
        """Assert that kept runs are counted, bounded, and for several; in constant time, with the lock held."""
        assert self._users >= 0 and (self._users >= 2 or not self._kept)
        assert 0 <= self._size <= KEPT_BYTES
        assert self._kept or not self._size
