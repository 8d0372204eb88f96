"""Replay and diff of records that are not all there, or there twice: refused by the plan, or noticed in the data."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

import walkit
from tests.spark.loading import load
from tests.spark.trimmed import make_store
from walkit.errors import HistoryTrimmedError, OptionsError
from walkit.spark import changes, diff, history, replay
from walkit.spark.facts import LogFacts
from walkit.spark.plan import LogRead, look_through, parse_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS, KEYS = 400, 60


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two logs "a" and "b" without a key in common, in which most keys are set several times."""
    folder = tmp_path_factory.mktemp("logs")
    for name in ("a", "b"):
        with walkit.open(folder / name, options=walkit.LogOptions(durability="none")) as log:
            for n in range(RECORDS):
                # The newest records of "b" have LSNs of records of "a" that were superseded.
                key = n * n % KEYS if name == "a" else n % KEYS if n < RECORDS // 2 else 0
                log.submit(b"%d" % n, b"%s-%d" % (name.encode(), key))
            log.sync()
    return {name: folder / name for name in ("a", "b")}


def state_of(path: Path) -> dict[bytes, int]:
    """The newest LSN of each key, by a loop over the log."""
    with walkit.open(path, mode="r") as log:
        return {record.key: record.lsn for record in log.read() if record.key is not None}


def told(df: DataFrame) -> list[tuple[bytes, int]]:
    """Spark's state, rows as they come, by key."""
    return sorted((row["key"], row["lsn"]) for row in replay(df).toArrow().to_pylist())


NUMBERED = "row_number() over (order by lsn)"


def one_kind(df: DataFrame) -> DataFrame:
    """A table with kind 1 alone."""
    return df.sparkSession.createDataFrame([(1,)], "kind byte")


Change = Callable[["DataFrame"], "DataFrame"]
Use = Callable[[], "DataFrame"]
# What is done to the records of "a", and a word of the refusal; "" where it is no harm.
CHANGES: list[tuple[str, Change, str]] = [
    ("puts alone", lambda df: df.where("kind = 1"), "condition cast(kind as int) = 1"),
    ("with a value", lambda df: df.dropna(subset=["value"]), "value"),
    ("by time", lambda df: df.where(F.col("timestamp") < F.current_timestamp()), "timestamp"),
    ("some LSNs", lambda df: df.where("lsn in (3, 4) and lsn < 9"), "lsn"),
    ("every second", lambda df: df.where("lsn % 2 = 0"), "lsn"),
    ("one of two", lambda df: df.where("lsn > 5 or kind = 2"), "lsn"),
    ("by chance", lambda df: df.where(F.rand() < 0.5), "rand"),
    ("computed", lambda df: df.withColumn("n", F.length("value")).where("n > 3").drop("n"), "n > 3"),
    ("a sample", lambda df: df.sample(0.5), "a sample"),
    ("a split", lambda df: df.randomSplit([0.5, 0.5])[0], "a sample"),
    ("a limit", lambda df: df.orderBy("lsn").limit(300).select("*"), "a limit"),
    ("one row a key", lambda df: df.dropDuplicates(["key"]), "equal in key"),
    ("twice", lambda df: df.union(df), "twice"),
    ("twice in part", lambda df: df.where("lsn <= 9").unionByName(df.where("lsn >= 9")), "twice"),
    ("in two parts", lambda df: df.where("lsn <= 9").union(df.where("not (lsn <= 8 + 1)")), ""),
    ("twice and once", lambda df: df.union(df).dropDuplicates(["lsn", "key"]), ""),
    ("distinct", lambda df: df.union(df).distinct(), ""),
    ("shuffled", lambda df: df.repartition(3, "kind").sortWithinPartitions("value").hint("broadcast"), ""),
    ("renamed", lambda df: df.withColumnRenamed("lsn", "n").where("n > 0").withColumnRenamed("n", "lsn"), ""),
    ("by key", lambda df: df.where("key is not null and length(key) > 0 and lsn is not null"), ""),
    ("by keys", lambda df: df.join(df.select("key").distinct(), "key", "left_semi"), ""),
    ("cached", lambda df: df.where("kind = 1").cache(), "kind"),
    ("subtracted", lambda df: df.subtract(df.where("kind = 2")), "set operation EXCEPT"),
    ("all but", lambda df: df.exceptAll(df.where("kind = 2")), "set operation EXCEPT"),
    ("intersected", lambda df: df.intersect(df.where("kind = 1")), "set operation INTERSECT"),
    ("joined by kind", lambda df: df.join(one_kind(df), "kind"), "the join on"),
    ("semi-joined by kind", lambda df: df.join(one_kind(df), "kind", "left_semi"), "the join on"),
    ("anti-joined by LSN", lambda df: df.join(df.where("kind = 2"), "lsn", "left_anti"), "the join on"),
    ("numbered", lambda df: df.withColumn("n", F.expr(NUMBERED)).where("n <= 30"), "n <= 30"),
    ("LSNs as text", lambda df: df.where(F.col("lsn").cast("string") <= "5"), "lsn"),
    ("LSNs narrowed", lambda df: df.where(F.col("lsn").cast("smallint") <= 5), "lsn"),
    (
        "exploded",
        lambda df: df.withColumn("n", F.explode(F.expr("if(kind = 2, array(), array(1))"))),
        "explode",
    ),
]


@pytest.mark.spark
@pytest.mark.parametrize(("change", "word"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_what_a_plan_shows(spark: SparkSession, logs: dict[str, Path], change: Change, word: str) -> None:
    """Filter, sample, double and reorder records: replay and diff refuse them before Spark runs, or go on."""
    whole = load(spark, logs["a"])
    df = change(whole)
    uses: list[Use] = [lambda: replay(df), lambda: diff(whole, df), lambda: diff((df, 7), whole)]
    for make in uses:
        if not word:
            make()
            continue
        with pytest.raises(OptionsError) as caught:
            make()
        assert word in str(caught.value) and caught.value.option == "df"
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.spark
def test_what_was_granted_is_right(spark: SparkSession, logs: dict[str, Path]) -> None:
    """The records in two parts, and twice and made distinct: the state is that of the log."""
    df = load(spark, logs["a"])
    expected = sorted(state_of(logs["a"]).items())
    granted = {name: change for name, change, word in CHANGES if not word}
    for name in ("in two parts", "twice and once"):
        assert told(granted[name](df)) == expected, name


@pytest.mark.spark
def test_a_view_hides_nothing(spark: SparkSession, logs: dict[str, Path], tmp_path: Path) -> None:
    """Conditions in SQL, on views and in common table expressions: refused all the same; bounds are seen."""
    load(spark, logs["a"]).createOrReplaceTempView("whole_a")
    try:
        for query in (
            "select * from whole_a where kind = 1",
            "with x as (select * from whole_a where value is not null) select * from x where lsn > 0",
            "select * from whole_a limit 5",
            "select * from whole_a union all select * from whole_a",
        ):
            with pytest.raises(OptionsError, match="replay needs"):
                replay(spark.sql(query))
        for query in (
            "select * from whole_a where key <> 'x'",
            "with x as (select * from whole_a) select * from x",
        ):
            replay(spark.sql(query))
    finally:
        spark.catalog.dropTempView("whole_a")


@pytest.mark.spark
def test_two_logs_are_told_apart_by_key(
    spark: SparkSession, logs: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A union of two logs with the same LSNs and other keys: each key once, by its own newest record, and a warning."""
    both = load(spark, logs["a"]).union(load(spark, logs["b"]))
    expected = sorted({**state_of(logs["a"]), **state_of(logs["b"])}.items())
    assert told(both) == expected
    assert ["records of 2 logs" in record.getMessage() for record in caplog.records] == [True]
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    rows = diff(load(spark, logs["a"]), both).toArrow().to_pylist()
    assert sorted((row["key"], row["change"]) for row in rows) == [
        (k, "I") for k in sorted(state_of(logs["b"]))
    ]


@pytest.mark.spark
def test_the_data_show_what_the_plan_does_not(spark: SparkSession, logs: dict[str, Path]) -> None:
    """A log twice, with nothing known of it any more: the query fails and names a key and its LSN, on every way."""
    df = load(spark, logs["a"]).withMetadata("lsn", {})
    twice = df.union(df)
    for result in (replay(twice), diff(df, twice)):
        with pytest.raises(Exception, match=r"(?i)needs each record once; of key 0x612d[0-9a-f]+"):
            result.count()
    # Records that were superseded may be there as often as they like.
    state = state_of(logs["a"])
    assert told(df.union(df.where(f"lsn < {min(state.values())}"))) == sorted(state.items())
    deleted = spark.createDataFrame(
        [(1, 1, b"k", b"v", None), (2, 2, b"k", None, None), (2, 1, b"k", b"w", None)], df.schema
    )
    with pytest.raises(Exception, match="2 rows with the newest LSN 2"):
        replay(deleted).count()


@pytest.mark.spark
def test_pushed_filters_are_refused(spark: SparkSession, logs: dict[str, Path]) -> None:
    """A load with pushFilters is given the rows of another use: no replay or diff of it, with a schema or without."""
    pushed = load(spark, logs["a"], pushFilters=True)
    reader = spark.read.format("walkit").schema("lsn bigint, kind tinyint, key binary, value binary")
    own_schema = reader.option("pushFilters", True).load(str(logs["a"]))
    for df in (pushed, own_schema, pushed.where("lsn > 3").select("*")):
        uses: list[Use] = [partial(diff, (df, 200), df), partial(replay, df)]
        for make in uses:
            with pytest.raises(OptionsError, match="loaded with pushFilters=true") as caught:
                make()
            assert caught.value.option == "pushFilters"


@pytest.mark.spark
def test_the_history_of_each_log_counts(spark: SparkSession, logs: dict[str, Path], tmp_path: Path) -> None:
    """A trimmed log as the second of a union: refused as it is alone; its snapshot, or parts of it, are taken."""
    path = tmp_path / "store"
    make_store(path, [("work", 3, 90), ("checkpoint", True), ("work", 4, 90)])
    first, trimmed = load(spark, logs["a"]), load(spark, path)
    with pytest.raises(HistoryTrimmedError):
        replay(first.union(trimmed))
    replay(first.union(load(spark, path, snapshot=True)))


@pytest.mark.spark
def test_what_was_taken_off_is_not_checked(
    spark: SparkSession, logs: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A filtered load whose facts were taken off: taken as it is, with a warning; with a schema of one's own: not."""
    puts = load(spark, logs["a"]).where("kind = 1")
    assert told(puts.withMetadata("lsn", {})) == sorted(state_of(logs["a"]).items())
    assert ["was not checked" in record.getMessage() for record in caplog.records] == [True]
    schema = "lsn bigint, kind tinyint, key binary, value binary"
    with pytest.raises(OptionsError, match="kind"):
        replay(spark.read.format("walkit").schema(schema).load(str(logs["a"])).where("kind = 1"))


@pytest.mark.spark
def test_what_the_plan_hides_is_said(
    spark: SparkSession, logs: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint of filtered rows, and Python code between rows and log: a warning that nothing was checked."""
    df = load(spark, logs["a"])
    replay(df)
    assert caplog.records == []
    for hidden in (df.where("kind = 1").localCheckpoint(), df.mapInArrow(lambda batches: batches, df.schema)):
        caplog.clear()
        replay(hidden)
        assert ["was not checked" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.spark
def test_the_history_of_each_of_several_logs_counts(
    spark: SparkSession, logs: dict[str, Path], tmp_path: Path
) -> None:
    """A compacted log in a load of two: states, changes and histories are refused as they are of the log alone."""
    path = tmp_path / "store"
    make_store(path, [("work", 3, 300), ("compact", 1.0), ("work", 4, 90)])
    alone = load(spark, path)
    known = LogFacts.of(alone)
    assert known is not None and known.exact_from_lsn > 20
    many = spark.read.format("walkit").load([str(path), str(logs["a"])])
    one = many.where(f"log_id = '{known.log_id}'").drop("log", "log_id")
    for df in (alone, one):
        uses: list[Use] = [
            partial(replay, df, 10),
            partial(diff, (df, 10), df),
            partial(changes, df, 10, 20),
            partial(history, df, None),
        ]
        for make in uses:
            with pytest.raises(HistoryTrimmedError) as caught:
                make()
            assert caught.value.exact_from_lsn == known.exact_from_lsn
        with pytest.raises(OptionsError, match="no state at LSN 99,999"):
            replay(df, 99_999)
    assert sorted(map(tuple, replay(one).collect())) == sorted(map(tuple, replay(alone).collect()))
    with pytest.raises(OptionsError, match="no state of several logs at LSN 300"):
        replay(many, 300)
    assert replay(many).count() == replay(alone).count() + len(state_of(logs["a"]))


@pytest.mark.spark
def test_what_a_stream_does_not_take_is_refused_in_a_sentence(
    spark: SparkSession, logs: dict[str, Path], tmp_path: Path
) -> None:
    """readStream with snapshot: the query ends in walkit's words and no error of Spark's; replay and diff refuse."""
    stream = spark.readStream.format("walkit").option("snapshot", "true").load(str(logs["a"]))
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "offsets")).start()
    with pytest.raises(Exception, match="OptionsError: option snapshot is for"):
        query.awaitTermination(60)
    words = str(query.exception())
    assert "PYTHON_DATA_SOURCE_ERROR" not in words and "UnboundLocalError" not in words
    uses: list[Use] = [lambda: replay(stream), lambda: diff(stream, stream)]
    for make in uses:
        with pytest.raises(OptionsError, match=r"no stream: spark\.read in place of"):
            make()


# -- the plan as text, without Spark


def facts(**changes: object) -> LogFacts:
    """What a load noted of a log of 100 records, with changes."""
    known: dict[str, object] = {
        "log_id": "00000000000000aa",
        "first_lsn": 1,
        "last_lsn": 100,
        "exact_from_lsn": 60,
        "snapshot_lsn": 0,
        "from_lsn": 0,
        "push_filters": False,
    }
    return LogFacts(**{**known, **changes})  # type: ignore[arg-type]


RELATION = "RelationV2[lsn#2L, kind#3, key#4, value#5, timestamp#6] walkit"
# As Spark Connect prints them: a condition, the bounds it leaves, and what is left out by it.
CONDITIONS: list[tuple[str, tuple[int, int | None], list[str]]] = [
    ("(lsn#2L <= cast(50 as bigint))", (1, 50), []),
    ("(lsn#2L < cast((59 + 1) as bigint))", (1, 59), []),
    ("((cast(60 as bigint) > lsn#2L) AND (cast(7 as bigint) <= lsn#2L))", (7, 59), []),
    ("between(lsn#2L, cast(3 as bigint), cast(59 as bigint))", (3, 59), []),
    ("NOT (lsn#2L > cast(5 as bigint))", (1, 5), []),
    ("(lsn#2L <=> cast(5 as bigint))", (5, 5), []),
    ("(cast(lsn#2L as double) < cast(5.5 as double))", (1, 5), []),
    ("(cast(lsn#2L as decimal(20,0)) >= 5.5)", (6, None), []),
    ("((isnotnull(key#4) AND isnotnull(lsn#2L)) AND (lsn#2L > cast(-1 as bigint)))", (1, None), []),
    ("(key#4 = cast(lsn <= 5 as binary))", (1, None), []),
    ("NOT (lsn#2L = cast(5 as bigint))", (1, None), ["NOT (lsn = cast(5 as bigint))"]),
    ("NOT between(lsn#2L, 3, 59)", (1, None), ["NOT between(lsn, 3, 59)"]),
    ("(lsn#2L < 1E999)", (1, None), ["lsn < 1E999"]),
    ("(lsn#2L < cast((6 / 2) as bigint))", (1, None), ["lsn < cast((6 / 2) as bigint)"]),
    ("((lsn#2L <= 5) OR (key#4 = 0x6B))", (1, None), ["(lsn <= 5) OR (key = 0x6B)"]),
    ("((lsn#2L <= 5) AND (kind#3 = 1))", (1, 5), ["kind = 1"]),
    (
        "CASE WHEN (kind#3 = 1) THEN true ELSE false END",
        (1, None),
        ["CASE WHEN (kind = 1) THEN true ELSE false END"],
    ),
    ("(size#9 > 3)", (1, None), []),
]


@pytest.mark.parametrize(("condition", "bounds", "left_out"), CONDITIONS, ids=[c[0] for c in CONDITIONS])
def test_conditions_as_spark_prints_them(
    condition: str, bounds: tuple[int, int | None], left_out: list[str]
) -> None:
    """Read a condition in a plan's text: bounds on the LSN are exact, what touches other columns is left out."""
    found = look_through(parse_plan(f"Filter {condition}\n+- {RELATION}"), {}, facts())
    assert [(read.first_lsn, read.last_lsn) for read in found.reads] == [bounds]
    assert found.left_out == [f"the condition {part}" for part in left_out]


def test_a_plan_of_spark_connect() -> None:
    """A plan with a view, a subquery, an alias and a line break in a literal: the log below the last child is found."""
    text = """Project [x#9L AS lsn#10L, kind#3, key#4, value#5]
+- Filter (key#4 IN (list#35 []) AND (x#9L <= cast(50 as bigint)))
   :  +- Project [key#40]
   :     +- Filter (kind#41 = 1)
   :        +- RelationV2[lsn#39L, kind#41, key#40] walkit
   +- Filter NOT (key#4 = cast(a
b as binary))
      +- SubqueryAlias v
         +- View (`v`, [lsn#2L, kind#3, key#4, value#5, timestamp#6])
            +- Project [lsn#2L AS x#9L, kind#3, key#4, value#5, (lsn#2L + 1) AS y#11L]
               +- RelationV2[lsn#2L, kind#3, key#4, value#5, timestamp#6] walkit
"""
    found = look_through(parse_plan(text), {}, facts())
    assert found.reads == [LogRead(facts=facts(), last_lsn=50, by_key=True)]
    assert found.left_out == found.twice == []
    computed = look_through(parse_plan(text.replace("(x#9L <=", "(y#11L <=")), {}, facts())
    assert computed.reads[0].last_lsn is None
    assert computed.left_out == ["the condition y <= cast(50 as bigint)"]


def test_steps_that_are_not_known_end_the_search() -> None:
    """An aggregation or Python code between rows and log: nothing is said of the records below."""
    for step in ("Aggregate [key#4], [key#4, max(lsn#2L) AS lsn#20L]", "MapInArrow f(lsn#2L), [lsn#20L]"):
        found = look_through(
            parse_plan(f"Sample 0.0, 0.5, false, 7\n+- {step}\n   +- {RELATION}"), {}, facts()
        )
        assert found.reads == []


def test_one_read_of_one_log_is_joined_by_its_lsn_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Look at the plans: no window over one log's records, under bounds and conditions on the key too; one over two."""
    path = str(tmp_path / "log")
    with walkit.open(path) as log:
        log.append_many([b"a", b"b", b"c"], [b"k", b"l", b"k"])
    df = spark.read.format("walkit").load(path)
    parts = df.where("key = x'6b'").union(df.where("key = x'6c'"))
    newest, before = {b"k": b"c", b"l": b"b"}, {b"k": b"a", b"l": b"b"}
    for records, counted, expected in (
        (df, False, newest),
        (df.where("lsn <= 2"), False, before),
        (parts, True, newest),
    ):
        state = replay(records)
        plan = state._jdf.queryExecution().analyzed().toString()
        assert ("Window" in plan) is counted
        assert {bytes(r.key): bytes(r.value) for r in state.collect()} == expected
