"""Recovery: facts in, one decision out per segment, and a plan of them, which `walkit.log.tidy` applies.

The decision is a table (`walkit.log.decision`). Its rows are about one unsealed segment, in the order of the log; what
is sealed is vouched for by the manifest, and any damage there is corruption.

Policies: "prefix" cuts the tail that nothing promised, "holes" keeps intact frames behind a hole in it, "absolute"
refuses any damage, "salvage" gives up what is damaged and says what (`walkit.log.salvage`). What stands behind a hole
may have been acknowledged where the log acknowledges in completion order: there "prefix" means "holes".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from walkit.errors import CorruptionError, SegmentMissingError
from walkit.format.frame import FrameFault, FrameHeader
from walkit.format.layout import SegmentFlag
from walkit.format.manifest import (
    HoleRecord,
    LogEnd,
    LostRecord,
    Manifest,
    SegmentRecord,
    sealed_record,
)
from walkit.format.segment import SegmentHeader
from walkit.log.decision import Decision, Facts, Row, decide
from walkit.log.findings import LogFindings, SegmentFinding
from walkit.log.manifest_store import LOST_FOLDER
from walkit.log.report import Cut, SegmentDecision
from walkit.log.sealing import with_sealed
from walkit.text import counted


@dataclass(frozen=True, slots=True)
class Step:
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
        """The LSN behind its part of the log."""
        return (self.finding.last_lsn if self.sealed is None else self.sealed.last_lsn) + 1


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What opening for writing will do, and where the log will end."""

    findings: LogFindings
    policy: str
    """The policy that was applied."""
    steps: tuple[Step, ...]
    manifest: Manifest
    """The manifest after the plan."""
    keeps_strays: bool = False
    """Whether segments that the manifest does not name are kept in lost+found, also where they look like leftovers."""

    @property
    def end(self) -> LogEnd:
        """Where the log ends after the plan."""
        return self.manifest.end

    @property
    def holes(self) -> tuple[HoleRecord, ...]:
        """The holes that the plan records."""
        return tuple(h for h in self.manifest.holes if h not in self.findings.manifest.holes)

    @property
    def lost(self) -> tuple[LostRecord, ...]:
        """The lost ranges that the plan records."""
        return tuple(g for g in self.manifest.lost if g not in self.findings.manifest.lost)

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
    policy = _policy_for(findings, policy)
    for finding in findings.sealed:
        if finding.fault is not None:
            raise corruption(finding, "a sealed segment is damaged")
    promised = findings.promised_position
    broken = _first_break(findings, promised)
    short = cut_short(findings.unsealed)
    tail = _Tail(findings.manifest, findings.manifest.end)
    steps: list[Step] = []
    whole = True
    for finding in findings.unsealed:
        follows = finding.header is not None and whole and finding.follows
        behind = finding.nonzero_until > (finding.end_offset if follows else 0)
        kept = tail.kept(finding, follows) if policy == "holes" else []
        facts = Facts(
            header_right=finding.header is not None,
            follows=follows,
            bytes_behind=behind,
            promised_beyond=finding is broken,
            keeps_frames=bool(kept),
            absolute=policy == "absolute",
            salvage=False,
            cut_short=finding.name in short,
        )
        row = decide(facts)
        if row.decision is Decision.REFUSE:
            why = f"frames were promised up to position {promised:,}"
            raise corruption(finding, why, end=tail.end, promised=promised)
        if row.decision is Decision.REFUSE_TAIL:
            why = "the tail is damaged, and recovery='absolute' refuses any damage"
            raise corruption(finding, why, end=tail.end)
        if row.decision is Decision.REFUSE_SHORT:
            raise _missing_end(finding, tail.end)
        if row.decision in (Decision.SEAL, Decision.CUT, Decision.KEEP):
            steps.append(Step(finding, row, facts, tail.seal(finding, follows, kept)))
        else:
            if row.decision is Decision.CUT_WHOLE and finding.header_error is not None:
                tail.unlocated = tail.unlocated or finding
            tail.drop(finding)
            steps.append(Step(finding, row, facts, None))
        whole = whole and row.decision in (Decision.SEAL, Decision.DROP)
    manifest = tail.manifest
    _refuse_missing(manifest, promised)
    if manifest is not findings.manifest:
        manifest = replace(manifest, generation=findings.manifest.generation + 1)
    return RecoveryPlan(findings, policy, tuple(steps), manifest)


def _policy_for(findings: LogFindings, policy: str) -> str:
    """Return the policy to apply: what may have been acknowledged behind a hole is never cut."""
    headers = [f.header for f in findings.unsealed if f.header is not None]
    unordered = findings.manifest.ack_order == "completion" or any(
        h.flags & SegmentFlag.COMPLETION_ORDER for h in headers
    )
    return "holes" if policy == "prefix" and unordered else policy


@dataclass(slots=True)
class _Tail:
    """The manifest while it grows over the unsealed segments, and where the log ends by then, holes jumped over."""

    manifest: Manifest
    end: LogEnd
    unlocated: SegmentFinding | None = None
    """A used segment before the end whose header is damaged, so that nobody can say where its frames belong."""

    def kept(self, finding: SegmentFinding, follows: bool) -> list[FrameHeader]:
        """Return the intact frames that stand behind a hole. CorruptionError where one does not fit what is before it.

        No crash leaves such a frame, and what was acknowledged must be neither cut nor put in the wrong place.
        """
        header = finding.header
        if header is None or not finding.beyond:
            return []
        if self.unlocated is not None:
            why = "its header was on stable storage before any frame behind it was written"
            raise corruption(self.unlocated, why, end=self.end)
        fits = follows or _fits(self.end, header.previous_end, header.first_lsn, header.chain)
        end = self._end_of(finding) if follows else start_of(header)
        for frame in finding.beyond:
            fits = fits and _fits(end, frame.position, frame.first_lsn, frame.chain)
            if not fits:
                raise corruption(finding, "an intact frame behind a hole does not follow what is before it")
            end = LogEnd(last_lsn=frame.last_lsn, position=frame.end_position, chain=frame.header_crc)
        return finding.beyond

    def seal(self, finding: SegmentFinding, follows: bool, kept: list[FrameHeader]) -> SegmentRecord | None:
        """Take a segment into the sealed log with these frames behind holes; None where it has no frame at all."""
        header = finding.header
        assert header is not None
        holes: list[HoleRecord] = []
        if follows:
            self.end = self._end_of(finding)
        else:
            holes += _hole(self.end, header.previous_end, header.first_lsn, header.chain)
            self.end = start_of(header)
        for frame in kept:
            holes += _hole(self.end, frame.position, frame.first_lsn, frame.chain)
            self.end = LogEnd(last_lsn=frame.last_lsn, position=frame.end_position, chain=frame.header_crc)
        own = (finding.frames, finding.records) if follows else (0, 0)
        record = sealed_record(
            header,
            self.end,
            records=own[1] + sum(f.records for f in kept),
            frames=own[0] + len(kept),
        )
        self.manifest = with_sealed(self.manifest, record)
        if holes:
            self.manifest = replace(self.manifest, holes=(*self.manifest.holes, *holes))
        return record if record.size_bytes else None

    def drop(self, finding: SegmentFinding) -> None:
        """Take a segment out of the log."""
        left = tuple(s for s in self.manifest.segments if s.number != finding.record.number)
        self.manifest = self.manifest.next(segments=left)

    @staticmethod
    def _end_of(finding: SegmentFinding) -> LogEnd:
        return LogEnd(last_lsn=finding.last_lsn, position=finding.end_position, chain=finding.chain)


def start_of(header: SegmentHeader) -> LogEnd:
    """Return what the first frame of a segment follows, at the position where it stands."""
    return LogEnd(last_lsn=header.first_lsn - 1, position=header.start_position, chain=header.chain)


def _fits(end: LogEnd, position: int, first_lsn: int, chain: int) -> bool:
    """Say whether what begins there follows `end`, at once or behind a hole."""
    if position == end.position:
        return (first_lsn, chain) == (end.last_lsn + 1, end.chain)
    return position > end.position and first_lsn > end.last_lsn


def _hole(end: LogEnd, position: int, first_lsn: int, chain: int) -> list[HoleRecord]:
    """Return the hole between `end` and what begins at `position`; none where it begins at the end."""
    if position == end.position:
        return []
    return [
        HoleRecord(
            start_position=end.position,
            end_position=position,
            first_lsn=end.last_lsn + 1,
            last_lsn=first_lsn - 1,
            chain=chain,
        )
    ]


def _refuse_missing(manifest: Manifest, promised: int) -> None:
    """Refuse a log that ends before what was promised, or before what its manifest was told to be durable."""
    end = manifest.end
    told = max(manifest.low_watermark, manifest.checkpoint_lsn)
    if end.position < promised:
        raise CorruptionError(
            f"frames were promised up to position {promised:,}, and the log ends at {end.position:,}: "
            "acknowledged data is missing. Nothing was changed",
            position=end.position,
            expected=promised,
            found=end.position,
            first_lost_lsn=end.last_lsn + 1,
        )
    if end.last_lsn < told:
        raise CorruptionError(
            f"the manifest says that the log was durable up to LSN {told:,}, and the log ends at {end.last_lsn:,}: "
            "acknowledged data is missing. Nothing was changed",
            position=end.position,
            expected=f"a log that reaches LSN {told}",
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
        if finding.nonzero_until > finding.end_offset:
            break
    return last if position < promised else None


def cut_short(unsealed: Sequence[SegmentFinding]) -> set[str]:
    """Return the names of the segments whose file was cut short where the log does not go on behind their frames.

    Of one behind which the next segment follows nothing is missing but space.
    """
    going_on = max((i for i, f in enumerate(unsealed) if f.header is not None and f.follows), default=0)
    return {f.name for f in unsealed[going_on:] if f.cut_short}


def _missing_end(finding: SegmentFinding, end: LogEnd) -> SegmentMissingError:
    """Return the error for a segment whose file was cut short; the log before it ends at `end`."""
    if finding.header is not None and finding.follows:
        end = LogEnd(last_lsn=finding.last_lsn, position=finding.end_position, chain=finding.chain)
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
    if finding.header_error is not None:
        return str(finding.header_error)
    if not finding.follows:
        return "the segment does not follow where the log ends"
    fault = finding.fault or FrameFault.END
    behind = f"; behind it: {counted(finding.frames_behind, 'intact frame')}" if finding.frames_behind else ""
    return f"{fault.value}{behind}"


def _has_tail(step: Step) -> bool:
    """Say whether nonzero bytes are cut off: all of a file, or what stands behind the last frame that is kept."""
    header = step.finding.header
    if step.row.decision is Decision.LOSE:
        return bool(step.finding.nonzero_until)
    if step.row.decision not in (Decision.KEEP, Decision.SKIP, Decision.MEND):
        return step.row.decision in (Decision.CUT, Decision.CUT_WHOLE)
    return header is not None and step.finding.nonzero_until > header.offset_of(step.end_position)


def _cut_of(step: Step) -> Cut:
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
    finding: SegmentFinding, why: str, *, end: LogEnd | None = None, promised: int | None = None
) -> CorruptionError:
    """Return the error for damage in this segment; `end` is where the log before it ends, where it does not follow."""
    header = finding.at_fault
    position, last_lsn = finding.end_position, finding.last_lsn
    if end is not None and not (finding.header is not None and finding.follows):
        position, last_lsn = end.position, end.last_lsn
    return CorruptionError(
        f"segment {finding.name} is damaged at position {position:,}: {_reason(finding)}. "
        f"{why[0].upper()}{why[1:]}. Nothing was changed",
        segment=finding.name,
        position=position,
        expected=f"LSN {last_lsn + 1}" if promised is None else f"intact frames up to position {promised}",
        found=(finding.fault or FrameFault.END).name
        + (f" (LSN {header.first_lsn}, position {header.position})" if header is not None else ""),
        first_lost_lsn=last_lsn + 1,
    )
