"""Reading back what was just written, before it takes the place of acknowledged records."""

from __future__ import annotations

from collections.abc import Sequence

from walkit.errors import CorruptionError, WalkitError
from walkit.format.manifest import Gap, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.segments.frame_walk import FrameWalk, walk_segment
from walkit.storage.interface import StorageFile


def read_back(
    file: StorageFile, header: SegmentHeader, record: SegmentRecord, gaps: Sequence[Gap] = ()
) -> None:
    """Walk a sealed segment as any reader would, every frame of it, and compare what it ends with.

    `gaps` are the holes and lost ranges in it. CorruptionError where it is not what its header and its record in the
    manifest say; StorageError where it cannot be read.
    """
    walk = walk_segment(file, header, record, record.end_position, gaps=gaps, row_seen=lambda row: None)
    for _ in walk:
        pass
    begun = (header.start_position, header.first_lsn, header.chain)
    expected = (None, record.last_lsn + 1, record.frames, record.records, record.end_chain)
    if begun != (record.start_position, record.first_lsn, record.start_chain) or facts_of(walk) != expected:
        raise unlike(file.name, walk, expected)


def facts_of(walk: FrameWalk) -> tuple[object, ...]:
    """Return what a walk ended with: fault, next LSN, frames, records, chain."""
    return walk.fault, walk.next_lsn, walk.frames, walk.records, walk.end_chain


def unlike(name: str, walk: FrameWalk, expected: object) -> WalkitError:
    """Return the error of a segment that stays, or of a new one that is not published: it is not as it has to be."""
    if walk.error is not None:
        return walk.error
    return CorruptionError(
        f"{name} does not read as the manifest says, at position {walk.position:,}; nothing was changed "
        f"(fault, next LSN, frames, records, chain): expected {expected}, found {facts_of(walk)}",
        segment=name,
        position=walk.position,
        expected=expected,
        found=facts_of(walk),
        first_lost_lsn=walk.next_lsn,
    )
