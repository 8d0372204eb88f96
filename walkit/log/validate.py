"""Turns callers' single records into tickets: types checked, sizes bounded. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from walkit._internal.arguments import refuse
from walkit.commit.ticket import SingleTicket, TicketHost
from walkit.config import ALIGNMENT_BUFFERED, ALIGNMENT_DIRECT, LogOptions
from walkit.errors import RecordTimeError, RecordTooLargeError, RecordTypeError
from walkit.format.body import COLUMN_BYTES_PER_RECORD, Columns
from walkit.format.layout import (
    FRAME_HEADER_BYTES,
    HAS_KEY,
    HAS_TIMESTAMP,
    HAS_VALUE,
    JOINED,
    RECORDS_PER_FRAME_MAX,
)
from walkit.record import Kind, calendar_us, to_microseconds

if TYPE_CHECKING:
    import pyarrow as pa


def value_bytes_max(options: LogOptions, key_bytes: int = 0) -> int:
    """Return the most bytes of a value that a log with these options takes, beside a key of so many bytes.

    With `direct_io` where the place takes it; one that falls back to the page cache takes some bytes more.
    """
    alignment = ALIGNMENT_DIRECT if options.direct_io else ALIGNMENT_BUFFERED
    body_bytes = options.frame_bytes_max - FRAME_HEADER_BYTES - alignment
    return min(body_bytes, options.queue_bytes_max) - COLUMN_BYTES_PER_RECORD - key_bytes


def require_fits(option: str, value_bytes: int, options: LogOptions, key_bytes: int = 0) -> None:
    """OptionsError for values larger than a log with these options takes; for later requests."""
    most = value_bytes_max(options, key_bytes)
    if value_bytes > most:
        refuse(
            option,
            value_bytes,
            f"a value of at most {most:,} bytes fits a frame of {options.frame_bytes_max:,} bytes",
            most,
        )


Values: TypeAlias = "Sequence[Any] | pa.Array | pa.ChunkedArray"

PUT = int(Kind.PUT)
DELETE = int(Kind.DELETE)


def as_bytes(value: Any, what: str, limit_bytes: int | None = None) -> bytes:
    """Return the bytes of any buffer; a copy, so that the caller may change the buffer afterwards.

    One over `limit_bytes` is not copied: RecordTooLargeError.
    """
    if type(value) is bytes:
        return value
    if isinstance(value, str) or value is None:
        raise RecordTypeError(what, value)
    try:
        view = memoryview(value)
        if view.format == "O":
            raise TypeError  # numpy objects: the buffer holds addresses
        if limit_bytes is not None and view.nbytes > limit_bytes:
            raise RecordTooLargeError(view.nbytes, limit_bytes, what)
        return view.tobytes()
    except RecordTooLargeError:
        raise
    except (TypeError, ValueError, BufferError):
        raise RecordTypeError(what, value) from None


def as_stamp(timestamp: datetime | int | None) -> int | None:
    """Return microseconds since 1970; RecordTimeError for an invalid point in time, TypeError for other types."""
    stamp = to_microseconds(timestamp)
    if stamp != calendar_us(stamp):
        raise RecordTimeError(
            f"timestamp={stamp}: microseconds since 1970, within the years 1 to 9999", timestamp=stamp
        )
    return stamp


def make_ticket(
    host: TicketHost, limit_bytes: int, kind: int, key: Any, value: Any, timestamp: datetime | int | None
) -> SingleTicket:
    """Return the ticket of one record; RecordTypeError or RecordTooLargeError if it cannot be one."""
    if timestamp is None and type(value) is bytes and (key is None or type(key) is bytes):
        if key is None:
            ticket = SingleTicket(host, kind | HAS_VALUE, b"", value)
        else:
            ticket = SingleTicket(host, kind | HAS_KEY | HAS_VALUE, key, value)
        if ticket.size_bytes > limit_bytes:
            raise RecordTooLargeError(ticket.size_bytes, limit_bytes)
        return ticket
    if key is None:
        key = b""
    else:
        kind |= HAS_KEY
        if type(key) is not bytes:
            key = as_bytes(key, "key", limit_bytes)
    if value is None:
        value = b""
    else:
        kind |= HAS_VALUE
        if type(value) is not bytes:
            value = as_bytes(value, "value", limit_bytes)
    stamp = 0
    if timestamp is not None:
        kind |= HAS_TIMESTAMP
        stamp = as_stamp(timestamp) or 0
    ticket = SingleTicket(host, kind, key, value, stamp)
    if ticket.size_bytes > limit_bytes:
        raise RecordTooLargeError(ticket.size_bytes, limit_bytes)
    return ticket


def transaction_ticket(
    host: TicketHost, limit_bytes: int, operations: list[tuple[int, bytes | None, bytes | None, int | None]]
) -> SingleTicket:
    """Return the ticket of (kind, key, value, timestamp) operations that are all or nothing."""
    if len(operations) > RECORDS_PER_FRAME_MAX:
        size = sum(len(part) for o in operations for part in o[1:3] if part is not None)
        raise RecordTooLargeError(
            size, limit_bytes, "transaction", records=len(operations), limit_records=RECORDS_PER_FRAME_MAX
        )
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
    if size > limit_bytes:
        raise RecordTooLargeError(size, limit_bytes, "transaction")
    any_stamp = any(o[3] is not None for o in operations)
    return SingleTicket.of_columns(
        host, Columns(len(kinds), kinds, keys, values, stamps if any_stamp else None), size
    )
