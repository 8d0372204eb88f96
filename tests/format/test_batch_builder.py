"""The columns of a frame in parts: the same records, however many at a time."""

from __future__ import annotations

import struct

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.format.plain_reader import PlainRecord
from tests.support import makers
from tests.support.makers import ONE, columns_of, forged, frame_of, rows_of
from walkit.format.batch_builder import BatchBuilder, in_parts
from walkit.format.body import DecodedColumns, decode_body, encode_body, to_arrow
from walkit.format.frame import FrameHeader, decode_frame
from walkit.format.layout import RECORDS_PER_FRAME_MAX
from walkit.record import RECORD_SCHEMA


def decoded(rows: list[PlainRecord], sparse: bool) -> DecodedColumns:
    """The columns of a frame of these records; with their LSNs one by one if it is sparse."""
    flags, buffers = encode_body(columns_of(rows, sparse=sparse))
    return decode_body(memoryview(b"".join(buffers)), len(rows), flags, rows[-1].lsn - rows[0].lsn + 1)


@given(
    rows=makers.record_lists(max_size=40),
    sparse=st.booleans(),
    records_max=st.integers(1, 50),
    bounds=st.tuples(st.integers(-3, 50), st.none() | st.integers(-3, 50)),
)
def test_parts_are_the_records_within_the_bounds(
    rows: list[PlainRecord], sparse: bool, records_max: int, bounds: tuple[int, int | None]
) -> None:
    """Any frame, bounds around it and size of parts: together the rows of the whole batch, none too large or empty."""
    columns, first = decoded(rows, sparse), rows[0].lsn
    low, high = first + bounds[0], None if bounds[1] is None else first + bounds[1]
    whole = rows_of(to_arrow([(first, columns)]))
    expected = [row for row in whole if low <= row[0] and (high is None or row[0] <= high)]
    parts = list(in_parts(first, columns, low, high, records_max))
    assert [row for part in parts for row in rows_of(to_arrow([part]))] == expected
    assert all(0 < part.count <= records_max for _, part in parts)


@given(
    frames=st.lists(makers.record_lists(max_size=20), min_size=1, max_size=6), records_max=st.integers(1, 30)
)
def test_what_waits_becomes_batches_of_fewer_than_twice_as_many_records(
    frames: list[list[PlainRecord]], records_max: int
) -> None:
    """Several frames in sequence: all their rows in order, each batch below twice the size asked for."""
    waiting = BatchBuilder(1, None, records=records_max, whole_bytes=1 << 20)
    expected, lsn = [], 1
    for rows in frames:
        columns = decoded(rows, False)
        expected.append(to_arrow([(lsn, columns)]))
        waiting.add(lsn, columns, 1)
        lsn += columns.count
    batches = list(waiting.batches())
    assert (
        pa.Table.from_batches(batches, RECORD_SCHEMA)
        .combine_chunks()
        .equals(pa.Table.from_batches(expected, RECORD_SCHEMA).combine_chunks())
    )
    assert max(map(len, batches)) < 2 * records_max
    assert not waiting.full and not list(waiting.batches())


def test_a_million_empty_records_are_decoded_in_parts() -> None:
    """F-7.3: of 128 bytes that stand for 2^20 records, the first 4,096 take memory for so many, and no more."""
    n = RECORDS_PER_FRAME_MAX
    frame = forged(frame_of(ONE), struct.pack("<IIB", 0, 0, 0x31), records=n, span=n)
    header = FrameHeader.parse(frame)

    def first_part() -> pa.RecordBatch:
        columns = decode_frame(header, memoryview(frame))
        return to_arrow([next(in_parts(header.first_lsn, columns, 1, None, 4096))])

    assert len(first_part()) == 4096
    assert makers.peak_bytes(first_part) < 100 * 4096
