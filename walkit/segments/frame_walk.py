"""Walking the frames of a segment: the one loop that recovery, readers and tools share. Never changes a byte.

A walk yields frames as long as each is intact and follows the one before it: position, LSN, chain, log and epoch. It
does not judge an end; `fault` is the reason, and recovery decides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns
from typing import Protocol

from walkit.errors import StorageError
from walkit.format.batch_verify import (
    FOOTPRINT,
    FOOTPRINT_OFFSET,
    Predecessor,
    VerifiedFrames,
    frames_in_a_row,
)
from walkit.format.frame import FrameFault, FrameHeader, check_body, check_header
from walkit.format.layout import FRAME_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import Gap, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.storage.bulk import read_ahead, read_into

READ_BYTES = 1 << 20
ROW_READ_BYTES = 4 << 20
"""Where frames are checked many at once: each row costs some dozens of numpy's calls, at any length.

They are read into the same memory again and again: the pages of new memory cost half as much as the reading.
"""
HOP_BYTES = 64 * 1024

RowSeen = Callable[[VerifiedFrames], object]
"""Called with the frames of a row, which are not yielded."""


class Readable(Protocol):
    """A file, as a walk reads it."""

    @property
    def name(self) -> str:
        """The file's name within its storage."""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only where the file ends."""

    def size(self) -> int:
        """Return the file's size in bytes."""


class FrameWalk:
    """Iterates (header, frame bytes) of one segment, from `position` up to `end_position`.

    `next_lsn` and `chain` are the values that the first frame must follow; None takes them from the first frame (a
    reader that begins in the middle of a segment). `last_chain` is the header checksum of the frame that ends at
    `end_position`, where that is known (see `last_chain_of`). `body` off leaves bodies unread for hopping over frames
    by their headers. At the start of one of `gaps` the walk continues after it (FORMAT.md F-2.8, F-2.9). With
    `row_seen` intact frames are taken many at once if possible: they are passed to it and not yielded, with `decode`
    after their bodies were taken apart. A yielded value belongs to the caller until its next step, which overwrites it.
    `read_bytes` are read at a time, or one frame if that is larger.

    After the iteration `position`, `next_lsn` and `chain` are the values the next frame must follow, `fault` is why the
    walk ended before `end_position` (None if it reached it) and `at_fault` the fields of the damaged header, if it
    could be read.
    """

    def __init__(
        self,
        file: Readable,
        segment: SegmentHeader,
        *,
        position: int,
        end_position: int,
        next_lsn: int | None = None,
        chain: int | None = None,
        last_chain: int | None = None,
        body: bool = True,
        gaps: Sequence[Gap] = (),
        row_seen: RowSeen | None = None,
        decode: bool = False,
        read_bytes: int | None = None,
    ) -> None:
        self.file = file
        self.segment = segment
        self.position = position
        self.end_position = end_position
        self.next_lsn = next_lsn
        self.chain = chain
        self.last_chain = last_chain
        self.body = body
        self.row_seen = row_seen
        self._decode = decode
        self._gaps = {gap.start_position: gap for gap in gaps}
        self._gap_starts = sorted(self._gaps)
        self._read_bytes_wanted = read_bytes
        self.fault: FrameFault | None = None
        self.at_fault: FrameHeader | None = None
        self.error: StorageError | None = None
        self.frames = 0
        self.records = 0
        self.promised_position = 0
        self.read_ns = 0
        """Time that reading took; the rest of a walk is checking."""
        self._footprint = 0
        """Of the last frame that was looked at."""
        self._buffer: bytes | bytearray = b""
        self._buffer_position = position
        self._store = bytearray()

    def __iter__(self) -> Iterator[tuple[FrameHeader, memoryview]]:
        """Yield each frame that belongs, in order."""
        return (found for found in self.steps() if found is not None)

    def steps(self) -> Iterator[tuple[FrameHeader, memoryview] | None]:
        """Yield the same, and None after each row that was passed to `row_seen`."""
        while self.position < self.end_position:
            gap = self._gaps.get(self.position)
            if gap is not None:
                self.position, self.next_lsn, self.chain = gap.end_position, gap.last_lsn + 1, gap.chain
                continue
            try:
                if self.row_seen is not None and self._pass_row(self.row_seen):
                    yield None
                    continue
                header, frame, fault = self._next()
            except StorageError as error:
                self.error, self.fault = error, FrameFault.UNREADABLE
                return
            if fault is None and header is not None:
                fault = self._misplaced(header)
            if fault is not None or header is None:
                self.fault, self.at_fault = fault, header
                return
            self.frames += 1
            self.records += header.records
            self.promised_position = max(self.promised_position, header.durable_position)
            self.position = header.end_position
            self.next_lsn = header.last_lsn + 1
            self.chain = header.header_crc
            yield header, frame

    @property
    def end_chain(self) -> int:
        """The chain that the frame after the segment follows, once the walk has reached the end.

        The chain within a compacted segment is its own; its header keeps the one that the log had there before.
        """
        return self.segment.end_chain if self.segment.flags & SegmentFlag.COMPACTED else self.chain or 0

    def _pass_row(self, row_seen: RowSeen) -> bool:
        """Advance past the frames that can be taken at once; False if the next one is looked at alone.

        That is where the walk ends: a row takes every frame that is right by itself. Else a walk would check what is
        after each such frame again and again.
        """
        following = bisect_right(self._gap_starts, self.position)
        row = self._row(min([self.end_position, *self._gap_starts[following : following + 1]]))
        if row is not None and self.last_chain not in (None, row.chain) and row.ends[-1] == self.end_position:
            row = self._row(int(row.ends[-2])) if len(row.ends) > 1 else None
        if row is None:
            return False
        self.frames += len(row.ends)
        self.records += row.records
        self.promised_position = max(self.promised_position, row.promised_position)
        self.position, self.next_lsn, self.chain = int(row.ends[-1]), int(row.last_lsns[-1]) + 1, row.chain
        row_seen(row)
        return True

    def _row(self, end_position: int) -> VerifiedFrames | None:
        at = self._at(FRAME_HEADER_BYTES)
        if len(self._buffer) - at < FRAME_HEADER_BYTES:
            return None
        (footprint,) = FOOTPRINT.unpack_from(self._buffer, at + FOOTPRINT_OFFSET)
        if footprint <= min(self.segment.frame_bytes_max, end_position - self.position):
            self._footprint = footprint
            at = self._at(footprint)
        follows = Predecessor(self.position, self.next_lsn, self.chain)
        return frames_in_a_row(self._buffer, at, self.segment, follows, end_position, decode=self._decode)

    def _next(self) -> tuple[FrameHeader | None, memoryview, FrameFault | None]:
        at = self._at(FRAME_HEADER_BYTES)
        header, fault = check_header(self._buffer, at, self.segment.alignment, self.segment.frame_bytes_max)
        if header is None or fault is not None:
            return header, memoryview(b""), fault
        if header.position != self.position:
            return header, memoryview(b""), FrameFault.POSITION
        if header.end_position > self.end_position:
            return header, memoryview(b""), FrameFault.SHORT
        if not self.body:
            return header, memoryview(b""), None
        self._footprint = header.footprint
        at = self._at(header.footprint)
        frame = memoryview(self._buffer)[at : at + header.footprint]
        return header, frame, check_body(header, frame)

    def _at(self, size: int) -> int:
        """Make `size` bytes at the current position available in the buffer; return their offset there."""
        at = self.position - self._buffer_position
        if at >= 0 and at + size <= len(self._buffer):
            return at
        began = perf_counter_ns()
        try:
            return self._fill(size)
        finally:
            self.read_ns += perf_counter_ns() - began

    def _fill(self, size: int) -> int:
        if self.row_seen is not None and self._read_on(size):
            return 0
        wanted = max(size, self._read_bytes())
        wanted = min(wanted, self.end_position - self.position)
        self._buffer = b""  # so that its memory can be the next one's
        offset = self.segment.offset_of(self.position)
        try:
            self._buffer = self.file.read(offset, wanted)
        except StorageError:
            if wanted <= size:
                raise
            self._buffer = self.file.read(offset, size)  # the unreadable part may be after this frame
        self._buffer_position = self.position
        return 0

    def _read_on(self, size: int) -> bool:
        """Read the next bytes into the memory of the earlier ones, whose rest moves to its front; False at the end.

        Values yielded from them are overwritten.
        """
        room = ROW_READ_BYTES if self._read_bytes_wanted is None else self._read_bytes_wanted
        left = self.end_position - self.position
        if size > room or (room > left and not self._store):
            return False
        if len(self._store) != room:
            self._store = bytearray(room)
        store = memoryview(self._store)
        at = self.position - self._buffer_position
        rest = len(self._buffer) - at if self._buffer is self._store and at >= 0 else 0
        rest = max(rest, 0)
        offset = self.segment.offset_of(self.position) + rest
        if rest:
            store[:rest] = store[at : at + rest]
        self._buffer = b""
        try:
            count = rest + read_into(self.file, offset, store[rest : min(room, left)])
        except StorageError:
            return False  # perhaps it is after the next frame
        ahead = min(room, left - room)
        if ahead > 0:
            read_ahead(self.file, offset + room - rest, ahead)
        store.release()
        if count < room:
            self._shorten(count)
        self._buffer = self._store
        self._buffer_position = self.position
        return True

    def _shorten(self, size: int) -> None:
        """Leave only the bytes read in the store, in its place if it has no view."""
        try:
            del self._store[size:]
        except BufferError:
            self._store = self._store[:size]

    def _read_bytes(self) -> int:
        """Return how much to read at once: frames like the last one, whole, as a part would be read again."""
        if self._read_bytes_wanted is not None:
            return self._read_bytes_wanted
        if not self.body:
            return HOP_BYTES
        wanted = READ_BYTES if self.row_seen is None else ROW_READ_BYTES
        return max(wanted // self._footprint, 1) * self._footprint if self._footprint else wanted

    def _misplaced(self, header: FrameHeader) -> FrameFault | None:
        segment = self.segment
        if header.log_id != segment.log_id:
            return FrameFault.FOREIGN
        if header.epoch != segment.epoch or header.epoch_id != segment.epoch_id:
            return FrameFault.EPOCH
        if self.next_lsn is not None and header.first_lsn != self.next_lsn:
            return FrameFault.LSN
        if self.chain is not None and header.chain != self.chain:
            return FrameFault.CHAIN
        if self.last_chain not in (None, header.header_crc) and header.end_position == self.end_position:
            return FrameFault.LAST
        return None


def walk_segment(
    file: Readable,
    segment: SegmentHeader,
    record: SegmentRecord,
    end_position: int,
    *,
    gaps: Sequence[Gap],
    body: bool = True,
    row_seen: RowSeen | None = None,
) -> FrameWalk:
    """Return the walk over a segment from its first frame, which follows the header's predecessor, to `end_position`.

    Where `record` vouches for the frame that ends there, it must be that one; `gaps` are those within the segment.
    """
    return FrameWalk(
        file,
        segment,
        position=segment.start_position,
        end_position=end_position,
        next_lsn=segment.first_lsn,
        chain=segment.chain,
        last_chain=last_chain_of(record, segment, end_position),
        body=body,
        gaps=gaps,
        row_seen=row_seen,
    )


def last_chain_of(record: SegmentRecord, segment: SegmentHeader, end_position: int) -> int | None:
    """Return the header checksum that the frame which ends at `end_position` must have; None if it is not known.

    A chain vouches for all frames but the last. That of a sealed segment is in the manifest; that of a compacted one,
    whose end in the manifest is the end of its source frames, in its own header (FORMAT.md F-6.6).
    """
    if record.state is not SegmentState.SEALED or end_position != record.end_position:
        return None
    if segment.flags & SegmentFlag.COMPACTED:
        return segment.own_end_chain or None
    return record.end_chain
