"""Groups of segments that are compacted together: their bytes, their view, their headers; and what may be asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.read.view import LogView, Span

Group = tuple[SegmentRecord, ...]


def frame_bytes(records: Sequence[SegmentRecord]) -> int:
    """Return the bytes of the frames of segments."""
    return sum(s.size_bytes for s in records)


def part(view: LogView, group: Group) -> LogView:
    """Return the view of these segments alone."""
    return replace(view, spans=tuple(Span(s, s.end_position, s.last_lsn) for s in group))


def header_of(view: LogView, record: SegmentRecord) -> SegmentHeader:
    """Read the header of a segment of a view; refuse one that is not what the manifest means."""
    file, header = view.opened(Span(record, record.end_position, record.last_lsn))
    file.close()
    return header


def file_bytes(records: Sequence[SegmentRecord]) -> int:
    """Return the bytes of segment files."""
    return sum(SEGMENT_HEADER_BYTES + s.size_bytes for s in records)
