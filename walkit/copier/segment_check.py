"""Whether a file holds a segment as a manifest means it: read whole before a copy of it counts."""

from __future__ import annotations

from collections.abc import Callable

from walkit.errors import CorruptionError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.segments.frame_walk import FrameWalk, walk_segment
from walkit.segments.identity import check_identity
from walkit.storage.interface import Storage


def check_segment(
    storage: Storage,
    manifest: Manifest,
    record: SegmentRecord,
    *,
    name: str = "",
    step: Callable[[], object] = lambda: None,
) -> tuple[SegmentHeader, FrameWalk]:
    """Read each frame of a sealed segment; return its header and the walk.

    `name` is that of the file, if it does not have the segment's name yet. `step` is called every few frames.
    CorruptionError for the first damage; FormatVersionError; StorageError, for a missing file, too.
    """
    file = storage.open(name or record.name, "read")
    try:
        header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), record.name)
        check_identity(manifest, record, header)
        assert header is not None
        gaps = manifest.gaps_of(record)
        walk = walk_segment(file, header, record, record.end_position, gaps=gaps, row_seen=lambda _: None)
        for _ in walk.steps():
            step()
    finally:
        file.close()
    if walk.error is not None:
        raise walk.error
    fault = "" if walk.fault is None else walk.fault.value
    if not fault and header.chain != record.start_chain:
        fault = "its header has another chain than the manifest"
    if fault:
        raise CorruptionError(
            f"segment {record.name} is damaged at position {walk.position:,}: {fault}",
            segment=record.name,
            position=walk.position,
            found=fault,
            first_lost_lsn=walk.next_lsn,
        )
    return header, walk
