"""From the findings of a scan to a recovery plan, by any policy. `walkit.recovery.apply` applies it.

The decision is a table (`walkit.recovery.decision`). One loop asks it for each segment in the order of the log: first
the sealed ones, which the manifest vouches for, so that any damage there is corruption, then those after the last seal.

Policies: "prefix" cuts the tail that nothing promised, "holes" keeps intact frames after a hole in it, "absolute"
refuses any damage. Frames after a hole may have been acknowledged if the log acknowledges in completion order:
there "prefix" means "holes". These policies take the segments as the manifest names them.

Policy "salvage" gives up and records unreadable parts, and every intact frame stays readable. Every frame is read,
those of sealed segments too. A promised range between intact frames becomes a lost range of the manifest,
with its LSNs, the segment and the reason; so readers, `verify`, replicas and Spark know it from silent loss, and its
LSNs are not given again. Nothing is written into a segment: a damaged one stays as it is, with the range beside it;
only one with a damaged header is replaced by a copy with a rebuilt header.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from walkit._internal.text import counted
from walkit.errors import CorruptionError, SegmentMissingError
from walkit.events import EventSink
from walkit.format.durable_slot import DurableSlot
from walkit.format.frame import FrameFault
from walkit.format.layout import ALIGNMENT_DIRECT, SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import (
    Gap,
    HoleRecord,
    LogEnd,
    LostRecord,
    Manifest,
    SegmentRecord,
    sealed_record,
    segment_order,
)
from walkit.format.segment import SegmentHeader
from walkit.recovery.decision import SEALING, Decision, Facts, Row, decide
from walkit.recovery.log_scan import (
    LogFindings,
    Progress,
    SegmentFinding,
    follows_exactly,
    header_after,
    next_start,
    placed,
    scan_folder,
    scan_log,
    start_of,
    survey_all,
)
from walkit.recovery.report import Cut, RecoveryReport, SegmentDecision
from walkit.recovery.survey import Region
from walkit.segments.manifest_store import LOST_FOLDER
from walkit.storage.interface import Storage

Weighed = tuple[Facts, list[Region]]
"""The facts of an unsealed segment, and the regions of it that stay in the log if the decision keeps any."""


def plan_recovery(
    storage: Storage,
    manifest: Manifest,
    slot: DurableSlot,
    policy: str,
    *,
    deep: bool = False,
    progress: Progress | None = None,
) -> RecoveryPlan:
    """Look at a log and decide by this policy; `deep` reads the frames of sealed segments, too. Changes nothing.

    Raises the errors of `scan_log`, `survey_all` and `make_plan`.
    """
    if policy == "salvage":
        findings = scan_folder(storage, manifest, slot, salvage=True)
        survey_all(storage, findings, progress)
    else:
        findings = scan_log(storage, manifest, slot, deep=deep or policy == "absolute", progress=progress)
    return make_plan(findings, policy)


def make_plan(findings: LogFindings, policy: str) -> RecoveryPlan:
    """Decide on each segment. CorruptionError or SegmentMissingError if the table refuses; changes nothing."""
    return _Planner(findings, policy_for(findings, policy)).plan()


class _Planner:
    """Decides on the segments of one log, one after the other, and puts together the log that stays."""

    def __init__(self, findings: LogFindings, policy: str) -> None:
        manifest = findings.manifest
        self.findings, self.policy, self.salvage = findings, policy, policy == "salvage"
        self.log = LogBuilder(manifest, findings.promised_position)
        self.steps: list[PlanStep] = []
        self.unsealed = placed(findings.unsealed) if self.salvage else findings.unsealed
        self.headless = [f for f in findings.unsealed if f.header is None]
        """Segments of which nothing can be placed: records missing elsewhere may have been in them."""
        self.short = names_cut_short(self.unsealed)
        """Segments whose file is absent or cut short, if the log does not continue after their frames."""
        self.whole = True
        """Whether the log has no hole so far."""
        self.stopped = False
        """Whether the log without holes ends in a segment that was decided on."""
        self.unlocated: SegmentFinding | None = None
        """A used segment whose header is damaged, so the position of its frames is unknown."""

    def plan(self) -> RecoveryPlan:
        """Decide on each segment in the order of the log."""
        findings = self.findings
        manifest, log, unsealed = findings.manifest, self.log, self.unsealed
        if self.salvage:
            self._suspect_ends()
        before: SegmentRecord | None = None
        for finding in findings.sealed:
            self._decide_sealed(finding, before)
            before = finding.record
        log.end = manifest.end
        for index, finding in enumerate(unsealed):
            later = unsealed[index + 1 :]
            weighed = self._by_frames(finding, later) if self.salvage else self._by_promises(finding, later)
            self._decide(finding, *weighed)
        if self.salvage:
            for finding in self.headless:
                self._decide(finding, *self._without_place(finding))
            self._end_as_promised()
            lost = {step.finding.name for step in self.steps if step.sealed is None}
            findings.sealed = [f for f in findings.sealed if f.name not in lost]
        else:
            _refuse_missing(manifest, log.end, log.promised)
        return RecoveryPlan(findings, self.policy, tuple(self.steps), log.manifest_after())

    def _decide(self, finding: SegmentFinding, facts: Facts, pieces: list[Region]) -> None:
        """Decide on an unsealed segment by the table, and add these intact regions to the log if it keeps any."""
        log, row = self.log, decide(facts)
        if row.decision is Decision.REFUSE:
            reason = f"frames were promised up to position {log.promised:,}"
            raise corruption(finding, reason, end=log.end, promised=log.promised)
        if row.decision is Decision.REFUSE_TAIL:
            reason = "the tail is damaged, and recovery='absolute' refuses any damage"
            raise corruption(finding, reason, end=log.end)
        if row.decision is Decision.REFUSE_SHORT:
            raise missing_end(finding, finding.end if facts.follows else log.end)
        sealed = log.seal(finding, pieces, self._missing()) if row.decision in SEALING else None
        self.steps.append(PlanStep(finding, row, facts, sealed))
        if row.decision is Decision.CUT_WHOLE and finding.error is not None:
            self.unlocated = self.unlocated or finding
        cut = row.decision is Decision.CUT and finding.continued
        self.whole = self.whole and (cut or row.decision in (Decision.SEAL, Decision.DROP))

    def _missing(self) -> tuple[str, str]:
        """Return the segment and the reason of the range that is missing before the next segment."""
        missing = next((f for f in self.headless if f.nonzero_until or f.unopenable), None)
        if missing is not None:
            return missing.name, missing.reason
        name = self.log.records[-1].name if self.log.records else ""
        return name, "the frames after its last intact one are missing"

    # -- sealed segments: the manifest says where they end

    def _decide_sealed(self, finding: SegmentFinding, before: SegmentRecord | None) -> None:
        """Decide on a sealed segment: it stays as it is, or is refused, or the losses in it are recorded."""
        record, header, log = finding.record, finding.header, self.log
        lost, held = _losses(finding)
        frames, records = sum(r.frames for r in held), sum(r.records for r in held)
        otherwise = not self.salvage and _ends_otherwise(finding)
        if not lost and not finding.header_rebuilt and not otherwise:
            return
        facts = Facts(
            header_right=header is not None and not finding.header_rebuilt,
            follows=True,
            bytes_after=finding.unopenable or header is not None or finding.nonzero_until > 0,
            promised_beyond=True,
            keeps_frames=frames > 0,
            salvage=self.salvage,
            not_read=header is not None and finding.span is None,
        )
        row = decide(facts)
        if row.decision is Decision.VOUCHED:
            return
        if row.decision is Decision.REFUSE:
            end = (
                LogEnd(last_lsn=lost[0].first_lsn - 1, position=lost[0].start_position)
                if lost
                else finding.end
            )
            raise corruption(finding, "a sealed segment is damaged", end=end)
        if row.decision is Decision.LOSE:
            inside = self.findings.manifest.gaps_of(record)
            gap = lost_range(self._begin_of(record, before), finding.end, record.name, finding.reason)
            log.gaps = [*(g for g in log.gaps if g not in inside), gap]
            log.records.remove(record)
            self.steps.append(PlanStep(finding, row, facts, None))
            return
        starts = [n.start_position for n in lost]

        def taken_in(gap: Gap) -> bool:
            at = bisect_right(starts, gap.start_position) - 1
            return at >= 0 and gap.start_position < lost[at].end_position

        log.gaps = [*(g for g in log.gaps if not taken_in(g)), *lost]
        if finding.header_rebuilt and header is not None:
            finding.header = self._refitted(finding, header, before)
        kept = record._replace(frames=frames, records=records)
        log.records[log.records.index(record)] = kept
        self.steps.append(PlanStep(finding, row, facts, kept))

    def _begin_of(self, record: SegmentRecord, before: SegmentRecord | None) -> LogEnd:
        """Return where the log before a sealed segment ends, gaps included."""
        if before is None:
            start = LogEnd(last_lsn=record.first_lsn - 1, position=record.start_position)
        else:
            start = LogEnd(last_lsn=before.last_lsn, position=before.end_position)
        for gap in sorted(self.log.gaps, key=lambda g: g.start_position):
            if gap.start_position == start.position and gap.end_position <= record.start_position:
                start = LogEnd(last_lsn=gap.last_lsn, position=gap.end_position)
        return start

    def _refitted(
        self, finding: SegmentFinding, header: SegmentHeader, before: SegmentRecord | None
    ) -> SegmentHeader:
        """Return the rebuilt header of a sealed segment, with facts that only its neighbour and its last frame have."""
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

    # -- unsealed segments by their promises: they are taken as the manifest names them

    def _by_promises(self, finding: SegmentFinding, later: list[SegmentFinding]) -> Weighed:
        """Return the facts of a segment, and its frames that stay. CorruptionError for a state that no crash leaves."""
        log, header = self.log, finding.header
        if finding.other is not None and finding.other.name == finding.name:
            # Whole, and of another log or epoch: another writer's acknowledged frames are not cut.
            reason = "another writer made it; `walkit repair --policy salvage` makes a log of each history that is here"
            raise corruption(finding, reason, end=log.end)
        in_order = header is not None and finding.follows
        follows = in_order and self.whole
        kept = self._kept(finding, follows) if self.policy == "holes" else []
        stops = not in_order or finding.ends_in_bytes or not later
        end = finding.end_position if in_order else log.end.position
        facts = Facts(
            header_right=header is not None,
            follows=follows,
            bytes_after=finding.nonzero_until > (finding.end_offset if follows else 0),
            promised_beyond=stops and not self.stopped and end < log.promised,
            keeps_frames=bool(kept),
            absolute=self.policy == "absolute",
            cut_short=finding.name in self.short,
        )
        self.stopped = self.stopped or stops
        own = finding.regions[:1] if follows and finding.frames else []
        return facts, [*own, *kept]

    def _kept(self, finding: SegmentFinding, follows: bool) -> list[Region]:
        """Return the intact frames after a hole. CorruptionError if one does not fit the frames before it.

        No crash leaves such a frame, and an acknowledged record must be neither cut nor moved.
        """
        header, end, unlocated = finding.header, self.log.end, self.unlocated
        if header is None or not finding.beyond:
            return []
        if unlocated is not None:
            reason = "its header was on stable storage before any frame after it was written"
            raise corruption(unlocated, reason, end=end)
        fits = follows or _fits(end, replace(start_of(header), position=header.previous_end))
        end = finding.end if follows else start_of(header)
        for region in finding.beyond:
            fits = fits and region.misplaced is None and _fits(end, region.before)
            if not fits:
                reason = "an intact frame after a hole does not follow what is before it"
                raise corruption(finding, reason, end=finding.end)
            end = region.after
        return finding.beyond

    # -- unsealed segments by their frames: these give the places and ends of the segments

    def _suspect_ends(self) -> None:
        """Treat a file's lost end as promised: no crash shortens it, and frames may have been there."""
        log, end = self.log, self.findings.manifest.end
        self.short = {f.name for f in self.headless if f.cut_short}
        for index, finding in enumerate(self.unsealed):
            header, later = finding.header, self.unsealed[index + 1 :]
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

    def _by_frames(self, finding: SegmentFinding, later: list[SegmentFinding]) -> Weighed:
        """Return the facts of a segment, and its frames that stay: all that fit after the log so far."""
        log, header = self.log, finding.header
        assert header is not None
        if finding.header_rebuilt:
            header = finding.header = header_after(log.end, header, finding.regions)
        follows = follows_exactly(header, log.end)
        fits = follows or (header.previous_end > log.end.position and header.first_lsn > log.end.last_lsn)
        pieces = _that_fit(finding.regions, log.end.last_lsn) if fits else []
        ahead = follows and pieces and pieces[0].start_position == header.start_position
        finding.follows = follows
        finding.end = pieces[0].after if ahead else start_of(header)
        reach = pieces[-1].end_position if pieces else log.end.position
        facts = Facts(
            header_right=not finding.header_rebuilt,
            follows=follows,
            bytes_after=finding.header_rebuilt
            or finding.nonzero_until > (finding.end_offset if follows else 0),
            promised_beyond=not later and reach < log.promised,
            keeps_frames=bool(pieces),
            salvage=True,
            cut_short=finding.name in self.short,
        )
        return facts, pieces

    def _without_place(self, finding: SegmentFinding) -> Weighed:
        """Return the facts of a segment without a header, in which nothing can be placed."""
        finding.end = self.log.end
        facts = Facts(
            bytes_after=finding.unopenable or finding.nonzero_until > 0,
            promised_beyond=self.log.end.position < self.log.promised,
            salvage=True,
            cut_short=finding.name in self.short,
        )
        return facts, []

    def _end_as_promised(self) -> None:
        """Record the promised part after the last intact frame as lost, so that its LSNs are not given again."""
        manifest, log, slot = self.findings.manifest, self.log, self.findings.slot
        end = log.end
        last_lsn = max(manifest.vouched_lsn, end.last_lsn)
        for finding in self.headless:
            if finding.name in self.short:  # it began after all that is there, at the latest
                room = finding.record.reserved_bytes - SEGMENT_HEADER_BYTES
                log.promised = max(log.promised, end.position + room)
        if end.position >= log.promised and last_lsn == end.last_lsn:
            return
        position = max(log.promised, end.position + (ALIGNMENT_DIRECT if log.promised <= end.position else 0))
        lsn = slot.lsn if end.position < self.findings.slot_position <= position else 0
        to = LogEnd(last_lsn=max(last_lsn, lsn), position=position, chain=end.chain)
        named = next((f.name for f in self.headless), log.records[-1].name if log.records else "")
        reason = "the log ends before what was promised"
        if self.short:
            named = max(self.short)
            absent = any(f.name == named and not f.present for f in self.headless)
            lost = "is missing" if absent else "was cut short: it was larger before it was used"
            reason = f"the file {lost}, and records may have been there"
        log.gaps.append(lost_range(end, to, named, reason))
        log.end = to


def _losses(finding: SegmentFinding) -> tuple[list[LostRecord], list[Region]]:
    """Return the parts of a sealed segment between and outside its intact frames, and the frames left."""
    record, lost, left = finding.record, [], []
    at = LogEnd(last_lsn=record.first_lsn - 1, position=record.start_position)
    reason = ""
    for region in finding.regions:
        if region.gap is None and (not region.intact or region.before.last_lsn < at.last_lsn):
            reason = finding.fault_of(region)
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


def _that_fit(regions: list[Region], last_lsn: int) -> list[Region]:
    """Return the intact regions whose LSNs grow; others belong to another past."""
    fitting = []
    for region in regions:
        if region.intact and region.before.last_lsn >= last_lsn:
            fitting.append(region)
            last_lsn = region.after.last_lsn
    return fitting


def _ends_otherwise(finding: SegmentFinding) -> bool:
    """Say whether the frames of a sealed segment, which were read, end in another chain than the manifest says."""
    header = finding.header
    if header is None or finding.span is None:
        return False
    last = finding.regions[-1].after if finding.regions else finding.end
    chain = header.end_chain if header.flags & SegmentFlag.COMPACTED else last.chain
    return chain != finding.record.end_chain


def _fits(end: LogEnd, before: LogEnd) -> bool:
    """Say whether the successor of `before` follows `end`, at once or after a hole."""
    if before.position == end.position:
        return before == end
    return before.position > end.position and before.last_lsn >= end.last_lsn


def _refuse_missing(manifest: Manifest, end: LogEnd, promised: int) -> None:
    """Refuse a log that ends before its promised end, or its manifest's durable end."""
    if end.position < promised:
        raise CorruptionError(
            f"frames were promised up to position {promised:,}, and the log ends at {end.position:,}: "
            "acknowledged data is missing. Nothing was changed",
            position=end.position,
            expected=promised,
            found=end.position,
            first_lost_lsn=end.last_lsn + 1,
        )
    if end.last_lsn < manifest.vouched_lsn:
        raise CorruptionError(
            f"the manifest says that the log was durable up to LSN {manifest.vouched_lsn:,}, and the log ends at "
            f"{end.last_lsn:,}: "
            "acknowledged data is missing. Nothing was changed",
            position=end.position,
            expected=f"a log that reaches LSN {manifest.vouched_lsn}",
            found=end.last_lsn,
            first_lost_lsn=end.last_lsn + 1,
        )


def policy_for(findings: LogFindings, policy: str) -> str:
    """Return the policy to apply: frames after a hole that may have been acknowledged are never cut."""
    headers = [f.header for f in findings.unsealed if f.header is not None]
    unordered = findings.manifest.ack_order == "completion" or any(
        h.flags & SegmentFlag.COMPLETION_ORDER for h in headers
    )
    return "holes" if policy == "prefix" and unordered else policy


def names_cut_short(unsealed: Sequence[SegmentFinding]) -> set[str]:
    """Return the segments whose file is absent or cut short if the log does not continue after their frames.

    Of one after which the next segment follows nothing is missing but space.
    """
    going_on = max((i for i, f in enumerate(unsealed) if f.header is not None and f.follows), default=0)
    return {f.name for f in unsealed[going_on:] if f.cut_short}


@dataclass(slots=True)
class LogBuilder:
    """The sealed segments and the gaps of the log after recovery, and its end so far."""

    manifest: Manifest
    """As it was before."""
    promised: int
    """How far the log was promised: a missing part below is lost, beyond it a hole."""
    end: LogEnd = field(default_factory=LogEnd)
    records: list[SegmentRecord] = field(init=False)
    gaps: list[Gap] = field(init=False)

    def __post_init__(self) -> None:
        self.records, self.gaps = list(self.manifest.sealed), list(self.manifest.gaps)

    def seal(
        self, finding: SegmentFinding, pieces: list[Region], missing: tuple[str, str] = ("", "")
    ) -> SegmentRecord | None:
        """Take these intact regions of a segment into the log; None without any, and so without a segment.

        A missing range between them becomes a gap, as does one before the segment, for which `missing` gives the
        segment and the reason.
        """
        header = finding.header
        assert header is not None
        if not pieces:
            return None
        if header.previous_end > self.end.position:
            self.add_gap(replace(start_of(header), position=header.previous_end), *missing)
        self.end = start_of(header)
        for region, reason in reasons(finding, pieces):
            if region.before.position > self.end.position:
                self.add_gap(region.before, finding.name, reason)
            self.end = region.after
        if header.flags & SegmentFlag.COMPACTED:
            self.end = replace(self.end, chain=header.end_chain)
        record = sealed_record(
            header, self.end, records=sum(p.records for p in pieces), frames=sum(p.frames for p in pieces)
        )
        self.records.append(record)
        return record

    def add_gap(self, to: LogEnd, segment: str, reason: str) -> None:
        """Record the missing part from the end of the log so far up to `to`: lost if it was promised, else a hole."""
        lost = lost_range(self.end, to, segment, reason)
        if self.end.position < self.promised:
            self.gaps.append(lost)
            return
        self.gaps.append(
            HoleRecord(
                start_position=lost.start_position,
                end_position=lost.end_position,
                first_lsn=lost.first_lsn,
                last_lsn=lost.last_lsn,
                chain=lost.chain,
            )
        )

    def manifest_after(self) -> Manifest:
        """Return the manifest that says all this: the same object if nothing changes."""
        old = self.manifest
        gaps = sorted(self.gaps, key=lambda g: g.start_position)
        lost = tuple(g for g in gaps if isinstance(g, LostRecord))
        known = set(old.lost)
        exact = [min(g.last_lsn + 1, self.end.last_lsn) for g in lost if g.lsns and g not in known]
        new = replace(
            old,
            segments=tuple(sorted(self.records, key=segment_order)),
            end=self.end,
            holes=tuple(g for g in gaps if isinstance(g, HoleRecord)),
            lost=lost,
            exact_from_lsn=max([old.exact_from_lsn, *exact]),
        )
        return old if new == old else replace(new, generation=old.generation + 1)


def reasons(finding: SegmentFinding, pieces: list[Region]) -> Iterator[tuple[Region, str]]:
    """Yield each of these regions of a segment, and the fault of the range before it."""
    taken = {piece.start_position: piece for piece in pieces}
    reason = finding.reason
    for region in finding.regions:
        piece = taken.get(region.start_position)
        if piece is None:
            reason = finding.fault_of(region)
        else:
            yield piece, reason


def lost_range(end: LogEnd, to: LogEnd, segment: str, reason: str) -> LostRecord:
    """Return the record of the loss between `end` and `to`."""
    return LostRecord(
        start_position=end.position,
        end_position=to.position,
        first_lsn=end.last_lsn + 1,
        last_lsn=max(to.last_lsn, end.last_lsn),
        chain=to.chain,
        segment=segment,
        reason=reason,
    )


@dataclass(frozen=True, slots=True)
class PlanStep:
    """The decision on one segment."""

    finding: SegmentFinding
    row: Row
    facts: Facts
    sealed: SegmentRecord | None
    """Its record in the manifest after the plan; None if it leaves the log."""

    @property
    def end_position(self) -> int:
        """Where its part of the log ends."""
        return self.finding.end_position if self.sealed is None else self.sealed.end_position

    @property
    def next_lsn(self) -> int:
        """The LSN after its part of the log."""
        return (self.finding.end.last_lsn if self.sealed is None else self.sealed.last_lsn) + 1


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The work of an opening for writing, and the end of the log after it."""

    findings: LogFindings
    policy: str
    """The policy that was applied."""
    steps: tuple[PlanStep, ...]
    manifest: Manifest
    """The manifest after the plan."""
    keeps_orphans: bool = False
    """Whether segments that the manifest does not name are kept in lost+found, even if they look like leftovers."""
    foreign: tuple[str, ...] = ()
    """Other files that belong to another history: they go to lost+found."""

    @property
    def end(self) -> LogEnd:
        """Where the log ends after the plan."""
        return self.manifest.end

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The tails that the plan cuts off."""
        return tuple(_cut_of(s) for s in self.steps if _has_tail(s))

    def outcome(self, storage: Storage) -> dict[str, Any]:
        """Return the fields of an `Outcome`."""
        before, manifest = self.findings.manifest, self.manifest
        known = {*before.lost, *before.holes}
        lost = tuple(g for g in manifest.lost if g not in known)
        return {
            "location": storage.location,
            "policy": self.policy,
            "cuts": self.cuts,
            "holes": tuple(h for h in manifest.holes if h not in known),
            "lost": lost,
            "records_left": sum(record.records for record in manifest.sealed),
            "damaged_frames": self._damaged_frames(lost),
            "decisions": tuple(
                SegmentDecision(
                    segment=s.finding.name,
                    row=s.row.label,
                    decision=s.row.decision.name,
                    meaning=s.row.decision.value,
                    facts=s.facts._asdict(),
                )
                for s in self.steps
            ),
            "last_lsn": max(self.end.last_lsn, manifest.low_watermark),
            "end_position": self.end.position,
        }

    def _damaged_frames(self, lost: tuple[LostRecord, ...]) -> int:
        """Return how many frames with damaged bodies the plan gives up; 0 if it gives up anything else, too."""
        broken = (FrameFault.BODY, FrameFault.PADDING)
        found = (*self.findings.sealed, *self.findings.unsealed)
        bodies = [r for f in found for r in f.regions if r.fault in broken and r.at_fault is not None]
        size = sum(r.end_position - r.start_position for r in bodies)
        return len(bodies) if size == sum(g.end_position - g.start_position for g in lost) else 0


def missing_end(finding: SegmentFinding, end: LogEnd) -> SegmentMissingError:
    """Return the error for a segment whose file is absent or cut short; the log before it ends at `end`."""
    size, reserved = finding.file_bytes, finding.record.reserved_bytes
    cut = f"was cut short: {size:,} bytes of the {reserved:,} that were reserved for it"
    fault, place = (cut, "the rest") if finding.present else ("is missing", "it")
    return SegmentMissingError(
        f"segment {finding.name} {fault}. "
        f"Acknowledged records from LSN {end.last_lsn + 1:,} on may have been in {place}. Nothing was changed",
        segment=finding.name,
        position=end.position,
        expected=reserved,
        found=size if finding.present else None,
        first_lost_lsn=end.last_lsn + 1,
    )


def _reason(finding: SegmentFinding) -> str:
    if finding.error is not None:
        return str(finding.error)
    if not finding.follows:
        return "the segment does not follow where the log ends"
    fault = (finding.damage and finding.damage.fault) or FrameFault.END
    after = f"; after it: {counted(finding.frames_after, 'intact frame')}" if finding.frames_after else ""
    return f"{fault.value}{after}"


def _has_tail(step: PlanStep) -> bool:
    """Say whether nonzero bytes are cut off: all of a file, or those after the last frame that is kept."""
    header = step.finding.header
    if step.row.decision is Decision.LOSE:
        return bool(step.finding.nonzero_until)
    if step.row.decision not in (Decision.KEEP, Decision.SKIP, Decision.MEND):
        return step.row.decision in (Decision.CUT, Decision.CUT_WHOLE)
    return header is not None and step.finding.nonzero_until > header.offset_of(step.end_position)


def _cut_of(step: PlanStep) -> Cut:
    finding, header = step.finding, step.finding.header
    whole = step.sealed is None
    offset = 0 if whole or header is None else header.offset_of(step.end_position)
    return Cut(
        segment=finding.name,
        position=step.end_position,
        bytes=finding.nonzero_until - offset,
        first_lsn=step.next_lsn,
        reason=_reason(finding),
        kept_as=f"{LOST_FOLDER}/{finding.name}" + ("" if whole else f".{step.end_position}.tail"),
    )


def corruption(
    finding: SegmentFinding, reason: str, *, end: LogEnd, promised: int | None = None
) -> CorruptionError:
    """Return the error for damage in this segment; `end` is the end of the log before it, if it does not follow."""
    if finding.header is not None and finding.follows and not finding.sealed:
        end = finding.end
    damage = finding.damage
    fault = (damage and damage.fault) or FrameFault.END
    header = damage and damage.at_fault
    return CorruptionError(
        f"segment {finding.name} is damaged at position {end.position:,}: {_reason(finding)}. "
        f"{reason[0].upper()}{reason[1:]}. Nothing was changed",
        segment=finding.name,
        position=end.position,
        expected=f"LSN {end.last_lsn + 1}"
        if promised is None
        else f"intact frames up to position {promised}",
        found=fault.name + (f" (LSN {header.first_lsn}, position {header.position})" if header else ""),
        first_lost_lsn=end.last_lsn + 1,
    )


def emit_recovery(events: EventSink, report: RecoveryReport) -> None:
    """Send the events of a recovery that is done: one for each cut, loss and hole, and one for the whole."""
    for cut in report.cuts:
        events.emit("walkit.recovery.cut", segment=cut.segment, position=cut.position, bytes=cut.bytes)
    for lost in report.lost:
        events.emit(
            "walkit.recovery.lost", position=lost.start_position, first_lsn=lost.first_lsn, lsns=lost.lsns
        )
    for hole in report.holes:
        events.emit(
            "walkit.recovery.hole", position=hole.start_position, first_lsn=hole.first_lsn, lsns=hole.lsns
        )
    if report.verdict != "created":
        events.emit(
            "walkit.recovery.finish",
            location=report.location,
            policy=report.policy,
            verdict=report.verdict,
            last_lsn=report.last_lsn,
            duration_s=report.duration_s,
        )
