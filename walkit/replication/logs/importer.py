"""Imports frames into a replica's log; outlives the user's object until the log is closed.

The user's `ImportedLog` holds the importer; the maintenance thread holds only the importer. So a log that is dropped
without close() is collected, and its finaliser closes the importer.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

from walkit._internal.locks import marked
from walkit._internal.report import PhaseClock
from walkit._internal.threads import MEMORY_TRIES
from walkit._main_thread import run_uninterrupted
from walkit.commit.latches import CommitSignal
from walkit.config import LogOptions
from walkit.copier.gathering import Gathering
from walkit.copier.switch import switch_to_staged
from walkit.errors import LogClosedError, LogNotFoundError, LogPoisonedError, WalkitError
from walkit.events import EventSink
from walkit.format.durable_slot import NOTHING_DURABLE, DurableSlot
from walkit.format.frame import FrameIdentity
from walkit.format.manifest import EpochRecord, LogEnd, Manifest
from walkit.log.live_log import Lifetime
from walkit.log.open import make_log, recovery_report
from walkit.read.view import LogView, segments_of
from walkit.recovery.apply import apply_plan, sync_unsealed
from walkit.recovery.log_scan import read_durable_slot
from walkit.recovery.plan import emit_recovery, plan_recovery
from walkit.recovery.report import RecoveryReport
from walkit.replication.logs.imported_segments import ImportedSegments
from walkit.replication.logs.maintenance import replica_maintenance
from walkit.replication.protocol.frame_run import FrameRun
from walkit.segments.manifest_store import ManifestStore, SlotStore, load_manifest, settle_manifest
from walkit.segments.writer_lock import take_writer_lock
from walkit.storage.interface import FileNumber, Storage, create_private

NO_IDENTITY = FrameIdentity(0, 0, 0)

_importers: weakref.WeakSet[Importer] = weakref.WeakSet()


class Watchers:
    """The callbacks after an import and at a closing, of all logs that a replica has in turn. Safe from any thread."""

    def __init__(self) -> None:
        self._callbacks: dict[object, Callable[[], object]] = {}

    def add(self, notify: Callable[[], object]) -> Callable[[], object]:
        """Call `notify` from now on; returns a function that ends it. It must only wake something."""
        key = object()
        self._callbacks[key] = notify
        return lambda: self._callbacks.pop(key, None)

    def notify(self) -> None:
        """Wake them all."""
        for callback in list(self._callbacks.values()):
            callback()


class Importer:
    """Storage, lock, manifest and segments of one replica's log that is open for importing. One thread imports.

    It is its log's `LogMarks`: all that is imported is durable. Made on a thread that no interrupt reaches: see
    `run_uninterrupted`.
    """

    def __init__(
        self,
        storage: Storage,
        options: LogOptions,
        events: EventSink,
        again: FileNumber | None = None,
        watchers: Watchers | None = None,
    ) -> None:
        """Take the writer's lock and recover. Raises the errors of opening a log for writing; then nothing is held.

        `again` is the `folder` of an earlier importer: StorageError (ESTALE) if another is at this place by now.
        """
        self.storage = self.place = storage
        self.options, self.events = options, events
        self.adopted = False
        self.lifetime = Lifetime()
        """Ends the work on the log's files: a checkpoint, a trim."""
        self.recovery: RecoveryReport | None = None
        self.failure: BaseException | None = None
        self.advanced, self._closing = CommitSignal(), cast(Any, threading.RLock())
        self.watchers = watchers or Watchers()
        if again is None:
            create_private(storage)
        self._lock = lock = take_writer_lock(storage, again)
        self.folder = lock.folder()
        self.manifest_store = ManifestStore(storage, Manifest(log_id=0))
        try:
            self._open()
        except BaseException:
            self.lifetime.closed = True
            lock.release()
            raise
        _importers.add(self)

    def _open(self) -> None:
        clock = PhaseClock()
        with clock.phase("open") as detail:
            try:
                switch_to_staged(self.storage, self.events)
                settle_manifest(self.storage)
                manifest = load_manifest(self.storage)
            except LogNotFoundError:
                self.end = LogEnd()
                return
            slot = read_durable_slot(self.storage)
            detail["segments"] = len(manifest.segments)
        with clock.phase("scan") as detail:
            policy = self.options.recovery
            sync_unsealed(self.storage, manifest, salvage=policy == "salvage")
            plan = plan_recovery(self.storage, manifest, slot, policy)
            detail["unsealed"] = len(plan.findings.unsealed)
        clock.split_off("verify", plan.findings.verify_s)
        with clock.phase("apply"):
            self._take_manifest(manifest, slot)
            apply_plan(self.storage, self.manifest_store, plan)
        self.recovery = recovery_report(self.storage, self.options, clock, plan, False)
        self._begin()
        emit_recovery(self.events, self.recovery)

    def _take_manifest(self, manifest: Manifest, slot: DurableSlot) -> None:
        self._slots = SlotStore(self.storage, slot, self.events)
        self.manifest_store = ManifestStore(self.storage, manifest, self._lock, self._slots)

    def _begin(self) -> None:
        manifest = self.manifest_store.current
        self.end = manifest.end
        self.segments = ImportedSegments(
            self.storage,
            self.manifest_store,
            self.options,
            identity=NO_IDENTITY,
            epoch_began=manifest.end,
            slots=self._slots,
            events=self.events,
            name=os.path.basename(self.storage.location.rstrip("/")) or "replica",
        )
        self.segments.poison = self.segments.maintenance.on_failure = self._poison
        self._lock.watch(self.segments, self._poison)
        self._lock.recovered()
        self.maintenance = replica_maintenance(
            self.storage, self.manifest_store, self.segments, self, self.lifetime, self.options, self.events
        )
        self.adopted = True
        self._check()

    def _check(self) -> None:
        """Assert the invariants between two imports, on the importing thread; `end` moves after its frames.

        After a failure or a close, only an opening shows what is there.
        """
        manifest = self.manifest_store.current
        assert self.adopted == bool(manifest.log_id), "a log of no id has frames, or an adopted one has no id"
        assert self.adopted or (self.end == LogEnd() and self.failure is None)
        if not self.adopted or self.closed or self.failure is not None:
            return
        assert self.segments.identity.log_id in (0, manifest.log_id), "frames of another log"
        assert manifest.end.position <= self.end.position and manifest.end.last_lsn <= self.end.last_lsn
        current = self.segments.current
        assert current is None or current.end_position == self.end.position, (
            "frames are written after the end"
        )

    def adopt(self, log_id: int, *, created_us: int, ack_order: str, extra: Mapping[str, Any]) -> None:
        """Become a replica of this log, at the first contact; durable on return."""
        assert not self.adopted and not self.closed
        manifest = Manifest(log_id=log_id, created_us=created_us, ack_order=ack_order, extra=dict(extra))
        make_log(self.storage, manifest)
        self._take_manifest(manifest, NOTHING_DURABLE)
        self._begin()

    def import_run(self, run: FrameRun, lineage: tuple[EpochRecord, ...]) -> LogEnd:
        """Take frames that follow the end of this log; on stable storage on return. Returns the new end.

        `lineage` is the primary's up to the run's epoch. StorageError and LogFullError poison the log: open it again.
        """
        if self.closed:
            raise LogClosedError(f"the replica's log at {self.storage.location} is closed")
        if self.failure is not None:
            raise LogPoisonedError(f"an earlier write failed ({self.failure}); open the replica again")
        assert run.after == self.end and run.identity.log_id == self.manifest_store.current.log_id
        segments = self.segments
        try:
            if segments.identity != run.identity:
                segments.take_epoch(run.identity, lineage)
            segments.write_run(run)
        except WalkitError as error:
            # Some of the frames may be there already, a full disk included: only an opening finds out.
            self._poison(error)
            raise
        end = run.end
        segments.publish(end.position, end.last_lsn)
        with marked(), self.advanced.lock:
            self.end = end
            self.advanced.notify_locked()
        self._check()
        self.watchers.notify()
        return end

    def _poison(self, cause: BaseException) -> None:
        """Import nothing more: a write or sync has failed, here or on the maintenance thread."""
        self.failure = self.failure or cause
        self.events.emit("walkit.log.poison", cause=repr(cause), acked_lsn=self.end.last_lsn)

    def gathering(self) -> Gathering:
        """Return the collector of another log in the folder of this one."""
        return Gathering(self.storage)

    def keep_identity(self, identity: str) -> bool:
        """Say that the identity of this replica has a file of its own."""
        return False

    def view(self) -> LogView:
        """Return a view of the records that can be read now."""
        if not self.adopted:
            return LogView(self.storage, self.manifest_store.current, ())
        return segments_of(self.maintenance.contents.view(), "replicas have them")

    @property
    def closed(self) -> bool:
        """Whether the log has been closed."""
        return self.lifetime.closed

    @property
    def acked_lsn(self) -> int:
        """See LogMarks."""
        return self.end.last_lsn

    @property
    def durable_lsn(self) -> int:
        """See LogMarks."""
        return self.end.last_lsn

    @property
    def written_position(self) -> int:
        """See LogMarks."""
        return self.end.position

    @property
    def durable_position(self) -> int:
        """See LogMarks."""
        return self.end.position

    def close(self) -> None:
        """Seal the open segment and free the lock. Closing twice does nothing; an interrupt does not end it."""
        run_uninterrupted(self._close, "close", events=self.events)

    def _close(self) -> None:
        # The second caller also returns when the lock is free, except a callback, which the first may wait for.
        with self.events.held():
            self._close_held()

    def _close_held(self) -> None:
        if self._closing._is_owned() or not self._closing.acquire(blocking=not self.events.is_calling):
            return
        try:
            if self.closed:
                return
            self.lifetime.end_work()
            if self.adopted:
                self.segments.maintenance.close()  # first: no file is closed, no lock freed under its job
            with marked(), self.advanced.lock:
                self.lifetime.closed = True
                self.advanced.notify_locked()
            try:
                if self.adopted:
                    self.segments.close(poisoned=self.failure is not None)
                    self.maintenance.own_claims.close()
            finally:
                tries = 0
                while tries < MEMORY_TRIES:
                    try:
                        self.manifest_store.close()
                        self._lock.release()
                        break
                    except MemoryError:
                        tries += 1
                self.lifetime.end()
                self.watchers.notify()
        finally:
            self._closing.release()

    def forget(self) -> None:
        """In a forked child: this copy is dead, the parent's log continues untouched."""
        self.lifetime.forget()
        self.advanced, self._closing = CommitSignal(), cast(Any, threading.RLock())
        self.manifest_store.forget()
        if self.adopted:
            self.maintenance.orphan_files.forget()
            self.maintenance.claims.forget()
            self.segments.forget()
        self._lock.forget()


def _after_fork_in_child() -> None:
    for importer in list(_importers):
        if not importer.closed:
            importer.forget()
    _importers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
