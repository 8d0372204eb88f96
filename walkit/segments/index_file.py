"""Index sidecars on storage: written after a seal, read for a seek, removed with their segment (FORMAT.md F-10).

Nothing here raises for an index: without one, or with a damaged one, a reader goes from header to header instead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress

from walkit.errors import StorageError, WalkitError
from walkit.format.frame import FrameHeader, check_header
from walkit.format.index import (
    IndexEntry,
    IndexIdentity,
    SegmentIndex,
    decode_index,
    encode_index,
    has_index,
    index_bytes_max,
    index_name,
)
from walkit.format.layout import FRAME_HEADER_BYTES, INDEX_STEP_BYTES, SEGMENT_HEADER_BYTES
from walkit.format.manifest import Gap, Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.segments.frame_walk import FrameWalk
from walkit.storage.interface import Storage, StorageFile, remove_if_there

STEP_FRAMES = 256
"""Frame headers that `reindex` reads in one step: some milliseconds."""


def write_index(storage: Storage, log_id: int, record: SegmentRecord, entries: Sequence[IndexEntry]) -> None:
    """Write the index of a segment that is sealed, replacing an older one. Not synced: nothing rests on it."""
    if not has_index(record) or not entries:
        return
    name = index_name(record.name)
    with suppress(StorageError):
        _create(storage, name, encode_index(IndexIdentity.of(log_id, record), entries))


def _create(storage: Storage, name: str, data: bytes) -> None:
    remove_if_there(storage, name)
    file = storage.open(name, "create")
    try:
        file.write(0, [data])
    finally:
        file.close()


def index_segment(storage: Storage, manifest: Manifest, record: SegmentRecord) -> None:
    """Make the index of a sealed segment from its headers, if it may have one and no header is damaged."""
    for _ in _index_in_steps(storage, lambda: manifest, record):
        pass


def reindex(storage: Storage, current: Callable[[], Manifest]) -> Generator[None]:
    """Rebuild indexes of sealed segments that are absent or damaged; each step reads some frame headers only.

    Those of segments that a recovery sealed are absent. Holes and lost ranges are passed over. A segment gets none if
    its first frame is in one, or a header is damaged.
    """
    for record in current().sealed:
        if read_index(storage, current().log_id, record) is None:
            yield from _index_in_steps(storage, current, record)
        yield


def _index_in_steps(
    storage: Storage, current: Callable[[], Manifest], record: SegmentRecord
) -> Generator[None]:
    """Make the index of one segment, in steps of `STEP_FRAMES`."""
    manifest = current()
    gaps = manifest.gaps_of(record)
    if not has_index(record) or any(gap.start_position == record.start_position for gap in gaps):
        return
    with suppress(WalkitError):
        entries = yield from _entries_in_steps(storage, record, gaps)
        if record in current().sealed:  # trimmed or compacted meanwhile: it would be an orphan
            write_index(storage, manifest.log_id, record, entries)


def _entries_in_steps(
    storage: Storage, record: SegmentRecord, gaps: Sequence[Gap]
) -> Generator[None, None, list[IndexEntry]]:
    """Return the entries of a segment's index, after steps; [] if a header is damaged."""
    file = storage.open(record.name, "read")
    try:
        segment = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), record.name)
        if segment is None:
            return []
        walk = FrameWalk(
            file,
            segment,
            position=record.start_position,
            end_position=record.end_position,
            body=False,
            gaps=gaps,
        )
        entries: list[IndexEntry] = []
        records, next_position = 0, 0
        for header, _ in walk:
            if header.position >= next_position:
                entries.append(IndexEntry(header.position, header.first_lsn, records))
                next_position = header.position + INDEX_STEP_BYTES
            records += header.records
            if not walk.frames % STEP_FRAMES:
                yield
        return entries if walk.fault is None else []
    finally:
        file.close()


def read_index(storage: Storage, log_id: int, record: SegmentRecord) -> SegmentIndex | None:
    """Return the index of a sealed segment; None unless it is whole and belongs to this very segment."""
    if not has_index(record):
        return None
    try:
        file = storage.open(index_name(record.name), "read")
    except StorageError:
        return None
    try:
        size = file.size()
        if size > index_bytes_max(record):
            return None
        return decode_index(file.read(0, size), IndexIdentity.of(log_id, record))
    except StorageError:
        return None
    finally:
        file.close()


def frame_at(file: StorageFile, segment: SegmentHeader, entry: IndexEntry) -> FrameHeader | None:
    """Return the header of the frame that an entry points to; None if no such frame is there."""
    try:
        block = file.read(segment.offset_of(entry.position), FRAME_HEADER_BYTES)
    except StorageError:
        return None
    header, fault = check_header(block, 0, segment.alignment, segment.frame_bytes_max)
    if header is None or fault is not None:
        return None
    place = (header.log_id, header.epoch_id, header.position, header.first_lsn)
    return header if place == (segment.log_id, segment.epoch_id, entry.position, entry.first_lsn) else None


def files_of(records: Iterable[SegmentRecord]) -> Iterator[str]:
    """Yield the names of all files that these segments may have: their own, and those of their indexes."""
    for record in records:
        yield record.name
        if has_index(record):
            yield index_name(record.name)
