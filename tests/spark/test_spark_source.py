"""The data source `walkit`: what a log holds is what Spark reads."""

from __future__ import annotations

import itertools
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import StructType

import walkit
from tests.spark.loading import load
from walkit.read.ranges import FrameRange
from walkit.record import RECORD_SCHEMA
from walkit.spark.columns import RECORD_STRUCT
from walkit.spark.scan import share

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

WHEN = datetime(2013, 1, 1, 5, 15, 0, 123456, tzinfo=UTC)


def rows(df: DataFrame) -> list[tuple[object, ...]]:
    """The rows in LSN order."""
    return [tuple(row.values()) for row in df.toArrow().sort_by("lsn").to_pylist()]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of 3,000 records in several segments."""
    path = tmp_path_factory.mktemp("log") / "many"
    options = walkit.LogOptions(durability="none", segment_bytes=64 * 1024, frame_bytes_max=16 * 1024)
    with walkit.open(str(path), options=options) as log:
        for start in range(0, 3000, 100):
            numbers = range(start, start + 100)
            log.append_many(
                [b"value-%d" % n * 4 for n in numbers], keys=[b"key-%d" % (n % 50) for n in numbers]
            )
    return path


def test_a_row_is_a_record(spark: SparkSession, tmp_path: Path) -> None:
    """Every kind of record, absent and empty keys and values, with a time and without: row for record."""
    path = tmp_path / "log"
    with walkit.open(str(path)) as log:
        log.append(b"event")
        log.append(b"", key=b"")
        log.append(b"\x00\xff", key=b"k", timestamp=WHEN)
        log.delete(b"k")
        with log.transaction() as tx:
            tx.put(b"a", b"1")
            tx.delete(b"b")
        expected = [(r.lsn, int(r.kind), r.key, r.value, r.timestamp) for r in log.read()]
    df = load(spark, path)
    assert df.schema.simpleString() == RECORD_STRUCT.simpleString()
    assert df.toArrow().schema == RECORD_SCHEMA
    found = rows(df)
    assert found == expected
    assert found[:4] == [
        (1, 1, None, b"event", None),
        (2, 1, b"", b"", None),
        (3, 1, b"k", b"\x00\xff", WHEN),
        (4, 2, b"k", None, None),
    ]
    assert [row[0] for row in found] == list(range(1, 7))


def test_partitions_share_the_log(spark: SparkSession, many: Path) -> None:
    """Four partitions asked for: there are several, and each record is in exactly one, in order."""
    df = load(spark, many, partitions=4)
    assert 2 <= df.rdd.getNumPartitions() <= 4
    parts = df.selectExpr("spark_partition_id() part", "lsn").toArrow().to_pylist()
    lsns = [row["lsn"] for row in sorted(parts, key=lambda row: int(row["part"]))]
    assert lsns == list(range(1, 3001))
    assert load(spark, many, partitions=1).rdd.getNumPartitions() == 1


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 100, None])
def test_ranges_are_shared_out_evenly(parts: int | None) -> None:
    """Ranges of many sizes: each in one partition, in order, none over its share by more than one range."""
    sizes = [8, 1, 8, 8, 8, 3, 8, 8, 2, 8, 8, 8] * 3
    starts = [sum(sizes[:n]) << 20 for n in range(len(sizes) + 1)]
    ranges = [FrameRange(1, a, b, a + 1, b, 1) for a, b in itertools.pairwise(starts)]
    shares = share(ranges, parts)
    assert [frames for part in shares for frames in part] == ranges
    wanted = parts or max(os.cpu_count() or 1, 2)
    assert len(shares) <= wanted
    assert all(shares)
    for part in shares:
        assert part[-1].end_position - part[0].start_position <= starts[-1] // wanted + (8 << 20)
    assert share([], parts) == ()


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({"firstLsn": 2990}, 2990, 3000),
        ({"LASTLSN": "7"}, 1, 7),
        ({"firstLsn": 1450, "lastLsn": 1460}, 1450, 1460),
        ({"firstLsn": 3001}, 1, 0),
    ],
)
def test_bounds_are_inclusive(
    spark: SparkSession, many: Path, options: dict[str, object], first: int, last: int
) -> None:
    """Options firstLsn and lastLsn cut inside frames and segments, and may leave nothing."""
    assert [row[0] for row in rows(load(spark, many, **options).select("lsn"))] == list(
        range(first, last + 1)
    )


def test_a_frame_keeps_what_it_saw(spark: SparkSession, tmp_path: Path) -> None:
    """A live log grows after load(): the DataFrame stays as it was at each use, a new load() sees more."""
    with walkit.open(str(tmp_path / "log")) as log:
        log.append_many([b"v"] * 10, keys=[b"old"] * 10)
        df = load(spark, tmp_path / "log")
        log.append_many([b"v"] * 5, keys=[b"old"] * 5)
        assert df.count() == 10
        assert rows(walkit.spark.replay(df)) == [(b"old", b"v", 10)]
        assert load(spark, tmp_path / "log").count() == 15


def test_columns_by_a_schema(spark: SparkSession, many: Path) -> None:
    """A user's schema picks columns and their order."""
    df = spark.read.format("walkit").schema("key binary, lsn bigint").load(str(many))
    assert rows(df.where("lsn = 7")) == [(b"key-6", 7)]
    with pytest.raises(Exception, match="the schema has no column"):
        spark.read.format("walkit").schema(StructType([])).load(str(many)).count()
    with pytest.raises(Exception, match="schema='lsn int': a log has lsn bigint"):
        spark.read.format("walkit").schema("lsn int").load(str(many)).count()
