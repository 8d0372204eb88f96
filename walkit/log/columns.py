"""Many records in one call, as columns: checked whole before the first of them is queued, packed, cut into tickets.

The work for each record is numpy's and Arrow's. A list of bytes costs a look at each object's type, one `pa.array`
(which joins and measures in one pass, faster than `b"".join` and `map(len)` do), and one copy into the frame.

Nothing here is a view on the caller's memory: the bytes are copied once, so that a caller (or the owner of the memory
under an Arrow array) may change them afterwards, and the bytes that were checksummed are written and shown to
observers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from walkit._internal.arguments import refuse
from walkit._internal.arrow import mask_of, pa, pc, validated
from walkit.commit.ticket import SingleTicket, TicketHost
from walkit.errors import OptionsError, RecordTooLargeError, RecordTypeError
from walkit.format.body import COLUMN_BYTES_PER_RECORD, Columns, PackedBytes
from walkit.format.layout import HAS_KEY, HAS_TIMESTAMP, HAS_VALUE, RECORDS_PER_FRAME_MAX
from walkit.log.validate import Values, as_bytes
from walkit.record import STAMP_MAX, STAMP_MIN, Kind, decode_bundle, encode_bundle

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
    """Return the items in a shape that can be packed; RecordTypeError if one of them is not bytes.

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
    """None if no item is absent."""
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
        # Arrow allows bytes under a null; they belong to no record.
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


ARROW_COLUMNS = ("key", "value", "kind", "timestamp")
ARROW_KINDS = (Kind.PUT, Kind.DELETE, Kind.BUNDLE)

Kinds = npt.NDArray[np.uint8]


class Rows(NamedTuple):
    """Records as checked columns of one length."""

    values: Items
    keys: Items | None = None
    kinds: int | Kinds = int(Kind.PUT)
    """Kinds without flags; an int is that of all."""
    stamps: Int64s | None = None
    """Microseconds since 1970; 0 if absent."""
    stamped: Mask | None = None
    """Which records have a timestamp; None with `stamps` is all of them."""

    def part(self, start: int, stop: int) -> Rows:
        """Return the records [start, stop); nothing is copied."""
        return Rows(
            _sliced(self.values, start, stop),
            None if self.keys is None else _sliced(self.keys, start, stop),
            self.kinds if isinstance(self.kinds, int) else self.kinds[start:stop],
            None if self.stamps is None else self.stamps[start:stop],
            None if self.stamped is None else self.stamped[start:stop],
        )


def _sliced(items: Items, start: int, stop: int) -> Items:
    if start == 0 and stop >= len(items):
        return items
    return items[start:stop] if isinstance(items, list) else items.slice(start, stop - start)


def rows_of(values: Values, keys: Values | None, limit_bytes: int) -> Rows:
    """Return puts from values and, perhaps, keys; RecordTypeError or OptionsError if they cannot be records."""
    value_items = checked(values, "value", limit_bytes)
    if keys is None:
        return Rows(value_items)
    key_items = checked(keys, "key", limit_bytes)
    if len(key_items) != len(value_items):
        text = f"as many as the {len(value_items):,} values; nothing was written"
        refuse("keys", len(key_items), text, len(value_items))
    return Rows(value_items, key_items)


def rows_of_arrow(table: Any) -> Rows:
    """Return the records of a table or batch with the columns value, and perhaps key, kind and timestamp.

    OptionsError for other columns and for rows that are not records; RecordTypeError for columns of another type.
    """
    if not isinstance(table, pa.Table | pa.RecordBatch):
        if not hasattr(table, "__arrow_c_stream__"):
            raise RecordTypeError("batch of records", table, "an Arrow table or batch")
        with arrow_errors("batch of records"):
            table = pa.table(table)
    names = table.schema.names
    other = [name for name in names if name not in ARROW_COLUMNS]
    if other or len(set(names)) != len(names) or "value" not in names:
        text = "value and, perhaps, key, kind and timestamp, each once; the log gives LSNs itself"
        refuse("columns", names, f"{text}; nothing was written")
    rows = Rows(
        checked(table.column("value"), "value"),
        checked(table.column("key"), "key") if "key" in names else None,
        _kinds(table.column("kind")) if "kind" in names else int(Kind.PUT),
    )
    _check_kinds(rows)
    if "timestamp" in names:
        with arrow_errors("column timestamp"):
            rows = rows._replace(**_stamps(validated(table.column("timestamp"))))
    return rows


def bundle_of(batch: Any, limit_bytes: int) -> bytes:
    """Return the value of a bundle record. Measured before it is made: a batch over the limit costs no copy.

    RecordTypeError for another type than a batch; OptionsError for an invalid one, or a column that Arrow IPC lacks.
    """
    if not isinstance(batch, pa.RecordBatch):
        raise RecordTypeError("bundle", batch, "a pyarrow.RecordBatch; of a table give its batches")
    with arrow_errors("bundle"):
        size = pa.ipc.get_record_batch_size(validated(batch))
        if size > limit_bytes:
            raise RecordTooLargeError(size, limit_bytes)
        return encode_bundle(batch)


def _kinds(column: pa.Array | pa.ChunkedArray) -> Kinds:
    if not pa.types.is_integer(column.type):
        raise RecordTypeError("column kind", column, "whole numbers")
    with arrow_errors("column kind"):
        kinds = validated(column).cast(pa.int64()).to_numpy() if not column.null_count else np.zeros(1)
    wrong = kinds[~np.isin(kinds, ARROW_KINDS)]
    if wrong.size:
        refuse(
            "kind",
            None if column.null_count else wrong[0].item(),
            "1 (put), 2 (delete) or 3 (bundle); 4 (link) is not in this version; nothing was written",
        )
    return kinds.astype(np.uint8)


def _check_kinds(rows: Rows) -> None:
    """Refuse tombstones without a key or with a value, and bundles that cannot be decoded."""
    kinds = rows.kinds
    if isinstance(kinds, int):
        return
    deletes = kinds == Kind.DELETE
    if deletes.any():
        keyed = _present(rows.keys, len(kinds))
        wrong = np.flatnonzero(deletes & (~keyed | _present(rows.values, len(kinds))))
        if wrong.size:
            refuse("kind", 2, f"row {wrong[0]} is a delete: it has a key and no value; nothing was written")
    for row in np.flatnonzero(kinds == Kind.BUNDLE).tolist():
        try:
            decode_bundle(rows.values[row].as_py() or b"")  # type: ignore[union-attr]
        except ValueError as error:
            refuse("kind", 3, f"row {row} is not a bundle: {error}; nothing was written", cause=error)


def _present(items: Items | None, count: int) -> Mask:
    if items is None:
        return np.zeros(count, np.bool_)
    assert not isinstance(items, list)
    return np.asarray(items.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _stamps(column: pa.Array | pa.ChunkedArray) -> dict[str, Any]:
    """Return `stamps` and `stamped` of a column of timestamps with a zone, or of whole microseconds since 1970."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        try:
            column = column.cast(pa.timestamp("us", tz=kind.tz))
        except pa.ArrowInvalid as error:
            refuse("timestamp", kind, f"whole microseconds: {error}; nothing was written", cause=error)
    elif not pa.types.is_integer(kind) and not pa.types.is_null(kind):
        wanted = "timestamps with a time zone, or microseconds since 1970"
        raise RecordTypeError("column timestamp", column, wanted)
    stamped = None if not column.null_count else _present(column, len(column))
    if stamped is not None and not stamped.any():
        return {"stamps": None, "stamped": None}
    filled = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
    wrong = filled[(filled < STAMP_MIN) | (filled > STAMP_MAX)]
    if wrong.size:
        refuse("timestamp", wrong[0].item(), "microseconds within the years 1 to 9999; nothing was written")
    return {"stamps": np.asarray(filled, np.int64), "stamped": stamped}


def tickets_of(
    host: TicketHost,
    limit_bytes: int,
    rows: Rows,
    goal_bytes: int,
    records_max: int = RECORDS_PER_FRAME_MAX,
) -> Iterator[SingleTicket]:
    """Yield tickets for all the records, each fitting one frame and of about `goal_bytes`, `records_max` at most.

    The sizes of all records are checked before the first ticket is given out: RecordTooLargeError. Packing continues
    while the frames of earlier tickets are written, if another thread writes them.
    """
    few = _few(host, min(goal_bytes, limit_bytes), rows, records_max)
    if few is not None:
        yield few
        return
    count = len(rows.values)
    step = min(part_rows(rows.values), count if rows.keys is None else part_rows(rows.keys))
    if step < count:
        sizes = lengths_of(rows.values)
        sizes = sizes if rows.keys is None else sizes + lengths_of(rows.keys)
        _check_sizes(sizes + COLUMN_BYTES_PER_RECORD, limit_bytes)
    for start in range(0, count, max(step, 1)):
        yield from _part_tickets(host, limit_bytes, rows.part(start, start + step), goal_bytes, records_max)


def _few(host: TicketHost, bytes_max: int, rows: Rows, records_max: int) -> SingleTicket | None:
    """Return the ticket of a short list of objects that fits one frame: packing would cost more than it saves."""
    count = len(rows.values)
    if not 0 < count <= min(JOINED_ITEMS_MAX, records_max):
        return None
    values, keys = _objects(rows.values), None if rows.keys is None else _objects(rows.keys)
    if values is None or not isinstance(rows.kinds, int) or rows.stamps is not None:
        return None
    kind, size_bytes = rows.kinds | HAS_VALUE, COLUMN_BYTES_PER_RECORD * count + sum(map(len, values))
    if rows.keys is not None:
        if keys is None:
            return None
        kind |= HAS_KEY
        size_bytes += sum(map(len, keys))
    if size_bytes > bytes_max:
        return None
    return SingleTicket.of_columns(host, Columns(count, kind, keys, values), size_bytes)


def _objects(items: Items) -> list[Any] | None:
    """Return a list that the caller cannot change; None if it has no objects, or some are absent."""
    return items[:] if isinstance(items, list) and None not in items else None


def _check_sizes(sizes: Int64s, limit_bytes: int) -> None:
    if int(sizes.max()) > limit_bytes:
        raise RecordTooLargeError(int(sizes.max()), limit_bytes)


def _part_tickets(
    host: TicketHost, limit_bytes: int, rows: Rows, goal_bytes: int, records_max: int
) -> Iterator[SingleTicket]:
    values = packed(rows.values)
    keys = None if rows.keys is None else packed(rows.keys)

    def size_of(first: int, end: int) -> int:
        size = values.size_bytes(first, end) + COLUMN_BYTES_PER_RECORD * (end - first)
        return size if keys is None else size + keys.size_bytes(first, end)

    count, goal_bytes = len(values.lengths), min(goal_bytes, limit_bytes)
    borders = [0, count]
    if count > records_max or size_of(0, count) > goal_bytes:
        sizes = values.lengths + COLUMN_BYTES_PER_RECORD
        if keys is not None:
            sizes += keys.lengths
        _check_sizes(sizes, limit_bytes)
        borders = _borders(sizes, goal_bytes, records_max)
    kinds = _kind_bytes(rows, values, keys)
    for start, stop in pairwise(borders):
        columns = Columns(
            stop - start,
            kinds if isinstance(kinds, int) else kinds[start:stop].tobytes(),
            None if keys is None else keys.cut(start, stop),
            values.cut(start, stop),
            None if rows.stamps is None else array("q", rows.stamps[start:stop].tobytes()),
        )
        yield SingleTicket.of_columns(host, columns, size_of(start, stop))


def _kind_bytes(rows: Rows, values: Packed, keys: Packed | None) -> int | Kinds:
    """Return the kind byte of each record, flags included; an int if all are the same for certain."""
    flags = 0
    masks: list[tuple[int, Mask]] = []
    for flag, exists, present in (
        (HAS_VALUE, True, values.present),
        (HAS_KEY, keys is not None, None if keys is None else keys.present),
        (HAS_TIMESTAMP, rows.stamps is not None, rows.stamped),
    ):
        if exists and present is None:
            flags |= flag
        elif present is not None:
            masks.append((flag, present))
    if isinstance(rows.kinds, int) and not masks:
        return rows.kinds | flags
    kinds: Kinds = np.full(len(values.lengths), flags, np.uint8) | np.asarray(rows.kinds, np.uint8)
    for flag, present in masks:
        kinds |= np.where(present, flag, 0).astype(np.uint8)
    return kinds


def _borders(sizes: Int64s, goal_bytes: int, records_max: int) -> list[int]:
    """Return the indexes where parts of at most `goal_bytes` begin, and the end; a larger item is a part of its own."""
    ends = np.cumsum(sizes)
    borders = [0]
    while borders[-1] < len(sizes):
        start = borders[-1]
        done = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, done + goal_bytes, side="right"))
        borders.append(min(max(stop, start + 1), start + records_max, len(sizes)))
    return borders
