"""What is in a log that is open for writing, at this moment: from the manifest and from the writer's own memory."""

from __future__ import annotations

from typing import Protocol

from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import Manifest, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.read.view import LogView, Span
from walkit.segments.active_segment import OpenSegment
from walkit.segments.manifest_store import ManifestStore
from walkit.segments.segment_set import SegmentSet
from walkit.storage.interface import Storage


class LogMarks(Protocol):
    """How far an open log has come. Safe from any thread; each value only grows while the log is open."""

    @property
    def acked_lsn(self) -> int:
        """The last LSN acknowledged, with everything before it."""

    @property
    def durable_lsn(self) -> int:
        """The last LSN on stable storage, with everything before it."""

    @property
    def written_position(self) -> int:
        """Where the frames end that can be read."""

    @property
    def durable_position(self) -> int:
        """Where the frames end that are on stable storage."""


def segments_now(
    manifest_store: ManifestStore, segments: SegmentSet
) -> tuple[Manifest, list[tuple[OpenSegment, SegmentHeader]]]:
    """Return the manifest, and the open segments that it does not seal: each segment with frames once. Any thread."""
    # The open ones first: one that is sealed meanwhile is in the manifest then, and not in neither.
    open_segments = list(segments.open_segments)
    manifest = manifest_store.current
    sealed = {record.number for record in manifest.sealed}
    begun = [(s, s.header) for s in open_segments if s.header is not None and s.number not in sealed]
    return manifest, begun


class LogContents:
    """The frames of an open log. Safe from any thread."""

    def __init__(
        self,
        storage: Storage,
        manifest_store: ManifestStore,
        segments: SegmentSet,
        marks: LogMarks,
    ) -> None:
        self._storage = storage
        self._manifest_store = manifest_store
        self._segments = segments
        self._marks = marks

    @property
    def first_lsn(self) -> int:
        """The oldest LSN that can still be read."""
        manifest, begun = segments_now(self._manifest_store, self._segments)
        oldest = manifest.first_lsn if manifest.sealed or not begun else begun[0][1].first_lsn
        return max(oldest, manifest.low_watermark + 1)

    def view(self) -> LogView:
        """Return what can be read now: all that is acknowledged."""
        return self._view_to(self._marks.written_position)

    def durable_view(self) -> LogView:
        """Return the frames that are on stable storage now."""
        return self._view_to(self._marks.durable_position)

    def _view_to(self, end_position: int) -> LogView:
        """Return the view of all frames below `end_position`, which the caller knows to be written."""
        manifest, begun = segments_now(self._manifest_store, self._segments)
        spans = [Span(s, s.end_position, s.last_lsn) for s in manifest.sealed]
        for segment, header in begun:
            record = SegmentRecord(
                number=segment.number,
                state=SegmentState.PREPARED,
                epoch=header.epoch,
                start_position=header.start_position,
                first_lsn=header.first_lsn,
                flags=int(header.flags),
            )
            spans.append(Span(record, min(segment.end_position, end_position), None))
        within = tuple(s for s in spans if s.end_position > s.record.start_position)
        return LogView(self._storage, manifest, within)

    def used_bytes(self) -> int:
        """Return the bytes of the segment files, headers included, as far as they are used."""
        manifest, begun = segments_now(self._manifest_store, self._segments)
        return sum(SEGMENT_HEADER_BYTES + s.size_bytes for s in manifest.sealed) + sum(
            header.offset_of(segment.end_position) for segment, header in begun
        )
