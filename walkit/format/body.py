"""The body of a frame: records as columns (FORMAT.md F-5).

Encoding is one `b"".join` and one pass for the lengths; decoding gives views on the body, and from them Arrow columns
whose data is the body itself. A uniform column stays one int until many frames become one Arrow batch, so that a frame
of one record costs no numpy call of its own.

A packed column is byte strings that never become objects: their lengths, and their bytes one after the other. An Arrow
binary array is the same already, so a column that comes from Arrow goes into a frame with one copy.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from walkit._internal.arrow import array_of_numbers, pa
from walkit.errors import CorruptionError
from walkit.format.layout import HAS_KEY, HAS_TIMESTAMP, HAS_VALUE, JOINED, KIND_MASK, FrameFlag
from walkit.record import STAMP_MAX, STAMP_MIN, Buffer, Kind, record_schema

Lengths: TypeAlias = npt.NDArray[np.uint32]

LENGTH_DTYPE: Final = np.dtype("<u4")


class PackedBytes:
    """Byte strings as `lengths` (one per item) and `parts`, whose bytes joined are those of all items in their order.

    Immutable. Iterating makes an object per value.
    """

    __slots__ = ("lengths", "parts")

    def __init__(self, lengths: npt.NDArray[Any], parts: Sequence[Buffer]) -> None:
        self.lengths: Lengths = lengths.astype(LENGTH_DTYPE, copy=False)
        self.parts = tuple(parts)

    @classmethod
    def empties(cls, count: int) -> PackedBytes:
        """Return `count` empty items."""
        return cls(np.zeros(count, LENGTH_DTYPE), ())

    @classmethod
    def joined(cls, columns: Sequence[PackedBytes]) -> PackedBytes:
        """Return the items of all columns, one column after the other; no bytes are copied."""
        parts = [part for column in columns for part in column.parts]
        return cls(np.concatenate([column.lengths for column in columns]), parts)

    @property
    def size_bytes(self) -> int:
        """Bytes of all items."""
        return sum(map(len, self.parts))

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[bytes]:
        only = self.parts[0] if len(self.parts) == 1 else None
        data = only if isinstance(only, bytes) else b"".join(self.parts)
        start = 0
        for end in np.cumsum(self.lengths, dtype=np.int64).tolist():
            yield data[start:end]
            start = end


Numbers: TypeAlias = npt.NDArray[Any]
Column: TypeAlias = "int | Numbers"
"""One number per record; an int means the same number in every record."""

COLUMN_BYTES_PER_RECORD = 1 + 4 + 4 + 8 + 4
"""Upper bound of the bytes that one record adds to the body besides its key and value."""

# Enum members cost a look-up through a descriptor, and these are used for every frame.
UNIFORM_KINDS: Final = FrameFlag.UNIFORM_KINDS.value
UNIFORM_KEY_LENGTHS: Final = FrameFlag.UNIFORM_KEY_LENGTHS.value
UNIFORM_VALUE_LENGTHS: Final = FrameFlag.UNIFORM_VALUE_LENGTHS.value
TIMESTAMPS: Final = FrameFlag.TIMESTAMPS.value
UNIFORM_TIMESTAMPS: Final = FrameFlag.UNIFORM_TIMESTAMPS.value
SPARSE: Final = FrameFlag.SPARSE.value

_LENGTH: Final = (struct.Struct("<I"), np.dtype("<u4"))
_STAMP: Final = (struct.Struct("<q"), np.dtype("<i8"))
_KIND: Final = (struct.Struct("<B"), np.dtype("u1"))
_NO_LENGTH: Final = bytes(4)

KIND_BYTES: Final = bytes(int(kind) | bits << 4 for bits in range(16) for kind in Kind)
"""Every legal kind byte."""
KIND_BYTES_TIMELESS: Final = bytes(kind for kind in KIND_BYTES if not kind & HAS_TIMESTAMP)
"""Every kind byte that is legal in a frame without a timestamp column."""
_ONE_KIND: Final = {kind: bytes((kind,)) for kind in KIND_BYTES if not kind & JOINED}
ONE_KIND_TIMELESS: Final = {kind: bytes((kind,)) for kind in KIND_BYTES_TIMELESS if not kind & JOINED}
"""The kind column, by the kind byte that all records of a frame without timestamps share."""

ONE_RECORD: Final = struct.Struct("<IIB")
"""The columns of one record without timestamp, or of any number that have them in common: lengths of key and value,
kind."""
ONE_RECORD_BYTES: Final = ONE_RECORD.size
ONE_RECORD_FLAGS: Final = UNIFORM_KEY_LENGTHS | UNIFORM_VALUE_LENGTHS | UNIFORM_KINDS


@dataclass(slots=True, eq=False)
class Columns:
    """Records about to be encoded, one item per record in every column. Immutable.

    `kinds` holds the kind byte: the kind with HAS_KEY, HAS_VALUE, HAS_TIMESTAMP and JOINED; one int means all.
    Keys and values are exact `bytes`, as objects or packed. Absent keys, values and timestamps are b"" and 0. A None
    column is absent for every record. `lsn_offsets` (offsets from the frame's first LSN, growing) is given for sparse
    frames only.
    """

    count: int
    kinds: int | Sequence[int]
    keys: Sequence[bytes] | PackedBytes | None
    values: Sequence[bytes] | PackedBytes | None
    timestamps: Sequence[int] | None = None
    lsn_offsets: Sequence[int] | None = None


def one_record(kind: int, key: bytes, value: bytes, timestamp: int) -> Columns:
    """Return the columns of one record; `kind` is the kind byte."""
    return Columns(
        1,
        kind,
        (key,) if kind & HAS_KEY else None,
        (value,) if kind & HAS_VALUE else None,
        (timestamp,) if kind & HAS_TIMESTAMP else None,
    )


def _lengths(
    items: Sequence[bytes] | PackedBytes | None, count: int, uniform: int
) -> tuple[int, bytes, Sequence[Buffer]]:
    """Return (`uniform` if all lengths are equal, else 0; the length column; buffers of the bytes)."""
    if items is None:
        return uniform, _NO_LENGTH, ()
    if isinstance(items, PackedBytes):
        return _packed_lengths(items, count, uniform)
    lengths = list(map(len, items))
    joined = b"".join(items)
    if sum(lengths) != len(joined) or len(lengths) != count:
        raise ValueError("the lengths of keys or values do not add up to their bytes; give plain bytes")
    if lengths.count(lengths[0]) == count:
        return uniform, lengths[0].to_bytes(4, "little"), (joined,)
    return 0, np.array(lengths, "<u4").tobytes(), (joined,)


def _packed_lengths(items: PackedBytes, count: int, uniform: int) -> tuple[int, bytes, Sequence[Buffer]]:
    lengths = items.lengths
    if int(lengths.sum(dtype=np.int64)) != items.size_bytes or len(lengths) != count:
        raise ValueError("the lengths of packed keys or values do not add up to their bytes")
    column = lengths.tobytes()
    if column == column[:4] * count:
        return uniform, column[:4], items.parts
    return 0, column, items.parts


def _stamps(stamps: Sequence[int], count: int) -> tuple[int, bytes]:
    _require(len(stamps), count)
    if isinstance(stamps, array):
        packed = np.asarray(stamps, "<i8").tobytes()
        same = packed == packed[:8] * count
        return (TIMESTAMPS | UNIFORM_TIMESTAMPS, packed[:8]) if same else (TIMESTAMPS, packed)
    if stamps.count(stamps[0]) == count:
        return TIMESTAMPS | UNIFORM_TIMESTAMPS, stamps[0].to_bytes(8, "little", signed=True)
    return TIMESTAMPS, np.array(stamps, "<i8").tobytes()


def _offsets(offsets: Sequence[int], count: int) -> bytes:
    _require(len(offsets), count)
    packed = np.array(offsets, "<u4")
    if not (packed[1:] > packed[:-1]).all():
        raise ValueError("the LSN offsets of a sparse frame do not grow")
    return packed.tobytes()


def _kinds(kinds: int | Sequence[int], count: int, timed: bool) -> tuple[int, bytes]:
    if isinstance(kinds, int):
        one = (_ONE_KIND if timed else ONE_KIND_TIMELESS).get(kinds)
        if one is not None:
            return UNIFORM_KINDS, one
        kinds = (kinds,) * count
    packed = bytes(kinds)
    _require(len(packed), count)
    if packed.translate(None, KIND_BYTES if timed else KIND_BYTES_TIMELESS) or packed[-1] & JOINED:
        raise ValueError(
            "a kind byte is not known, has a timestamp without a column, or joins no next record"
        )
    return (UNIFORM_KINDS, packed[:1]) if packed.count(packed[0]) == count else (0, packed)


def _require(items: int, count: int) -> None:
    if items != count:
        raise ValueError(f"a column has {items:,} items for {count:,} records")


def encode_puts(kind: int, keys: Sequence[bytes], values: Sequence[bytes]) -> tuple[int, list[Buffer]]:
    """As `encode_body` for values of one kind byte, with as many keys or none, and no timestamps.

    Most frames of several callers are so. It is less code than the way through `Columns`, and none of it is in the
    processor's caches right after a blocking write.
    """
    one_kind = ONE_KIND_TIMELESS.get(kind)
    if one_kind is None:
        return encode_body(Columns(len(values), kind, keys or None, values))
    flags, value_lengths, value_bytes = _lengths(values, len(values), UNIFORM_VALUE_LENGTHS)
    if not keys:
        return flags | UNIFORM_KEY_LENGTHS | UNIFORM_KINDS, [
            _NO_LENGTH,
            value_lengths,
            one_kind,
            *value_bytes,
        ]
    flag, key_lengths, key_bytes = _lengths(keys, len(values), UNIFORM_KEY_LENGTHS)
    return flags | flag | UNIFORM_KINDS, [key_lengths, value_lengths, one_kind, *key_bytes, *value_bytes]


def encode_body(columns: Columns) -> tuple[int, list[Buffer]]:
    """Return (frame flags, buffers of the body in order). A frame without records has no body.

    ValueError or OverflowError if the columns contradict each other or do not fit the format.
    """
    count = columns.count
    stamps, offsets = columns.timestamps, columns.lsn_offsets
    if not count:
        return 0 if offsets is None else SPARSE, []
    flags, key_lengths, key_bytes = _lengths(columns.keys, count, UNIFORM_KEY_LENGTHS)
    flag, value_lengths, value_bytes = _lengths(columns.values, count, UNIFORM_VALUE_LENGTHS)
    flags |= flag
    buffers: list[Buffer] = [key_lengths, value_lengths]
    if stamps is not None:
        flag, packed = _stamps(stamps, count)
        flags |= flag
        buffers.append(packed)
    if offsets is not None:
        flags |= SPARSE
        buffers.append(_offsets(offsets, count))
    flag, packed = _kinds(columns.kinds, count, stamps is not None)
    buffers += (packed, *key_bytes, *value_bytes)
    return flags | flag, buffers


@dataclass(slots=True, eq=False)
class DecodedColumns:
    """The columns of one frame, as views on its body; a uniform column is one int. Immutable.

    `key_bytes` and `value_bytes` are those of all records, one after the other. `timestamps` are microseconds since
    1970, `lsn_offsets` count from the frame's first LSN; None if the frame has no such column.
    """

    count: int
    kinds: Column
    key_lengths: Column
    value_lengths: Column
    timestamps: Column | None
    lsn_offsets: Numbers | None
    key_bytes: memoryview
    value_bytes: memoryview


def _malformed(what: str, expected: object, found: object) -> CorruptionError:
    return CorruptionError(
        f"a frame with a right checksum has a malformed body: {what} (expected {expected}, found {found})",
        expected=expected,
        found=found,
    )


def _cut_column(
    body: memoryview, offset: int, count: int, kind: tuple[struct.Struct, np.dtype[Any]], uniform: int
) -> tuple[Column, int]:
    """Take a column off the body at `offset`: return (column, offset after it)."""
    one, dtype = kind
    end = offset + (one.size if uniform else one.size * count)
    if end > len(body):
        raise _malformed("a column reaches beyond the body", end, len(body))
    if uniform:
        number: int = one.unpack_from(body, offset)[0]
        return number, end
    return np.frombuffer(body, dtype, count, offset), end


def _total(lengths: Column, count: int) -> int:
    return lengths * count if isinstance(lengths, int) else int(lengths.sum(dtype=np.int64))


def decode_body(
    body: memoryview, count: int, flags: int, span: int | None = None, *, strict: bool = True
) -> DecodedColumns:
    """Return the columns of a decompressed body of one record or more that cover `span` LSNs (as many, if None).

    CorruptionError if they do not fill the body exactly or are not valid records. Allocates nothing that grows
    with a length before that length has been checked against the body. Without `strict` only the lengths have to fit:
    kinds, timestamps and LSN offsets are as they are.
    """
    key_lengths, at = _cut_column(body, 0, count, _LENGTH, flags & UNIFORM_KEY_LENGTHS)
    value_lengths, at = _cut_column(body, at, count, _LENGTH, flags & UNIFORM_VALUE_LENGTHS)
    stamps: Column | None = None
    offsets: Numbers | None = None
    if flags & TIMESTAMPS:
        stamps, at = _cut_column(body, at, count, _STAMP, flags & UNIFORM_TIMESTAMPS)
        first, last = (stamps, stamps) if isinstance(stamps, int) else (int(stamps.min()), int(stamps.max()))
        if strict and not STAMP_MIN <= first <= last <= STAMP_MAX:
            raise _malformed("a timestamp is in no calendar", "the years 1 to 9999", (first, last))
    if flags & SPARSE:
        column, at = _cut_column(body, at, count, _LENGTH, 0)
        assert not isinstance(column, int)
        offsets = _growing(column, count if span is None else span) if strict else column
    kinds_at = at
    kinds, at = _cut_column(body, at, count, _KIND, flags & UNIFORM_KINDS)
    legal = KIND_BYTES_TIMELESS if stamps is None else KIND_BYTES
    unknown = body[kinds_at:at].tobytes().translate(None, legal)
    if unknown and strict:
        known = "kinds 1 to 4, with a timestamp only if that column exists"
        raise _malformed("a kind byte is not known", known, sorted(set(unknown)))
    if strict and body[at - 1] & JOINED:
        raise _malformed("its last record is joined to a next one", "a transaction that ends", "none")
    values_at = at + _total(key_lengths, count)
    end = values_at + _total(value_lengths, count)
    if end != len(body):
        what = "keys and values reach beyond the body" if end > len(body) else "bytes are left over"
        raise _malformed(what, end, len(body))
    return DecodedColumns(
        count, kinds, key_lengths, value_lengths, stamps, offsets, body[at:values_at], body[values_at:]
    )


def _growing(offsets: Numbers, span: int) -> Numbers:
    if int(offsets[-1]) >= span or not (offsets[1:] > offsets[:-1]).all():
        raise _malformed("its LSN offsets do not grow within its span", f"below {span}", int(offsets[-1]))
    return offsets


def _binary(lengths: Column, present: npt.NDArray[np.bool_], views: list[memoryview]) -> pa.Array:
    count = len(present)
    absent = count - int(np.count_nonzero(present))
    size = sum(map(len, views))
    if size >= 1 << 31:
        raise ValueError(f"{size:,} bytes do not fit one Arrow batch; give fewer frames")
    if absent == count and not size:
        return pa.nulls(count, pa.binary())
    data = views[0] if len(views) == 1 else b"".join(views)
    if isinstance(lengths, int):
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(lengths)
    else:
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
    validity = pa.py_buffer(np.packbits(present, bitorder="little").tobytes()) if absent else None
    return pa.Array.from_buffers(
        pa.binary(), count, [validity, pa.py_buffer(offsets), pa.py_buffer(data)], null_count=absent
    )


class _Stack:
    """Puts the columns of several frames below each other: ints by one `repeat`, arrays by a copy each."""

    __slots__ = ("counts", "starts", "total")

    def __init__(self, counts: list[int]) -> None:
        self.counts = np.array(counts)
        ends = np.cumsum(self.counts)
        self.total = int(ends[-1])
        self.starts = ends - self.counts

    def column(self, columns: list[Column], dtype: type[np.generic]) -> Numbers:
        if len(columns) == 1 and not isinstance(columns[0], int):
            return columns[0]
        stacked = np.repeat(np.array([c if type(c) is int else 0 for c in columns], dtype), self.counts)
        for start, column in zip(self.starts.tolist(), columns, strict=True):
            if isinstance(column, np.ndarray):
                stacked[start : start + len(column)] = column
        return stacked

    def lengths(self, columns: list[Column]) -> Column:
        """Return the lengths below each other; one int if it is the same for all."""
        first = columns[0]
        if all(isinstance(c, int) and c == first for c in columns):
            return first
        return self.column(columns, np.uint32)

    def lsns(self, frames: Sequence[tuple[int, DecodedColumns]]) -> npt.NDArray[np.int64]:
        firsts = np.array([first for first, _ in frames], np.int64)
        lsns = np.repeat(firsts - self.starts, self.counts) + np.arange(self.total)
        for start, (first, c) in zip(self.starts.tolist(), frames, strict=True):
            if c.lsn_offsets is not None:
                lsns[start : start + c.count] = first + c.lsn_offsets.astype(np.int64)
        return lsns


def has_key_of(frames: Sequence[tuple[int, DecodedColumns]], keys: pa.Array) -> bool:
    """Return whether a record of these frames has one of the keys. Values are not touched."""
    import pyarrow.compute as pc  # here: who appends and reads all does without it

    columns = [c for _, c in frames]
    lengths = _Stack([c.count for c in columns]).lengths([c.key_lengths for c in columns])
    found = _binary(lengths, np.full(sum(c.count for c in columns), True), [c.key_bytes for c in columns])
    return bool(pc.any(pc.is_in(found, value_set=keys)).as_py())


def to_arrow(frames: Sequence[tuple[int, DecodedColumns]]) -> pa.RecordBatch:
    """Return one batch of RECORD_SCHEMA from the columns of (first LSN, columns) frames, in the order given.

    One frame becomes Arrow without a copy of its keys and values; several are joined, once. ValueError if their
    keys or values do not fit one Arrow batch (2 GiB).
    """
    schema = record_schema()
    if not frames:
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    columns = [c for _, c in frames]
    stack = _Stack([c.count for c in columns])
    kinds = stack.column([c.kinds for c in columns], np.uint8)
    keys = _binary(
        stack.lengths([c.key_lengths for c in columns]),
        (kinds & HAS_KEY) != 0,
        [c.key_bytes for c in columns],
    )
    values = _binary(
        stack.lengths([c.value_lengths for c in columns]),
        (kinds & HAS_VALUE) != 0,
        [c.value_bytes for c in columns],
    )
    stamp_type = schema.field("timestamp").type
    if all(c.timestamps is None for c in columns):
        stamps = pa.nulls(len(kinds), stamp_type)
    else:
        raw = stack.column([0 if c.timestamps is None else c.timestamps for c in columns], np.int64)
        stamps = array_of_numbers(raw, stamp_type, (kinds & HAS_TIMESTAMP) != 0)
    kind_column = array_of_numbers((kinds & KIND_MASK).astype(np.int8), pa.int8())
    return pa.RecordBatch.from_arrays(
        [array_of_numbers(stack.lsns(frames), pa.int64()), kind_column, keys, values, stamps], schema=schema
    )
