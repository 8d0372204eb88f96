"""Writing the snapshot file; `walkit.recovery.snapshot_reader` has its layout, and reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import lt
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from walkit.errors import StorageError
from walkit.format.body import Columns
from walkit.format.frame import FrameIdentity, prepare_body, seal_frame
from walkit.format.layout import ALIGNMENT_BUFFERED, FRAME_HEADER_BYTES, HAS_VALUE
from walkit.record import Batch, Kind
from walkit.recovery.snapshot_reader import HEADER, HEADER_BYTES, SnapshotInfo
from walkit.state.columns import columns_of, part_of
from walkit.storage.interface import Buffer, StorageFile
from walkit.storage.io_errors import BACK_PRESSURE

__all__ = ["FRAME_GOAL_BYTES", "HEADER", "HEADER_BYTES", "write_frames"]

FRAME_GOAL_BYTES: Final = 1 << 20
"""Keys and values that a frame takes before the next one is begun; one larger record has a frame to itself."""


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
    """Write the frames, then the header, to an empty file; nothing is durable yet. Returns what the header says.

    ValueError where the batches are not what `StateMachine.snapshot` promises.
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
