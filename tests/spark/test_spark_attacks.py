"""Spark beside what befalls a log: its writer killed, a promotion, lost frames, holes, other time zones."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import walkit
import walkit.spark
from tests.spark.loading import load
from tests.spark.test_spark_stream import append, batches_of, reader_of, rows_of
from tests.support.damaged_logs import crash_image, in_frame, read
from tests.support.in_flight_logs import Flight
from tests.support.stores import SMALL
from walkit.models import CrashingStorage
from walkit.record import RECORD_SCHEMA
from walkit.replication import Primary, Replica, promote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def in_order(df: DataFrame) -> pa.Table:
    """The records as they are in the log."""
    return df.toArrow().sort_by("lsn").cast(RECORD_SCHEMA)


def newest(records: pa.Table) -> dict[bytes, tuple[int, bytes]]:
    """The state that puts lead to, by a loop."""
    return {row["key"]: (row["lsn"], row["value"]) for row in records.to_pylist()}


def state_of(df: DataFrame) -> dict[bytes, tuple[int, bytes]]:
    """The state by Spark."""
    return {row["key"]: (row["lsn"], row["value"]) for row in walkit.spark.replay(df).toArrow().to_pylist()}


def onto_disk(image: CrashingStorage, path: Path) -> Path:
    """Write the files of a log in memory into a folder."""
    path.mkdir()
    for name in image.names():
        (path / name).write_bytes(read(image, name))
    return path


WRITER = """
import sys, walkit
with walkit.open(sys.argv[1], options=walkit.LogOptions(segment_bytes=64 * 1024)) as log:
    for n in range(10**9):
        with log.transaction() as tx:
            for i in range(3):
                tx.put(b"key-%d" % ((n + i) % 9), b"%0400d" % n)
        print(log.durable_lsn, flush=True)
"""


@pytest.mark.spark
def test_a_writer_that_is_killed_changes_no_query(spark: SparkSession, tmp_path: Path) -> None:
    """Kill -9 the writer beside a query and a planned batch, recover, write more: both have what they planned."""
    # The query's workers begin to read when the writer is dead and another has written.
    path, killed = tmp_path / "log", tmp_path / "killed"
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        while int(child.stdout.readline()) < 150:
            pass
        df = load(spark, path, partitions=3)
        reader = reader_of(path)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        last = df.schema["lsn"].metadata["walkit"]["last_lsn"]
        assert 150 <= last <= end["lsn"] and child.poll() is None
        found, waiting = list[pa.Table](), str(killed)

        def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import os
            import time

            while not os.path.exists(waiting):
                time.sleep(0.01)
            yield from batches

        query = threading.Thread(target=lambda: found.append(in_order(df.mapInArrow(wait, df.schema))))
        query.start()
        while int(child.stdout.readline() or 10**9) < end["lsn"] + 30:
            pass
    finally:
        child.kill()
        child.communicate()
    with walkit.open(path) as log:
        assert log.recovery is not None and log.acked_lsn >= end["lsn"] + 30
        append(log, 50)
    killed.touch()
    query.join()
    with walkit.open(path, mode="r") as log_reader:
        whole = log_reader.to_arrow()
    assert found[0].equals(whole.slice(0, last))
    assert rows_of(reader, start, end) == list(range(1, end["lsn"] + 1))
    reader.commit(end)
    later = [lsn for lsns in batches_of(reader, end) for lsn in lsns]
    assert later == list(range(end["lsn"] + 1, len(whole) + 1))
    assert state_of(df) == newest(found[0])


def test_a_stream_continues_over_a_promotion(tmp_path: Path) -> None:
    """Promote a replica under a stream: each LSN once, one claim; a stream that read more of the old one diverges."""
    old, new = tmp_path / "old", tmp_path / "new"
    with (
        walkit.Store.open(old, options=SMALL) as store,
        Primary(store) as primary,
        Replica(new, primary.address, options=SMALL) as replica,
    ):
        append(store.log, 60)
        replica.wait_for(60, 30)
        reader = reader_of(new, maxRecordsPerTrigger=40)
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert rows_of(reader, start, end) == list(range(1, 41))
        reader.commit(end)
    assert promote(new).first_lsn == 61
    with walkit.Store.open(new, options=SMALL) as store:
        append(store.log, 60)
        (claim,) = store.log.claims()
    assert (claim.owner, claim.first_lsn) == (end["owner"], 41)
    again = reader_of(new)
    last = again.latestOffset(end, ReadAllAvailable())
    assert rows_of(again, end, last) == list(range(41, 121))
    assert last["epoch_id"] != end["epoch_id"] and last["owner"] == end["owner"]

    with walkit.Store.open(old, options=SMALL) as store:
        append(store.log, 20)
    of_old = reader_of(old, claim="none")
    apart = of_old.latestOffset(of_old.initialOffset(), ReadAllAvailable())
    assert apart["lsn"] == 80
    old.rename(tmp_path / "gone")
    new.rename(old)
    with pytest.raises(walkit.DivergenceError) as caught:
        reader_of(old, claim="none").latestOffset(apart, ReadAllAvailable())
    assert caught.value.first_lsn == 61


@pytest.mark.spark
def test_lost_frames_are_lost_for_spark_too(spark: SparkSession, tmp_path: Path) -> None:
    """Damage a frame, salvage: loads and new streams as readers, older streams a GapError, states of it refused."""
    image = crash_image(closed=True)
    path = onto_disk(image, tmp_path / "log")
    reader = reader_of(path, claim="none")
    before = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    start = reader.initialOffset()
    in_frame(1, 1, -1)(image)
    damaged = onto_disk(image, tmp_path / "damaged")
    with pytest.raises(walkit.CorruptionError), walkit.spark.errors():
        load(spark, damaged).count()
    walkit.open(damaged, options=walkit.LogOptions(recovery="salvage")).close()
    with walkit.open(damaged, mode="r") as log:
        expected = log.to_arrow()
        lost = sorted(set(range(1, log.last_lsn + 1)) - set(expected.column("lsn").to_pylist()))
    assert lost and before["lsn"] > max(lost)
    df = load(spark, damaged)
    assert in_order(df).equals(expected)
    assert walkit.spark.count(damaged) == len(expected)
    of_damaged = reader_of(damaged, claim="none")
    with pytest.raises(walkit.GapError):
        of_damaged.latestOffset(start, ReadAllAvailable())
    fresh = [lsn for lsns in batches_of(of_damaged, of_damaged.initialOffset()) for lsn in lsns]
    assert fresh == expected.column("lsn").to_pylist()
    with pytest.raises(walkit.HistoryTrimmedError):
        walkit.spark.changes(df, 1, min(lost)).count()
    with pytest.raises(walkit.HistoryTrimmedError):
        walkit.spark.replay(df, max(lost)).count()


@pytest.mark.spark
def test_holes_of_completion_order_give_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Recover a log of completion order whose third frame never landed: what was acknowledged is there, once."""
    flight = Flight(order="completion", flying=3)
    path = onto_disk(flight.landed([3, 4]), tmp_path / "log")
    with walkit.open(path) as log:
        log.append_many([b"more"] * 3, keys=[b"key 9"] * 3)
    with walkit.open(path, mode="r") as log:
        expected = log.to_arrow()
    lsns = expected.column("lsn").to_pylist()
    assert lsns == [1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13]
    df = load(spark, path, partitions=4)
    assert in_order(df).equals(expected) and walkit.spark.count(path) == len(lsns)
    assert state_of(df) == newest(expected)
    for batch in (1, 3, 100):
        reader = reader_of(path, maxRecordsPerTrigger=batch, claim="none")
        assert [lsn for found in batches_of(reader, reader.initialOffset()) for lsn in found] == lsns


@pytest.mark.spark
def test_a_moment_is_the_same_in_every_time_zone(spark: SparkSession, tmp_path: Path) -> None:
    """Write around both changes of a zone's clock, read in sessions of other zones: the same moments, however shown."""
    # Of Berlin's clock.
    changes = (
        datetime(2026, 3, 29, 1, tzinfo=UTC),
        datetime(2026, 10, 25, 1, tzinfo=UTC),
    )
    moments = [
        change + timedelta(minutes=minutes) for change in changes for minutes in (-61, -1, 0, 29, 59, 60)
    ]
    path = tmp_path / "log"
    with walkit.open(path) as log:
        for moment in moments:
            log.append(b"value", timestamp=moment)
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        for name in ("Europe/Berlin", "Asia/Kolkata"):
            spark.conf.set("spark.sql.session.timeZone", name)
            df = load(spark, path)
            assert in_order(df).column("timestamp").to_pylist() == moments, name
            # Between two of the moments, as a literal with an offset.
            at = (changes[1] + timedelta(minutes=15)).isoformat()
            shown = sorted(
                df.selectExpr(
                    "lsn",
                    "timestamp",
                    "unix_seconds(timestamp) as s",
                    f"timestamp < timestamp '{at}' as before",
                    "date_format(timestamp, 'HH:mm') as t",
                ).collect()
            )
            assert [row.timestamp.astimezone(UTC) for row in shown] == moments, name
            assert [row.s for row in shown] == [int(moment.timestamp()) for moment in moments], name
            assert [row.before for row in shown] == [True] * 9 + [False] * 3, name
            if name == "Europe/Berlin":
                assert [row.t for row in shown[:3]] == ["00:59", "01:59", "03:00"]
                assert [row.t for row in shown[6:9]] == ["01:59", "02:59", "02:00"]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_values_of_64_mib_go_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Put three values of 64 MiB and small ones: read, replayed, compared, fed and streamed, byte for byte."""
    path, size = tmp_path / "log", (64 << 20) - 64  # a record has at most 64 MiB, its key and lengths too
    big = [bytes([n]) * size for n in (1, 2, 3)]
    options = walkit.LogOptions(segment_bytes=256 << 20, frame_bytes_max=80 << 20)
    with walkit.open(path, options=options) as log:
        for n, value in enumerate(big):
            log.append(value, key=b"big-%d" % (n % 2))
            log.append(b"small", key=b"small-%d" % n)
    df = load(spark, path)
    lengths = (
        df.selectExpr("lsn", "octet_length(value) as n", "sha2(value, 256) as h").orderBy("lsn").collect()
    )
    assert [row.n for row in lengths] == [size, 5] * 3
    import hashlib

    assert [row.h for row in lengths[::2]] == [hashlib.sha256(value).hexdigest() for value in big]
    state = walkit.spark.replay(df).selectExpr("key", "sha2(value, 256) as h").collect()
    assert {bytes(row.key): row.h for row in state}[b"big-0"] == hashlib.sha256(big[2]).hexdigest()
    changed = (
        walkit.spark.diff((df, 4), df).selectExpr("key", "change", "octet_length(left_value) as n").collect()
    )
    assert {(bytes(row.key), row.change, row.n) for row in changed} == {
        (b"big-0", "C", size),
        (b"small-2", "I", None),
    }
    feed = walkit.spark.changes(df, 5, 5).selectExpr(
        "octet_length(pre_value) as a", "octet_length(post_value) as b"
    )
    assert [tuple(row) for row in feed.collect()] == [(size, size)]
    with walkit.open(path, options=options) as log:
        append(log, 10)
    stream = spark.readStream.format("walkit").option("maxBytesPerTrigger", size).load(str(path))
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "sink"))
    assert query.awaitTermination(600)
    sunk = spark.read.parquet(str(tmp_path / "sink")).selectExpr("lsn", "octet_length(value) as n")
    assert [row.n for row in sunk.orderBy("lsn").collect()] == [size, 5] * 3 + [200] * 10
