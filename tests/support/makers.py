"""Shared by the tests of the format: frames from plain rows, forged frames with right checksums, what a reader says."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import strategies as st

from tests.format.plain_reader import PlainRecord
from walkit.format.body import Columns, DecodedColumns, to_arrow
from walkit.format.checksum import crc32c
from walkit.format.frame import (
    FrameFault,
    FrameHeader,
    FrameIdentity,
    check_body,
    check_header,
    decode_frame,
    prepare_body,
    seal_frame,
)
from walkit.format.layout import FRAME_HEADER, FRAME_HEADER_BYTES, align_up
from walkit.models import CrashingStorage
from walkit.record import STAMP_MAX, STAMP_MIN
from walkit.storage.interface import StorageFile

ROOT = Path(__file__).resolve().parents[2]
IDENTITY = FrameIdentity(0x1111, 3, 0xE1E1)
FRAME_BYTES_MAX = 1 << 20
PUT, DELETE, BUNDLE, LINK = 1, 2, 3, 4
HAS_KEY, HAS_VALUE, HAS_TIMESTAMP, JOINED = 16, 32, 64, 128

ONE = [PlainRecord(1, PUT, b"key", b"value", None, False)]
TRANSACTION = [
    PlainRecord(1, PUT, b"k", b"long value", None, True),
    PlainRecord(2, DELETE, b"key", None, None, False),
]
STAMPED = [PlainRecord(1, PUT, None, b"", 5, False), PlainRecord(2, LINK, b"", None, None, False)]
MANY = [PlainRecord(i + 1, PUT, b"k%02d" % i, b"the same words " * 3, 7, False) for i in range(12)]


def kind_byte(row: PlainRecord) -> int:
    """F-5.3, spelled out."""
    return (
        row.kind
        | (0 if row.key is None else HAS_KEY)
        | (0 if row.value is None else HAS_VALUE)
        | (0 if row.timestamp_us is None else HAS_TIMESTAMP)
        | (JOINED if row.joined else 0)
    )


def joined_flags(columns: DecodedColumns) -> npt.NDArray[np.bool_]:
    """Return for each record whether it shares a transaction with the next."""
    return np.broadcast_to((np.asarray(columns.kinds) & JOINED) != 0, (columns.count,))


def columns_of(rows: Sequence[PlainRecord], *, sparse: bool = False) -> Columns:
    """Columns of these rows, a column without anything in it left out; the LSNs matter only where sparse."""
    first = rows[0].lsn if rows else 0
    return Columns(
        len(rows),
        [kind_byte(r) for r in rows],
        None if all(r.key is None for r in rows) else [r.key or b"" for r in rows],
        None if all(r.value is None for r in rows) else [r.value or b"" for r in rows],
        None if all(r.timestamp_us is None for r in rows) else [r.timestamp_us or 0 for r in rows],
        [r.lsn - first for r in rows] if sparse else None,
    )


def frame_of(
    rows: Sequence[PlainRecord],
    *,
    position: int = 0,
    first_lsn: int | None = None,
    durable_position: int = 0,
    chain: int = 0,
    alignment: int = 64,
    codec: str | None = None,
    sparse: bool = False,
    span: int | None = None,
) -> bytes:
    """The bytes of one frame of these rows; dense ones get the LSNs from `first_lsn` on."""
    if first_lsn is None:
        first_lsn = rows[0].lsn if rows else 1
    if sparse and span is None:
        span = rows[-1].lsn - rows[0].lsn + 1 if rows else 0
    buffers, footprint, crc = seal_frame(
        prepare_body(columns_of(rows, sparse=sparse), codec),
        IDENTITY,
        position=position,
        first_lsn=first_lsn,
        durable_position=durable_position,
        chain=chain,
        sealed_us=1_700_000_000_000_000,
        alignment=alignment,
        span=span,
    )
    frame = b"".join(buffers)
    assert len(frame) == footprint and FrameHeader.parse(frame).header_crc == crc
    return frame


def forged(frame: bytes, body: bytes | None = None, /, **fields: int) -> bytes:
    """The frame with other header fields, or another body, and right checksums: what no honest writer makes."""
    header = FrameHeader.parse(frame)
    if body is None:
        body = frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + header.body_stored_bytes]
    else:
        header = header._replace(
            body_stored_bytes=len(body),
            body_raw_bytes=len(body),
            footprint=align_up(FRAME_HEADER_BYTES + len(body), 64),
        )
    header = header._replace(**{"body_crc": crc32c(body), **fields})
    head = FRAME_HEADER.pack(*header)[:-4]
    return (head + crc32c(head).to_bytes(4, "little") + body).ljust(min(header.footprint, 1 << 20), b"\0")


def judged(
    frame: bytes, *, alignment: int = 64, frame_bytes_max: int = FRAME_BYTES_MAX
) -> FrameFault | pa.RecordBatch:
    """A reader's verdict on these bytes: a fault, or the records. The same calls as `FrameWalk` and `LogView`."""
    header, fault = check_header(frame, 0, alignment, frame_bytes_max)
    if header is None:
        assert fault is not None
        return fault
    fault = check_body(header, memoryview(frame)[: header.footprint])
    if fault is not None:
        return fault
    return to_arrow([(header.first_lsn, decode_frame(header, memoryview(frame)[: header.footprint]))])


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """(lsn, kind, key, value, microseconds) of every record of a batch."""
    names = ("lsn", "kind", "key", "value")
    stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return list(zip(*(batch.column(n).to_pylist() for n in names), stamps, strict=True))


def plain_rows(rows: Sequence[PlainRecord]) -> list[tuple[Any, ...]]:
    """The same of plain records."""
    return [tuple(r)[:5] for r in rows]


def flipped(data: bytes, bit: int) -> bytes:
    """The data with one bit turned."""
    changed = bytearray(data)
    changed[bit >> 3] ^= 1 << (bit & 7)
    return bytes(changed)


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that Python and numpy held at one time because of this call."""
    call()  # what is made once, at the first call, does not count
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def memory_file(data: bytes) -> StorageFile:
    """A file on memory storage that holds these bytes."""
    storage = CrashingStorage()
    storage.create()
    file = storage.open("a.segment", "create")
    file.write(0, [data])
    return file


STAMPS = st.integers(STAMP_MIN, STAMP_MAX)
NAMES = st.none() | st.just(b"") | st.binary(max_size=12) | st.binary(min_size=3, max_size=3)


@st.composite
def record_lists(draw: st.DrawFn, *, min_size: int = 1, max_size: int = 8) -> list[PlainRecord]:
    """Rows with LSNs from 1: absent and empty keys and values, all kinds, timestamps, transactions that end."""
    same = draw(st.booleans())
    row = st.tuples(st.integers(1, 4), NAMES, NAMES, st.none() | STAMPS, st.booleans())
    rows = draw(st.lists(row, min_size=min_size, max_size=max_size))
    if same and rows:
        rows = [rows[0]] * len(rows)
    last = len(rows) - 1
    return [
        PlainRecord(i + 1, k, key, value, t, j and i < last) for i, (k, key, value, t, j) in enumerate(rows)
    ]
