"""Whether a file holds a segment as a manifest means it: read whole before a copy of it counts."""

from __future__ import annotations

from collections.abc import Callable

from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.segments.history import check_identity
from walkit.segments.rewrite import NewSegment, read_back
from walkit.storage.interface import Storage


def check_segment(
    storage: Storage,
    manifest: Manifest,
    record: SegmentRecord,
    *,
    name: str = "",
    step: Callable[[], object] = lambda: None,
) -> SegmentRecord:
    """Read each frame of a sealed segment, and compare it with all that the manifest says; return its whole record.

    A record that was made without reading the frames says 0 of them. `name` is that of the file, if it does not have
    the segment's name yet. `step` is called every few frames.
    CorruptionError for the first damage or difference; FormatVersionError; StorageError, for a missing file, too.
    """
    file = storage.open(name or record.name, "read")
    try:
        header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), record.name)
        check_identity(manifest, record, header)
        assert header is not None
        return record._replace(
            frames=read_back(file, NewSegment(header, record, manifest.gaps_of(record)), step)
        )
    finally:
        file.close()
