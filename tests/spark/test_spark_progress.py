"""`walkit.spark.progress`: how far the jobs of a block are."""

from __future__ import annotations

import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import walkit
import walkit.spark
from tests.spark.test_spark_stream import filled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

GROUP = "spark.jobGroup.id"


@pytest.fixture
def loaded(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A log of 300 records in three partitions."""
    return spark.read.format("walkit").option("partitions", 3).load(str(filled(tmp_path / "log")))


def slow(df: DataFrame) -> DataFrame:
    """The same rows; each partition takes a moment, so that a look falls between two."""

    def wait(batches):  # type: ignore[no-untyped-def]
        time.sleep(0.5)
        yield from batches

    return df.mapInArrow(wait, df.schema)


def test_a_callback_has_the_tasks_of_the_blocks_jobs(spark: SparkSession, loaded: DataFrame) -> None:
    """Count, replay and report in one block, another job before it: only more tasks, all done at the end."""
    loaded.count()
    said = list[tuple[int, int]]()
    with walkit.spark.progress(lambda done, total: said.append((done, total))):
        assert slow(loaded).count() == 300
        walkit.spark.replay(loaded).toArrow()
        assert walkit.spark.diff_report((loaded, 100), loaded).reconciles
    assert all(done <= total for done, total in said) and all(a != b for a, b in pairwise(said))
    assert [done for done, _ in said] == sorted(done for done, _ in said)
    assert said[-1][0] == said[-1][1] >= 3 * 3 and said[0][0] < said[0][1]
    assert spark.sparkContext.getLocalProperty(GROUP) is None


def test_a_group_of_the_users_is_kept_and_others_are_not_counted(
    spark: SparkSession, loaded: DataFrame
) -> None:
    """Run in a user's job group, which had a job before, beside a job of another thread: three tasks and a count's."""
    context = spark.sparkContext
    context.setJobGroup("mine", "a report")
    said = list[int]()
    try:
        loaded.count()
        other = threading.Thread(target=loaded.count)
        other.start()
        with walkit.spark.progress(lambda done, total: said.append(total)):
            loaded.count()
        assert context.getLocalProperty(GROUP) == "mine"
        other.join()
    finally:
        context.setLocalProperty(GROUP, None)  # type: ignore[arg-type]
    assert said[-1] == 4


def test_errors_come_out_of_the_block(loaded: DataFrame) -> None:
    """A callback that fails does not stop the job, and is raised; an error of the block goes before it."""
    said = list[int]()

    def fail(done: int, total: int) -> None:
        said.append(done)
        raise RuntimeError("the bar is gone")

    counted = 0
    with pytest.raises(RuntimeError, match="the bar is gone"), walkit.spark.progress(fail):
        counted = slow(loaded).count()
    assert counted == 300 and len(said) == 1
    with pytest.raises(ZeroDivisionError), walkit.spark.progress(fail):
        print(1 / (slow(loaded).count() - 300))
    with pytest.raises(walkit.OptionsError, match="tasks done"), walkit.spark.progress("bar"):  # type: ignore[arg-type]
        pass


def test_without_a_callback_there_is_a_bar(
    loaded: DataFrame, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count on a terminal: the bar is on standard error, whole at the end, under its title."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with walkit.spark.progress(title="count"):
        slow(loaded).count()
    shown = capsys.readouterr().err.split("\r")
    assert shown[-1].startswith("count: 100%") and "4/4" in shown[-1] and len(shown) > 2
