"""Examining sealed segments: everything between the start and the end that the manifest names is promised."""

from __future__ import annotations

from dataclasses import replace

from walkit.errors import CorruptionError, FormatVersionError, SegmentMissingError, StorageError, WalkitError
from walkit.format.layout import FRAME_BYTES_LIMIT, SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import Gap, HoleRecord, LogEnd, SegmentRecord
from walkit.recovery.examine.report import Verdict
from walkit.recovery.examine.scan_context import ScanContext
from walkit.recovery.findings import SegmentFinding, inspect_segment
from walkit.recovery.log_scan import sealed_error, shortened
from walkit.segments.manifest_store import load_manifest

_HOLE = "frames that were in flight never came to the disk, and later ones did; none of them was acknowledged"


def examine_sealed(context: ScanContext, record: SegmentRecord) -> None:
    """Examine one sealed segment. Of a live log, one that was trimmed meanwhile is left out."""
    note_gaps(context, record.name, record.start_position)
    begun = len(context.ranges)
    finding = inspect_segment(context.storage, context.manifest, record)
    if not finding.present and context.live and _was_trimmed(context, record):
        context.notes.append(f"segment {record.name} was trimmed while the log was read")
        return
    error = sealed_error(context.storage, context.manifest, finding)
    damaged = finding.error if isinstance(finding.error, CorruptionError) else None
    if damaged is not None and finding.other is not None:
        context.lose(record, Verdict.FOREIGN, damaged)
    elif error is not None and finding.header is None and finding.fitting is None:
        if damaged is not None and error is not damaged and finding.file_bytes >= SEGMENT_HEADER_BYTES:
            context.problem(damaged, segment=record.name, position=record.start_position)
        if isinstance(error, SegmentMissingError):
            error.position = record.start_position  # nothing of it is readable, wherever the file ends
        context.lose(record, _verdict_of(error), error)
    else:
        if damaged is not None and finding.fitting is not None:
            # The frames after a damaged header are readable, and a damaged one may be larger than every intact one.
            context.problem(damaged, segment=record.name, position=record.start_position)
            finding.header = replace(finding.fitting, frame_bytes_max=FRAME_BYTES_LIMIT)
        try:
            context.survey(finding)
        except StorageError as unreadable:
            context.lose(record, Verdict.UNKNOWN, unreadable)
        else:
            _examine_regions(context, finding)
    context.add_segment(record, "sealed", context.ranges[begun:], file_bytes=finding.file_bytes)


def _verdict_of(error: WalkitError) -> Verdict:
    if isinstance(error, SegmentMissingError):
        return Verdict.MISSING
    return Verdict.UNKNOWN if isinstance(error, StorageError | FormatVersionError) else Verdict.CORRUPT


def note_gaps(context: ScanContext, name: str, until: int) -> None:
    """Note the holes and lost ranges between the sealed segments before position `until`, after those noted already."""
    manifest = context.manifest
    if not manifest.gaps:
        return
    begin = max((s.end_position for s in manifest.sealed if s.end_position <= until), default=0)
    for gap in manifest.gaps:
        if begin <= gap.start_position < until:
            note_gap(context, name, gap)


def note_gap(context: ScanContext, name: str, gap: Gap) -> None:
    """Note a hole or a lost range that the manifest records."""
    lsns = gap.first_lsn, gap.last_lsn
    if isinstance(gap, HoleRecord):
        context.add(name, gap.start_position, gap.end_position, Verdict.HOLE, _HOLE, lsns)
        return
    context.add(gap.segment or name, gap.start_position, gap.end_position, Verdict.LOST, gap.reason, lsns)
    what = f"LSN {gap.first_lsn:,} to {gap.last_lsn:,}" if gap.lsns else "no record"
    context.notes.append(
        f"positions {gap.start_position:,} to {gap.end_position:,} were given up by recovery='salvage', "
        f"and {what} with them: {gap.reason}"
    )


def _was_trimmed(context: ScanContext, record: SegmentRecord) -> bool:
    return all(s.number != record.number for s in load_manifest(context.storage).segments)


def _examine_regions(context: ScanContext, finding: SegmentFinding) -> None:
    record, header, manifest = finding.record, finding.header, context.manifest
    assert header is not None and finding.span is not None
    size, stop = finding.file_bytes, finding.span.end_position
    whole = header.start_position + size - SEGMENT_HEADER_BYTES >= manifest.frames_end_of(record)
    end = LogEnd(last_lsn=record.first_lsn - 1, position=record.start_position, chain=header.chain)
    for region in finding.regions:
        if region.intact:
            context.add_region(record.name, region, Verdict.INTACT if context.bodies else Verdict.NOT_READ)
            end = region.after
        elif region.gap is not None:
            note_gap(context, record.name, region.gap)
            end = region.after
        elif region.end_position < stop or stop == record.end_position:
            context.fault(record.name, region, record.last_lsn)
            end = LogEnd(last_lsn=region.last_lsn or end.last_lsn, position=region.end_position)
    if not whole:
        wanted = SEGMENT_HEADER_BYTES + record.size_bytes
        error = shortened(finding, wanted, end.position, end.last_lsn + 1)
        context.problem(error)
        lost = end.last_lsn + 1, record.last_lsn
        context.add(record.name, end.position, record.end_position, Verdict.MISSING, str(error), lost)
        return
    context.add_rest(finding, record.end_position)
    if finding.damage is None:
        _compare(context, finding, end)


def _compare(context: ScanContext, finding: SegmentFinding, end: LogEnd) -> None:
    """Hold what the manifest says of a segment against its frames, which are all intact."""
    record, header = finding.record, finding.header
    assert header is not None
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
            context.problem(
                CorruptionError(
                    f"the manifest and segment {record.name} differ in the {what}: "
                    f"the manifest says {expected:,}, the frames {found:,}",
                    segment=record.name,
                    position=record.start_position,
                    expected=expected,
                    found=found,
                )
            )
