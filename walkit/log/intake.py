"""What callers give, made into tickets: types checked, sizes bounded, long lists cut into frames. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from walkit.commit.ticket import ManyTicket, Ticket, TicketHost
from walkit.errors import RecordTimeError, RecordTooLargeError, RecordTypeError
from walkit.format.body import COLUMN_BYTES_PER_RECORD, Columns
from walkit.format.layout import HAS_KEY, HAS_TIMESTAMP, HAS_VALUE, JOINED, RECORDS_PER_FRAME_MAX
from walkit.record import Kind, to_microseconds

Values: TypeAlias = "Sequence[Any] | pa.Array | pa.ChunkedArray"

PUT = int(Kind.PUT)
DELETE = int(Kind.DELETE)
STAMP_MIN = to_microseconds(datetime.min.replace(tzinfo=UTC)) or 0
STAMP_MAX = to_microseconds(datetime.max.replace(tzinfo=UTC)) or 0


def as_bytes(value: Any, what: str) -> bytes:
    """Return the bytes of any buffer; a copy, so that the caller may change the buffer afterwards."""
    if type(value) is bytes:
        return value
    if isinstance(value, str) or value is None:
        raise RecordTypeError(what, value)
    try:
        view = memoryview(value)
        if view.format == "O":
            raise TypeError  # numpy objects: the buffer holds addresses
        return view.tobytes()
    except (TypeError, ValueError, BufferError):
        raise RecordTypeError(what, value) from None


def as_stamp(timestamp: datetime | int | None) -> int | None:
    """Return microseconds since 1970; RecordTimeError for what is no point in time, TypeError for other types."""
    stamp = to_microseconds(timestamp)
    if stamp is not None and not STAMP_MIN <= stamp <= STAMP_MAX:
        raise RecordTimeError(
            f"timestamp={stamp}: microseconds since 1970, within the years 1 to 9999", timestamp=stamp
        )
    return stamp


def make_ticket(
    host: TicketHost, limit_bytes: int, kind: int, key: Any, value: Any, timestamp: datetime | int | None
) -> Ticket:
    """Return the ticket of one record; RecordTypeError or RecordTooLargeError where it cannot be one."""
    if key is None:
        key = b""
    else:
        kind |= HAS_KEY
        if type(key) is not bytes:
            key = as_bytes(key, "key")
    if value is None:
        value = b""
    else:
        kind |= HAS_VALUE
        if type(value) is not bytes:
            value = as_bytes(value, "value")
    stamp = 0
    if timestamp is not None:
        kind |= HAS_TIMESTAMP
        stamp = as_stamp(timestamp) or 0
    ticket = Ticket(host, kind, key, value, stamp)
    if ticket.size_bytes > limit_bytes:
        raise RecordTooLargeError(ticket.size_bytes, limit_bytes)
    return ticket


def transaction_ticket(
    host: TicketHost, limit_bytes: int, operations: list[tuple[int, bytes | None, bytes | None, int | None]]
) -> ManyTicket:
    """Return the ticket of (kind, key, value, timestamp) operations that are all or nothing."""
    kinds = [
        kind
        | (HAS_KEY if key is not None else 0)
        | (HAS_VALUE if value is not None else 0)
        | (HAS_TIMESTAMP if stamp is not None else 0)
        | JOINED
        for kind, key, value, stamp in operations
    ]
    kinds[-1] &= ~JOINED
    keys = [o[1] or b"" for o in operations]
    values = [o[2] or b"" for o in operations]
    stamps = [o[3] or 0 for o in operations]
    size = sum(map(len, keys)) + sum(map(len, values)) + COLUMN_BYTES_PER_RECORD * len(operations)
    if size > limit_bytes or len(operations) > RECORDS_PER_FRAME_MAX:
        raise RecordTooLargeError(size, limit_bytes, "transaction")
    any_stamp = any(o[3] is not None for o in operations)
    return ManyTicket(host, Columns(len(kinds), kinds, keys, values, stamps if any_stamp else None), size)


def _plain(items: Values, what: str) -> tuple[list[bytes], list[int] | None, list[int]]:
    """Return (bytes with b"" for absent, presence per item or None where all are present, lengths)."""
    if isinstance(items, pa.Array | pa.ChunkedArray):
        items = items.to_pylist()
    plain: list[Any] = items if isinstance(items, list) else list(items)
    kinds = set(map(type, plain))
    present: list[int] | None = None
    if kinds - {bytes}:
        if type(None) in kinds:
            present = [int(item is not None) for item in plain]
        plain = [b"" if item is None else as_bytes(item, what) for item in plain]
    return plain, present, list(map(len, plain))


def many_tickets(
    host: TicketHost, limit_bytes: int, values: Values, keys: Values | None, goal_bytes: int
) -> Iterator[ManyTicket]:
    """Yield tickets for all the records, each fitting one frame and of about `goal_bytes`.

    Types and sizes of all records are checked before the first ticket is given out.
    """
    value_list, value_present, value_lengths = _plain(values, "value")
    count = len(value_list)
    key_list: list[bytes] | None = None
    key_present: list[int] | None = None
    sizes = np.array(value_lengths, np.int64) + COLUMN_BYTES_PER_RECORD
    if keys is not None:
        key_list, key_present, key_lengths = _plain(keys, "key")
        if len(key_list) != count:
            raise ValueError(f"there are {count:,} values and {len(key_list):,} keys; nothing was written")
        sizes += np.array(key_lengths, np.int64)
    if count == 0:
        return
    if int(sizes.max()) > limit_bytes:
        raise RecordTooLargeError(int(sizes.max()), limit_bytes)
    kinds: int | list[int] = PUT | HAS_VALUE | (HAS_KEY if keys is not None else 0)
    if value_present is not None or key_present is not None:
        kinds = [
            PUT | (HAS_VALUE if v else 0) | (HAS_KEY if k else 0)
            for v, k in zip(
                value_present or [1] * count, key_present or [int(keys is not None)] * count, strict=True
            )
        ]
    for start, stop in pairwise(_borders(sizes, min(goal_bytes, limit_bytes))):
        columns = Columns(
            stop - start,
            kinds if isinstance(kinds, int) else kinds[start:stop],
            None if key_list is None else key_list[start:stop],
            value_list[start:stop],
        )
        yield ManyTicket(host, columns, int(sizes[start:stop].sum()))


def _borders(sizes: np.ndarray[Any, np.dtype[np.int64]], goal_bytes: int) -> list[int]:
    """Return the indexes where parts of at most `goal_bytes` begin, and the end; a single larger item stands alone."""
    ends = np.cumsum(sizes)
    borders = [0]
    while borders[-1] < len(sizes):
        start = borders[-1]
        done = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, done + goal_bytes, side="right"))
        borders.append(min(max(stop, start + 1), start + RECORDS_PER_FRAME_MAX, len(sizes)))
    return borders
