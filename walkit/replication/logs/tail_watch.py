"""Notices that a stored log's durable end has moved: one thread for all sessions of a primary, while any watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from walkit._internal.locks import once
from walkit._internal.threads import LogThread, WakeEvent
from walkit.errors import WalkitError
from walkit.format.layout import DURABLE_SLOTS_BYTES
from walkit.segments.manifest_store import DURABLE_NAME
from walkit.storage.interface import Cell, Storage

BUSY_PAUSE_S = 0.001
IDLE_PAUSE_S = 0.016
IDLE_SHARE = 16
"""The pause between two looks is this part of the time since the last change: an idle log is looked at rarely."""
REOPEN_S = 0.2
"""After this time the file is opened again: the slot does not show an opening, or another log in this place."""


class TailWatch:
    """Calls back when the durable slot of a log, or the result of `durable`, has changed. Safe from any thread.

    Callbacks run on the watching thread and return at once. They are also called if `durable` starts to fail or ends
    to: a callback looks again and finds out.
    """

    def __init__(self, storage: Storage, durable: Callable[[], tuple[int, int]]) -> None:
        self._storage, self._durable = storage, durable
        self._lock = threading.RLock()
        self._callbacks: tuple[Callable[[], object], ...] = ()
        self._over: WakeEvent | None = None

    def add(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` until the returned function is called. The first starts the thread, the last one ends it."""
        with once(self._lock), self._lock:
            # Before its thread looks for the first time; one of a thread that did not start is forgotten.
            self._callbacks = (callback,) if self._over is None else (*self._callbacks, callback)
            if self._over is None:
                over = WakeEvent()
                LogThread(target=self._run, args=(over,), name="walkit-end-watch", daemon=True).start()
                self._over = over  # not before the thread runs: else no later one is started
            self._check()
        return lambda: self._remove(callback)

    def _remove(self, callback: Callable[[], object]) -> None:
        with once(self._lock), self._lock:
            self._callbacks = tuple(each for each in self._callbacks if each != callback)
            if not self._callbacks and self._over is not None:
                self._over.set()
                self._over = None
            self._check()

    def _check(self) -> None:
        """Assert that a thread watches while there is something to call, and none else; needs the lock held."""
        assert (self._over is None) == (not self._callbacks)

    def _run(self, over: WakeEvent) -> None:
        cell: Cell | None = None
        end: tuple[int, int] | None
        # The first look counts as a change: there may have been one since the callback was added.
        slots, end = b"", (-1, -1)
        moved_at = reopen_at = time.monotonic()
        pause_s = BUSY_PAUSE_S
        try:
            while not over.wait(pause_s):
                now = time.monotonic()
                if now >= reopen_at:
                    cell, reopen_at = self._reopened(cell), now + REOPEN_S
                    before, end = end, self._end()
                    if end != before:
                        moved_at = now
                        self._notify()
                try:
                    found = b"" if cell is None else cell.read()
                except WalkitError:
                    found, reopen_at = b"", now  # it is opened again at the next look
                if found != slots:
                    slots, moved_at = found, now
                    self._notify()
                pause_s = min(max((now - moved_at) / IDLE_SHARE, BUSY_PAUSE_S), IDLE_PAUSE_S)
        finally:
            if cell is not None:
                cell.close()

    def _notify(self) -> None:
        for callback in self._callbacks:
            callback()

    def _end(self) -> tuple[int, int] | None:
        try:
            return self._durable()
        except WalkitError:
            return None

    def _reopened(self, cell: Cell | None) -> Cell | None:
        """Open the slot again: its file may be another one by now."""
        if cell is not None:
            cell.close()
        with suppress(WalkitError):
            return self._storage.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=False)
        return None
