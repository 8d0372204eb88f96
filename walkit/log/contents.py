"""What is in a log that is open for writing, at this moment: from the manifest and from the writer's own memory."""

from __future__ import annotations

from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import SegmentRecord, SegmentState
from walkit.log.marks import LogMarks
from walkit.read.view import LogView, Span
from walkit.segments.manifest_store import ManifestStore
from walkit.segments.segment_set import SegmentSet
from walkit.storage.interface import Storage


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
        # The open segments first: one that is sealed meanwhile is in the manifest then, and not in neither.
        open_segments = list(self._segments.open_segments)
        manifest = self._manifest_store.current
        sealed = manifest.sealed
        begun = [s.header.first_lsn for s in open_segments if s.header is not None]
        oldest = sealed[0].first_lsn if sealed else begun[0] if begun else manifest.end.last_lsn + 1
        return max(oldest, manifest.low_watermark + 1)

    def view(self) -> LogView:
        """Return what can be read now: all that is acknowledged."""
        return self._view_to(self._marks.written_position)

    def durable_view(self) -> LogView:
        """Return the frames that are on stable storage now."""
        return self._view_to(self._marks.durable_position)

    def _view_to(self, end_position: int) -> LogView:
        """Return the view of all frames below `end_position`, which the caller knows to be written."""
        # The open segments first: see `first_lsn`.
        open_segments = list(self._segments.open_segments)
        manifest = self._manifest_store.current
        sealed = manifest.sealed
        spans = [Span(s, s.end_position, s.last_lsn) for s in sealed]
        numbers = {s.number for s in sealed}
        for segment in open_segments:
            header = segment.header
            if header is None or segment.number in numbers:
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
        within = tuple(s for s in spans if s.end_position > s.record.start_position)
        return LogView(self._storage, manifest, within)

    def used_bytes(self) -> int:
        """Return the bytes of the segment files, headers included, as far as they are used."""
        # The open segments first: see `first_lsn`.
        open_segments = list(self._segments.open_segments)
        sealed = self._manifest_store.current.sealed
        numbers = {s.number for s in sealed}
        in_use = [s for s in open_segments if s.number not in numbers]
        return sum(SEGMENT_HEADER_BYTES + s.size_bytes for s in sealed) + sum(
            s.header.offset_of(s.end_position) for s in in_use if s.header is not None
        )
