"""Edits of a manifest: a segment prepared, sealed or dropped, gaps kept, the next epoch (FORMAT.md F-9, F-12). Pure."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Any

from walkit.errors import LogExhaustedError
from walkit.format.frame import FrameIdentity
from walkit.format.layout import EPOCH_MAX
from walkit.format.manifest import (
    EpochRecord,
    Gap,
    LogEnd,
    Manifest,
    SegmentRecord,
    SegmentState,
    prepared_record,
    sealed_record,
    segment_order,
)
from walkit.format.segment import SegmentHeader
from walkit.segments.active_segment import OpenSegment

RESERVE_SEALED_BYTES, RESERVE_PREPARED_BYTES, RESERVE_OPENING_BYTES = 256, 768, 1024
"""Edit space that is kept: for a trim of each sealed segment, a seal and a trim of each other, and one opening."""
SPACE_SEGMENT_BYTES, SPACE_BYTES_MIN = 512, 4096
"""Edit space beyond what is kept: in proportion to the base, so that a new base is as rare as it is large."""


def record_of(segment: OpenSegment, header: SegmentHeader) -> SegmentRecord:
    """Return what the manifest says of a segment that is sealed where its last frame ends."""
    end = LogEnd(last_lsn=segment.last_lsn, position=segment.end_position, chain=segment.chain)
    return sealed_record(header, end, records=segment.records, frames=segment.frames)


def with_sealed(manifest: Manifest, record: SegmentRecord) -> Manifest:
    """Return the manifest with this segment sealed; one without frames is dropped instead."""
    if record.size_bytes == 0:
        return without_segment(manifest, record.number)
    segments = list(_others(manifest, record.number))
    insort(segments, record, key=segment_order)
    end = manifest.end
    if record.end_position >= end.position:
        end = LogEnd(last_lsn=record.last_lsn, position=record.end_position, chain=record.end_chain)
    return manifest.next(segments=tuple(segments), end=end)


def without_segment(manifest: Manifest, number: int) -> Manifest:
    """Return the manifest without the segment of this number."""
    return manifest.next(segments=_others(manifest, number))


def _others(manifest: Manifest, number: int) -> tuple[SegmentRecord, ...]:
    """Return the segments without that of this number, which is one of the last."""
    segments = manifest.segments
    for i in reversed(range(len(segments))):
        if segments[i].number == number:
            return segments[:i] + segments[i + 1 :]
    return segments


def gaps_where(manifest: Manifest, keep: Callable[[Gap], bool]) -> dict[str, Any]:
    """Return the fields of a manifest that has these of its holes and lost ranges alone, for `Manifest.next`."""
    return {
        "holes": tuple(gap for gap in manifest.holes if keep(gap)),
        "lost": tuple(gap for gap in manifest.lost if keep(gap)),
    }


def with_prepared(
    manifest: Manifest, number: int, identity: FrameIdentity, began: LogEnd, size_bytes: int
) -> Manifest:
    """Return the manifest with a prepared segment, and with its epoch where this is the first one of it."""
    record = prepared_record(number, identity.epoch, size_bytes)
    lineage = manifest.lineage
    if manifest.epoch_of(identity.epoch) is None:
        lineage += (
            EpochRecord(
                number=identity.epoch,
                id=identity.epoch_id,
                first_lsn=began.last_lsn + 1,
                position=began.position,
                chain=began.chain,
            ),
        )
    following = max(manifest.next_segment, number + 1)
    return manifest.next(segments=(*manifest.segments, record), next_segment=following, lineage=lineage)


def next_epoch(manifest: Manifest) -> int:
    """Return the number of the epoch that an opening for writing begins; LogExhaustedError where none is left."""
    number = max((e.number for e in manifest.lineage), default=0) + 1
    if number > EPOCH_MAX:
        raise LogExhaustedError("epoch", number, EPOCH_MAX)
    return number


def reserved_bytes(manifest: Manifest) -> int:
    """Return how much space for edits is kept for changes that make room, and for one opening."""
    prepared = 0
    for segment in reversed(manifest.segments):
        if segment.state is SegmentState.SEALED:
            break  # these come first
        prepared += 1
    sealed = len(manifest.segments) - prepared
    return sealed * RESERVE_SEALED_BYTES + prepared * RESERVE_PREPARED_BYTES + RESERVE_OPENING_BYTES


def space_bytes(manifest: Manifest) -> int:
    """Return how much space for edits a new base gets."""
    return reserved_bytes(manifest) + len(manifest.segments) * SPACE_SEGMENT_BYTES + SPACE_BYTES_MIN
