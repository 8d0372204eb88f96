"""The frames of an unsealed segment: those that follow, and those that stand behind a hole or behind damage.

Behind the first frame that does not belong each alignment boundary is probed for intact frames of the same log. What
they promise decides whether the damage is corruption or a torn tail (pebble's sync offset is the source of the idea);
those within the window of a hole can be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from walkit.errors import FormatVersionError
from walkit.format.frame import FrameHeader, check_body, check_header
from walkit.format.layout import (
    ALIGNMENT_BUFFERED,
    ALIGNMENT_DIRECT,
    FRAME_BYTES_LIMIT,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    SEGMENT_HEADER_BYTES,
    SegmentFlag,
)
from walkit.format.manifest import LogEnd, Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.recovery.findings import SegmentFinding
from walkit.segments.frame_walk import FrameWalk, Readable
from walkit.storage.bulk import data_ranges, read_into

PROBE_BYTES = 4 << 20
ZERO_READ_BYTES = 1 << 20
SEARCHED_BYTES = 4096


def walk_unsealed(
    file: Readable,
    finding: SegmentFinding,
    end: LogEnd,
    hole: int | None,
    reached: Callable[[int], object] | None = None,
) -> None:
    """Note the facts of a segment in use. `end` is where the log before it ends, `hole` where its first hole begins.

    `reached` is told of the bytes that were looked at.
    """
    header = finding.header
    assert header is not None
    finding.follows = hole is None and follows_exactly(header, end)
    if hole is None and not finding.follows:
        hole = end.position
    limit = header.start_position + finding.file_bytes - SEGMENT_HEADER_BYTES
    limit -= limit % header.alignment
    walk = FrameWalk(
        file,
        header,
        position=header.start_position,
        end_position=limit,
        next_lsn=header.first_lsn,
        chain=header.chain,
    )
    if hole is None:  # behind one each frame is noted
        start = header.start_position
        walk.row_seen = lambda row: None if reached is None else reached(int(row.ends[-1]) - start)
    began = perf_counter_ns()
    for frame, _ in walk:
        if hole is not None:
            _note_beyond(finding, frame, hole)
    finding.verify_ns = perf_counter_ns() - began - walk.read_ns
    finding.end_position, finding.last_lsn = walk.position, (walk.next_lsn or 1) - 1
    finding.chain = walk.chain or 0
    finding.frames, finding.records = walk.frames, walk.records
    finding.bytes_scanned = walk.position - header.start_position
    # What an imported frame promises is about the primary's disk (FORMAT.md F-3.6).
    if not header.flags & SegmentFlag.IMPORTED:
        finding.promised_position = walk.promised_position
    finding.fault, finding.at_fault = walk.fault, walk.at_fault
    if finding.nonzero_until > finding.end_offset:
        for frame in _probe(file, finding):
            finding.frames_behind += 1
            if not header.flags & SegmentFlag.IMPORTED:
                finding.promised_position = max(finding.promised_position, frame.durable_position)
            _note_beyond(finding, frame, walk.position if hole is None else hole)


def follows_exactly(header: SegmentHeader, end: LogEnd) -> bool:
    """Say whether a segment begins where the log before it ends."""
    return (header.previous_end, header.first_lsn, header.chain) == (
        end.position,
        end.last_lsn + 1,
        end.chain,
    )


def _note_beyond(finding: SegmentFinding, frame: FrameHeader, hole: int) -> None:
    """Note a frame behind a hole where it ends within the window (FORMAT.md F-2.7); so the list is bounded by it."""
    assert finding.header is not None
    if frame.end_position <= hole + finding.header.window_bytes:
        finding.beyond.append(frame)


def _probe(file: Readable, finding: SegmentFinding) -> Iterator[FrameHeader]:
    """Yield the intact frames of this segment behind its damage, by position; what lies within one is its content."""
    header = finding.header
    assert header is not None
    for offset, frame in intact_frames(file, header, finding.end_offset, finding.nonzero_until):
        if header.offset_of(frame.position) == offset:
            yield frame


def promise_without_header(file: Readable, manifest: Manifest, record: SegmentRecord, until: int) -> int:
    """Return the furthest promise of the intact frames in a file whose segment header cannot be trusted; 0 for none.

    Where they stood cannot be told, and need not be: a promise is true wherever it is found. Whether the segment was
    imported cannot be told either; its header was durable before its first frame, so it is damaged in any case.
    """
    promised = 0
    for stand_in in stand_ins(manifest, record):
        frames = intact_frames(file, stand_in, SEGMENT_HEADER_BYTES, until)
        promised = max([promised, *(frame.durable_position for _, frame in frames)])
    return promised


def stand_ins(manifest: Manifest, record: SegmentRecord) -> Iterator[SegmentHeader]:
    """Yield headers to look for a segment's frames with, whose own cannot be trusted: one for each alignment.

    Log, epoch and number are those of the segment, all else is as wide as it may be; none where nobody knows the epoch.
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
            alignment=alignment,
            frame_bytes_max=FRAME_BYTES_LIMIT,
            created_us=record.created_us,
        )


def intact_frames(
    file: Readable, segment: SegmentHeader, start: int, until: int
) -> Iterator[tuple[int, FrameHeader]]:
    """Yield (file offset, header) of the intact frames of a segment's log and epoch, from `start` on."""
    offset, reach = start, 0
    while offset < until:
        block = file.read(offset, min(PROBE_BYTES, until - offset) + FRAME_HEADER_BYTES)
        # The block reaches one header further than the step, so that no frame is looked at twice or not at all.
        boundaries = -(-min(len(block), PROBE_BYTES) // segment.alignment)
        words = np.frombuffer(block, "<u4", len(block) // 4)[:: segment.alignment // 4][:boundaries]
        for index in np.flatnonzero(words == FRAME_MAGIC):
            at = int(index) * segment.alignment
            found = _frame_at(block, at, segment)
            if found is not None and offset + at >= reach and _is_whole(file, offset + at, found):
                reach = offset + at + found.footprint
                yield offset + at, found
        offset += PROBE_BYTES


def _frame_at(block: bytes, at: int, segment: SegmentHeader) -> FrameHeader | None:
    """Return the header of a frame of this segment that stands at `at`, or None.

    What looks like a frame of a newer format is a value that holds one: no frame is newer than its segment.
    """
    try:
        found, fault = check_header(block, at, segment.alignment, segment.frame_bytes_max)
    except FormatVersionError:
        return None
    if found is None or fault is not None:
        return None
    ours = (found.log_id, found.epoch, found.epoch_id) == (segment.log_id, segment.epoch, segment.epoch_id)
    return found if ours else None


def _is_whole(file: Readable, offset: int, header: FrameHeader) -> bool:
    return check_body(header, memoryview(file.read(offset, header.footprint))) is None


def nonzero_until(file: Readable, start: int, size: int) -> int:
    """Return the file offset behind the last nonzero byte at or after `start`; `start` where there is none.

    Reads from the end on, and only where the file has data.
    """
    buffer = memoryview(b"")
    for begin, behind in reversed(data_ranges(file, start, size)):
        end = behind
        while end > begin:
            if not buffer:
                buffer = memoryview(bytearray(min(ZERO_READ_BYTES, size - start)))
            at = max(begin, end - len(buffer))
            count = read_into(file, at, buffer[: end - at])
            until = _behind_nonzero(np.frombuffer(buffer[:count], np.uint8))
            if until:
                return at + until
            end = at
    return start


def _behind_nonzero(values: npt.NDArray[np.uint8]) -> int:
    """Return the index behind the last nonzero value, 0 where there is none: the maximum is found at memory's speed."""
    if not len(values) or not values.max():
        return 0
    low, high = 0, len(values)
    while high - low > SEARCHED_BYTES:
        middle = (low + high) // 2
        low, high = (middle, high) if values[middle:high].max() else (low, middle)
    return low + int(np.flatnonzero(values[low:high])[-1]) + 1
