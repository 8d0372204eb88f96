"""What can be read of a log that is open in this process, from the writer's own memory."""

from __future__ import annotations

from walkit.format.manifest import SegmentRecord, SegmentState
from walkit.read.view import LogView, Span
from walkit.segments.manifest_store import ManifestStore
from walkit.segments.segment_set import SegmentSet
from walkit.storage.interface import Storage


def view_of_open(storage: Storage, store: ManifestStore, segments: SegmentSet, end_position: int) -> LogView:
    """Return the view of all frames below `end_position`, which the caller knows to be written."""
    # The open segments first: one that is sealed meanwhile is in the manifest then, and not in neither.
    open_segments = list(segments.open_segments)
    manifest = store.current
    spans = [Span(s, s.end_position, s.last_lsn) for s in manifest.sealed]
    sealed = {s.number for s in manifest.sealed}
    for segment in open_segments:
        header = segment.header
        if header is None or segment.number in sealed:
            continue
        record = SegmentRecord(
            number=segment.number,
            state=SegmentState.PREPARED,
            epoch=header.epoch,
            start_position=header.start_position,
            first_lsn=header.first_lsn,
            flags=int(header.flags),
        )
        spans.append(Span(record, min(segment.end_position, end_position), None))
    return LogView(storage, manifest, tuple(s for s in spans if s.end_position > s.record.start_position))
