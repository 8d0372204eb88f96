"""Rows of frames read together: the same records as frame by frame, whatever frames the log has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import walkit
from tests.support.histories import random_rows, write
from tests.support.logs import view_of
from walkit.errors import CorruptionError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.models import CrashingStorage
from walkit.read.reader import view_of as reader_view_of
from walkit.read.vectorised import row_batches
from walkit.read.view import LogView

SMALL: dict[str, Any] = {"durability": "none", "segment_bytes": 64 * 1024, "frame_bytes_max": 16 * 1024}


def joined(batches: Any) -> pa.Table:
    """One table of batches."""
    return pa.Table.from_batches(batches, walkit.RECORD_SCHEMA).combine_chunks()


def check(view: LogView, first: int, last: int) -> None:
    """The same table in batches of one frame or row, and of many."""
    expected = joined(view.batches(first, last))
    for records, whole_bytes in ((1, 1), (1 << 18, 1 << 20)):
        found = joined(row_batches(view, first, last, records=records, whole_bytes=whole_bytes))
        assert found.equals(expected)


@given(st.integers(0, 1000), st.integers(1, 120), st.integers(1, 120))
def test_any_records_between_any_bounds(seed: int, one: int, two: int) -> None:
    """Events, deletes, transactions, absent and empty values over three epochs: equal tables for any bounds."""
    storage = CrashingStorage()
    write(storage, random_rows(seed, 120), epochs=3)
    first, last = sorted((one, two))
    check(reader_view_of(storage)[0], first, last)


@pytest.mark.parametrize("more", [{}, {"codec": "zstd"}])
def test_frames_of_all_shapes(more: dict[str, Any]) -> None:
    """Uniform and mixed lengths, timestamps, bundles, frames that fill a segment, compressed ones: equal tables."""
    with walkit.open(storage=CrashingStorage(), options=walkit.LogOptions(**SMALL, **more)) as log:
        for turn in range(40):
            log.append_many([b"v" * 100] * 20, [b"k%03d" % n for n in range(20)])
            log.append_many([b"v" * (n * turn % 90) for n in range(20)])
            log.append(b"timed", b"key", timestamp=turn)
            log.append_bundle(pa.record_batch({"a": [turn]}))
        log.append_many([b"x" * 12_000] * 20)
        view, last = view_of(log), log.acked_lsn
        check(view, 1, last)
        check(view, last // 2, last - 3)


def records_and_error(batches: Iterator[pa.RecordBatch]) -> tuple[int, int | None]:
    """How many records come before the damage, and the first LSN that it says is lost."""
    records = 0
    try:
        for batch in batches:
            records += len(batch)
    except CorruptionError as error:
        return records, error.first_lost_lsn
    return records, None


def test_records_before_a_damage_are_given_out() -> None:
    """Flip a bit in the middle of a segment: the records before it, then the error, as frame by frame."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=walkit.LogOptions(**SMALL)) as log:
        for turn in range(200):
            log.append(b"value", b"%d" % turn)
    name = next(name for name in storage.names() if name.endswith(".segment"))
    file = storage.open(name, "write")
    at = SEGMENT_HEADER_BYTES + 100 * 192 + 120
    file.write(at, [bytes([file.read(at, 1)[0] ^ 1])])
    view, last = reader_view_of(storage)
    by_frame = records_and_error(view.batches(1, last))
    by_row = records_and_error(row_batches(view, 1, last, records=1 << 18, whole_bytes=1 << 20))
    assert by_frame == by_row and 0 < by_row[0] < 200 and by_row[1] == by_row[0] + 1
