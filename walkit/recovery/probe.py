"""Looking for frames and for the last byte in use, in a file of which nothing else can be trusted. Never judges."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from walkit.errors import FormatVersionError
from walkit.format.frame import FrameHeader, check_body, check_header
from walkit.format.layout import FRAME_HEADER_BYTES, FRAME_MAGIC, SEGMENT_HEADER_BYTES, align_up
from walkit.format.segment import SegmentHeader
from walkit.segments.frame_walk import Readable
from walkit.storage.bulk import data_ranges, read_into

PROBE_BYTES = 4 << 20
ZERO_READ_BYTES = 1 << 20
SEARCHED_BYTES = 4096


def frame_headers(
    file: Readable, alignment: int, frame_bytes_max: int, start: int, until: int
) -> Iterator[tuple[int, FrameHeader]]:
    """Yield (file offset, header) of what has a frame's right header on a boundary in [start, until), of any log."""
    for first, last in data_ranges(file, start, until):
        # A header begins with its magic, which is not zero: what begins before the data is none.
        offset = SEGMENT_HEADER_BYTES + align_up(first - SEGMENT_HEADER_BYTES, alignment)
        while offset < last:
            block = file.read(offset, min(PROBE_BYTES, last - offset) + FRAME_HEADER_BYTES)
            # The block reaches one header further than the step, so that no frame is looked at twice or not at all.
            boundaries = -(-min(len(block), PROBE_BYTES, last - offset) // alignment)
            words = np.frombuffer(block, "<u4", len(block) // 4)[:: alignment // 4][:boundaries]
            for index in np.flatnonzero(words == FRAME_MAGIC):
                at = int(index) * alignment
                header = _header_at(block, at, alignment, frame_bytes_max)
                if header is not None:
                    yield offset + at, header
            offset += PROBE_BYTES


def _header_at(block: bytes, at: int, alignment: int, frame_bytes_max: int) -> FrameHeader | None:
    """Return the right frame header at `at`; None for one of a newer format too: no frame is newer than its segment."""
    try:
        header, fault = check_header(block, at, alignment, frame_bytes_max)
    except FormatVersionError:
        return None
    return header if fault is None else None


def intact_frames(
    file: Readable, segment: SegmentHeader, start: int, until: int
) -> Iterator[tuple[int, FrameHeader]]:
    """Yield (file offset, header) of the intact frames of a segment's log and epoch that begin in [start, until).

    What lies within one is its content.
    """
    ours, reach = (segment.log_id, segment.epoch, segment.epoch_id), start
    for offset, found in frame_headers(file, segment.alignment, segment.frame_bytes_max, start, until):
        if offset < reach or (found.log_id, found.epoch, found.epoch_id) != ours:
            continue
        if check_body(found, memoryview(file.read(offset, found.footprint))) is None:
            reach = offset + found.footprint
            yield offset, found


def next_frame(
    file: Readable, segment: SegmentHeader, position: int, end_position: int, until: int
) -> FrameHeader | None:
    """Return the first whole frame of this segment that stands where it says, from `position` on; None without one.

    It begins before `until`, and ends up to `end_position`.
    """
    begin = segment.offset_of(
        segment.start_position + align_up(position - segment.start_position, segment.alignment)
    )
    for offset, header in intact_frames(file, segment, begin, segment.offset_of(until)):
        if segment.offset_of(header.position) == offset and header.end_position <= end_position:
            return header
    return None


def nonzero_until(file: Readable, start: int, size: int) -> int:
    """Return the file offset after the last nonzero byte at or after `start`; `start` where there is none.

    Reads from the end on, and only where the file has data.
    """
    buffer = memoryview(b"")
    for begin, stop in reversed(data_ranges(file, start, size)):
        end = stop
        while end > begin:
            if not buffer:
                buffer = memoryview(bytearray(min(ZERO_READ_BYTES, size - start)))
            at = max(begin, end - len(buffer))
            count = read_into(file, at, buffer[: end - at])
            until = _after_nonzero(np.frombuffer(buffer[:count], np.uint8))
            if until:
                return at + until
            end = at
    return start


def _after_nonzero(values: npt.NDArray[np.uint8]) -> int:
    """Return the index after the last nonzero value, 0 where there is none: the maximum is found at memory's speed."""
    if not len(values) or not values.max():
        return 0
    low, high = 0, len(values)
    while high - low > SEARCHED_BYTES:
        middle = (low + high) // 2
        low, high = (middle, high) if values[middle:high].max() else (low, middle)
    return low + int(np.flatnonzero(values[low:high])[-1]) + 1
