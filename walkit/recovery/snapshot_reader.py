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

The header is written last and has the end of the last frame and its checksum: it is the commit record.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walkit._internal.arguments import NUMBER_MAX
from walkit._internal.report import report_html
from walkit.errors import CorruptionError
from walkit.format.body import to_arrow
from walkit.format.checksum import crc32c
from walkit.format.file_names import snapshot_name
from walkit.format.frame import FrameIdentity, decode_frame
from walkit.format.layout import (
    ALIGNMENT_BUFFERED,
    FORMAT_VERSION,
    FRAME_BYTES_LIMIT,
    FRAME_HEADER_BYTES,
    POSITION_MAX,
)
from walkit.format.segment import SegmentHeader, refuse_newer
from walkit.segments.frame_walk import FrameWalk
from walkit.storage.interface import StorageFile

MAGIC: Final = b"WALKITSN"
HEADER: Final = struct.Struct("<8sHHIII")
HEADER_BYTES: Final = 4096

_CRC_OFFSET = HEADER_BYTES - 4
_IDS = ("log_id", "epoch", "epoch_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotInfo:
    """The facts in a snapshot's header. Positions and sizes are bytes."""

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
        """Return the header of file `name`; CorruptionError or FormatVersionError if it cannot be read."""
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
    """Return the facts, each of its type and within its limits; TypeError or ValueError if one is not."""
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
    """Return the error for a snapshot whose bytes differ from the written ones."""
    return CorruptionError(
        f"the snapshot {name} {what}: expected {expected}, found {found}",
        segment=name,
        position=position,
        expected=expected,
        found=found,
    )


def read_header(file: StorageFile, name: str | None = None) -> SnapshotInfo:
    """Return a snapshot's header, once the file has the size in it. Reads no frame.

    `name` is the name that the snapshot is to have, if its file has another one now.
    """
    info = SnapshotInfo.decode(file.read(0, HEADER_BYTES), name or file.name)
    size = file.size()
    if size != info.size_bytes:
        raise damaged(file.name, "has another size than its header says", info.size_bytes, size)
    return info


def read_frames(file: StorageFile, info: SnapshotInfo) -> Iterator[pa.RecordBatch]:
    """Yield the records as batches of `walkit.RECORD_SCHEMA` with their own LSNs, verified, frame by frame.

    CorruptionError if a frame is not intact, and after the last one if the whole contradicts the header.
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
        raise damaged(info.name, "contradicts its header (frames, records, chain)", expected, found)


def _with_lsns(rows: pa.RecordBatch, info: SnapshotInfo, position: int) -> pa.RecordBatch:
    """Take the column of LSNs off the end of a frame's records, and replace their numbers by it."""
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
