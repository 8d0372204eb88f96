"""The snapshot file: a header block, then the same frames as the log (walkit/format/FORMAT.md).

::

    0      8  magic "WALKITSN"
    8      2  format version
    10     2  header bytes: 4096
    12     4  critical features (unknown: refuse)
    16     4  optional features (unknown: ignore)
    20     4  length of the facts
    24     n  facts: JSON, keys sorted; the fields of `SnapshotInfo`
    24+n      zeros
    4092   4  CRC-32C of all before it
    4096      frames, from position 0 on, up to `end_position`; nothing after them

A frame holds records with keys, in ascending order within it and from frame to frame, and as its last record one
without a key, whose value is the column of their LSNs (little-endian int64). In the frames' headers the records are
numbered from 1, so that position, chain and numbers leave no room for a missing frame; log, epoch and epoch id are
those of the log's record at the snapshot's LSN. Times are 0: equal state of one log at one LSN gives equal bytes.

The header is written last and says where the last frame ends and what its checksum is: it is the commit record.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from operator import lt
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from walkit._arguments import NUMBER_MAX
from walkit.errors import CorruptionError
from walkit.format.body import Columns, to_arrow
from walkit.format.checksum import crc32c
from walkit.format.frame import FrameIdentity, decode_frame, prepare_body, seal_frame
from walkit.format.layout import (
    ALIGNMENT_BUFFERED,
    FORMAT_VERSION,
    FRAME_BYTES_LIMIT,
    FRAME_HEADER_BYTES,
    HAS_VALUE,
    POSITION_MAX,
)
from walkit.format.names import snapshot_name
from walkit.format.segment import SegmentHeader, refuse_newer
from walkit.record import Batch, Kind
from walkit.recovery.report import report_html
from walkit.segments.frame_walk import FrameWalk
from walkit.state.columns import columns_of, part_of
from walkit.storage.interface import StorageFile

MAGIC: Final = b"WALKITSN"
HEADER: Final = struct.Struct("<8sHHIII")
HEADER_BYTES: Final = 4096
FRAME_GOAL_BYTES: Final = 1 << 20
"""Keys and values that a frame takes before the next one is begun; one larger record has a frame to itself."""

_CRC_OFFSET = HEADER_BYTES - 4
_IDS = ("log_id", "epoch", "epoch_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotInfo:
    """What a snapshot's header says of it. Positions and sizes are bytes."""

    lsn: int
    """The state is that of the log with everything up to here."""
    snapshot_format: str
    log_id: int
    epoch: int
    epoch_id: int
    records: int
    frames: int
    end_position: int
    end_chain: int
    """Header checksum of the last frame. Equal for equal state of one log at one LSN."""
    frame_bytes_max: int

    @property
    def name(self) -> str:
        """The snapshot's file name."""
        return snapshot_name(self.lsn)

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return HEADER_BYTES + self.end_position

    @property
    def identity(self) -> FrameIdentity:
        """The log, and the epoch in which the record at the snapshot's LSN was written."""
        return FrameIdentity(self.log_id, self.epoch, self.epoch_id)

    def encode(self) -> bytes:
        """Return the header block."""
        facts = json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()
        head = HEADER.pack(MAGIC, FORMAT_VERSION, HEADER_BYTES, 0, 0, len(facts))
        block = (head + facts).ljust(_CRC_OFFSET, b"\0")
        if len(block) > _CRC_OFFSET:
            raise ValueError(f"the name of the snapshot format is too long: {self.snapshot_format[:40]!r}...")
        return block + crc32c(block).to_bytes(4, "little")

    @classmethod
    def decode(cls, block: bytes, name: str) -> SnapshotInfo:
        """Return what the header of file `name` says; CorruptionError or FormatVersionError where it cannot be read."""
        if len(block) != HEADER_BYTES:
            raise damaged(name, "is cut short", HEADER_BYTES, len(block))
        magic, version, header_bytes, critical, _optional, length = HEADER.unpack_from(block)
        if magic != MAGIC:
            raise damaged(name, "has the wrong magic", MAGIC, magic)
        expected, found = int.from_bytes(block[_CRC_OFFSET:], "little"), crc32c(block[:_CRC_OFFSET])
        if expected != found:
            raise damaged(name, "has a wrong checksum in its header", f"{expected:#010x}", f"{found:#010x}")
        refuse_newer(f"the snapshot {name}", version, header_bytes, HEADER_BYTES, critical)
        try:
            if length > _CRC_OFFSET - HEADER.size:
                raise ValueError(f"facts of {length:,} bytes do not fit it")
            info = cls(**_checked_facts(json.loads(block[HEADER.size : HEADER.size + length])))
        except (TypeError, ValueError, RecursionError) as error:
            raise damaged(
                name, f"has a header that cannot be understood ({error})", "format 0", "other"
            ) from error
        if info.name != name:
            raise damaged(name, "says it is another one", name, info.name)
        return info

    def _repr_html_(self) -> str:
        return report_html(
            self.name,
            [
                ("holds", self.snapshot_format),
                ("LSN", f"{self.lsn:,}"),
                ("records", f"{self.records:,}"),
                ("bytes", f"{self.size_bytes:,}"),
            ],
        )


def _checked_facts(plain: Any) -> dict[str, Any]:
    """Return the facts, each of its type and within its limits; TypeError or ValueError where one is not."""
    if not isinstance(plain, dict):
        raise TypeError(f"a {type(plain).__name__} is where the facts belong")
    for f in fields(SnapshotInfo):
        value = plain.get(f.name)
        if f.name == "snapshot_format":
            right = type(value) is str
        else:
            limit = 1 << 64 if f.name in _IDS else NUMBER_MAX + 1
            right = type(value) is int and 0 <= value < limit
        if not right:
            raise TypeError(f"{f.name} is missing, of another type, or a number over its limit")
    if plain["end_position"] % ALIGNMENT_BUFFERED or plain["end_position"] > POSITION_MAX - HEADER_BYTES:
        raise ValueError(f"frames cannot end at position {plain['end_position']:,}")
    if not FRAME_HEADER_BYTES <= plain["frame_bytes_max"] <= FRAME_BYTES_LIMIT:
        raise ValueError(f"frames cannot have up to {plain['frame_bytes_max']:,} bytes")
    return plain


def damaged(
    name: str, what: str, expected: object, found: object, position: int | None = None
) -> CorruptionError:
    """Return the error for a snapshot whose bytes are not what was written."""
    return CorruptionError(
        f"the snapshot {name} {what}: expected {expected}, found {found}",
        segment=name,
        position=position,
        expected=expected,
        found=found,
    )


# -- writing


def write_frames(
    file: StorageFile,
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


# -- reading


def read_header(file: StorageFile, name: str | None = None) -> SnapshotInfo:
    """Return what a snapshot's header says, once the file has the size it says. Reads no frame.

    `name` is the one that the snapshot is to have, where its file has another now.
    """
    info = SnapshotInfo.decode(file.read(0, HEADER_BYTES), name or file.name)
    size = file.size()
    if size != info.size_bytes:
        raise damaged(file.name, "has another size than its header says", info.size_bytes, size)
    return info


def read_frames(file: StorageFile, info: SnapshotInfo) -> Iterator[pa.RecordBatch]:
    """Yield the records as batches of `walkit.RECORD_SCHEMA` with their own LSNs, verified, frame by frame.

    CorruptionError where a frame is not intact, and after the last one where the whole is not what the header says.
    """
    header = SegmentHeader(
        log_id=info.log_id,
        epoch=info.epoch,
        epoch_id=info.epoch_id,
        number=info.lsn,
        start_position=0,
        previous_end=0,
        first_lsn=1,
        chain=0,
        alignment=ALIGNMENT_BUFFERED,
        frame_bytes_max=info.frame_bytes_max,
        created_us=0,
    )
    walk = FrameWalk(file, header, position=0, end_position=info.end_position, next_lsn=1, chain=0)
    records = 0
    last_key: Any = None
    for frame, data in walk:
        batch = _with_lsns(to_arrow([(frame.first_lsn, decode_frame(frame, data))]), info, frame.position)
        keys = batch.column("key")
        ordered = pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py()
        if ordered is False or (last_key is not None and keys[0].as_py() <= last_key):
            raise damaged(info.name, "has keys out of order", "ascending keys", "others", frame.position)
        last_key = keys[-1].as_py()
        records += len(batch)
        yield batch
    if walk.error is not None:
        raise walk.error
    if walk.fault is not None:
        what = f"is damaged at position {walk.position:,}: {walk.fault.value}"
        raise damaged(info.name, what, "an intact frame", walk.fault.name, walk.position)
    found = (walk.frames, records, walk.chain)
    expected = (info.frames, info.records, info.end_chain)
    if found != expected:
        raise damaged(
            info.name, "does not hold what its header says (frames, records, chain)", expected, found
        )


def _with_lsns(rows: pa.RecordBatch, info: SnapshotInfo, position: int) -> pa.RecordBatch:
    """Take the column of LSNs off the end of a frame's records, and put it in place of their numbers."""
    count = len(rows) - 1
    column = b"" if count < 1 else rows.column("value")[count].as_py() or b""
    keys = rows.column("key").slice(0, max(count, 0))
    if count < 1 or keys.null_count or rows.column("key")[count].is_valid or len(column) != 8 * count:
        raise damaged(info.name, "has a frame without its LSNs", 8 * count, len(column), position)
    numbers = np.frombuffer(column, "<i8")
    if int(numbers.min()) < 0 or int(numbers.max()) > info.lsn:
        found = (int(numbers.min()), int(numbers.max()))
        raise damaged(info.name, "has LSNs that are not its own", f"0 to {info.lsn}", found, position)
    lsns = pa.array(numbers)
    return rows.slice(0, count).set_column(0, rows.schema.field("lsn"), lsns)
