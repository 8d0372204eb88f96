"""Surveying a segment: every region of it said as a fact, those after damage included.

Recovery needs to know where the intact log ends, and what stands after that: intact frames there promise what is
before them (pebble's sync offset is the source of the idea), and some of them can be kept. A survey continues after
damage: it looks at each alignment boundary for the next whole frame that says it belongs right there, and walks on from
it. Never changes a byte, never judges: what a damaged region means depends on what was promised.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from walkit.errors import CorruptionError, FormatVersionError, StorageError, WalkitError
from walkit.format.frame import FrameFault, FrameHeader, decode_frame
from walkit.format.layout import align_up
from walkit.format.manifest import Gap, LogEnd
from walkit.format.segment import SegmentHeader
from walkit.recovery.probe import next_frame, nonzero_until
from walkit.segments.frame_walk import ROW_READ_BYTES, FrameWalk, Readable

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

    `first_lsn` and `last_lsn` are what stands there or, of damage, what is lost as far as that is known; None where it
    is not. Zeros are a fault END without bytes after them.
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
    """What the first of the intact frames follows."""
    after: LogEnd = _NOWHERE
    """Where the last of the intact frames ends."""
    at_fault: FrameHeader | None = None
    error: WalkitError | None = None
    """A newer format, an unreadable place, or a body that its checksum vouches for and that cannot be decoded."""
    gap: Gap | None = None
    """A hole or a lost range that the manifest records; whatever stands there is not looked at."""

    @property
    def intact(self) -> bool:
        """Whether these are frames that each follow the one before."""
        return self.fault is None

    @property
    def misplaced(self) -> FrameHeader | None:
        """The intact frame of this log that stands here and does not follow what is before it; None for none."""
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
    """Where it begins, and what its first frame follows."""
    end_position: int
    bodies: bool = True
    """Whether frames are read whole, and not their headers alone."""
    last_chain: int | None = None
    """Header checksum of the frame that ends at `end_position`, where that is known."""
    gaps: tuple[Gap, ...] = ()
    anywhere: bool = False
    """Whether what the first frame follows is taken from that frame."""


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
        self.file = file
        self.segment = span.header
        self.position = span.begin.position
        self.end_position = span.end_position
        self.bodies = span.bodies or decode
        self.decode = decode
        self.seen = seen
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
        """Take what the first frame follows from that frame, where one stands there."""
        with suppress(StorageError):  # the walk says what cannot be read
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
        """Return the position of the next frame that can be walked on from; None where there is none."""
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
            # What can be read of it may have a frame before the unreadable place.
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
