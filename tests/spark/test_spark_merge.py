"""Replay of several logs in a named order, and the broadcast that replaces a shuffle."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import walkit.spark
from tests.spark.loading import logged
from tests.support.histories import Row, random_rows, state_of
from walkit.errors import OptionsError
from walkit.spark import changes, diff, history, replay, states
from walkit.spark.facts import LogFacts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

KEY: list[Row] = [(1, b"k", b"1")]


def together(spark: SparkSession, folder: Path, logs: Sequence[list[Row]]) -> tuple[DataFrame, list[str]]:
    """A load of several logs, and their ids."""
    loads = [LogFacts.all_of(logged(spark, folder, rows))[0] for rows in logs]
    return walkit.spark.load([facts.path for facts in loads]), [facts.log_id for facts in loads]


def state(df: DataFrame) -> dict[bytes, tuple[bytes | None, int]]:
    """A state as a dict; fails if a key is there twice."""
    rows = df.toArrow().to_pylist()
    found = {row["key"]: (row["value"], row["lsn"]) for row in rows}
    assert len(found) == len(rows)
    return found


def test_the_last_log_that_has_a_key_wins(spark: SparkSession, tmp_path: Path) -> None:
    """Three seeded logs over the same keys in two orders: of each key the last log's record, deletes as well."""
    rows = [random_rows(seed, 40) for seed in (1, 2, 3)]
    df, ids = together(spark, tmp_path, rows)
    for places in ((0, 1, 2), (2, 0, 1)):
        expected: dict[bytes, tuple[bytes | None, int]] = {}
        for place in places:
            for _, key, _ in rows[place]:
                expected.pop(key or b"", None) if key is not None else None
            expected |= state_of(rows[place])
        order = [ids[place] for place in places]
        assert state(replay(df, order=order)) == expected
    key = min(expected)
    assert state(replay(df, order=order, only=[key, b"absent"])) == {key: expected[key]}


def test_a_conflict_of_keys_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Two logs with a key in common and no order: the query fails and names it; with other keys it is a state."""
    df, _ = together(spark, tmp_path, [KEY, [(1, b"k", b"2"), (1, b"l", b"3")]])
    with pytest.raises(Exception, match="key 0x6B is in several logs"):
        replay(df).collect()
    apart, _ = together(spark, tmp_path, [KEY, [(1, b"l", b"3")]])
    assert state(replay(apart)) == {b"k": (b"1", 1), b"l": (b"3", 1)}


# Slow: twelve loads. test_the_bitmap_reaches_over_words has the states of both plans.
@pytest.mark.slow
def test_the_newest_lsns_are_broadcast(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans of one log's replay: no value is shuffled up to the bound; above it values are, with the same state."""
    df = logged(spark, tmp_path, [(1, b"%d" % (n % 7), b"%d" % n) for n in range(50)])
    replay(df).explain()
    broadcast = capsys.readouterr().out
    monkeypatch.setattr(sys.modules["walkit.spark.replay"], "BROADCAST_WORDS", 0)
    replay(df).explain()
    shuffled = capsys.readouterr().out
    by_join = state(replay(df, 40))
    monkeypatch.undo()
    assert "BroadcastHashJoin" in broadcast and "SortMergeJoin" not in broadcast
    assert "SortMergeJoin" in shuffled and "BroadcastHashJoin" not in shuffled
    assert state(replay(df, 40)) == by_join
    assert sorted(lsn for _, lsn in state(replay(df)).values()) == list(range(44, 51))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda df: replay(df, order=[]), "order=.*: name each log once"),
        (lambda df: replay(df, order="aa"), "order=.*: name each log once"),
        (lambda df: replay(df, order=["a", "a"]), "order=.*: name each log once"),
        (lambda df: replay(df, 1), "replay takes one log"),
        (lambda df: diff(df, df), r"diff \(left side\) takes one log"),
        (lambda df: changes(df, 1), "changes takes one log"),
        (lambda df: history(df, b"k"), "history takes one log"),
        (lambda df: states(df, [1]), "states takes one log"),
    ],
)
def test_misuse_is_refused(
    spark: SparkSession, tmp_path: Path, make: Callable[[DataFrame], DataFrame], text: str
) -> None:
    """An invalid order, and several logs for a function of one: an error before Spark does anything."""
    df, _ = together(spark, tmp_path, [KEY, KEY])
    with pytest.raises(OptionsError, match=text):
        make(df)
