"""Arrow batches of bounded size, made of the columns of frames.

A frame of a hundred bytes may hold a million records (FORMAT.md F-7.3), and many of them fit one read. Columns
stay as views of the frame until they become Arrow; this module does that for some records at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from walkit._internal.arrow import pa
from walkit.format.body import Column, DecodedColumns, has_key_of, to_arrow


def in_parts(
    first_lsn: int, columns: DecodedColumns, low_lsn: int, high_lsn: int | None, records_max: int
) -> Iterator[tuple[int, DecodedColumns]]:
    """Yield the records of a frame with LSNs from `low_lsn` to `high_lsn`, as (first LSN, columns) parts like frames.

    Each part has at least one record and at most `records_max`; all are of about one size. Nothing is copied: a frame
    that is small enough and within the bounds is yielded as it is.
    """
    start, stop = _rows_within(first_lsn, columns, low_lsn, high_lsn)
    count = stop - start
    if 0 < count == columns.count <= records_max:
        yield first_lsn, columns
        return
    key_at = _total(columns.key_lengths, 0, start)
    value_at = _total(columns.value_lengths, 0, start)
    parts = -(-count // records_max)
    for number in range(parts):
        begin, end = start + count * number // parts, start + count * (number + 1) // parts
        key_end = key_at + _total(columns.key_lengths, begin, end)
        value_end = value_at + _total(columns.value_lengths, begin, end)
        offsets = columns.lsn_offsets
        part = DecodedColumns(
            end - begin,
            _rows(columns.kinds, begin, end),
            _rows(columns.key_lengths, begin, end),
            _rows(columns.value_lengths, begin, end),
            None if columns.timestamps is None else _rows(columns.timestamps, begin, end),
            None if offsets is None else offsets[begin:end],
            columns.key_bytes[key_at:key_end],
            columns.value_bytes[value_at:value_end],
        )
        yield (first_lsn + begin if offsets is None else first_lsn), part
        key_at, value_at = key_end, value_end


def _rows_within(
    first_lsn: int, columns: DecodedColumns, low_lsn: int, high_lsn: int | None
) -> tuple[int, int]:
    """Return the rows [start, stop) of a frame whose LSNs lie within the bounds, which are inclusive."""
    count, offsets = columns.count, columns.lsn_offsets
    low, high = low_lsn - first_lsn, None if high_lsn is None else high_lsn - first_lsn
    if offsets is not None:
        start = int(offsets.searchsorted(low)) if low > 0 else 0
        return start, count if high is None else int(offsets.searchsorted(high, side="right"))
    return min(max(low, 0), count), count if high is None else min(max(high + 1, 0), count)


def _rows(column: Column, begin: int, end: int) -> Column:
    return column if isinstance(column, int) else column[begin:end]


def _total(lengths: Column, begin: int, end: int) -> int:
    if isinstance(lengths, int):
        return lengths * (end - begin)
    return int(lengths[begin:end].sum(dtype=np.int64))


class BatchBuilder:
    """Makes Arrow batches of decoded frames, in order: `full` once they have `records` records or `whole_bytes` bytes.

    Records out of the bounds, which are inclusive, are not taken. No batch has as many as twice `records`. With `keys`
    a batch in which no record has one of them is left out.
    """

    __slots__ = (
        "_bytes",
        "_bytes_max",
        "_high_lsn",
        "_keys",
        "_low_lsn",
        "_parts",
        "_records",
        "_records_max",
    )

    def __init__(
        self,
        low_lsn: int,
        high_lsn: int | None,
        *,
        records: int,
        whole_bytes: int,
        keys: pa.Array | None = None,
    ) -> None:
        self._keys = keys
        self._low_lsn, self._high_lsn = low_lsn, high_lsn
        self._records_max, self._bytes_max = records, whole_bytes
        self._records = self._bytes = 0
        self._parts: deque[tuple[int, DecodedColumns]] = deque()

    @property
    def full(self) -> bool:
        """Whether `batches` is due."""
        return self._records >= self._records_max or self._bytes >= self._bytes_max

    def add(self, first_lsn: int, columns: DecodedColumns, size_bytes: int) -> None:
        """Take the records of a frame; `size_bytes` is the size of its columns."""
        for part in in_parts(first_lsn, columns, self._low_lsn, self._high_lsn, self._records_max):
            self._parts.append(part)
            self._records += part[1].count
        self._bytes += size_bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the added records as batches of RECORD_SCHEMA, in the order it came, and forget it."""
        self._records = self._bytes = 0
        taken: list[tuple[int, DecodedColumns]] = []
        records = 0
        while self._parts:
            part = self._parts.popleft()
            taken.append(part)
            records += part[1].count
            if records >= self._records_max or not self._parts:
                if self._keys is None or has_key_of(taken, self._keys):
                    yield to_arrow(taken)
                taken, records = [], 0
