"""Records between two shapes: the columns of a frame (kind bytes with flags), and the `Batch` of a state machine.

The columns of a frame are shared with their writer, and never changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from walkit.format.body import Columns, PackedBytes
from walkit.format.layout import HAS_KEY, HAS_TIMESTAMP, HAS_VALUE, KIND_MASK
from walkit.record import Batch


def batch_of(first_lsn: int, columns: Columns) -> Batch:
    """Return the records of a frame that begins at `first_lsn`. Keys and values are shared, not copied."""
    count, kinds, offsets = columns.count, columns.kinds, columns.lsn_offsets
    keys, values, stamps = _objects(columns.keys), _objects(columns.values), columns.timestamps
    lsns: Sequence[int] = range(first_lsn, first_lsn + count)
    if offsets is not None:
        lsns = [first_lsn + offset for offset in offsets]
    if isinstance(kinds, int):
        return Batch(
            lsns,
            kinds & KIND_MASK,
            keys if kinds & HAS_KEY else None,
            values if kinds & HAS_VALUE else None,
            stamps if kinds & HAS_TIMESTAMP else None,
        )
    return Batch(
        lsns,
        [kind & KIND_MASK for kind in kinds],
        None if keys is None else [k if b & HAS_KEY else None for k, b in zip(keys, kinds, strict=True)],
        None
        if values is None
        else [v if b & HAS_VALUE else None for v, b in zip(values, kinds, strict=True)],
        None
        if stamps is None
        else [s if b & HAS_TIMESTAMP else None for s, b in zip(stamps, kinds, strict=True)],
    )


def _objects(items: Sequence[bytes] | PackedBytes | None) -> Sequence[bytes] | None:
    return list(items) if isinstance(items, PackedBytes) else items


def columns_of(batch: Batch) -> Columns:
    """Return the columns of a frame that holds these records, without their LSNs."""
    count = len(batch)
    kinds = [batch.kinds] * count if isinstance(batch.kinds, int) else list(batch.kinds)
    for flag, column in ((HAS_KEY, batch.keys), (HAS_VALUE, batch.values), (HAS_TIMESTAMP, batch.timestamps)):
        if column is not None:
            kinds = [k | (0 if item is None else flag) for k, item in zip(kinds, column, strict=True)]
    return Columns(
        count,
        kinds,
        None if batch.keys is None else [key or b"" for key in batch.keys],
        None if batch.values is None else [value or b"" for value in batch.values],
        None if batch.timestamps is None else [stamp or 0 for stamp in batch.timestamps],
    )


def part_of(batch: Batch, start: int, stop: int) -> Batch:
    """Return the records [start, stop) of a batch."""
    kinds = batch.kinds
    return Batch(
        batch.lsns[start:stop],
        kinds if isinstance(kinds, int) else kinds[start:stop],
        None if batch.keys is None else batch.keys[start:stop],
        None if batch.values is None else batch.values[start:stop],
        None if batch.timestamps is None else batch.timestamps[start:stop],
    )
