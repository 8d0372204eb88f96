"""A segment file of a log that is open for writing: prepared, then open for frames (FORMAT.md F-8, F-9)."""

from __future__ import annotations

import threading

from walkit.format.index import IndexEntry
from walkit.format.layout import INDEX_STEP_BYTES, SEGMENT_HEADER_BYTES, ZEROS
from walkit.format.segment import SegmentHeader
from walkit.storage.base import StorageFile

ZERO_STEP_BYTES = 1 << 20
LAST_BYTES = 4096


class OpenSegment:
    """A segment file in this process: prepared, then open for frames."""

    __slots__ = (
        "base_offset",
        "chain",
        "count_lock",
        "end_position",
        "file",
        "frames",
        "header",
        "index",
        "last_lsn",
        "next_chore",
        "next_noted",
        "number",
        "overtaken",
        "records",
        "size",
        "synced_writes",
        "writes",
        "zero_lock",
        "zeroed",
    )

    def __init__(self, number: int, file: StorageFile, size: int) -> None:
        self.number = number
        self.file = file
        self.size = size
        self.zeroed = SEGMENT_HEADER_BYTES
        self.zero_lock = threading.Lock()
        self.next_chore = 0
        self.next_noted = 0
        """Position from which on the next frame is noted for the index."""
        self.index: list[IndexEntry] = []
        self.base_offset = 0
        """File offset of position 0, were it in this file: negative for all but the first segment."""
        self.overtaken = False
        self.writes = self.synced_writes = 0
        self.count_lock = threading.Lock()
        self.header: SegmentHeader | None = None
        self.frames = self.records = self.last_lsn = self.end_position = self.chain = 0

    def note(self, position: int, first_lsn: int) -> None:
        """Note the frame that is admitted for the index; `records` still counts those before it."""
        self.index.append(IndexEntry(position, first_lsn, self.records))
        self.next_noted = position + INDEX_STEP_BYTES

    def sync(self) -> None:
        """Put on stable storage what was written without sync; nothing where there is none.

        What is written while it runs, and all of it where it is interrupted, counts as not synced.
        """
        writes = self.writes
        if writes > self.synced_writes:
            self.file.sync()
            self.synced_writes = writes

    def zero_step(self) -> bool:
        """Zero one step ahead, and sync it; False where there is nothing left to zero."""
        with self.zero_lock:
            if self.overtaken or self.zeroed >= self.size:
                return False
            step = min(ZERO_STEP_BYTES, self.size - self.zeroed)
            self.file.write(self.zeroed, [ZEROS[:step]], sync=True)
            self.zeroed += step
            return True

    def hold_size(self) -> None:
        """Make the reserved size durable, by a synced write of the last bytes; nothing where zeroing has come there.

        Before the first frame alone. The manifest says the size, and a file that is shorter later is damage.
        """
        if self.zeroed < self.size:
            self.file.write(self.size - LAST_BYTES, [ZEROS[:LAST_BYTES]], sync=True)

    def pass_zeroed(self, end_offset: int) -> None:
        """The leader is about to write up to `end_offset`, beyond what is zeroed.

        Waits for a zeroing that is under way, which could otherwise land on the frame; once overtaken, the file is
        never zeroed again.
        """
        with self.zero_lock:
            if end_offset > self.zeroed:
                self.overtaken = True
                self.zeroed = self.size
