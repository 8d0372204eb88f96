"""Whether a segment file, or a saved position, belongs to the history that a manifest names."""

from __future__ import annotations

import errno
from typing import NamedTuple

from walkit.errors import CorruptionError, DivergenceError, SegmentMissingError, StorageError, WalkitError
from walkit.format.frame import FrameIdentity
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import Manifest, SegmentRecord, SegmentState
from walkit.format.segment import SegmentHeader
from walkit.storage.interface import Storage, StorageFile


def open_segment(storage: Storage, record: SegmentRecord) -> StorageFile:
    """Open a segment that the manifest names; SegmentMissingError if it is absent."""
    try:
        return storage.open(record.name, "read")
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        raise missing_segment(storage, record) from error


def missing_segment(storage: Storage, record: SegmentRecord) -> SegmentMissingError:
    """Return the error for a segment that the manifest names and that is not there."""
    return SegmentMissingError(
        f"segment {record.name} is missing from {storage.location}: it is named in the manifest",
        segment=record.name,
        position=record.start_position,
        expected="a file",
        found=None,
        first_lost_lsn=record.first_lsn or None,
    )


def header_of(storage: Storage, name: str) -> SegmentHeader | None:
    """Return the header of a segment file; None if it is all zero."""
    file = storage.open(name, "read")
    try:
        return SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), name)
    finally:
        file.close()


def check_identity(manifest: Manifest, record: SegmentRecord, header: SegmentHeader | None) -> None:
    """Refuse a segment that is not the one the manifest means: of another log, an earlier copy, or empty."""
    wanted: tuple[object, ...] = (manifest.log_id, record.epoch, record.start_position, record.first_lsn)
    if record.state is not SegmentState.SEALED:
        wanted = (manifest.log_id, record.epoch)
    found: tuple[object, ...] | None = None
    if header is not None:
        found = (header.log_id, header.epoch, header.start_position, header.first_lsn)[: len(wanted)]
        epoch = manifest.epoch_of(record.epoch)
        if found == wanted and epoch is not None and epoch.id == header.epoch_id:
            return
    raise CorruptionError(
        f"segment {record.name} is not the one that the manifest names "
        f"(log, epoch, start position, first LSN): expected {wanted}, found {found}",
        segment=record.name,
        position=record.start_position,
        expected=wanted,
        found=found,
        first_lost_lsn=record.first_lsn or None,
    )


def identity_at(manifest: Manifest, lsn: int) -> FrameIdentity:
    """Return the log, and the epoch in which the record at this LSN was written; epoch 0 below the first record.

    With the LSN that is the record's full identity: the number of a record that was cut is given again.
    """
    epochs = [e for e in manifest.lineage if e.first_lsn <= lsn]
    epoch = max(epochs, key=lambda e: e.number, default=None)
    return FrameIdentity(manifest.log_id, *((0, 0) if epoch is None else (epoch.number, epoch.id)))


def lies_in(manifest: Manifest, lsn: int, epoch_id: int) -> bool:
    """Say whether a saved position belongs to this history: whether its record has the epoch with this id.

    A manifest that was rebuilt from the segments' headers knows no epoch of records trimmed before: a position there is
    accepted, unless its epoch began later.
    """
    _, epoch, found = identity_at(manifest, lsn)
    forgotten = lsn > 0 and not epoch and epoch_id not in {e.id for e in manifest.lineage[1:]}
    return found == epoch_id or forgotten


class LogPoint(NamedTuple):
    """A point in the history of a log: which log, and the epoch of its record at `lsn`."""

    log_id: int
    epoch_id: int
    lsn: int

    @classmethod
    def of(cls, manifest: Manifest, lsn: int) -> LogPoint:
        """Return the point at an LSN of the log that has this manifest."""
        log_id, _, epoch_id = identity_at(manifest, lsn)
        return cls(log_id, epoch_id, lsn)

    def require(self, manifest: Manifest, location: str) -> None:
        """Raise DivergenceError if the log at `location`, of this manifest, does not have this point."""
        if manifest.log_id != self.log_id:
            raise DivergenceError(
                f"log {self.log_id:016x} was read at {location}, and log {manifest.log_id:016x} is there now. "
                "Put the log back, or read it from its beginning",
                first_lsn=1,
            )
        if not lies_in(manifest, self.lsn, self.epoch_id):
            own = [epoch.first_lsn for epoch in manifest.lineage if epoch.first_lsn <= self.lsn]
            is_known = any(epoch.id == self.epoch_id for epoch in manifest.lineage)
            raise DivergenceError(
                f"the log at {location} has another history than when it was read: the record at LSN {self.lsn:,} "
                "was cut. Read it from its beginning",
                first_lsn=parted_at(manifest, self.epoch_id) if is_known else max(own, default=1),
            )


def parted_at(manifest: Manifest, epoch_id: int) -> int:
    """Return the first LSN that can differ for a consumer that knows this epoch; 1 if this history never had it."""
    theirs = next((e for e in manifest.lineage if e.id == epoch_id), None)
    after = [e.first_lsn for e in manifest.lineage if theirs is None or e.number > theirs.number]
    return min(after, default=1)


def whole_header(block: bytes) -> SegmentHeader | None:
    """Return the undamaged header that a block holds, of any segment; None if it holds none."""
    try:
        return SegmentHeader.decode(block)
    except WalkitError:
        return None
