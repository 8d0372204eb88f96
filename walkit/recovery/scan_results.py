"""Reading the segments of a log for the judge, and noting its rows: the sealed ones, then those after the last seal.

Sealed segments are read side by side if their frames are large: checksums and reads of these release the interpreter's
lock. Small frames are the interpreter's work, which more threads only slow down. Memory holds the findings, one region
for each stretch of intact frames.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import replace

from walkit.errors import CorruptionError, FormatVersionError, StorageError, WalkitError
from walkit.format.durable_slot import DurableSlot
from walkit.format.layout import FRAME_BYTES_LIMIT
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.recovery.judge import Judge, Row
from walkit.recovery.log_scan import (
    LogFindings,
    Progress,
    ProgressCounter,
    Reached,
    SegmentFinding,
    inspect_segment,
    link_unsealed,
    next_start,
    sealed_error,
    survey_segment,
)
from walkit.recovery.plan import PlanStep, make_plan, policy_for
from walkit.recovery.scan_report import Problem, RangeVerdict, SegmentFacts, SegmentUse, Verdict, worst
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import Storage


class ScanResults:
    """Ranges, segments, problems and notes of one pass over a log."""

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        slot: DurableSlot,
        *,
        live: bool,
        bodies: bool,
        decode: bool,
        progress: Progress | None = None,
    ) -> None:
        self.storage, self.manifest, self.slot = storage, manifest, slot
        self.live, self.bodies, self.decode = live, bodies, decode
        self.judge = Judge(manifest, slot, live=live, bodies=bodies)
        self.ranges: list[RangeVerdict] = []
        self.segments: list[SegmentFacts] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.snapshots_not_read = False
        self.findings: list[SegmentFinding] = []
        """The segments that were surveyed, in the order of the log."""
        self.newest_manifest = (0, "")
        """The newest manifest that a segment's header promises, and the segment's name."""
        self.counter = ProgressCounter(progress, sum(s.size_bytes for s in manifest.sealed))

    @property
    def end(self) -> LogEnd:
        """Where the intact log ends, as far as it has been judged."""
        return self.judge.end

    def found(self, finding: SegmentFinding) -> None:
        """Note the findings of a segment, before it is judged."""
        self.judge.promised = max(self.judge.promised, finding.promised_position)
        if finding.header is not None:
            promise = finding.header.manifest_generation, finding.name
            self.newest_manifest = max(self.newest_manifest, promise)
            if finding.span is not None:
                self.findings.append(finding)

    def take(self, rows: Iterable[Row]) -> list[RangeVerdict]:
        """Note the rows of a judgement; return their ranges."""
        begun = len(self.ranges)
        for row in rows:
            if isinstance(row, RangeVerdict):
                self.ranges.append(row)
            elif isinstance(row, Problem):
                self.problems.append(row)
            else:
                self.notes.append(row)
        return self.ranges[begun:]

    def problem(self, error: WalkitError, *, segment: str | None = None, position: int | None = None) -> None:
        """Note a fault."""
        self.problems.append(Problem.of(error, segment=segment, position=position))

    def add_segment(
        self,
        record: SegmentRecord,
        use: SegmentUse,
        ranges: list[RangeVerdict],
        *,
        file_bytes: int,
        header: SegmentHeader | None = None,
        verdict: Verdict | None = None,
        name: str = "",
    ) -> None:
        """Note the facts of a segment, from its ranges. `name` is that of its file where the record's is not."""
        held = [r for r in ranges if r.frames]
        lsns = [lsn for r in held for lsn in (r.first_lsn, r.last_lsn) if lsn is not None]
        start = record.start_position if header is None else header.start_position
        self.segments.append(
            SegmentFacts(
                name=name or record.name,
                state=use,
                epoch=record.epoch,
                start_position=start,
                end_position=record.end_position or max((r.end_position for r in held), default=start),
                first_lsn=record.first_lsn or min(lsns, default=None),
                last_lsn=record.last_lsn or max(lsns, default=None),
                frames=sum(r.frames for r in held),
                records=sum(r.records for r in held),
                file_bytes=file_bytes,
                created_us=record.created_us or (0 if header is None else header.created_us),
                verdict=verdict or worst(ranges),
            )
        )


WORKERS_MAX = 4
FRAME_BYTES_MIN = 32 * 1024
"""Mean size of frames from which on segments are read side by side; below, CRC-32C holds the lock."""
PROGRESS_S = 0.1


class StoppedError(Exception):
    """The caller was interrupted. It never leaves this module."""


def examine_segments(results: ScanResults) -> CorruptionError | None:
    """Read and judge all segments; return why the decision table refuses those after the last seal."""
    judge = results.judge
    with closing(_sealed(results)) as found:
        for finding in found:
            record = finding.record
            results.take(judge.gaps(record.name, record.start_position))
            if not finding.present and results.live and _was_trimmed(results, record):
                results.notes.append(f"segment {record.name} was trimmed while the log was read")
                continue
            results.found(finding)
            error = sealed_error(results.storage, results.manifest, finding)
            ranges = results.take(judge.sealed(finding, error))
            results.add_segment(record, "sealed", ranges, file_bytes=finding.file_bytes)
    results.take(judge.gaps("", results.manifest.end.position + 1))
    unsealed = _unsealed(results)
    steps, keeps, refusal = _steps(results, unsealed)
    for judged, rows in judge.unsealed(unsealed, steps, keeps=keeps):
        ranges = results.take(rows)
        if judged is not None:
            used = judged.header is not None or judged.error is not None
            results.add_segment(
                judged.record,
                "open" if used else "prepared",
                ranges,
                file_bytes=judged.file_bytes,
                header=judged.header,
                verdict=None if used else Verdict.UNUSED,
            )
    return refusal


def _was_trimmed(results: ScanResults, record: SegmentRecord) -> bool:
    return all(s.number != record.number for s in load_manifest(results.storage).segments)


def _sealed(results: ScanResults) -> Generator[SegmentFinding]:
    """Yield the findings of the sealed segments. The calling thread reports progress; its interrupt ends the others."""
    records, counter = results.manifest.sealed, results.counter
    workers = min(WORKERS_MAX, os.cpu_count() or 1, len(records))
    size, frames = sum(r.size_bytes for r in records), sum(r.frames for r in records)
    if workers < 2 or not results.bodies or size < frames * FRAME_BYTES_MIN:
        for record in records:
            yield read_sealed(results, record, counter.within_segment())
        return
    done, stopped = [0] * len(records), False

    def read(index: int) -> SegmentFinding:
        def reached(size_bytes: int) -> None:
            done[index] = size_bytes
            if stopped:
                raise StoppedError

        return read_sealed(results, records[index], reached)

    with ThreadPoolExecutor(workers, "walkit-verify") as pool:
        try:
            for future in [pool.submit(read, index) for index in range(len(records))]:
                while not wait([future], PROGRESS_S).done:
                    counter.report(sum(done))
                yield future.result()
        except BaseException:
            stopped = True
            pool.shutdown(cancel_futures=True)
            raise
    counter.report(sum(done))


def read_sealed(results: ScanResults, record: SegmentRecord, reached: Reached) -> SegmentFinding:
    """Read one sealed segment. The frames after a damaged header are read by one that fits the intact ones."""
    finding = inspect_segment(results.storage, results.manifest, record)
    if finding.header is None and finding.fitting is not None:
        # A damaged frame may be larger than every intact one.
        finding.header, finding.mended = replace(finding.fitting, frame_bytes_max=FRAME_BYTES_LIMIT), True
    _survey(results, finding, None, reached)
    return finding


def _survey(results: ScanResults, finding: SegmentFinding, until: int | None, reached: Reached) -> None:
    if finding.header is None:
        return
    try:
        survey_segment(
            results.storage,
            results.manifest,
            finding,
            until=until,
            bodies=results.bodies or not finding.sealed,
            decode=results.decode,
            reached=reached,
        )
    except StorageError as error:
        finding.header, finding.error = None, error


def _unsealed(results: ScanResults) -> list[SegmentFinding]:
    """Read every segment after the last seal, because a later frame may promise an earlier one."""
    found = [
        inspect_segment(results.storage, results.manifest, record, live=results.live)
        for record in results.manifest.unsealed
    ]
    for index, finding in enumerate(found):
        # Intact frames after a damaged header promise, too.
        results.found(finding)
        if finding.header is not None:
            limits = [
                next_start(found[index + 1 :], finding.header.start_position),
                results.judge.promised if results.live else None,
            ]
            until = min((p for p in limits if p is not None), default=None)
            _survey(results, finding, until, results.counter.within_segment())
            results.found(finding)
    return found


def _steps(
    results: ScanResults, found: list[SegmentFinding]
) -> tuple[Sequence[PlanStep | None], bool, CorruptionError | None]:
    """Return the step of the next opening for each segment, whether it keeps holes, and its refusal.

    The steps are None if it refuses or a writer lives. A frame with right checksums that cannot be decoded counts as
    refused: the next opening keeps it.
    """
    findings = LogFindings(manifest=results.manifest, slot=results.slot, unsealed=found)
    keeps = policy_for(findings, "prefix") == "holes"
    none = [None] * len(found)
    if results.live:
        return none, keeps, None
    with suppress(StorageError):  # the segment that cannot be read has a problem of its own
        link_unsealed(results.storage, findings)
    for finding in found:
        first = finding.damage if finding.follows else None
        damaged = finding.regions if keeps else [r for r in (first,) if r is not None]
        refused = isinstance(finding.error, FormatVersionError | StorageError)
        if refused or any(region.error for region in damaged):
            return none, keeps, None
    try:
        return make_plan(findings, "prefix").steps, keeps, None
    except CorruptionError as refusal:
        return none, keeps, refusal
