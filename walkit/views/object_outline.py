"""The outline of a log on object storage for the Inspector: an epoch is shown as a segment, and read by position.

Nothing is changed, and a living writer cannot be recognised. No panel in here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.objects.bulks import Bulk
from walkit.objects.layout import BULK_HEADER_BYTES, LogPlace, vouched_place
from walkit.objects.view import ObjectEnd, ObjectView
from walkit.storage.address import open_store
from walkit.storage.object_store import ObjectStore
from walkit.views.log_outline import Outline, SegmentLine, folder_outline
from walkit.views.workspace import LogPath

SKIPPED_BYTES_MAX = 4 << 20
"""A position that is farther after the last bulk is looked for."""
NEAR_BULKS = 128
"""A page before a position begins so many bulks before it, if that is enough."""


def outline_of(place: LogPath) -> Outline:
    """Return the outline of a log: of its segments in a folder, of its epochs on object storage.

    LogNotFoundError, NotALogError, FormatVersionError, OptionsError or StorageError if there is nothing to look at.
    """
    return folder_outline(place) if isinstance(place, Path) else _object_outline(open_store(place))


def _object_outline(store: ObjectStore) -> Outline:
    source = ObjectEnd(store)
    seen = source.now()
    no_files: Any = seen.view.storage
    view, end = seen.view, seen.end_position
    begun = [e for e in view.manifest.lineage if e.position < end or e is view.manifest.lineage[-1]]
    starts = [max(e.position, view.floor.position) for e in begun]
    firsts = [max(e.first_lsn, view.first_lsn) for e in begun]
    ends, lasts = [*starts[1:], end], [*(first - 1 for first in firsts[1:]), seen.last_lsn]
    lines = [
        SegmentLine(
            record=SegmentRecord(epoch.number, SegmentState.PREPARED, epoch=epoch.number),
            state="sealed" if epoch is not begun[-1] else "open" if stop > start else "prepared",
            start_position=start,
            end_position=stop,
            first_lsn=first if last >= first else None,
            last_lsn=last if last >= first else None,
            records=last - first + 1,
        )
        for epoch, start, stop, first, last in zip(begun, starts, ends, firsts, lasts, strict=True)
        if stop > view.floor.position
    ]
    return Outline(
        storage=no_files,
        manifest=view.manifest,
        state="closed" if vouched_place(source.manifest).position == end else "unclosed",
        first_lsn=view.first_lsn,
        last_lsn=seen.last_lsn,
        end_position=end,
        segments=tuple(lines),
        problem=None,
        objects=view,
    )


@dataclass
class EpochFile:
    """The frames of one epoch as those of a segment's file; bulks are read ahead, many at a time. One thread."""

    view: ObjectView
    line: SegmentLine
    _bulk: Bulk | None = None
    _ahead: Generator[Bulk | None] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """See StorageFile."""
        return f"epoch {self.line.number}"

    def header(self) -> SegmentHeader:
        """Return the header that a segment with these frames would have."""
        bulk = self._at(self.line.start_position).header
        return SegmentHeader(
            log_id=bulk.log_id,
            epoch=bulk.epoch,
            epoch_id=bulk.epoch_id,
            number=self.line.number,
            start_position=bulk.start_position,
            previous_end=bulk.start_position,
            first_lsn=bulk.first_lsn,
            chain=bulk.chain,
            alignment=bulk.alignment,
            frame_bytes_max=bulk.frame_bytes_max,
            created_us=bulk.sealed_us,
        )

    def read(self, offset: int, size: int) -> bytes:
        """See StorageFile; what no bulk has is zeros."""
        first = self.line.start_position + offset - SEGMENT_HEADER_BYTES
        found = bytearray(max(min(size, self.line.end_position - first), 0))
        at, end = first, first + len(found)
        while at < end:
            bulk = self._at(at)
            begins, stops = bulk.header.start_position, bulk.header.end.position
            start, stop = max(at, begins), min(end, stops)
            if start < stop:
                inside = BULK_HEADER_BYTES - begins
                found[start - first : stop - first] = bulk.data[inside + start : inside + stop]
            at = stops
        return bytes(found)

    def size(self) -> int:
        """See StorageFile."""
        return SEGMENT_HEADER_BYTES + self.line.end_position - self.line.start_position

    def near(self, is_reached: Callable[[LogPlace], bool]) -> list[int]:
        """Return positions of frames up to the first bulk at whose end a condition holds: its own, and one before."""
        number = self.view.source.number_where(self.view, is_reached)
        first = self.line.start_position
        numbers = sorted({max(number - NEAR_BULKS, self.view.floor.number + 1), number})
        found = [self.view.source.header(n, self.view.first_lsn).start_position for n in numbers]
        return [first, *(position for position in found if position > first)]

    def close(self) -> None:
        """Give up what is read ahead."""
        if self._ahead is not None:
            self._ahead.close()

    def _at(self, position: int) -> Bulk:
        """Return the bulk that has a position, or the next one."""
        bulk, source = self._bulk, self.view.source
        if bulk is None or not 0 <= position - bulk.header.start_position < SKIPPED_BYTES_MAX:
            self.close()
            number = source.number_where(self.view, lambda end: end.position > position)
            self._ahead, bulk = source.bulks.ahead(number, self.view.end.number), None
        while bulk is None or bulk.header.end.position <= position:
            number = self.view.end.number if bulk is None else bulk.header.number + 1
            bulk = next(self._ahead, None) if self._ahead is not None else None
            if bulk is None:
                source.refuse_missing(number, self.line.first_lsn or 0)
            self._bulk = bulk
        return bulk
