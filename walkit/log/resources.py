"""The resources of an open log (files, threads, its lock), and how they are closed.

The user's `WriteAheadLog` holds the resources; the log's threads and its parts know neither. So a log that is dropped
without close() is collected, and its finaliser closes its resources, with a warning unless the process is ending.

The last part of a closing (seal, close the files, free the lock) runs on a thread of its own. So the caller does not
hang with the device, and Ctrl-C on the thread that closes does not free the lock under a job of the maintenance thread.
The lock is freed last: a manifest on its way to a slow disk must not land on the manifest of another writer.
"""

from __future__ import annotations

import atexit
import errno
import os
import threading
import warnings
import weakref
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any

from walkit._internal.locks import WORK, holds, once
from walkit._internal.threads import MEMORY_TRIES, Latch, LogThread, on_log_thread, reserve_stack
from walkit._main_thread import run_uninterrupted, uninterrupted
from walkit.errors import LogClosedError, StorageError, WalkitError
from walkit.events import EventSink, Outbox
from walkit.log.log_parts import LogParts
from walkit.storage.interface import StorageLock

GRACE_S = 1.0
"""A second look at calls that seem to hang, for processes that were stopped."""


_open: weakref.WeakSet[LogResources] = weakref.WeakSet()


class LogResources:
    """The parts of one open log, and the lock of its place. Safe from any thread."""

    def __init__(self, parts: LogParts, lock: StorageLock) -> None:
        self.parts = parts
        # The writer's lock, between processes: taken by the opening before anything is read, freed last.
        self._lock = lock
        # Held through one closing, before every other lock of the log; a second thread waits and finds the log closed.
        self._close_lock: Any = threading.RLock()
        self._finishing = allocate_lock()
        """Taken by the thread that finishes a closing, and never given back. Guards nothing else."""
        self.after_stop: Callable[[], object] | None = None
        """Called by a closing when nothing is queued: the commit path waits for it no longer."""
        _open.add(self)

    def close(self) -> None:
        """Finish the queue, seal, close all files. Closing twice does nothing; the lock is freed always.

        StorageError if the device hangs: see `_finish`. An interrupt ends no closing (`run_uninterrupted`).
        """
        reserve_stack()
        parts = self.parts
        if parts.lifetime.closed and parts.driver.delivery.is_current:
            return  # the closing thread waits for this very callback
        if parts.events.is_calling or parts.driver.watch.is_calling or self._close_lock._is_owned():
            # The thread runs the log's own work, and would wait for itself.
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
                try:
                    if self.after_stop is not None:
                        self.after_stop()
                finally:
                    self._finish()
            except MemoryError:
                self._finish_here()
                raise
            finally:
                lifetime.end()

    def _finish_here(self) -> None:
        """Seal every segment that can be sealed, close the files, free the lock, unless a thread does or has done it.

        The commit path has been stopped.
        """
        if not self._finishing.acquire(False):
            return
        try:  # at once: a call between the two might find no memory, and the claim would stay
            poisoned = self.parts.driver.core.failure is not None
            try:
                self._close_segments(poisoned=poisoned)
                if not poisoned:
                    with self.parts.driver.lock:
                        core = self.parts.driver.core
                        core.synced(core.sync_begin())  # a seal is durable, with everything in it
            finally:
                if self.parts.manifest_store.lost is None:
                    self.parts.own_claims.close()
        finally:
            tries = 0
            while tries < MEMORY_TRIES:  # a loop and no call of another, which would allocate first
                try:
                    self._leave()
                    break
                except MemoryError:
                    tries += 1

    def _close_segments(self, *, poisoned: bool) -> None:
        try:
            self.parts.trimmer.wait_ended()
            self.parts.segments.close(poisoned=poisoned, hung=self.parts.driver.hung)
        except MemoryError:
            # Their files have locks: those that are not sealed are left to recovery.
            self.parts.trimmer.wait_ended()
            self.parts.segments.close(poisoned=True, hung=self.parts.driver.hung)
            raise

    def _leave(self) -> None:
        with once(self.parts.orphan_files.lock), self.parts.orphan_files.lock:
            self.parts.manifest_store.close()
        self._end()

    def _finish(self) -> None:
        """Seal, close the files and free the lock, on another thread; wait while something moves within the limit.

        StorageError (ETIMEDOUT) if the device does not answer, and KeyboardInterrupt for an impatient caller: the
        other thread continues, and frees the lock when all is done. At the end of the process it is done here.
        """
        failed, box = list[BaseException](), Outbox()

        def work() -> None:
            try:
                with box:
                    self._finish_here()
            except BaseException as error:  # noqa: BLE001 - raised by the caller
                failed.append(error)

        try:
            thread = LogThread(target=work, name="walkit-closing", daemon=True)
            with uninterrupted():  # struck before the thread runs, the lock would never be freed
                thread.start()
        except (RuntimeError, MemoryError):  # the interpreter is ending, or memory lacks for a thread
            self._finish_here()
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
        self._finish_here()  # the thread may have found no memory to begin
        if failed:
            raise failed[0]

    def _wait_for(self, thread: LogThread) -> None:
        maintenance, limit_ms = self.parts.segments.maintenance, self.parts.options.write_timeout_ms
        if limit_ms is None:
            thread.wait()
            return
        while not thread.wait(limit_ms / 1000):
            steps = maintenance.steps
            if not thread.wait(GRACE_S) and maintenance.steps == steps:
                raise StorageError(
                    f"the device has not answered for {limit_ms / 1000:g} s (write_timeout_ms) while the log at "
                    f"{self.parts.storage.location} was closed; its lock is freed when it does, and recovery "
                    "seals the log",
                    errno=errno.ETIMEDOUT,
                )

    def _end(self) -> None:
        """Free the lock: nothing of this log is written from now on."""
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
                "this is a forked child's copy of the log; the parent has it open. Open it again here"
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


DROP_WAIT_S = 5.0

_exiting = Latch()


def close_dropped(resources: LogResources) -> None:
    """Close a log whose object is gone."""
    if resources.parts.lifetime.closed:
        return
    end_dropped(resources)
    parts = resources.parts
    report_dropped(f"the log at {parts.storage.location}", parts.events, parts.storage.location)


def report_dropped(what: str, events: EventSink, location: str, *, ending: str = "close") -> None:
    """Warn that an object was dropped without a call of its method `ending`; silent while the process ends."""
    if _exiting.is_set():
        return
    events.emit("walkit.log.drop", location=location)
    done = {"close": "closed", "stop": "stopped"}[ending]
    warnings.warn(f"{what} was dropped without {ending}(); it is {done} now", ResourceWarning, stacklevel=3)


def end_dropped(resources: LogResources, then: Callable[[], object] | None = None) -> None:
    """Close a log from a finaliser and do `then`."""
    run_for_dropped(lambda: _close_quietly(resources, then), resources.parts.driver.is_free)


def run_for_dropped(work: Callable[[], object], may_wait: Callable[[], bool] = lambda: True) -> None:
    """Run a finaliser's work on another thread; raises nothing that `work` does not raise at the end.

    The collector may run a finaliser anywhere, also on a thread that holds a lock which closing needs, or during a
    commit. So another thread closes. It is waited for only if this one can do without: for a few seconds, not on a
    thread of walkit's own, and if `may_wait` allows it. If the process is ending it is done here.
    """
    if _exiting.is_set():
        work()
        return
    closer = LogThread(target=work, name="walkit-close")
    with uninterrupted():
        closer.start()
    if not on_log_thread() and not holds(WORK) and may_wait():
        closer.join(DROP_WAIT_S)


def _close_quietly(resources: LogResources, then: Callable[[], object] | None) -> None:
    try:
        resources.close()
    except WalkitError as error:
        resources.parts.events.emit(
            "walkit.log.poison", cause=repr(error), acked_lsn=resources.parts.core.acked_lsn
        )
    if then is not None:
        then()


def watch_exit() -> None:
    """Let the finalisers, which run at exit too, know by then that nothing was dropped.

    Called after each finaliser is made: the newest hook of `atexit` runs first, and theirs may be made with them.
    """
    atexit.unregister(_exiting.set)
    atexit.register(_exiting.set)
