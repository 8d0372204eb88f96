"""Surveying a segment: every stretch of it said as a fact, the stretches behind damage included.

Recovery needs to know where the intact log ends; people also want to know what stands behind that. A survey goes on
after damage: it looks at each alignment boundary for the next whole frame that says it belongs right there, and walks
on from it. Never changes a byte, never judges: what a damaged stretch means depends on what was promised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from walkit.errors import CorruptionError, FormatVersionError, StorageError, WalkitError
from walkit.format.batch_verify import FrameRow
from walkit.format.frame import FrameFault, FrameHeader, check_body, check_header, decode_frame
from walkit.format.layout import FRAME_HEADER_BYTES, FRAME_MAGIC, SEGMENT_HEADER_BYTES, align_up
from walkit.format.manifest import Gap
from walkit.format.segment import SegmentHeader
from walkit.recovery.tail_scan import PROBE_BYTES, nonzero_until
from walkit.segments.frame_walk import FrameWalk, Readable
from walkit.storage.bulk import data_ranges

FrameSeen = Callable[[FrameHeader, bool], None]
"""Called with every frame whose header can be trusted, and whether the frame is intact."""

_OTHERS = (FrameFault.FOREIGN, FrameFault.EPOCH)
_MISPLACED = (FrameFault.CHAIN, FrameFault.LSN, FrameFault.LAST)
_BROKEN = (FrameFault.BODY, FrameFault.PADDING)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Positions [start_position, end_position) of one segment: intact frames (no fault), zeros, or damage.

    `first_lsn` and `last_lsn` are what stands there or, of damage, what is lost as far as that is known; None where it
    is not. Zeros are a fault END without bytes behind them.
    """

    start_position: int
    end_position: int
    fault: FrameFault | None = None
    zeros: bool = False
    frames: int = 0
    records: int = 0
    first_lsn: int | None = None
    last_lsn: int | None = None
    chain: int = 0
    """Header checksum of the last intact frame."""
    first: FrameHeader | None = None
    last: FrameHeader | None = None
    """The first and the last of the intact frames, marks included; told only where frames are `seen` one by one."""
    at_fault: FrameHeader | None = None
    error: WalkitError | None = None
    """A newer format, an unreadable place, or a body that its checksum vouches for and that cannot be decoded."""
    gap: Gap | None = None
    """A hole or a lost range that the manifest records; whatever stands there is not looked at."""

    @property
    def intact(self) -> bool:
        """Whether these are frames that each follow the one before."""
        return self.fault is None


@dataclass(slots=True)
class _Next:
    """What the next frame has to follow; None where damage before it leaves that open."""

    lsn: int | None
    chain: int | None


class SegmentSurvey:
    """Iterates the stretches of one segment over positions [start_position, end_position).

    `next_lsn` and `chain` are what its first frame must follow, `last_chain` is the header checksum of its last one.
    `bodies` off reads frame headers only; `decode` also takes every body apart. Telling `seen` of each frame takes
    longer than checking many at once. `promised_position` afterwards is the furthest promise of any intact frame.
    `reached` is called with positions on the way.
    """

    def __init__(
        self,
        file: Readable,
        segment: SegmentHeader,
        *,
        start_position: int,
        end_position: int,
        next_lsn: int | None,
        chain: int | None,
        last_chain: int | None = None,
        bodies: bool = True,
        decode: bool = False,
        seen: FrameSeen | None = None,
        watched_position: int | None = None,
        reached: Callable[[int], object] | None = None,
        gaps: Sequence[Gap] = (),
    ) -> None:
        self.file = file
        self.segment = segment
        self.position = start_position
        self.end_position = end_position
        self.bodies = bodies or decode
        self.decode = decode
        self.seen = seen
        self.promised_position = 0
        self.lsn_at_watched: int | None = None
        """The last LSN of the intact frame that ends at `watched_position`, once it was seen."""
        self._watched_position = watched_position
        self._reached = reached
        self._next = _Next(next_lsn, chain)
        self._last_chain = last_chain
        self._nonzero_offset: int | None = None
        """Where only zeros follow, once that was looked for."""
        self._gaps = {gap.start_position: gap for gap in gaps}

    def __iter__(self) -> Iterator[Stretch]:
        """Yield the stretches in order, without a gap between them."""
        while self.position < self.end_position:
            start = self.position
            gap = self._gaps.get(start)
            if gap is not None:
                yield self._pass(gap)
                continue
            walked = self._walk_on()
            if self.position > start:
                yield self._frames(start, walked)
            if self.position < self.end_position and self.position not in self._gaps:
                yield from self._damage(walked)

    def _pass(self, gap: Gap) -> Stretch:
        self.position, self._next = gap.end_position, _Next(gap.last_lsn + 1, gap.chain)
        return Stretch(
            start_position=gap.start_position,
            end_position=gap.end_position,
            fault=FrameFault.END,
            first_lsn=gap.first_lsn,
            last_lsn=gap.last_lsn,
            gap=gap,
        )

    # -- intact frames

    def _walk_on(self) -> _Walked:
        end_position = min([self.end_position, *(p for p in self._gaps if p > self.position)])
        walk = FrameWalk(
            self.file,
            self.segment,
            position=self.position,
            end_position=end_position,
            next_lsn=self._next.lsn,
            chain=self._next.chain,
            last_chain=self._last_chain if end_position == self.end_position else None,
            body=self.bodies,
            decode=self.decode,
        )
        walked = _Walked(walk)
        seen, decode, watched = self.seen, self.decode, self._watched_position
        if seen is None and self.bodies:
            walk.row_seen = lambda row: self._row_seen(walked, row)
        header: FrameHeader | None = None
        try:
            for header, frame in walk:
                if walked.first_lsn is None and header.span:
                    walked.first_lsn = header.first_lsn
                if decode:
                    decode_frame(header, frame)
                walked.first, walked.last = walked.first or header, header
                if header.end_position == watched:
                    self.lsn_at_watched = header.last_lsn
                if seen is not None:
                    seen(header, True)
            walked.fault, walked.at_fault, walked.error = walk.fault, walk.at_fault, walk.error
            self.position = walk.position
        except FormatVersionError as newer:
            walked.fault, walked.error = FrameFault.HEADER, newer
            self.position = walk.position
        except CorruptionError as malformed:
            assert header is not None
            walked.fault, walked.at_fault, walked.error = FrameFault.BODY, header, malformed
            walked.take_back(header)
            self.position = header.position
        self.promised_position = max(self.promised_position, walk.promised_position)
        if walk.frames:
            self._next = _Next(walk.next_lsn, walk.chain)
        return walked

    def _row_seen(self, walked: _Walked, row: FrameRow) -> None:
        if walked.first_lsn is None:
            walked.first_lsn = row.first_lsn
        at = np.flatnonzero(row.ends == self._watched_position)
        if len(at):
            self.lsn_at_watched = int(row.last_lsns[at[0]])
        if self._reached is not None:
            self._reached(int(row.ends[-1]))

    def _frames(self, start: int, walked: _Walked) -> Stretch:
        last = (walked.walk.next_lsn or 1) - 1
        return Stretch(
            start_position=start,
            end_position=self.position,
            frames=walked.frames,
            records=walked.records,
            first_lsn=walked.first_lsn,
            last_lsn=last if walked.first_lsn is not None else None,
            chain=walked.walk.chain or 0,
            first=walked.first,
            last=walked.last,
        )

    # -- damage

    def _damage(self, walked: _Walked) -> Iterator[Stretch]:
        start, fault, error = self.position, walked.fault or FrameFault.END, walked.error
        first_lost, header = self._next.lsn, walked.at_fault
        if header is not None and self.seen is not None and fault in (*_BROKEN, *_MISPLACED):
            self.seen(header, False)
        until = self.end_position
        try:
            resume = self._resume(fault, header, self._searched_until(fault))
            if resume is None and fault is not FrameFault.UNREADABLE:
                until = self._nonzero_position(start)
        except StorageError as unreadable:
            fault, error, resume = FrameFault.UNREADABLE, unreadable, None
        self.position = self.end_position if resume is None else resume
        if until > start:
            last_lost = self._next.lsn - 1 if resume is not None and self._next.lsn is not None else None
            yield Stretch(
                start_position=start,
                end_position=until if resume is None else resume,
                fault=fault,
                first_lsn=first_lost,
                last_lsn=last_lost,
                at_fault=header,
                error=error,
            )
        if resume is None and until < self.end_position:
            yield Stretch(
                start_position=until, end_position=self.end_position, fault=FrameFault.END, zeros=True,
                first_lsn=first_lost if until == start else None,
            )  # fmt: skip

    def _searched_until(self, fault: FrameFault) -> int:
        """Return the position before which another frame can begin: behind zeros there are mostly zeros only."""
        if fault is not FrameFault.END:
            return self.end_position
        with suppress(StorageError):  # what can be read of it may have a frame before the unreadable place
            return self._nonzero_position(self.position)
        return self.end_position

    def _resume(self, fault: FrameFault, header: FrameHeader | None, until: int) -> int | None:
        """Return the position of the next frame that can be walked on from; None where there is none before `until`."""
        trusted = header is not None and header.end_position <= self.end_position
        if header is not None and trusted and fault in (*_BROKEN, *_MISPLACED):
            self._next = _Next(header.last_lsn + 1, header.header_crc)
            return header.end_position
        if fault is FrameFault.UNREADABLE:
            self._next = _Next(None, None)
            return None
        begin = self.position + self.segment.alignment
        if header is not None and trusted and fault in _OTHERS:
            begin = header.end_position
        found = next_frame(self.file, self.segment, begin, self.end_position, until)
        if found is None:
            self._next = _Next(None, None)
            return None
        self._next = _Next(found.first_lsn, None)
        return found.position

    def _nonzero_position(self, start: int) -> int:
        """Return the position behind the last nonzero byte at or after `start`, on a boundary."""
        end_offset = min(self.segment.offset_of(self.end_position), self.file.size())
        offset = self.segment.offset_of(start)
        if self._nonzero_offset is None:
            self._nonzero_offset = nonzero_until(self.file, offset, end_offset) if end_offset > offset else 0
        until = max(self._nonzero_offset, offset)
        return min(start + align_up(until - offset, self.segment.alignment), self.end_position)


class _Walked:
    """One walk over intact frames, and why it ended."""

    __slots__ = ("at_fault", "error", "fault", "first", "first_lsn", "last", "taken_back", "walk")

    def __init__(self, walk: FrameWalk) -> None:
        self.walk = walk
        self.first_lsn: int | None = None
        self.fault: FrameFault | None = None
        self.at_fault: FrameHeader | None = None
        self.error: WalkitError | None = None
        self.taken_back: FrameHeader | None = None
        self.first: FrameHeader | None = None
        self.last: FrameHeader | None = None

    @property
    def frames(self) -> int:
        return self.walk.frames - (self.taken_back is not None)

    @property
    def records(self) -> int:
        return self.walk.records - (0 if self.taken_back is None else self.taken_back.records)

    def take_back(self, header: FrameHeader) -> None:
        """Leave out the last frame: its checksums are right, and it cannot be decoded."""
        self.taken_back = header
        self.walk.next_lsn, self.walk.chain = header.first_lsn, header.chain
        if self.first_lsn == header.first_lsn:
            self.first_lsn = None


def next_frame(
    file: Readable, segment: SegmentHeader, position: int, end_position: int, until: int
) -> FrameHeader | None:
    """Return the first whole frame of this segment that stands where it says, from `position` on; None without one.

    It begins before `until`, and ends up to `end_position`.
    """
    start, alignment = segment.start_position, segment.alignment
    begin = segment.offset_of(start + align_up(position - start, alignment))
    for first, last in data_ranges(file, begin, segment.offset_of(until)):
        # A header begins with its magic, which is not zero: what begins before the data is none.
        at = start + align_up(first - SEGMENT_HEADER_BYTES, alignment)
        found = _frame_within(file, segment, at, start + last - SEGMENT_HEADER_BYTES, end_position)
        if found is not None:
            return found
    return None


def _frame_within(
    file: Readable, segment: SegmentHeader, position: int, until: int, end_position: int
) -> FrameHeader | None:
    """Return the first whole frame that begins at a boundary from `position` on and before `until`."""
    alignment = segment.alignment
    while position < until:
        offset = segment.offset_of(position)
        size = min(PROBE_BYTES, until - position) + FRAME_HEADER_BYTES
        block = file.read(offset, min(size, end_position - position))
        boundaries = (len(block) - FRAME_HEADER_BYTES) // alignment + 1
        if boundaries <= 0:
            return None
        words = np.frombuffer(block, "<u4", len(block) // 4)[:: alignment // 4][:boundaries]
        for index in np.flatnonzero(words == FRAME_MAGIC):
            at = int(index) * alignment
            header = _ours(block, at, segment, position + at)
            if header is not None and header.end_position <= end_position:
                frame = memoryview(file.read(offset + at, header.footprint))
                if check_body(header, frame) is None:
                    return header
        position += boundaries * alignment
    return None


def _ours(block: bytes, at: int, segment: SegmentHeader, position: int) -> FrameHeader | None:
    try:
        header, fault = check_header(block, at, segment.alignment, segment.frame_bytes_max)
    except FormatVersionError:
        return None
    if header is None or fault is not None or header.position != position:
        return None
    ours = (segment.log_id, segment.epoch, segment.epoch_id)
    return header if (header.log_id, header.epoch, header.epoch_id) == ours else None
