"""Policy "salvage": what cannot be read is given up and recorded, and every intact frame stays readable.

Every frame is read, those of sealed segments too. What lies between intact frames, and was promised, becomes a lost
range of the manifest, with its LSNs, the segment and the reason; so readers, `verify`, replicas and Spark know it from
silent loss, and its LSNs are not given again. Nothing is written into a segment: a damaged one stays as it is, with the
range beside it; only one with a damaged header is replaced by a copy with a header made anew (`walkit.recovery.apply`).

This module decides; it changes nothing. It shares the survey, the table and the assembly of the log with `plan`, and
goes over the segments in a loop of its own: `make_plan` ends at the first refusal, takes the unsealed segments as the
manifest names them, and the sealed ones as they are; this refuses nothing, places segments by their frames, lets a
later one promise what is missing before, and gives up parts of sealed ones. One loop for both would
ask for the policy at each step.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace

from walkit.errors import CorruptionError, FormatVersionError, StorageError
from walkit.format.layout import ALIGNMENT_DIRECT, SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import Gap, LogEnd, LostRecord, Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.recovery.decision import Decision, Facts, decide
from walkit.recovery.log_builder import LogBuilder, PlanStep, RecoveryPlan, decide_and_seal, lost_range
from walkit.recovery.log_scan import (
    LogFindings,
    Progress,
    SegmentFinding,
    follows_exactly,
    header_after,
    inspect_segment,
    next_start,
    start_of,
    survey_segment,
)
from walkit.recovery.survey import PASSING_ERRNOS, Region
from walkit.segments.identity import check_identity
from walkit.storage.interface import Storage


def make_salvage_plan(
    storage: Storage, findings: LogFindings, progress: Progress | None = None
) -> RecoveryPlan:
    """Decide what to keep and what to give up. `findings` tells the manifest, the durable slot and other files.

    Raises FormatVersionError where a segment or frame is of a newer format, CorruptionError where segments stand under
    each other's names (nothing of them is lost), and StorageError for an error that may pass; changes nothing.
    """
    survey_all(storage, findings, progress)
    return _Salvage(findings, LogBuilder(findings.manifest, findings.promised_position)).plan()


def survey_all(storage: Storage, findings: LogFindings, progress: Progress | None = None) -> None:
    """Look at everything, because a later frame may promise an earlier one."""
    manifest = findings.manifest
    found = [salvaged_segment(storage, manifest, record) for record in manifest.segments]
    refuse_misnamed(manifest, found)
    findings.sealed = [f for f in found if f.sealed]
    findings.unsealed = [f for f in found if not f.sealed]
    placed = _placed(findings.unsealed)
    total, done = sum(f.file_bytes for f in found), 0
    for finding in [*findings.sealed, *placed]:
        if finding.header is not None:
            later = [] if finding.sealed else placed[placed.index(finding) + 1 :]
            survey_salvaged(storage, manifest, finding, next_start(later, finding.header.start_position))
        done += finding.file_bytes
        if progress is not None:
            progress(done, total)


def salvaged_segment(storage: Storage, manifest: Manifest, record: SegmentRecord) -> SegmentFinding:
    """Inspect a segment; where its header is damaged, one that fits its intact frames takes its place."""
    finding = inspect_segment(storage, manifest, record, tolerant=True)
    error = finding.error
    if isinstance(error, FormatVersionError) or (
        isinstance(error, StorageError) and error.errno in PASSING_ERRNOS
    ):
        raise error
    if finding.header is None and finding.fitting is not None:
        finding.header, finding.mended = finding.fitting, True
    return finding


def survey_salvaged(storage: Storage, manifest: Manifest, finding: SegmentFinding, until: int | None) -> None:
    """Note every region of a segment with a header. FormatVersionError where a frame is of a newer format."""
    survey_segment(storage, manifest, finding, until=until, decode=True, tolerant=True)
    for region in finding.regions:
        if isinstance(region.error, FormatVersionError):
            raise region.error
    finding.frames = sum(r.frames for r in finding.regions)
    finding.records = sum(r.records for r in finding.regions)
    finding.bytes_scanned = sum(r.end_position - r.start_position for r in finding.regions)


def refuse_misnamed(manifest: Manifest, found: list[SegmentFinding]) -> None:
    """Refuse where a segment stands whole under another name: nothing of it is lost, and a person can rename it."""
    whole = {f.name for f in found if f.header is not None and not f.mended}
    absent = {f.name: f.record for f in found if f.name not in whole}
    for finding in found:
        other = finding.other
        record = None if other is None or other.name == finding.name else absent.get(other.name)
        if other is not None and record is not None and _is_ours(manifest, record, other):
            raise CorruptionError(
                f"segment {finding.name} holds segment {other.name} of this log, which is not in its own place: "
                "nothing of it is lost. Give the files their right names; nothing was changed",
                segment=finding.name,
                position=finding.record.start_position,
                expected=finding.name,
                found=other.name,
            )


def _is_ours(manifest: Manifest, record: SegmentRecord, header: SegmentHeader) -> bool:
    try:
        check_identity(manifest, record, header)
    except CorruptionError:
        return False
    return True


def _placed(unsealed: list[SegmentFinding]) -> list[SegmentFinding]:
    """Return the unsealed segments with a header, in the order of the log."""
    begun = [(f.header.start_position, f.record.number, f) for f in unsealed if f.header is not None]
    return [f for _, _, f in sorted(begun, key=lambda b: b[:2])]


@dataclass(slots=True)
class _Salvage:
    findings: LogFindings
    log: LogBuilder
    steps: list[PlanStep] = field(default_factory=list)
    unplaced: list[SegmentFinding] = field(default_factory=list)
    """Unsealed segments of which nothing can be placed: what is missing elsewhere may have been in them."""
    short: set[str] = field(default_factory=set)
    """Unsealed segments whose file was cut short, where the log does not go on after their frames."""

    def plan(self) -> RecoveryPlan:
        """Put the log together."""
        findings, log, manifest = self.findings, self.log, self.findings.manifest
        placed = _placed(findings.unsealed)
        self.unplaced = [f for f in findings.unsealed if f.header is None]
        self._suspect_ends(placed)
        log.gaps = [*manifest.holes, *manifest.lost]
        before: SegmentRecord | None = None
        kept = []
        for finding in findings.sealed:
            if self._keep_sealed(finding, before):
                kept.append(finding)
            before = finding.record
        log.end = manifest.end
        for finding in placed:
            self._keep_unsealed(finding, last=finding is placed[-1])
        for finding in self.unplaced:
            self._give_up(finding)
        self._end_as_promised()
        findings.sealed = kept
        return RecoveryPlan(findings, "salvage", tuple(self.steps), log.manifest_after())

    def _suspect_ends(self, placed: list[SegmentFinding]) -> None:
        """Take what a file has lost at its end for promised: no crash shortens it, and frames may have stood there."""
        log, end = self.log, self.findings.manifest.end
        for index, finding in enumerate(placed):
            header, later = finding.header, placed[index + 1 :]
            assert header is not None
            following = later[0].header if later else None
            last = next((r.after for r in reversed(finding.regions) if r.intact), None)
            end = last or end
            if not finding.cut_short or (following is not None and follows_exactly(following, end)):
                continue
            reserved_end = header.start_position + finding.record.reserved_bytes - SEGMENT_HEADER_BYTES
            until = next_start(later, header.start_position)
            log.promised = max(log.promised, reserved_end if until is None else min(reserved_end, until))
            self.short.add(finding.name)
        self.short |= {f.name for f in self.unplaced if f.cut_short}

    # -- sealed segments: the manifest says where they end

    def _keep_sealed(self, finding: SegmentFinding, before: SegmentRecord | None) -> bool:
        """Record what is lost of a sealed segment; False where it leaves the log."""
        record, log = finding.record, self.log
        lost, regions = self._losses(finding)
        frames, records = sum(r.frames for r in regions), sum(r.records for r in regions)
        if not lost and not finding.mended:
            log.records.append(record)
            return True
        facts = Facts(
            header_right=finding.header is not None and not finding.mended,
            follows=True,
            bytes_after=finding.unopenable or finding.header is not None or finding.nonzero_until > 0,
            promised_beyond=True,
            keeps_frames=frames > 0,
            salvage=True,
        )
        row = decide(facts)
        if row.decision is Decision.LOSE:
            start = LogEnd(last_lsn=record.first_lsn - 1, position=record.start_position)
            if before is not None:
                start = LogEnd(last_lsn=before.last_lsn, position=before.end_position)
            for gap in sorted(log.gaps, key=lambda g: g.start_position):
                if gap.start_position == start.position and gap.end_position <= record.start_position:
                    start = LogEnd(last_lsn=gap.last_lsn, position=gap.end_position)
            inside = self.findings.manifest.gaps_of(record)
            log.gaps = [g for g in log.gaps if g not in inside]
            log.gaps.append(lost_range(start, finding.end, record.name, finding.reason))
            self.steps.append(PlanStep(finding, row, facts, None))
            return False
        starts = [n.start_position for n in lost]

        def taken_in(gap: Gap) -> bool:
            at = bisect_right(starts, gap.start_position) - 1
            return at >= 0 and gap.start_position < lost[at].end_position

        log.gaps = [*(g for g in log.gaps if not taken_in(g)), *lost]
        if finding.mended and finding.header is not None:
            finding.header = self._refitted(finding, finding.header, before)
        kept = record._replace(frames=frames, records=records)
        log.records.append(kept)
        self.steps.append(PlanStep(finding, row, facts, kept))
        return True

    def _refitted(
        self, finding: SegmentFinding, header: SegmentHeader, before: SegmentRecord | None
    ) -> SegmentHeader:
        """Return the header made anew of a sealed segment, with what only its neighbour and its last frame know."""
        record = finding.record
        previous_end = (
            header.start_position if before is None else self.findings.manifest.gap_after(before.end_position)
        )
        last = next((r.after for r in reversed(finding.regions) if r.intact), LogEnd())
        own = last.chain if last.position == record.end_position else 0
        compacted = bool(header.flags & SegmentFlag.COMPACTED)
        return replace(
            header,
            previous_end=min(previous_end, header.start_position),
            own_end_chain=own if compacted else 0,
        )

    def _losses(self, finding: SegmentFinding) -> tuple[list[LostRecord], list[Region]]:
        """Return what of a sealed segment lies between its intact frames and outside them, and those that are left."""
        record, lost, left = finding.record, [], []
        at = LogEnd(last_lsn=record.first_lsn - 1, position=record.start_position)
        reason = ""
        for region in finding.regions:
            if region.gap is None and (not region.intact or region.before.last_lsn < at.last_lsn):
                reason = finding.why(region)
                continue
            before = region.before if region.gap is None else replace(region.before, chain=at.chain)
            if before.position > at.position:
                lost.append(lost_range(at, before, record.name, reason or finding.reason))
                reason = ""
            left += [region] if region.intact else []
            at = region.after
        if at.position < record.end_position:
            reason = reason or finding.reason or "the file ends before its frames do"
            lost.append(lost_range(at, finding.end, record.name, reason))
        return lost, left

    # -- unsealed segments: their frames say where they end

    def _keep_unsealed(self, finding: SegmentFinding, *, last: bool) -> None:
        log = self.log
        header = finding.header
        assert header is not None
        if finding.mended:
            header = header_after(log.end, header, finding.regions)
        finding.header = header
        follows = follows_exactly(header, log.end)
        fits = follows or (header.previous_end > log.end.position and header.first_lsn > log.end.last_lsn)
        pieces = _that_fit(finding.regions, log.end.last_lsn) if fits else []
        ahead = follows and pieces and pieces[0].start_position == header.start_position
        finding.follows = follows
        finding.end = pieces[0].after if ahead else start_of(header)
        reach = pieces[-1].end_position if pieces else log.end.position
        facts = Facts(
            header_right=not finding.mended,
            follows=follows,
            bytes_after=finding.mended or finding.nonzero_until > (finding.end_offset if follows else 0),
            promised_beyond=last and reach < log.promised,
            keeps_frames=bool(pieces),
            salvage=True,
            cut_short=finding.name in self.short,
        )
        self.steps.append(decide_and_seal(log, finding, facts, pieces, self._missing()))

    def _missing(self) -> tuple[str, str]:
        """Return the segment and the reason of what is missing between the log so far and the next segment."""
        missing = next((f for f in self.unplaced if f.nonzero_until or f.unopenable), None)
        if missing is not None:
            return missing.name, missing.reason
        name = self.log.records[-1].name if self.log.records else ""
        return name, "the frames after its last intact one are missing"

    def _give_up(self, finding: SegmentFinding) -> None:
        """Decide on an unsealed segment without a header, in which nothing can be placed."""
        finding.end = self.log.end
        facts = Facts(
            bytes_after=finding.unopenable or finding.nonzero_until > 0,
            promised_beyond=self.log.end.position < self.log.promised,
            salvage=True,
            cut_short=finding.name in self.short,
        )
        self.steps.append(decide_and_seal(self.log, finding, facts, []))

    # -- the end

    def _end_as_promised(self) -> None:
        """Record as lost what was promised after the last intact frame, so that its LSNs are not given again."""
        manifest, log, slot = self.findings.manifest, self.log, self.findings.slot
        end = log.end
        last_lsn = max(manifest.vouched_lsn, end.last_lsn)
        for finding in self.unplaced:
            if finding.name in self.short:  # it began after all that is there, at the latest
                room = finding.record.reserved_bytes - SEGMENT_HEADER_BYTES
                log.promised = max(log.promised, end.position + room)
        if end.position >= log.promised and last_lsn == end.last_lsn:
            return
        position = max(log.promised, end.position + (ALIGNMENT_DIRECT if log.promised <= end.position else 0))
        lsn = slot.lsn if end.position < self.findings.slot_position <= position else 0
        to = LogEnd(last_lsn=max(last_lsn, lsn), position=position, chain=end.chain)
        named = next((f.name for f in self.unplaced), log.records[-1].name if log.records else "")
        reason = "the log ends before what was promised"
        if self.short:
            named = max(self.short)
            reason = (
                "the file was cut short: it was larger before it was used, and records may have stood there"
            )
        log.gaps.append(lost_range(end, to, named, reason))
        log.end = to


def _that_fit(regions: list[Region], last_lsn: int) -> list[Region]:
    """Return the intact regions whose LSNs grow; what says otherwise is of another past."""
    fitting = []
    for region in regions:
        if region.intact and region.before.last_lsn >= last_lsn:
            fitting.append(region)
            last_lsn = region.after.last_lsn
    return fitting
