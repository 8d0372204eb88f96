"""A run of frames: contiguous frames of one epoch as stored in a log, on their way into another log.

Pure: bytes in, facts or a fault out. The checks are those of the walk, the same that recovery and readers use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from walkit._internal.text import counted, lsn_range
from walkit.format.frame import FrameFault, FrameHeader, FrameIdentity
from walkit.format.layout import SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import LogEnd
from walkit.format.segment import SegmentHeader
from walkit.segments.frame_walk import FrameWalk


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits of frames, from the header of their segment."""

    alignment: int
    frame_bytes_max: int


@dataclass(frozen=True, slots=True, repr=False)
class FrameRun:
    """Frames that were verified one by one and follow `after`. `data` is their bytes, padding included.

    `start_position` is above `after.position` only if the positions jump (FORMAT.md F-2.5).
    """

    identity: FrameIdentity
    limits: FrameLimits
    after: LogEnd
    start_position: int
    headers: tuple[FrameHeader, ...]
    data: bytes

    @property
    def end(self) -> LogEnd:
        """The end that the next frame must follow."""
        last = self.headers[-1]
        return LogEnd(last_lsn=last.last_lsn, position=last.end_position, chain=last.header_crc)

    @property
    def first_lsn(self) -> int:
        """LSN of the first record; that of the next one if all are marker frames."""
        return self.headers[0].first_lsn

    @property
    def records(self) -> int:
        """How many records the frames hold."""
        return sum(header.records for header in self.headers)

    def until(self, count: int) -> FrameRun:
        """Return the run of the first `count` frames, at least one."""
        if count == len(self.headers):
            return self
        headers = self.headers[:count]
        return replace(
            self, headers=headers, data=self.data[: headers[-1].end_position - self.start_position]
        )

    def is_followed_by(self, other: FrameRun) -> bool:
        """Return whether another run continues in the same epoch, where this one ends, without a gap in positions."""
        end = self.end
        return (self.identity, self.limits, end, end.position) == (
            other.identity,
            other.limits,
            other.after,
            other.start_position,
        )

    def frames(self) -> list[tuple[FrameHeader, memoryview]]:
        """Return (header, bytes) of each frame."""
        view, start = memoryview(self.data), self.start_position
        return [(h, view[h.position - start : h.end_position - start]) for h in self.headers]

    def __repr__(self) -> str:
        end = self.end
        frames = counted(len(self.headers), "frame")
        return f"FrameRun({frames}, {lsn_range(self.first_lsn, end.last_lsn)}, to position {end.position})"


def join_runs(runs: Sequence[FrameRun]) -> FrameRun:
    """Return one run of all frames; each of `runs` is followed by the next."""
    first = runs[0]
    if len(runs) == 1:
        return first
    headers = tuple(header for run in runs for header in run.headers)
    data = b"".join(run.data for run in runs)
    return FrameRun(first.identity, first.limits, first.after, first.start_position, headers, data)


class _Bytes:
    """A run's bytes read as if they followed a segment header; all that a walk asks of a file."""

    name = "frames on their way"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, offset: int, size: int) -> bytes:
        start = offset - SEGMENT_HEADER_BYTES
        return self._data if not start and size == len(self._data) else self._data[start : start + size]


def check_run(
    data: bytes, identity: FrameIdentity, limits: FrameLimits, after: LogEnd, start_position: int
) -> tuple[FrameRun | None, FrameFault | None, FrameHeader | None]:
    """Judge frames that should follow `after`: return (run, None, None), or (None, fault, damaged header if readable).

    All or nothing: one frame that is not intact or does not follow spoils the run. FormatVersionError for a frame of
    a newer format. Limits that no segment can have are a fault too.
    """
    segment = SegmentHeader(
        log_id=identity.log_id,
        epoch=identity.epoch,
        epoch_id=identity.epoch_id,
        number=0,
        start_position=start_position,
        previous_end=after.position,
        first_lsn=after.last_lsn + 1,
        chain=after.chain,
        alignment=limits.alignment,
        frame_bytes_max=limits.frame_bytes_max,
        created_us=0,
        flags=SegmentFlag.IMPORTED,
    )
    try:
        segment.encode()
    except ValueError:
        return None, FrameFault.LENGTH, None
    walk = FrameWalk(
        _Bytes(data),  # type: ignore[arg-type]  # a walk only reads
        segment,
        position=start_position,
        end_position=start_position + len(data),
        next_lsn=after.last_lsn + 1,
        chain=after.chain,
    )
    headers = tuple(header for header, _ in walk)
    if walk.fault is not None or not headers:
        return None, walk.fault or FrameFault.SHORT, walk.at_fault
    return FrameRun(identity, limits, after, start_position, headers, data), None, None
