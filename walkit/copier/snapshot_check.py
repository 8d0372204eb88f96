"""Snapshots as files: which ones a log has, and whether all of one can be read. Not the meaning of a state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from walkit.errors import CorruptionError, FormatVersionError, SnapshotError, StorageError
from walkit.format.file_names import lsn_of_name, snapshot_name
from walkit.format.frame import FrameIdentity
from walkit.recovery.snapshot_reader import SnapshotInfo, read_frames, read_header
from walkit.storage.interface import ReadableFiles, StorageFile

_RETRY_READ = "use an older snapshot, or replay the log from its beginning"


def snapshot_lsns(storage: ReadableFiles) -> list[int]:
    """Return the LSNs of the snapshots of a storage, oldest first. Reads none of them."""
    return sorted(lsn for name in storage.names() if (lsn := lsn_of_name(name)) is not None)


def verify_snapshot(
    storage: ReadableFiles, lsn: int, *, identity: FrameIdentity | None = None, name: str | None = None
) -> SnapshotInfo:
    """Check every byte of the snapshot at this LSN, in bounded memory, and return its header.

    With `identity` it also has to be of that log and epoch; `name` is its file's, if that is another.
    SnapshotError (stage "open", "header", "identity" or "verify", the cause
    chained) if it cannot be used; FormatVersionError if a newer walkit wrote it.
    """
    with reading_snapshot(lsn, "open"):
        file = storage.open(name or snapshot_name(lsn), "read")
    try:
        return verify_open_snapshot(file, lsn, identity)
    finally:
        file.close()


def verify_open_snapshot(file: StorageFile, lsn: int, identity: FrameIdentity | None) -> SnapshotInfo:
    """Check every byte of an open snapshot, as `verify_snapshot` does."""
    with reading_snapshot(lsn, "header"):
        info = read_header(file, snapshot_name(lsn))
    if identity is not None and identity != info.identity:
        refuse_snapshot(info, identity)
    with reading_snapshot(lsn, "verify"):
        for _ in read_frames(file, info):
            pass
    return info


def refuse_snapshot(info: SnapshotInfo, wanted: FrameIdentity) -> None:
    """Raise the SnapshotError of a snapshot that belongs to another log, or to another history of this one."""
    found = info.identity
    if wanted.log_id != found.log_id:
        fault = f"belongs to another log ({found.log_id:#018x}, not {wanted.log_id:#018x})"
    else:
        fault = (
            f"belongs to another history of this log: record {info.lsn} was then of epoch {found.epoch} "
            f"({found.epoch_id:#018x}), and is now of epoch {wanted.epoch} ({wanted.epoch_id:#018x})"
        )
    raise SnapshotError(f"the snapshot {info.name} {fault}", stage="identity", retry=_RETRY_READ)


@contextmanager
def reading_snapshot(lsn: int, stage: str) -> Iterator[None]:
    """Raise damage and faults of the storage within as a SnapshotError of this stage."""
    try:
        yield
    except FormatVersionError:
        raise
    except (CorruptionError, StorageError) as error:
        raise SnapshotError(
            f"the snapshot at LSN {lsn} cannot be used (stage {stage!r}): {error}",
            stage=stage,
            retry=_RETRY_READ,
        ) from error
