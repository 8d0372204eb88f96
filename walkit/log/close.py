"""The last part of closing a log: seal it, close the files, free the lock.

It is done on a thread of its own, so that the caller need not hang with the device, and so that Ctrl-C on the thread
that closes does not free the lock under a job of the maintenance thread. It frees it, when all is done: a manifest
that is still on its way to a slow disk must not land on that of another writer.
"""

from __future__ import annotations

import errno
from _thread import allocate_lock
from collections.abc import Callable

from walkit._interrupts import uninterrupted
from walkit._locks import once
from walkit._outbox import Outbox
from walkit._threads import MEMORY_TRIES, LogThread
from walkit.commit.driver import CommitDriver
from walkit.errors import StorageError
from walkit.events import EventSink
from walkit.log.own_claims import OwnClaims
from walkit.segments.manifest_store import ManifestStore
from walkit.segments.orphan_files import OrphanFiles
from walkit.segments.segment_set import SegmentSet

GRACE_S = 1.0
"""A second look at what seems to hang, for processes that were stopped."""


class Finisher:
    """Ends what the commit path has left when it was stopped."""

    def __init__(
        self,
        driver: CommitDriver,
        segments: SegmentSet,
        manifest_store: ManifestStore,
        own_claims: OwnClaims,
        orphan_files: OrphanFiles,
        events: EventSink,
        limit_ms: float | None,
    ) -> None:
        """`limit_ms` is how long the device may take to answer; None: for ever."""
        self._driver = driver
        self._segments = segments
        self._manifest_store = manifest_store
        self._own_claims = own_claims
        self._orphan_files = orphan_files
        self._events = events
        self._limit_ms = limit_ms
        self._claim = allocate_lock()
        """Taken by the thread that finishes, and never given back."""

    def finish_here(self, ended: Callable[[], object]) -> None:
        """Seal what can be sealed, close the files, call `ended()`: here, unless a thread already does or has done it.

        The commit path has been stopped.
        """
        if not self._claim.acquire(False):
            return
        try:  # at once: a call between the two might find no memory, and the claim would stay
            poisoned = self._driver.core.failure is not None
            try:
                self._close_segments(poisoned=poisoned)
                if not poisoned:
                    with self._driver.lock:
                        core = self._driver.core
                        core.synced(core.sync_begin())  # a seal is durable, with everything in it
            finally:
                if self._manifest_store.lost is None:
                    self._own_claims.close()
        finally:
            tries = 0
            while tries < MEMORY_TRIES:  # a loop and no call of another, which would allocate first
                try:
                    self._leave(ended)
                    break
                except MemoryError:
                    tries += 1

    def _close_segments(self, *, poisoned: bool) -> None:
        try:
            self._segments.close(poisoned=poisoned, hung=self._driver.hung)
        except MemoryError:
            # Their files have locks: those that are not sealed are left to recovery.
            self._segments.close(poisoned=True, hung=self._driver.hung)
            raise

    def _leave(self, ended: Callable[[], object]) -> None:
        with once(self._orphan_files.lock), self._orphan_files.lock:
            self._manifest_store.close()
        ended()

    def finish(self, ended: Callable[[], object]) -> None:
        """Seal, close the files and call `ended()`, on another thread; wait while something moves within the limit.

        StorageError (ETIMEDOUT) where the device does not answer, and KeyboardInterrupt for an impatient caller: the
        other thread continues, and calls `ended()` when all is done. At the end of the process it is done here.
        """
        failed, box = list[BaseException](), Outbox()

        def work() -> None:
            try:
                with box:
                    self.finish_here(ended)
            except BaseException as error:  # noqa: BLE001 - raised by the caller
                failed.append(error)

        try:
            thread = LogThread(target=work, name="walkit-closing", daemon=True)
            with uninterrupted():  # struck before the thread runs, the lock would never be freed
                thread.start()
        except (RuntimeError, MemoryError):  # the interpreter is ending, or memory lacks for a thread
            self.finish_here(ended)
            return
        tries = 0
        try:
            while (
                tries < MEMORY_TRIES
            ):  # the lock is free when this returns, also where waiting finds no memory
                try:
                    self._wait_for(thread)
                    break
                except MemoryError:
                    tries += 1
            box.send()
        finally:
            box.leave()
        self.finish_here(ended)  # the thread may have found no memory to begin
        if failed:
            raise failed[0]

    def _wait_for(self, thread: LogThread) -> None:
        maintenance, limit_ms = self._segments.maintenance, self._limit_ms
        if limit_ms is None:
            thread.wait()
            return
        while not thread.wait(limit_ms / 1000):
            steps = maintenance.steps
            if not thread.wait(GRACE_S) and maintenance.steps == steps:
                raise StorageError(
                    f"the device has not answered for {limit_ms / 1000:g} s (write_timeout_ms) while the log at "
                    f"{self._segments.storage.location} was closed; its lock is freed when it does, and recovery "
                    "seals the log",
                    errno=errno.ETIMEDOUT,
                )
