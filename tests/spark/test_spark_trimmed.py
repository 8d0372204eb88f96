"""Spark on logs that were trimmed and compacted: the states of the process, or its refusals; never another state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import walkit
from tests.spark.loading import load
from tests.spark.trimmed import OPTIONS, Step, Told, make_store, told_in_process, values_of
from walkit.errors import HistoryTrimmedError
from walkit.record import RECORD_SCHEMA
from walkit.spark import diff, replay
from walkit.spark.facts import LogFacts
from walkit.state import DIFF_SCHEMA, KeyedTable
from walkit.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "v0" / "log"


def all_told(df: DataFrame, lsns: Iterable[int | None]) -> dict[int | None, Told]:
    """Spark's states, in one job, or how it refuses each."""
    found: dict[int | None, Told] = {}
    asked = []
    for lsn in lsns:
        try:
            asked.append(replay(df, lsn).select(F.lit(-1 if lsn is None else lsn).alias("at"), "*"))
        except HistoryTrimmedError as error:
            found[lsn] = error.wanted, error.exact_from_lsn
        else:
            found[lsn] = {}
    for row in reduce(DataFrame.union, asked).toArrow().to_pylist() if asked else ():
        state = found[None if row["at"] == -1 else row["at"]]
        assert isinstance(state, dict) and row["key"] not in state
        state[row["key"]] = (row["value"], row["lsn"])
    return found


WORK: Step = ("work", 3, 90)
MORE: Step = ("work", 4, 90)
# name, what was done, whether the log's records alone tell the last state
HISTORIES: list[tuple[str, list[Step], bool]] = [
    ("trimmed at its end", [WORK, ("reopen",), MORE, ("checkpoint", True)], False),
    (
        "checkpointed and compacted",
        [WORK, ("reopen",), MORE, ("checkpoint", False), ("reopen",), WORK, ("compact",), MORE],
        True,
    ),
    (
        "trimmed and compacted",
        [WORK, ("checkpoint", True), MORE, ("reopen",), WORK, ("checkpoint", False), ("compact", 0.8), MORE],
        False,
    ),
]


@pytest.mark.parametrize(
    ("steps", "whole"),
    # The last one has what the others have; test_spark_facts.py has the states of any history without Spark.
    [*(pytest.param(*h[1:], marks=pytest.mark.slow) for h in HISTORIES[:2]), HISTORIES[2][1:]],
    ids=[h[0] for h in HISTORIES],
)
def test_states_in_spark_equal_those_in_process(
    spark: SparkSession, tmp_path: Path, steps: list[Step], whole: bool
) -> None:
    """Epochs, transactions, deletes, checkpoints, compactions: equal states and errors at LSNs across the border."""
    path = tmp_path / "store"
    past = make_store(path, steps)
    with Store.open(path, options=OPTIONS) as store:
        border = store.exact_from_lsn
    newest = max(past)
    plain, complete = load(spark, path), load(spark, path, snapshot=True)
    assert (refusal(lambda: replay(plain)) is None) == whole
    refused = 0
    lsns = sorted({max(n for n in past if n < max(border, 1)), border, newest} & set(past))
    by_records, by_all = all_told(plain, lsns), all_told(complete, lsns)
    for lsn in lsns:
        in_process = told_in_process(path, lsn)
        refused += isinstance(in_process, tuple)
        assert isinstance(in_process, tuple) or values_of(in_process) == past[lsn]
        for found in (by_records[lsn], by_all[lsn]):
            assert found == in_process or isinstance(found, tuple)
        assert by_all[lsn] == in_process or lsn < border
    assert (refused > 0) == (border > 1)
    changed = diff((complete, border), complete).select(*DIFF_SCHEMA.names)
    rows = sorted(tuple(row.values()) for row in changed.toArrow().to_pylist())
    assert rows == [tuple(row.values()) for row in walkit.diff((path, border), path).to_pylist()]
    for left, right in ((plain, complete), (complete, plain)):
        assert (refusal(lambda left=left, right=right: diff(left, right)) is None) == whole  # type: ignore[misc]


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A compacted store that was never trimmed, and the LSN from which its states are exact, which is not its last."""
    path = tmp_path_factory.mktemp("store") / "compacted"
    make_store(path, [WORK, ("reopen",), MORE, ("reopen",), MORE, ("compact", 0.5)])
    with Store.open(path, options=OPTIONS) as store:
        border = store.exact_from_lsn
        assert 20 < border < store.log.acked_lsn - 20
    return path, border


def refusal(make: Callable[[], DataFrame]) -> int | None:
    """The LSN from which on states are exact, by the refusal of `make`; None without a refusal."""
    try:
        make()
    except HistoryTrimmedError as error:
        return error.exact_from_lsn
    return None


def test_a_state_carries_nothing(spark: SparkSession, compacted: tuple[Path, int]) -> None:
    """The facts are in the metadata of a loaded DataFrame, and not in those of a replayed state."""
    df = load(spark, compacted[0], lastLsn=compacted[1])
    (facts,) = LogFacts.all_of(df)
    assert facts.last_lsn == facts.exact_from_lsn == compacted[1]
    assert df.schema["lsn"].metadata == facts.to_metadata()
    assert df.toArrow().schema == RECORD_SCHEMA
    assert replay(df).schema["lsn"].metadata == {}


def test_the_records_from_an_lsn_on_are_a_wish(spark: SparkSession, tmp_path: Path) -> None:
    """firstLsn on a trimmed log: what the records from there on leave behind, as a replay with first_lsn does."""
    path = tmp_path / "store"
    make_store(path, [WORK, ("checkpoint", True), MORE])
    with walkit.open(path, mode="r") as log:
        first, table = log.first_lsn + 20, KeyedTable()
        walkit.replay(log, table, first_lsn=first)
    rows = replay(load(spark, path, firstLsn=first)).toArrow().to_pylist()
    assert {row["key"]: row["value"] for row in rows} == table.to_dict()
