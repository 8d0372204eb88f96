"""Checkpoints: the log durable, a snapshot, the low watermark, the trim, in this order (A8 of Iggy is the source).

Nothing is dropped before what replaces it is on stable storage and the manifest says so. A crash between any two steps
leaves a log and a snapshot that belong together, and whatever a failure left undone the next checkpoint does.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass

from walkit.commit.frame import SealedFrame
from walkit.commit.to_end import run_to_end
from walkit.errors import LogClosedError, SnapshotError, StorageError
from walkit.log.engine import LogEngine
from walkit.log.report import Phase, PhaseClock, report_html
from walkit.log.trim import Trimmed, move_watermark, tell
from walkit.state.admission import Admission
from walkit.state.follow import Follower
from walkit.state.machine import StateImage, StateMachine, take_image
from walkit.state.snapshot import SnapshotInfo, SnapshotWrite, identity_at, snapshot_lsns, snapshot_name
from walkit.threads import Bell, EndingThread

SNAPSHOTS_KEPT = 2
"""How many snapshots a checkpoint leaves: its own and, where the log still reaches back to it, the one before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointReport:
    """What one checkpoint did."""

    location: str
    lsn: int
    """The state up to here is in the snapshot."""
    records: int
    """Records in the snapshot."""
    snapshot_bytes: int
    low_watermark: int
    """LSN below which the log was dropped; below `lsn` where a hold keeps it back."""
    segments_trimmed: int
    bytes_trimmed: int
    """Bytes of the segment files that were removed."""
    snapshots_removed: int
    phases: tuple[Phase, ...]
    """"image", "log", "snapshot", "watermark", "trim", "tidy": seconds each."""

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

    Knows the engine and not the user's objects, so that those can be dropped. Closing the log waits for what is under
    way here, and refuses what comes later.
    """

    def __init__(
        self, engine: LogEngine, machine: StateMachine, follower: Follower, restored: SnapshotInfo | None
    ) -> None:
        self.engine = engine
        self._machine = machine
        self._follower = follower
        self._lock = threading.RLock()
        self._ended = False
        self._newest = restored
        self._writing: int | None = None
        self._unfinished: SnapshotWrite | None = None
        """Failed at a stage that can be done again: the next snapshot does, if nothing was appended meanwhile."""
        self.on_snapshot: Callable[[int], object] = lambda lsn: None
        """Told the LSN of each snapshot once it is on stable storage."""
        engine.state_lsn = self.snapshot_lsn
        engine.closers.append(self.end)

    @property
    def snapshot_lsn(self) -> int:
        """LSN of the newest snapshot taken or restored; 0 where there was none."""
        return 0 if self._newest is None else self._newest.lsn

    def end(self) -> None:
        """Wait for what is under way, and refuse what comes later."""
        with self._lock:
            self._ended = True

    def upto(self) -> int:
        """Make all that is acknowledged durable and applied; return its LSN. Later snapshots do not stand below it."""
        self._require_open()
        self._follower.catch_up()
        lsn = self._follower.applied_lsn
        self._make_durable(lsn)
        return lsn

    def _require_open(self) -> None:
        """Refuse; also asked before a lock is taken, which in a forked child nobody ever frees."""
        if self._ended or self.engine.closed:
            raise LogClosedError(f"the log at {self.engine.storage.location} is closed")

    def bases(self) -> list[int]:
        """Return the LSNs of the snapshots that stand, and of the one that is being written."""
        with self._follower.lock:
            writing = self._writing
        standing = snapshot_lsns(self.engine.storage)
        return standing if writing is None else [*standing, writing]

    def snapshot(self) -> SnapshotInfo:
        """Write the state of this moment beside the log; see `Store.snapshot`."""
        self._require_open()
        return run_to_end(self._snapshot, "snapshot", events=self.engine.events)

    def _snapshot(self) -> SnapshotInfo:
        with self._lock:
            return self._write(self._image())

    def checkpoint(self, *, trim: bool = True) -> CheckpointReport:
        """Take a checkpoint; see `Store.checkpoint`."""
        self._require_open()
        return run_to_end(lambda: self._checkpoint(trim), "checkpoint", events=self.engine.events)

    def _checkpoint(self, trim: bool) -> CheckpointReport:
        engine, clock = self.engine, PhaseClock()
        with self._lock:
            with clock.phase("image") as detail:
                image = self._image()
                detail["lsn"] = image.lsn
            with clock.phase("log"):
                self._make_durable(image.lsn)
            with clock.phase("snapshot") as detail:
                info = self._standing(image.lsn) or self._write(image)
                detail["records"], detail["bytes"] = info.records, info.size_bytes
            engine.segments.upkeep.drain()  # what it is about to seal can be dropped, too
            with engine.trimming:
                with clock.phase("watermark") as detail:
                    trimmed = move_watermark(engine, info.lsn if trim else 0, info.lsn)
                    detail["low_watermark"] = trimmed.low_watermark
                with clock.phase("trim") as detail:
                    engine.leftovers.remove()
                    detail["segments"] = len(trimmed.segments)
            with clock.phase("tidy") as detail:
                removed = self._tidy(trimmed.low_watermark, info.lsn)
                detail["snapshots"] = removed
        return self._report(info, trimmed, removed, clock)

    def _report(
        self, info: SnapshotInfo, trimmed: Trimmed, removed: int, clock: PhaseClock
    ) -> CheckpointReport:
        report = CheckpointReport(
            location=self.engine.storage.location,
            lsn=info.lsn,
            records=info.records,
            snapshot_bytes=info.size_bytes,
            low_watermark=trimmed.low_watermark,
            segments_trimmed=len(trimmed.segments),
            bytes_trimmed=trimmed.size_bytes,
            snapshots_removed=removed,
            phases=tuple(clock.phases),
        )
        if trimmed.segments:
            tell(self.engine, trimmed)
        self.engine.events.emit(
            "walkit.checkpoint.finish", lsn=report.lsn, duration_ms=report.duration_s * 1000
        )
        return report

    def _image(self) -> StateImage:
        if self._ended or self.engine.closed:
            raise LogClosedError(
                f"the log at {self.engine.storage.location} is closed; no snapshot was taken"
            )
        with self._follower.lock:
            self._follower.apply_waiting()
            image = take_image(self._machine, self._follower.applied_lsn)
            self._writing = image.lsn
            return image

    def _make_durable(self, lsn: int) -> None:
        driver = self.engine.driver
        if driver.core.durable_lsn < lsn:
            driver.wait_acked()
            driver.sync()
        assert driver.core.durable_lsn >= lsn

    def _standing(self, lsn: int) -> SnapshotInfo | None:
        """Return the newest snapshot where it is of this LSN already and the manifest says so."""
        standing = self._newest is not None and self.engine.store.current.checkpoint_lsn == lsn
        return self._newest if standing and self.snapshot_lsn == lsn else None

    def _write(self, image: StateImage) -> SnapshotInfo:
        engine = self.engine
        write, self._unfinished = self._unfinished, None
        if write is None or write.lsn != image.lsn:
            write = SnapshotWrite(
                engine.storage,
                image,
                identity=identity_at(engine.store.current, image.lsn),
                make_durable=self._make_durable,
                codec=engine.options.codec,
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
        engine.state_lsn = info.lsn
        self.on_snapshot(info.lsn)
        engine.events.emit("walkit.snapshot.write", lsn=info.lsn, records=info.records)
        return info

    def _tidy(self, low_watermark: int, newest_lsn: int) -> int:
        """Remove the snapshots that nothing needs: from which the log does not go on, and all but the newest two."""
        storage = self.engine.storage
        standing = snapshot_lsns(storage)
        usable = [lsn for lsn in standing if low_watermark <= lsn <= newest_lsn]
        needless = [lsn for lsn in standing if lsn not in usable[-SNAPSHOTS_KEPT:]]
        for lsn in needless:
            try:
                storage.remove(snapshot_name(lsn))
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
        if needless:
            storage.sync_directory()
        return len(needless)


class CheckpointThread:
    """Takes a checkpoint by itself after every so many records, on a thread of its own.

    The commit path only looks at a number and sets an event. A checkpoint that fails is told as an event, and tried
    again after as many records more; where the store has a journal, in which appends may come to wait for it, after
    half as many as still fit, and whenever an append finds no room.
    """

    def __init__(
        self, checkpointer: Checkpointer, every: int, name: str, admission: Admission | None = None
    ) -> None:
        self._checkpointer = checkpointer
        self._every = every
        self._admission = admission
        self._due_lsn = checkpointer.snapshot_lsn + every
        self._wake = Bell()
        self._ended = False
        self._thread = EndingThread(target=self._run, name=f"walkit-checkpoint {name}", daemon=True)
        self._thread.start()
        # Before the checkpointer's own: it is waited for by its thread's end, and else refuses what the thread began.
        checkpointer.engine.closers.insert(0, self.end)
        if admission is not None and admission.margin:
            admission.demand = self._wake.set
            if checkpointer.engine.core.acked_lsn >= self._due_lsn:
                self._wake.set()

    def feed(self, frame: SealedFrame) -> None:
        """Take a frame that is acknowledged: the log's sink. Never waits."""
        if frame.last_lsn >= self._due_lsn:
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
        engine = self._checkpointer.engine
        while True:
            self._wake.wait()
            if self._ended:
                return
            self._wake.clear()
            try:
                self._due_lsn = self._checkpointer.checkpoint().lsn + self._every
            except LogClosedError:
                return
            except Exception as error:  # noqa: BLE001 - whatever it was, appends may wait for the next one
                self._failed(error)
            if engine.core.acked_lsn >= self._due_lsn:
                self._wake.set()

    def _failed(self, error: Exception) -> None:
        engine, after = self._checkpointer.engine, self._every
        engine.events.emit("walkit.checkpoint.fail", error=str(error))
        if self._admission is not None:
            after = min(after, max(self._admission.remaining() // 2, 1))
            self._admission.failed(error)
        self._due_lsn = engine.core.acked_lsn + after
