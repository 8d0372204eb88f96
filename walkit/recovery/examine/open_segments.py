"""Examining segments that are not sealed: in use by a living writer, or left by one that ended without close().

The decision table is asked what the next opening would do. It says what is kept after a hole, and why a log is
refused; how each range is called follows from the promises alone, whether the table refuses or not: what is intact and
follows is intact, damage below a promise is corrupt or missing, and from the first damage that nothing promised on the
log is torn. Of a log with a living writer the table is not asked, and what is after the writer's durable position is in
progress.
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
from walkit.recovery.findings import LogFindings, SegmentFinding, follows_exactly, inspect_segment, next_start
from walkit.recovery.log_scan import link_unsealed
from walkit.recovery.plan import PlanStep, make_plan, missing_end, names_cut_short, policy_for
from walkit.recovery.survey import Region

_REFUSED = (FormatVersionError, StorageError)
_NOT_PROMISED = "intact frames after what was never promised"
_KEPT = "intact frames after a hole, which the next opening keeps"


class UnsealedPart:
    """Examines all unsealed segments of a context's log, in order."""

    def __init__(self, context: ScanContext) -> None:
        self.context = context
        self.found: list[SegmentFinding] = []
        self.end = context.manifest.end
        """Where the intact log ends so far."""
        self.broken: Verdict | None = None
        """What the first damage was: CORRUPT or TORN."""
        self.keeps = False
        """Whether intact frames within the window after a hole may have been acknowledged."""

    def examine(self) -> None:
        """Survey every segment first, because a later frame may promise an earlier one; then decide and note."""
        context = self.context
        for record in context.manifest.unsealed:
            self.found.append(inspect_segment(context.storage, context.manifest, record, live=context.live))
        for index, finding in enumerate(self.found):
            context.promised = max(context.promised, finding.promised_position)
            if finding.header is not None:
                self._survey(finding, finding.header, self.found[index + 1 :])
        steps = self._steps()
        for index, (finding, step) in enumerate(zip(self.found, steps, strict=True)):
            begun, later = len(context.ranges), self.found[index + 1 :]
            if finding.header is None:
                self._note_headless(finding, next_start(later, self.end.position))
            else:
                self._note_segment(finding, finding.header, step, later)
            if isinstance(finding.error, _REFUSED):
                self._note_refused(finding, finding.error)
            used = finding.header is not None or finding.error is not None
            context.add_segment(
                finding.record,
                "open" if used else "prepared",
                context.ranges[begun:],
                file_bytes=finding.file_bytes,
                header=finding.header,
                verdict=None if used else Verdict.UNUSED,
            )
        self._note_missing()
        context.end = self.end

    def _survey(self, finding: SegmentFinding, header: SegmentHeader, later: list[SegmentFinding]) -> None:
        context = self.context
        limits = [next_start(later, header.start_position), context.promised if context.live else None]
        try:
            context.survey(finding, min((p for p in limits if p is not None), default=None))
        except StorageError as error:
            finding.header, finding.error = None, error

    def _steps(self) -> list[PlanStep] | list[None]:
        """Return what the next opening does with each segment; None for each where it refuses or a writer lives.

        A frame with right checksums that cannot be decoded counts as refused: the next opening keeps it.
        """
        context, none = self.context, [None] * len(self.found)
        findings = LogFindings(manifest=context.manifest, slot=context.slot, unsealed=self.found)
        self.keeps = policy_for(findings, "prefix") == "holes"
        if context.live:
            return none
        with suppress(StorageError):  # the segment that cannot be read has a problem of its own
            link_unsealed(context.storage, findings)
        for finding in self.found:
            first = finding.damage if finding.follows else None
            damaged = finding.regions if self.keeps else [r for r in (first,) if r is not None]
            if isinstance(finding.error, _REFUSED) or any(region.error for region in damaged):
                return none
        try:
            return list(make_plan(findings, "prefix").steps)
        except CorruptionError as refusal:
            context.refusal = refusal
            return none

    # -- ranges

    def _note_segment(
        self,
        finding: SegmentFinding,
        header: SegmentHeader,
        step: PlanStep | None,
        later: list[SegmentFinding],
    ) -> None:
        context = self.context
        keeps = self.keeps if step is None else step.row.decision is Decision.KEEP
        in_progress = context.live and header.start_position >= context.promised
        follows = follows_exactly(header, self.end) if step is None else step.facts.follows
        if self.broken is None and not in_progress and not follows:
            self._note_break(finding, header, step, keeps)
        kept = {region.start_position: region for region in (finding.beyond if keeps else ())}
        for region in finding.regions:
            own = self.broken is not Verdict.TORN
            piece = (region if own else kept.get(region.start_position)) if region.intact else None
            if piece is not None:
                context.add_region(finding.name, piece, Verdict.INTACT, "" if own or step is None else _KEPT)
                self.end = piece.after
            if piece is None or piece.end_position < region.end_position:
                self._note_damage(finding.name, region if piece is None else _after(region, piece), step)
        if context.live:
            self._note_in_progress(finding, header, next_start(later, header.start_position))
            return
        assert finding.span is not None
        limit = finding.span.end_position
        if header.start_position + finding.file_bytes - SEGMENT_HEADER_BYTES > limit:
            context.add_rest(finding, limit)

    def _note_in_progress(self, finding: SegmentFinding, header: SegmentHeader, until: int | None) -> None:
        start = max(self.context.promised, header.start_position)
        stop = header.start_position + finding.file_bytes - SEGMENT_HEADER_BYTES
        stop = stop if until is None else min(stop, until)
        if stop > start:
            reason = "beyond the durable position of the writer"
            self.context.add(finding.name, start, stop, Verdict.IN_PROGRESS, reason)

    def _note_break(
        self, finding: SegmentFinding, header: SegmentHeader, step: PlanStep | None, keeps: bool
    ) -> None:
        """Note that the frames before this segment are not there, or that it was made for another past."""
        context, end = self.context, self.end
        if end.position >= context.promised:
            what = (
                f"segment {finding.name} does not follow where the log ends, and nothing of it was promised"
            )
            self._tear(what, step, "keeps what is intact in it" if keeps else "sets it aside")
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

    def _note_damage(self, name: str, region: Region, step: PlanStep | None) -> None:
        """Split what is not of the log where the promise ends: below it corruption, beyond it a torn tail or zeros.

        A newer format and a place that cannot be read are problems wherever they are, because the next opening refuses
        them; so is a frame with right checksums that cannot be decoded, because the next opening keeps it.
        """
        promised = min(self.context.promised, region.end_position)
        refused = isinstance(region.error, StorageError) or (region.error is not None and self.keeps)
        if region.intact or (self.broken is Verdict.TORN and not refused):
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
            self.context.add_region(name, replace(rest, first_lsn=None, last_lsn=None), Verdict.UNUSED)
            return
        what = (
            f"segment {name} has a torn tail at position {rest.start_position:,}: nothing promised it, so it is an "
            "unfinished write, unless the device lost what it had synced"
        )
        self._tear(what, step, "keeps it in lost+found")
        reason = _NOT_PROMISED if rest.intact else (rest.fault or FrameFault.END).value
        self.context.add_region(name, rest, Verdict.TORN, reason)

    def _tear(self, what: str, step: PlanStep | None, does: str) -> None:
        """Note where the log is torn, at the first place where it is, and what the next opening does."""
        if self.broken is not Verdict.TORN:
            self.broken = Verdict.TORN
            self.context.notes.append(what if step is None else f"{what}; the next opening {does}")

    # -- segments without a header, and what is in no file

    def _note_headless(self, finding: SegmentFinding, until: int | None) -> None:
        """Note a segment without a header that can be trusted: unused, being written just now, or damaged."""
        context, at = self.context, self.end.position
        refused = isinstance(finding.error, _REFUSED)
        written = finding.nonzero_until > 0 or finding.error is not None
        if not finding.present or not written or (context.live and not refused):
            return  # what was promised and is not there is noted after all segments
        until = context.promised if until is None else min(context.promised, until)
        if not refused and (until <= at or self.broken is not None):
            self._note_set_aside(finding)
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

    def _note_refused(self, finding: SegmentFinding, error: WalkitError) -> None:
        """Note what makes the next opening refuse a segment, unless one of its ranges says it."""
        if all(problem.segment != finding.name for problem in self.context.problems):
            self.context.problem(error, segment=finding.name, position=self.end.position)

    def _note_set_aside(self, finding: SegmentFinding) -> None:
        """Note a segment with a damaged header of which nothing was promised."""
        what = "it is another segment" if finding.other is not None else "its header is damaged"
        reason, at = f"{what}, and nothing of it was promised", self.end.position
        until = at + max(finding.nonzero_until - SEGMENT_HEADER_BYTES, 0)
        self.context.add(finding.name, at, until, Verdict.TORN, reason)
        self.context.notes.append(f"segment {finding.name}: {reason}; the next opening sets it aside")
        self.broken = self.broken or Verdict.TORN

    def _note_missing(self) -> None:
        """Note what was promised and is in no file, and files that were cut short."""
        context = self.context
        beside = (Verdict.UNUSED, Verdict.STALE, Verdict.TORN, Verdict.IN_PROGRESS)
        covered = max((r.end_position for r in context.ranges if r.verdict not in beside), default=0)
        if max(covered, self.end.position) < context.promised:
            self._missing(self.found, max(covered, self.end.position), context.promised)
        if context.live:  # a living writer seals and shortens its files while they are looked at
            return
        named = {problem.segment for problem in context.problems}
        short = names_cut_short(self.found)
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
        last_lost = context.slot.lsn if context.slot_known and until == context.slot.position else None
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
