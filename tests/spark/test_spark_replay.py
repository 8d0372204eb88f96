"""Replay of rows in Spark against a dict."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.histories import woven
from walkit.errors import OptionsError
from walkit.record import RECORD_SCHEMA
from walkit.spark import replay_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

History = list[tuple[int, bytes | None, bytes | None]]
State = dict[bytes, tuple[bytes | None, int]]


def frame_of(spark: SparkSession, history: History, *, first_lsn: int = 1) -> DataFrame:
    """The records of a history, shuffled: a DataFrame has no order."""
    rows = [
        {"lsn": lsn, "kind": kind, "key": key, "value": value, "timestamp": None}
        for lsn, (kind, key, value) in enumerate(history, first_lsn)
    ]
    random.Random(7).shuffle(rows)
    return spark.createDataFrame(pa.Table.from_pylist(rows, RECORD_SCHEMA))


def replayed(df: DataFrame, at_lsn: int | None = None) -> State:
    """Spark's answer as a dict; fails on a key that is there twice."""
    table = replay_rows(df, at_lsn).toArrow()
    assert table.column_names == ["key", "value", "lsn"]
    rows = table.to_pylist()
    state = {row["key"]: (row["value"], row["lsn"]) for row in rows}
    assert len(state) == len(rows)
    return state


def expected(history: History, at_lsn: int | None = None) -> State:
    """The same by the rule read aloud: in LSN order, a record with a key sets it, a delete removes it."""
    state: State = {}
    for lsn, (kind, key, value) in enumerate(history, 1):
        if at_lsn is not None and lsn > at_lsn:
            break
        if key is None:
            continue
        if kind == 2:
            state.pop(key, None)
        else:
            state[key] = (value, lsn)
    return state


keys = st.sampled_from([None, b"", b"a", b"b", b"\x00", b"\xff" * 40])
histories = st.lists(
    st.tuples(st.sampled_from([1, 1, 2, 3]), keys, st.sampled_from([None, b"", b"v", b"w" * 50])), max_size=40
)


@settings(
    max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(several=st.lists(histories, min_size=12, max_size=12), share=st.floats(0, 1.1))
def test_replay_is_a_dict_replay(spark: SparkSession, several: list[History], share: float) -> None:
    """Weave 12 histories of puts, deletes and events into one log: the state at an LSN is that of a dict."""
    history = woven(several)
    cut = int(share * len(history))
    assert replayed(frame_of(spark, history), cut) == expected(history, cut)


@pytest.mark.parametrize("at_lsn", [-1, True, 1.5, "7"])
def test_an_invalid_lsn_is_refused(spark: SparkSession, at_lsn: object) -> None:
    """at_lsn has to be a number of 0 or more; else a typed error before Spark does anything."""
    with pytest.raises(OptionsError, match="at_lsn"):
        replay_rows(frame_of(spark, [(1, b"k", b"v")]), at_lsn)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda df: df.drop("kind"), "kind=None: .* lacks this column"),
        (
            lambda df: df.selectExpr("lsn", "kind", "string(key) key", "value"),
            "key='string': replay_rows needs binary",
        ),
        (
            lambda df: df.selectExpr("int(lsn) lsn", "kind", "key", "value"),
            "lsn='int': replay_rows needs bigint",
        ),
        (lambda df: df.selectExpr("lsn LSN", "kind", "key", "value"), "lsn=None: .* lacks this column"),
    ],
)
def test_columns_are_checked_first(spark: SparkSession, change: object, text: str) -> None:
    """A column that is missing or of another type is named, with what replay_rows needs."""
    assert callable(change)
    with pytest.raises(OptionsError, match=text):
        replay_rows(change(frame_of(spark, [(1, b"k", b"v")])))


def test_a_row_twice_fails_the_query(spark: SparkSession) -> None:
    """Rows that are there twice: the query names key and LSN; those that were superseded may be there at will."""
    df = frame_of(spark, [(1, b"k", b"v"), (1, b"k", b"w"), (2, b"l", None), (1, b"l", b"x")])
    with pytest.raises(Exception, match=r"each record once; of key 0x6[BC] the DataFrame has 2 rows"):
        replay_rows(df.union(df)).count()
    assert replayed(df.union(df.where("lsn = 1"))) == {b"k": (b"w", 2), b"l": (b"x", 4)}
