"""The engine of a replica's log: everything that outlives the user's object until the log is closed.

The user's `ImportedLog` holds the engine; the maintenance thread holds only the engine. So a log that is dropped
without close() is collected, and its finaliser closes the engine.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from walkit.commit.commit_signal import CommitSignal
from walkit.commit.to_end import run_to_end
from walkit.config import LogOptions
from walkit.errors import LogClosedError, LogLockedError, LogNotFoundError, LogPoisonedError, WalkitError
from walkit.events import EventSink
from walkit.format.frame import FrameIdentity
from walkit.format.layout import DURABLE_SLOTS_BYTES
from walkit.format.manifest import MANIFEST_NAME, EpochRecord, LogEnd, Manifest, encode_manifest
from walkit.log.finalizer import run_for_dropped, tell_dropped
from walkit.log.report import recovery_report
from walkit.read.openview import view_of_open
from walkit.read.view import LogView
from walkit.recovery.apply import apply_plan, settle_unsealed
from walkit.recovery.planning import emit_recovery, plan_recovery
from walkit.recovery.report import PhaseClock, RecoveryReport
from walkit.recovery.scan import read_durable_slot
from walkit.replication.frame_batch import FrameRun
from walkit.replication.imported_segments import ImportedSegments
from walkit.segments.manifest_store import (
    DURABLE_NAME,
    LOCK_NAME,
    NEW_NAME,
    ManifestStore,
    load_manifest,
    write_whole,
)
from walkit.storage.interface import LockHolder, Storage

NO_IDENTITY = FrameIdentity(0, 0, 0)

_engines: weakref.WeakSet[ImportEngine] = weakref.WeakSet()


class ImportEngine:
    """Storage, lock, manifest and segments of one replica's log that is open for importing. One thread imports.

    Made on a thread that no interrupt reaches: see `run_to_end`.
    """

    def __init__(self, storage: Storage, options: LogOptions, events: EventSink) -> None:
        """Take the writer's lock and recover. Raises what opening a log for writing raises; then nothing is held."""
        self.storage, self.options, self.events = storage, options, events
        self.closed = self.adopted = False
        self.recovery: RecoveryReport | None = None
        self.failure: BaseException | None = None
        self.news, self._closing = CommitSignal(), threading.RLock()
        storage.create()
        lock = storage.lock(LOCK_NAME)
        if isinstance(lock, LockHolder):
            raise LogLockedError(
                storage.location, pid=lock.pid, command=lock.command, same_process=lock.same_process
            )
        self._lock = lock
        self.store = ManifestStore(storage, Manifest(log_id=0))
        try:
            self._open()
        except BaseException:
            self.closed = True
            lock.release()
            raise
        _engines.add(self)

    def _open(self) -> None:
        clock = PhaseClock()
        with clock.phase("open") as detail:
            try:
                manifest = load_manifest(self.storage)
            except LogNotFoundError:
                self.end = LogEnd()
                return
            mark = read_durable_slot(self.storage)
            detail["segments"] = len(manifest.segments)
        with clock.phase("scan") as detail:
            policy = self.options.recovery
            settle_unsealed(self.storage, manifest, salvage=policy == "salvage")
            plan = plan_recovery(self.storage, manifest, mark, policy)
            detail["unsealed"] = len(plan.findings.unsealed)
        clock.split_off("verify", plan.findings.verify_s)
        with clock.phase("apply"):
            self.store = ManifestStore(self.storage, manifest)
            apply_plan(self.storage, self.store, plan)
        self.recovery = recovery_report(self.storage, self.options, clock, plan, False)
        self._begin()
        emit_recovery(self.events, self.recovery)

    def _begin(self) -> None:
        manifest = self.store.current
        self.end = manifest.end
        self.segments = ImportedSegments(
            self.storage,
            self.store,
            self.options,
            identity=NO_IDENTITY,
            epoch_began=manifest.end,
            cell=self.storage.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=True),
            mark=read_durable_slot(self.storage),
            events=self.events,
            name=os.path.basename(self.storage.location.rstrip("/")) or "replica",
        )
        self.segments.poison = self.segments.maintenance.broken = self._poison
        self.adopted = True

    def adopt(self, log_id: int, *, created_us: int, ack_order: str, extra: Mapping[str, Any]) -> None:
        """Become a replica of this log, at the first contact; durable on return."""
        assert not self.adopted and not self.closed
        manifest = Manifest(log_id=log_id, created_us=created_us, ack_order=ack_order, extra=dict(extra))
        if DURABLE_NAME in self.storage.names():
            # Of a log that was removed by hand: its promises are not this log's.
            self.storage.remove(DURABLE_NAME)
        write_whole(self.storage, MANIFEST_NAME, NEW_NAME, encode_manifest(manifest))
        self.store = ManifestStore(self.storage, manifest)
        self._begin()

    def import_run(self, run: FrameRun, lineage: tuple[EpochRecord, ...]) -> LogEnd:
        """Take frames that follow the end of this log; on stable storage on return. Returns the new end.

        `lineage` is the primary's up to the run's epoch. StorageError and LogFullError poison the log: open it again.
        """
        if self.closed:
            raise LogClosedError(f"the replica's log at {self.storage.location} is closed")
        if self.failure is not None:
            raise LogPoisonedError(f"an earlier write failed ({self.failure}); open the replica again")
        assert run.after == self.end and run.identity.log_id == self.store.current.log_id
        segments = self.segments
        try:
            if segments.identity != run.identity:
                segments.take_epoch(run.identity, lineage)
            segments.place(run)
        except WalkitError as error:
            # Some of the frames may be there already, a full disk included: only an opening finds out.
            self._poison(error)
            raise
        end = run.end
        segments.publish(end.position, end.last_lsn)
        with self.news.lock:
            self.end = end
            self.news.notify_locked()
        return end

    def _poison(self, cause: BaseException) -> None:
        """Import nothing more: a write or sync has failed, here or on the maintenance thread."""
        self.failure = self.failure or cause
        self.events.emit("walkit.log.poison", cause=repr(cause), acked_lsn=self.end.last_lsn)

    def view(self) -> LogView:
        """Return what can be read now."""
        if not self.adopted:
            return LogView(self.storage, self.store.current, ())
        return view_of_open(self.storage, self.store, self.segments, self.end.position)

    def close(self) -> None:
        """Seal what is open and free the lock. Closing twice does nothing; an interrupt does not end it."""
        run_to_end(self._close, "close", events=self.events)

    def _close(self) -> None:
        with self._closing:  # the second caller returns when the lock is free, too
            if self.closed:
                return
            if self.adopted:
                self.segments.maintenance.close()  # first: no file is closed, no lock freed under its job
            with self.news.lock:
                self.closed = True
                self.news.notify_locked()
            try:
                if self.adopted:
                    self.segments.close(poisoned=self.failure is not None)
            finally:
                self.store.close()
                self._lock.release()

    def forget(self) -> None:
        """In a forked child: this copy is dead, the parent's log continues untouched."""
        self.closed = True
        self.news, self._closing = CommitSignal(), threading.RLock()
        self.store.forget()
        if self.adopted:
            self.segments.forget()
        self._lock.forget()


def close_dropped(engine: ImportEngine) -> None:
    """Close a replica's log whose object is gone. The collector may call this on any thread."""
    if engine.closed:
        return
    run_for_dropped(lambda: _close_quietly(engine))
    tell_dropped(f"the replica's log at {engine.storage.location}", engine.events, engine.storage.location)


def _close_quietly(engine: ImportEngine) -> None:
    try:
        engine.close()
    except WalkitError as error:
        engine.events.emit("walkit.log.poison", cause=repr(error), acked_lsn=engine.end.last_lsn)


def _after_fork_in_child() -> None:
    for engine in list(_engines):
        if not engine.closed:
            engine.forget()
    _engines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
