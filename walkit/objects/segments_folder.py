"""A log on object storage, shown as a folder of segments that can be read: for a copy, a bootstrap and a primary.

A segment is a range of bulks of one epoch. Its file has the bytes that a segment of a folder with these frames has: a
header that is made here, and the frames as they are. Where a range ends follows from the log alone, so it is the same
in each process and at each time.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from walkit._internal.locks import once
from walkit.format.file_names import lsn_of_name
from walkit.format.layout import FRAME_BYTES_LIMIT, IN_BULKS, SEGMENT_HEADER_BYTES
from walkit.format.manifest import MANIFEST_NAME, Manifest, SegmentRecord, encode_base, sealed_record
from walkit.format.segment import SegmentHeader, segment_name
from walkit.objects.bulks import Bulk
from walkit.objects.layout import BULK_HEADER_BYTES, BulkHeader, LogPlace, damaged, object_key
from walkit.objects.view import ObjectView, place_before
from walkit.storage.interface import Storage, StorageFile, storage_error

SEGMENT_BYTES: Final = 64 << 20
"""A range ends with the bulk that reaches so many bytes, or before the fence of the next epoch."""
AHEAD_BYTES: Final = 8 << 20
"""A copy has its own chunks in memory beside the bulks that are read ahead."""
OBJECT_KEYS: Final = ("object", "opening", "nonce", "counter", "fences", "identity")
"""Keys of `extra` in the manifest that concern this place alone."""


class _Range(NamedTuple):
    """The bulks after one place up to another, all of one epoch, as a segment."""

    before: LogPlace
    end: LogPlace
    first: BulkHeader

    @property
    def header(self) -> SegmentHeader:
        """The header of the segment. Its number is that of the first bulk."""
        first = self.first
        return SegmentHeader(
            log_id=first.log_id,
            epoch=first.epoch,
            epoch_id=first.epoch_id,
            number=first.number,
            start_position=first.start_position,
            previous_end=self.before.position,
            first_lsn=first.first_lsn,
            chain=first.chain,
            alignment=first.alignment,
            frame_bytes_max=FRAME_BYTES_LIMIT,  # that of the first bulk need not hold for the others
            created_us=first.sealed_us,
        )

    @property
    def record(self) -> SegmentRecord:
        """The record of the segment; its `frames` are 0, as nothing has counted them."""
        records = self.end.lsn - self.before.lsn
        return sealed_record(self.header, self.end.end, records=records, frames=0)


class SegmentsFolder:
    """The folder: its manifest is that of the log now, with a sealed segment per range. Safe from any thread."""

    def __init__(self, look: Callable[[], ObjectView]) -> None:
        """`look` returns what can be read of the log now."""
        self._look = look
        # Guards the ranges, and is held through requests.
        self._lock = threading.RLock()
        self._ranges: dict[int, _Range] = {}
        """Keyed by the number of the first bulk."""
        self._view = view = look()
        self.files = view.storage
        """The files beside the log: claims, cursors and snapshots."""
        self._before = self._reached = view.floor
        """The place before the range that is not full yet, and the end of the last view."""
        self.location = view.source.location

    def manifest(self) -> Manifest:
        """Return the manifest of this moment. Raises what `look` raises."""
        with once(self._lock), self._lock:
            self._view = view = self._look()
            self._divide(view)
            records = tuple(self._ranges[number].record for number in sorted(self._ranges))
        known = view.manifest
        compacted = tuple(s for s in known.segments if not s.flags & IN_BULKS)  # they have files
        extra = {key: value for key, value in known.extra.items() if key not in OBJECT_KEYS}
        following = max([view.end.number, *(s.number for s in compacted)]) + 1
        return replace(known, segments=(*compacted, *records), next_segment=following, extra=extra)

    def _divide(self, view: ObjectView) -> None:
        """Divide the new bulks of a view into ranges. Those below the floor are dropped."""
        floor = view.floor
        for number, known in list(self._ranges.items()):
            if known.before.number < floor.number:
                del self._ranges[number]
                self._add(view, floor, known.end)
        self._before, self._reached = max(self._before, floor), max(self._reached, floor)
        while not self._is_in(view.end, self._before):
            before = self._before
            within = replace(view, floor=max(self._reached, before))
            number = view.source.number_where(within, lambda at: not self._is_in(at, before))  # noqa: B023
            header = view.source.header(number, before.lsn + 1)
            # Before a fence ends what the epoch before it has written.
            end = place_before(header)._replace(epoch=before.epoch) if header.is_fence else header.end
            self._add(view, before, end)
            self._before = self._reached = header.end
        self._add(view, self._before, view.end)
        self._reached = view.end

    @staticmethod
    def _is_in(place: LogPlace, before: LogPlace) -> bool:
        """Say whether the range that begins after `before` continues after `place`."""
        return place.epoch == before.epoch and place.position < before.position + SEGMENT_BYTES

    def _add(self, view: ObjectView, before: LogPlace, end: LogPlace) -> None:
        number = before.number + 1
        if end.position > before.position:
            known = self._ranges.get(number)
            first = view.source.header(number, before.lsn + 1) if known is None else known.first
            self._ranges[number] = _Range(before, end, first)

    def range_of(self, number: int) -> tuple[ObjectView, _Range | None]:
        """Return the view of the last look, and the range whose first bulk has this number."""
        with once(self._lock), self._lock:
            return self._view, self._ranges.get(number)

    # -- what is read of a folder

    def exists(self) -> bool:
        """See Storage."""
        return True

    def names(self, folder: str = "") -> list[str]:
        """See Storage."""
        with once(self._lock), self._lock:
            return [] if folder else [*self.files.names(), *map(segment_name, self._ranges)]

    def open(self, name: str, mode: str) -> _File | StorageFile:
        """See Storage. StorageError: EROFS except for reading."""
        if mode != "read":
            raise storage_error("write", name, self.location, errno.EROFS)
        if name == MANIFEST_NAME:
            return _File(name, encode_base(self.manifest()))
        with once(self._lock), self._lock:
            ranges = [each for number, each in self._ranges.items() if segment_name(number) == name]
        if not ranges and (lsn_of_name(name) is not None or name.endswith(".segment")):
            return self.files.open(name, "read")
        if not ranges:
            raise storage_error("open", name, self.location, errno.ENOENT)
        return _SegmentFile(self, ranges[0].header)

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


class _File:
    """Bytes as a file that can be read."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self._data = name, data

    def read(self, offset: int, size: int) -> bytes:
        """See StorageFile."""
        return self._data[offset : offset + size]

    def size(self) -> int:
        """See StorageFile."""
        return len(self._data)

    def close(self) -> None:
        """See StorageFile."""


class _SegmentFile(_File):
    """The file of a range: a header, then the frames of its bulks, which are asked for ahead as they are read."""

    def __init__(self, folder: SegmentsFolder, header: SegmentHeader) -> None:
        super().__init__(header.name, header.encode())
        self._folder, self._header = folder, header
        self._bulk: Bulk | None = None
        self._ahead: Generator[Bulk | None] | None = None

    def size(self) -> int:
        """See StorageFile."""
        _, known = self._folder.range_of(self._header.number)
        return SEGMENT_HEADER_BYTES if known is None else self._header.offset_of(known.end.position)

    def read(self, offset: int, size: int) -> bytes:
        """See StorageFile. GapError for bulks that were trimmed; SegmentMissingError, CorruptionError, StorageError."""
        parts: list[bytes | memoryview] = [super().read(offset, size)]
        left = size - len(parts[0])
        position = self._header.start_position + max(offset - SEGMENT_HEADER_BYTES, 0)
        while left and (bulk := self._bulk_at(position)) is not None:
            at = BULK_HEADER_BYTES + position - bulk.header.start_position
            parts.append(memoryview(bulk.data)[at : at + left])
            left, position = left - len(parts[-1]), position + len(parts[-1])
        return b"".join(parts)

    def _bulk_at(self, position: int) -> Bulk | None:
        """Return the bulk that a position is in; None at the end of the range."""
        bulk = self._bulk
        if bulk is not None and bulk.header.start_position <= position < bulk.header.end.position:
            return bulk
        view, known = self._folder.range_of(self._header.number)
        if known is None:
            view.source.refuse_missing(self._header.number, self._header.first_lsn)
        if position >= known.end.position:
            return None
        found = None
        if bulk is not None and bulk.header.end.position == position:
            number = bulk.header.number + 1
            found = next(self._ahead, None) if self._ahead is not None else None
        else:
            within = replace(view, floor=known.before, end=known.end)
            number = view.source.number_where(within, lambda at: at.position > position)
        if found is None:
            self.close()
            self._ahead = view.source.bulks.ahead(number, known.end.number, bytes_max=AHEAD_BYTES)
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
