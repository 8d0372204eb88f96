"""What is in a log that is open for writing, at this moment: from the manifest and from the writer's own memory."""

from __future__ import annotations

from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.log.progress import LogProgress
from walkit.read.openview import view_of_open
from walkit.read.view import LogView
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
        progress: LogProgress,
    ) -> None:
        self._storage = storage
        self._manifest_store = manifest_store
        self._segments = segments
        self._progress = progress

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
        return self._view_to(self._progress.written_position)

    def durable_view(self) -> LogView:
        """Return the frames that are on stable storage now."""
        return self._view_to(self._progress.durable_position)

    def _view_to(self, position: int) -> LogView:
        return view_of_open(self._storage, self._manifest_store, self._segments, position)

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
