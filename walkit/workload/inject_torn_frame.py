"""The remains of a write that was cut short: the first half of a frame, at the end of a log whose writer is dead.

A killed process rarely leaves one, because the kernel finishes the system call under way; a power cut does. For showing
and testing its recovery.
"""

from __future__ import annotations

import os
from pathlib import Path

from walkit.errors import WalkitError
from walkit.format.body import Columns
from walkit.format.frame import (
    FrameFault,
    FrameHeader,
    FrameIdentity,
    check_body,
    check_header,
    prepare_body,
    seal_frame,
)
from walkit.format.layout import HAS_VALUE, SEGMENT_HEADER_BYTES
from walkit.format.segment import SegmentHeader
from walkit.record import Kind

BODY_BYTES = 1_500


def leave_half_a_frame(path: str | os.PathLike[str]) -> int:
    """Write the first half of the frame that would come next, unsynced; return its bytes.

    0, and nothing is written, without a frame to follow, without room, or after a torn write. The log must not be open.
    """
    for name in sorted((p.name for p in Path(path).glob("*.segment")), reverse=True):
        data = (Path(path) / name).read_bytes()
        try:
            header = SegmentHeader.decode(data, name)
        except WalkitError:
            return 0
        if header is not None:
            return _write_half(Path(path) / name, data, header)
    return 0


def _write_half(file: Path, data: bytes, segment: SegmentHeader) -> int:
    offset, last = SEGMENT_HEADER_BYTES, None
    while True:
        found, fault = check_header(data, offset, segment.alignment, segment.frame_bytes_max)
        if found is None:
            break
        if check_body(found, memoryview(data)[offset : offset + found.footprint]) is not None:
            return 0
        last, offset = found, offset + found.footprint
    if last is None or fault is not FrameFault.END:
        return 0
    half = _half_of_next(last, segment)
    if offset + 2 * len(half) > len(data):
        return 0
    with open(file, "r+b") as out:
        out.seek(offset)
        out.write(half)
    return len(half)


def _half_of_next(last: FrameHeader, segment: SegmentHeader) -> bytes:
    columns = Columns(1, [int(Kind.PUT) | HAS_VALUE], None, [b"torn" * (BODY_BYTES // 4)])
    buffers, footprint, _ = seal_frame(
        prepare_body(columns),
        FrameIdentity(segment.log_id, segment.epoch, segment.epoch_id),
        position=last.end_position,
        first_lsn=last.last_lsn + 1,
        durable_position=last.durable_position,
        chain=last.header_crc,
        sealed_us=last.sealed_us,
        alignment=segment.alignment,
    )
    return b"".join(buffers)[: footprint // 2]
