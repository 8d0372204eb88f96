"""The plan of a recovery: a decision for each segment, and the log put together of them, with the gaps between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from walkit._internal.text import counted
from walkit.errors import CorruptionError, SegmentMissingError
from walkit.format.frame import FrameFault
from walkit.format.layout import SegmentFlag
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
from walkit.recovery.decision import SEALING, Decision, Facts, Row, decide
from walkit.recovery.log_scan import LogFindings, SegmentFinding, start_of
from walkit.recovery.report import Cut, SegmentDecision
from walkit.recovery.survey import Region
from walkit.segments.manifest_store import LOST_FOLDER
from walkit.storage.interface import Storage


@dataclass(slots=True)
class LogBuilder:
    """The sealed segments and the gaps of the log after recovery, and its end so far."""

    manifest: Manifest
    """As it was before."""
    promised: int
    """How far the log was promised: what is missing below is lost, beyond it a hole."""
    end: LogEnd = field(default_factory=LogEnd)
    records: list[SegmentRecord] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    def seal(
        self, finding: SegmentFinding, pieces: list[Region], missing: tuple[str, str] = ("", "")
    ) -> SegmentRecord | None:
        """Take these intact regions of a segment into the log; None where there is none, and so no segment.

        What is missing between them becomes a gap, and what is missing before the segment, of which `missing` says the
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
        """Record what is missing from the end of the log so far up to `to`: lost where it was promised, else a hole."""
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
        """Return the manifest that says all this: the same object where nothing changes."""
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
    """Yield each of these regions of a segment, and what is wrong with what stands before it."""
    taken = {piece.start_position: piece for piece in pieces}
    reason = finding.reason
    for region in finding.regions:
        piece = taken.get(region.start_position)
        if piece is None:
            reason = finding.why(region)
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
    keeps_strays: bool = False
    """Whether segments that the manifest does not name are kept in lost+found, even if they look like leftovers."""
    foreign: tuple[str, ...] = ()
    """Other files that belong to another history: they go to lost+found."""

    @property
    def end(self) -> LogEnd:
        """Where the log ends after the plan."""
        return self.manifest.end

    @property
    def holes(self) -> tuple[HoleRecord, ...]:
        """The holes that the plan records."""
        known = set(self.findings.manifest.holes)
        return tuple(h for h in self.manifest.holes if h not in known)

    @property
    def lost(self) -> tuple[LostRecord, ...]:
        """The lost ranges that the plan records."""
        known = set(self.findings.manifest.lost)
        return tuple(g for g in self.manifest.lost if g not in known)

    @property
    def records_left(self) -> int:
        """How many records the segments hold after the plan."""
        return sum(record.records for record in self.manifest.sealed)

    @property
    def damaged_frames(self) -> int:
        """How many frames with damaged bodies the plan gives up; 0 if it gives up anything else, too."""
        broken = (FrameFault.BODY, FrameFault.PADDING)
        found = (*self.findings.sealed, *self.findings.unsealed)
        bodies = [r for f in found for r in f.regions if r.fault in broken and r.at_fault is not None]
        size = sum(r.end_position - r.start_position for r in bodies)
        return len(bodies) if size == sum(g.end_position - g.start_position for g in self.lost) else 0

    @property
    def decisions(self) -> tuple[SegmentDecision, ...]:
        """The rows of the decision table that applied, one per segment that was decided on."""
        return tuple(
            SegmentDecision(
                segment=s.finding.name,
                row=s.row.label,
                decision=s.row.decision.name,
                meaning=s.row.decision.value,
                facts=s.facts._asdict(),
            )
            for s in self.steps
        )

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The tails that the plan cuts off."""
        return tuple(_cut_of(s) for s in self.steps if _has_tail(s))

    def outcome(self, storage: Storage) -> dict[str, Any]:
        """Return the fields of an `Outcome`."""
        names = ("policy", "cuts", "holes", "lost", "records_left", "damaged_frames", "decisions")
        end = {
            "last_lsn": max(self.end.last_lsn, self.manifest.low_watermark),
            "end_position": self.end.position,
        }
        return {"location": storage.location, **end, **{name: getattr(self, name) for name in names}}


def decide_and_seal(
    log: LogBuilder,
    finding: SegmentFinding,
    facts: Facts,
    pieces: list[Region],
    missing: tuple[str, str] = ("", ""),
) -> PlanStep:
    """Decide on an unsealed segment by the table, and add these intact regions to the log if it keeps any.

    `missing` has the segment and the reason of a gap before it. CorruptionError if the table refuses.
    """
    row, promised = decide(facts), log.promised
    if row.decision is Decision.REFUSE:
        why = f"frames were promised up to position {promised:,}"
        raise corruption(finding, why, end=log.end, promised=promised)
    if row.decision is Decision.REFUSE_TAIL:
        raise corruption(
            finding, "the tail is damaged, and recovery='absolute' refuses any damage", end=log.end
        )
    if row.decision is Decision.REFUSE_SHORT:
        raise missing_end(finding, finding.end if facts.follows else log.end)
    sealed = log.seal(finding, pieces, missing) if row.decision in SEALING else None
    return PlanStep(finding, row, facts, sealed)


def missing_end(finding: SegmentFinding, end: LogEnd) -> SegmentMissingError:
    """Return the error for a segment whose file was cut short; the log before it ends at `end`."""
    size, reserved = finding.file_bytes, finding.record.reserved_bytes
    return SegmentMissingError(
        f"segment {finding.name} was cut short: {size:,} bytes of the {reserved:,} that were reserved for it. "
        f"Acknowledged records from LSN {end.last_lsn + 1:,} on may have stood in the rest. Nothing was changed",
        segment=finding.name,
        position=end.position,
        expected=reserved,
        found=size,
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
    finding: SegmentFinding, why: str, *, end: LogEnd, promised: int | None = None
) -> CorruptionError:
    """Return the error for damage in this segment; `end` is the end of the log before it, if it does not follow."""
    if finding.header is not None and finding.follows and not finding.sealed:
        end = finding.end
    damage = finding.damage
    fault = (damage and damage.fault) or FrameFault.END
    header = damage and damage.at_fault
    return CorruptionError(
        f"segment {finding.name} is damaged at position {end.position:,}: {_reason(finding)}. "
        f"{why[0].upper()}{why[1:]}. Nothing was changed",
        segment=finding.name,
        position=end.position,
        expected=f"LSN {end.last_lsn + 1}"
        if promised is None
        else f"intact frames up to position {promised}",
        found=fault.name + (f" (LSN {header.first_lsn}, position {header.position})" if header else ""),
        first_lost_lsn=end.last_lsn + 1,
    )
