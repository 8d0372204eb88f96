"""Filter push-down: fewer ranges are read, and the rows are those that Spark alone would find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

import walkit
from walkit.errors import CorruptionError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.read.ranges import FrameRange, plan_ranges, read_range
from walkit.read.reader import view_of
from walkit.record import RECORD_SCHEMA
from walkit.spark.filters import LsnFilter, take_filters
from walkit.storage.address import storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SWITCH = "spark.sql.python.filterPushdown.enabled"
RECORDS = 4000
PARTS = 4
LSN = ("lsn",)


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of 4,000 records in frames of 20 and several segments."""
    path = tmp_path_factory.mktemp("log") / "segments"
    options = walkit.LogOptions(durability="none", segment_bytes=64 * 1024, frame_bytes_max=16 * 1024)
    with walkit.open(str(path), options=options) as log:
        for start in range(0, RECORDS, 20):
            numbers = range(start, start + 20)
            log.append_many(
                [b"value-%d" % n * 4 for n in numbers], keys=[b"key-%d" % (n % 7) for n in numbers]
            )
    assert len(list(path.glob("*.segment"))) > 2
    return path


@contextmanager
def switched(spark: SparkSession, setting: str) -> Iterator[None]:
    """Spark's switch set for a while."""
    before = spark.conf.get(SWITCH)
    spark.conf.set(SWITCH, setting)
    try:
        yield
    finally:
        spark.conf.set(SWITCH, str(before))


# Condition, LSNs it leaves, most partitions that may be read with push-down; None where nothing is pruned.
CONDITIONS: list[tuple[str, range | list[int], int | None]] = [
    ("lsn <=> 1234", [1234], 1),
    ("1234 = lsn", [1234], 1),
    ("lsn > 3990", range(3991, 4001), 1),
    ("lsn <= 11", range(1, 12), 1),
    ("lsn between 1990 and 2010", range(1990, 2011), 2),
    ("lsn in (3, 4, 3999)", [3, 4, 3999], 2),
    ("lsn in (3, 2000, 3999) and lsn in (2000, 7)", [2000], 1),
    ("lsn > 100 and lsn < 200 and lsn > 150 and lsn <= 160", range(151, 161), 1),
    ("lsn > 200 and lsn < 100", [], 1),
    ("lsn >= 3801 and key = 'key-0'", range(3802, 4001, 7), 1),
    ("lsn >= 3901 or key = 'key-9'", range(3901, 4001), None),
    ("not (lsn <= 3950)", range(3951, 4001), 1),  # Spark turns it round
    ("lsn != 1", range(2, 4001), None),
    ("lsn is null", [], None),
    ("lsn in (5, null)", [5], None),
]


@pytest.mark.spark
def test_fewer_ranges_and_the_same_rows(spark: SparkSession, segments: Path) -> None:
    """Filter by each condition with the switch on, in one job: what Spark alone leaves; only what can match is read."""

    def load(condition: str) -> DataFrame:
        reader = spark.read.format("walkit").option("partitions", PARTS).option("pushFilters", True)
        return reader.load(str(segments)).where(condition)

    holds = [F.expr(condition).alias(f"c{n}") for n, (condition, _, _) in enumerate(CONDITIONS)]
    with switched(spark, "false"):
        judged = spark.read.format("walkit").load(str(segments)).select("*", *holds).toArrow().to_pylist()
        for condition, _, _ in CONDITIONS[::8]:
            assert load(condition).rdd.getNumPartitions() >= PARTS - 1, condition
    asked = []
    with switched(spark, "true"):
        for condition, _, most in CONDITIONS:
            df = load(condition)
            assert most is None or df.rdd.getNumPartitions() <= most, condition
            asked.append(df.select(F.lit(condition).alias("condition"), "*"))
        found: dict[str, list[dict[str, object]]] = {condition: [] for condition, _, _ in CONDITIONS}
        for row in reduce(DataFrame.union, asked).toArrow().sort_by("lsn").to_pylist():
            found[row.pop("condition")].append(row)
    judged.sort(key=lambda row: int(row["lsn"]))
    for n, (condition, lsns, _) in enumerate(CONDITIONS):
        assert [row["lsn"] for row in found[condition]] == list(lsns), condition
        alone = [{name: row[name] for name in RECORD_SCHEMA.names} for row in judged if row[f"c{n}"]]
        assert found[condition] == alone, condition
    assert all(row["value"] == b"value-%d" % (int(row["lsn"]) - 1) * 4 for row in judged)


@pytest.mark.spark
def test_options_and_filters_are_one_condition(spark: SparkSession, segments: Path) -> None:
    """Options firstLsn and lastLsn stay in force under a filter, a user's schema too; an empty log has no rows."""
    df = spark.read.format("walkit").schema("key binary, lsn bigint").option("pushFilters", True)
    rows = (
        df.option("firstLsn", 100)
        .option("lastLsn", 300)
        .load(str(segments))
        .where("lsn >= 50 and lsn <= 102")
        .collect()
    )
    assert sorted((row.lsn, bytes(row.key)) for row in rows) == [
        (100, b"key-1"),
        (101, b"key-2"),
        (102, b"key-3"),
    ]


@pytest.mark.spark
def test_an_empty_log_under_a_filter(spark: SparkSession, tmp_path: Path) -> None:
    """No range at all is left to read: no rows in both settings."""
    walkit.open(str(tmp_path / "log")).close()
    for setting in ("true", "false"):
        with switched(spark, setting):
            reader = spark.read.format("walkit").option("pushFilters", True)
            assert reader.load(str(tmp_path / "log")).where("lsn > 0").collect() == []


@pytest.mark.spark
def test_the_switch_of_a_session(spark: SparkSession) -> None:
    """A session of walkit's own has the switch on; registering with another leaves it as it stands there."""
    assert spark.conf.get(SWITCH) == "true"
    with switched(spark, "false"):
        walkit.spark.register(spark)
        assert walkit.spark.session() is spark
        assert spark.conf.get(SWITCH) == "false"


@pytest.mark.spark
def test_what_is_skipped_is_not_read(spark: SparkSession, segments: Path, tmp_path: Path) -> None:
    """Damage in the body of an early frame: a filter above it does not meet it, and one that includes it fails."""
    log = tmp_path / "log"
    log.mkdir()
    for file in segments.iterdir():
        (log / file.name).write_bytes(file.read_bytes())
    first = min(log.glob("*.segment"))
    data = bytearray(first.read_bytes())
    data[data.index(b"value-30value-30")] ^= 1
    first.write_bytes(data)
    reader = spark.read.format("walkit").option("pushFilters", True)

    def lsns(condition: str) -> list[int]:
        return sorted(row.lsn for row in reader.load(str(log)).where(condition).collect())

    assert lsns("lsn > 60 and lsn < 63") == [61, 62]
    assert lsns("lsn < 3") == [1, 2]
    with pytest.raises(Exception, match="CorruptionError"):
        lsns("lsn > 20 and lsn < 30")
    with pytest.raises(Exception, match="CorruptionError"), switched(spark, "false"):
        lsns("lsn > 60 and lsn < 63")


# A DataFrame of LSN 1 to 4000, used more than once: the name of the use, and how many rows it has.
Use = Callable[[DataFrame], DataFrame]
USES: list[tuple[str, Use, int]] = [
    ("under a condition", lambda df: df.where("lsn < 3"), 2),
    ("then whole", lambda df: df, 4000),
    ("under another one", lambda df: df.where("lsn > 3990"), 10),
    ("twice, a condition first", lambda df: df.where("lsn <= 10").union(df), 4010),
    ("twice, a condition last", lambda df: df.union(df.where("lsn <= 10")), 4010),
    ("under two conditions", lambda df: df.where("lsn <= 10").union(df.where("lsn > 3900")), 110),
]


@pytest.mark.spark
@pytest.mark.parametrize(("setting", "uses"), [("true", USES), ("false", USES[1:4:2])])
def test_a_frame_may_be_used_in_any_way(
    spark: SparkSession, segments: Path, setting: str, uses: list[tuple[str, Use, int]]
) -> None:
    """One DataFrame in six queries, some of which use it twice, in both settings: each has all of its rows."""
    df = spark.read.format("walkit").option("partitions", 2).load(str(segments))
    with switched(spark, setting):
        assert {name: use(df).count() for name, use, _ in uses} == {name: rows for name, _, rows in uses}


@pytest.mark.spark
def test_why_filters_are_not_pushed_by_default(spark: SparkSession, segments: Path) -> None:
    """With pushFilters this Spark gives a whole DataFrame the rows of an earlier condition, and no error."""
    # When this fails, Spark keeps what was planned with the query: then push by default.
    df = spark.read.format("walkit").option("pushFilters", True).load(str(segments))
    found = {name: use(df).count() for name, use, _ in USES[:2]}
    assert found == {"under a condition": 2, "then whole": 2}


# -- the filters themselves, without Spark

HANDED_BACK: list[Filter] = [
    EqualTo(LSN, None),
    EqualNullSafe(LSN, None),
    EqualTo(LSN, True),
    GreaterThan(LSN, 4.5),
    LessThan(LSN, "7"),
    In(LSN, (1, None)),
    In(LSN, (1, 2.0)),
    IsNull(LSN),
    Not(EqualTo(LSN, 5)),
    Not(In(LSN, (5,))),
    EqualTo(("key",), b"k"),
    GreaterThan(("kind",), 1),
    EqualTo(("lsn", "lsn"), 5),
    StringContains(LSN, "4"),
    IsNotNull(("key",)),
]


@pytest.mark.parametrize("given", HANDED_BACK, ids=map(str, HANDED_BACK))
def test_what_a_log_cannot_apply_is_handed_back(given: Filter) -> None:
    """Nulls, other types, negations and other columns: handed back as they came, between two that are taken."""
    start = LsnFilter(first_lsn=5)
    wanted, handed_back = take_filters([IsNotNull(LSN), given, LessThan(LSN, 9)], start)
    assert len(handed_back) == 1 and handed_back[0] is given
    assert wanted == LsnFilter(first_lsn=5, last_lsn=8)


numbers = st.integers(-3, 25)
conditions = st.lists(
    st.one_of(
        st.builds(EqualTo, st.just(LSN), numbers),
        st.builds(EqualNullSafe, st.just(LSN), numbers),
        st.builds(GreaterThan, st.just(LSN), numbers),
        st.builds(GreaterThanOrEqual, st.just(LSN), numbers),
        st.builds(LessThan, st.just(LSN), numbers),
        st.builds(LessThanOrEqual, st.just(LSN), numbers),
        st.builds(In, st.just(LSN), st.lists(numbers, max_size=4).map(tuple)),
    ),
    max_size=4,
)

COMPARE = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    In: lambda a, b: a in b,
}


@given(filters=conditions, size=st.integers(1, 7))
def test_taken_filters_are_exact(filters: list[Filter], size: int) -> None:
    """Any AND of conditions on LSN 1 to 21, in ranges: rows as by plain comparison, no range with one is skipped."""
    wanted, handed_back = take_filters(filters, LsnFilter())
    assert handed_back == []
    expected = [
        n
        for n in range(1, 22)
        if all(COMPARE[type(f)](n, f.value) for f in filters)  # type: ignore[attr-defined, no-untyped-call]
    ]
    first, last = wanted.bounds()
    found: list[int] = []
    for start in range(1, 22, size):
        stop = min(start + size - 1, 21)
        inside = [n for n in expected if start <= n <= stop]
        meets = wanted.meets(FrameRange(1, start, stop + 1, start, stop, stop - start + 1))
        assert meets or not inside
        if wanted.among is None:
            assert meets == bool(inside)
        if meets:
            kept = [n for n in range(start, stop + 1) if n >= (first or 0) and (last is None or n <= last)]
            batch = pa.RecordBatch.from_pydict({"lsn": pa.array(kept, pa.int64())})
            found += wanted.pick(batch).column("lsn").to_pylist()
    assert found == expected


def test_a_range_is_read_only_where_it_is_wanted(segments: Path) -> None:
    """Read ranges between bounds inside and across frames: exactly these LSNs, whichever range they are in."""
    ranges = plan_ranges(str(segments), parts=5)
    assert len(ranges) >= 5
    for first, last in [
        (1, 1),
        (20, 21),
        (1, RECORDS),
        (777, 1999),
        (3999, 9999),
        (0, 0),
        (9, 8),
        (4001, 4002),
    ]:
        lsns = [
            lsn
            for frames in ranges
            for batch in read_range(str(segments), frames, first_lsn=first, last_lsn=last)
            for lsn in batch.column("lsn").to_pylist()
        ]
        assert lsns == list(range(max(first, 1), min(last, RECORDS) + 1))


def test_damage_before_the_bounds_is_met_where_the_way_leads_through_it(
    segments: Path, tmp_path: Path
) -> None:
    """A damaged header before the wanted frame breaks the way to it: CorruptionError, after what stands before it."""
    log = tmp_path / "log"
    log.mkdir()
    for file in segments.iterdir():
        (log / file.name).write_bytes(file.read_bytes())
    (frames,) = [r for r in plan_ranges(str(log), parts=1) if r.first_lsn == 1]
    view, _ = view_of(storage_at(str(log)))
    header = next(header for header, _, _ in view.frames(21, 21, body=False))
    assert header.first_lsn == 21
    segment = min(log.glob("*.segment"))
    data = bytearray(segment.read_bytes())
    data[SEGMENT_HEADER_BYTES + header.position] ^= 1
    segment.write_bytes(data)
    read = read_range(str(log), frames, first_lsn=5, last_lsn=100)
    assert next(read).column("lsn").to_pylist() == list(range(5, 21))
    with pytest.raises(CorruptionError):
        next(read)
    skipped = read_range(str(log), frames, first_lsn=41, last_lsn=60)
    with pytest.raises(CorruptionError):
        list(skipped)
