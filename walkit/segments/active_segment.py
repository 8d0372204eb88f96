"""A segment file of a log that is open for writing: prepared, then open for frames (FORMAT.md F-8, F-9).

Linux reports a failed writeback once per open handle, and answers the next sync of that handle that all is well. So a
handle has one sync under way at a time: each of the synced writes side by side has its own, and so has zeroing. A file
on which a sync or a write has failed is never synced, sealed or believed again: only the next opening, by the device,
finds out what is in it.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from queue import Empty, SimpleQueue

from walkit._internal.locks import once
from walkit.errors import StorageError
from walkit.format.index import IndexEntry
from walkit.format.layout import INDEX_STEP_BYTES, SEGMENT_HEADER_BYTES, ZEROS
from walkit.format.segment import SegmentHeader, segment_name
from walkit.storage.interface import (
    OUT_OF_PROCESS,
    Buffer,
    DirectStorage,
    HoldableFile,
    NumberedFile,
    OpenMode,
    Storage,
    StorageFile,
)

ZERO_STEP_BYTES = 1 << 20
LAST_BYTES = 4096
ZERO_AHEAD_BYTES = 4 << 20
"""How far ahead of the write position a segment in use is zeroed; a killed log leaves so many zeros to be read."""
ZERO_FROM_BYTES = ZERO_STEP_BYTES // 4
"""Offset in a segment from which on more than its first step is zeroed; few frames need no more."""
ZEROED_FRAME_BYTES_MAX = 16 * 1024
"""Mean size up to which the frames of a segment have it zeroed ahead of them. Larger ones would be written twice.

Small frames gain little by it themselves, but larger ones that follow in the segment need it.
"""


class OpenSegment:
    """A segment file in this process: prepared, then open for frames."""

    __slots__ = (
        "base_offset",
        "chain",
        "end_position",
        "failed",
        "file",
        "file_lock",
        "frames",
        "free_files",
        "header",
        "index",
        "last_lsn",
        "maintain_from",
        "next_indexed",
        "number",
        "overtaken",
        "records",
        "reopen",
        "sealed",
        "size",
        "status",
        "unsynced",
        "zero_file",
        "zero_lock",
        "zeroed",
    )

    def __init__(
        self, number: int, file: StorageFile, size: int, reopen: Callable[[], StorageFile] | None = None
    ) -> None:
        """`reopen` returns another handle of the same file, for zeroing beside frames; None: it shares theirs."""
        self.number = number
        self.file = file
        self.size = size
        self.reopen = reopen
        self.free_files: SimpleQueue[StorageFile] = SimpleQueue()
        self.free_files.put(file)
        """Handles that no synced write of a frame has just now; more are opened if several are under way."""
        self.status = file.status_call() if isinstance(file, HoldableFile) else None
        """Returns the file's status now; None if its storage does not say it."""
        self.zero_file: StorageFile | None = None
        self.failed: BaseException | None = None
        """The error of a sync or write that had started: the file has failed for good."""
        self.sealed = False
        """Whether the manifest has its end: all of it is on stable storage, and the file may be closed."""
        # Guards `sealed` and the start of a sync. Taken without the commit lock; no other lock is taken under it.
        self.file_lock = threading.RLock()
        """Held by a sync of the file, and while it is closed."""
        self.zeroed = SEGMENT_HEADER_BYTES
        # Guards `zeroed` and `overtaken` while a step is zeroed. A frame that reaches unzeroed space waits for it; no
        # other lock is taken under it.
        self.zero_lock = threading.RLock()
        self.maintain_from = 0
        self.next_indexed = 0
        """Position from which on the next frame is noted for the index."""
        self.index: list[IndexEntry] = []
        self.base_offset = 0
        """File offset of position 0, were it in this file: negative for all but the first segment."""
        self.overtaken = False
        self.unsynced = False
        """Whether anything was written since the last sync began, without one of its own."""
        self.header: SegmentHeader | None = None
        self.frames = self.records = self.last_lsn = self.end_position = self.chain = 0

    def add_to_index(self, position: int, first_lsn: int) -> None:
        """Note for the index the frame that comes next; `records` still counts those before it."""
        self.index.append(IndexEntry(position, first_lsn, self.records))
        self.next_indexed = position + INDEX_STEP_BYTES

    def write_synced(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write a frame, durably, by a handle that no other write has meanwhile.

        Linux reports a failed writeback once per handle: two writes by one could take the error for the other's, and
        the frame that was lost would be acknowledged.
        """
        try:
            file = self.free_files.get_nowait()
        except Empty:
            file = self._another_file()
        try:
            file.write(offset, buffers, sync=True)
        finally:
            self.free_files.put(file)

    def _another_file(self) -> StorageFile:
        """Open one more handle; without a descriptor for it, wait for that of a write which is under way."""
        if self.reopen is None:
            return self.file
        try:
            return self.reopen()
        except StorageError as error:
            if error.errno not in OUT_OF_PROCESS:
                raise
            return self.free_files.get()

    def sync(self) -> None:
        """Put unsynced writes on stable storage; does nothing without any, or if the segment is sealed.

        Writes made while it runs, and all writes if it is interrupted, count as not synced. StorageError if it fails,
        and in every later call: the file has failed then.
        """
        with once(self.file_lock), self.file_lock:
            if self.sealed:
                return
            self.refuse_failed()
            if not self.unsynced:
                return
            self.unsynced = False  # first: later writes may not be in it
            try:
                with self.failing():
                    self.file.sync()
            except BaseException:
                self.unsynced = True
                raise

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Mark the file as failed if this block, which syncs or writes it, ends with an error, not an interrupt."""
        try:
            yield
        except Exception as error:
            self.fail(error)
            raise

    def fail(self, cause: BaseException) -> None:
        """Mark the file as failed; one that holds no frames yet is given up by its maker."""
        if self.failed is None and self.header is not None:
            self.failed = cause

    def refuse_failed(self) -> None:
        """StorageError if the file has failed: its later syncs prove nothing."""
        if self.failed is not None:
            raise StorageError(
                f"an earlier sync or write of {self.file.name} failed ({self.failed}); what the file holds is known "
                "only after opening the log again",
                errno=getattr(self.failed, "errno", None),
                name=self.file.name,
            ) from self.failed

    def zero_step(self) -> bool:
        """Zero one step ahead, and sync it; False if nothing is left to zero."""
        with once(self.zero_lock), self.zero_lock:
            if self.overtaken or self.failed is not None or self.zeroed >= self.size:
                return False
            step = min(ZERO_STEP_BYTES, self.size - self.zeroed)
            file = self._file_to_zero()
            with self.failing():
                file.write(self.zeroed, [ZEROS[:step]], sync=True)
            self.zeroed += step
            return True

    def is_zeroed_ahead(self) -> bool:
        """Say whether more of it is to be zeroed: no frame has passed the zeros, and frames are small enough."""
        assert self.header is not None
        fitting = self.end_position - self.header.start_position <= self.frames * ZEROED_FRAME_BYTES_MAX
        return fitting and not self.overtaken and self.zeroed < self.size

    def plan_maintenance(self) -> None:
        """Set the write offset at which the leader asks the maintenance thread again."""
        assert self.header is not None
        offset = self.header.offset_of(self.end_position)
        half = self.size // 2
        self.maintain_from = half if offset < half else self.size
        if offset < ZERO_FROM_BYTES:
            self.maintain_from = min(self.maintain_from, ZERO_FROM_BYTES)
        elif self.is_zeroed_ahead():
            self.maintain_from = min(self.maintain_from, offset + ZERO_AHEAD_BYTES // 2)

    def hold_size(self) -> None:
        """Make the reserved size durable, by a synced write of the last bytes; nothing if zeroing has come there.

        Before the first frame alone. The manifest says the size, and a file that is shorter later is damage.
        """
        if self.zeroed < self.size:
            self.file.write(self.size - LAST_BYTES, [ZEROS[:LAST_BYTES]], sync=True)

    def _file_to_zero(self) -> StorageFile:
        """Return the handle to zero by: beside frames a separate one, which takes no error from theirs."""
        if self.header is None or self.reopen is None:
            return self.file
        if self.zero_file is None:
            self.zero_file = self.reopen()
        return self.zero_file

    def seal(self, size: int) -> None:
        """Drop everything after the end in the manifest, at this file size, and close the file.

        A running sync ends first, and no other starts.
        """
        with once(self.file_lock), self.file_lock:
            self.sealed = True
            try:
                self.file.shorten(size)
            finally:
                self.close()

    def _check(self) -> None:
        """Assert the invariants between two frames; also while another thread assigns the next one."""
        assert SEGMENT_HEADER_BYTES <= self.zeroed <= self.size
        if self.header is None:
            assert not (self.frames or self.records or self.index), "frames without a header"
            return
        assert self.header.start_position <= self.end_position
        assert self.header.offset_of(self.end_position) <= self.size or self.frames == 1, (
            "it has no room for it"
        )
        assert self.header.first_lsn - 1 <= self.last_lsn
        assert len(self.index) <= self.frames + 1
        assert all(entry.position < following.position for entry, following in pairwise(self.index))

    def close(self) -> None:
        """Close the file's handles."""
        with ExitStack() as closing:
            closing.callback(self.file.close)
            while not self.free_files.empty():
                file = self.free_files.get()
                if file is not self.file:
                    closing.callback(file.close)
            if self.zero_file is not None:
                closing.callback(self.zero_file.close)

    def free(self) -> None:
        """Free the file's lock, and leave it open for a write that is under way still."""
        if isinstance(self.file, HoldableFile):
            self.file.free()

    def pass_zeroed(self, end_offset: int) -> None:
        """The leader is about to write up to `end_offset`, beyond the zeroed part.

        Waits for a zeroing that is under way, which could otherwise land on the frame; once overtaken, the file is
        never zeroed again.
        """
        with once(self.zero_lock), self.zero_lock:
            if end_offset > self.zeroed:
                self.overtaken = True
                self.zeroed = self.size


def check_order(segments: Sequence[OpenSegment]) -> None:
    """Assert that open segments follow each other, the one in use last."""
    for segment in segments:
        segment._check()
        assert segment.header is not None
    for before, after in pairwise(segments):
        assert before.header is not None and after.header is not None
        assert before.number < after.number and before.last_lsn < after.header.first_lsn
        assert before.end_position <= after.header.start_position, "two segments hold one position"


def open_segment_file(storage: Storage, number: int, mode: OpenMode, *, direct: bool) -> StorageFile:
    """Open the file of a segment, with `direct` past the page cache if the storage can do that. StorageError."""
    if direct and isinstance(storage, DirectStorage):
        return storage.open_direct(segment_name(number), mode)
    return storage.open(segment_name(number), mode)


def same_file(first: StorageFile, again: StorageFile) -> StorageFile:
    """Return another opening of a file, or refuse it: a StorageError (ESTALE) if another file has the name by now."""
    numbered = isinstance(first, NumberedFile) and isinstance(again, NumberedFile)
    if numbered and first.number() != again.number():  # type: ignore[attr-defined]
        again.close()
        raise StorageError(
            f"{first.name} was replaced under its writer, which stops", errno=errno.ESTALE, name=first.name
        )
    return again
