"""What an open log holds until it is closed: its files, its threads, its lock.

The user's `WriteAheadLog` holds the resources; the log's threads and its parts know neither. So a log that is dropped
without close() is collected, and its finaliser closes what it held.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from walkit._interrupts import uninterrupted
from walkit._main_thread import run_uninterrupted
from walkit._threads import LogThread, reserve_stack
from walkit.errors import LogClosedError
from walkit.log.close import Finisher
from walkit.log.parts import LogParts
from walkit.storage.interface import StorageLock

_open: weakref.WeakSet[LogResources] = weakref.WeakSet()


class LogResources:
    """The parts of one open log, and the lock of its place. Safe from any thread."""

    def __init__(self, parts: LogParts, lock: StorageLock) -> None:
        self.parts = parts
        self._lock = lock
        self._close_lock: Any = threading.RLock()
        self._finisher = Finisher(
            parts.driver,
            parts.segments,
            parts.manifest_store,
            parts.own_claims,
            parts.orphan_files,
            parts.events,
            parts.options.write_timeout_ms,
        )
        _open.add(self)

    def close(self) -> None:
        """Finish what is queued, seal, close all files. Closing twice does nothing; the lock is freed always.

        StorageError where the device hangs: see `Finisher.finish`. An interrupt ends no closing (`run_uninterrupted`).
        """
        reserve_stack()
        parts = self.parts
        if parts.lifetime.closed and parts.driver.delivery.is_current:
            return  # the closing thread waits for this very callback
        if parts.events.is_calling or parts.driver.watch.is_calling or self._close_lock._is_owned():
            # The thread is in the midst of the log's own work, and would wait for itself.
            with uninterrupted():
                LogThread(target=self._close, name="walkit-close").start()
            return
        run_uninterrupted(self._close, "close", events=parts.events)

    def _close(self) -> None:
        lifetime = self.parts.lifetime
        with self.parts.events.held(), self._close_lock:
            if lifetime.closed:
                return
            lifetime.end_work()
            lifetime.closed = True
            try:
                self.parts.driver.stop(LogClosedError(f"the log at {self.parts.storage.location} is closed"))
            except BaseException:
                lifetime.closed = False  # frames may still be written, so the lock must not go
                raise
            try:
                self._finisher.finish(self._end)
            except MemoryError:
                self._finisher.finish_here(self._end)
                raise
            finally:
                lifetime.end()

    def _end(self) -> None:
        """Free the lock: nothing of this log is written any more."""
        _open.discard(self)
        self._lock.release()
        self.parts.lifetime.end()
        self.parts.events.emit("walkit.log.close", location=self.parts.storage.location)

    def forget(self) -> None:
        """In a forked child: this copy is dead, the parent's log stays as it is."""
        parts = self.parts
        parts.lifetime.closed = True
        parts.driver.after_fork(
            LogClosedError(
                "this is a forked child's copy of the log; the parent has it open. Open it anew here"
            )
        )
        parts.lifetime.forget()
        self._close_lock = threading.RLock()
        parts.orphan_files.forget()
        parts.claims.forget()
        parts.manifest_store.forget()
        parts.segments.forget()
        self._lock.forget()


def _after_fork_in_child() -> None:
    for resources in list(_open):
        resources.forget()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
