"""Where a log is cut to be rewound: after the last frame with records that its primary has, too. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from walkit.errors import CorruptionError
from walkit.format.layout import SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord, sealed_record
from walkit.format.segment import SegmentHeader
from walkit.read.view import LogView
from walkit.replication.logs.source import refuse_walk
from walkit.segments.frame_walk import FrameWalk
from walkit.segments.history import check_identity, open_segment
from walkit.storage.interface import StorageFile


@dataclass(frozen=True, kw_only=True, slots=True)
class CutSegment:
    """The segment in which the log ends after a rewind: its file is used up to `offset`."""

    record: SegmentRecord
    """As it is before."""
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonPoint:
    """The end that a log is cut to, and the fate of its sealed segments."""

    end: LogEnd
    kept: tuple[SegmentRecord, ...]
    """The segments that are left, as the manifest says it then."""
    cut: CutSegment | None
    dropped: tuple[SegmentRecord, ...]
    passed: str = ""
    """Why the log cannot be cut there, in words; "" if it can."""


def common_point(view: LogView, lsn: int) -> CommonPoint:
    """Return the end of the last frame whose records are all at or below `lsn`, in a log that is sealed.

    Frames without records after it are cut off, too: the primary need not have them. A frame that is partly above is
    cut off whole. CorruptionError if a frame header before that point is damaged.
    """
    segments = view.manifest.sealed
    compacted = [s for s in segments if s.flags & SegmentFlag.COMPACTED and s.last_lsn > lsn]
    if compacted:
        first = compacted[0]
        detail = f"a compaction has rewritten LSN {first.first_lsn:,} to {first.last_lsn:,}"
        return CommonPoint(end=LogEnd(), kept=(), cut=None, dropped=(), passed=detail)
    for index in range(len(segments) - 1, -1, -1):
        record = segments[index]
        if record.first_lsn > lsn or not record.records:
            continue
        found = _end_in(view, record, lsn)
        if found is None:
            continue
        end, kept, offset = found
        cut = None if kept == record else CutSegment(record=record, offset=offset)
        return CommonPoint(end=end, kept=(*segments[:index], kept), cut=cut, dropped=segments[index + 1 :])
    return CommonPoint(end=_before(view), kept=(), cut=None, dropped=segments)


def _end_in(view: LogView, record: SegmentRecord, lsn: int) -> tuple[LogEnd, SegmentRecord, int] | None:
    """Return the last end of records at or below `lsn` in a segment, the rest of it, and its bytes."""
    manifest = view.manifest
    file = open_segment(view.storage, record)
    try:
        header = _header(file, manifest, record)
        if record.flags & SegmentFlag.COMPACTED:
            whole = LogEnd(last_lsn=record.last_lsn, position=record.end_position, chain=record.end_chain)
            return whole, record, header.offset_of(record.end_position)
        walk = FrameWalk(
            file,
            header,
            position=record.start_position,
            end_position=manifest.frames_end_of(record),
            next_lsn=record.first_lsn,
            chain=record.start_chain,
            body=False,
            gaps=manifest.gaps_of(record),
        )
        end, frames, records, seen_frames, seen_records = None, 0, 0, 0, 0
        for frame, _ in walk:
            if frame.last_lsn > lsn and frame.records:
                break
            seen_frames, seen_records = seen_frames + 1, seen_records + frame.records
            if frame.records:
                end = LogEnd(last_lsn=frame.last_lsn, position=frame.end_position, chain=frame.header_crc)
                frames, records = seen_frames, seen_records
        if walk.fault is not None:
            refuse_walk(walk, header)
    finally:
        file.close()
    if end is None:
        return None
    if end.position == record.end_position:
        return end, record, header.offset_of(end.position)
    return end, sealed_record(header, end, records=records, frames=frames), header.offset_of(end.position)


def _before(view: LogView) -> LogEnd:
    """Return where the log begins: nothing that it holds is left."""
    segments = view.manifest.sealed
    if not segments:
        return view.manifest.end
    first = segments[0]
    file = open_segment(view.storage, first)
    try:
        header = _header(file, view.manifest, first)
    finally:
        file.close()
    return LogEnd(last_lsn=first.first_lsn - 1, position=header.previous_end, chain=first.start_chain)


def _header(file: StorageFile, manifest: Manifest, record: SegmentRecord) -> SegmentHeader:
    header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), record.name)
    check_identity(manifest, record, header)
    if header is None:
        raise CorruptionError(f"segment {record.name} has no header", segment=record.name)
    return header
