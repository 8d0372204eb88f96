"""The body of a frame: records as columns (FORMAT.md F-5).

Encoding is one `b"".join` and one pass for the lengths; decoding gives numpy views on the body, and from them Arrow
columns whose data is the body itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from walkit.errors import CorruptionError
from walkit.format.layout import (
    HAS_KEY,
    HAS_TIMESTAMP,
    HAS_VALUE,
    JOINED,
    KIND_MASK,
    FrameFlag,
)
from walkit.record import RECORD_SCHEMA

U8: TypeAlias = npt.NDArray[np.uint8]
U32: TypeAlias = npt.NDArray[np.uint32]
I64: TypeAlias = npt.NDArray[np.int64]

_KINDS_VALID = np.zeros(256, bool)
for _kind in (1, 2, 3, 4):
    for _bits in range(16):
        _KINDS_VALID[_kind | _bits << 4] = True

COLUMN_BYTES_PER_RECORD = 1 + 4 + 4 + 8 + 4
"""Upper bound of what one record adds to the body besides its key and value."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Records about to be encoded, one item per record in every column.

    `kinds` holds the kind byte: the kind with HAS_KEY, HAS_VALUE, HAS_TIMESTAMP and JOINED; one int stands for all.
    Absent keys, values and timestamps are b"" and 0. A None column is absent for every record. `lsn_offsets` (offsets
    from the frame's first LSN) is given for sparse frames only.
    """

    count: int
    kinds: int | Sequence[int]
    keys: Sequence[bytes] | None
    values: Sequence[bytes] | None
    timestamps: Sequence[int] | None = None
    lsn_offsets: Sequence[int] | None = None


def _lengths(items: Sequence[bytes] | None, count: int) -> tuple[bytes, bool, bytes]:
    """Return (length column, is uniform, joined bytes)."""
    if items is None:
        return b"\0\0\0\0", True, b""
    lengths = list(map(len, items))
    joined = b"".join(items)
    if sum(lengths) != len(joined) or len(lengths) != count:
        raise ValueError("the lengths of keys or values do not add up to their bytes; give plain bytes")
    if lengths.count(lengths[0]) == count:
        return lengths[0].to_bytes(4, "little"), True, joined
    return np.array(lengths, "<u4").tobytes(), False, joined


def encode_body(columns: Columns) -> tuple[int, list[bytes]]:
    """Return (frame flags, buffers of the body in order). The number of records is at least one."""
    count = columns.count
    flags = 0
    key_lengths, uniform, key_bytes = _lengths(columns.keys, count)
    if uniform:
        flags |= FrameFlag.UNIFORM_KEY_LENGTHS.value
    value_lengths, uniform, value_bytes = _lengths(columns.values, count)
    if uniform:
        flags |= FrameFlag.UNIFORM_VALUE_LENGTHS.value
    buffers = [key_lengths, value_lengths]
    if columns.timestamps is not None:
        flags |= FrameFlag.TIMESTAMPS.value
        stamps = np.array(columns.timestamps, "<i8")
        if (stamps == stamps[0]).all():
            flags |= FrameFlag.UNIFORM_TIMESTAMPS.value
            stamps = stamps[:1]
        buffers.append(stamps.tobytes())
    if columns.lsn_offsets is not None:
        flags |= FrameFlag.SPARSE.value
        buffers.append(np.array(columns.lsn_offsets, "<u4").tobytes())
    kinds = columns.kinds
    if not isinstance(kinds, int):
        packed = bytes(kinds)
        kinds = packed[0] if packed.count(packed[0]) == count else -1
        if kinds < 0:
            buffers.append(packed)
    if kinds >= 0:
        flags |= FrameFlag.UNIFORM_KINDS.value
        buffers.append(kinds.to_bytes(1, "little"))
    buffers.append(key_bytes)
    buffers.append(value_bytes)
    return flags, buffers


@dataclass(frozen=True, slots=True)
class DecodedColumns:
    """The columns of one frame, as views on its body. Uniform columns are expanded, without their bytes."""

    count: int
    kinds: U8
    key_lengths: U32
    value_lengths: U32
    timestamps: I64 | None
    lsn_offsets: U32 | None
    key_bytes: memoryview
    value_bytes: memoryview


def _malformed(what: str, expected: object, found: object) -> CorruptionError:
    return CorruptionError(
        f"a frame with a right checksum has a malformed body: {what} (expected {expected}, found {found})",
        expected=expected,
        found=found,
    )


class _Cut:
    """Takes columns off the front of a body, checking each against what is left before it is made."""

    __slots__ = ("body", "count", "offset")

    def __init__(self, body: memoryview, count: int) -> None:
        self.body, self.count, self.offset = body, count, 0

    def column(self, dtype: str, uniform: bool) -> npt.NDArray[np.generic]:
        item = np.dtype(dtype).itemsize
        count = 1 if uniform else self.count
        if self.offset + count * item > len(self.body):
            raise _malformed("a column reaches beyond the body", self.offset + count * item, len(self.body))
        column = np.frombuffer(self.body, dtype, count, self.offset)
        self.offset += count * item
        return np.broadcast_to(column, (self.count,)) if uniform else column

    def bytes(self, lengths: U32) -> memoryview:
        total = int(lengths.sum(dtype=np.int64))
        if self.offset + total > len(self.body):
            raise _malformed("keys and values reach beyond the body", self.offset + total, len(self.body))
        view = self.body[self.offset : self.offset + total]
        self.offset += total
        return view


def decode_body(body: memoryview, count: int, flags: int) -> DecodedColumns:
    """Return the columns of a decompressed body; CorruptionError where they do not fill it exactly.

    Allocates nothing that grows with a length before that length has been checked against the body.
    """
    cut = _Cut(body, count)
    key_lengths = cut.column("<u4", bool(flags & FrameFlag.UNIFORM_KEY_LENGTHS.value))
    value_lengths = cut.column("<u4", bool(flags & FrameFlag.UNIFORM_VALUE_LENGTHS.value))
    stamps = None
    if flags & FrameFlag.TIMESTAMPS.value:
        stamps = cut.column("<i8", bool(flags & FrameFlag.UNIFORM_TIMESTAMPS.value))
    offsets = cut.column("<u4", False) if flags & FrameFlag.SPARSE.value else None
    kinds = cut.column("u1", bool(flags & FrameFlag.UNIFORM_KINDS.value))
    if not _KINDS_VALID[kinds].all():
        raise _malformed("a kind byte is not known", "kinds 1 to 4", sorted(set(kinds.tolist())))
    key_bytes = cut.bytes(key_lengths)  # type: ignore[arg-type]
    value_bytes = cut.bytes(value_lengths)  # type: ignore[arg-type]
    if cut.offset != len(body):
        raise _malformed("bytes are left over", cut.offset, len(body))
    return DecodedColumns(
        count, kinds, key_lengths, value_lengths, stamps, offsets, key_bytes, value_bytes  # type: ignore[arg-type]
    )


def _binary(lengths: U32, present: npt.NDArray[np.bool_], data: bytes | memoryview) -> pa.Array:
    count = len(lengths)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    absent = count - int(np.count_nonzero(present))
    if absent == count and not len(data):
        return pa.nulls(count, pa.binary())
    validity = pa.py_buffer(np.packbits(present, bitorder="little").tobytes()) if absent else None
    return pa.Array.from_buffers(
        pa.binary(), count, [validity, pa.py_buffer(offsets), pa.py_buffer(data)], null_count=absent
    )


def _joined(views: list[memoryview]) -> bytes | memoryview:
    return views[0] if len(views) == 1 else b"".join(views)


def _stacked(arrays: list[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def to_arrow(frames: Sequence[tuple[int, DecodedColumns]]) -> pa.RecordBatch:
    """Return one batch of RECORD_SCHEMA from the columns of (first LSN, columns) frames, in the order given.

    One frame becomes Arrow without a copy of its keys and values; several are joined, once.
    """
    columns = [c for _, c in frames]
    kinds = _stacked([c.kinds for c in columns])
    lsns = _stacked(
        [
            first + (np.arange(c.count, dtype=np.int64) if c.lsn_offsets is None else c.lsn_offsets.astype(np.int64))
            for first, c in frames
        ]
    )
    keys = _binary(
        _stacked([c.key_lengths for c in columns]),  # type: ignore[arg-type]
        (kinds & HAS_KEY) != 0,  # type: ignore[operator]
        _joined([c.key_bytes for c in columns]),
    )
    values = _binary(
        _stacked([c.value_lengths for c in columns]),  # type: ignore[arg-type]
        (kinds & HAS_VALUE) != 0,  # type: ignore[operator]
        _joined([c.value_bytes for c in columns]),
    )
    stamp_type = RECORD_SCHEMA.field("timestamp").type
    if all(c.timestamps is None for c in columns):
        stamps = pa.nulls(len(kinds), stamp_type)
    else:
        raw = _stacked([np.zeros(c.count, np.int64) if c.timestamps is None else c.timestamps for c in columns])
        stamps = pa.array(raw, pa.int64(), mask=(kinds & HAS_TIMESTAMP) == 0).cast(stamp_type)  # type: ignore[operator]
    kind_column = pa.array((kinds & KIND_MASK).astype(np.int8))  # type: ignore[operator]
    return pa.RecordBatch.from_arrays([pa.array(lsns), kind_column, keys, values, stamps], schema=RECORD_SCHEMA)


def joined_flags(columns: DecodedColumns) -> npt.NDArray[np.bool_]:
    """Say for each record whether it is of one transaction with the next."""
    return (columns.kinds & JOINED) != 0  # type: ignore[no-any-return]
