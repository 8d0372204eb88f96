"""The recovery plan: findings in, one decision per segment out. `walkit.recovery.apply` applies it.

The decision is a table (`walkit.recovery.decision`). Its rows are about one unsealed segment, in the order of the
log; what is sealed is vouched for by the manifest, and any damage there is corruption.

Policies: "prefix" cuts the tail that nothing promised, "holes" keeps intact frames after a hole in it, "absolute"
refuses any damage, "salvage" gives up what is damaged and says what (`walkit.recovery.salvage`). What stands after a
hole may have been acknowledged where the log acknowledges in completion order: there "prefix" means "holes".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from walkit._text import counted
from walkit.errors import CorruptionError, SegmentMissingError
from walkit.format.frame import FrameFault
from walkit.format.layout import SegmentFlag
from walkit.format.manifest import HoleRecord, LogEnd, LostRecord, Manifest, SegmentRecord
from walkit.recovery.assembly import LogAssembly
from walkit.recovery.decision import SEALING, Decision, Facts, Row, decide
from walkit.recovery.findings import LogFindings, SegmentFinding, start_of
from walkit.recovery.report import Cut, SegmentDecision
from walkit.recovery.survey import Region
from walkit.segments.manifest_store import LOST_FOLDER


@dataclass(frozen=True, slots=True)
class PlanStep:
    """What happens to one unsealed segment."""

    finding: SegmentFinding
    row: Row
    facts: Facts
    sealed: SegmentRecord | None
    """What the manifest says of it afterwards; None where it leaves the log."""

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
    """What opening for writing will do, and where the log will end."""

    findings: LogFindings
    policy: str
    """The policy that was applied."""
    steps: tuple[PlanStep, ...]
    manifest: Manifest
    """The manifest after the plan."""
    keeps_strays: bool = False
    """Whether segments that the manifest does not name are kept in lost+found, also where they look like leftovers."""
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


def make_plan(findings: LogFindings, policy: str) -> RecoveryPlan:
    """Decide. Raises CorruptionError where the table refuses; changes nothing."""
    policy = policy_for(findings, policy)
    for finding in findings.sealed:
        _refuse_damage(finding)
    manifest, promised = findings.manifest, findings.promised_position
    log = LogAssembly(manifest, promised, manifest.end, list(manifest.sealed), list(manifest.gaps))
    broken = _first_break(findings, promised)
    short = names_cut_short(findings.unsealed)
    unlocated: SegmentFinding | None = None
    steps: list[PlanStep] = []
    whole = True
    for finding in findings.unsealed:
        if finding.other is not None and finding.other.name == finding.name:
            # Whole, and of another log or epoch: no crash leaves that, and what another writer acknowledged is not cut.
            why = "another writer made it; `walkit repair --policy salvage` makes a log of each history that is here"
            raise corruption(finding, why, end=log.end)
        follows = finding.header is not None and whole and finding.follows
        kept = _kept(log.end, finding, follows, unlocated) if policy == "holes" else []
        facts = Facts(
            header_right=finding.header is not None,
            follows=follows,
            bytes_after=finding.nonzero_until > (finding.end_offset if follows else 0),
            promised_beyond=finding is broken,
            keeps_frames=bool(kept),
            absolute=policy == "absolute",
            cut_short=finding.name in short,
        )
        own = finding.regions[:1] if follows and finding.frames else []
        step = decide_and_seal(log, finding, facts, [*own, *kept])
        if step.row.decision is Decision.CUT_WHOLE and finding.error is not None:
            unlocated = unlocated or finding
        steps.append(step)
        cut = step.row.decision is Decision.CUT and finding.continued
        whole = whole and (cut or step.row.decision in (Decision.SEAL, Decision.DROP))
    _refuse_missing(manifest, log.end, promised)
    return RecoveryPlan(findings, policy, tuple(steps), log.manifest_after())


def decide_and_seal(
    log: LogAssembly,
    finding: SegmentFinding,
    facts: Facts,
    pieces: list[Region],
    missing: tuple[str, str] = ("", ""),
) -> PlanStep:
    """Ask the table about an unsealed segment, and take these intact regions into the log where it keeps any.

    `missing` is the segment and the reason of what is missing before it. CorruptionError where the table refuses.
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


def policy_for(findings: LogFindings, policy: str) -> str:
    """Return the policy to apply: what may have been acknowledged after a hole is never cut."""
    headers = [f.header for f in findings.unsealed if f.header is not None]
    unordered = findings.manifest.ack_order == "completion" or any(
        h.flags & SegmentFlag.COMPLETION_ORDER for h in headers
    )
    return "holes" if policy == "prefix" and unordered else policy


def _refuse_damage(finding: SegmentFinding) -> None:
    """Refuse a sealed segment whose frames were read, and are not all there and intact."""
    record, header, damage = finding.record, finding.header, finding.damage
    assert header is not None
    last = finding.regions[-1].after if finding.regions else finding.end
    chain = header.end_chain if header.flags & SegmentFlag.COMPACTED else last.chain
    broken = damage is not None or chain != record.end_chain
    facts = Facts(header_right=True, follows=True, promised_beyond=broken, not_read=finding.span is None)
    if decide(facts).decision is not Decision.REFUSE:
        return
    position = record.end_position if damage is None else damage.start_position
    before = next((r for r in finding.regions if r.end_position == position), None)
    end = LogEnd(
        last_lsn=record.first_lsn - 1 if before is None else before.after.last_lsn, position=position
    )
    raise corruption(finding, "a sealed segment is damaged", end=end)


def _kept(
    end: LogEnd, finding: SegmentFinding, follows: bool, unlocated: SegmentFinding | None
) -> list[Region]:
    """Return the intact frames that stand after a hole. CorruptionError where one does not fit what is before it.

    No crash leaves such a frame, and what was acknowledged must be neither cut nor put in the wrong place. `unlocated`
    is a used segment before it whose header is damaged, so that nothing tells where its frames belong.
    """
    header = finding.header
    if header is None or not finding.beyond:
        return []
    if unlocated is not None:
        why = "its header was on stable storage before any frame after it was written"
        raise corruption(unlocated, why, end=end)
    fits = follows or _fits(end, replace(start_of(header), position=header.previous_end))
    end = finding.end if follows else start_of(header)
    for region in finding.beyond:
        fits = fits and region.misplaced is None and _fits(end, region.before)
        if not fits:
            why = "an intact frame after a hole does not follow what is before it"
            raise corruption(finding, why, end=finding.end)
        end = region.after
    return finding.beyond


def _fits(end: LogEnd, before: LogEnd) -> bool:
    """Say whether what follows `before` follows `end`, at once or after a hole."""
    if before.position == end.position:
        return before == end
    return before.position > end.position and before.last_lsn >= end.last_lsn


def _refuse_missing(manifest: Manifest, end: LogEnd, promised: int) -> None:
    """Refuse a log that ends before what was promised, or before what its manifest says is durable."""
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


def _first_break(findings: LogFindings, promised: int) -> SegmentFinding | None:
    """Return the segment in which the intact log ends before what was promised; None where it does not."""
    position = findings.manifest.end.position
    last: SegmentFinding | None = None
    for finding in findings.unsealed:
        if finding.header is None or not finding.follows:
            return finding if position < promised else None
        position = finding.end_position
        last = finding
        if finding.ends_in_bytes:
            break
    return last if position < promised else None


def names_cut_short(unsealed: Sequence[SegmentFinding]) -> set[str]:
    """Return the names of the segments whose file was cut short where the log does not go on after their frames.

    Of one after which the next segment follows nothing is missing but space.
    """
    going_on = max((i for i, f in enumerate(unsealed) if f.header is not None and f.follows), default=0)
    return {f.name for f in unsealed[going_on:] if f.cut_short}


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
    """Say whether nonzero bytes are cut off: all of a file, or what stands after the last frame that is kept."""
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
    """Return the error for damage in this segment; `end` is where the log before it ends, where it does not follow."""
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
