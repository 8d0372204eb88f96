"""The context of one examination: what was read, what the judge says of it, and what else is wrong."""

from __future__ import annotations

from collections.abc import Iterable

from walkit.errors import WalkitError
from walkit.format.durable_slot import DurableSlot
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.recovery.examine.report import Problem, RangeVerdict, SegmentFacts, SegmentUse, Verdict, worst
from walkit.recovery.findings import SegmentFinding
from walkit.recovery.judge import Judge, Row
from walkit.recovery.log_scan import Progress, ProgressCounter
from walkit.storage.interface import Storage


class ScanContext:
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
        self.counter = ProgressCounter(progress, sum(s.size_bytes for s in manifest.sealed))

    @property
    def end(self) -> LogEnd:
        """Where the intact log ends, as far as it has been judged."""
        return self.judge.end

    def found(self, finding: SegmentFinding) -> None:
        """Note the findings of a segment, before it is judged."""
        self.judge.promised = max(self.judge.promised, finding.promised_position)
        if finding.span is not None and finding.header is not None:
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
