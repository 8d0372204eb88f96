"""Diff and replay in Spark against those in process, and diff against rows written by hand."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import walkit
from tests.spark.loading import load, logged
from tests.support.histories import DiffRow, Row, diff_of, newest_of, write
from walkit.errors import OptionsError
from walkit.models import CrashingStorage
from walkit.record import RECORD_SCHEMA
from walkit.spark import diff
from walkit.spark.diff import DIFF_STRUCT, SIDE, SideSpec, states_of
from walkit.state.diff import DIFF_SCHEMA, diff_states, narrowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUT, DELETE = 1, 2


def rows_of(df: DataFrame) -> list[DiffRow]:
    """The rows of a diff, by key."""
    assert df.schema == DIFF_STRUCT
    table = df.select(*DIFF_SCHEMA.names).toArrow()
    assert table.column_names == DIFF_SCHEMA.names
    return sorted(tuple(row.values()) for row in table.to_pylist())


LEFT: list[Row] = [
    (PUT, b"same", b"1"),
    (PUT, b"changed", b"1"),
    (PUT, b"deleted", b"1"),
    (PUT, None, b"event"),
    (PUT, b"to nothing", b"1"),
    (PUT, b"no value", None),
    (PUT, b"no value to empty", None),
    (PUT, b"gone", b"1"),
    (DELETE, b"gone", None),
    (PUT, b"", b""),
    (PUT, b"back", b"1"),
]
RIGHT: list[Row] = [
    (PUT, b"changed", b"1"),
    (PUT, b"changed", b"2"),
    (PUT, b"same", b"0"),
    (PUT, b"same", b"1"),
    (PUT, b"deleted", b"1"),
    (DELETE, b"deleted", None),
    (PUT, b"to nothing", None),
    (PUT, b"no value", None),
    (PUT, b"no value to empty", b""),
    (DELETE, b"never there", None),
    (PUT, None, b"other event"),
    (PUT, b"\xff", b"new"),
    (PUT, b"back", b"1"),
    (DELETE, b"back", None),
    (PUT, b"back", b"1"),
]
EXPECTED: list[DiffRow] = [
    (b"", "D", b"", None, 10, None),
    (b"back", "N", b"1", b"1", 11, 15),
    (b"changed", "C", b"1", b"2", 2, 2),
    (b"deleted", "D", b"1", None, 3, 6),
    (b"no value", "N", None, None, 6, 8),
    (b"no value to empty", "C", None, b"", 7, 9),
    (b"same", "N", b"1", b"1", 1, 4),
    (b"to nothing", "C", b"1", None, 5, 7),
    (b"\xff", "I", None, b"new", None, 12),
]
REVERSED = {"I": "D", "D": "I", "C": "C", "N": "N"}


@pytest.mark.spark
def test_expected_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Two histories by hand: the rows are exactly these, with equal keys and without, and turned round."""
    left, right = logged(spark, tmp_path, LEFT), logged(spark, tmp_path, RIGHT)
    assert rows_of(diff(left, right, unchanged=True)) == EXPECTED
    assert rows_of(diff(left, right)) == [row for row in EXPECTED if row[1] != "N"]
    turned = [(key, REVERSED[change], rv, lv, rl, ll) for key, change, lv, rv, ll, rl in EXPECTED]
    assert rows_of(diff(right, left, unchanged=True)) == turned


# Slow: eight loads. The last test of this file has equal and empty histories, of the function that the workers run.
@pytest.mark.slow
@pytest.mark.spark
def test_nothing_differs(spark: SparkSession, tmp_path: Path) -> None:
    """A log against itself, two empty logs, an empty one against one: no rows, or all of them."""
    write(str(tmp_path / "log"), LEFT)
    write(str(tmp_path / "empty"), [])
    log, empty = load(spark, tmp_path / "log"), load(spark, tmp_path / "empty")
    assert rows_of(diff(log, log)) == []
    assert rows_of(diff(empty, empty)) == []
    assert rows_of(diff(log, empty)) == diff_of(newest_of(LEFT), {})
    assert rows_of(diff(empty, log)) == diff_of({}, newest_of(LEFT))


@pytest.mark.spark
@pytest.mark.parametrize("at_lsn", [-1, True, "7", None])
def test_a_side_with_an_lsn_is_a_pair(spark: SparkSession, tmp_path: Path, at_lsn: object) -> None:
    """(log, LSN) is the state at that LSN, on either side; any other pair or LSN is refused."""
    df = logged(spark, tmp_path, RIGHT)
    if at_lsn is None:
        expected = diff_of(newest_of(RIGHT, 9), newest_of(RIGHT))
        assert rows_of(diff((df, 9), df)) == expected != []
        assert rows_of(diff((df, 9), (df, len(RIGHT)))) == expected
        with pytest.raises(OptionsError, match="is a pair"):
            diff(df, (df, 1, 2))  # type: ignore[arg-type]
        return
    with pytest.raises(OptionsError, match=r"at_lsn|is a pair"):
        diff(df, (df, at_lsn))  # type: ignore[arg-type]


history = st.lists(
    st.tuples(
        st.sampled_from([PUT, PUT, DELETE]),
        st.sampled_from([b"", b"a", b"b", b"c" * 70]),
        st.sampled_from([None, b"", b"v", b"w"]),
    ).map(lambda row: row if row[0] == PUT else (DELETE, row[1], None)),
    max_size=25,
)


def in_process(left: list[Row], right: list[Row], at_lsn: int) -> list[DiffRow]:
    """What `walkit.diff` says of the first at an LSN and the second at its end."""
    storages = CrashingStorage(), CrashingStorage()
    for storage, rows in zip(storages, (left, right), strict=True):
        write(storage, rows)
    return [tuple(row.values()) for row in walkit.diff((storages[0], at_lsn), storages[1]).to_pylist()]


DELETED: list[Row] = [(PUT, b"a", b"v"), (DELETE, b"a", None)]
"""A deletion that the diff against `DELETED[:1]` has to tell the LSN of; drawn histories need not have one."""


@example(left=DELETED[:1], right=DELETED, share=1.0, seed=0, size=9)
@example(left=DELETED, right=DELETED[:1], share=1.0, seed=0, size=1)
@given(left=history, right=history, share=st.floats(0, 1), seed=st.integers(0, 99), size=st.integers(1, 9))
def test_a_diff_by_workers_equals_that_in_process(
    left: list[Row], right: list[Row], share: float, seed: int, size: int
) -> None:
    """Any two histories with deletes, rows shuffled as Spark hands them out: LSNs of deletions and all are equal."""
    at_lsn = int(share * len(left))
    records = [
        {SIDE: side, "lsn": lsn, "kind": kind, "key": key, "value": value}
        for side, rows in ((False, left[:at_lsn]), (True, right))
        for lsn, (kind, key, value) in enumerate(rows, 1)
    ]
    random.Random(seed).shuffle(records)
    schema = pa.schema(
        [(SIDE, pa.bool_()), *(RECORD_SCHEMA.field(n) for n in ("lsn", "kind", "key", "value"))]
    )
    batches = pa.Table.from_pylist(records, schema).to_batches(max_chunksize=size)
    nowhere: Any = None
    states = states_of(batches, SideSpec(nowhere, nowhere, is_one=False))
    found = narrowed(diff_states(*states), DIFF_SCHEMA)
    expected = in_process(left, right, at_lsn)
    assert [tuple(row.values()) for row in found.to_pylist()] == expected
    assert expected == diff_of(newest_of(left, at_lsn), newest_of(right))
