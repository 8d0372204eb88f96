"""The Inspector's outline of a log without its frames: state, marks, segments. Takes no lock, changes nothing.

A live log of another process is seen as its readers see it. A damaged one is shown as far as possible, and `problem`
has the reason why a reader refuses it. No panel in here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from walkit._internal.arguments import refuse
from walkit.errors import CorruptionError, NotALogError, WalkitError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import Manifest, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.objects.bulks import Bulk
from walkit.objects.layout import BULK_HEADER_BYTES, LogPlace, vouched_place
from walkit.objects.view import ObjectEnd, ObjectView
from walkit.read.reader import ReaderView, reader_view_of
from walkit.read.view import LogView
from walkit.recovery.rebuild import manifest_from_headers
from walkit.segments.history import open_segment
from walkit.segments.manifest_store import load_manifest
from walkit.segments.writer_lock import has_writer
from walkit.storage.address import open_store, storage_at
from walkit.storage.interface import Storage
from walkit.storage.object_store import ObjectStore
from walkit.views.workspace import LogPath

SKIPPED_BYTES_MAX = 4 << 20
"""A position that is farther after the last bulk is looked for."""
NEAR_BULKS = 128
"""A page before a position begins so many bulks before it, if that is enough."""


def outline_of(place: LogPath) -> Outline:
    """Return the outline of a log: of its segments in a folder, of its epochs on object storage.

    LogNotFoundError, NotALogError, FormatVersionError, OptionsError or StorageError if there is nothing to look at.
    """
    found = folder_outline(place) if isinstance(place, Path) else _object_outline(open_store(place))
    return replace(found, place=place)


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
        """See StorageFile; bytes that no bulk has are zeros."""
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
        """Drop the data read ahead."""
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


SegmentUse = Literal["sealed", "open", "prepared", "unreadable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentLine:
    """One segment, as far as it is known without reading its frames. Unknown values are None."""

    record: SegmentRecord
    state: SegmentUse
    start_position: int = 0
    end_position: int = 0
    """The end of its frames; the end of the file for an open segment without a writer."""
    first_lsn: int | None = None
    last_lsn: int | None = None
    records: int | None = None
    frames: int | None = None
    problem: str = ""

    @property
    def number(self) -> int:
        """The segment's number, which its file is named after."""
        return self.record.number


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A log at one moment. Immutable; memory grows with the number of segments, not of frames."""

    storage: Storage
    manifest: Manifest
    state: Literal["live", "closed", "unclosed"]
    """live: a writer holds the log. closed: everything is sealed. unclosed: its writer ended without close()."""
    first_lsn: int
    """Oldest LSN that can be read; one more than the last if the log is empty."""
    last_lsn: int | None
    """Newest LSN that a reader sees now; None if it refuses the log."""
    end_position: int | None
    segments: tuple[SegmentLine, ...]
    problem: str | None
    """Why a reader refuses the log, as a sentence."""
    place: LogPath | None = None
    """Where a reader finds it; None for an outline of a storage."""
    objects: ObjectView | None = None
    """Of a log on object storage: its bulks. Each of its segments is an epoch."""

    @property
    def location(self) -> str:
        """Where the log is."""
        return self.storage.location

    def segment(self, number: int) -> SegmentLine:
        """Return the segment of this number. OptionsError if unknown."""
        found = next((line for line in self.segments if line.number == number), None)
        if found is None:
            refuse("segment", number, "the log has no such segment")
        return found

    def segment_at(self, position: int) -> SegmentLine:
        """Return the segment that holds a position. OptionsError if no segment does."""
        used = [line for line in self.segments if line.end_position > line.start_position]
        at = bisect_right([line.start_position for line in used], position) - 1
        if at < 0 or position >= used[at].end_position:
            reach = f"they reach from {used[0].start_position:,} to {used[-1].end_position:,}" if used else ""
            refuse("position", position, f"no segment has it{'; ' * bool(reach)}{reach}")
        return used[at]


def folder_outline(path: Path) -> Outline:
    """Return the outline of the log in a folder. Reads the manifest, and without a writer also the unsealed segments.

    LogNotFoundError, NotALogError, FormatVersionError or StorageError if there is nothing to show.
    """
    storage = storage_at(path)
    manifest, problem = _manifest_of(storage)
    live = has_writer(storage, manifest if problem is None else None)
    seen: ReaderView[LogView] | None = None
    if problem is None:
        try:
            seen = reader_view_of(storage)
            manifest = load_manifest(storage) if live else manifest
        except WalkitError as error:
            problem = f"A reader refuses this log: {str(error).rstrip('.')}."
    lines = [_sealed(record) for record in manifest.sealed]
    lines += [_unsealed(storage, record, seen, live) for record in manifest.unsealed]
    unsealed = any(line.state == "open" for line in lines)
    return Outline(
        storage=storage,
        manifest=manifest,
        state="live" if live else "unclosed" if unsealed else "closed",
        first_lsn=manifest.first_lsn if seen is None else seen.view.first_lsn,
        last_lsn=None if seen is None else seen.last_lsn,
        end_position=None if seen is None else seen.end_position,
        segments=tuple(lines),
        problem=problem,
    )


def _manifest_of(storage: Storage) -> tuple[Manifest, str | None]:
    """Return the manifest; if it is damaged, one made of the segments' headers, with a sentence about it."""
    try:
        return load_manifest(storage), None
    except (CorruptionError, NotALogError) as error:
        rebuilt = manifest_from_headers(storage)
        if rebuilt is None:
            raise
        words = "This outline is made of the segments' headers, as `walkit repair` would make it."
        return rebuilt.manifest, f"The manifest is damaged: {str(error).rstrip('.')}. {words}"


def _sealed(record: SegmentRecord) -> SegmentLine:
    return SegmentLine(
        record=record,
        state="sealed",
        start_position=record.start_position,
        end_position=record.end_position,
        first_lsn=record.first_lsn,
        last_lsn=record.last_lsn,
        records=record.records,
        frames=record.frames,
    )


def _unsealed(
    storage: Storage, record: SegmentRecord, seen: ReaderView[LogView] | None, live: bool
) -> SegmentLine:
    """Return the known facts of a segment that may be in use: its header, and as far as it goes the reader's view."""
    try:
        with closing(open_segment(storage, record)) as file:
            header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), record.name)
            size = file.size()
    except WalkitError as error:
        return SegmentLine(record=record, state="unreadable", problem=str(error))
    if header is None:
        return SegmentLine(record=record, state="prepared")
    span = next((s for s in seen.view.spans if s.record.number == record.number), None) if seen else None
    planned = span.record if span is not None and span.record.state is SegmentState.SEALED else None
    durable = header.start_position if span is None else span.end_position
    return SegmentLine(
        record=record,
        state="open",
        start_position=header.start_position,
        # Beyond the durable position of a living writer bytes change while they are read.
        end_position=durable if live else header.start_position + max(size - SEGMENT_HEADER_BYTES, 0),
        first_lsn=header.first_lsn,
        last_lsn=None if planned is None else planned.last_lsn,
        records=None if planned is None else planned.records,
        frames=None if planned is None else planned.frames,
    )
