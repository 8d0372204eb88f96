"""The judge: the findings of all segments in, in the order of the log, and a verdict of each range out.

A range is called by three facts: does it follow the log before it, is it intact, and was it promised. These rules are
the same for sealed segments, all of which is promised, and for those after the last seal:

1. Intact frames that follow are intact, and so are those after a hole that the decision table keeps.
2. All else below the promise is corrupt, or missing if no file holds it.
3. From the first damage that nothing promised, the log is torn. Zeros there are unused space.
4. After the durable position of a living writer all is in progress.

A row of the decision table names the work of the next opening on it. No other module calls a range torn, corrupt or
missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from walkit._internal.text import counted
from walkit.errors import CorruptionError, FormatVersionError, SegmentMissingError, StorageError, WalkitError
from walkit.format.durable_slot import DurableSlot
from walkit.format.frame import FrameFault
from walkit.format.layout import SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import Gap, HoleRecord, LogEnd, Manifest
from walkit.format.segment import SegmentHeader
from walkit.recovery.decision import Decision
from walkit.recovery.log_scan import SegmentFinding, follows_exactly, next_start, shortened, start_of
from walkit.recovery.plan import PlanStep, missing_end, names_cut_short
from walkit.recovery.scan_report import Problem, RangeVerdict, Verdict
from walkit.recovery.survey import Region

_REFUSED = (FormatVersionError, StorageError)
_BESIDE = (Verdict.UNUSED, Verdict.STALE, Verdict.TORN, Verdict.IN_PROGRESS)
"""Verdicts of bytes that do not belong to the log."""
_HOLE = "frames that were in flight never came to the disk, and later ones did; none of them was acknowledged"
_NOT_PROMISED = "intact frames after what was never promised"
_KEPT = "intact frames after a hole, which the next opening keeps"


Row = RangeVerdict | Problem | str
"""A range and its verdict; a problem; a note."""
Rows = Iterator[Row]


class Judge:
    """Judges the segments of one log, each once: first the sealed ones, then those after the last seal."""

    def __init__(self, manifest: Manifest, slot: DurableSlot, *, live: bool, bodies: bool) -> None:
        self.manifest, self.slot, self.live, self.bodies = manifest, slot, live, bodies
        self.slot_known = slot.epoch_id in {e.id for e in manifest.lineage}
        self.promised = max(manifest.end.position, slot.position if self.slot_known else 0)
        """How far anything that can be trusted promises the log to be on stable storage."""
        self.end = manifest.end
        """Where the intact log ends, as far as it has been judged."""
        self._broken: Verdict | None = None
        """The verdict of the first damage after the last seal: CORRUPT or TORN."""
        self._keeps = False
        """Whether intact frames within the window after a hole may have been acknowledged."""
        self._covered = 0
        """Up to which position a file holds the log, or what is left of it."""
        self._named: set[str | None] = set()
        """The segments that have a problem."""

    def _range(
        self,
        segment: str,
        start: int,
        end: int,
        verdict: Verdict,
        reason: str = "",
        lsns: tuple[int | None, int | None] = (None, None),
    ) -> RangeVerdict:
        first, last = lsns
        if first is not None and last is not None and last < first:
            first = last = None
        if verdict not in _BESIDE:
            self._covered = max(self._covered, end)
        found = RangeVerdict(segment=segment, start_position=start, end_position=end, verdict=verdict)
        return replace(found, first_lsn=first, last_lsn=last, reason=reason)

    def _region(self, segment: str, region: Region, verdict: Verdict, reason: str = "") -> RangeVerdict:
        lsns = region.first_lsn, region.last_lsn
        found = self._range(segment, region.start_position, region.end_position, verdict, reason, lsns)
        return replace(found, frames=region.frames, records=region.records)

    def _fault(self, found: RangeVerdict, error: WalkitError) -> Rows:
        """Yield a range of which something is lost, and its problem."""
        yield found if found.reason else replace(found, reason=str(error))
        yield self._problem(error, found.segment or None, found.start_position)

    def _problem(self, error: WalkitError, segment: str | None, position: int) -> Problem:
        problem = Problem.of(error, segment=segment, position=position)
        self._named.add(problem.segment)
        return problem

    # -- sealed segments

    def sealed(self, finding: SegmentFinding, error: WalkitError | None) -> Rows:
        """Judge a sealed segment; `error` is the reason if it is missing, short, or another one."""
        record, damaged = finding.record, finding.error
        position = record.start_position
        if finding.header is not None:
            if finding.mended and damaged is not None:
                yield self._problem(damaged, record.name, position)  # what is after its header is readable
            yield from self._sealed_regions(finding, finding.header)
            return
        assert error is not None
        if isinstance(damaged, CorruptionError):
            if finding.other is not None:
                error = damaged
            elif error is not damaged and finding.file_bytes >= SEGMENT_HEADER_BYTES:
                yield self._problem(damaged, record.name, position)
        verdict = Verdict.FOREIGN if finding.other is not None and error is damaged else _lost(error)
        if isinstance(error, SegmentMissingError):
            error.position = position  # nothing of it is readable, wherever the file ends
        lsns = record.first_lsn, record.last_lsn
        found = self._range(record.name, position, record.end_position, verdict, lsns=lsns)
        yield from self._fault(found, error)

    def gaps(self, name: str, until: int) -> Rows:
        """Judge the holes and lost ranges between the sealed segments before position `until`."""
        if not self.manifest.gaps:
            return
        begin = max((s.end_position for s in self.manifest.sealed if s.end_position <= until), default=0)
        for gap in self.manifest.gaps:
            if begin <= gap.start_position < until:
                yield from self._gap(name, gap)

    def _gap(self, name: str, gap: Gap) -> Rows:
        start, end, lsns = gap.start_position, gap.end_position, (gap.first_lsn, gap.last_lsn)
        if isinstance(gap, HoleRecord):
            yield self._range(name, start, end, Verdict.HOLE, _HOLE, lsns)
            return
        yield self._range(gap.segment or name, start, end, Verdict.LOST, gap.reason, lsns)
        what = f"LSN {gap.first_lsn:,} to {gap.last_lsn:,}" if gap.lsns else "no record"
        given_up = f"positions {start:,} to {end:,} were given up by recovery='salvage', and {what} with them"
        yield f"{given_up}: {gap.reason}"

    def _sealed_regions(self, finding: SegmentFinding, header: SegmentHeader) -> Rows:
        record = finding.record
        reached = header.start_position + finding.file_bytes - SEGMENT_HEADER_BYTES
        whole = reached >= self.manifest.frames_end_of(record)
        self.end = LogEnd(last_lsn=record.first_lsn - 1, position=record.start_position, chain=header.chain)
        yield from self._regions(finding, None, whole=whole)
        if not whole:
            wanted, first = SEGMENT_HEADER_BYTES + record.size_bytes, self.end.last_lsn + 1
            start, lsns = self.end.position, (first, record.last_lsn)
            error = shortened(finding, wanted, start, first)
            missing = self._range(record.name, start, record.end_position, Verdict.MISSING, lsns=lsns)
            yield from self._fault(missing, error)
            return
        yield from self._rest(finding, record.end_position)
        if finding.damage is None:
            yield from _unlike_manifest(finding, header, self.end)

    # -- segments after the last seal

    def unsealed(
        self, found: list[SegmentFinding], steps: Sequence[PlanStep | None], *, keeps: bool
    ) -> Iterator[tuple[SegmentFinding | None, list[Row]]]:
        """Yield each of these segments with its rows, then None with the rows of ranges that no file holds.

        `steps` has the plan of the next opening for each, and None if it refuses or a writer lives.
        """
        self._keeps, self.end, self._broken = keeps, self.manifest.end, None
        for index, (finding, step) in enumerate(zip(found, steps, strict=True)):
            later = found[index + 1 :]
            if finding.header is None:
                rows = list(self._headless(finding, next_start(later, self.end.position)))
            else:
                rows = list(self._unsealed(finding, finding.header, step, later))
            if isinstance(finding.error, _REFUSED) and finding.name not in self._named:
                rows.append(self._problem(finding.error, finding.name, self.end.position))
            yield finding, rows
        yield None, list(self._absent(found))

    def _unsealed(
        self,
        finding: SegmentFinding,
        header: SegmentHeader,
        step: PlanStep | None,
        later: list[SegmentFinding],
    ) -> Rows:
        keeps = self._keeps if step is None else step.row.decision is Decision.KEEP
        in_progress = self.live and header.start_position >= self.promised
        follows = follows_exactly(header, self.end) if step is None else step.facts.follows
        if self._broken is None and not in_progress and not follows:
            yield from self._break(finding, header, step, keeps)
        yield from self._regions(finding, step, keeps=keeps)
        stop = header.start_position + finding.file_bytes - SEGMENT_HEADER_BYTES
        if self.live:
            until = next_start(later, header.start_position)
            start = max(self.promised, header.start_position)
            stop = stop if until is None else min(stop, until)
            if stop > start:
                reason = "beyond the durable position of the writer"
                yield self._range(finding.name, start, stop, Verdict.IN_PROGRESS, reason)
            return
        assert finding.span is not None
        if stop > finding.span.end_position:
            yield from self._rest(finding, finding.span.end_position)

    def _regions(
        self, finding: SegmentFinding, step: PlanStep | None, *, keeps: bool = False, whole: bool = True
    ) -> Rows:
        """Judge the regions of a segment; `keeps` those after a hole, too. One that is not `whole` lacks its end."""
        held = Verdict.INTACT if self.bodies or not finding.sealed else Verdict.NOT_READ
        kept = {region.start_position: region for region in (finding.beyond if keeps else ())}
        for region in finding.regions:
            if region.gap is not None:
                yield from self._gap(finding.name, region.gap)
                self.end = region.after
                continue
            if not whole and not region.intact and region is finding.regions[-1]:
                continue  # up to the end of a file that is too short: it is missing
            own = self._broken is not Verdict.TORN
            piece = (region if own else kept.get(region.start_position)) if region.intact else None
            if piece is not None:
                yield self._region(finding.name, piece, held, "" if own or step is None else _KEPT)
                self.end = piece.after
            if piece is None or piece.end_position < region.end_position:
                rest = region if piece is None else _after(region, piece)
                yield from self._split(finding, rest, step)

    def _break(
        self, finding: SegmentFinding, header: SegmentHeader, step: PlanStep | None, keeps: bool
    ) -> Rows:
        """Judge that the frames before this segment are not there, or that it was made for another past."""
        end = self.end
        if end.position >= self.promised:
            what = (
                f"segment {finding.name} does not follow where the log ends, and nothing of it was promised"
            )
            does = "keeps what is intact in it" if keeps else "sets it aside"
            yield from self._tear(what, step, does)
        elif end.position < header.previous_end:
            yield from self._missing([finding], end.position, min(header.previous_end, self.promised))
        else:
            wanted = replace(start_of(header), position=header.previous_end)
            error = CorruptionError(
                f"segment {finding.name} does not follow where the log ends: it follows {wanted}, and there is {end}",
                segment=finding.name,
                position=end.position,
                expected=str(end),
                found=str(wanted),
                first_lost_lsn=end.last_lsn + 1,
            )
            self._broken = Verdict.CORRUPT
            yield self._problem(error, finding.name, end.position)

    def _split(self, finding: SegmentFinding, region: Region, step: PlanStep | None) -> Rows:
        """Split what is not of the log where the promise ends: below it corruption, beyond it a torn tail or zeros.

        A newer format and a place that cannot be read are problems wherever they are, because the next opening refuses
        them; so is a frame with right checksums that cannot be decoded, because the next opening keeps it.
        """
        name, promised = finding.name, min(self.promised, region.end_position)
        refused = isinstance(region.error, StorageError) or (region.error is not None and self._keeps)
        if region.intact or (self._broken is Verdict.TORN and not refused):
            promised = region.start_position
        elif region.error is not None:
            promised = region.end_position
        if promised > region.start_position:
            yield from self._damage(finding, replace(region, end_position=promised))
            self._broken = Verdict.CORRUPT
        rest = replace(region, start_position=max(promised, region.start_position))
        if rest.start_position >= rest.end_position:
            return
        if rest.zeros:
            yield self._region(name, replace(rest, first_lsn=None, last_lsn=None), Verdict.UNUSED)
            return
        what = (
            f"segment {name} has a torn tail at position {rest.start_position:,}: nothing promised it, so it is an "
            "unfinished write, unless the device lost what it had synced"
        )
        reason = _NOT_PROMISED if rest.intact else (rest.fault or FrameFault.END).value
        yield from self._tear(what, step, "keeps it in lost+found")
        yield self._region(name, rest, Verdict.TORN, reason)

    def _tear(self, what: str, step: PlanStep | None, does: str) -> Rows:
        """Note the first place at which the log is torn, and the work of the next opening on it."""
        if self._broken is not Verdict.TORN:
            self._broken = Verdict.TORN
            yield what if step is None else f"{what}; the next opening {does}"

    def _damage(self, finding: SegmentFinding, region: Region) -> Rows:
        """Judge damage below the promise.

        A newer format and an unreadable place keep their own error; the rest is corruption. If the damage leaves open
        how far it reaches, it is to the end of a sealed segment.
        """
        segment = finding.name
        fault, error, header = region.fault or FrameFault.END, region.error, region.at_fault
        verdict, reason = Verdict.UNKNOWN, str(error)
        if error is None or isinstance(error, CorruptionError):
            verdict, reason = Verdict.CORRUPT, fault.value
            what = fault.value if error is None else str(error)
            wanted = "an intact frame"
            wanted += "" if region.first_lsn is None else f" with LSN {region.first_lsn}"
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
        if finding.sealed:
            self.end = LogEnd(last_lsn=region.last_lsn or self.end.last_lsn, position=region.end_position)
            last = finding.record.last_lsn if region.last_lsn is None else region.last_lsn
            region = replace(region, last_lsn=last)
        yield from self._fault(self._region(segment, region, verdict, reason), error)

    def _rest(self, finding: SegmentFinding, end_position: int) -> Rows:
        """Judge what is after the end of a segment: zeros, or stale bytes that the next opening sets aside."""
        assert finding.header is not None
        name, offset = finding.name, finding.header.offset_of(end_position)
        until = max(finding.nonzero_until, offset)
        at, stop = end_position + until - offset, end_position + finding.file_bytes - offset
        if at > end_position:
            yield self._range(name, end_position, at, Verdict.STALE, "bytes after the end of the segment")
            yield (
                f"segment {name}: {counted(until - offset, 'byte')} after its end: not of the log; "
                "the next opening keeps them in lost+found"
            )
        if stop > at:
            yield self._range(name, at, stop, Verdict.UNUSED)

    # -- segments without a header, and missing files

    def _headless(self, finding: SegmentFinding, until: int | None) -> Rows:
        """Judge a segment without a header that can be trusted: unused, being written just now, or damaged."""
        at, name = self.end.position, finding.name
        refused = isinstance(finding.error, _REFUSED)
        written = finding.nonzero_until > 0 or finding.error is not None
        if not finding.present or not written or (self.live and not refused):
            return  # what was promised and is not there is judged after all segments
        until = self.promised if until is None else min(self.promised, until)
        if not refused and (until <= at or self._broken is not None):
            what = "it is another segment" if finding.other is not None else "its header is damaged"
            reason = f"{what}, and nothing of it was promised"
            until = at + max(finding.nonzero_until - SEGMENT_HEADER_BYTES, 0)
            self._broken = self._broken or Verdict.TORN
            yield self._range(name, at, until, Verdict.TORN, reason)
            yield f"segment {name}: {reason}; the next opening sets it aside"
            return
        error = finding.error or CorruptionError(
            f"segment {name} has no header, and frames were promised up to position {self.promised:,}",
            segment=name,
            expected="a segment header",
            found="zeros",
            first_lost_lsn=self.end.last_lsn + 1,
        )
        verdict = Verdict.CORRUPT if finding.other is None else Verdict.FOREIGN
        verdict = Verdict.UNKNOWN if refused else verdict
        self._broken = Verdict.CORRUPT
        lsns = self.end.last_lsn + 1, None
        yield from self._fault(self._range(name, at, max(until, at), verdict, lsns=lsns), error)

    def _absent(self, found: list[SegmentFinding]) -> Rows:
        """Judge what was promised and is in no file, and files that were cut short."""
        covered = max(self._covered, self.end.position)
        if covered < self.promised:
            yield from self._missing(found, covered, self.promised)
        if self.live:  # a living writer seals and shortens its files while they are looked at
            return
        short = names_cut_short(found)
        for finding in found:
            if finding.name in self._named or finding.name not in short:
                continue
            at, reserved = self.end.position, finding.record.reserved_bytes
            until = at + reserved - max(finding.file_bytes, SEGMENT_HEADER_BYTES)
            lsns = self.end.last_lsn + 1, None
            missing = self._range(finding.name, at, until, Verdict.MISSING, lsns=lsns)
            yield from self._fault(missing, missing_end(finding, self.end))

    def _missing(self, found: list[SegmentFinding], start: int, until: int) -> Rows:
        """Judge positions [start, until), which were promised, and which no file holds; `found` are the candidates."""
        absent = [f.name for f in found if not f.present]
        used = [f.name for f in found if f.header is not None]
        name = (*absent[:1], *used[-1:], "")[0]
        first_lost = self.end.last_lsn + 1 if start == self.end.position else None
        last_lost = self.slot.lsn if self.slot_known and until == self.slot.position else None
        error = SegmentMissingError(
            f"frames were promised up to position {self.promised:,}, and no file holds {start:,} to {until:,}"
            + ("" if first_lost is None else f": acknowledged data is missing from LSN {first_lost:,} on"),
            segment=name or None,
            position=start,
            expected=f"frames up to position {until}",
            found="no file" if absent else "the end of the file",
            first_lost_lsn=first_lost,
        )
        self._broken = Verdict.CORRUPT
        missing = self._range(name, start, until, Verdict.MISSING, lsns=(first_lost, last_lost))
        yield from self._fault(missing, error)


def _lost(error: WalkitError) -> Verdict:
    """Return the verdict of a sealed segment of which nothing can be read."""
    if isinstance(error, SegmentMissingError):
        return Verdict.MISSING
    return Verdict.UNKNOWN if isinstance(error, _REFUSED) else Verdict.CORRUPT


def _unlike_manifest(finding: SegmentFinding, header: SegmentHeader, end: LogEnd) -> Rows:
    """Hold what the manifest says of a segment against its frames, which are all intact."""
    record = finding.record
    compacted = bool(header.flags & SegmentFlag.COMPACTED)
    facts = {
        "flags": (record.flags, int(header.flags)),
        "start chain": (record.start_chain, header.chain),
        "end chain": (record.end_chain, header.end_chain if compacted else end.chain),
        "last LSN": (record.last_lsn, end.last_lsn),
        "number of frames": (record.frames, finding.frames),
        "number of records": (record.records, finding.records),
    }
    for what, (expected, found) in facts.items():
        if expected != found:
            error = CorruptionError(
                f"the manifest and segment {record.name} differ in the {what}: "
                f"the manifest says {expected:,}, the frames {found:,}",
                segment=record.name,
                position=record.start_position,
                expected=expected,
                found=found,
            )
            yield Problem.of(error)


def _after(region: Region, piece: Region) -> Region:
    """Return the part of a region of intact frames after its first piece."""
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
