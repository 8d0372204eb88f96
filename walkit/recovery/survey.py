"""Surveying a segment of which nothing can be trusted: every region of it as a fact, those after damage included.

Recovery needs to know where the intact log ends, and what follows it: intact frames there promise the records
before them (pebble's sync offset is the source of the idea), and some of them can be kept. A survey continues after
damage: it looks at each alignment boundary for the next whole frame that says it belongs right there, and walks on from
it. Never changes a byte, never judges: the meaning of a damaged region depends on the promises.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from walkit.errors import CorruptionError, FormatVersionError, StorageError, WalkitError
from walkit.format.frame import FrameFault, FrameHeader, check_body, check_header, decode_frame
from walkit.format.layout import FRAME_HEADER_BYTES, FRAME_MAGIC, SEGMENT_HEADER_BYTES, align_up
from walkit.format.manifest import Gap, LogEnd
from walkit.format.segment import SegmentHeader
from walkit.segments.frame_walk import ROW_READ_BYTES, FrameWalk, Readable
from walkit.storage.bulk import BulkThrough, data_ranges, read_into
from walkit.storage.interface import OUT_OF_PROCESS, StorageFile

# -- reading pages that may be unreadable

PAGE_BYTES = 4096
PASSING_ERRNOS = OUT_OF_PROCESS | {errno.EINTR, errno.EAGAIN, errno.EBUSY}
"""Errors that prove nothing about the file: with these a file never counts as lost."""


class TolerantFile(BulkThrough):
    """A file whose unreadable pages read as zeros, which are never a frame; `unreadable` lists them."""

    def __init__(self, file: StorageFile) -> None:
        self.inner: StorageFile = file
        self.unreadable: dict[int, str] = {}

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`, with zeros for each page that the storage cannot read."""
        try:
            return self.inner.read(offset, size)
        except StorageError as error:
            if error.errno in PASSING_ERRNOS:
                raise
        parts, until = [], min(offset + size, self.inner.size())
        while offset < until:
            step = min(PAGE_BYTES - offset % PAGE_BYTES, until - offset)
            try:
                parts.append(self.inner.read(offset, step))
            except StorageError as error:
                if error.errno in PASSING_ERRNOS:
                    raise
                self.unreadable[offset] = str(error)
                parts.append(bytes(step))
            offset += step
        return b"".join(parts)

    def data_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges with data, which bounds the reading of a file that is mostly a hole."""
        try:
            return super().data_ranges(start, end)
        except StorageError as error:
            if error.errno in PASSING_ERRNOS:
                raise
            return [(start, end)] if start < end else []

    @property
    def name(self) -> str:
        """The file's name."""
        return self.inner.name

    def size(self) -> int:
        """Return the file's size in bytes."""
        return self.inner.size()

    def close(self) -> None:
        """Close the file."""
        self.inner.close()


# -- searching frames, and the last byte in use

PROBE_BYTES = 4 << 20
ZERO_READ_BYTES = 1 << 20
SEARCHED_BYTES = 4096


def frame_headers(
    file: Readable, alignment: int, frame_bytes_max: int, start: int, until: int
) -> Iterator[tuple[int, FrameHeader]]:
    """Yield (file offset, header) of each right frame header on a boundary in [start, until), of any log."""
    for first, last in data_ranges(file, start, until):
        # A header starts with its magic, which is not zero: none starts before the data.
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

    Bytes within one are its content.
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
    """Return the file offset after the last nonzero byte at or after `start`; `start` without one.

    Reads from the end on, and only the ranges with data.
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
    """Return the index after the last nonzero value, 0 without one: the maximum is found at memory's speed."""
    if not len(values) or not values.max():
        return 0
    low, high = 0, len(values)
    while high - low > SEARCHED_BYTES:
        middle = (low + high) // 2
        low, high = (middle, high) if values[middle:high].max() else (low, middle)
    return low + int(np.flatnonzero(values[low:high])[-1]) + 1


# -- the regions of a segment

FrameSeen = Callable[[FrameHeader, bool], None]
"""Called with every frame whose header can be trusted, and whether the frame is intact."""

_OTHERS = (FrameFault.FOREIGN, FrameFault.EPOCH)
_MISPLACED = (FrameFault.CHAIN, FrameFault.LSN, FrameFault.LAST)
_NOWHERE = LogEnd()
RESUMED_READ_BYTES = 16 * 1024
"""How much is read at least after damage: as much as twice the frames before it, as the next ones may be as few."""
_BROKEN = (FrameFault.BODY, FrameFault.PADDING)


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """Positions [start_position, end_position) of one segment: intact frames (no fault), a gap, damage, or zeros.

    `first_lsn` and `last_lsn` are the LSNs there or, for damage, the lost ones as far as known; None if unknown. Zeros
    are a fault END without bytes after them.
    """

    start_position: int
    end_position: int
    fault: FrameFault | None = None
    zeros: bool = False
    frames: int = 0
    records: int = 0
    first_lsn: int | None = None
    last_lsn: int | None = None
    before: LogEnd = _NOWHERE
    """The place that the first of the intact frames follows."""
    after: LogEnd = _NOWHERE
    """Where the last of the intact frames ends."""
    at_fault: FrameHeader | None = None
    error: WalkitError | None = None
    """A newer format, an unreadable place, or a body that its checksum vouches for and that cannot be decoded."""
    gap: Gap | None = None
    """A hole or a lost range that the manifest records; its bytes are not read."""

    @property
    def intact(self) -> bool:
        """Whether these are frames that each follow the one before."""
        return self.fault is None

    @property
    def misplaced(self) -> FrameHeader | None:
        """The intact frame of this log that stands here and does not follow its predecessor; None without one."""
        return self.at_fault if self.fault in _MISPLACED else None


def passed(gap: Gap) -> Region:
    """Return the region of a gap that the manifest records."""
    return Region(
        start_position=gap.start_position,
        end_position=gap.end_position,
        fault=FrameFault.END,
        first_lsn=gap.first_lsn,
        last_lsn=gap.last_lsn,
        before=LogEnd(last_lsn=gap.first_lsn - 1, position=gap.start_position),
        after=LogEnd(last_lsn=gap.last_lsn, position=gap.end_position, chain=gap.chain),
        gap=gap,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameSpan:
    """Positions of one segment to be surveyed: enough to survey them again."""

    name: str
    header: SegmentHeader
    begin: LogEnd
    """Where it begins, and the predecessor of its first frame."""
    end_position: int
    bodies: bool = True
    """Whether frames are read whole, and not their headers alone."""
    last_chain: int | None = None
    """Header checksum of the frame that ends at `end_position`, if that is known."""
    gaps: tuple[Gap, ...] = ()
    anywhere: bool = False
    """Whether the predecessor of the first frame is taken from that frame."""


@dataclass(frozen=True, slots=True)
class _Stop:
    """Why a walk over intact frames ended."""

    fault: FrameFault
    header: FrameHeader | None = None
    error: WalkitError | None = None


class SegmentSurvey:
    """Iterates the regions of a span of one segment, whose file is open.

    `decode` also takes every body apart. Telling `seen` of each frame takes longer than checking many at once.
    `nonzero_until` is the file offset after which only zeros follow, if that is known. `promised_position` afterwards
    is the furthest promise of any intact frame. `reached` is called with positions on the way.
    """

    def __init__(
        self,
        file: Readable,
        span: FrameSpan,
        *,
        decode: bool = False,
        seen: FrameSeen | None = None,
        reached: Callable[[int], object] | None = None,
        nonzero_until: int | None = None,
    ) -> None:
        self.file, self.segment = file, span.header
        self.position, self.end_position = span.begin.position, span.end_position
        self.bodies, self.decode, self.seen = span.bodies or decode, decode, seen
        self.promised_position = 0
        self.read_ns = 0
        """Time that reading intact frames took."""
        self._reached = reached
        self._next_lsn = None if span.anywhere else span.begin.last_lsn + 1
        self._chain = None if span.anywhere else span.begin.chain
        self._last_chain = span.last_chain
        self._nonzero_until = nonzero_until
        self._gaps = {gap.start_position: gap for gap in span.gaps}
        self._gap_starts = sorted(self._gaps)
        self._read_bytes: int | None = None

    def __iter__(self) -> Iterator[Region]:
        """Yield the regions in order, without a space between them."""
        if self._next_lsn is None:
            self._begin_anywhere()
        while self.position < self.end_position:
            gap = self._gaps.get(self.position)
            if gap is not None:
                yield self._pass(gap)
                continue
            intact, stop = self._walk_on()
            if intact is not None:
                yield intact
            if self.position < self.end_position and self.position not in self._gaps:
                yield from self._damage(stop)

    def _begin_anywhere(self) -> None:
        """Take the first frame's predecessor from that frame, if it is there."""
        with suppress(StorageError):  # the walk reports unreadable bytes
            self._go_on_at(
                next_frame(self.file, self.segment, self.position, self.end_position, self.position + 1)
            )

    def _pass(self, gap: Gap) -> Region:
        self.position, self._next_lsn, self._chain = gap.end_position, gap.last_lsn + 1, gap.chain
        return passed(gap)

    # -- intact frames

    def _walk_on(self) -> tuple[Region | None, _Stop]:
        """Walk the frames that follow; return their region, if there is any, and why it ends."""
        start, decode = self.position, self.decode
        following = bisect_right(self._gap_starts, start)
        end_position = min([self.end_position, *self._gap_starts[following : following + 1]])
        walk = FrameWalk(
            self.file,
            self.segment,
            position=start,
            end_position=end_position,
            next_lsn=self._next_lsn,
            chain=self._chain,
            last_chain=self._last_chain if end_position == self.end_position else None,
            body=self.bodies,
            decode=decode,
            read_bytes=self._read_bytes,
        )
        if self.seen is None and self.bodies:
            walk.row_seen = lambda row: None if self._reached is None else self._reached(int(row.ends[-1]))
        malformed: FrameHeader | None = None
        stop = None
        try:
            for header, frame in walk:
                if decode:
                    malformed = header
                    decode_frame(header, frame)
                    malformed = None
                if self.seen is not None:
                    self.seen(header, True)
        except (CorruptionError, FormatVersionError) as error:
            fault = FrameFault.HEADER if isinstance(error, FormatVersionError) else FrameFault.BODY
            stop = _Stop(fault, malformed, error)
        self.read_ns += walk.read_ns
        if self.bodies:
            self._read_bytes = min(max(2 * (walk.position - start), RESUMED_READ_BYTES), ROW_READ_BYTES)
        self.promised_position = max(self.promised_position, walk.promised_position)
        before = LogEnd(last_lsn=(self._next_lsn or 1) - 1, position=start, chain=self._chain or 0)
        frames, records = walk.frames, walk.records
        self.position = walk.position
        if malformed is not None:  # its checksums are right, and it cannot be decoded: it counts as damaged
            self.position = malformed.position
            self._next_lsn, self._chain = malformed.first_lsn, malformed.chain
            frames, records = frames - 1, records - malformed.records
        elif frames:
            self._next_lsn, self._chain = walk.next_lsn, walk.chain
        stop = stop or _Stop(walk.fault or FrameFault.END, walk.at_fault, walk.error)
        if not frames:
            return None, stop
        after = LogEnd(last_lsn=(self._next_lsn or 1) - 1, position=self.position, chain=self._chain or 0)
        held = after.last_lsn > before.last_lsn
        return Region(
            start_position=start,
            end_position=self.position,
            frames=frames,
            records=records,
            first_lsn=before.last_lsn + 1 if held else None,
            last_lsn=after.last_lsn if held else None,
            before=before,
            after=after,
        ), stop

    # -- damage

    def _damage(self, stop: _Stop) -> Iterator[Region]:
        start, fault, header, error = self.position, stop.fault, stop.header, stop.error
        first_lost = self._next_lsn
        if header is not None and fault in (*_BROKEN, *_MISPLACED):
            if fault in _MISPLACED and self.bodies:
                self.promised_position = max(self.promised_position, header.durable_position)
            if self.seen is not None:
                self.seen(header, False)
        until = self.end_position
        try:
            resume = self._resume(fault, header)
            if resume is None and fault is not FrameFault.UNREADABLE:
                until = self._nonzero_position(start)
        except StorageError as unreadable:
            fault, error, resume = FrameFault.UNREADABLE, unreadable, None
        self.position = self.end_position if resume is None else resume
        if until > start:
            last_lost = self._next_lsn - 1 if resume is not None and self._next_lsn is not None else None
            yield Region(
                start_position=start,
                end_position=until if resume is None else resume,
                fault=fault,
                first_lsn=first_lost,
                last_lsn=last_lost,
                at_fault=header,
                error=error,
            )
        if resume is None and until < self.end_position:
            yield Region(
                start_position=until, end_position=self.end_position, fault=FrameFault.END, zeros=True,
                first_lsn=first_lost if until == start else None,
            )  # fmt: skip

    def _resume(self, fault: FrameFault, header: FrameHeader | None) -> int | None:
        """Return the position of the next frame that can be walked on from; None without one."""
        trusted = header is not None and header.end_position <= self.end_position
        if header is not None and trusted and fault in (*_BROKEN, *_MISPLACED):
            self._next_lsn, self._chain = header.last_lsn + 1, header.header_crc
            return header.end_position
        if fault is FrameFault.UNREADABLE:
            return None
        begin = self.position + self.segment.alignment
        if header is not None and trusted and fault in _OTHERS:
            begin = header.end_position
        until = self.end_position
        if fault is FrameFault.END:  # after zeros there are mostly zeros only
            # The readable part may have a frame before the unreadable place.
            with suppress(StorageError):
                until = self._nonzero_position(self.position)
        return self._go_on_at(next_frame(self.file, self.segment, begin, self.end_position, until))

    def _go_on_at(self, found: FrameHeader | None) -> int | None:
        if found is None:
            return None
        self._next_lsn, self._chain = found.first_lsn, found.chain
        return found.position

    def _nonzero_position(self, start: int) -> int:
        """Return the position after the last nonzero byte at or after `start`, on a boundary."""
        end_offset = min(self.segment.offset_of(self.end_position), self.file.size())
        offset = self.segment.offset_of(start)
        if self._nonzero_until is None:
            self._nonzero_until = nonzero_until(self.file, offset, end_offset) if end_offset > offset else 0
        until = max(self._nonzero_until, offset)
        return min(start + align_up(until - offset, self.segment.alignment), self.end_position)
