"""Frames of a log, a page at a time, the bytes of one, and the search for one. Takes no lock, changes nothing.

Frames are shown as they are in the file: by their headers, with the damage between them. Only the body of the frame
whose bytes are shown is verified; `walkit verify` verifies all. No panel in here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow.compute as pc

from walkit._internal.arguments import refuse
from walkit._internal.text import lsn_range
from walkit.errors import WalkitError
from walkit.format.frame import FrameFault, FrameHeader, check_body, check_header
from walkit.format.frame_fields import records_left
from walkit.format.layout import CODEC_NONE, FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES
from walkit.format.segment import SegmentHeader
from walkit.objects.entrance import reader_at
from walkit.read.damaged import unverified
from walkit.read.payloads import LinkFacts
from walkit.read.view import frames_to_batches
from walkit.record import Batch, Kind, Record, is_link
from walkit.recovery.survey import next_frame
from walkit.segments.frame_walk import FrameWalk
from walkit.segments.history import open_segment
from walkit.segments.index_file import read_index
from walkit.storage.interface import StorageFile
from walkit.views.background_jobs import Job
from walkit.views.log_outline import EpochFile, Outline, SegmentLine
from walkit.views.workspace import LogPath

HITS_MAX = 100
"""Most records that one search returns; another continues after the last."""
SEARCHED_BYTES_MAX = 256 << 20
"""Most bytes of frames that one search for a key reads."""


@dataclass(frozen=True, kw_only=True)
class KeyHit:
    """A record with the key, and its frame."""

    record: Record
    position: int
    segment: int


@dataclass(frozen=True, kw_only=True)
class KeySearch:
    """The result of a search for a key, from an LSN on."""

    key: bytes
    from_lsn: int
    hits: tuple[KeyHit, ...]
    next_lsn: int | None
    """The LSN to continue from; None at the end of the log."""
    searched_bytes: int
    damaged: int
    """How many damaged ranges were passed over."""


def find_lsn(outline: Outline, lsn: int, job: Job) -> int:
    """Return the position of the frame that holds an LSN. OptionsError, with the reason, if no frame does."""
    for line in outline.segments:
        before = line.first_lsn is None or line.first_lsn > lsn
        if before or (line.last_lsn is not None and line.last_lsn < lsn):
            continue
        with opened(outline, line) as frames:
            for item in _items(frames, _start_by_lsn(outline, line, frames, lsn), job):
                if isinstance(item, FrameHeader) and item.span and item.first_lsn <= lsn <= item.last_lsn:
                    return item.position
    known = (
        "" if outline.last_lsn is None else f": {lsn_range(outline.first_lsn, outline.last_lsn)} can be read"
    )
    refuse("lsn", lsn, f"no frame has it{known}")


def find_time(outline: Outline, when: datetime, job: Job) -> int:
    """Return the position of the first frame that was sealed at `when` or later, or raise OptionsError.

    It goes by the clock of the writer's machine, as the frames' headers have it; if that was set back, a frame before
    the one that is found may be later.
    """
    wanted = round(when.timestamp() * 1_000_000)
    used = [line for line in outline.segments if line.end_position > line.start_position]
    for line, following in zip(used, [*used[1:], None], strict=True):
        if following is not None and 0 < _created_us(outline, following) < wanted:
            continue
        with opened(outline, line) as frames:
            for item in _items(frames, _start_by_time(outline, line, frames, wanted), job):
                if isinstance(item, FrameHeader) and item.sealed_us >= wanted:
                    return item.position
    refuse("time", when.astimezone(UTC).isoformat(" ", "seconds"), "no frame was sealed then or later")


def find_key(outline: Outline, key: bytes, from_lsn: int, job: Job) -> KeySearch:
    """Return the records with a key from an LSN on, in LSN order: at most 100, of at most 256 MiB of frames."""
    hits: list[KeyHit] = []
    searched = damaged = 0
    reach = [
        s for s in outline.segments if s.first_lsn is not None and not (s.last_lsn or from_lsn) < from_lsn
    ]
    total = min(sum(s.end_position - s.start_position for s in reach), SEARCHED_BYTES_MAX)

    def done(next_lsn: int | None) -> KeySearch:
        return KeySearch(
            key=key,
            from_lsn=from_lsn,
            hits=tuple(hits[:HITS_MAX]),
            next_lsn=next_lsn,
            searched_bytes=searched,
            damaged=damaged,
        )

    for line in reach:
        with opened(outline, line) as frames:
            for item, frame in frames.walk(_start_by_lsn(outline, line, frames, from_lsn), body=True):
                if isinstance(item, Damage):
                    damaged += 1
                    continue
                if item.last_lsn < from_lsn or not item.records:
                    continue
                if searched >= SEARCHED_BYTES_MAX:
                    return done(item.first_lsn)
                searched += item.footprint
                job.step(min(searched, total) >> 20, total >> 20, "MiB")
                try:
                    found = _records_of(item, frame, key, from_lsn)
                except WalkitError:
                    damaged += 1
                    continue
                hits += (KeyHit(record=r, position=item.position, segment=line.number) for r in found)
                if len(hits) >= HITS_MAX:
                    return done(hits[HITS_MAX - 1].record.lsn + 1)
    return done(None)


def _records_of(header: FrameHeader, frame: memoryview, key: bytes, from_lsn: int) -> list[Record]:
    """Return the records of an intact frame with the key, at most one more than are shown."""
    # Keys stand as they are in a body that is not compressed: most frames are ruled out without being taken apart.
    if header.codec == CODEC_NONE and key not in bytes(frame):
        return []
    found: list[Record] = []
    for batch in frames_to_batches(iter([(header, frame)]), max(from_lsn, header.first_lsn), header.last_lsn):
        kept = batch.filter(pc.equal(batch.column("key"), key))
        found += Batch.from_arrow(kept.slice(0, HITS_MAX + 1))
    return found


def _items(frames: SegmentFrames, start: int, job: Job) -> Iterator[FrameHeader | Damage]:
    for number, (item, _) in enumerate(frames.walk(start)):
        if not number % CHECK_FRAMES:
            job.check()
        yield item


def _start_by_lsn(outline: Outline, line: SegmentLine, frames: SegmentFrames, lsn: int) -> int:
    """Return the position of a frame at or before an LSN: the nearest that the index notes, or the segment's first."""
    if isinstance(frames.file, EpochFile):
        return frames.file.near(lambda end: end.lsn >= lsn)[-1]
    index = read_index(outline.storage, outline.manifest.log_id, line.record)
    entry = None if index is None else index.before(max(lsn, 0))
    return frames.header.start_position if entry is None else entry.position


def _start_by_time(outline: Outline, line: SegmentLine, frames: SegmentFrames, wanted_us: int) -> int:
    """Return the position of the last noted frame that was sealed before a time, by bisection; else the first one."""
    start = frames.header.start_position
    index = read_index(outline.storage, outline.manifest.log_id, line.record)
    positions = np.empty(0, np.uint64) if index is None else index.positions
    low, high = 0, len(positions)
    while low < high:
        middle = (low + high) // 2
        noted = _header_at(frames, int(positions[middle]))
        if noted is None:
            return start  # damaged: every frame is looked at
        if noted.sealed_us < wanted_us:
            low = middle + 1
        else:
            high = middle
    return int(positions[low - 1]) if low else start


def _created_us(outline: Outline, line: SegmentLine) -> int:
    """Return when a segment was made, microseconds since 1970; 0 if that is not known."""
    if line.record.created_us:
        return line.record.created_us
    with opened(outline, line) as frames:
        return frames.header.created_us


PAGE_FRAMES = 100
"""Most frames of a page."""
FRAME_READ_MAX = 64 << 20
"""Largest frame that is read whole; of a larger one only the header is read."""
RECORDS_SHOWN_MAX = 20
DAMAGE_READ_BYTES = 1024
CHECK_FRAMES = 1024
"""Frames between two looks at whether the job is to end."""


class Damage(NamedTuple):
    """Positions [position, end_position) of a segment at which no frame stands that belongs there."""

    position: int
    end_position: int
    fault: FrameFault


Item: TypeAlias = FrameHeader | Damage


@dataclass(frozen=True, kw_only=True)
class FramePage:
    """Some frames of one segment, in order."""

    line: SegmentLine
    items: tuple[Item, ...]
    next_position: int | None
    """Where the next page begins; None if the segment ends."""

    @property
    def first_position(self) -> int:
        """Where the page begins."""
        return self.items[0].position if self.items else self.line.start_position


@dataclass(frozen=True, kw_only=True)
class FrameView:
    """One frame, or the damage in its place."""

    line: SegmentLine
    position: int
    data: bytes
    """The frame's bytes; of one that is too large its header alone, of damage the first bytes."""
    header: FrameHeader | None
    """None if the header cannot be trusted."""
    verdict: str
    """The checks and their result, as a sentence."""
    intact: bool | None
    """None if the body was not read."""
    records: tuple[Record, ...] = ()
    """The first of its records; empty if the body was not decoded."""
    links: tuple[LinkFacts, ...] = ()
    """The links to payload logs among these records."""


class SegmentFrames:
    """The frames of one segment whose file is open."""

    def __init__(
        self, file: StorageFile | EpochFile, header: SegmentHeader, outline: Outline, line: SegmentLine
    ) -> None:
        self.file, self.header = file, header
        self.end_position = line.end_position
        self._outline, self._line = outline, line

    def walk(self, position: int, *, body: bool = False) -> Iterator[tuple[Item, memoryview]]:
        """Yield (frame, its bytes) from the frame at `position` on, and damage with no bytes; bytes with `body` only.

        Zeros at the end of a segment in use are space made ahead, and are not told.
        """
        gaps = self._outline.manifest.gaps_of(self._line.record) if self._line.state == "sealed" else ()
        while position < self.end_position:
            walk = FrameWalk(
                self.file,
                self.header,
                position=position,
                end_position=self.end_position,
                body=body,
                gaps=gaps,
            )
            yield from walk
            if walk.fault is None:
                return
            at = walk.position
            found = next_frame(
                self.file, self.header, at + self.header.alignment, self.end_position, self.end_position
            )
            if found is None and walk.fault is FrameFault.END and self._line.state == "open":
                return
            position = self.end_position if found is None else found.position
            yield Damage(at, position, walk.fault), memoryview(b"")

    def starts(self, position: int) -> list[int]:
        """Return positions of frames up to `position`, in order: the segment's first, and some that are known."""
        if isinstance(self.file, EpochFile):
            return self.file.near(lambda end: end.position > position)
        found = [self.header.start_position]
        record = self._line.record
        index = read_index(self._outline.storage, self._outline.manifest.log_id, record)
        if index is not None:
            found += [int(p) for p in index.positions if found[0] < p <= position]
        return found


@contextmanager
def opened(outline: Outline, line: SegmentLine) -> Iterator[SegmentFrames]:
    """Open a segment of an outline. WalkitError if it is gone or its header is damaged."""
    if outline.objects is not None:
        with closing(EpochFile(outline.objects, line)) as epoch:
            yield SegmentFrames(epoch, epoch.header(), outline, line)
        return
    with closing(open_segment(outline.storage, line.record)) as file:
        header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), line.record.name)
        if header is None:
            refuse("segment", line.number, "it is made ahead and holds no frames yet")
        yield SegmentFrames(file, header, outline, line)


def page_from(outline: Outline, line: SegmentLine, position: int, job: Job) -> FramePage:
    """Return the page from the frame at `position`, or from the segment's first one."""
    items: list[Item] = []
    with opened(outline, line) as frames:
        for item, _ in frames.walk(max(position, frames.header.start_position)):
            job.check()
            if len(items) == PAGE_FRAMES:
                return FramePage(line=line, items=tuple(items), next_position=item.position)
            items.append(item)
    return FramePage(line=line, items=tuple(items), next_position=None)


def page_before(outline: Outline, line: SegmentLine, position: int, job: Job) -> FramePage:
    """Return the page of the frames that end at `position`, fewer only at the segment's beginning."""
    with opened(outline, line) as frames:
        starts = frames.starts(position - 1)
        back = 1
        while True:
            begin = starts[-min(back, len(starts))]
            last: deque[Item] = deque(maxlen=PAGE_FRAMES)
            for item in _items(frames, begin, job):
                if item.position >= position:
                    break
                last.append(item)
            if len(last) == PAGE_FRAMES or back >= len(starts):
                following = position if position < line.end_position else None
                return FramePage(line=line, items=tuple(last), next_position=following)
            back *= 2


def frame_around(outline: Outline, position: int, job: Job) -> FrameView:
    """Return the frame that a position is in, or the damage. OptionsError if the log has no such position."""
    line = outline.segment_at(position)
    with opened(outline, line) as frames:
        start = max(position, frames.header.start_position)
        exact = _header_at(frames, start)
        if exact is not None:
            return _view(frames, line, exact, outline.place)
        for item in _items(frames, frames.starts(position)[-1], job):
            if item.end_position > position:
                return _view(frames, line, item, outline.place)
    text = f"it is after the last frame of segment {line.number}: space made ahead"
    refuse("position", position, text)


def _header_at(frames: SegmentFrames, position: int) -> FrameHeader | None:
    """Return the header at a position if it has that position; None for anything else."""
    segment = frames.header
    if (position - segment.start_position) % segment.alignment:
        return None
    block = frames.file.read(segment.offset_of(position), FRAME_HEADER_BYTES)
    try:
        header, fault = check_header(block, 0, segment.alignment, segment.frame_bytes_max)
    except WalkitError:
        return None
    if header is None or fault is not None or header.position != position:
        return None
    return header if (header.log_id, header.epoch_id) == (segment.log_id, segment.epoch_id) else None


def _view(frames: SegmentFrames, line: SegmentLine, item: Item, place: LogPath | None) -> FrameView:
    offset, view = (
        frames.header.offset_of(item.position),
        partial(FrameView, line=line, position=item.position),
    )
    if isinstance(item, Damage):
        data = frames.file.read(offset, min(item.end_position - item.position, DAMAGE_READ_BYTES))
        words = (
            f"No frame that belongs here: {item.fault.value}. {item.end_position - item.position:,} bytes."
        )
        return view(data=data, header=None, verdict=words, intact=False)
    if item.footprint > FRAME_READ_MAX:
        data = frames.file.read(offset, FRAME_HEADER_BYTES)
        words = f"Not read: the body, as {item.footprint:,} bytes are too many for a page. The header is in order."
        return view(data=data, header=item, verdict=words, intact=None)
    data = frames.file.read(offset, item.footprint)
    fault = check_body(item, memoryview(data))
    records: tuple[Record, ...] = ()
    verdict, undecoded = "Intact: the checksums of header and body are right.", False
    if fault is not None:
        verdict = f"Damaged: {fault.value}. The records below come from its columns, unverified."
        rows, detail = records_left(item, data)
        records = tuple(unverified(rows.slice(0, RECORDS_SHOWN_MAX)))
        verdict = verdict if records else f"Damaged: {fault.value}. {detail}"
    elif item.records:
        try:
            records = tuple(_first_records(item, data))
        except WalkitError as error:
            verdict, undecoded = f"The checksums are right, and the body cannot be decoded: {error}.", True
    return view(
        data=data,
        header=item,
        verdict=verdict,
        intact=fault is None and not undecoded,
        records=records,
        links=_links_of(place, records),
    )


def _links_of(place: LogPath | None, records: tuple[Record, ...]) -> tuple[LinkFacts, ...]:
    """Return the links of records, with the values that can be had."""
    linked = [record for record in records if record.kind is Kind.LINK and is_link(record.value)]
    if place is None or not linked:
        return ()
    with reader_at(place) as reader:
        return tuple(LinkFacts.all_of(map(reader.payloads.record, linked)))


def _first_records(header: FrameHeader, data: bytes) -> Iterator[Record]:
    found = iter([(header, memoryview(data))])
    shown = 0
    for batch in frames_to_batches(found, header.first_lsn, header.last_lsn, records=RECORDS_SHOWN_MAX):
        for record in Batch.from_arrow(batch.slice(0, RECORDS_SHOWN_MAX - shown)):
            shown += 1
            yield record
        if shown >= RECORDS_SHOWN_MAX:
            return
