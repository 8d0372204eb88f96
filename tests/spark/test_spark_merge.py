"""Replay of several logs in a named order, and what is sent to the workers in place of a shuffle."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

import walkit
from tests.state.histories import Row, random_rows, state_of
from walkit.errors import OptionsError
from walkit.spark import changes, diff, history, replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ONE, OTHER, THIRD = "00000000000000aa", "00000000000000bb", "00000000000000cc"


def together(spark: SparkSession, logs: dict[str, list[Row]]) -> DataFrame:
    """The records of several logs, with the columns that a load of several has."""
    rows = [
        (lsn, kind, key, value, None, log_id)
        for log_id, records in logs.items()
        for lsn, (kind, key, value) in enumerate(records, 1)
    ]
    types = "lsn bigint, kind tinyint, key binary, value binary, timestamp timestamp, log_id string"
    return spark.createDataFrame(rows, types)


def state(df: DataFrame) -> dict[bytes, tuple[bytes | None, int]]:
    """A state as a dict; fails where a key is there twice."""
    rows = df.toArrow().to_pylist()
    found = {row["key"]: (row["value"], row["lsn"]) for row in rows}
    assert len(found) == len(rows)
    return found


def test_the_last_log_that_has_a_key_wins(spark: SparkSession) -> None:
    """Three seeded logs over the same keys in two orders: of each key the last log's record, deletes as well."""
    logs = {name: random_rows(seed, 40) for seed, name in enumerate((ONE, OTHER, THIRD), 1)}
    df = together(spark, logs)
    for order in ((ONE, OTHER, THIRD), (THIRD, ONE, OTHER)):
        expected: dict[bytes, tuple[bytes | None, int]] = {}
        for name in order:
            for _, key, _ in logs[name]:
                expected.pop(key or b"", None) if key is not None else None
            expected |= state_of(logs[name])
        assert state(replay(df, logs=order)) == expected


def test_a_conflict_of_keys_is_refused(spark: SparkSession) -> None:
    """Two logs with a key in common and no order: the query fails and names it; with other keys it is a state."""
    df = together(spark, {ONE: [(1, b"k", b"1")], OTHER: [(1, b"k", b"2"), (1, b"l", b"3")]})
    with pytest.raises(Exception, match="key 0x6B is in several logs"):
        replay(df).collect()
    apart = df.where((F.col("log_id") == OTHER) | (F.col("key") != b"k"))
    assert state(replay(apart)) == {b"k": (b"2", 1), b"l": (b"3", 2)}
    with pytest.raises(Exception, match=f"does not name the log {OTHER}"):
        replay(df, logs=[ONE]).collect()
    with pytest.raises(Exception, match="several rows with the newest LSN 1"):
        replay(df.union(df), logs=[OTHER, ONE]).collect()


def test_the_newest_lsns_are_broadcast(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans of one log's replay: no value is shuffled up to the bound, which `keys` may reach; above it values are."""
    with walkit.open(tmp_path / "log") as log:
        log.append_many([b"%d" % n for n in range(50)], [b"%d" % (n % 7) for n in range(50)])
    df = spark.read.format("walkit").load(str(tmp_path / "log"))
    replay(df).explain()
    broadcast = capsys.readouterr().out
    monkeypatch.setattr(sys.modules["walkit.spark.replay"], "BROADCAST_WORDS", 0)
    replay(df).explain()
    shuffled = capsys.readouterr().out
    by_lsn = state(replay(df, 40))
    replay(df, keys=0).explain()
    assert "BroadcastHashJoin" in capsys.readouterr().out
    monkeypatch.undo()
    assert "BroadcastHashJoin" in broadcast and "SortMergeJoin" not in broadcast
    assert "SortMergeJoin" in shuffled and "BroadcastHashJoin" not in shuffled
    assert state(replay(df, 40)) == by_lsn
    assert sorted(lsn for _, lsn in state(replay(df)).values()) == list(range(44, 51))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda df: replay(df, logs=[]), "sequence of different log ids"),
        (lambda df: replay(df, logs="aa"), "sequence of different log ids"),
        (lambda df: replay(df, logs=["a", "a"]), "sequence of different log ids"),
        (lambda df: replay(df.drop("log_id"), logs=["a"]), "needs a column 'log_id'"),
        (lambda df: replay(df, keys=-1), "keys is -1"),
        (lambda df: diff(df, df.drop("log_id")), r"diff \(left side\) takes the records of one log"),
        (lambda df: changes(df, 1), "changes takes the records of one log"),
        (lambda df: history(df, b"k"), "history takes the records of one log"),
    ],
)
def test_misuse_is_refused(spark: SparkSession, make: Callable[[DataFrame], DataFrame], text: str) -> None:
    """An order or a number of keys that is none: an error that names it, before Spark does anything."""
    with pytest.raises(OptionsError, match=text):
        make(together(spark, {ONE: [(1, b"k", b"1")]}))
