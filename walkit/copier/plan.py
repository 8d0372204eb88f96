"""The plan of a copy: which segments of a log it has, up to which frame, and the manifest of the log that they will be.

`walkit.copy` carries a plan out from a folder, a bootstrap over a link. All that a plan names stays as it is while the
copier's claim counts: sealed segments are never changed, and the one in use is taken up to a durable frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from walkit.errors import GapError
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord, SegmentState, sealed_record
from walkit.format.segment import SegmentHeader
from walkit.read.view import LogView, Span
from walkit.segments.frame_walk import walk_segment
from walkit.segments.manifest_store import gaps_where, shared_facts
from walkit.storage.interface import StorageFile


class PlannedSegment(NamedTuple):
    """A segment of a plan."""

    span: Span
    """The part of the source's segment that is copied."""
    record: SegmentRecord
    """How the copy's manifest describes it: sealed at the end of the span."""
    size: int
    """Bytes of its file."""


class MissingRange(NamedTuple):
    """The bytes [offset, size) of a file of a plan are missing."""

    file: int
    offset: int
    size: int


def plan_segments(view: LogView, snapshot_lsn: int = 0) -> tuple[list[PlannedSegment], LogEnd]:
    """Return the segments of a view from the first one that a snapshot does not cover, and the end of the log.

    CorruptionError for a damaged header of a frame; GapError if a segment has left the log; StorageError.
    """
    planned: list[PlannedSegment] = []
    last: PlannedSegment | None = None
    for span in view.spans:
        if not planned and span is not view.spans[-1] and (span.last_lsn or snapshot_lsn + 1) <= snapshot_lsn:
            continue
        last = _planned(view, span)
        if planned or last.record.last_lsn > snapshot_lsn:
            planned.append(last)
    if last is None:
        return planned, view.manifest.end
    end = last.record
    return planned, LogEnd(last_lsn=end.last_lsn, position=end.end_position, chain=end.end_chain)


def _planned(view: LogView, span: Span) -> PlannedSegment:
    file, header = open_span(view, span)
    try:
        record = span.record
        if record.state is not SegmentState.SEALED or span.end_position != record.end_position:
            gaps = view.manifest.gaps_of(record)
            walk = walk_segment(file, header, record, span.end_position, gaps=gaps, body=False)
            for _ in walk:
                pass
            view.refuse(walk, span)
            end = LogEnd(last_lsn=(walk.next_lsn or 1) - 1, position=span.end_position, chain=walk.end_chain)
            record = sealed_record(header, end, records=walk.records, frames=walk.frames)
        return PlannedSegment(span, record, min(header.offset_of(record.end_position), file.size()))
    finally:
        file.close()


def open_span(view: LogView, span: Span) -> tuple[StorageFile, SegmentHeader]:
    """Open the segment of a span. GapError if it has left the log, or a trim has put a part of it in its place."""
    file, header = view.opened(span)
    if header.number != span.record.number:
        file.close()
        raise GapError(span.record.first_lsn, header.first_lsn)
    return file, header


def planned_manifest(
    manifest: Manifest,
    records: list[SegmentRecord],
    end: LogEnd,
    snapshot_lsn: int = 0,
    extra: Mapping[str, Any] | None = None,
) -> Manifest:
    """Return the manifest of a closed log with these segments and, unless it is 0, this snapshot. Pure."""
    first = records[0].first_lsn if records else end.last_lsn + 1
    low = manifest.low_watermark
    if snapshot_lsn:
        low = max(low, min(snapshot_lsn, first - 1))
    start = records[0].start_position if records else end.position
    return manifest.next(
        segments=tuple(records),
        end=end,
        low_watermark=low,
        # The manifest may be newer than the end, which is read before it: no newer checkpoint is in the copy.
        checkpoint_lsn=min(snapshot_lsn or manifest.checkpoint_lsn, end.last_lsn),
        **gaps_where(manifest, lambda g: start <= g.start_position and g.end_position <= end.position),
        extra=shared_facts(extra or {}),
    )
