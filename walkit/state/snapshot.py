"""Snapshots in their place: written in named stages, read only after everything in them is verified.

A snapshot appears under its name whole or not at all. It is not the log's business: a log without its snapshots is
still the whole truth as far back as it reaches.

`walkit.recovery.snapshot_reader` has the layout of the file, and reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from operator import lt
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from walkit.copier.snapshot_check import (
    reading_snapshot,
    refuse_snapshot,
    snapshot_lsns,
    verify_open_snapshot,
    verify_snapshot,
)
from walkit.errors import CorruptionError, FormatVersionError, SnapshotError, StorageError, WalkitError
from walkit.format.body import Columns
from walkit.format.file_names import SNAPSHOT_NEW_NAME, snapshot_name
from walkit.format.frame import FrameIdentity, prepare_body, seal_frame
from walkit.format.layout import ALIGNMENT_BUFFERED, FRAME_HEADER_BYTES, HAS_VALUE
from walkit.record import Batch, Kind
from walkit.recovery.snapshot_reader import HEADER, HEADER_BYTES, SnapshotInfo, read_frames, read_header
from walkit.segments.history import identity_at
from walkit.state.batch_columns import columns_of, part_of
from walkit.state.machine import StateImage, StateMachine
from walkit.storage.interface import (
    BACK_PRESSURE,
    Buffer,
    ReadableFiles,
    Storage,
    StorageFile,
    remove_if_there,
)

__all__ = [
    "FRAME_GOAL_BYTES",
    "HEADER",
    "HEADER_BYTES",
    "NEW_NAME",
    "RETRY_STAGES",
    "STAGES",
    "SnapshotInfo",
    "SnapshotWrite",
    "identity_at",
    "read_snapshot",
    "refuse_other_machines",
    "snapshot_batches",
    "snapshot_lsns",
    "snapshot_name",
    "verify_snapshot",
    "write_frames",
    "write_snapshot",
]

FRAME_GOAL_BYTES: Final = 1 << 20
"""Keys and values that a frame takes before the next one is started; one larger record has a frame to itself."""


class Writable(Protocol):
    """The file of a snapshot, for writing."""

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """See `StorageFile`."""


class Measured:
    """Passes writes on until one finds no room; then it takes them, so that the size of the whole is known."""

    def __init__(self, file: StorageFile) -> None:
        self._file = file
        self.full: StorageError | None = None

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """See `StorageFile`; the error of a full disk is kept in `full`."""
        if self.full is None:
            try:
                self._file.write(offset, buffers)
            except StorageError as error:
                if error.errno not in BACK_PRESSURE:
                    raise
                self.full = error


def write_frames(
    file: Writable,
    batches: Iterable[Batch],
    lsn: int,
    snapshot_format: str,
    identity: FrameIdentity,
    codec: str | None,
) -> SnapshotInfo:
    """Write the frames, then the header, to an empty file; nothing is durable yet. Returns the header.

    ValueError if the batches break the promise of `StateMachine.snapshot`.
    """
    position = chain = records = rows = frames = 0
    frame_bytes_max = FRAME_HEADER_BYTES
    last_key: bytes | None = None
    for part in _parts(batches):
        columns, last_key = _checked(part, lsn, last_key)
        body = prepare_body(columns, codec)
        buffers, footprint, chain = seal_frame(
            body,
            identity,
            position=position,
            first_lsn=rows + 1,
            durable_position=0,
            chain=chain,
            sealed_us=0,
            alignment=ALIGNMENT_BUFFERED,
        )
        file.write(HEADER_BYTES + position, buffers)
        frame_bytes_max = max(frame_bytes_max, footprint, body.raw_bytes)
        position += footprint
        rows += columns.count
        records += len(part)
        frames += 1
    info = SnapshotInfo(
        lsn=lsn,
        snapshot_format=snapshot_format,
        log_id=identity.log_id,
        epoch=identity.epoch,
        epoch_id=identity.epoch_id,
        records=records,
        frames=frames,
        end_position=position,
        end_chain=chain,
        frame_bytes_max=frame_bytes_max,
    )
    file.write(0, [info.encode()])
    return info


def _parts(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Cut batches so that each part has about `FRAME_GOAL_BYTES` of keys and values, or one record."""
    for batch in batches:
        ends = np.cumsum(_sizes(batch.keys, len(batch)) + _sizes(batch.values, len(batch)))
        borders = [0]
        while borders[-1] < len(batch):
            done = int(ends[borders[-1] - 1]) if borders[-1] else 0
            borders.append(
                max(int(np.searchsorted(ends, done + FRAME_GOAL_BYTES, side="right")), borders[-1] + 1)
            )
        for start, stop in pairwise(borders):
            yield part_of(batch, start, stop)


def _sizes(column: Sequence[bytes | None] | None, count: int) -> npt.NDArray[np.int64]:
    if column is None:
        return np.zeros(count, np.int64)
    try:
        return np.fromiter(map(len, column), np.int64, count)  # type: ignore[arg-type]
    except TypeError:  # some are absent
        return np.fromiter((0 if item is None else len(item) for item in column), np.int64, count)


def _checked(part: Batch, lsn: int, last_key: bytes | None) -> tuple[Columns, bytes]:
    """Return the columns of a frame, the column of LSNs included, and its last key."""
    if part.keys is None or None in part.keys:
        raise ValueError("every record of a snapshot has a key")
    keys: list[bytes] = list(part.keys)  # type: ignore[arg-type]
    if not all(map(lt, keys, keys[1:])) or (last_key is not None and keys[0] <= last_key):
        raise ValueError("the keys of a snapshot come in ascending order, none twice")
    lsns = np.array(part.lsns, "<i8")
    if int(lsns.min()) < 0 or int(lsns.max()) > lsn:
        raise ValueError(f"a snapshot at LSN {lsn} holds no record of LSN {int(lsns.max())}")
    columns = columns_of(part)
    assert not isinstance(columns.kinds, int) and columns.keys is not None
    columns.kinds = [*columns.kinds, int(Kind.PUT) | HAS_VALUE]
    columns.keys = [*columns.keys, b""]
    columns.values = [*(columns.values or [b""] * len(keys)), lsns.tobytes()]
    if columns.timestamps is not None:
        columns.timestamps = [*columns.timestamps, 0]
    columns.count += 1
    return columns, keys[-1]


NEW_NAME = SNAPSHOT_NEW_NAME
"""The file that becomes a snapshot by being renamed. One that a crash left goes at the next opening to write."""

STAGES: dict[str, str] = {
    "write": "take the snapshot again: the written part is thrown away",
    "sync": "take the snapshot again, in a new file: the state after a failed sync is unknown",
    "log": "this stage, or open the log again: it could not be made durable up to the snapshot's LSN",
    "rename": "this stage, or take the snapshot again: it is whole, and may have its name by now",
    "sync_directory": "this stage, or take the snapshot again: it is whole, and a power cut may undo its name",
}
"""The stages of writing a snapshot, in order, and the stage to retry when one fails."""

RETRY_STAGES: dict[str, str] = {
    "write": "write",
    "sync": "write",
    "log": "log",
    "rename": "rename",
    "sync_directory": "sync_directory",
}
"""From which stage a snapshot can be continued, by the stage that failed. A failed sync is never done again on what
it was to sync: the kernel may have dropped it, and say that all is well."""


def write_snapshot(
    storage: Storage,
    image: StateImage,
    *,
    identity: FrameIdentity,
    make_durable: Callable[[int], object],
    codec: str | None = None,
) -> SnapshotInfo:
    """Write a state image to `snapshot-<LSN>`; on stable storage on return, replacing an older one at this LSN.

    `identity` is the log, and the epoch in which the record at the image's LSN was written. `make_durable(lsn)` puts
    the log on stable storage up to there: a snapshot under its name is a promise that the log reached it. One snapshot
    is written at a time.

    A stage that fails is a SnapshotError with `stage`, `retry`, `retry_stage` and the cause chained; a failed image of
    the machine itself (ValueError) comes as it is. Before stage "rename" older snapshots are as they were; the file
    that was started is removed if the storage allows. To do a failed stage alone again, use `SnapshotWrite`.
    """
    write = SnapshotWrite(storage, image, identity=identity, make_durable=make_durable, codec=codec)
    try:
        return write.finish()
    except BaseException:
        write.discard()
        raise


class SnapshotWrite:
    """The writing of one snapshot, which can be continued at the stage that failed. One thread at a time.

    For the parameters see `write_snapshot`. While a failed one is kept, no other snapshot may be started.
    """

    def __init__(
        self,
        storage: Storage,
        image: StateImage,
        *,
        identity: FrameIdentity,
        make_durable: Callable[[int], object],
        codec: str | None = None,
    ) -> None:
        self.lsn = image.lsn
        self.stage: str | None = "write"
        """The next stage of `finish`; None once all are done."""
        self._storage, self._image, self._identity, self._codec = storage, image, identity, codec
        self._make_durable = make_durable
        self._info: SnapshotInfo | None = None
        self._renaming = False
        self._failed: BaseException | None = None
        """Why the file could not be written: the batches taken from the image are gone."""

    def finish(self) -> SnapshotInfo:
        """Do the stages that are left. On stable storage on return.

        Called again after a SnapshotError it continues with that stage alone: "log", "rename", "sync_directory". What
        failed in "write" or "sync" it raises once more: that takes a new image, and a new file.
        """
        if self._failed is not None:
            raise self._failed
        if self._info is None:
            try:
                self._info = self._write()
            except BaseException as error:
                self._failed = error
                self.discard()
                raise
            self.stage = "log"
        info = self._info
        if self.stage == "log":
            with _stage("log"):
                self._make_durable(self.lsn)
            self.stage = "rename"
        if self.stage == "rename":
            with _stage("rename"):
                self._rename(info)
            self.stage = "sync_directory"
        if self.stage == "sync_directory":
            with _stage("sync_directory"):
                self._storage.sync_directory()
            self.stage = None
        return info

    def discard(self) -> None:
        """Remove the file that has no name yet, if the storage lets it; `finish` may not be called afterwards."""
        if self.stage in ("write", "log"):
            with suppress(StorageError):
                self._storage.remove(NEW_NAME)

    def _write(self) -> SnapshotInfo:
        image = self._image
        with _stage("write"):
            remove_if_there(self._storage, NEW_NAME)
            file = self._storage.open(NEW_NAME, "create")
        try:
            measured = Measured(file)
            with _stage("write"):
                info = write_frames(
                    measured, image.batches, image.lsn, image.snapshot_format, self._identity, self._codec
                )
            if measured.full is not None:
                size = info.size_bytes
                raise SnapshotError(
                    f"the snapshot needs {size:,} bytes, which the storage does not have ({measured.full}). "
                    f"To retry: {STAGES['write']}",
                    stage="write",
                    retry=STAGES["write"],
                    retry_stage=RETRY_STAGES["write"],
                    needed_bytes=size,
                ) from measured.full
            with _stage("sync"):
                file.sync()
        finally:
            file.close()
        return info

    def _rename(self, info: SnapshotInfo) -> None:
        again, self._renaming = self._renaming, True
        if again and NEW_NAME not in self._storage.names():  # the failed attempt had renamed it
            verify_snapshot(self._storage, info.lsn, identity=self._identity)
        else:
            self._storage.replace(NEW_NAME, info.name)


@contextmanager
def _stage(name: str) -> Iterator[None]:
    try:
        yield
    except WalkitError as error:
        raise SnapshotError(
            f"the snapshot failed at stage {name!r} ({error}). To retry: {STAGES[name]}",
            stage=name,
            retry=STAGES[name],
            retry_stage=RETRY_STAGES[name],
        ) from error


def refuse_other_machines(storage: Storage, machine: StateMachine) -> None:
    """Refuse a snapshot beside those of another kind of machine: SnapshotError (stage "format").

    The log would be trimmed below the records they need, and older ones removed. Reads headers only; one that cannot be
    read says nothing.
    """
    for lsn in snapshot_lsns(storage):
        try:
            file = storage.open(snapshot_name(lsn), "read")
            try:
                found = read_header(file).snapshot_format
            finally:
                file.close()
        except (CorruptionError, FormatVersionError, StorageError):
            continue
        if found != machine.snapshot_format:
            raise SnapshotError(
                f"the log at {storage.location} has snapshots of a {found!r} (LSN {lsn:,}), and this machine writes "
                f"{machine.snapshot_format!r}: one log has the snapshots of one machine. Nothing was written",
                stage="format",
                retry="keep this machine beside another log, or remove the other's snapshots first",
            )


def read_snapshot(
    storage: ReadableFiles, lsn: int, machine: StateMachine, *, identity: FrameIdentity | None = None
) -> SnapshotInfo:
    """Verify the whole snapshot at this LSN, then restore `machine` from it. Reads the file twice, frame by frame.

    Raises the errors of `verify_snapshot`, and SnapshotError (stage "format") for a snapshot of another kind of
    machine: in all these cases the machine is as it was. Only where the file goes bad between the two readings (stage
    "restore") is the machine left undefined.
    """
    with reading_snapshot(lsn, "open"):
        file = storage.open(snapshot_name(lsn), "read")
    try:
        info = verify_open_snapshot(file, lsn, identity)
        if info.snapshot_format != machine.snapshot_format:
            raise SnapshotError(
                f"the snapshot {info.name} is a {info.snapshot_format!r}, and the machine takes "
                f"{machine.snapshot_format!r}",
                stage="format",
                retry="restore it into such a machine",
            )
        with reading_snapshot(lsn, "restore"):
            machine.restore(map(_batch, read_frames(file, info)), info.lsn)
        return info
    finally:
        file.close()


def snapshot_batches(
    storage: ReadableFiles, lsn: int, identity: FrameIdentity | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the snapshot at this LSN as batches of `walkit.RECORD_SCHEMA`, in order of keys.

    With `identity` it has to be of that log and epoch. Each frame is verified before it is given out, the whole only at
    the end: `verify_snapshot` does that beforehand.
    """
    with reading_snapshot(lsn, "open"):
        file = storage.open(snapshot_name(lsn), "read")
    try:
        with reading_snapshot(lsn, "header"):
            info = read_header(file)
        if identity is not None and identity != info.identity:
            refuse_snapshot(info, identity)
        with reading_snapshot(lsn, "verify"):
            yield from read_frames(file, info)
    finally:
        file.close()


def _batch(rows: pa.RecordBatch) -> Batch:
    """Return the rows as Python columns; their LSNs do not grow, so that they never are a range."""
    stamps = rows.column("timestamp")
    return Batch(
        rows.column("lsn").to_pylist(),
        rows.column("kind").to_pylist(),
        rows.column("key").to_pylist(),
        rows.column("value").to_pylist(),
        None if stamps.null_count == len(stamps) else stamps.cast(pa.int64()).to_pylist(),
    )
