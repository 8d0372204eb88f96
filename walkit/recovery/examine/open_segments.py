"""Examining segments that are not sealed: in use by a living writer, or left by one that ended without close().

What the decision table says of them is told range by range: what the next opening keeps is intact, what it cuts off is
torn. Where the table refuses, and of a log with a living writer, the promise decides: damage below it is corruption.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from walkit.errors import CorruptionError, FormatVersionError, SegmentMissingError, StorageError, WalkitError
from walkit.format.frame import FrameFault
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import LogEnd
from walkit.format.segment import SegmentHeader
from walkit.recovery.decision import Decision
from walkit.recovery.examine.report import Verdict
from walkit.recovery.examine.scan_context import ScanContext
from walkit.recovery.facts import LogFindings, SegmentFinding, follows_exactly, look_at, next_start
from walkit.recovery.plan import RecoveryPlan, Step, cut_short, make_plan, missing_end
from walkit.recovery.scan import relate
from walkit.recovery.survey import Region

_REFUSED = (FormatVersionError, StorageError)
_NOT_PROMISED = "intact frames behind what was never promised"


class UnsealedPart:
    """Examines all unsealed segments of a context's log, in order."""

    def __init__(self, context: ScanContext) -> None:
        self.context = context
        self.found: list[SegmentFinding] = []
        self.end = context.manifest.end
        """Where the intact log ends so far."""
        self.broken: Verdict | None = None
        """What the first damage was: CORRUPT or TORN."""
        self.keeps = context.manifest.ack_order == "completion"
        """Whether intact frames within the window after a hole may have been acknowledged."""

    def examine(self) -> None:
        """Look at every segment first, because a later frame may promise an earlier one; then decide and tell."""
        context = self.context
        for record in context.manifest.unsealed:
            self.found.append(look_at(context.storage, context.manifest, record, live=context.live))
        for index, finding in enumerate(self.found):
            context.promised = max(context.promised, finding.promised_position)
            if finding.header is not None:
                self._survey(finding, finding.header, self.found[index + 1 :])
        plan = None if context.live else self._plan()
        for index, finding in enumerate(self.found):
            begun = len(context.ranges)
            if plan is not None:
                self._tell_step(plan.steps[index])
            elif finding.header is None:
                self._judge_headless(finding, next_start(self.found[index + 1 :], self.end.position))
            else:
                self._judge(finding, finding.header, self.found[index + 1 :])
            used = finding.header is not None or finding.error is not None
            if used and isinstance(finding.error, _REFUSED):
                self._tell_refused(finding, finding.error)
            context.add_segment(
                finding.record,
                "open" if used else "prepared",
                context.ranges[begun:],
                file_bytes=finding.file_bytes,
                header=finding.header,
                verdict=None if used else Verdict.UNUSED,
            )
        if plan is None:
            self._tell_missing()
        context.end = self.end

    def _tell_refused(self, finding: SegmentFinding, error: WalkitError) -> None:
        """Note what makes the next opening refuse a segment, unless one of its ranges says it."""
        if all(problem.segment != finding.name for problem in self.context.problems):
            self.context.problem(error, segment=finding.name, position=self.end.position)

    def _survey(self, finding: SegmentFinding, header: SegmentHeader, later: list[SegmentFinding]) -> None:
        context = self.context
        limits = [next_start(later, header.start_position), context.promised if context.live else None]
        try:
            context.survey(finding, min((p for p in limits if p is not None), default=None))
        except StorageError as error:
            finding.header, finding.error = None, error

    def _plan(self) -> RecoveryPlan | None:
        """Return what the next opening would do, None where it refuses.

        A frame with right checksums that cannot be decoded counts as refused: the next opening keeps it.
        """
        context = self.context
        findings = LogFindings(manifest=context.manifest, mark=context.mark, unsealed=self.found)
        with suppress(StorageError):  # what cannot be read is told of its segment
            relate(context.storage, findings)
        for finding in self.found:
            first = finding.damage if finding.follows else None
            damaged = finding.regions if self.keeps else [r for r in (first,) if r is not None]
            if isinstance(finding.error, _REFUSED) or any(region.error for region in damaged):
                return None
        try:
            return make_plan(findings, "prefix")
        except CorruptionError as refusal:
            context.refusal = refusal
            return None

    # -- what the next opening does

    def _tell_step(self, step: Step) -> None:
        """Tell of a segment what the next opening keeps, and what it cuts off."""
        context, finding, header = self.context, step.finding, step.finding.header
        keeps = step.row.decision is Decision.KEEP
        if header is None:
            if step.facts.bytes_after or finding.error is not None:
                self._tell_set_aside(finding)
            return
        if not step.facts.follows:
            self._tear(_not_following(finding), "keeps what is intact in it" if keeps else "sets it aside")
        kept = {r.start_position: r for r in (finding.beyond if keeps else ())}
        for region in finding.regions:
            own = step.facts.follows and region.end_position <= finding.end_position
            piece = region if own and region.intact else kept.get(region.start_position)
            if piece is not None:
                reason = "" if own else "intact frames behind a hole, which the next opening keeps"
                context.add_region(finding.name, piece, Verdict.INTACT, reason)
                self.end = piece.after
            if piece is None or piece.end_position < region.end_position:
                self._tell_cut(finding.name, region if piece is None else _after(region, piece))
        self._tell_rest(finding, header)

    def _tell_cut(self, name: str, region: Region) -> None:
        if region.zeros:
            self._tell_unused(name, region)
            return
        self._tear(_torn_tail(name, region), "keeps it in lost+found")
        reason = _NOT_PROMISED if region.intact else (region.fault or FrameFault.END).value
        self.context.add_region(name, region, Verdict.TORN, reason)

    def _tear(self, what: str, does: str = "") -> None:
        """Note where the log is torn, at the first place where it is, and what the next opening does."""
        if self.broken is not Verdict.TORN:
            self.broken = Verdict.TORN
            self.context.notes.append(f"{what}; the next opening {does}" if does else what)

    def _tell_set_aside(self, finding: SegmentFinding) -> None:
        """Tell of a segment with a damaged header of which nothing was promised."""
        what = "it is another segment" if finding.other is not None else "its header is damaged"
        reason, at = f"{what}, and nothing of it was promised", self.end.position
        until = at + max(finding.nonzero_until - SEGMENT_HEADER_BYTES, 0)
        self.context.add(finding.name, at, until, Verdict.TORN, reason)
        self.context.notes.append(f"segment {finding.name}: {reason}; the next opening sets it aside")
        self.broken = self.broken or Verdict.TORN

    def _tell_unused(self, name: str, region: Region) -> None:
        self.context.add_region(name, replace(region, first_lsn=None, last_lsn=None), Verdict.UNUSED)

    def _tell_rest(self, finding: SegmentFinding, header: SegmentHeader) -> None:
        assert finding.span is not None
        limit = finding.span.end_position
        if header.start_position + finding.file_bytes - SEGMENT_HEADER_BYTES > limit:
            self.context.add_rest(finding, limit)

    # -- what was promised, where the next opening refuses or a writer lives

    def _judge(self, finding: SegmentFinding, header: SegmentHeader, later: list[SegmentFinding]) -> None:
        context = self.context
        in_progress = context.live and header.start_position >= context.promised
        if self.broken is None and not in_progress and not follows_exactly(header, self.end):
            self._judge_break(finding, header)
        for region in finding.regions:
            if not region.intact:
                self._judge_damage(finding.name, region)
                continue
            torn = self.broken is Verdict.TORN and not (self.keeps and region in finding.beyond)
            reason = _NOT_PROMISED if torn else ""
            context.add_region(finding.name, region, Verdict.TORN if torn else Verdict.INTACT, reason)
            if not torn:
                self.end = region.after
        if not context.live:
            self._tell_rest(finding, header)
            return
        start = max(context.promised, header.start_position)
        stop = header.start_position + finding.file_bytes - SEGMENT_HEADER_BYTES
        until = next_start(later, header.start_position)
        stop = stop if until is None else min(stop, until)
        if stop > start:
            reason = "beyond the durable position of the writer"
            context.add(finding.name, start, stop, Verdict.IN_PROGRESS, reason)

    def _judge_break(self, finding: SegmentFinding, header: SegmentHeader) -> None:
        """The frames before this segment are not there, or it was made for another past."""
        context, end = self.context, self.end
        if end.position >= context.promised:
            self._tear(_not_following(finding))
            return
        if end.position < header.previous_end:
            self._missing([finding], end.position, min(header.previous_end, context.promised))
            return
        wanted = LogEnd(last_lsn=header.first_lsn - 1, position=header.previous_end, chain=header.chain)
        context.problem(
            CorruptionError(
                f"segment {finding.name} does not follow where the log ends: it follows {wanted}, and there is {end}",
                segment=finding.name,
                position=end.position,
                expected=str(end),
                found=str(wanted),
                first_lost_lsn=end.last_lsn + 1,
            )
        )
        self.broken = Verdict.CORRUPT

    def _judge_damage(self, name: str, region: Region) -> None:
        """Split damage where the promise ends: below it corruption, beyond it a torn tail or unused zeros.

        A newer format and a place that cannot be read are problems wherever they are, because the next opening refuses
        them; so is a frame with right checksums that cannot be decoded, because the next opening keeps it.
        """
        promised = min(self.context.promised, region.end_position)
        refused = isinstance(region.error, StorageError) or (region.error is not None and self.keeps)
        if self.broken is Verdict.TORN and not refused:
            promised = region.start_position
        elif region.error is not None:
            promised = region.end_position
        if promised > region.start_position:
            self.context.fault(name, replace(region, end_position=promised))
            self.broken = Verdict.CORRUPT
        rest = replace(region, start_position=max(promised, region.start_position))
        if rest.start_position >= rest.end_position:
            return
        if rest.zeros:
            self._tell_unused(name, rest)
            return
        self._tear(_torn_tail(name, rest))
        self.context.add_region(name, rest, Verdict.TORN, (rest.fault or FrameFault.END).value)

    def _judge_headless(self, finding: SegmentFinding, until: int | None) -> None:
        """A segment without a header that can be trusted: unused, being written just now, or damaged."""
        context, at = self.context, self.end.position
        refused = isinstance(finding.error, _REFUSED)
        written = finding.nonzero_until > 0 or finding.error is not None
        if not finding.present or not written or (context.live and not refused):
            return  # whatever was promised and is not there is told when all segments have been judged
        until = context.promised if until is None else min(context.promised, until)
        if not refused and (until <= at or self.broken is not None):
            self._tell_set_aside(finding)
            return
        error = finding.error or CorruptionError(
            f"segment {finding.name} has no header, and frames were promised up to position {context.promised:,}",
            segment=finding.name,
            expected="a segment header",
            found="zeros",
            first_lost_lsn=self.end.last_lsn + 1,
        )
        context.problem(error, segment=finding.name, position=at)
        verdict = Verdict.CORRUPT if finding.other is None else Verdict.FOREIGN
        verdict = Verdict.UNKNOWN if refused else verdict
        context.add(finding.name, at, max(until, at), verdict, str(error), (self.end.last_lsn + 1, None))
        self.broken = Verdict.CORRUPT

    def _tell_missing(self) -> None:
        """Tell of what was promised and is in no file, and of files that were cut short."""
        context = self.context
        beside = (Verdict.UNUSED, Verdict.STALE, Verdict.TORN, Verdict.IN_PROGRESS)
        told = max((r.end_position for r in context.ranges if r.verdict not in beside), default=0)
        if max(told, self.end.position) < context.promised:
            self._missing(self.found, max(told, self.end.position), context.promised)
        if context.live:  # a living writer seals and shortens its files while they are looked at
            return
        named = {problem.segment for problem in context.problems}
        short = cut_short(self.found)
        for finding in self.found:
            if finding.name in named or finding.name not in short:
                continue
            error, at = missing_end(finding, self.end), self.end.position
            context.problem(error)
            until = at + finding.record.reserved_bytes - max(finding.file_bytes, SEGMENT_HEADER_BYTES)
            lsns = (self.end.last_lsn + 1, None)
            context.add(finding.name, at, until, Verdict.MISSING, str(error), lsns)

    def _missing(self, found: list[SegmentFinding], start: int, until: int) -> None:
        """Positions [start, until) were promised, and no file holds them; `found` are the candidates."""
        context, end = self.context, self.end
        absent = [f.name for f in found if not f.present]
        used = [f.name for f in found if f.header is not None]
        name = (*absent[:1], *used[-1:], "")[0]
        first_lost = end.last_lsn + 1 if start == end.position else None
        last_lost = context.mark.lsn if context.mark_known and until == context.mark.position else None
        error = SegmentMissingError(
            f"frames were promised up to position {context.promised:,}, and no file holds {start:,} to {until:,}"
            + ("" if first_lost is None else f": acknowledged data is missing from LSN {first_lost:,} on"),
            segment=name or None,
            position=start,
            expected=f"frames up to position {until}",
            found="no file" if absent else "the end of the file",
            first_lost_lsn=first_lost,
        )
        context.problem(error)
        context.add(name, start, until, Verdict.MISSING, str(error), (first_lost, last_lost))
        self.broken = Verdict.CORRUPT


def _not_following(finding: SegmentFinding) -> str:
    return f"segment {finding.name} does not follow where the log ends, and nothing of it was promised"


def _torn_tail(name: str, region: Region) -> str:
    return (
        f"segment {name} has a torn tail at position {region.start_position:,}: nothing promised it, so it is an "
        "unfinished write, unless the device lost what it had synced"
    )


def _after(region: Region, piece: Region) -> Region:
    """Return the part of a region of intact frames after the piece that it begins with."""
    held = region.after.last_lsn > piece.after.last_lsn
    return replace(
        region,
        start_position=piece.end_position,
        frames=region.frames - piece.frames,
        records=region.records - piece.records,
        first_lsn=piece.after.last_lsn + 1 if held else None,
        last_lsn=region.after.last_lsn if held else None,
        before=piece.after,
    )
