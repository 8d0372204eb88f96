"""The files of a copy of a log: each is written under another name, and gets its own once it is on stable storage."""

from __future__ import annotations

import errno
import re
from dataclasses import replace

from walkit._main_thread import end_if_abandoned
from walkit.copier.plan import PlannedSegment, open_span
from walkit.copier.segment_check import check_segment
from walkit.copier.snapshot_check import snapshot_lsns, verify_snapshot
from walkit.errors import CorruptionError, FormatVersionError, SnapshotError, StorageError
from walkit.format.manifest import Manifest
from walkit.format.names import INDEX_SUFFIX, lsn_of_name, snapshot_name
from walkit.read.claim import Claim, is_due
from walkit.read.view import LogView
from walkit.recovery.log_scan import Progress
from walkit.segments.identity import identity_at
from walkit.segments.index_file import files_of
from walkit.segments.manifest_store import LOCK_NAME, OWN_NAMES, load_manifest
from walkit.storage.bulk import read_ahead
from walkit.storage.interface import Storage, StorageFile

COPYING_NAME = "copying.new"
"""The file that is being copied; it is renamed once it is whole and synced."""
CHUNK_BYTES = 4 << 20

_SEGMENT_NAME = re.compile(r"\d{20}\.segment")


def is_of_a_copy(name: str) -> bool:
    """Say whether a file may be what a copy that was killed has left."""
    fixed = (*OWN_NAMES, COPYING_NAME)
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


def copy_segments(
    view: LogView, planned: list[PlannedSegment], manifest: Manifest, target: Storage, meter: Meter
) -> None:
    """Copy the segments of a plan, whose manifest this is, and check each frame of what was written.

    A file that an earlier copy made whole is kept. CorruptionError, GapError for a segment that has left the log.
    """
    meter.total += sum(each.size for each in planned)
    there = set(target.names())
    for each in planned:
        if each.record.name in there and _is_whole(target, manifest, each, meter):
            meter.kept(each.size)
            continue
        file, header = open_span(view, each.span)
        try:
            own = replace(header, manifest_generation=0)  # it promises another folder's manifest
            copy_file(file, target, each.size, meter, own.encode())
        finally:
            file.close()
        check_segment(target, manifest, each.record, name=COPYING_NAME, step=meter.renew)
        target.replace(COPYING_NAME, each.record.name)


def _is_whole(target: Storage, manifest: Manifest, each: PlannedSegment, meter: Meter) -> bool:
    """Say whether an earlier copy has made all of a segment of a plan, and no more."""
    file = target.open(each.record.name, "read")
    try:
        if file.size() != each.size:
            return False
    finally:
        file.close()
    try:
        check_segment(target, manifest, each.record, step=meter.renew)
    except (CorruptionError, FormatVersionError):
        return False
    return True


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
