"""The context of one examination: what was read, what it is, what is wrong. Written by the other modules here."""

from __future__ import annotations

from dataclasses import replace

from walkit._text import counted
from walkit.errors import CorruptionError, WalkitError
from walkit.format.durable_slot import DurableSlot
from walkit.format.frame import FrameFault
from walkit.format.manifest import Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.recovery.examine.report import Problem, RangeVerdict, SegmentFacts, SegmentUse, Verdict, worst
from walkit.recovery.findings import SegmentFinding, survey_segment
from walkit.recovery.log_scan import Progress
from walkit.recovery.survey import Region
from walkit.storage.interface import Storage


class StoppedError(Exception):
    """The examination is to end: its caller was interrupted. It never leaves `examine.parallel`."""


class ScanContext:
    """Ranges, segments, problems and notes of one pass over a log, and how far its frames were promised."""

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
        self.ranges: list[RangeVerdict] = []
        self.segments: list[SegmentFacts] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.snapshots_not_read = False
        self.refusal: CorruptionError | None = None
        """Why the decision table refuses the unsealed segments."""
        self.findings: list[SegmentFinding] = []
        """The segments that were surveyed, in the order of the log."""
        self.bytes_done = 0
        self.stopped = False
        """Set by another thread: the examination ends at its next step."""
        self.slot_known = slot.epoch_id in {e.id for e in manifest.lineage}
        self.promised = max(manifest.end.position, slot.position if self.slot_known else 0)
        """How far anything that can be trusted promises the log to be on stable storage."""
        self.end = manifest.end
        """Where the intact log ends, as far as it has been examined."""
        self._progress = progress
        self._bytes_to_do = sum(s.size_bytes for s in manifest.sealed)

    def survey(self, finding: SegmentFinding, until: int | None = None) -> None:
        """Survey a segment, noting progress."""
        before = self.bytes_done
        survey_segment(
            self.storage,
            self.manifest,
            finding,
            until=until,
            bodies=self.bodies or not finding.sealed,
            decode=self.decode,
            reached=lambda read: self.report_progress(before + read),
        )
        self.promised = max(self.promised, finding.promised_position)
        self.findings.append(finding)

    def report_progress(self, bytes_done: int) -> None:
        """Note how many bytes were read, and call `progress`. StoppedError: the examination is to end."""
        self.bytes_done = bytes_done
        if self.stopped:
            raise StoppedError
        if self._progress is not None:
            self._progress(bytes_done, max(bytes_done, self._bytes_to_do))

    def part(self) -> ScanContext:
        """Return a context of the same log for some of its segments; `join` takes what is in it."""
        return ScanContext(
            self.storage, self.manifest, self.slot, live=self.live, bodies=self.bodies, decode=self.decode
        )

    def join(self, part: ScanContext) -> None:
        """Add what another context has of the segments after those of this one, but for its bytes."""
        self.ranges += part.ranges
        self.segments += part.segments
        self.problems += part.problems
        self.notes += part.notes
        self.findings += part.findings
        self.promised = max(self.promised, part.promised)

    # -- writing it down

    def problem(self, error: WalkitError, *, segment: str | None = None, position: int | None = None) -> None:
        """Note a fault."""
        self.problems.append(Problem.of(error, segment=segment, position=position))

    def add(
        self,
        segment: str,
        start_position: int,
        end_position: int,
        verdict: Verdict,
        reason: str = "",
        lsns: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """Note what positions [start_position, end_position) are."""
        first, last = lsns
        if first is not None and last is not None and last < first:
            first = last = None
        self.ranges.append(
            RangeVerdict(
                segment=segment,
                start_position=start_position,
                end_position=end_position,
                verdict=verdict,
                first_lsn=first,
                last_lsn=last,
                reason=reason,
            )
        )

    def add_region(self, segment: str, region: Region, verdict: Verdict, reason: str = "") -> None:
        """Note what a surveyed region is."""
        lsns = region.first_lsn, region.last_lsn
        self.add(segment, region.start_position, region.end_position, verdict, reason, lsns)
        self.ranges[-1] = replace(self.ranges[-1], frames=region.frames, records=region.records)

    def lose(self, record: SegmentRecord, verdict: Verdict, error: WalkitError) -> None:
        """Note a sealed segment of which nothing can be read."""
        self.problem(error, segment=record.name, position=record.start_position)
        lsns = record.first_lsn, record.last_lsn
        self.add(record.name, record.start_position, record.end_position, verdict, str(error), lsns)

    def fault(self, segment: str, region: Region, last_lost_lsn: int | None = None) -> None:
        """Note damage of what was promised: a problem and its range.

        A newer format and a place that cannot be read say so themselves; the rest is corruption. `last_lost_lsn` stands
        in where the damage leaves open how far it reaches.
        """
        fault, error, header = region.fault or FrameFault.END, region.error, region.at_fault
        verdict = Verdict.UNKNOWN
        if error is None or isinstance(error, CorruptionError):
            verdict = Verdict.CORRUPT
            what = fault.value if error is None else str(error)
            wanted = (
                "an intact frame"
                if region.first_lsn is None
                else f"an intact frame with LSN {region.first_lsn}"
            )
            claim = "" if header is None else f" (LSN {header.first_lsn}, position {header.position})"
            error = CorruptionError(
                f"segment {segment} is damaged at position {region.start_position:,}: {what}. "
                f"Frames were promised up to position {self.promised:,}",
                segment=segment,
                position=region.start_position,
                expected=wanted,
                found=fault.name + claim,
                first_lost_lsn=region.first_lsn,
            )
        self.problem(error, segment=segment, position=region.start_position)
        last = last_lost_lsn if region.last_lsn is None else region.last_lsn
        reason = str(error) if verdict is Verdict.UNKNOWN else fault.value
        self.add_region(segment, replace(region, last_lsn=last), verdict, reason)

    def add_rest(self, finding: SegmentFinding, end_position: int) -> None:
        """Note what stands after the end of a segment: zeros, or stale bytes that the next opening sets aside."""
        assert finding.header is not None
        size, offset = finding.file_bytes, finding.header.offset_of(end_position)
        until = max(finding.nonzero_until, offset)
        at = end_position + until - offset
        if at > end_position:
            self.add(finding.name, end_position, at, Verdict.STALE, "bytes after the end of the segment")
            self.notes.append(
                f"segment {finding.name}: {counted(until - offset, 'byte')} after its end: not of the log; "
                "the next opening keeps them in lost+found"
            )
        if size > until:
            self.add(finding.name, at, at + size - until, Verdict.UNUSED)

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
