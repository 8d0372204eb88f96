"""Checkpoints: the log durable, a snapshot, the low watermark, the trim, in this order.

Nothing is dropped before its replacement is on stable storage and in the manifest. A crash between any two steps
leaves a log and a snapshot that belong together, and after a failure the next checkpoint finishes the work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from walkit._internal.locks import STATE, alone, marked, once
from walkit._internal.report import Phase, PhaseClock, report_html
from walkit._internal.threads import LogThread, WakeEvent
from walkit._main_thread import run_uninterrupted
from walkit.commit.driver import CommitDriver
from walkit.commit.frame import SealedFrame
from walkit.errors import LogClosedError, SnapshotError
from walkit.events import EventSink
from walkit.log.live_log import Lifetime, LogMarks
from walkit.log.log_parts import LogParts
from walkit.log.trim import Trimmed, Trimmer
from walkit.segments.maintenance_worker import MaintenanceWorker
from walkit.segments.manifest_store import Manifests
from walkit.segments.orphan_files import Orphans
from walkit.state.admission import Admission
from walkit.state.applier import Follower
from walkit.state.machine import StateImage, StateMachine, take_image
from walkit.state.snapshot import (
    SnapshotInfo,
    SnapshotWrite,
    identity_at,
    refuse_other_machines,
    snapshot_lsns,
    snapshot_name,
)
from walkit.storage.interface import Storage, remove_if_there

SNAPSHOTS_KEPT = 2
"""Snapshots that a checkpoint keeps if no claim needs more: its own, and an older one from which the log continues."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointReport:
    """The result of one checkpoint."""

    location: str
    lsn: int
    """The state up to here is in the snapshot."""
    records: int
    """Records in the snapshot."""
    snapshot_bytes: int
    low_watermark: int
    """Records up to this LSN were dropped; below `lsn` if a claim needs the rest."""
    segments_trimmed: int
    bytes_trimmed: int
    """Bytes of the segment files that were removed."""
    snapshots_removed: int
    phases: tuple[Phase, ...]
    """"image", "log", "snapshot", "watermark", "trim": seconds each."""

    @property
    def duration_s(self) -> float:
        """Seconds from the beginning to the end."""
        return max((p.started_s + p.duration_s for p in self.phases), default=0.0)

    def _repr_html_(self) -> str:
        return report_html(
            f"Checkpoint of {self.location} at LSN {self.lsn:,}",
            [
                ("records in the snapshot", f"{self.records:,}"),
                ("bytes of the snapshot", f"{self.snapshot_bytes:,}"),
                ("low watermark", f"{self.low_watermark:,}"),
                ("segments trimmed", f"{self.segments_trimmed:,}"),
                ("bytes trimmed", f"{self.bytes_trimmed:,}"),
                ("older snapshots removed", f"{self.snapshots_removed:,}"),
                ("time", f"{self.duration_s * 1000:.1f} ms"),
            ],
            phases=self.phases,
        )


class Checkpointer:
    """Takes snapshots and checkpoints of a state that follows a log; one at a time, from any thread.

    Refers to parts of the log and not to the user's objects, so that these can be garbage-collected. Closing the log
    waits for work in progress here, and refuses later calls.
    """

    def __init__(
        self,
        storage: Storage,
        codec: str | None,
        manifest_store: Manifests,
        make_durable: Callable[[int], object],
        maintenance: MaintenanceWorker,
        trimmer: Trimmer,
        orphan_files: Orphans,
        lifetime: Lifetime,
        events: EventSink,
        *,
        machine: StateMachine,
        follower: Follower,
        restored: SnapshotInfo | None,
    ) -> None:
        self._storage = storage
        self._codec = codec
        self._manifest_store = manifest_store
        self._make_durable = make_durable
        self._maintenance = maintenance
        self._trimmer = trimmer
        self._orphan_files = orphan_files
        self._lifetime = lifetime
        self._events = events
        self._machine = machine
        self._follower = follower
        # See `Trimmer.state_lock`: one checkpoint at a time among all states of this log.
        self._lock = trimmer.state_lock
        self._ended = False
        self._newest = restored
        self._writing: int | None = None
        self._unfinished: SnapshotWrite | None = None
        """Failed at a stage that can be repeated; the next snapshot continues it if nothing was appended since."""
        self.on_snapshot: Callable[[int], object] = lambda lsn: None
        """Called with the LSN of each snapshot once it is on stable storage."""
        trimmer.state_lsn = self.snapshot_lsn
        lifetime.on_close(self.end)

    @property
    def snapshot_lsn(self) -> int:
        """LSN of the newest snapshot taken or restored; 0 without one."""
        return 0 if self._newest is None else self._newest.lsn

    def end(self) -> None:
        """Wait for work in progress, and refuse later calls."""
        with marked(STATE), self._lock:
            self._ended = True

    def detach(self) -> None:
        """Stop limiting the log's trims: only the manifest names the newest snapshot then. Needs `state_lock` held."""
        self._ended = True
        self._trimmer.state_lsn = None
        self._lifetime.off_close(self.end)

    def sync_and_apply(self) -> int:
        """Make all that is acknowledged durable and applied; return its LSN. Later snapshots are not below it."""
        self._require_open()
        self._follower.catch_up()
        lsn = self._follower.applied_lsn
        self._make_durable(lsn)
        return lsn

    def _require_open(self) -> None:
        """Refuse a closed log. Called before a lock is taken, too: in a forked child no thread frees it."""
        if self._ended or self._lifetime.closed:
            raise LogClosedError(f"the log at {self._storage.location} is closed")

    def snapshot_lsns(self) -> list[int]:
        """Return the LSNs of the snapshots that exist, and of the one that is being written."""
        writing = self._writing
        standing = snapshot_lsns(self._storage)
        return standing if writing is None else [*standing, writing]

    def snapshot(self) -> SnapshotInfo:
        """Write the state of this moment beside the log; see `Store.snapshot`."""
        self._require_open()
        return run_uninterrupted(self._snapshot, "snapshot", events=self._events)

    def _snapshot(self) -> SnapshotInfo:
        self._maintenance.refuse_current()
        with self._events.held(), alone(STATE), self._lock:
            refuse_other_machines(self._storage, self._machine)
            return self._write(self._image())

    def checkpoint(self, *, trim: bool = True) -> CheckpointReport:
        """Take a checkpoint; see `Store.checkpoint`."""
        self._require_open()
        return run_uninterrupted(lambda: self._checkpoint(trim), "checkpoint", events=self._events)

    def _checkpoint(self, trim: bool) -> CheckpointReport:
        with self._events.held(), alone(STATE), self._lock:
            return self.checkpoint_locked(trim)

    def checkpoint_locked(self, trim: bool) -> CheckpointReport:
        """Take a checkpoint; needs the trimmer's `state_lock` held, and events."""
        clock = PhaseClock()
        self._maintenance.refuse_current()
        refuse_other_machines(self._storage, self._machine)
        with clock.phase("image") as detail:
            image = self._image()
            detail["lsn"] = image.lsn
        with clock.phase("log"):
            self._make_durable(image.lsn)
        with clock.phase("snapshot") as detail:
            info = self._standing(image.lsn) or self._write(image)
            detail["records"], detail["bytes"] = info.records, info.size_bytes
        self._maintenance.drain()  # segments that it is about to seal can be dropped, too
        with (
            self._events.held(),
            self._trimmer.claims.shut() as shut,
            once(self._orphan_files.lock),
            self._orphan_files.lock,
        ):
            with clock.phase("watermark") as detail:
                trimmed, removed = self._trimmer.claims.in_turn(lambda: self._drop(trim, info.lsn))
                detail["low_watermark"], detail["snapshots"] = trimmed.low_watermark, removed
                shut.reopen()
            with clock.phase("trim") as detail:
                self._orphan_files.remove()
                detail["segments"] = len(trimmed.segments)
        self._trimmer.on_dropped(counts=True)
        return self._report(info, trimmed, removed, clock)

    def _report(
        self, info: SnapshotInfo, trimmed: Trimmed, removed: int, clock: PhaseClock
    ) -> CheckpointReport:
        report = CheckpointReport(
            location=self._storage.location,
            lsn=info.lsn,
            records=info.records,
            snapshot_bytes=info.size_bytes,
            low_watermark=trimmed.low_watermark,
            segments_trimmed=len(trimmed.segments),
            bytes_trimmed=trimmed.size_bytes,
            snapshots_removed=removed,
            phases=tuple(clock.phases),
        )
        self._trimmer.emit_trim(trimmed)
        self._events.emit("walkit.checkpoint.finish", lsn=report.lsn, duration_ms=report.duration_s * 1000)
        return report

    def _image(self) -> StateImage:
        if self._ended or self._lifetime.closed:
            raise LogClosedError(f"the log at {self._storage.location} is closed; no snapshot was taken")
        with marked(STATE), self._follower.lock:
            self._follower.apply_waiting()
            self._writing = self._follower.applied_lsn  # first: `snapshot_lsns` reads it without the lock
            return take_image(self._machine, self._writing)

    def _standing(self, lsn: int) -> SnapshotInfo | None:
        """Return the newest snapshot if it has this LSN already and the manifest names it."""
        standing = self._newest is not None and self._manifest_store.current.checkpoint_lsn == lsn
        return self._newest if standing and self.snapshot_lsn == lsn else None

    def _write(self, image: StateImage) -> SnapshotInfo:
        write, self._unfinished = self._unfinished, None
        if write is None or write.lsn != image.lsn:
            write = SnapshotWrite(
                self._storage,
                image,
                identity=identity_at(self._manifest_store.current, image.lsn),
                make_durable=self._make_durable,
                codec=self._codec,
            )
        try:
            info = write.finish()
        except SnapshotError as error:
            if error.retry_stage != "write":
                self._unfinished = write
            raise
        except BaseException:
            write.discard()
            raise
        self._newest = info
        self._trimmer.state_lsn = info.lsn
        self.on_snapshot(info.lsn)
        self._events.emit("walkit.snapshot.write", lsn=info.lsn, records=info.records)
        return info

    def _drop(self, trim: bool, newest_lsn: int) -> tuple[Trimmed, int]:
        """Move the low watermark and remove snapshots; return how many. Needs the claims shut, in their turn.

        Three kinds of snapshots stay: the newest two from which the log continues, each that a claim starts after, and
        the first after the oldest claim, so that this claim can move there. Claims change in the same turns, so a
        consumer keeps a snapshot that it finds while its claim starts after it.
        """
        storage, claims = self._storage, self._trimmer.claims
        trimmed = self._trimmer.move_watermark(newest_lsn if trim else 0, newest_lsn)
        standing = snapshot_lsns(storage)
        usable = [lsn for lsn in standing if trimmed.low_watermark <= lsn <= newest_lsn]
        needed = sorted(fact.needed_lsn for fact in claims.live(self._manifest_store.current))
        following = [lsn for lsn in usable if needed and lsn >= needed[0]]
        kept = {*usable[-SNAPSHOTS_KEPT:], *following[:1], *(lsn - 1 for lsn in needed)}
        unneeded = [lsn for lsn in standing if lsn not in kept]
        for lsn in unneeded:
            remove_if_there(storage, snapshot_name(lsn))
        return trimmed, len(unneeded)


def checkpointer_on(
    parts: LogParts, *, machine: StateMachine, follower: Follower, restored: SnapshotInfo | None
) -> Checkpointer:
    """Return the checkpointer of `machine` beside the log of these parts."""
    return Checkpointer(
        parts.storage,
        parts.options.codec,
        parts.manifest_store,
        lambda lsn: _make_durable(parts.driver, lsn),
        parts.segments.maintenance,
        parts.trimmer,
        parts.orphan_files,
        parts.lifetime,
        parts.events,
        machine=machine,
        follower=follower,
        restored=restored,
    )


def _make_durable(driver: CommitDriver, lsn: int) -> None:
    if driver.core.durable_lsn < lsn:
        driver.wait_written()
        driver.sync()
    assert driver.core.durable_lsn >= lsn


class CheckpointThread:
    """Takes a checkpoint after each `every` records, on a thread of its own.

    The commit path only looks at a number and sets an event. A failed checkpoint sends an event, and is repeated after
    `every` more records. With a journal, appends may wait for it: it is repeated after half of the records that still
    fit, and whenever an append finds no room.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        every: int,
        name: str,
        marks: LogMarks,
        lifetime: Lifetime,
        events: EventSink,
        admission: Admission | None = None,
    ) -> None:
        self._marks = marks
        self._events = events
        self._checkpointer = checkpointer
        self._every = every
        self._admission = admission
        self._due_lsn = checkpointer.snapshot_lsn + every
        self._wake = WakeEvent()
        self._ended = False
        self._thread = LogThread(target=self._run, name=f"walkit-checkpoint {name}", daemon=True)
        self._thread.start()
        # Before the checkpointer's own call, which would refuse the thread's work.
        lifetime.on_close(self.end, first=True)
        if admission is not None and admission.margin:
            admission.demand = self._wake.set
            if marks.acked_lsn >= self._due_lsn:
                self._wake.set()

    def feed(self, frame: SealedFrame) -> None:
        """Take a frame that is acknowledged: the log's sink. Never waits."""
        self.reached(frame.last_lsn)

    def reached(self, lsn: int) -> None:
        """Note that the log has reached this LSN. Never waits."""
        if lsn >= self._due_lsn:
            self._wake.set()

    def end(self) -> None:
        """Finish the checkpoint under way, and end the thread."""
        self._ended = True
        self._wake.set()
        if self._admission is not None:
            self._admission.end()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            if self._ended:
                return
            self._wake.clear()
            try:
                self._due_lsn = self._checkpointer.checkpoint().lsn + self._every
            except LogClosedError:
                return
            except Exception as error:  # noqa: BLE001 - after any error appends may wait for the next checkpoint
                self._failed(error)
            if self._marks.acked_lsn >= self._due_lsn:
                self._wake.set()

    def _failed(self, error: Exception) -> None:
        after = self._every
        self._events.emit("walkit.checkpoint.fail", error=str(error))
        if self._admission is not None:
            after = min(after, max(self._admission.room() // 2, 1))
            self._admission.failed(error)
        self._due_lsn = self._marks.acked_lsn + after
