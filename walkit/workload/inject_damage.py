"""Damage to the files of a log whose writer is dead: a bit that flips, a segment that is gone. For showing and testing.

The damaged data was acknowledged, so an opening has to refuse it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from walkit._internal.arguments import refuse
from walkit.format.frame import FrameHeader, check_header
from walkit.format.layout import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES
from walkit.format.segment import SegmentHeader

BODY_OFFSET_MAX = 64
"""How far into the body a bit is flipped: near enough to the header to be seen with it."""


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
    for file in sorted(Path(path).glob("*.segment"), reverse=True):
        frames = _frames_of(file)
        if len(frames) >= 3:
            offset, frame = frames[len(frames) // 2]
            byte = FRAME_HEADER_BYTES + min(frame.body_stored_bytes // 2, BODY_OFFSET_MAX)
            with open(file, "r+b") as segment:
                segment.seek(offset + byte)
                (was,) = segment.read(1)
                segment.seek(offset + byte)
                segment.write(bytes([was ^ 1]))
            return FlippedBit(file.name, frame, offset, byte, 0)
    refuse("path", os.fspath(path), "a log with a segment of three frames")


def remove_the_oldest_segment(path: str | os.PathLike[str]) -> str:
    """Remove the file of a log's oldest segment, and return its name. OptionsError without a segment."""
    files = sorted(Path(path).glob("*.segment"))
    if not files:
        refuse("path", os.fspath(path), "a log with a segment")
    files[0].unlink()
    return files[0].name


def _frames_of(file: Path) -> list[tuple[int, FrameHeader]]:
    """Return the frames from the beginning of a segment, each with its offset; none if the header is not whole."""
    data = file.read_bytes()
    header = SegmentHeader.decode(data, file.name)
    found: list[tuple[int, FrameHeader]] = []
    offset = SEGMENT_HEADER_BYTES
    while header is not None:
        frame, _ = check_header(data, offset, header.alignment, header.frame_bytes_max)
        if frame is None:
            break
        found.append((offset, frame))
        offset += frame.footprint
    return found
