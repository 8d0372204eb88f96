"""Which ranges of a log are damaged, and between which ends a peer's frames have to fit. Never changes a byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from walkit.errors import StorageError
from walkit.format.durable_slot import DurableSlot
from walkit.format.layout import SegmentFlag
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.recovery.facts import SegmentFinding, look_at
from walkit.recovery.survey import FrameSpan, Region, SegmentSurvey
from walkit.recovery.tolerant_file import TolerantFile
from walkit.segments.frame_walk import last_chain_of
from walkit.storage.interface import Storage


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Positions [before.position, after.position) of a segment that cannot be used.

    The frames that were there follow `before`, and what stands at `after` follows them. Without `has_chain` the end is
    known by position and LSN alone, as the durable slot and recorded gaps tell them.
    """

    before: LogEnd
    after: LogEnd
    has_chain: bool = True

    def ends_at(self, end: LogEnd) -> bool:
        """Say whether frames that end there fill the range."""
        return (end if self.has_chain else replace(end, chain=self.after.chain)) == self.after


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

    @property
    def bytes_damaged(self) -> int:
        """Bytes of frames that are to be fetched."""
        return sum(r.after.position - r.before.position for r in self.ranges)


def find_damage(
    storage: Storage, manifest: Manifest, slot: DurableSlot, reached: Callable[[int], object]
) -> list[DamagedSegment]:
    """Return the segments that are damaged, in log order; every frame is read. `reached` gets the bytes read so far."""
    found: list[DamagedSegment | None] = []
    done = 0
    findings = [look_at(storage, manifest, record, tolerant=True) for record in manifest.segments]
    for index, finding in enumerate(findings):
        if finding.sealed:
            before = manifest.segments[index - 1] if index else None
            found.append(_sealed(storage, manifest, finding, before))
        else:
            later = findings[index + 1 :]
            last = not any(f.header is not None for f in later if not f.sealed)
            found.append(
                _unsealed(storage, manifest, finding, _end_of(finding, later, slot), slot, last=last)
            )
        done += finding.file_bytes
        reached(done)
    return [damaged for damaged in found if damaged is not None]


def _end_of(
    finding: SegmentFinding, later: list[SegmentFinding], slot: DurableSlot
) -> tuple[LogEnd, bool] | None:
    """Return where the frames of an unsealed segment end for certain, and whether the chain there is known.

    That is where the next one begins, as far as the durable slot tells that all before it is on stable storage.
    """
    header = finding.header
    if header is None or slot.epoch_id != header.epoch_id:
        return None
    following = [
        f.header for f in later if f.header is not None and f.header.start_position > header.start_position
    ]
    if following:
        after = min(following, key=lambda each: each.start_position)
        end = LogEnd(last_lsn=after.first_lsn - 1, position=after.previous_end, chain=after.chain)
        return (end, True) if end.position <= slot.position else None
    return LogEnd(last_lsn=slot.lsn, position=slot.position), False


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
        ranges, why = _ranges(regions, header, end), ""
        if header.chain != record.start_chain:
            why = "its header is of another history than the manifest"
    if not ranges and not why:
        return None
    if record.flags & SegmentFlag.COMPACTED:
        why = "it was compacted: a peer has other frames there, or none"
    return DamagedSegment(record, header, finding.present, finding.file_bytes, ranges, end.position, why)


def _unsealed(
    storage: Storage,
    manifest: Manifest,
    finding: SegmentFinding,
    certain: tuple[LogEnd, bool] | None,
    slot: DurableSlot,
    *,
    last: bool,
) -> DamagedSegment | None:
    """Judge one that the manifest does not seal; `last` says that no later one has a header."""
    record, header = finding.record, finding.header
    if finding.unused or header is None:
        if finding.unused or not (finding.error or finding.nonzero_until):
            return None
        why = f"the manifest does not seal it, and its header cannot be used: {finding.reason}"
        return DamagedSegment(record, None, finding.present, finding.file_bytes, (), 0, why)
    stop = header.start_position + max(finding.file_bytes - header.offset_of(header.start_position), 0)
    regions = _surveyed(storage, manifest, finding, header, stop)
    known = slot.position if slot.epoch_id in {e.id for e in manifest.lineage} else 0
    promised = max(known, manifest.end.position, finding.promised_position)
    tail = next((i for i, r in enumerate(regions) if last and _is_torn(r, promised)), len(regions))
    torn = any(not region.zeros for region in regions[tail:])
    intact = [region for region in regions[:tail] if region.intact]
    end = intact[-1].after if intact else _begin(header)
    ranges = _ranges([r for r in regions[:tail] if r.start_position < end.position], header, end)
    if certain is not None and certain[0].position > end.position:
        ranges = (*ranges, DamagedRange(end, *certain))
        end = certain[0]
    if not ranges:
        return None
    return DamagedSegment(
        record, header, finding.present, finding.file_bytes, ranges, end.position, torn=torn
    )


def _is_torn(region: Region, promised: int) -> bool:
    """Say whether a region is damage, or zeros, that nothing promised: from there on the log is a torn tail."""
    return not region.intact and region.gap is None and region.start_position >= promised


def _begin(header: SegmentHeader) -> LogEnd:
    return LogEnd(last_lsn=header.first_lsn - 1, position=header.previous_end, chain=header.chain)


def _surveyed(
    storage: Storage, manifest: Manifest, finding: SegmentFinding, header: SegmentHeader, end_position: int
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
    )
    file = TolerantFile(storage.open(record.name, "read"))
    try:
        survey = SegmentSurvey(file, span, decode=True)
        regions = list(survey)
        finding.promised_position = max(finding.promised_position, survey.promised_position)
        return regions
    except StorageError:
        return [Region(start_position=header.start_position, end_position=end_position, zeros=True)]
    finally:
        file.close()


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
