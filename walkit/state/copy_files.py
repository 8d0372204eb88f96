"""The files of a copy of a log: each is written under another name, and gets its own once it is on stable storage."""

from __future__ import annotations

import errno
import re
from dataclasses import replace

from walkit._main_thread import end_if_abandoned
from walkit.errors import CorruptionError, FormatVersionError, GapError, SnapshotError, StorageError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import MANIFEST_NAME, LogEnd, Manifest, SegmentRecord, SegmentState, sealed_record
from walkit.format.names import INDEX_SUFFIX, lsn_of_name, snapshot_name
from walkit.format.segment import SegmentHeader
from walkit.read.claim import Claim, is_due
from walkit.read.view import LogView, Span
from walkit.recovery.log_scan import Progress
from walkit.segments.frame_walk import FrameWalk, walk_segment
from walkit.segments.identity import check_identity
from walkit.segments.index_file import files_of
from walkit.segments.manifest_store import LOCK_NAME, NEW_NAME, load_manifest
from walkit.state.snapshot import identity_at, snapshot_lsns, verify_snapshot
from walkit.storage.bulk import read_ahead
from walkit.storage.interface import Storage, StorageFile

COPYING_NAME = "copying.new"
"""The file that is being copied; it is renamed once it is whole and synced."""
CHUNK_BYTES = 4 << 20

_SEGMENT_NAME = re.compile(r"\d{20}\.segment")


def is_of_a_copy(name: str) -> bool:
    """Say whether a file may be what a copy that was killed has left."""
    fixed = (LOCK_NAME, MANIFEST_NAME, NEW_NAME, COPYING_NAME)
    is_segment = _SEGMENT_NAME.fullmatch(name.removesuffix(INDEX_SUFFIX)) is not None
    return name in fixed or is_segment or lsn_of_name(name) is not None


class Meter:
    """How far a copy is: for the progress, for the report, and for the claim, which is renewed as it advances."""

    def __init__(self, progress: Progress | None, claimed: Claim) -> None:
        self.bytes_copied = self.bytes_kept = 0
        self.total = 0
        self._progress, self._claimed = progress, claimed

    def copied(self, size: int) -> None:
        """Count bytes that were copied."""
        self.bytes_copied += size
        self.tick()

    def kept(self, size: int) -> None:
        """Count bytes that were there already."""
        self.bytes_kept += size
        self.tick()

    def tick(self) -> None:
        """Say how far the copy is, and renew the claim where that is due."""
        self.renew()
        if self._progress is not None:
            done = self.bytes_copied + self.bytes_kept
            self._progress(min(done, self.total), self.total)

    def renew(self) -> None:
        """Renew the claim where that is due; ends the copy where its caller was interrupted."""
        end_if_abandoned()
        if is_due(self._claimed):
            self._claimed.renew()

    def finish(self) -> None:
        """Say that all is done."""
        self.total = self.bytes_copied + self.bytes_kept
        self.tick()


class CopyOfSegments:
    """Copies the segments of a view up to a position, and checks each frame of what was written."""

    def __init__(self, view: LogView, target: Storage, meter: Meter, durable_position: int) -> None:
        self.records: list[SegmentRecord] = []
        """What the copy's manifest says of its segments."""
        self.end = view.manifest.end
        """Where the copy ends."""
        self._view, self._target, self._meter = view, target, meter
        self._durable_position = durable_position

    def copy(self) -> CopyOfSegments:
        """Copy all. CorruptionError for a frame that is not intact, GapError for a segment that was dropped."""
        spans = [s for s in self._view.spans if s.record.start_position < self._durable_position]
        self._meter.total += sum(
            self._stop(s) - s.record.start_position + SEGMENT_HEADER_BYTES for s in spans
        )
        for span in spans:
            self.records.append(self._segment(span))
        if self.records and (last := self.records[-1]).end_position != self.end.position:
            self.end = LogEnd(last_lsn=last.last_lsn, position=last.end_position, chain=last.end_chain)
        return self

    def _stop(self, span: Span) -> int:
        return min(span.end_position, self._durable_position)

    def _segment(self, span: Span) -> SegmentRecord:
        stop = self._stop(span)
        record = span.record
        whole = record.state is SegmentState.SEALED and stop == record.end_position
        file, header = self._view.opened(span)
        try:
            if header.number != record.number:  # another stands in its place, which begins later
                manifest = load_manifest(self._view.storage)
                raise GapError(record.first_lsn, max(manifest.complete_from_lsn, manifest.first_lsn))
            size = min(header.offset_of(stop), file.size())
            found = self._there(record, span, size) if whole else None
            if found is None:
                own = replace(header, manifest_generation=0)  # it promises another folder's manifest
                copy_file(file, self._target, size, self._meter, own.encode())
                walk = self._checked(COPYING_NAME, record, span, stop)
                self._target.replace(COPYING_NAME, record.name)
            else:
                walk = found
                self._meter.kept(size)
        finally:
            file.close()
        if whole:
            return record
        end = LogEnd(last_lsn=(walk.next_lsn or 1) - 1, position=stop, chain=walk.end_chain)
        return sealed_record(header, end, records=walk.records, frames=walk.frames)

    def _there(self, record: SegmentRecord, span: Span, size: int) -> FrameWalk | None:
        """Return the walk over what an earlier copy made whole of a sealed segment; None where it did not."""
        if record.name not in self._target.names():
            return None
        file = self._target.open(record.name, "read")
        try:
            if file.size() != size:
                return None
        finally:
            file.close()
        try:
            return self._checked(record.name, record, span, record.end_position)
        except (CorruptionError, FormatVersionError):
            return None

    def _checked(self, name: str, record: SegmentRecord, span: Span, stop: int) -> FrameWalk:
        """Check each frame of a segment's copy; CorruptionError where one is not intact."""
        manifest = self._view.manifest
        file = self._target.open(name, "read")
        try:
            header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), record.name)
            check_identity(manifest, record, header)
            assert header is not None
            gaps = manifest.gaps_of(record)
            walk = walk_segment(file, header, record, stop, gaps=gaps, row_seen=lambda _: None)
            for _ in walk.steps():
                self._meter.renew()
            self._view.refuse(walk, span)
            return walk
        finally:
            file.close()


def copy_file(file: StorageFile, target: Storage, size: int, meter: Meter, head: bytes = b"") -> None:
    """Copy the first bytes of a file to `COPYING_NAME`, with `head` as its first ones; durable on return."""
    if COPYING_NAME in target.names():
        target.remove(COPYING_NAME)
    written = target.open(COPYING_NAME, "create")
    try:
        offset = 0
        while offset < size:
            read_ahead(file, offset + CHUNK_BYTES, CHUNK_BYTES)
            data = file.read(offset, min(CHUNK_BYTES, size - offset))
            if not data:
                raise CorruptionError(
                    f"{file.name} ends at byte {offset:,} while it is copied",
                    segment=file.name,
                    expected=size,
                    found=offset,
                )
            written.write(offset, [data])
            offset += len(data)
            meter.copied(len(data))
        if head:
            written.write(0, [head])
        written.sync()
    finally:
        written.close()


def copy_snapshots(source: Storage, target: Storage, meter: Meter) -> tuple[list[int], list[int]]:
    """Copy the snapshots of a log; those of an earlier copy go.

    Returns the LSNs of what was copied, and of what was left out because it cannot be used.
    """
    for lsn in snapshot_lsns(target):
        target.remove(snapshot_name(lsn))
    usable: dict[int, bool | None] = {}
    while new := [lsn for lsn in snapshot_lsns(source) if lsn not in usable]:
        for lsn in new:
            usable[lsn] = _copy_snapshot(source, target, lsn, meter)
    return [n for n in sorted(usable) if usable[n]], [n for n in sorted(usable) if usable[n] is False]


def _copy_snapshot(source: Storage, target: Storage, lsn: int, meter: Meter) -> bool | None:
    """Copy one snapshot; False where it is damaged or of another history, None where it was removed meanwhile."""
    try:
        file = source.open(snapshot_name(lsn), "read")
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        return None
    try:
        size = file.size()
        meter.total += size
        copy_file(file, target, size, meter)
    finally:
        file.close()
    target.replace(COPYING_NAME, snapshot_name(lsn))
    try:
        verify_snapshot(target, lsn, identity=identity_at(load_manifest(source), lsn))
    except (SnapshotError, FormatVersionError) as error:
        if isinstance(error.__cause__, StorageError):
            raise
        return False  # `keep_only` removes it
    return True


def keep_only(target: Storage, manifest: Manifest, snapshots: list[int]) -> None:
    """Remove what an earlier copy left and this one does not have."""
    kept = {LOCK_NAME, *files_of(manifest.sealed), *map(snapshot_name, snapshots)}
    for name in target.names():
        if name not in kept:
            target.remove(name)
