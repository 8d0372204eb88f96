"""A segment header made anew from the segment's intact frames, where its own is damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from walkit.format.layout import (
    ALIGNMENT_BUFFERED,
    ALIGNMENT_DIRECT,
    FRAME_BYTES_LIMIT,
    SEGMENT_HEADER_BYTES,
    SegmentFlag,
    align_up,
)
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.recovery.probe import intact_frames
from walkit.recovery.survey import Region
from walkit.segments.frame_walk import Readable


def header_from_frames(
    file: Readable, manifest: Manifest, record: SegmentRecord, until: int
) -> tuple[SegmentHeader | None, int]:
    """Return a header that fits the intact frames of a file, None where there is none, and what they promise.

    `until` is the file offset after which only zeros follow. A promise is true wherever it is found. Whether the
    segment was imported is not known, and need not be: its header was durable before its first frame, so it is
    damaged in any case. A frame says at which position it stands, so the file offset at which it is found says where
    the segment begins. Frames that disagree (a value may hold a frame) are outvoted; of a sealed segment the manifest
    knows it.
    """
    sealed = record.state is SegmentState.SEALED
    best: SegmentHeader | None = None
    most = promised = 0
    for header in _stand_ins(manifest, record):
        starts: Counter[int] = Counter()
        largest = header.alignment
        for offset, frame in intact_frames(file, header, SEGMENT_HEADER_BYTES, until):
            starts[frame.position - (offset - SEGMENT_HEADER_BYTES)] += 1
            largest = max(largest, frame.footprint, frame.body_raw_bytes)
            promised = max(promised, frame.durable_position)
        start = record.start_position if sealed else next((s for s, _ in starts.most_common(1)), -1)
        if starts[start] > most and start >= 0 and start % header.alignment == 0:
            most, limit = starts[start], align_up(largest, header.alignment)
            best = replace(header, start_position=start, previous_end=start, frame_bytes_max=limit)
    return best, promised


def header_after(end: LogEnd, header: SegmentHeader, regions: list[Region]) -> SegmentHeader:
    """Return a header made anew, as that of a segment with these regions which stands after `end`."""
    first = next((r.before for r in regions if r.intact), None)
    at_start = first is not None and first.position == header.start_position
    begin = replace(first if first is not None and at_start else end, position=header.start_position)
    # An epoch of direct I/O begins on the next boundary; a larger space before it is a range that is missing.
    near = header.start_position == align_up(end.position, header.alignment)
    fits = not at_start or (begin.last_lsn, begin.chain) == (end.last_lsn, end.chain)
    return replace(
        header,
        previous_end=end.position if near and fits else header.start_position,
        first_lsn=begin.last_lsn + 1,
        chain=begin.chain,
    )


def _stand_ins(manifest: Manifest, record: SegmentRecord) -> Iterator[SegmentHeader]:
    """Yield headers to look for a segment's frames with, whose own cannot be trusted: one for each alignment.

    Log, epoch and number are those of the segment, all else is as wide as may be; none where nothing tells its epoch.
    """
    epoch = manifest.epoch_of(record.epoch)
    for alignment in () if epoch is None else (ALIGNMENT_BUFFERED, ALIGNMENT_DIRECT):
        assert epoch is not None
        yield SegmentHeader(
            log_id=manifest.log_id,
            epoch=epoch.number,
            epoch_id=epoch.id,
            number=record.number,
            start_position=0,
            previous_end=0,
            first_lsn=max(record.first_lsn, 1),
            chain=record.start_chain,
            end_chain=record.end_chain if record.flags & SegmentFlag.COMPACTED else 0,
            alignment=alignment,
            frame_bytes_max=FRAME_BYTES_LIMIT,
            created_us=record.created_us,
            flags=_flags_of(manifest, record),
        )


def _flags_of(manifest: Manifest, record: SegmentRecord) -> SegmentFlag:
    """Return the flags that a segment must have had: those in the manifest or, unsealed, those of its epoch and log."""
    if record.state is SegmentState.SEALED:
        return SegmentFlag(record.flags)
    flags = SegmentFlag.COMPLETION_ORDER if manifest.ack_order == "completion" else SegmentFlag(0)
    if any(s.flags & SegmentFlag.IMPORTED for s in manifest.sealed):
        flags |= SegmentFlag.IMPORTED
    return flags
