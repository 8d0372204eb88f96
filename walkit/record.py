"""The record, its columns, and the result of an append."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard

import numpy as np

from walkit._internal.arrow import array_of_numbers, numbers_of, pa, stream_batches
from walkit._internal.html import titled
from walkit._internal.text import counted
from walkit.errors import CorruptionError, RecordTimeError, RecordTypeError

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that can be written, checksummed and sliced without a copy."""


SHOWN_BYTES = 64
"""Bytes of a key or value that a notebook shows."""


class Kind(IntEnum):
    """The effect of a record on keyed state. It prints as a word (`put`) and is otherwise its number."""

    PUT = 1
    DELETE = 2
    BUNDLE = 3
    LINK = 4

    def __str__(self) -> str:
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        try:
            return format(str(self), spec)
        except ValueError:  # a format of numbers
            return format(int(self), spec)


if TYPE_CHECKING:
    RECORD_SCHEMA: pa.Schema
    """The columns of every Arrow batch of records. kind: 1 put, 2 delete, 3 bundle, 4 link."""


@cache
def record_schema() -> pa.Schema:
    """Return `RECORD_SCHEMA`, which is made when it is first asked for, because it needs pyarrow."""
    return pa.schema(
        [
            pa.field("lsn", pa.int64(), nullable=False),
            pa.field("kind", pa.int8(), nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        ]
    )


def __getattr__(name: str) -> Any:
    if name == "RECORD_SCHEMA":
        return record_schema()
    raise AttributeError(f"module 'walkit.record' has no attribute {name!r}")


_LINK = struct.Struct("<BxxxIQQQQ")
LINK_BYTES = _LINK.size
"""Size of a link, which is the value of a record of kind link."""


class Link(NamedTuple):
    """Where a value is that is kept in a payload log, and how to know it (FORMAT.md F-22)."""

    log_id: int
    """The payload log."""
    epoch_id: int
    """The epoch of the payload log that wrote the value."""
    lsn: int
    """The record of the payload log that has the value."""
    length: int
    """Bytes of the value."""
    crc32c: int
    kind: Kind
    """The kind of record that the link stands for: put or bundle."""

    def encode(self) -> bytes:
        """Return the value of the link record."""
        return _LINK.pack(self.kind, self.crc32c, self.log_id, self.epoch_id, self.lsn, self.length)

    @classmethod
    def decode(cls, value: Buffer | None) -> Link:
        """Return the link of a link record's value; ValueError for bytes that are not a link."""
        if not is_link(value):
            raise ValueError("not a link")
        kind, crc, log_id, epoch_id, lsn, length = _LINK.unpack(value)
        return cls(log_id, epoch_id, lsn, length, crc, Kind(kind))


class LinkBytes(bytes):
    """An encoded link, as the value of a key in a state: other values are plain bytes."""

    __slots__ = ()


def is_link(value: Buffer | None) -> TypeGuard[Buffer]:
    """Return whether the value of a record of kind link is a link: no other value has its length and zeros."""
    return value is not None and len(value) == LINK_BYTES and not any(value[1:4]) and value[0] in (1, 3)


def linked_values(values: Sequence[Any], kinds: int | Sequence[int]) -> Sequence[Any]:
    """Return the values of records, with links as `LinkBytes`; another value of kind link stays as it is."""
    if isinstance(kinds, int):
        return values if kinds != Kind.LINK else [LinkBytes(v) if is_link(v) else v for v in values]
    if Kind.LINK not in kinds:
        return values
    return [LinkBytes(v) if k == Kind.LINK and is_link(v) else v for v, k in zip(values, kinds, strict=True)]


class Record(NamedTuple):
    """One record as stored in the log. An absent key or value is None; an empty one is b""."""

    lsn: int
    kind: Kind
    key: bytes | None
    value: bytes | None
    timestamp: datetime | None = None

    @property
    def verified(self) -> bool:
        """Whether the checksums of its frame were right. False only in records of `read(damaged="unverified")`."""
        return True

    @property
    def link(self) -> Link | None:
        """The link to a value that is kept in a payload log; None for every other record."""
        return Link.decode(self.value) if self.kind is Kind.LINK else None

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the record in IPython, also within a list, without the bytes of a long key or value."""
        texts = (_shortened(v) if isinstance(v, bytes) else repr(v) for v in self)
        printer.text(
            f"{type(self).__name__}({', '.join(f'{n}={t}' for n, t in zip(self._fields, texts, strict=True))})"
        )

    def _repr_html_(self) -> str:
        texts = ("absent" if v is None else _shortened(v) if isinstance(v, bytes) else v for v in self[1:])
        title = f"Record {self.lsn:,}{'' if self.verified else ', unverified'}"
        return titled(title, list(zip(self._fields[1:], texts, strict=True)))

    def arrow(self) -> pa.RecordBatch:
        """Return the Arrow batch of a bundle record, as it was given to `append_bundle`; it shares the value's memory.

        ValueError for any other kind. CorruptionError, with `first_lost_lsn`, if the value is not an Arrow stream of
        one valid batch: its frame's checksum was right, so it was written like that.
        """
        if self.kind is not Kind.BUNDLE:
            raise ValueError(f"record {self.lsn} is a {self.kind}, not a bundle")
        try:
            return decode_bundle(b"" if self.value is None else self.value)
        except ValueError as error:
            raise CorruptionError(
                f"record {self.lsn} is a bundle that cannot be decoded: {error}",
                first_lost_lsn=self.lsn,
                expected="an Arrow IPC stream of one batch",
                found=None if self.value is None else f"{len(self.value):,} bytes",
            ) from error


class UnverifiedRecord(Record):
    """A record of a damaged frame, as the frame's columns still hold it: any of its fields may be wrong."""

    __slots__ = ()

    @property
    def verified(self) -> bool:
        """False."""
        return False


class LinkedRecord(Record):
    """A record whose value is in a payload log: `value` fetches it once, when it is first used.

    It has the kind that the link stands for, and is equal to a record with the same value. Using the value raises
    PayloadGoneError or PayloadUnreachableError; the fields before it never do.
    """

    _link: Link
    _fetch: Callable[[], bytes] | None

    @classmethod
    def of(cls, record: Record, link: Link, fetch: Callable[[], bytes]) -> LinkedRecord:
        """Return the record that a link record stands for."""
        linked = super().__new__(cls, record.lsn, link.kind, record.key, None, record.timestamp)
        linked._link, linked._fetch = link, fetch
        return linked

    @property
    def value(self) -> bytes:  # the field of the tuple stays empty
        """The value, from the payload log."""
        fetch = self._fetch
        if fetch is not None:
            self._value, self._fetch = fetch(), None
        return self._value

    @property
    def link(self) -> Link:
        """See Record."""
        return self._link

    def _whole(self) -> Record:
        return Record(self.lsn, self.kind, self.key, self.value, self.timestamp)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._whole())

    def __getitem__(self, index: Any) -> Any:
        return self._whole()[index]

    def __eq__(self, other: object) -> bool:
        return self._whole() == (other._whole() if isinstance(other, LinkedRecord) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._whole())

    def __reduce__(self) -> Any:
        return Record, tuple(self._whole())

    def __repr__(self) -> str:
        return f"<LinkedRecord {self.lsn}: {self.kind} of {self._link.length:,} bytes in a payload log>"


def _shortened(value: bytes) -> str:
    """Return the bytes as Python writes them; of more than `SHOWN_BYTES` the first, and how many there are."""
    if len(value) <= SHOWN_BYTES:
        return repr(value)
    return f"{value[:SHOWN_BYTES]!r}... ({counted(len(value), 'byte')})"


def encode_bundle(batch: pa.RecordBatch) -> bytes:
    """Return a batch as an Arrow IPC stream: schema with metadata, dictionaries, the one batch, the end."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    value: bytes = sink.getvalue().to_pybytes()
    return value


def decode_bundle(value: Buffer) -> pa.RecordBatch:
    """Return the batch of `encode_bundle`; ValueError unless it is an Arrow IPC stream of one valid batch."""
    try:
        _, batches = stream_batches(value)
    except (pa.ArrowException, OSError, EOFError) as error:  # OSError: pyarrow's name for a short stream
        raise ValueError(f"no Arrow IPC stream: {error}") from error
    if len(batches) != 1:
        raise ValueError(f"a stream of {len(batches)} batches, not one")
    return batches[0]


class AppendResult(NamedTuple):
    """Where records went. LSNs are inclusive; `position` is that of the first frame.

    `next_position` is the position valid for the next record (AutoMQ's nextOffset): a reader that starts there
    misses nothing and repeats nothing. With `epoch_id` an LSN names one record for good: the number of a record that
    was cut is given again, by another epoch.
    """

    first_lsn: int
    last_lsn: int
    position: int
    next_position: int
    epoch_id: int
    """The random id of the opening that wrote the records."""

    def _repr_html_(self) -> str:
        count = self.last_lsn - self.first_lsn + 1
        facts = [(name, f"{value:,}") for name, value in self._asdict().items() if name != "epoch_id"]
        facts.append(("epoch_id", f"{self.epoch_id:016x}"))
        return titled(f"Appended: {counted(count, 'record')}", facts)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_US = 2**63 - 1


def wall_us() -> int:
    """Return microseconds since 1970 by the wall clock: 0 before 1970, and at most 63 bits."""
    return min(max(time.time_ns() // 1000, 0), _LAST_US)


def to_microseconds(timestamp: datetime | int | None) -> int | None:
    """Return microseconds since 1970 in UTC.

    RecordTimeError for a naive datetime, because its meaning is not known, and for one with nanoseconds (pandas has
    such), because a record has none. RecordTypeError for a value that is neither a datetime nor a whole number.
    """
    if timestamp is None or type(timestamp) is int:
        return timestamp
    if isinstance(timestamp, np.integer):
        return int(timestamp)
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise RecordTimeError(
                "the timestamp has no time zone; give an aware datetime or microseconds since 1970",
                timestamp=timestamp,
            )
        if type(timestamp) is not datetime and getattr(timestamp, "nanosecond", None):
            raise RecordTimeError(
                f"the timestamp {timestamp} is finer than microseconds; say how to round it (pandas: .floor('us'))",
                timestamp=timestamp,
            )
        delta = timestamp - EPOCH
        return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    raise RecordTypeError("timestamp", timestamp, "an aware datetime or whole microseconds since 1970")


STAMP_MIN, STAMP_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Microseconds since 1970 of the first and last moment that a calendar has: of the years 1 to 9999."""


def calendar_us(microseconds: int | None) -> int | None:
    """Return a stored time, or None if no calendar has it: a damaged or hostile file may hold any number."""
    return None if microseconds is None or not STAMP_MIN <= microseconds <= STAMP_MAX else microseconds


def to_datetime(microseconds: int | None) -> datetime | None:
    """Return the aware datetime of microseconds since 1970; None if no calendar has it."""
    known = calendar_us(microseconds)
    return None if known is None else EPOCH + timedelta(microseconds=known)


@dataclass(slots=True)
class Batch:
    """Records in LSN order as columns of Python objects: the input of a state machine. Immutable.

    `lsns` is a range for dense records, else a list. A column that is None is absent for every record; `kinds` may be
    one int for all. `timestamps` are microseconds since 1970.
    """

    lsns: Sequence[int]
    kinds: int | Sequence[int]
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None] | None
    timestamps: Sequence[int | None] | None = None

    def __len__(self) -> int:
        return len(self.lsns)

    @property
    def first_lsn(self) -> int:
        """LSN of the first record; 0 when empty."""
        return self.lsns[0] if self.lsns else 0

    @property
    def last_lsn(self) -> int:
        """LSN of the last record; 0 when empty."""
        return self.lsns[-1] if self.lsns else 0

    def rows(self) -> Iterator[tuple[int, int, bytes | None, bytes | None]]:
        """Yield (lsn, kind, key, value)."""
        n = len(self.lsns)
        absent: list[bytes | None] = [None] * n if self.keys is None or self.values is None else []
        kinds = [self.kinds] * n if isinstance(self.kinds, int) else self.kinds
        return zip(
            self.lsns,
            kinds,
            absent if self.keys is None else self.keys,
            absent if self.values is None else self.values,
            strict=True,
        )

    def __iter__(self) -> Iterator[Record]:
        """Yield each record as a `Record`."""
        stamps = self.timestamps or [None] * len(self.lsns)
        for (lsn, kind, key, value), stamp in zip(self.rows(), stamps, strict=True):
            yield Record(lsn, Kind(kind), key, value, to_datetime(stamp))

    def to_arrow(self) -> pa.RecordBatch:
        """Return the same records as a batch of `RECORD_SCHEMA`."""
        n, schema = len(self.lsns), record_schema()
        kinds = (
            np.full(n, self.kinds, np.int8) if isinstance(self.kinds, int) else np.array(self.kinds, np.int8)
        )
        nothing = pa.nulls(n, pa.binary())
        return pa.RecordBatch.from_arrays(
            [
                array_of_numbers(np.fromiter(self.lsns, np.int64, n), pa.int64()),
                array_of_numbers(kinds, pa.int8()),
                nothing if self.keys is None else pa.array(self.keys, pa.binary()),
                nothing if self.values is None else pa.array(self.values, pa.binary()),
                pa.nulls(n, schema.field("timestamp").type)
                if self.timestamps is None
                else pa.array(self.timestamps, schema.field("timestamp").type),
            ],
            schema=schema,
        )

    @classmethod
    def from_arrow(cls, batch: pa.RecordBatch) -> Batch:
        """Return the records of a batch of `RECORD_SCHEMA` as Python columns."""
        lsns = numbers_of(batch.column("lsn"), np.int64)
        dense = len(lsns) > 0 and int(lsns[-1]) - int(lsns[0]) + 1 == len(lsns)
        keys, values, stamps = batch.column("key"), batch.column("value"), batch.column("timestamp")
        return cls(
            range(int(lsns[0]), int(lsns[-1]) + 1) if dense else lsns.tolist(),
            batch.column("kind").to_pylist(),
            None if keys.null_count == len(keys) else keys.to_pylist(),
            None if values.null_count == len(values) else values.to_pylist(),
            None if stamps.null_count == len(stamps) else stamps.view(pa.int64()).to_pylist(),
        )
