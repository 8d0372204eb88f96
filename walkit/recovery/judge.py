"""The judge: the segments of a log in, in its order, and a verdict of each range out.

A range is called by three facts: does it follow the log before it, is it intact, and was it promised. These rules are
the same for sealed segments, all of which is promised, and for those after the last seal:

1. Intact frames that follow are intact, and so are those after a hole that the decision table keeps.
2. All else below the promise is corrupt, or missing if no file holds it.
3. From the first damage that nothing promised, the log is torn. Zeros there are unused space.
4. After the durable position of a living writer all is in progress.

The judge reads one segment after the other. In memory are findings: one region for each stretch of intact frames. No
other module calls a range torn, corrupt or missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from walkit._internal.text import counted
from walkit.errors import CorruptionError, FormatVersionError, SegmentMissingError, StorageError, WalkitError
from walkit.format.durable_slot import DurableSlot
from walkit.format.frame import FrameFault
from walkit.format.layout import FRAME_BYTES_LIMIT, SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import Gap, HoleRecord, LogEnd, Manifest
from walkit.format.segment import SegmentHeader
from walkit.recovery.log_scan import (
    LogFindings,
    Progress,
    ProgressCounter,
    SegmentFinding,
    follows_exactly,
    inspect_segment,
    link_unsealed,
    next_start,
    sealed_error,
    start_of,
    survey_segment,
)
from walkit.recovery.plan import make_plan, names_cut_short, policy_for
from walkit.recovery.scan_report import Problem, RangeVerdict, Verdict, lsn_text
from walkit.recovery.survey import Region
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import Storage

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
    """Reads and judges the segments of one log, each once: first the sealed ones, then those after the last seal."""

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
        self.slot_known = slot.epoch_id in {e.id for e in manifest.lineage}
        self.promised = LogFindings(manifest=manifest, slot=slot).promised_position
        """How far anything that can be trusted promises the log to be on stable storage."""
        self.end = manifest.end
        """Where the intact log ends, as far as it has been judged."""
        self.refusal: CorruptionError | None = None
        """Why the decision table refuses the segments after the last seal."""
        self._broken: Verdict | None = None
        """The verdict of the first damage after the last seal: CORRUPT or TORN."""
        self._keeps = False
        """Whether intact frames within the window after a hole may have been acknowledged."""
        self._covered = 0
        """Up to which position a file holds the log, or a damaged part of it."""
        self._named: set[str | None] = set()
        """The segments that have a problem."""
        self._counter = ProgressCounter(progress, sum(s.size_bytes for s in manifest.sealed))

    def segments(self) -> Iterator[tuple[SegmentFinding | None, Rows]]:
        """Yield each segment, in the order of the log, and its rows; None for the rows of ranges in no segment."""
        manifest = self.manifest
        for record in manifest.sealed:
            yield None, self._gaps(record.name, record.start_position)
            finding = inspect_segment(self.storage, manifest, record, rebuild=True)
            if finding.header is not None and finding.header_rebuilt:
                # A damaged frame may be larger than every intact one.
                finding.header = replace(finding.header, frame_bytes_max=FRAME_BYTES_LIMIT)
            self._survey(finding)
            if not finding.present and self.live and self._was_trimmed(finding):
                yield None, iter([f"segment {record.name} was trimmed while the log was read"])
                continue
            yield finding, self._sealed(finding)
        yield None, self._gaps("", manifest.end.position + 1)
        found = self._read_unsealed()
        self.end, self._broken = manifest.end, None
        for index, finding in enumerate(found):
            yield finding, self._unsealed(finding, found[index + 1 :])
        yield None, self._absent(found)

    # -- reading

    def _was_trimmed(self, finding: SegmentFinding) -> bool:
        return all(s.number != finding.record.number for s in load_manifest(self.storage).segments)

    def _survey(self, finding: SegmentFinding, until: int | None = None) -> None:
        """Read the frames of a segment with a header; note the promises of its intact frames."""
        if finding.header is not None:
            try:
                survey_segment(
                    self.storage,
                    self.manifest,
                    finding,
                    until=until,
                    bodies=self.bodies or not finding.sealed,
                    decode=self.decode,
                    reached=self._counter.within_segment(),
                )
            except SegmentMissingError:  # a trim has removed it since it was looked at
                finding.header, finding.present = None, False
            except StorageError as error:
                finding.header, finding.error = None, error
        self.promised = max(self.promised, finding.promised_position)

    def _read_unsealed(self) -> list[SegmentFinding]:
        """Read every segment after the last seal before any is judged: a later frame may promise an earlier one."""
        records = self.manifest.unsealed
        found = [inspect_segment(self.storage, self.manifest, record, live=self.live) for record in records]
        for index, finding in enumerate(found):
            self.promised = max(
                self.promised, finding.promised_position
            )  # of frames after a damaged header, too
            start = 0 if finding.header is None else finding.header.start_position
            limits = [next_start(found[index + 1 :], start), self.promised if self.live else None]
            self._survey(finding, min((p for p in limits if p is not None), default=None))
        findings = LogFindings(manifest=self.manifest, slot=self.slot, unsealed=found)
        self._keeps = policy_for(findings, "prefix") == "holes"
        if not self.live:
            # The segment that cannot be read has a problem of its own.
            with suppress(StorageError, SegmentMissingError):
                link_unsealed(self.storage, findings)
            try:
                make_plan(findings, "prefix")
            except CorruptionError as refusal:
                self.refusal = refusal
        return found

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

    def _fault(self, found: RangeVerdict, error: WalkitError | None = None) -> Rows:
        """Yield a range of which something is lost, and its problem: `error`, or one made of the range."""
        yield found if found.reason or error is None else replace(found, reason=str(error))
        yield self._problem(error or self._error_of(found), found.segment or None, found.start_position)

    def _error_of(self, found: RangeVerdict) -> CorruptionError | SegmentMissingError:
        """Return the error of a faulty range: its place, its loss, and the promise."""
        kind = SegmentMissingError if found.verdict is Verdict.MISSING else CorruptionError
        where = f"segment {found.segment}" if found.segment else "the log"
        lsns = lsn_text(found.first_lsn, found.last_lsn)
        return kind(
            f"{where} is damaged from position {found.start_position:,} to {found.end_position:,} "
            f"({found.verdict.value}): {found.reason}. Frames were promised up to position {self.promised:,}"
            + (f"; acknowledged data is lost: LSN {lsns}" if lsns else ""),
            segment=found.segment or None,
            position=found.start_position,
            expected="intact frames" + (f" with LSN {lsns}" if lsns else ""),
            found=found.reason,
            first_lost_lsn=found.first_lsn,
        )

    def _problem(self, error: WalkitError, segment: str | None, position: int) -> Problem:
        problem = Problem.of(error, segment=segment, position=position)
        self._named.add(problem.segment)
        return problem

    # -- sealed segments

    def _sealed(self, finding: SegmentFinding) -> Rows:
        record, damaged = finding.record, finding.error
        error = sealed_error(self.storage, self.manifest, finding)
        position = record.start_position
        if finding.header is not None:
            if finding.header_rebuilt and damaged is not None:
                yield self._problem(damaged, record.name, position)  # the bytes after its header are readable
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

    def _gaps(self, name: str, until: int) -> Rows:
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
        text = f"positions {start:,} to {end:,} were given up by recovery='salvage', and {what} with them"
        yield f"{text}: {gap.reason}"

    def _sealed_regions(self, finding: SegmentFinding, header: SegmentHeader) -> Rows:
        record = finding.record
        reached = header.start_position + finding.file_bytes - SEGMENT_HEADER_BYTES
        whole = reached >= self.manifest.frames_end_of(record)
        self.end = LogEnd(last_lsn=record.first_lsn - 1, position=record.start_position, chain=header.chain)
        yield from self._regions(finding, whole=whole)
        if not whole:
            start, lsns = self.end.position, (self.end.last_lsn + 1, record.last_lsn)
            reason = "the file is shorter than the manifest says"
            missing = self._range(record.name, start, record.end_position, Verdict.MISSING, reason, lsns)
            yield from self._fault(missing)
            return
        yield from self._rest(finding, record.end_position)
        if finding.damage is None:
            yield from _unlike_manifest(finding, header, self.end)

    # -- segments after the last seal

    def _unsealed(self, finding: SegmentFinding, later: list[SegmentFinding]) -> Rows:
        header = finding.header
        if header is None:
            yield from self._without_header(finding, next_start(later, self.end.position))
        else:
            yield from self._with_header(finding, header, later)
        if isinstance(finding.error, _REFUSED) and finding.name not in self._named:
            yield self._problem(finding.error, finding.name, self.end.position)

    def _with_header(
        self, finding: SegmentFinding, header: SegmentHeader, later: list[SegmentFinding]
    ) -> Rows:
        in_progress = self.live and header.start_position >= self.promised
        if self._broken is None and not in_progress and not follows_exactly(header, self.end):
            yield from self._break(finding, header)
        yield from self._regions(finding, keeps=self._keeps)
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

    def _regions(self, finding: SegmentFinding, *, keeps: bool = False, whole: bool = True) -> Rows:
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
                yield self._region(finding.name, piece, held, "" if own else _KEPT)
                self.end = piece.after
            if piece is None or piece.end_position < region.end_position:
                rest = region if piece is None else _after(region, piece)
                yield from self._split(finding, rest)

    def _break(self, finding: SegmentFinding, header: SegmentHeader) -> Rows:
        """Judge that the frames before this segment are not there, or that it was made for another past."""
        end, what = self.end, "does not follow where the log ends"
        if end.position >= self.promised:
            yield from self._tear(f"segment {finding.name} {what}, and nothing of it was promised")
        elif end.position < header.previous_end:
            yield from self._missing([finding], end.position, min(header.previous_end, self.promised))
        else:
            before = replace(start_of(header), position=header.previous_end)
            reason, at, lsns = f"it follows {before}, not {end}", end.position, (end.last_lsn + 1, None)
            self._broken = Verdict.CORRUPT
            error = self._error_of(self._range(finding.name, at, at, Verdict.CORRUPT, reason, lsns))
            yield self._problem(error, finding.name, at)

    def _split(self, finding: SegmentFinding, region: Region) -> Rows:
        """Split bytes outside the log at the end of the promise: below it corruption, beyond it a torn tail or zeros.

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
        yield from self._tear(what)
        yield self._region(name, rest, Verdict.TORN, reason)

    def _tear(self, what: str) -> Rows:
        """Note the first place at which the log is torn."""
        if self._broken is not Verdict.TORN:
            self._broken = Verdict.TORN
            yield what if self.live else f"{what}; an opening cuts it off and keeps it in lost+found"

    def _damage(self, finding: SegmentFinding, region: Region) -> Rows:
        """Judge damage below the promise.

        A newer format and an unreadable place keep their own error; the rest is corruption. If the damage leaves open
        how far it reaches, it is to the end of a sealed segment.
        """
        error, header = region.error, region.at_fault
        verdict, reason = Verdict.UNKNOWN, str(error)
        if error is None or isinstance(error, CorruptionError):
            claim = "" if header is None else f" (LSN {header.first_lsn}, position {header.position})"
            reason = f"{(region.fault or FrameFault.END).value}{claim}" if error is None else str(error)
            verdict, error = Verdict.CORRUPT, None
        if finding.sealed:
            self.end = LogEnd(last_lsn=region.last_lsn or self.end.last_lsn, position=region.end_position)
            last = finding.record.last_lsn if region.last_lsn is None else region.last_lsn
            region = replace(region, last_lsn=last)
        yield from self._fault(self._region(finding.name, region, verdict, reason), error)

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

    def _without_header(self, finding: SegmentFinding, until: int | None) -> Rows:
        """Judge a segment without a header that can be trusted: unused, being written just now, or damaged."""
        at, name = self.end.position, finding.name
        refused = isinstance(finding.error, _REFUSED)
        written = finding.nonzero_until > 0 or finding.error is not None
        if not finding.present or not written or (self.live and not refused):
            return  # missing promised frames are judged after all segments
        until = self.promised if until is None else min(self.promised, until)
        if not refused and (until <= at or self._broken is not None):
            what = "it is another segment" if finding.other is not None else "its header is damaged"
            reason = f"{what}, and nothing of it was promised"
            until = at + max(finding.nonzero_until - SEGMENT_HEADER_BYTES, 0)
            self._broken = self._broken or Verdict.TORN
            yield self._range(name, at, until, Verdict.TORN, reason)
            yield f"segment {name}: {reason}; the next opening sets it aside"
            return
        verdict = Verdict.CORRUPT if finding.other is None else Verdict.FOREIGN
        verdict = Verdict.UNKNOWN if refused else verdict
        self._broken = Verdict.CORRUPT
        lsns = self.end.last_lsn + 1, None
        reason = "" if finding.error is not None else "it has no header"
        yield from self._fault(self._range(name, at, max(until, at), verdict, reason, lsns), finding.error)

    def _absent(self, found: list[SegmentFinding]) -> Rows:
        """Judge promised frames that are in no file, and files that are absent or were cut short."""
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
            reason = "its file is missing"
            if finding.present:
                reason = f"its file was cut short: {finding.file_bytes:,} of {reserved:,} reserved bytes"
            yield from self._fault(self._range(finding.name, at, until, Verdict.MISSING, reason, lsns))

    def _missing(self, found: list[SegmentFinding], start: int, until: int) -> Rows:
        """Judge positions [start, until), which were promised, and which no file holds; `found` are the candidates."""
        absent = [f.name for f in found if not f.present]
        used = [f.name for f in found if f.header is not None]
        name = (*absent[:1], *used[-1:], "")[0]
        first_lost = self.end.last_lsn + 1 if start == self.end.position else None
        last_lost = self.slot.lsn if self.slot_known and until == self.slot.position else None
        self._broken = Verdict.CORRUPT
        reason = "no file holds it" if absent else "the file ends before it"
        lsns = first_lost, last_lost
        yield from self._fault(self._range(name, start, until, Verdict.MISSING, reason, lsns))


def _lost(error: WalkitError) -> Verdict:
    """Return the verdict of a sealed segment of which nothing can be read."""
    if isinstance(error, SegmentMissingError):
        return Verdict.MISSING
    return Verdict.UNKNOWN if isinstance(error, _REFUSED) else Verdict.CORRUPT


def _unlike_manifest(finding: SegmentFinding, header: SegmentHeader, end: LogEnd) -> Rows:
    """Compare the manifest's record of a segment with its frames, which are all intact."""
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


def verdict_of(error: WalkitError) -> Verdict:
    """Return the verdict on a range that a reader of vouched frames refused: with a DivergenceError it is foreign."""
    if isinstance(error, SegmentMissingError):
        return Verdict.MISSING
    return Verdict.CORRUPT if isinstance(error, CorruptionError) else Verdict.FOREIGN
