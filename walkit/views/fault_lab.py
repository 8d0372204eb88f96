"""Faults, recoveries, salvage and sweeps of a session: one at a time, off the page's thread. No panel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from walkit._internal.html import shown
from walkit._internal.text import lsn_range
from walkit.errors import WalkitError
from walkit.recovery.decision import DECISION_TABLE, Decision
from walkit.recovery.report import RecoveryReport
from walkit.recovery.scan_report import ScanReport, Verdict

if TYPE_CHECKING:  # gRPC, which is not needed here
    from walkit.replication import HealReport

import errno
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from walkit._internal.arguments import check_choice, refuse
from walkit._internal.text import counted
from walkit.bench.recovery import fill_and_kill
from walkit.bench.recovery_load import RecoveryLoad
from walkit.bench.recovery_sweep import RecoverySweep, sweep_points, sweep_recovery
from walkit.config import DURABILITY_PROMISES, LogOptions
from walkit.errors import CorruptionError, OptionsError
from walkit.events import EventCallback
from walkit.log.wal import WriteAheadLog
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import OperationName
from walkit.objects.entrance import open_log
from walkit.recovery.verify import verify
from walkit.storage.file import FileStorage
from walkit.storage.interface import Storage
from walkit.views.background_jobs import Job, Jobs
from walkit.workload.inject_damage import flip_a_bit, leave_half_a_frame, remove_the_oldest_segment
from walkit.workload.steady import ContinuousLoad

FaultName = Literal["sigkill", "half-frame", "bit", "missing", "power", "full", "sync"]
FrameFate = Literal["kept", "cut", "hole", "lost", "damaged"]
FATES: tuple[FrameFate, ...] = ("kept", "cut", "hole", "lost", "damaged")

FRAME_BYTES_SHOWN = 1024
"""Most bytes of a cut or damaged frame that a report holds."""


@dataclass(frozen=True, kw_only=True)
class FaultKind:
    """A fault that can be chosen."""

    label: str
    words: str
    """The fault, and its log, as a sentence."""
    job: str
    """The title of its job."""


FAULTS: dict[FaultName, FaultKind] = {
    "sigkill": FaultKind(
        label="SIGKILL",
        words="The writers of the scratch log, a child process, are killed; if none run, some are started "
        "first. The scratch log is opened again.",
        job="killing the writers and recovering",
    ),
    "half-frame": FaultKind(
        label="half a frame",
        words="The writers of the scratch log are killed, and half a frame is written after its end before it is "
        "opened again, as a power cut leaves it: a killed process rarely does, because the kernel finishes the write "
        "under way.",
        job="killing the writers, leaving half a frame and recovering",
    ),
    "bit": FaultKind(
        label="flipped bit",
        words="A child process fills a log of its own and is killed; one bit of an acknowledged frame is changed in "
        "the file, and the log is opened.",
        job="flipping a bit and recovering",
    ),
    "missing": FaultKind(
        label="missing segment",
        words="A child process fills a log of its own and is killed; the file of its oldest segment is removed, and "
        "the log is opened.",
        job="removing a segment and recovering",
    ),
    "power": FaultKind(
        label="power cut (modelled storage)",
        words="A log on modelled storage, in memory, which separates written bytes from synced ones. The power "
        "goes during a write: chance decides for each of its sectors whether it is on the medium.",
        job="cutting the power of modelled storage and recovering",
    ),
    "full": FaultKind(
        label="full disk",
        words="A log of its own on this disk, below a layer that refuses new space with ENOSPC from some moment on. "
        "The writer appends until it fails; a copy of the files of that moment is opened.",
        job="filling the disk and recovering",
    ),
    "sync": FaultKind(
        label="failed sync (modelled storage)",
        words="A log on modelled storage, in memory: one synced write fails with EIO. As on ext4, its pages look clean "
        "after it and were never written. The process is killed, and the log is opened.",
        job="failing a sync and recovering",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A typed error with its data, as texts."""

    name: str
    message: str
    facts: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, error: WalkitError) -> Refusal:
        """Take an error apart; unknown facts are left out."""
        data = {name: value for name, value in vars(error).items() if value is not None}
        return cls(
            name=type(error).__name__,
            message=str(error),
            facts=tuple((name, shown(value)) for name, value in data.items()),
        )


@dataclass(frozen=True, kw_only=True)
class ByteRange:
    """A range of bytes of a log, and its fate."""

    fate: FrameFate
    size_bytes: int
    words: str


@dataclass(frozen=True, kw_only=True)
class CutFrame:
    """The beginning of the frame that was cut off or is damaged."""

    data: bytes
    """At most FRAME_BYTES_SHOWN."""
    words: str
    highlight: tuple[int, ...] = ()
    """Offsets of bytes that were changed."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One opening: its outcome, or why it refused."""

    policy: str
    recovery: RecoveryReport | None = None
    refusal: Refusal | None = None
    strip: tuple[ByteRange, ...] = ()
    applied: tuple[tuple[str, str], ...] = ()
    """Rows of the decision table that applied, each with its segment."""
    aside: str = ""
    """A sentence for the case that no row applied."""


@dataclass(frozen=True, kw_only=True)
class FaultReport:
    """A fault of a log, and its outcome."""

    fault: FaultName
    number: int
    """Of the session's faults, from 1."""
    place: str
    """Which log it was, and where."""
    steps: tuple[str, ...]
    """The steps of the fault, as sentences."""
    acked_lsn: int
    """Last LSN that was known to be acknowledged before the fault."""
    promise: str
    """The promise for this fault, as a sentence."""
    outcome: Outcome
    failure: Refusal | None = None
    """The error that the writer got."""
    frame: CutFrame | None = None
    salvage: Outcome | None = None
    """Of a copy that was opened with policy "salvage"."""
    healing: HealReport | None = None
    """The healing of a copy from a peer."""
    mended: Outcome | None = None
    """Of opening that copy, with every frame verified."""

    @property
    def recovery(self) -> RecoveryReport | None:
        """The recovery after the fault; None if opening was refused."""
        return self.outcome.recovery

    @property
    def lost(self) -> int:
        """Acknowledged records that are gone without a word: 0 unless walkit has a bug."""
        return 0 if self.recovery is None else max(self.acked_lsn - self.recovery.last_lsn, 0)


def recovered(recovery: RecoveryReport, first_position: int) -> Outcome:
    """Return the outcome of an opening of a log whose first segment begins at `first_position`."""
    return Outcome(
        policy=recovery.policy,
        recovery=recovery,
        strip=tuple(_strip_of(recovery, first_position)),
        applied=tuple((d.row, d.segment) for d in recovery.decisions),
        aside="Nothing had to be decided: every segment was sealed, and the manifest vouches for sealed ones.",
    )


def refused(error: WalkitError, policy: str, found: ScanReport) -> Outcome:
    """Return the outcome of a refused opening; `found` is the scan of the same files."""
    segment = getattr(error, "segment", None)
    unsealed = {s.name for s in found.segments if s.state != "sealed"}
    row = next(r.label for r in DECISION_TABLE if r.decision is Decision.REFUSE)
    return Outcome(
        policy=policy,
        refusal=Refusal.of(error),
        strip=tuple(_strip_found(found)),
        applied=((row, segment),) if segment in unsealed else (),
        aside=f"The table does not apply: {segment} is sealed, and its end is in the manifest. A sealed segment "
        "that is missing or not intact is corruption.",
    )


def _strip_of(recovery: RecoveryReport, first_position: int) -> Iterable[ByteRange]:
    gaps: list[tuple[int, int, FrameFate, str]] = [
        (g.start_position, g.end_position, "lost", f"{lsn_range(g.first_lsn, g.last_lsn)}: {g.reason}")
        for g in recovery.lost
    ]
    gaps += [
        (
            h.start_position,
            h.end_position,
            "hole",
            f"{lsn_range(h.first_lsn, h.last_lsn)}, never acknowledged",
        )
        for h in recovery.holes
    ]
    at = first_position
    for start, end, fate, words in sorted(gaps):
        if start > at:
            yield _kept(at, start)
        yield ByteRange(fate=fate, size_bytes=end - start, words=words)
        at = max(at, end)
    if recovery.end_position > at:
        yield _kept(at, recovery.end_position)
    for cut in recovery.cuts:
        words = f"at position {cut.position:,} of {cut.segment}: {cut.reason}"
        yield ByteRange(fate="cut", size_bytes=cut.bytes, words=words)


def _kept(start: int, end: int) -> ByteRange:
    return ByteRange(fate="kept", size_bytes=end - start, words=f"positions {start:,} to {end:,}")


_FOUND: dict[Verdict, FrameFate] = {
    Verdict.INTACT: "kept",
    Verdict.TORN: "cut",
    Verdict.HOLE: "hole",
    Verdict.LOST: "lost",
    Verdict.CORRUPT: "damaged",
    Verdict.FOREIGN: "damaged",
    Verdict.MISSING: "damaged",
    Verdict.UNKNOWN: "damaged",
}


def _strip_found(found: ScanReport) -> Iterable[ByteRange]:
    for each in found.verdict:
        if each.verdict in _FOUND and each.size_bytes:
            said = f"positions {each.start_position:,} to {each.end_position:,}: {each.verdict.value}"
            words = f"{said}, {each.reason}" if each.reason else said
            yield ByteRange(fate=_FOUND[each.verdict], size_bytes=each.size_bytes, words=words)


REPORTS_MAX = 8
"""Recoveries of a session that are kept to be compared with."""
OPERATIONS_MEASURED = 60_000
FRAME_RECORDS_MEASURED = 200
CHECKPOINT_AGES = (0.02, 0.1, 0.25, 0.5, 1.0)
"""Shares of the operations after the checkpoint; 1 means no checkpoint."""
SEGMENT_BYTES_MEASURED = (256 << 10, 1 << 20, 4 << 20, 16 << 20)
ROUNDS = 5
OF_THE_SCRATCH_LOG: tuple[FaultName, ...] = ("sigkill", "half-frame")


class Killed(NamedTuple):
    """Writers of the scratch log that were killed."""

    path: str
    load: ContinuousLoad
    acked_lsn: int
    """Last LSN that they had told to be acknowledged."""


class RecoveryLab:
    """The faults and reopenings of a session. Any thread requests and reads; the session's jobs do the work."""

    def __init__(
        self, folder: str, jobs: Jobs, kill: Callable[[ContinuousLoad], Killed], events: EventCallback
    ) -> None:
        """`kill` kills the writers of the scratch log; `events` takes the events of its opening."""
        self.reports: tuple[FaultReport, ...] = ()
        """The newest last; at most REPORTS_MAX."""
        self.sweep: RecoverySweep | None = None
        """The newest measurement."""
        self._folder = folder
        self._jobs = jobs
        self._kill = kill
        self._events = events
        self._faults = FaultLab(folder)

    @property
    def newest(self) -> FaultReport | None:
        """The report of the last fault; None before the first."""
        return self.reports[-1] if self.reports else None

    @property
    def has_refused_log(self) -> bool:
        """Whether the log of the last fault could not be opened, and copies of it can be."""
        return self._faults.refused_log(self.newest) is not None

    def do(self, fault: FaultName, load: ContinuousLoad | None = None) -> None:
        """Do a fault and open the log again; `load` is used to start writers if none run."""
        self._jobs.start(FAULTS[fault].job, lambda job: self._do(fault, load or ContinuousLoad(), job))

    def salvage(self) -> None:
        """Open a copy of the log that the newest report could not open, with policy "salvage"."""
        self._jobs.start("salvaging a copy", partial(self._complete, self._faults.salvage))

    def heal(self) -> None:
        """Heal a copy of the log that the newest report could not open, from a peer that has the same frames."""
        self._jobs.start("healing a copy from a peer", partial(self._complete, self._faults.heal))

    def measure(self) -> None:
        """Measure recovery over the checkpoint interval and over the segment size; see `sweep_recovery`."""
        self._jobs.start("measuring recovery times", self._measure)

    def _do(self, fault: FaultName, load: ContinuousLoad, job: Job) -> None:
        made = self._scratch(fault, load) if fault in OF_THE_SCRATCH_LOG else self._faults.do(fault, job)
        self.reports = (*self.reports, made)[-REPORTS_MAX:]
        self._check()

    def _scratch(self, fault: FaultName, load: ContinuousLoad) -> FaultReport:
        killed = self._kill(load)
        storage = FileStorage(killed.path)
        torn = leave_half_a_frame(killed.path) if fault == "half-frame" else 0
        outcome = opened(storage, killed.load.options, events=self._events)
        kill, power, _, _ = DURABILITY_PROMISES[killed.load.durability]
        steps = [f"The writers ({killed.load}) were killed with SIGKILL."]
        if torn:
            steps.append(f"Half a frame ({torn:,} bytes) was written after the end of the log.")
        elif fault == "half-frame":
            steps.append(
                "No half frame was written: no room after the end of the log, or one was there already."
            )
        return FaultReport(
            fault=fault,
            number=self._faults.begin(),
            place="the scratch log on this disk",
            steps=tuple(steps),
            acked_lsn=killed.acked_lsn,
            promise=f"SIGKILL shows the crash of a process only: the page cache survives it. With durability "
            f"{killed.load.durability} a killed process loses {kill} of the acknowledged records, a power cut {power}.",
            outcome=outcome,
            frame=cut_frame(storage, outcome.recovery),
        )

    def _complete(self, more: Callable[[FaultReport | None, Job], FaultReport], job: Job) -> None:
        """Replace the newest report by one with more in it. OptionsError without a report."""
        made = more(self.newest, job)
        self.reports = (*self.reports[:-1], made)
        self._check()

    def _check(self) -> None:
        """Assert the invariants between two jobs, on their thread: reports are in order, and few are kept."""
        numbers = [report.number for report in self.reports]
        assert len(numbers) <= REPORTS_MAX and numbers == sorted(set(numbers))
        opened = [report for report in self.reports if report.outcome.refusal is None]
        assert all(report.salvage is None and report.healing is None for report in opened)
        assert all((r.healing is None) == (r.mended is None) for r in self.reports)
        self._faults._check()

    def _measure(self, job: Job) -> None:
        points = sweep_points(
            OPERATIONS_MEASURED, FRAME_RECORDS_MEASURED, CHECKPOINT_AGES, SEGMENT_BYTES_MEASURED
        )
        self.sweep = sweep_recovery(points, rounds=ROUNDS, path=self._folder, step=job.step)


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

    def refused_log(self, report: FaultReport | None) -> Path | None:
        """Return the refused log of a report; None if it was not refused, or another fault was started since."""
        if report is None or report.outcome.refusal is None or report.number != self._number:
            return None
        return self._last

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

    def salvage(self, report: FaultReport | None, job: Job) -> FaultReport:
        """Open a copy of the refused log with policy "salvage"; return the report with the losses."""
        log = self.refused_log(report)
        if report is None or log is None:
            refuse("policy", "salvage", "no refused log to salvage")
        job.step(1, 2, "copying the files")
        copy = _copied(log, "salvaged")
        job.step(2, 2, "opening the copy")
        outcome = opened(FileStorage(str(copy)), replace(OPTIONS, recovery="salvage"))
        return replace(report, salvage=outcome)

    def heal(self, report: FaultReport | None, job: Job) -> FaultReport:
        """Heal a copy of the refused log from the copy that was made before the damage; return the report with it.

        OptionsError without a refused log; MissingExtraError without gRPC; PeerError, StorageError.
        """
        log = self.refused_log(report)
        if report is None or log is None:
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
        outcome = opened(FileStorage(str(copy)), replace(OPTIONS, recovery="absolute"), copy)
        return replace(report, healing=healing, mended=outcome)

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
        inner, storage, log = _written(job)
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
        inner, storage, log = _written(job)
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


def _written(job: Job) -> tuple[CrashingStorage, FaultyStorage, WriteAheadLog]:
    """Return modelled storage, the layer above it that can fail, and an open log with some records."""
    inner = CrashingStorage()
    storage = FaultyStorage(inner)
    log = open_log(storage=storage, options=OPTIONS)
    job.step(1, STEPS, "writing to modelled storage")
    append_until(log, RECORDS_BEFORE)
    return inner, storage, log


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
            with closing(storage.open(cut.kept_as, "read")) as file:
                data = file.read(0, min(cut.bytes, FRAME_BYTES_SHOWN))
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
    with suppress(WalkitError):
        log.close()
