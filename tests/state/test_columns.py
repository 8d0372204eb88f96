"""Records between the columns of a frame and the batch of a machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkit.format.body import Columns, decode_body, encode_body, to_arrow
from walkit.format.layout import HAS_KEY, HAS_TIMESTAMP, HAS_VALUE, JOINED
from walkit.record import Batch
from walkit.state.batch_columns import batch_of, columns_of, part_of
from walkit.testing.state import random_records


@given(st.integers(0, 10_000), st.integers(1, 40))
def test_a_batch_comes_back_from_its_columns(seed: int, count: int) -> None:
    """batch -> columns -> batch keeps kinds, absent and empty keys and values, and timestamps."""
    batch = random_records(seed, count)
    again = batch_of(1, columns_of(batch))
    assert list(again) == list(batch)


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 1 << 40))
def test_a_frame_is_equal_for_a_machine_and_for_arrow(seed: int, count: int, first_lsn: int) -> None:
    """The live path (columns to batch) equals the path through bytes and Arrow that replay takes."""
    columns = columns_of(random_records(seed, count))
    flags, buffers = encode_body(columns)
    decoded = decode_body(memoryview(b"".join(buffers)), count, flags)
    assert list(batch_of(first_lsn, columns)) == list(Batch.from_arrow(to_arrow([(first_lsn, decoded)])))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (1 | HAS_KEY | HAS_VALUE, Batch(range(5, 7), 1, [b"a", b""], [b"x", b"y"])),
        (1 | HAS_KEY | HAS_VALUE | HAS_TIMESTAMP, Batch(range(5, 7), 1, [b"a", b""], [b"x", b"y"], [7, 8])),
        (1 | HAS_VALUE, Batch(range(5, 7), 1, None, [b"x", b"y"])),
        (2 | HAS_KEY, Batch(range(5, 7), 2, [b"a", b""], None)),
    ],
)
def test_uniform_frames_share_their_columns(kind: int, expected: Batch) -> None:
    """One kind byte for all: the lists themselves are handed on, absent columns are None, flags are gone."""
    columns = Columns(2, kind, [b"a", b""], [b"x", b"y"], [7, 8])
    batch = batch_of(5, columns)
    assert batch == expected
    assert batch.keys is (columns.keys if kind & HAS_KEY else None)


def test_transactions_leave_no_trace() -> None:
    """The bit that joins records to a transaction is the log's affair; LSN offsets are honoured."""
    kinds = [1 | HAS_KEY | HAS_VALUE | JOINED, 2 | HAS_KEY]
    batch = batch_of(10, Columns(2, kinds, [b"a", b"b"], [b"x", b""], None, [0, 4]))
    assert list(batch.rows()) == [(10, 1, b"a", b"x"), (14, 2, b"b", None)]


def test_a_part_has_the_same_columns() -> None:
    """Parts joined again are the whole, with absent columns and one kind for all too."""
    events, tombstones = Batch(range(1, 61), 1, None, [b"v"] * 60), Batch(range(1, 61), 2, [b"k"] * 60, None)
    for batch in (random_records(1), events, tombstones):
        parts = [part_of(batch, start, start + 20) for start in (0, 20, 40)]
        assert [r for part in parts for r in part] == list(batch)
        assert [len(part) for part in parts] == [20, 20, 20]
