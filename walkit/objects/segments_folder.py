"""A log on object storage, shown as a folder of segments that can be read: for a copy, a bootstrap and a primary.

A segment is a stretch of bulks of one epoch. Its file has the bytes that a segment of a folder with these frames has: a
header that is made here, and the frames as they are. Its number is that of its first bulk, so it begins at the same
record in each process and at each time.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Final

from walkit._internal.locks import once
from walkit.errors import GapError
from walkit.format.file_names import lsn_of_name
from walkit.format.layout import FRAME_BYTES_LIMIT, IN_BULKS, SEGMENT_HEADER_BYTES
from walkit.format.manifest import MANIFEST_NAME, Manifest, SegmentRecord, encode_base
from walkit.objects.bulks import Bulk
from walkit.objects.folder import MemoryFile
from walkit.objects.layout import (
    BULK_HEADER_BYTES,
    COMPACTED_FROM,
    BulkHeader,
    damaged,
    object_key,
    segment_of,
)
from walkit.objects.view import ObjectView, place_before
from walkit.storage.interface import Storage, StorageFile, storage_error

AHEAD_BYTES: Final = 8 << 20
"""A copy has its own chunks in memory beside the bulks that are read ahead."""
OBJECT_KEYS: Final = ("object", "opening", "nonce", "counter", "fences", "identity")
"""Keys of `extra` in the manifest that concern this place alone."""


class SegmentsFolder:
    """The folder: its manifest is that of the log now, with all segments sealed. Safe from any thread."""

    def __init__(self, look: Callable[[], ObjectView]) -> None:
        """`look` returns what can be read of the log now."""
        self._look = look
        # Guards what follows, and is held through requests.
        self._lock = threading.RLock()
        self._firsts: dict[int, BulkHeader] = {}
        """The first bulk of each segment, by the position where the one before ends."""
        self._view = view = look()
        self.files = view.storage
        """The files beside the log: claims, cursors, snapshots, and the segments that compaction has made."""
        self.location = view.source.location

    def manifest(self) -> Manifest:
        """Return the manifest of this moment. Raises what `look` raises."""
        with once(self._lock), self._lock:
            self._view = view = self._look()
            found = (*view.manifest.sealed, *view.unsaved())
            shown = tuple(self._shown(view, s) if s.flags & IN_BULKS else s for s in found)
            starts = {s.start_position for s in found}
            self._firsts = {at: first for at, first in self._firsts.items() if at in starts}
        following = max([view.end.number, *(s.number for s in shown)]) + 1
        extra = {key: value for key, value in view.manifest.extra.items() if key not in OBJECT_KEYS}
        return replace(view.manifest, segments=shown, next_segment=following, extra=extra)

    def _shown(self, view: ObjectView, bulks: SegmentRecord) -> SegmentRecord:
        """Return a stretch of bulks as a segment with a file; its `frames` are 0, as nothing has counted them."""
        start = bulks.start_position
        first = self._firsts.get(start)
        if first is None:
            number = view.source.number_where(view, lambda end: end.position > start)
            first = self._firsts[start] = view.source.header(number, bulks.first_lsn)
        return bulks._replace(
            number=first.number,
            start_position=first.start_position,
            frames=0,
            created_us=first.sealed_us,
            flags=0,
        )

    # -- what is read of a folder

    def exists(self) -> bool:
        """See Storage."""
        return True

    def names(self, folder: str = "") -> list[str]:
        """See Storage: those of the files, as a segment of bulks is named by the manifest alone."""
        return self.files.names(folder)

    def open(self, name: str, mode: str) -> StorageFile:
        """See Storage. StorageError: EROFS except for reading."""
        if mode != "read":
            raise storage_error("write", name, self.location, errno.EROFS)
        if name == MANIFEST_NAME:
            return MemoryFile(name, encode_base(self.manifest()))
        stem, _, kind = name.partition(".")
        if kind == "segment" and int(stem) < COMPACTED_FROM:
            return self._segment_at(int(stem), name)
        if kind != "segment" and lsn_of_name(name) is None:
            raise storage_error("open", name, self.location, errno.ENOENT)
        return self.files.open(name, "read")

    def _segment_at(self, number: int, name: str) -> StorageFile:
        """Return the segment whose first bulk has this number, even if the manifest has another one by now."""
        with once(self._lock), self._lock:
            view, firsts = self._view, {first.number: first for first in self._firsts.values()}
        try:
            if view.floor.number < number <= view.end.number:
                first = firsts.get(number) or view.source.header(number, view.first_lsn)
                following = min((other for other in firsts if other > number), default=view.end.number + 1)
                return _SegmentFile(self.latest, first, following - 1)
        except GapError:
            pass  # trimmed since the last look
        raise storage_error("open", name, self.location, errno.ENOENT)

    def latest(self) -> ObjectView:
        """Return the view of the last look."""
        with once(self._lock), self._lock:
            return self._view

    def is_locked(self, name: str) -> bool:
        """See Storage. A writer may live at any time, so the end is that of the manifest."""
        return True

    def close(self) -> None:
        """Release what a claim has opened; the next one opens it again."""
        self._view.source.reads.store.close()

    def cell(self, name: str, size: int, *, writable: bool) -> None:
        """See Storage."""


def files_of(storage: Storage) -> Storage:
    """Return the place of the files beside a log: the folder itself, or that of a log on object storage."""
    return storage.files if isinstance(storage, SegmentsFolder) else storage


def segments_folder(look: Callable[[], ObjectView]) -> Storage:
    """Return the folder of segments that shows a log on object storage, `look` its views. It can be read alone."""
    folder: Any = SegmentsFolder(look)  # what writes is refused, or not there
    shown: Storage = folder
    return shown


class _SegmentFile(MemoryFile):
    """A header, then the frames of one epoch from a bulk on, read ahead. It grows with the log, like a file."""

    def __init__(self, latest: Callable[[], ObjectView], first: BulkHeader, last: int) -> None:
        """`latest` returns the newest view; `last` is the number of the last bulk that is asked for ahead."""
        view = latest()
        epoch = view.manifest.epoch_of(first.epoch)
        is_first = epoch is not None and epoch.first_lsn == first.first_lsn
        self._header = replace(
            segment_of(first),
            # An epoch of wider frames begins after the end of the one before.
            previous_end=epoch.position if epoch is not None and is_first else first.start_position,
            frame_bytes_max=FRAME_BYTES_LIMIT,  # that of the first bulk need not hold for the others
        )
        super().__init__(self._header.name, self._header.encode())
        self._latest, self._last = latest, last
        self._bulk: Bulk | None = None
        self._ahead: Generator[Bulk | None] | None = None

    def size(self) -> int:
        """See StorageFile."""
        return self._header.offset_of(self._end_in(self._latest()))

    def _end_in(self, view: ObjectView) -> int:
        """Return the position where the frames of the epoch end so far."""
        following = (e.position for e in view.manifest.lineage if e.number > self._header.epoch)
        return min(following, default=view.end.position)

    def read(self, offset: int, size: int) -> bytes:
        """See StorageFile. GapError for bulks that were trimmed; SegmentMissingError, CorruptionError, StorageError."""
        parts: list[bytes | memoryview] = [super().read(offset, size)]
        left, view = size - len(parts[0]), self._latest()
        position = self._header.start_position + max(offset - SEGMENT_HEADER_BYTES, 0)
        while left and position < self._end_in(view):
            bulk = self._bulk_at(position, view)
            at = BULK_HEADER_BYTES + position - bulk.header.start_position
            parts.append(memoryview(bulk.data)[at : at + left])
            left, position = left - len(parts[-1]), position + len(parts[-1])
        return b"".join(parts)

    def _bulk_at(self, position: int, view: ObjectView) -> Bulk:
        """Return the bulk that a position before the end is in."""
        bulk, found = self._bulk, None
        if bulk is not None and bulk.header.start_position <= position < bulk.header.end.position:
            return bulk
        if bulk is not None and bulk.header.end.position == position:
            number = bulk.header.number + 1
            found = next(self._ahead, None) if self._ahead is not None else None
        else:
            number = view.source.number_where(view, lambda end: end.position > position)
        if found is None:
            self.close()
            self._ahead = view.source.bulks.ahead(number, max(number, self._last), bytes_max=AHEAD_BYTES)
            found = next(self._ahead)
        if found is None:
            view.source.refuse_missing(number, self._header.first_lsn)
        view.source.judged(found.header, place_before(found.header))
        if not found.header.start_position <= position < found.header.end.position:
            raise damaged(object_key(number), "is at another position", position, found.header)
        self._bulk = found
        return found

    def close(self) -> None:
        """See StorageFile."""
        ahead, self._ahead, self._bulk = self._ahead, None, None
        if ahead is not None:
            ahead.close()
