"""Damage to the files of a log whose writer is dead, for showing and testing recovery.

A bit that flips and a segment that is gone take acknowledged data, so an opening has to refuse it. The first half of a
frame at the end may be left by a power cut; a killed process rarely leaves one, because the kernel finishes the
system call under way.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from walkit._internal.arguments import refuse
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
from walkit.format.layout import FRAME_HEADER_BYTES, HAS_VALUE, SEGMENT_HEADER_BYTES
from walkit.format.segment import SegmentHeader
from walkit.record import Kind

BODY_OFFSET_MAX = 64
"""How far into the body a bit is flipped: near enough to the header to be seen with it."""
HALF_BODY_BYTES = 1_500
"""Bytes of the value of a frame of which half is written."""


class FlippedBit(NamedTuple):
    """One bit that was changed."""

    segment: str
    frame: FrameHeader
    frame_offset: int
    """Where the frame begins in the file."""
    byte: int
    """Which byte of the frame."""
    bit: int


def flip_a_bit(path: str | os.PathLike[str]) -> FlippedBit:
    """Flip one bit in the body of a middle frame of the newest segment that has several; return which.

    OptionsError if no segment has three frames: then nothing is changed. The log must not be open.
    """
    for file in _segments(path):
        data = file.read_bytes()
        header = SegmentHeader.decode(data, file.name)
        frames, *_ = _frames_of(data, header) if header is not None else ([],)
        if len(frames) >= 3:
            offset, frame = frames[len(frames) // 2]
            byte = FRAME_HEADER_BYTES + min(frame.body_stored_bytes // 2, BODY_OFFSET_MAX)
            _write(file, offset + byte, bytes([data[offset + byte] ^ 1]))
            return FlippedBit(file.name, frame, offset, byte, 0)
    refuse("path", os.fspath(path), "a log with a segment of three frames")


def remove_the_oldest_segment(path: str | os.PathLike[str]) -> str:
    """Remove the file of a log's oldest segment, and return its name. OptionsError without a segment."""
    files = _segments(path)
    if not files:
        refuse("path", os.fspath(path), "a log with a segment")
    files[-1].unlink()
    return files[-1].name


def leave_half_a_frame(path: str | os.PathLike[str]) -> int:
    """Write the first half of the frame that would come next, unsynced; return its bytes.

    0, and nothing is written, without a frame to follow, without room, or after a torn write. The log must not be open.
    """
    for file in _segments(path):
        data = file.read_bytes()
        try:
            header = SegmentHeader.decode(data, file.name)
        except WalkitError:
            return 0
        if header is not None:
            return _write_half(file, data, header)
    return 0


def _segments(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a log's segments, newest first."""
    return sorted(Path(path).glob("*.segment"), reverse=True)


def _frames_of(
    data: bytes, segment: SegmentHeader
) -> tuple[list[tuple[int, FrameHeader]], int, FrameFault | None]:
    """Return the frames from the beginning of a segment, each with its offset; their end, and why they end there."""
    found: list[tuple[int, FrameHeader]] = []
    offset = SEGMENT_HEADER_BYTES
    while True:
        frame, fault = check_header(data, offset, segment.alignment, segment.frame_bytes_max)
        if frame is None:
            return found, offset, fault
        found.append((offset, frame))
        offset += frame.footprint


def _write_half(file: Path, data: bytes, segment: SegmentHeader) -> int:
    frames, end, fault = _frames_of(data, segment)
    whole = all(
        check_body(frame, memoryview(data)[at : at + frame.footprint]) is None for at, frame in frames
    )
    if not frames or not whole or fault is not FrameFault.END:
        return 0
    half = _half_of_next(frames[-1][1], segment)
    if end + 2 * len(half) > len(data):
        return 0
    _write(file, end, half)
    return len(half)


def _half_of_next(last: FrameHeader, segment: SegmentHeader) -> bytes:
    columns = Columns(1, [int(Kind.PUT) | HAS_VALUE], None, [b"torn" * (HALF_BODY_BYTES // 4)])
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


def _write(file: Path, offset: int, data: bytes) -> None:
    with open(file, "r+b") as out:
        out.seek(offset)
        out.write(data)
