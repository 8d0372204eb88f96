"""Which ranges of a log are damaged, and between which ends a peer's frames have to fit. Never changes a byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from walkit.format.durable_slot import DurableSlot
from walkit.format.layout import POSITION_MAX, SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import Gap, LogEnd, Manifest, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.recovery.findings import SegmentFinding, inspect_segment
from walkit.recovery.survey import FrameSpan, Region, SegmentSurvey, passed
from walkit.recovery.tolerant_file import TolerantFile
from walkit.replication.logs.role import is_replica
from walkit.replication.protocol.frame_run import FrameLimits
from walkit.segments.frame_walk import last_chain_of
from walkit.storage.interface import Storage

CUT_SHORT = "its file was cut short, and no durable slot says where its frames ended"
NO_WINDOW = "its header is gone, and that of a log in completion order is not made anew"


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Positions [before.position, after.position) of a segment that cannot be used.

    The frames that were there follow `before`, and what stands at `after` follows them. Without `has_chain` the end is
    known by position and LSN alone, as the durable slot and recorded gaps tell them.
    """

    before: LogEnd
    after: LogEnd
    has_chain: bool = True
    until: int = 0
    """Frames after `after` are taken, too, up to this position: a durable slot may be old, or gone."""
    by_slot: bool = False
    """Whether the durable slot alone says where it ends: that may be after markers that a peer lacks."""

    @property
    def furthest(self) -> int:
        """No frame is taken that ends after this position."""
        return max(self.after.position, self.until)

    @property
    def only_asked(self) -> bool:
        """Whether nothing is known to be missing: a peer is asked whether it has more."""
        return self.before == self.after

    def ends_at(self, end: LogEnd) -> bool:
        """Say whether frames that end there fill the range."""
        return (end if self.has_chain else replace(end, chain=self.after.chain)) == self.after

    def lacks_markers_alone(self, end: LogEnd) -> bool:
        """Say whether frames that end there lack none with records: LSNs are dense."""
        return end.position < self.after.position and end.last_lsn == self.after.last_lsn


@dataclass(frozen=True, slots=True)
class DamagedSegment:
    """A segment with damage: what is intact of it, and the ranges that are to be fetched; or why none can be."""

    record: SegmentRecord
    header: SegmentHeader | None
    """The one in its file; None where that is missing or damaged, so that all of the segment is to be fetched."""
    present: bool
    file_bytes: int
    ranges: tuple[DamagedRange, ...]
    end_position: int
    """Where its frames end: those that are kept, and those that are fetched. With a torn tail, where that begins."""
    why_not: str = ""
    """Why it cannot be healed, in words; "" where it may be."""
    torn: bool = False
    """Whether damage stands at its end that nothing promised: it stays as it is, for the next opening to judge."""
    limits: FrameLimits | None = None
    """What intact segments of its epoch say of frames; None where there are none."""
    too_short: bool = False
    """Whether its file gets back the length that was reserved for it, too."""
    imported: bool = False
    """Whether a header of an unsealed segment that is made anew is a replica's."""

    @property
    def bytes_damaged(self) -> int:
        """Bytes of frames that are to be fetched, at most."""
        return sum(r.furthest - r.before.position for r in self.ranges)

    @property
    def only_asked(self) -> bool:
        """Whether nothing of it is known to be damaged: a peer is asked whether it has more."""
        return not self.why_not and not self.too_short and all(r.only_asked for r in self.ranges)


def find_damage(
    storage: Storage, manifest: Manifest, slot: DurableSlot, reached: Callable[[int], object]
) -> list[DamagedSegment]:
    """Return the segments that are damaged, in log order; every frame is read. `reached` gets the bytes read so far.

    The segment in use of a log that was not closed is among them where a peer may have more of it: see `only_asked`.
    """
    found: list[DamagedSegment | None] = []
    done = 0
    findings = [inspect_segment(storage, manifest, record, tolerant=True) for record in manifest.segments]
    for index, finding in enumerate(findings):
        before = manifest.segments[index - 1] if index else None
        if finding.sealed:
            damaged = _sealed(storage, manifest, finding, before)
        else:
            around = _Around(storage, manifest, slot, tuple(findings[:index]), tuple(findings[index + 1 :]))
            damaged = _headless(around, finding) if finding.header is None else _in_use(around, finding)
        if damaged is not None:
            found.append(replace(damaged, limits=_limits_of(findings, finding.record.epoch)))
        done += finding.file_bytes
        reached(done)
    return [damaged for damaged in found if damaged is not None]


@dataclass(frozen=True, slots=True)
class _Around:
    """What one unsealed segment is judged with: the log's manifest and durable slot, and the segments beside it."""

    storage: Storage
    manifest: Manifest
    slot: DurableSlot
    earlier: tuple[SegmentFinding, ...]
    later: tuple[SegmentFinding, ...]

    @property
    def is_last(self) -> bool:
        """Whether no later segment is in use."""
        return not any(f.header is not None for f in self.later if not f.sealed)

    @property
    def is_before_unread(self) -> bool:
        """Whether a later segment cannot be read: its frames, which may be there, must not come into this one."""
        return any(f.header is None and (f.unopenable or f.unreadable) for f in self.later)

    @property
    def follows_sealed(self) -> bool:
        """Whether what is sealed ends right before it."""
        return all(f.sealed for f in self.earlier)

    def promised_by(self, finding: SegmentFinding) -> int:
        """Return how far frames were promised by the manifest, the durable slot, or the frames of this segment."""
        known = self.slot.position if self.slot.epoch_id in {e.id for e in self.manifest.lineage} else 0
        return max(known, self.manifest.end.position, finding.promised_position)

    def certain_end(self, epoch_id: int, start: int) -> tuple[LogEnd, bool] | None:
        """Return where the frames of a segment end for certain, and whether the chain there is known.

        That is where the next one begins, as far as the durable slot tells that all before it is on stable storage.
        """
        if self.slot.epoch_id != epoch_id or self.is_before_unread:
            return None
        after = self._next_header(start)
        if after is not None:
            end = LogEnd(last_lsn=after.first_lsn - 1, position=after.previous_end, chain=after.chain)
            return (end, True) if end.position <= self.slot.position else None
        return LogEnd(last_lsn=self.slot.lsn, position=self.slot.position), False

    def _next_header(self, start: int) -> SegmentHeader | None:
        """Return the header of the next segment in use after position `start`."""
        headers = [f.header for f in self.later if f.header is not None and f.header.start_position > start]
        return min(headers, key=lambda each: each.start_position, default=None)

    def asks_until(self, finding: SegmentFinding, start: int) -> int:
        """Return how far a peer may have frames of this log after all that it knows of; 0 where none is asked.

        That is where the next segment in use begins, else the room of this one and of those made ahead.
        """
        after = self._next_header(start)
        if self.is_before_unread:
            return 0
        if after is not None or not self.is_last:
            return 0 if after is None else after.previous_end
        room = sum(_room(f) for f in (finding, *self.later) if not f.sealed)
        return min(start + room, POSITION_MAX) if room else 0


def _room(finding: SegmentFinding) -> int:
    return max(max(finding.file_bytes, finding.record.reserved_bytes) - SEGMENT_HEADER_BYTES, 0)


def _limits_of(findings: list[SegmentFinding], epoch: int) -> FrameLimits | None:
    """Return what the intact headers of an epoch say of its frames; None where there is none."""
    headers = [f.header for f in findings if f.header is not None and f.header.epoch == epoch]
    if not headers:
        return None
    return FrameLimits(headers[0].alignment, max(header.frame_bytes_max for header in headers))


def _sealed(
    storage: Storage, manifest: Manifest, finding: SegmentFinding, previous: SegmentRecord | None
) -> DamagedSegment | None:
    record, header = finding.record, finding.header
    end = LogEnd(last_lsn=record.last_lsn, position=record.end_position, chain=record.end_chain)
    if header is None:
        start = record.start_position
        if previous is not None and previous.end_position == manifest.gap_after(previous.end_position):
            start = min(start, previous.end_position)
        begin = LogEnd(last_lsn=record.first_lsn - 1, position=start, chain=record.start_chain)
        ranges: tuple[DamagedRange, ...] = (DamagedRange(begin, end),)
        why = "" if not manifest.gaps_of(record) else "a hole or a lost range is recorded within it"
    else:
        regions = _surveyed(storage, manifest, finding, header, end.position)
        ranges, why = _ranges(list(_split(regions, manifest.gaps_of(record))), header, end), ""
        if header.chain != record.start_chain:
            why = "its header is of another history than the manifest"
    if not ranges and not why:
        return None
    if record.flags & SegmentFlag.COMPACTED:
        why = "it was compacted: a peer has other frames there, or none"
    return DamagedSegment(record, header, finding.present, finding.file_bytes, ranges, end.position, why)


def _headless(around: _Around, finding: SegmentFinding) -> DamagedSegment | None:
    """Judge one that the manifest does not seal, and whose header is not there or cannot be used.

    Its frames can come anew where the log before it ends in a seal; after a segment in use they are put into that one.
    """
    manifest, record, slot = around.manifest, finding.record, around.slot
    epoch = manifest.epoch_of(record.epoch)
    unread = finding.unopenable or bool(finding.unreadable)
    garbage = unread or bool(finding.error or finding.nonzero_until)
    ranges: tuple[DamagedRange, ...] = ()
    end = manifest.end
    why = ""
    standing = _standing_end(around, finding)
    if around.follows_sealed and epoch is not None:
        certain = around.certain_end(epoch.id, end.position)
        if certain is not None and standing.position > certain[0].position:
            certain = standing, True  # the slot is old: what stands in the file must come back with the rest
        until = around.asks_until(finding, end.position)
        promised = certain is not None and certain[0].position > end.position
        if promised and manifest.ack_order != "append":
            why = NO_WINDOW
        elif certain is not None and promised:
            ranges = (DamagedRange(end, *certain, until=until, by_slot=not certain[1]),)
        elif until and not garbage:
            ranges = (DamagedRange(end, end, until=until),)
    short = around.is_last and finding.cut_short
    known = epoch is not None and slot.epoch_id == epoch.id and slot.position >= standing.position
    in_use = any(f.header is not None for f in around.earlier if not f.sealed)
    if short and not known:
        why = CUT_SHORT
    elif garbage and not ranges and not why and (unread or not (known and in_use and around.is_last)):
        reason = next(iter(finding.unreadable.values()), finding.reason)
        why = f"the manifest does not seal it, and its header cannot be used: {reason}"
    if not ranges and not short and not why:
        return None  # what the slot knows of is asked for with the segment before it
    end_position = ranges[0].after.position if ranges else 0
    return DamagedSegment(
        record,
        None,
        finding.present,
        finding.file_bytes,
        ranges,
        end_position,
        why,
        too_short=short,
        imported=is_replica(around.storage, manifest),
    )


def _standing_end(around: _Around, finding: SegmentFinding) -> LogEnd:
    """Return where the frames end that stand in a file without a header that can be used; position 0 without any.

    They are the log's, so no peer with fewer of them may take their place. A torn tail is none of them.
    """
    manifest, header = around.manifest, finding.fitting
    if header is None:
        return LogEnd()
    stop = header.start_position + max(finding.file_bytes - header.offset_of(header.start_position), 0)
    regions = _surveyed(around.storage, manifest, finding, header, stop, anywhere=True)
    intact = [r for r in regions[: _tail_of(regions, around.promised_by(finding))] if r.intact]
    return intact[-1].after if intact else LogEnd()


def _in_use(around: _Around, finding: SegmentFinding) -> DamagedSegment | None:
    """Judge one that the manifest does not seal, and whose header is intact."""
    manifest, record, header = around.manifest, finding.record, finding.header
    assert header is not None
    certain = around.certain_end(header.epoch_id, header.start_position)
    stop = header.start_position + max(finding.file_bytes - header.offset_of(header.start_position), 0)
    regions = _surveyed(around.storage, manifest, finding, header, stop)
    last = around.is_last
    tail = _tail_of(regions, around.promised_by(finding)) if last else len(regions)
    torn = any(not region.zeros for region in regions[tail:])
    intact = [region for region in regions[:tail] if region.intact]
    end = intact[-1].after if intact else _begin(header)
    ranges = _ranges([r for r in regions[:tail] if r.start_position < end.position], header, end)
    until = around.asks_until(finding, header.start_position)
    if until <= end.position or (torn and finding.unreadable):  # what stands there may be read another time
        until = 0
    short = last and finding.cut_short
    why = ""
    if short and (certain is None or certain[0].position < end.position):
        why = CUT_SHORT  # a slot below frames that stand there is an old one
    if certain is not None and certain[0].position > end.position:
        ranges = (*ranges, DamagedRange(end, *certain, until=until, by_slot=not certain[1]))
        end = certain[0]
    elif until:
        ranges = (*ranges, DamagedRange(end, end, until=until))
    if not ranges and not short:
        return None
    size = finding.file_bytes
    return DamagedSegment(
        record, header, finding.present, size, ranges, end.position, why, torn=torn, too_short=short
    )


def _tail_of(regions: list[Region], promised: int) -> int:
    """Return the index of the first region of damage, or zeros, that nothing promised: a torn tail begins there."""
    torn = (not r.intact and r.gap is None and r.start_position >= promised for r in regions)
    return next((index for index, is_torn in enumerate(torn) if is_torn), len(regions))


def _begin(header: SegmentHeader) -> LogEnd:
    return LogEnd(last_lsn=header.first_lsn - 1, position=header.previous_end, chain=header.chain)


def _surveyed(
    storage: Storage,
    manifest: Manifest,
    finding: SegmentFinding,
    header: SegmentHeader,
    end_position: int,
    *,
    anywhere: bool = False,
) -> list[Region]:
    record = finding.record
    begin = LogEnd(last_lsn=header.first_lsn - 1, position=header.start_position, chain=header.chain)
    sealed = record.state is SegmentState.SEALED
    span = FrameSpan(
        name=record.name,
        header=header,
        begin=begin,
        end_position=end_position,
        last_chain=last_chain_of(record, header, end_position) if sealed else None,
        gaps=tuple(manifest.gaps_of(record)),
        anywhere=anywhere,
    )
    file = TolerantFile(storage.open(record.name, "read"))
    try:
        survey = SegmentSurvey(file, span, decode=True)
        regions = list(survey)
    finally:
        file.close()
    finding.unreadable |= file.unreadable
    if (
        not header.flags & SegmentFlag.IMPORTED
    ):  # those promises are about the primary's disk (FORMAT.md F-3.6)
        finding.promised_position = max(finding.promised_position, survey.promised_position)
    return regions


def _split(regions: list[Region], gaps: Sequence[Gap]) -> Iterator[Region]:
    """Yield the regions with each recorded gap apart that a survey, in search of the next frame, passed over."""
    for region in regions:
        start = region.start_position
        for gap in gaps if not region.intact and region.gap is None else ():
            if start <= gap.start_position < region.end_position:
                if start < gap.start_position:
                    yield replace(region, start_position=start, end_position=gap.start_position)
                yield passed(gap)
                start = gap.end_position
        if start < region.end_position:
            yield replace(region, start_position=start)


def _ranges(regions: list[Region], header: SegmentHeader, end: LogEnd) -> tuple[DamagedRange, ...]:
    """Return one range for each stretch without a recorded gap: from its first damage to its last."""
    ranges: list[DamagedRange] = []
    before = _begin(header)
    begun: LogEnd | None = None
    after: LogEnd | None = None
    for region in regions:
        if region.gap is not None:
            if begun is not None:
                gap_begins = LogEnd(last_lsn=region.gap.first_lsn - 1, position=region.start_position)
                ranges.append(DamagedRange(begun, after or gap_begins, has_chain=after is not None))
            before, begun, after = region.after, None, None
        elif region.intact:
            if begun is not None and after is None:
                after = region.before
            before = region.after
        else:
            begun, after = begun or before, None
    if begun is not None:
        ranges.append(DamagedRange(begun, after or end))
    return tuple(ranges)
