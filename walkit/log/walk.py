"""Walking the frames of a segment: the one loop that recovery, readers and tools share. Never changes a byte.

A walk yields frames as long as each is intact and follows the one before it: position, LSN, chain, log and epoch. It
does not judge what an end means; `fault` says why it ended, and recovery decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from walkit.errors import StorageError
from walkit.format.frame import FrameFault, FrameHeader, check_body, check_header
from walkit.format.layout import FRAME_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import HoleRecord, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.storage.base import StorageFile

READ_BYTES = 1 << 20
HOP_BYTES = 64 * 1024


class FrameWalk:
    """Iterates (header, frame bytes) of one segment, from `position` up to `end_position`.

    `first_lsn` and `chain` are what the first frame must follow; None takes them from the first frame (a reader that
    begins in the middle of a segment). `last_chain` is the header checksum of the frame that ends at `end_position`,
    where that is known (see `last_chain_of`). `body` off leaves bodies unread for hopping over frames by their headers.
    At the start of one of `holes` the walk goes on behind it (FORMAT.md F-2.8). `read_bytes` are read at a time, or one
    frame where that is larger.

    After the iteration `position`, `next_lsn` and `chain` say what the next frame would have to follow, `fault` why the
    walk ended before `end_position` (None where it reached it) and `at_fault` what the damaged header said, if it could
    be read.
    """

    def __init__(
        self,
        file: StorageFile,
        segment: SegmentHeader,
        *,
        position: int,
        end_position: int,
        next_lsn: int | None = None,
        chain: int | None = None,
        last_chain: int | None = None,
        body: bool = True,
        holes: Sequence[HoleRecord] = (),
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
        self.read_bytes = read_bytes or (READ_BYTES if body else HOP_BYTES)
        self._holes = {hole.start_position: hole for hole in holes}
        self.fault: FrameFault | None = None
        self.at_fault: FrameHeader | None = None
        self.error: StorageError | None = None
        self.frames = 0
        self.records = 0
        self.promised_position = 0
        self._buffer = b""
        self._buffer_position = position

    def __iter__(self) -> Iterator[tuple[FrameHeader, memoryview]]:
        """Yield each frame that belongs, in order."""
        while self.position < self.end_position:
            hole = self._holes.get(self.position)
            if hole is not None:
                self.position, self.next_lsn, self.chain = hole.end_position, hole.last_lsn + 1, hole.chain
                continue
            try:
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
        """What the frame behind the segment follows, once the walk has reached the end.

        The chain within a compacted segment is its own; its header keeps the one that the log had there before.
        """
        return self.segment.end_chain if self.segment.flags & SegmentFlag.COMPACTED else self.chain or 0

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
        at = self._at(header.footprint)
        frame = memoryview(self._buffer)[at : at + header.footprint]
        return header, frame, check_body(header, frame)

    def _at(self, size: int) -> int:
        """Make `size` bytes at the current position available in the buffer; return their offset there."""
        at = self.position - self._buffer_position
        if at >= 0 and at + size <= len(self._buffer):
            return at
        wanted = max(size, self.read_bytes)
        wanted = min(wanted, self.end_position - self.position)
        self._buffer = self.file.read(self.segment.offset_of(self.position), wanted)
        self._buffer_position = self.position
        return 0

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


def last_chain_of(record: SegmentRecord, segment: SegmentHeader, end_position: int) -> int | None:
    """Return the header checksum that the frame which ends at `end_position` must have; None where nothing tells.

    A chain vouches for all frames but the last. That of a sealed segment is in the manifest; that of a compacted one,
    whose end in the manifest is the end of what it was made of, in its own header (FORMAT.md F-6.6).
    """
    if record.state is not SegmentState.SEALED or end_position != record.end_position:
        return None
    if segment.flags & SegmentFlag.COMPACTED:
        return segment.own_end_chain or None
    return record.end_chain
