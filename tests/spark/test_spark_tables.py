"""Addresses of logs, several logs in one load, tables of Spark's catalog, and the other views of a log."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

import walkit
import walkit.spark
from tests.spark.loading import plan_scan
from tests.spark.test_spark_stream import append
from walkit.errors import LogNotFoundError, OptionsError
from walkit.spark.options import read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPTIONS = walkit.LogOptions(segment_bytes=64 * 1024)
TIMES = ("2026-01-31T09:00:00Z", "2026-01-31 10:00:00+00:30")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three logs `a`, `b`, `damaged`: 1,000 records, 500, and `a` with a flipped bit."""
    folder = tmp_path_factory.mktemp("logs")
    for name, count in (("a", 1000), ("b", 500)):
        with walkit.open(folder / name, options=OPTIONS) as log:
            append(log, count)
    shutil.copytree(folder / "a", folder / "damaged")
    path = sorted((folder / "damaged").glob("*.segment"))[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    return folder


def load(spark: SparkSession, path: str | list[str], **options: object) -> DataFrame:
    """A load with options."""
    return spark.read.format("walkit").options(**options).load(path)  # type: ignore[arg-type]


def test_addresses_mean_one_path(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name a log as a path, relative, from home and as file URLs: one absolute path, and no load of several."""
    monkeypatch.chdir(logs)
    monkeypatch.setenv("HOME", str(logs))
    for address in (
        f"{logs}/a",
        "a",
        "./b/../a",
        "~/a",
        f"file://{logs}/a",
        f"file:{logs}/a",
        f"file://{logs}/%61",
    ):
        found = read_options({"path": address})
        assert (found.paths, found.many) == ((f"{logs}/a",), False)


def test_lists_and_patterns_mean_several(logs: Path) -> None:
    """Name logs by a list, by patterns and by a pattern for one: sorted paths, and a load of several."""
    a, b = f"{logs}/a", f"{logs}/b"
    for options, paths in (
        ({"paths": f'["{b}", "{a}"]'}, (b, a)),
        ({"path": f"{logs}/[ab]"}, (a, b)),
        ({"path": f"{logs}/[a]/"}, (a,)),
    ):
        found = read_options(options)
        assert (found.paths, found.many) == (paths, True)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"path": "memory://x"}, OptionsError, "memory of one process"),
        ({"path": "ftp://bucket/log"}, OptionsError, "file:///PATH"),
        ({"path": "file://other/log"}, OptionsError, "the host is other"),
        ({"path": "/nowhere/*/log"}, LogNotFoundError, r"/nowhere/\*/log"),
        ({"paths": '["/x/y", "/x/./y"]'}, OptionsError, "named twice"),
        ({}, OptionsError, "give the path"),
        ({"paths": "/x"}, OptionsError, "give several logs as a list"),
        ({"paths": "[1]"}, OptionsError, "give several logs as a list"),
        ({"path": "/x", "since": "yesterday"}, OptionsError, "since='yesterday': a time"),
        ({"path": "/x", "until": "2026-01-31"}, OptionsError, "until=.*: a time with its zone"),
        ({"path": "/x", "since": TIMES[1], "until": TIMES[0]}, OptionsError, "not after option until"),
        ({"path": "/x", "since": TIMES[0], "firstLsn": "1"}, OptionsError, "same bound as option firstLsn"),
        ({"path": "/x", "until": TIMES[0], "lastLsn": "1"}, OptionsError, "same bound as option lastLsn"),
        (
            {"path": "/x", "since": TIMES[0], "snapshot": "true"},
            OptionsError,
            "what option snapshot puts first",
        ),
        ({"path": "/x", "until": TIMES[0], "mode": "permissive"}, OptionsError, "times of all frames"),
        ({"path": "/x", "since": TIMES[0], "view": "damage"}, OptionsError, "times of all frames"),
        ({"path": "/x", "view": "rows"}, OptionsError, "one of 'records', 'frames', 'segments', 'damage'"),
        ({"path": "/x", "mode": "dropmalformed"}, OptionsError, "one of 'failfast', 'permissive'"),
        ({"path": "/x", "view": "frames", "snapshot": "true"}, OptionsError, "is for view 'records'"),
        ({"path": "/x", "bodies": "true"}, OptionsError, "is for view 'frames'"),
        ({"paths": '["/x", "/y"]', "lastLsn": "7"}, OptionsError, "lastLsn is for one log"),
        ({"path": "/x", "lastLsm": "5"}, OptionsError, "unknown option 'lastlsm'.*firstLsn, lastLsn"),
        ({"path": "/x", "firstLsn": "x"}, OptionsError, "firstLsn='x'"),
        ({"path": "/x", "lastLsn": "-3"}, OptionsError, "lastLsn='-3'"),
        ({"path": "/x", "partitions": "0"}, OptionsError, "partitions='0'"),
        ({"path": "/x", "snapshot": "yes"}, OptionsError, "snapshot='yes': one of 'true', 'false'"),
        ({"path": "/x", "pushFilters": "true"}, OptionsError, "unknown option 'pushfilters'"),
        (
            {"path": "/x", "snapshot": "true", "firstLsn": "50"},
            OptionsError,
            "firstLsn leaves out what option snapshot puts first",
        ),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_name(
    options: dict[str, str], error: type[Exception], words: str
) -> None:
    """Give addresses and options that cannot be: an error that names them, before anything is read."""
    with pytest.raises(error, match=words):
        read_options(options)


@pytest.mark.spark
def test_rows_of_several_logs_name_their_log(spark: SparkSession, logs: Path) -> None:
    """Load two logs by pattern and by list: the rows of each, with its path and its id; columns are picked."""
    with walkit.open(logs / "b", mode="r") as reader:
        expected = reader.to_arrow()
    both = load(spark, f"{logs}/[ab]")
    assert both.groupBy("log").count().orderBy("log").collect() == [(f"{logs}/a", 1000), (f"{logs}/b", 500)]
    assert len({row.log_id for row in both.select("log_id").distinct().collect()}) == 2
    part = both.where(f"log = '{logs}/b'").drop("log", "log_id").toArrow().sort_by("lsn")
    assert part.cast(expected.schema).equals(expected)
    listed = spark.read.format("walkit").schema("log string").load([str(logs / "b"), str(logs / "a")])
    assert listed.distinct().count() == 2


@pytest.mark.spark
def test_a_log_is_a_table_of_the_catalog(spark: SparkSession, logs: Path) -> None:
    """CREATE TABLE with OPTIONS and with LOCATION: records by SQL, and by the next query what was appended since."""
    shutil.copytree(logs / "b", logs / "growing")
    try:
        spark.sql(f"create table by_option using walkit options (path '{logs}/growing', firstLsn '2')")
        spark.sql(f"create table by_location using walkit location '{logs}/growing'")
        assert spark.sql("select count(*), min(lsn) from by_option").collect() == [(499, 2)]
        assert spark.sql("select count(*) from by_location where kind = 1").collect() == [(500,)]
        with walkit.open(logs / "growing") as log:
            append(log, 20)
        for table in ("by_option", "by_location"):
            assert spark.table(table).agg({"lsn": "max"}).collect() == [(520,)]
    finally:
        shutil.rmtree(logs / "growing")
        for table in ("by_option", "by_location"):
            spark.sql(f"drop table if exists {table}")


@pytest.mark.spark
def test_a_table_of_a_folder_with_an_escape_in_its_name(spark: SparkSession, tmp_path: Path) -> None:
    """Name logs as Hive names folders, `h=10%3A00`, beside `h=10:00`: a table reads the one that it names."""
    for name, count in (("h=10%3A00", 20), ("h=10:00", 50)):
        with walkit.open(tmp_path / name, options=walkit.LogOptions(durability="none")) as log:
            append(log, count)
    path = tmp_path / "h=10%3A00"
    try:
        for how in (f"options (path '{path}')", f"location '{path}'"):
            spark.sql(f"create table escaped using walkit {how}")
            assert spark.table("escaped").agg({"lsn": "max"}).collect() == [(20,)], how
            spark.sql("drop table escaped")
    finally:
        spark.sql("drop table if exists escaped")


@pytest.mark.spark
def test_times_bound_a_load(spark: SparkSession, tmp_path: Path) -> None:
    """Append to two logs in turns, and load by times between: one log, both, a table, frames."""
    times = [datetime.now(UTC)]
    for _ in range(3):
        for name in ("a", "b"):
            with walkit.open(tmp_path / name, options=OPTIONS) as log:
                append(log, 20 if name == "a" else 10)
        times.append(datetime.now(UTC))
    path = str(tmp_path / "a")

    def lsns(where: str | list[str], **options: object) -> tuple[int | None, int | None, int]:
        read = spark.read.format("walkit").options(**options)  # type: ignore[arg-type]
        return tuple(read.load(where).agg(F.min("lsn"), F.max("lsn"), F.count("*")).collect()[0])

    for bounds, planned in (
        ({"since": times[1]}, (21, 60)),
        ({"until": times[1]}, (1, 20)),
        ({"since": times[0], "until": times[3]}, (1, 60)),
    ):
        scan = plan_scan({"path": path, **bounds})
        assert (scan.frames_from, scan.last_lsn) == planned
    assert lsns(path, since=times[1], until=times[2].astimezone(timezone(timedelta(hours=5)))) == (21, 40, 20)
    assert plan_scan({"path": path, "until": times[0]}).last_lsn == 0
    assert lsns(path, since=times[3]) == (None, None, 0)
    both = [path, str(tmp_path / "b")]
    assert lsns(both, since=times[1], until=times[2]) == (11, 40, 30)
    frames = load(spark, path, view="frames", since=times[1], until=times[2])
    assert frames.agg(F.sum("records")).collect() == [(20,)]
    state = walkit.spark.replay(load(spark, path, until=times[1])).collect()
    assert sorted(row.lsn for row in state) == list(range(14, 21))  # of seven keys
    try:
        spark.sql(f"create table timed using walkit options (path '{path}', since '{times[2].isoformat()}')")
        assert spark.table("timed").agg({"lsn": "min"}).collect() == [(41,)]
    finally:
        spark.sql("drop table if exists timed")


def test_records_after_a_time_that_may_be_trimmed_are_a_gap(tmp_path: Path) -> None:
    """Trim a log, and load from a time before its oldest record: GapError with what to do; up to one as well."""
    begin = datetime.now(UTC)
    with walkit.Store.open(tmp_path / "log", options=OPTIONS) as store:
        for n in range(50):
            store.put(b"%d" % n, b"value")
        store.checkpoint(trim=True)
        later = datetime.now(UTC)
        store.put(b"more", b"value")
        oldest, last = store.log.first_lsn, store.log.acked_lsn
    assert oldest > 1
    with pytest.raises(walkit.GapError) as caught:
        plan_scan({"path": tmp_path / "log", "since": begin})
    assert caught.value.__notes__ and "option since" in caught.value.__notes__[0]
    for until in (begin, later):
        assert walkit.lsn_at(tmp_path / "log", until) < oldest, "the clock was set back"
        with pytest.raises(walkit.GapError) as caught:
            plan_scan({"path": tmp_path / "log", "until": until})
        assert caught.value.oldest == oldest
    assert plan_scan({"path": tmp_path / "log", "until": datetime.now(UTC)}).facts.last_lsn == last


@pytest.mark.spark
def test_frames_and_segments_are_tables(spark: SparkSession, logs: Path) -> None:
    """Load the views: the frames that a scan lists, the segments of the manifest, and records summed from headers."""
    listed = [frame for frame in walkit.scan(logs / "a").frame_rows() if frame.records]
    rows = load(spark, f"{logs}/a", view="frames").orderBy("position").collect()
    assert [(r.segment, r.position, r.first_lsn, r.last_lsn, r.bytes) for r in rows] == [
        (f.segment, f.position, f.first_lsn, f.last_lsn, f.footprint) for f in listed
    ]
    both = load(spark, f"{logs}/[ab]", view="frames").groupBy("log").agg({"records": "sum"})
    assert sorted(row[1] for row in both.collect()) == [500, walkit.spark.count(logs / "a")] == [500, 1000]
    segments = load(spark, f"{logs}/a", view="segments", firstLsn=1000).collect()
    assert [(row.last_lsn, row.sealed) for row in segments] == [(1000, True)]
    with pytest.raises(Exception, match="schema='key binary': a log has segment string"):
        spark.read.format("walkit").option("view", "frames").schema("key binary").load(f"{logs}/a").count()


@pytest.mark.spark
def test_a_damaged_log_gives_what_is_intact(spark: SparkSession, logs: Path) -> None:
    """Load a damaged log: an error by default; permissive, all intact records; view damage has the missing ones."""
    with pytest.raises(Exception, match="CorruptionError"):
        load(spark, f"{logs}/damaged").count()
    intact = {row.lsn for row in load(spark, f"{logs}/damaged", mode="permissive").select("lsn").collect()}
    (damage,) = load(spark, f"{logs}/damaged", view="damage").collect()
    assert damage.verdict == "corrupt" and damage.reason
    lost = set(range(1, 1001)) - intact
    assert lost and {damage.first_lsn, damage.last_lsn} <= lost and len(lost) < 100
    assert load(spark, f"{logs}/a", view="damage").count() == 0
    with pytest.raises(walkit.HistoryTrimmedError):
        walkit.spark.replay(load(spark, f"{logs}/damaged", mode="permissive"))


@pytest.mark.spark
def test_last_lsn_0_is_an_empty_read(spark: SparkSession, logs: Path) -> None:
    """Load up to LSN 0: no rows, and the state before the first record."""
    df = load(spark, f"{logs}/a", lastLsn=0)
    assert df.count() == 0 and walkit.spark.replay(df).count() == 0


@pytest.mark.spark
def test_many_logs_are_verified_at_once(spark: SparkSession, logs: Path) -> None:
    """Verify a whole, a damaged and an absent log: a row each, as walkit.verify judges them."""
    rows = {
        Path(row.log).name: row
        for row in walkit.spark.verify([logs / "a", logs / "damaged", logs / "absent"]).collect()
    }
    assert (rows["a"].ok, rows["a"].records, rows["a"].problem) == (True, 1000, None)
    assert not rows["damaged"].ok and "damaged" in rows["damaged"].problem
    assert not rows["absent"].ok and "LogNotFoundError" in rows["absent"].problem


@pytest.mark.spark
def test_a_pair_is_verified_by_its_frames(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    """Compare copies: one that has less, frame by frame; one with another record, found by its LSN; a damaged."""
    for name, value in (("left", b"one"), ("right", b"two")):
        shutil.copytree(logs / "b", tmp_path / name)
        with walkit.open(tmp_path / name) as log:
            append(log, 10)
            log.append(value, key=b"k")
    report = walkit.spark.verify_pair(logs / "b", tmp_path / "left")
    assert report.equal and report.frames == report.equal_frames == 50
    assert (report.first_lsn, report.last_lsn, report.right_last_lsn) == (1, 500, 511)
    report = walkit.spark.verify_pair(tmp_path / "left", tmp_path / "right")
    assert not report.equal and (report.first_difference, report.differing_lsns) == (511, 1)
    assert report.text().startswith("1 of LSN 1 to 511 differ, first 511") and "ends at LSN" in report.text()
    assert report.to_dict()["first_difference"] == 511 and "first 511" in report._repr_html_()
    with pytest.raises(walkit.CorruptionError):
        walkit.spark.verify_pair(logs / "a", logs / "damaged")
    with pytest.raises(OptionsError, match="is a pattern; name one log"):
        walkit.spark.verify_pair(f"{logs}/[ab]", logs / "b")
    with pytest.raises(OptionsError, match="first_lsn=-1"):
        walkit.spark.count(logs / "b", -1)


@pytest.mark.spark
def test_a_pair_of_which_all_is_trimmed_agrees(spark: SparkSession, tmp_path: Path) -> None:
    """Trim every record of a log by a checkpoint, and copy it: two empty logs are equal, without a gap."""
    with walkit.Store.open(tmp_path / "left") as store:
        for n in range(50):
            store.put(b"%d" % n, b"value")
        store.checkpoint(trim=True)
        last = store.log.acked_lsn
    shutil.copytree(tmp_path / "left", tmp_path / "right")
    with walkit.open(tmp_path / "left", mode="r") as log:
        assert log.first_lsn > last
    report = walkit.spark.verify_pair(tmp_path / "left", tmp_path / "right")
    assert report.equal and (report.frames, report.last_lsn) == (0, last)
