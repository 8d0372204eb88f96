"""The one way in which a new segment takes the place of others: trim, compaction and the repair of a header use it.

Each of them supplies a header, and frames that it copies or makes. The rest is the same. The file is written under a
temporary name, synced, and read back as any reader would; only then it gets its own name. In an open log the manifest
names it next, and the old files go last. So a crash at any step leaves the old or the new, both whole, and a file that
the next opening removes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from walkit.errors import CorruptionError, StorageError, WalkitError
from walkit.format.layout import SEGMENT_HEADER_BYTES, ZEROS
from walkit.format.manifest import Gap, Manifest, SegmentRecord, segment_order
from walkit.format.segment import SegmentHeader, segment_name
from walkit.segments.frame_walk import FrameWalk, Readable, walk_segment
from walkit.segments.index_file import files_of
from walkit.segments.manifest_store import Manifests, gaps_where
from walkit.segments.orphan_files import Orphans
from walkit.storage.bulk import data_ranges
from walkit.storage.interface import Storage, StorageFile, remove_if_there

STEP_BYTES = len(ZEROS)


class NewSegment(NamedTuple):
    """A segment that was written, with its header and its record for the manifest."""

    header: SegmentHeader
    record: SegmentRecord
    gaps: Sequence[Gap] = ()
    """The holes and lost ranges in it."""


Write = Callable[[StorageFile], NewSegment | None]
"""Writes a segment to an empty file; None if the file is not needed after all."""


# -- one file


@contextmanager
def new_file(storage: Storage, temporary: str) -> Iterator[StorageFile]:
    """Yield an empty file under a temporary name, which the block writes and syncs; one of a failed block goes."""
    remove_if_there(storage, temporary)
    file, whole = storage.open(temporary, "create"), False
    try:
        yield file
        whole = True
    finally:
        file.close()
        if not whole:
            with suppress(StorageError):  # the next opening removes it
                storage.remove(temporary)


def write_segment(storage: Storage, temporary: str, write: Write) -> NewSegment | None:
    """Write a segment under a temporary name, synced and read back; None, and no file, if `write` needs none."""
    with new_file(storage, temporary) as file:
        new = write(file)
        if new is not None:
            file.sync()
            read_back(file, new)
    if new is None:
        with suppress(StorageError):
            storage.remove(temporary)
    return new


def copy_segment(
    source: Readable,
    file: StorageFile,
    header: SegmentHeader,
    start: int,
    until: int,
    step: Callable[[], object] = lambda: None,
) -> None:
    """Write a header, and after it bytes [start, until) of another segment, which are frames that stay as they are."""
    file.write(0, [header.encode()])
    copy_part(source, start, until, file, SEGMENT_HEADER_BYTES, step)


def copy_part(
    file: Readable,
    start: int,
    until: int,
    copy: StorageFile,
    offset: int,
    step: Callable[[], object] = lambda: None,
) -> None:
    """Write bytes [start, until) of a file to `offset` of a new one; a hole of the file is one of the copy.

    `step` is called before each block, and may end the work by an error. The caller syncs.
    """
    end = start
    for at, size in steps_of(file, start, until):
        step()
        copy.write(offset + at - start, [file.read(at, size)])
        end = at + size
    if end < until:
        copy.write(offset + until - start - 1, [b"\0"])


def steps_of(file: Readable, start: int, until: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, size) of the data in [start, until), in pieces of at most `STEP_BYTES`."""
    for first, last in data_ranges(file, start, until):
        for at in range(first, last, STEP_BYTES):
            yield at, min(STEP_BYTES, last - at)


# -- the proof


def read_back(file: StorageFile, new: NewSegment, step: Callable[[], object] = lambda: None) -> int:
    """Walk a sealed segment as any reader would, every frame of it, and compare its end.

    Returns how many frames it has, which the record may not say. `step` is called every few frames, and may end the
    work by an error.
    CorruptionError if it differs from its header or its record in the manifest; StorageError if it cannot be read.
    """
    header, record, gaps = new
    walk = walk_segment(file, header, record, record.end_position, gaps=gaps, row_seen=lambda row: None)
    for _ in walk.steps():
        step()
    start_facts = (header.start_position, header.first_lsn, header.chain, int(header.flags))
    start = (record.start_position, record.first_lsn, record.start_chain, record.flags)
    frames = record.frames or walk.frames
    expected = (*start, None, record.last_lsn + 1, frames, record.records, record.end_chain)
    if (*start_facts, *_facts_of(walk)) != expected:
        raise unlike(record.name, walk, expected, start_facts)
    return frames


def _facts_of(walk: FrameWalk) -> tuple[object, ...]:
    """Return the end of a walk: fault, next LSN, frames, records, chain."""
    return walk.fault, walk.next_lsn, walk.frames, walk.records, walk.end_chain


def unlike(name: str, walk: FrameWalk, expected: object, start_facts: tuple[object, ...] = ()) -> WalkitError:
    """Return the error of a segment that stays, or of a new one that is not published: it is not as it has to be."""
    if walk.error is not None:
        return walk.error
    found = (*start_facts, *_facts_of(walk))
    differs = walk.fault.value if walk.fault else f"expected {expected}, found {found}"
    return CorruptionError(
        f"segment {name} is damaged at position {walk.position:,}: {differs}. Nothing was changed",
        segment=name,
        position=walk.position,
        expected=expected,
        found=found,
        first_lost_lsn=walk.next_lsn,
    )


# -- an open log


class SegmentReplacer:
    """Replaces segments of an open log by new ones. Used by one thread at a time."""

    def __init__(
        self, storage: Storage, manifest_store: Manifests, orphan_files: Orphans, temporary: str
    ) -> None:
        self._storage, self._manifest_store, self._orphan_files = storage, manifest_store, orphan_files
        self._temporary = temporary
        self._unpublished: list[str] = []
        """Segments that have their name and not their place. After a failure the manifest on stable storage may name
        them until the next is written."""

    def clear(self) -> None:
        """Remove the files of a failed replacement."""
        remove_if_there(self._storage, self._temporary)
        self._orphan_files.give_up(self._unpublished)

    def number(self) -> int:
        """Return the number of a new segment; one whose file name is taken is passed over."""
        while True:
            number = self._manifest_store.take_number()
            try:
                self._storage.open(segment_name(number), "read").close()
            except StorageError as error:
                if error.errno == errno.ENOENT:
                    return number
                raise

    def write(self, write: Write) -> NewSegment | None:
        """Write a segment, prove it, and give it its own name, durably; None if `write` needs none.

        The manifest knows the number before the file has its name: a segment that it does not know would say that the
        manifest is older than the log.
        """
        new = write_segment(self._storage, self._temporary, write)
        if new is None:
            return None
        name, following = new.record.name, new.record.number + 1
        self._manifest_store.update(lambda m: m.next(next_segment=max(m.next_segment, following)))
        self._unpublished.append(name)
        self._storage.replace(self._temporary, name)
        self._storage.sync_directory()
        return new

    def publish(
        self,
        old: Sequence[SegmentRecord],
        new: NewSegment,
        facts: Callable[[Manifest], dict[str, Any] | None] = lambda manifest: {},
    ) -> bool:
        """Have the manifest name the new segment instead of the old ones, and note these for removal.

        False if one of these has left the log by now, or `facts`, which returns further fields of the manifest,
        returns None: then the new one is to be removed. Needs the lock of the orphan files held.
        """
        published, start, end = False, old[0].start_position, old[-1].end_position

        def gap_stays(gap: Gap) -> bool:
            return gap in new.gaps or gap.end_position <= start or gap.start_position >= end

        def change(manifest: Manifest) -> Manifest:
            nonlocal published
            more = facts(manifest) if all(record in manifest.segments for record in old) else None
            published = more is not None
            if more is None:
                return manifest
            others = (record for record in manifest.segments if record not in old)
            segments = tuple(sorted((*others, new.record), key=segment_order))
            return manifest.next(segments=segments, **gaps_where(manifest, gap_stays), **more)

        self._manifest_store.update(change)
        self._unpublished.remove(new.record.name)
        self._orphan_files.add(files_of(old if published else [new.record]))
        return published
