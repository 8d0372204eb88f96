"""Real faults, each in a log made for it, and the next opening of that log. No panel in here."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from walkit._internal.arguments import check_choice, refuse
from walkit._internal.text import counted
from walkit.bench.recovery import fill_and_kill
from walkit.bench.recovery_load import RecoveryLoad
from walkit.config import LogOptions
from walkit.errors import CorruptionError, OptionsError, WalkitError
from walkit.events import EventCallback
from walkit.log.wal import WriteAheadLog
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import OperationName
from walkit.objects.entrance import open_log
from walkit.recovery.report import RecoveryReport
from walkit.recovery.verify import verify
from walkit.storage.file import FileStorage
from walkit.storage.interface import Storage
from walkit.views.fault_reports import (
    FRAME_BYTES_SHOWN,
    CutFrame,
    FaultName,
    FaultReport,
    Outcome,
    Refusal,
    recovered,
    refused,
)
from walkit.views.jobs import Job
from walkit.workload.inject_damage import flip_a_bit, remove_the_oldest_segment

OPTIONS = LogOptions(segment_bytes=256 * 1024, frame_bytes_max=64 * 1024, idle_marker_ms=0)
FILL = RecoveryLoad(
    operations=4_000, keys=400, record_bytes=100, frame_records=20, segment_bytes=OPTIONS.segment_bytes
)
"""The child's load before its files are damaged: some segments, all acknowledged and durable."""
RECORDS_BEFORE = 300
"""Records that are acknowledged before modelled storage fails."""
BUNDLE = 20
"""Records that are appended at a time: a frame of several sectors."""
VALUE = b"\x2a" * 300
APPENDS_MAX = 1_000
"""More than fill what a log has reserved ahead."""
SEGMENTS = "*.segment"
STEPS = 4


class FaultLab:
    """Logs in a folder of their own, one for each fault; those of the fault before are removed. Used by one thread."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._number = 0
        self._last: Path | None = None
        """The log of the newest fault in files; they stay until the next one."""

    def _check(self) -> None:
        """Assert the invariants between two faults: the log to salvage or heal is that of the newest one."""
        assert self._number >= 0
        if self._last is not None:
            assert self._last.parent == self._folder and self._last.is_dir()
            assert self._last.name.startswith(f"fault-{self._number}-"), "it is the log of an earlier fault"

    def begin(self) -> int:
        """Return the number of a new fault; from now on the log of the one before is not opened again."""
        self._number, self._last = self._number + 1, None
        return self._number

    def refused_log(self, report: FaultReport) -> Path | None:
        """Return the refused log of a report; None if it was not refused, or another fault was started since."""
        is_newest = report.outcome.refusal is not None and report.number == self._number
        return self._last if is_newest else None

    def do(self, fault: FaultName, job: Job) -> FaultReport:
        """Do a fault to a log made for it, open the log again and return the outcome.

        OptionsError for a fault of the scratch log's own; JobCancelledError; StorageError; ChildWriterError.
        """
        doing: dict[FaultName, Callable[[int, Job], FaultReport]] = {
            "bit": self._bit,
            "missing": self._missing,
            "power": self._power,
            "full": self._full,
            "sync": self._sync,
        }
        check_choice(fault, doing, "fault")
        return doing[fault](self.begin(), job)

    def salvage(self, report: FaultReport, job: Job) -> FaultReport:
        """Open a copy of the refused log with policy "salvage"; return the report with the losses."""
        log = self.refused_log(report)
        if log is None:
            refuse("policy", "salvage", "no refused log to salvage")
        job.step(1, 2, "copying the files")
        copy = _copied(log, "salvaged")
        job.step(2, 2, "opening the copy")
        return report.salvaged(opened(FileStorage(str(copy)), replace(OPTIONS, recovery="salvage")))

    def heal(self, report: FaultReport, job: Job) -> FaultReport:
        """Heal a copy of the refused log from the copy that was made before the damage; return the report with it.

        OptionsError without a refused log; MissingExtraError without gRPC; ReplicationError, StorageError.
        """
        log = self.refused_log(report)
        if log is None:
            refuse("source", "a peer", "no refused log to heal")
        from walkit.replication import Primary, heal  # gRPC, which a session without it does not need

        job.step(1, 3, "copying the files")
        copy = _copied(log, "healed")
        job.step(2, 3, "taking damaged frames from a peer")
        peer = _peer_of(log)
        # The child synced its files without saying so; an opening notes how far they are durable, which is served.
        open_log(peer, options=OPTIONS).close()
        with Primary(peer) as primary:
            healing = heal(copy, primary.address)
        job.step(3, 3, "opening the copy")
        return report.healed(
            healing, opened(FileStorage(str(copy)), replace(OPTIONS, recovery="absolute"), copy)
        )

    # -- faults of files

    def _new_folder(self, name: str, number: int) -> Path:
        for old in self._folder.glob("fault-*"):
            shutil.rmtree(old)
        return self._folder / f"fault-{number}-{name}"

    def _filled(self, name: str, number: int, job: Job) -> Path:
        path = self._new_folder(name, number)
        job.step(1, STEPS, "a child process fills a log")
        fill_and_kill("walkit", path, FILL)
        shutil.copytree(path, _peer_of(path))
        return path

    def _damaged(self, fault: FaultName, number: int, path: Path, job: Job, done: str) -> FaultReport:
        job.step(3, STEPS, "opening the log")
        outcome = opened(FileStorage(str(path)), OPTIONS, path)
        self._last = path
        self._check()
        return FaultReport(
            fault=fault,
            number=number,
            place="a log of its own on this disk",
            steps=(
                f"A child process wrote {FILL.operations:,} records, all acknowledged and synced, and was killed.",
                done,
            ),
            acked_lsn=FILL.operations,
            promise="A damaged record that was acknowledged is never skipped: opening refuses, and changes nothing.",
            outcome=outcome,
        )

    def _bit(self, number: int, job: Job) -> FaultReport:
        path = self._filled("bit", number, job)
        job.step(2, STEPS, "flipping a bit")
        flipped = flip_a_bit(path)
        with open(path / flipped.segment, "rb") as file:
            file.seek(flipped.frame_offset)
            data = file.read(min(flipped.frame.footprint, FRAME_BYTES_SHOWN))
        done = (
            f"Bit {flipped.bit} of byte {flipped.byte:,} of the frame at position {flipped.frame.position:,} (LSN "
            f"{flipped.frame.first_lsn:,} to {flipped.frame.last_lsn:,}) was flipped, in {flipped.segment}."
        )
        report = self._damaged("bit", number, path, job, done)
        frame = CutFrame(data=data, words="The frame with the flipped bit", highlight=(flipped.byte,))
        return replace(report, frame=frame)

    def _missing(self, number: int, job: Job) -> FaultReport:
        path = self._filled("missing", number, job)
        job.step(2, STEPS, "removing a segment")
        name = remove_the_oldest_segment(path)
        return self._damaged("missing", number, path, job, f"The file {name} was removed.")

    def _full(self, number: int, job: Job) -> FaultReport:
        path = self._new_folder("full", number)
        path.mkdir()
        job.step(1, STEPS, "writing until the disk is full")
        storage = FaultyStorage(FileStorage(str(path / "log")))
        copy = path / "copy"
        space: Sequence[OperationName] = ("create", "allocate")
        with open_log(storage=storage, options=OPTIONS) as log:
            append_until(log, RECORDS_BEFORE)
            log.wait_idle()
            # New files and new space are refused; what is reserved already can still be written.
            faults = [storage.fail(o, SEGMENTS, errno=errno.ENOSPC, times=None) for o in space]
            failure = fail_append(log, APPENDS_MAX)
            acked_lsn, poisoned = log.acked_lsn, log.statistics().poisoned
            job.step(2, STEPS, "copying the files as they are now")
            shutil.copytree(path / "log", copy)
            for fault in faults:
                fault.cancel()
        job.step(3, STEPS, "opening the copy")
        return FaultReport(
            fault="full",
            number=number,
            place="a log of its own on this disk, below a layer that refuses new space",
            steps=(
                f"{acked_lsn:,} records were acknowledged before the disk had no more room.",
                "The log is poisoned."
                if poisoned
                else "The log is not poisoned: it takes records again once there is room.",
                "Its files were copied at that moment, as a kill would have left them, and the copy was opened.",
            ),
            acked_lsn=acked_lsn,
            promise="A full disk refuses the new record before anything of it is written, and loses nothing.",
            outcome=opened(FileStorage(str(copy)), OPTIONS),
            failure=Refusal.of(failure),
        )

    # -- faults of modelled storage

    def _power(self, number: int, job: Job) -> FaultReport:
        inner = CrashingStorage()
        storage = FaultyStorage(inner)
        log = open_log(storage=storage, options=OPTIONS)
        job.step(1, STEPS, "writing to modelled storage")
        append_until(log, RECORDS_BEFORE)
        acked_lsn = log.acked_lsn
        # The write is under way: all of it is in the cache, and no sync has covered it.
        storage.fail("synced_write", SEGMENTS, short_bytes=OPTIONS.frame_bytes_max)
        fail_append(log)
        job.step(2, STEPS, "cutting the power")
        image = inner.crash(keep="random", seed=number)
        close_after_fault(log)
        job.step(3, STEPS, "opening the log on the medium")
        outcome = opened(image, OPTIONS)
        found = image.crash_report
        torn = sum(fate.torn for fate in found.files) if found is not None else 0
        lost_bytes = sum(fate.bytes_lost for fate in found.files) if found is not None else 0
        return FaultReport(
            fault="power",
            number=number,
            place=f"a log on modelled storage in memory (seed {number})",
            steps=(
                f"{acked_lsn:,} records were acknowledged with durability sync.",
                f"The power went during a write of {BUNDLE} records.",
                f"{lost_bytes:,} bytes of it did not reach the medium; {counted(torn, 'write')} torn between sectors.",
            ),
            acked_lsn=acked_lsn,
            promise="With durability sync a power cut loses nothing that was acknowledged.",
            outcome=outcome,
            frame=cut_frame(image, outcome.recovery),
        )

    def _sync(self, number: int, job: Job) -> FaultReport:
        inner = CrashingStorage()
        storage = FaultyStorage(inner)
        log = open_log(storage=storage, options=OPTIONS)
        job.step(1, STEPS, "writing to modelled storage")
        append_until(log, RECORDS_BEFORE)
        acked_lsn = log.acked_lsn
        storage.fail("synced_write", SEGMENTS, errno=errno.EIO)
        job.step(2, STEPS, "failing a sync")
        failure, after = fail_append(log), fail_append(log)
        image = inner.process_kill()
        close_after_fault(log)
        job.step(3, STEPS, "opening the log")
        outcome = opened(image, OPTIONS)
        survived = 0 if outcome.recovery is None else outcome.recovery.last_lsn - acked_lsn
        return FaultReport(
            fault="sync",
            number=number,
            place="a log on modelled storage in memory",
            steps=(
                f"{acked_lsn:,} records were acknowledged with durability sync.",
                f"A synced write of {BUNDLE} records failed with EIO. The next append got {type(after).__name__}.",
                "The process was killed and the log opened again; its bytes come from the medium, not the cache.",
                f"{survived:,} of the records whose outcome was unknown are there.",
            ),
            acked_lsn=acked_lsn,
            promise="A failed sync is never tried again as if nothing had been: the log takes no more until it is "
            "opened again.",
            outcome=outcome,
            failure=Refusal.of(failure),
            frame=cut_frame(image, outcome.recovery),
        )


def _peer_of(path: Path) -> Path:
    """Return where the copy of a log is that was made before its damage."""
    return path.with_name(f"{path.name}-peer")


def _copied(path: Path, what: str) -> Path:
    """Copy the files of a log to a folder beside it, and return that."""
    copy = path.with_name(f"{path.name}-{what}")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    return copy


def opened(
    storage: Storage, options: LogOptions, path: Path | None = None, events: EventCallback | None = None
) -> Outcome:
    """Open a log, close it, and return the outcome; `path` is the log to examine if opening refuses."""
    try:
        with open_log(storage=storage, options=options, events=events) as log:
            return recovered(log.recovery, first_position(log))
    except CorruptionError as error:
        if path is None:
            raise
        return refused(error, options.recovery, verify(path))


def first_position(log: WriteAheadLog) -> int:
    """Return where the oldest segment of an open log begins."""
    return min((s.start_position for s in log.parts.manifest_store.current.segments), default=0)


def cut_frame(storage: Storage, recovery: RecoveryReport | None) -> CutFrame | None:
    """Return the beginning of the first cut that was kept in lost+found, or None."""
    for cut in () if recovery is None else recovery.cuts:
        if cut.kept_as is not None:
            file = storage.open(cut.kept_as, "read")
            try:
                data = file.read(0, min(cut.bytes, FRAME_BYTES_SHOWN))
            finally:
                file.close()
            return CutFrame(data=data, words=f"The first {len(data):,} of {cut.bytes:,} bytes that were cut")
    return None


def append_until(log: WriteAheadLog, records: int) -> None:
    """Append until so many records are acknowledged."""
    while log.acked_lsn < records:
        log.append_many([VALUE] * BUNDLE)


def fail_append(log: WriteAheadLog, attempts: int = 1) -> WalkitError:
    """Append to a log whose storage fails, and return its error. OptionsError if so many attempts do not fail."""
    try:
        for _ in range(attempts):
            log.append_many([VALUE] * BUNDLE)
    except WalkitError as error:
        return error
    raise OptionsError("the fault was not met", option="fault")


def close_after_fault(log: WriteAheadLog) -> None:
    """Close a log whose storage has failed: what it raises is known already."""
    try:
        log.close()
    except WalkitError:
        return
