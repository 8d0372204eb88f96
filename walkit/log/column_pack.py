"""Lists of buffers and Arrow columns, made into packed columns part by part, without a call for each record.

Nothing here is a view on what the caller gave: the bytes are copied once, so that a caller (or the owner of the memory
under an Arrow array) may change them afterwards, and what was checksummed is what is written and shown to observers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from walkit._internal.arrow import mask_of, pa, pc, validated
from walkit.errors import OptionsError, RecordTypeError
from walkit.format.packed import PackedBytes
from walkit.log.validate import as_bytes

Items: TypeAlias = "list[bytes | None] | pa.Array | pa.ChunkedArray"
"""Keys or values that `checked` let through: exact bytes and None, or Arrow binary with 32- or 64-bit offsets."""
Int64s: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

PART_BYTES = 8 << 20
"""About so many bytes are packed at a time: a list of any size costs this much memory beside itself."""
SAMPLE = 32
JOINED_ITEMS_MAX = 512
"""Up to so many items `b"".join` is the faster way, and needs no pyarrow; `pa.array` is twice as fast for many."""


def checked(items: Any, what: str, limit_bytes: int | None = None) -> Items:
    """Return the items in a shape that can be packed; RecordTypeError where one of them is not bytes.

    Arrow text is refused as `str` is: cast it to binary. Dictionaries are decoded.
    """
    if not isinstance(items, list) and isinstance(items, pa.Array | pa.ChunkedArray):
        return _checked_arrow(items, what)
    if isinstance(items, str | bytes | bytearray | memoryview | set | frozenset | Mapping) or not isinstance(
        items, Iterable
    ):
        raise RecordTypeError(
            f"list of {what}s", items, "a list or another sequence of bytes, or an Arrow array"
        )
    plain: list[Any] = items if isinstance(items, list) else list(items)
    # Exact bytes only: a subclass may say another length than it has.
    if list(map(type, plain)).count(bytes) == len(plain):
        return plain
    return [None if item is None else as_bytes(item, what, limit_bytes) for item in plain]


def _checked_arrow(items: pa.Array | pa.ChunkedArray, what: str) -> pa.Array | pa.ChunkedArray:
    with arrow_errors(what):
        items = validated(items)
        if pa.types.is_dictionary(items.type):
            items = items.cast(items.type.value_type)
        types, kind = pa.types, items.type
        if types.is_fixed_size_binary(kind) or types.is_binary_view(kind) or types.is_null(kind):
            return items.cast(pa.large_binary())
    if not (types.is_binary(kind) or types.is_large_binary(kind)):
        raise RecordTypeError(what, items)
    return items


@contextmanager
def arrow_errors(what: str) -> Iterator[None]:
    """Turn each error of pyarrow about the caller's data into an OptionsError."""
    try:
        yield
    except pa.ArrowMemoryError:
        raise
    except pa.ArrowException as error:
        raise OptionsError(
            f"the {what} is not valid Arrow data: {error}. Nothing was written", option=what
        ) from error


def part_rows(items: Items) -> int:
    """Return how many records to pack at a time: all of one Arrow array, which is packed already."""
    count = len(items)
    if not count:
        return 1
    if isinstance(items, list):
        sample = items[:: max(count // SAMPLE, 1)]
        mean = sum(len(item) for item in sample if item is not None) / len(sample)
    elif isinstance(items, pa.Array) or items.num_chunks == 1:
        return count
    else:
        mean = items.nbytes / count
    return max(1, int(PART_BYTES / (mean + 1)))


def lengths_of(items: Items) -> Int64s:
    """Return the bytes of each item, 0 for an absent one."""
    if isinstance(items, list):
        try:
            return np.fromiter(map(len, items), np.int64, len(items))
        except TypeError:
            return np.fromiter((0 if item is None else len(item) for item in items), np.int64, len(items))
    lengths = pc.binary_length(items).fill_null(0)
    return np.asarray(lengths.to_numpy(), np.int64)


class Packed(NamedTuple):
    """One part of the keys or values, packed."""

    lengths: Int64s
    present: Mask | None
    """None where no item is absent."""
    starts: Int64s
    """Where each item begins in `data`, and the end."""
    data: memoryview
    owned: bool
    """Whether the bytes are shared with no other object, so that they need no copy."""

    def size_bytes(self, first: int, end: int) -> int:
        """Return the bytes of the items [first, end)."""
        return int(self.starts[end]) - int(self.starts[first])

    def cut(self, first: int, end: int) -> PackedBytes:
        """Return the items [first, end), whose bytes no other object can change."""
        part = self.data[int(self.starts[first]) : int(self.starts[end])]
        return PackedBytes(self.lengths[first:end], (part if self.owned else part.tobytes(),))


def packed(items: Items) -> Packed:
    """Pack one part of checked items."""
    if isinstance(items, list) and len(items) <= JOINED_ITEMS_MAX and None not in items:
        return _joined(items)
    column = pa.array(items, pa.large_binary()) if isinstance(items, list) else _one_array(items)
    present: Mask | None = None
    if column.null_count:
        present = mask_of(column)
        # Arrow allows bytes under a null; they are no part of any record.
        column = column if isinstance(items, list) else column.fill_null(b"")
    count = len(column)
    _, offsets, data = column.buffers()
    width: type[Any] = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    if count:
        starts = np.frombuffer(offsets, width, count + 1, column.offset * np.dtype(width).itemsize)
    else:
        starts = np.zeros(1, width)
    starts = starts.astype(np.int64, copy=False)
    lengths = np.diff(starts)
    view = memoryview(b"" if data is None else data).cast("B")
    return Packed(lengths, present, starts, view, owned=isinstance(items, list))


def _joined(items: list[Any]) -> Packed:
    lengths = lengths_of(items)
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return Packed(lengths, None, starts, memoryview(b"".join(items)), owned=True)


def _one_array(items: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(items, pa.Array):
        return items
    if items.num_chunks == 1:
        return items.chunk(0)
    # 64-bit offsets, because the chunks together may be larger than one of them could be.
    chunks: Sequence[pa.Array] = [chunk.cast(pa.large_binary()) for chunk in items.chunks if len(chunk)]
    return pa.concat_arrays(chunks) if chunks else pa.nulls(0, pa.large_binary())
