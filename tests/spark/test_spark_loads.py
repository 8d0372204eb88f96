"""Functions of `walkit.spark` take a log: a path, or a DataFrame as a load gave it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import walkit.spark
from tests.spark.kinds import KEYS, KINDS, TAKEN, both_loads, fill, wrong_answers
from tests.spark.trimmed import OPTIONS, make_store
from walkit.spark.facts import LogFacts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def loads(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataFrame]:
    """The log of the table of kinds, by both ways to load it."""
    path = tmp_path_factory.mktemp("kinds") / "log"
    fill(path)
    return both_loads(str(path))


# Slow: a cached load has twenty queries. test_keys_are_read_alone (test_spark_reload.py) reads one.
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in TAKEN else []) for kind in KINDS]
)
def test_each_kind_is_right_or_no_load(loads: dict[str, DataFrame], kind: str) -> None:
    """Take a step after a load, by both ways to load: five questions have the log's answer, or NotALoadError."""
    assert wrong_answers(loads, [kind]) == []


# Slow: eleven loads. Tests of links and of objects ask by path, the test below by time, and test_spark_tables bounds
# a load by times.
@pytest.mark.slow
def test_a_path_does_what_its_load_does(spark: SparkSession, tmp_path: Path) -> None:
    """A trimmed store by its path, at an LSN and at a time, and some of its keys: the states of the process."""
    path = tmp_path / "store"
    past = make_store(path, [("work", 3, 90), ("checkpoint", True), ("work", 4, 60)])
    then, newest = datetime.now(UTC), max(past)
    with walkit.Store.open(path, options=OPTIONS) as store:
        store.put(b"later", b"value")
    asked = walkit.spark.replay(path, newest).unionAll(walkit.spark.replay(str(path), at_time=then))
    asked = asked.unionAll(walkit.spark.replay(walkit.spark.load(path, snapshot=True), at_time=then))
    found = Counter((bytes(r.key), bytes(r.value)) for r in asked.collect())
    assert found == dict.fromkeys(past[newest].items(), 3)
    (row,) = walkit.spark.diff((path, then), path).collect()
    (fed,) = walkit.spark.changes(path, since=then).collect()
    assert (bytes(row.key), row.change) == (bytes(fed.key), fed.change) == (b"later", "I")
    some = sorted(past[newest])[:2]
    assert (
        sorted(bytes(r.key) for r in walkit.spark.replay(path, newest, only=[*some, b"absent"]).collect())
        == some
    )
    with pytest.raises(walkit.HistoryTrimmedError):
        walkit.spark.replay(path, at_time=then - timedelta(days=1))
    with pytest.raises(walkit.OptionsError, match="not both"):
        walkit.spark.replay(path, 3, at_time=then)


def test_the_history_of_each_of_several_logs_counts(spark: SparkSession, tmp_path: Path) -> None:
    """A compacted log alone and in a load of two: dropped states are refused in the load of two as well."""
    path, other = tmp_path / "store", tmp_path / "log"
    past = make_store(path, [("work", 3, 300), ("compact", 1.0), ("work", 4, 90)])
    fill(other)
    (known,) = LogFacts.all_of(alone := walkit.spark.load(path))
    assert known.exact_from_lsn > 20
    uses: list[Callable[[], DataFrame]] = [
        lambda: walkit.spark.replay(alone, 10),
        lambda: walkit.spark.diff((alone, 10), alone),
        lambda: walkit.spark.changes(alone, 10, 20),
        lambda: walkit.spark.history(alone),
        lambda: walkit.spark.states(path, [10, known.last_lsn]),
    ]
    for use in uses:
        with pytest.raises(walkit.HistoryTrimmedError) as caught:
            use()
        assert caught.value.exact_from_lsn == known.exact_from_lsn
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    keys = sorted(bytes(row.key) for row in walkit.spark.replay([path, other], at_time=tomorrow).collect())
    assert keys == sorted([*past[max(past)], *(b"key %d" % n for n in range(1, KEYS))])


def test_what_a_stream_does_not_take_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """readStream with snapshot: the query ends in walkit's words and no error of Spark's; replay and diff refuse."""
    fill(tmp_path / "log")
    stream = spark.readStream.format("walkit").option("snapshot", "true").load(str(tmp_path / "log"))
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "offsets")).start()
    with pytest.raises(Exception, match="OptionsError: option snapshot is for"):
        query.awaitTermination(60)
    words = str(query.exception())
    assert "PYTHON_DATA_SOURCE_ERROR" not in words and "UnboundLocalError" not in words
    uses: list[Callable[[], DataFrame]] = [
        lambda: walkit.spark.replay(stream),
        lambda: walkit.spark.diff(stream, stream),
    ]
    for use in uses:
        with pytest.raises(walkit.NotALoadError, match=r"a stream: spark\.read instead of"):
            use()
