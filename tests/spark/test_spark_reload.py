"""Replay, changes and diff of a load as it is: less is read and shuffled, and the answers are those of the process."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import walkit
from tests.spark.loading import load
from tests.spark.trimmed import OPTIONS, STEPS, Step, Told, make_store, told_in_process, values_of
from tests.support.histories import diff_of, newest_of, random_rows, write
from walkit.errors import HistoryTrimmedError
from walkit.record import RECORD_SCHEMA
from walkit.spark import changes, diff, replay
from walkit.spark.facts import TOUCHED_KEY
from walkit.spark.loads import Load
from walkit.spark.record_filter import newest_up_to, of_keys
from walkit.state import DIFF_SCHEMA
from walkit.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NUMBERS = "lsn bigint, key binary"


@pytest.fixture(autouse=True, scope="module")
def small_logs_are_loaded_again() -> object:
    """Load small logs again, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["walkit.spark.loads"], "RELOAD_LSNS", -1)
        yield


def told(make: Callable[[], DataFrame]) -> Told:
    """Spark's state, or how it refuses."""
    try:
        rows = make().toArrow().to_pylist()
    except HistoryTrimmedError as error:
        return error.wanted, error.exact_from_lsn
    return {row["key"]: (row["value"], row["lsn"]) for row in rows}


def plan_of(df: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    """The plan that Spark prints."""
    capsys.readouterr()
    df.explain()
    return capsys.readouterr().out


@pytest.mark.slow
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=STEPS.map(lambda steps: [("work", 3, 70), *steps]),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_states_changes_and_diffs_of_any_history(
    spark: SparkSession, steps: list[Step], shares: tuple[float, float]
) -> None:
    """Epochs, trims, compactions as Hypothesis makes them, at two LSNs: the states of the process, or its refusals."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        past = make_store(path, steps)
        df, lsns = load(spark, path), sorted(past)
        earlier, later = sorted(lsns[int(share * (len(lsns) - 1))] for share in shares)
        for lsn in (earlier, later, None):
            found = told(lambda lsn=lsn: replay(df, lsn))  # type: ignore[misc]
            in_process = told_in_process(path, lsns[-1] if lsn is None else lsn)
            # Spark refuses a trimmed log's state without its snapshot, where the process uses it.
            assert found == in_process or isinstance(found, tuple)
            assert isinstance(found, tuple) or values_of(found) == past[lsns[-1] if lsn is None else lsn]
        try:
            differing, changed = (
                diff((df, earlier), (df, later)),
                changes(df, earlier + 1, max(later, earlier + 1)),
            )
        except HistoryTrimmedError:
            return
        rows = sorted(
            tuple(row.values()) for row in differing.select(*DIFF_SCHEMA.names).toArrow().to_pylist()
        )
        assert rows == [tuple(r.values()) for r in walkit.diff((path, earlier), (path, later)).to_pylist()]
        state = dict(past[earlier])
        for row in sorted(changed.toArrow().to_pylist(), key=lambda row: row["lsn"]):
            assert state.pop(row["key"], None) == row["pre_value"]
            if row["change"] != "D":
                state[row["key"]] = row["post_value"]
        assert later == earlier or state == past[later]


def test_the_bitmap_reaches_over_words(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 seeded records, so five words of LSNs: as a bitmap and as a join of LSNs the states are those of a loop."""
    rows = random_rows(5, 300)
    write(str(tmp_path / "log"), rows, 2)
    df = load(spark, tmp_path / "log")
    for at_lsn in (64, 300):
        expected = {
            key: (value, lsn) for key, (kind, value, lsn) in _newest(rows, at_lsn).items() if kind != 2
        }
        assert told(lambda at_lsn=at_lsn: replay(df, at_lsn)) == expected  # type: ignore[misc]
    monkeypatch.setattr(sys.modules["walkit.spark.replay"], "BROADCAST_WORDS", 0)
    assert told(lambda: replay(df)) == expected


def _newest(
    rows: list[tuple[int, bytes | None, bytes | None]], at_lsn: int
) -> dict[bytes, tuple[int, bytes | None, int]]:
    return {
        key: (kind, value, lsn) for lsn, (kind, key, value) in enumerate(rows[:at_lsn], 1) if key is not None
    }


# Slow: twelve loads. test_spark_provenance has the rows of a diff of one log at two LSNs, and counts its scans;
# test_spark_diff has the rows of an LSN on either side.
@pytest.mark.slow
def test_a_diff_of_one_log_shuffles_touched_keys(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two LSNs of a log, in both orders, equal, and at its ends, in one job: an oracle's rows, by plans that join."""
    rows = random_rows(11, 300, keys=40)
    write(str(tmp_path / "log"), rows)
    df, asked, expected = load(spark, tmp_path / "log"), [], {}
    for left, right, unchanged in (
        (250, 300, False),
        (300, 250, True),
        (300, 300, False),
        (0, 300, False),
        (300, 299, False),
        (0, 0, True),
    ):
        found = diff((df, left), (df, right), unchanged=unchanged)
        by_spark = abs(left - right) not in (50, 1)
        assert ("BroadcastHashJoin" in plan_of(found, capsys)) == (not unchanged and by_spark)
        case = f"{left} {right} {unchanged}"
        asked.append(found.select(F.lit(case).alias("case"), *DIFF_SCHEMA.names))
        expected[case] = diff_of(newest_of(rows, left), newest_of(rows, right), unchanged=unchanged)
    shown: dict[str, list[Any]] = {case: [] for case in expected}
    for row in reduce(DataFrame.union, asked).toArrow().to_pylist():
        shown[row.pop("case")].append(tuple(row.values()))
    for case, found_rows in shown.items():
        assert sorted(found_rows) == sorted(expected[case]), case


# Slow: twelve loads. test_spark_changes holds these rows, and the test of wanted keys below holds the records that a
# reader leaves out.
@pytest.mark.slow
def test_a_feed_is_read_by_the_keys_that_it_touches(spark: SparkSession, tmp_path: Path) -> None:
    """Feeds of short ranges over three epochs: readers leave other keys out, and the rows are those of a join."""
    rows = random_rows(17, 400, keys=60)
    write(str(tmp_path / "log"), rows, 3)
    df, many = (load(spark, tmp_path / "log", partitions=parts) for parts in (3, 8))
    for first, last in ((391, 400), (201, 230)):
        narrowed = Load.of(df, "a test").until(last).part(touched_from=first)
        touched = {key for _, key, _ in rows[first - 1 : last] if key is not None}
        read = narrowed.toArrow()
        assert set(read["key"].to_pylist()) <= touched
        early = read.filter(pc.less(read["lsn"], first))
        assert len(early) <= 3 * len(touched) and len(read.schema) == len(df.columns)
    for loaded, first, last in ((df, 1, 20), (many, 301, 400)):
        whole = Load.of(loaded, "a test").until(last).part(touched_from=first)
        assert TOUCHED_KEY not in whole.schema["lsn"].metadata
    by_readers, by_join = (
        [
            sorted(map(tuple, feed.collect()), key=repr)
            for feed in (changes(loaded, 301, net=True), changes(loaded, 301))
        ]
        for loaded in (df, many)
    )
    assert by_readers == by_join and all(by_readers)


@pytest.mark.slow
def test_touched_keys_of_any_size_fit(spark: SparkSession, tmp_path: Path) -> None:
    """Touch keys of 90 MiB in all where a broadcast may have 66 MiB: changes and diffs all the same."""
    options = walkit.LogOptions(durability="none", codec="zstd")
    with walkit.open(tmp_path / "log", options=options) as log:
        for n in range(90):
            log.submit(b"value", key=b"%08d" % n * (1 << 17))
    df = load(spark, tmp_path / "log")
    name = "spark.sql.maxBroadcastTableSize"
    spark.conf.set(name, "66m")  # Spark's table of one row counts as 64
    try:
        assert changes(df, 1, 90).groupBy("change").count().collect() == [("I", 90)]
        assert diff((df, 1), df).groupBy("change").count().collect() == [("I", 89)]
    finally:
        spark.conf.unset(name)


def test_keys_are_read_alone(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plans: one read of a replay has no values; what is read again is bounded; what is cached is read as it is."""
    write(str(tmp_path / "log"), random_rows(5, 100))
    df = load(spark, tmp_path / "log", partitions=3)
    of = Load.of(df, "a test").until(80)
    numbers = of.part(NUMBERS, first_lsn=51)
    assert numbers.columns == ["lsn", "key"] and of.part().columns == df.columns
    assert sorted(row.lsn for row in numbers.collect()) == list(range(51, 81)) and of.part().count() == 80
    assert of.part().rdd.getNumPartitions() == 3
    plan = plan_of(replay(df), capsys)
    (read,) = (line for line in plan.splitlines() if "BatchScan walkit" in line and "value" not in line)
    assert "lsn" in read and "timestamp" not in read
    bounded = Load.of(load(spark, tmp_path / "log", firstLsn=20), "a test")
    assert bounded.part(NUMBERS).count() == 81
    df.cache()
    assert sorted(row.lsn for row in of.part(first_lsn=51).collect()) == list(range(51, 81))
    assert "InMemoryTableScan" in plan_of(replay(df, 80), capsys)
    df.unpersist()


def test_a_log_that_changed_is_not_loaded_again(spark: SparkSession, tmp_path: Path) -> None:
    """Append, compact, remove and replace a log after its load: appended records do no harm, all else is an error."""
    path = tmp_path / "s"
    past = make_store(path, [("work", 3, 90), ("reopen",), ("work", 4, 60)])
    newest = max(past)
    df = load(spark, path)
    with Store.open(path, options=OPTIONS) as store:
        store.put(b"key-1", b"later")
    found = told(lambda: replay(df))
    assert values_of(found) == past[newest]
    with Store.open(path, options=OPTIONS) as store:
        store.checkpoint()
        store.compact()
    with pytest.raises(walkit.GapError, match="load it again"):
        replay(df)
    path.rename(tmp_path / "other")
    with pytest.raises(walkit.LogNotFoundError):
        replay(df)
    make_store(path, [("work", 3, 90), ("reopen",), ("work", 4, 60)])
    with pytest.raises(walkit.DivergenceError):
        replay(df)


def test_another_history_is_not_loaded_again(spark: SparkSession, tmp_path: Path) -> None:
    """Cut a log's end and write other records there: no second load, not at an LSN before the cut either."""
    path, kept = tmp_path / "log", tmp_path / "kept"
    write(str(kept), random_rows(5, 50))
    shutil.copytree(kept, path)
    write(str(path), random_rows(6, 50))
    df = load(spark, path)
    replay(df)
    shutil.rmtree(path)
    shutil.copytree(kept, path)
    write(str(path), random_rows(7, 50))
    for at_lsn in (None, 20):
        with pytest.raises(walkit.DivergenceError):
            replay(df, at_lsn)
    with pytest.raises(Exception, match="DivergenceError"):
        df.collect()


def test_what_is_superseded_in_a_part_is_left_out() -> None:
    """Seeded records in batches of seven, at two LSNs: the newest up to each, as a loop has them, and little else."""
    rows = random_rows(8, 200, keys=5)
    records = [
        {"lsn": lsn, "kind": kind, "key": key, "value": value, "timestamp": None}
        for lsn, (kind, key, value) in enumerate(rows, 1)
    ]
    batches = [pa.RecordBatch.from_pylist(records[n : n + 7], RECORD_SCHEMA) for n in range(0, 200, 7)]
    for lsns in ((200,), (60, 180), (180, 60), (0, 1), (7, 7), (0,), (1000, 140)):
        found = [row for batch in newest_up_to(batches, lsns) for row in batch.to_pylist()]
        shown = {row["lsn"] for row in found}
        needed = {lsn for at in lsns for _, lsn, _ in newest_of(rows, at).values()}
        assert (
            needed <= shown
            and len(shown) == len(found) <= 5 * len(set(lsns))
            and max(shown, default=0) <= max(lsns)
        )
        for row in found:
            kind, key, value = rows[row["lsn"] - 1]
            assert (row["kind"], row["key"], row["value"]) == (kind, key, value)


def test_of_wanted_keys_the_newest_and_all_from_an_lsn_on() -> None:
    """Seeded records in batches of seven, and some keys: all their records from an LSN on, and the newest before it."""
    rows = random_rows(9, 200, keys=30)
    records = [
        {"lsn": lsn, "kind": kind, "key": key, "value": value, "timestamp": None}
        for lsn, (kind, key, value) in enumerate(rows, 1)
    ]
    batches = [pa.RecordBatch.from_pylist(records[n : n + 7], RECORD_SCHEMA) for n in range(0, 200, 7)]
    for wanted in ([], [b""], [b"", b"key-3", b"absent"], sorted({row[1] for row in rows if row[1]})):
        for first in (1, 8, 150, 201):
            read = [*of_keys(batches, pa.array(wanted, pa.binary()), first)]
            assert all(batch.schema.equals(RECORD_SCHEMA) for batch in read)
            found = {
                row["lsn"]: (row["kind"], row["key"], row["value"]) for b in read for row in b.to_pylist()
            }
            newest = {lsn for key, (_, lsn, _) in newest_of(rows, first - 1).items() if key in wanted}
            later = {lsn for lsn in range(first, 201) if rows[lsn - 1][1] in wanted}
            assert found == {lsn: rows[lsn - 1] for lsn in newest | later}
            assert sum(map(len, read)) == len(found)
