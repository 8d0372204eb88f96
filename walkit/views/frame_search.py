"""Finding a record or a frame in a log by LSN, by key or by time, with progress and an end. Never changes a byte.

A search reads segment by segment, and passes over damage, which it counts. No panel in here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow.compute as pc

from walkit._internal.arguments import refuse
from walkit._internal.text import lsn_range
from walkit.errors import WalkitError
from walkit.format.frame import FrameHeader, check_header
from walkit.format.layout import CODEC_NONE, FRAME_HEADER_BYTES
from walkit.read.view import frames_to_batches
from walkit.record import Batch, Record
from walkit.segments.index_file import read_index
from walkit.views.frame_pages import CHECK_FRAMES, Damage, SegmentFrames, opened
from walkit.views.jobs import Job
from walkit.views.log_outline import EpochFile, Outline, SegmentLine

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
        sealed_us = _sealed_us(frames, int(positions[middle]))
        if sealed_us is None:
            return start  # damaged: every frame is looked at
        if sealed_us < wanted_us:
            low = middle + 1
        else:
            high = middle
    return int(positions[low - 1]) if low else start


def _sealed_us(frames: SegmentFrames, position: int) -> int | None:
    segment = frames.header
    block = frames.file.read(segment.offset_of(position), FRAME_HEADER_BYTES)
    header, fault = check_header(block, 0, segment.alignment, segment.frame_bytes_max)
    return None if header is None or fault is not None else header.sealed_us


def _created_us(outline: Outline, line: SegmentLine) -> int:
    """Return when a segment was made, microseconds since 1970; 0 if that is not known."""
    if line.record.created_us:
        return line.record.created_us
    with opened(outline, line) as frames:
        return frames.header.created_us
