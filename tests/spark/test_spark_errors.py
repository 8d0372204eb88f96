"""walkit's errors come out of Spark's as they are."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import walkit
import walkit.spark
from walkit.spark.columns import RECORD_STRUCT
from walkit.spark.errors import MARK, STOPPED, described, unwrapped
from walkit.spark.options import read_options
from walkit.spark.source import WalkitDataSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def made(path: Path) -> Path:
    """A closed log of ten records at `path`."""
    with walkit.open(str(path)) as log:
        log.append_many([b"value-%d" % n for n in range(10)])
    return path


def damaged(path: Path) -> Path:
    """A closed log whose only segment has a wrong byte in its first frame."""
    (segment, *_) = sorted(made(path).glob("*.segment"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"value-3")] ^= 1
    segment.write_bytes(data)
    return path


def test_facts_survive_the_text() -> None:
    """Errors are described, put into a stack trace as text, and read again: class, message, facts; else None."""
    for error in (
        walkit.GapError(3, 9),
        walkit.LogNotFoundError("/a"),
        walkit.CorruptionError("bad\nline", position=7),
    ):
        found = unwrapped(f"Traceback ...\n  {MARK}{described(error)}\n\tat org.apache.spark")
        assert type(found) is type(error)
        assert str(found) == str(error)
        assert found.__dict__ == error.__dict__
    assert unwrapped("a user's own words") is None
    assert unwrapped(f"{MARK}{{cut") is None


def test_a_workers_error_is_walkits(spark: SparkSession, tmp_path: Path) -> None:
    """A damaged frame under a user's action and under diff_report: each is a CorruptionError."""
    good, bad = made(tmp_path / "good"), damaged(tmp_path / "bad")
    left, right = (spark.read.format("walkit").load(str(path)) for path in (good, bad))
    with pytest.raises(walkit.CorruptionError) as caught, walkit.spark.errors():
        right.toArrow()
    assert caught.value.position is not None
    assert caught.value.__suppress_context__
    assert "\n" not in str(caught.value)
    with pytest.raises(walkit.CorruptionError):
        walkit.spark.diff_report(left, right)


def test_a_load_of_nothing_is_walkits(spark: SparkSession, tmp_path: Path) -> None:
    """A load without a log raises LogNotFoundError with its path; any other error stays Spark's."""
    with pytest.raises(walkit.LogNotFoundError) as caught, walkit.spark.errors():
        spark.read.format("walkit").load(str(tmp_path / "none"))
    assert caught.value.path == str(tmp_path / "none")
    with pytest.raises(Exception, match="UNRESOLVED_COLUMN"), walkit.spark.errors():
        spark.range(1).select("nothing")


def test_a_worker_without_the_path_names_its_host(spark: SparkSession, tmp_path: Path) -> None:
    """The log is removed between load and action: the error says the host, and that the path must be visible there."""
    path = made(tmp_path / "log")
    df = spark.read.format("walkit").load(str(path))
    shutil.rmtree(path)
    words = "must be visible on each machine"
    with pytest.raises(walkit.LogNotFoundError, match=words) as caught, walkit.spark.errors():
        df.toArrow()
    assert f"on host {socket.gethostname()}" in str(caught.value)


def test_what_would_write_a_log_is_refused_in_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    """Save a DataFrame as a log, and make the sink of a stream: OptionsError in one sentence; the log is as it was."""
    path = str(made(tmp_path / "log"))
    df = spark.read.format("walkit").load(path)
    writes: list[Callable[[], object]] = [
        lambda: df.write.format("walkit").mode("append").save(path),
        lambda: WalkitDataSource({"path": path}).streamWriter(RECORD_STRUCT, overwrite=False),
    ]
    for write in writes:
        with (
            pytest.raises(walkit.OptionsError, match="a log has one writer") as caught,
            walkit.spark.errors(),
        ):
            write()
        assert caught.value.option == "format" and "\n" not in str(caught.value)
    with walkit.open(path, "r") as log:
        assert log.last_lsn == 10


def test_what_was_mistaken_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Name a number as a log, an option almost right, a pattern and a table of nothing: each error names the cure."""
    nothing: Any = 7
    uses: list[Callable[[], object]] = [
        lambda: walkit.spark.replay(nothing),
        lambda: walkit.spark.diff([nothing], nothing),
        lambda: walkit.spark.history(walkit.spark.load(made(tmp_path / "log"), view="frames"), b"k"),
    ]
    for use in uses:
        with pytest.raises(walkit.NotALoadError, match="takes a log: a path, or a DataFrame as"):
            use()
    with pytest.raises(walkit.LogNotFoundError):
        walkit.spark.replay(tmp_path / "nothing")
    for options, words in (
        ({"path": "x", "first_lsn": "3"}, "did you mean firstLsn?"),
        ({"path": "x", "maxRecords": "3"}, "did you mean maxRecordsPerTrigger?"),
        ({"path": "x", "zzz": "3"}, "unknown option 'zzz'; walkit knows path"),
        ({"path": "x", "versionAsOf": "3"}, "option versionasof is Delta Lake's; walkit has lastLsn"),
        ({"path": "x", "startingVersion": "3"}, "walkit has firstLsn"),
        ({"path": "x", "readChangeFeed": "true"}, "walkit has walkit.spark.changes(path, first_lsn)"),
        ({}, "or OPTIONS (path '...') of a table"),
    ):
        with pytest.raises(walkit.OptionsError) as caught:
            read_options(options)
        assert words in str(caught.value)
    with pytest.raises(walkit.LogNotFoundError, match="no path has this pattern"):
        read_options({"path": f"{tmp_path}/none-*"})


AFTER_ITS_END = """
import json, sys
import walkit, walkit.spark

spark = walkit.spark.session(master="local[1]")
records = spark.read.format("walkit").load(sys.argv[1])
spark.stop()
said = []
for ask in (
    lambda: walkit.spark.replay(records),
    lambda: walkit.spark.diff_report((records, 5), records),
    records.count,
    lambda: spark.read.format("walkit").load(sys.argv[1]),
):
    try:
        with walkit.spark.errors():
            ask()
    except walkit.OptionsError as error:
        said.append(str(error))
print(json.dumps(said))
"""


@pytest.mark.slow
def test_a_session_that_was_stopped_is_named(tmp_path: Path) -> None:
    """Use DataFrame and session after spark.stop(), in a process of its own: one line with the remedy."""
    job = [sys.executable, "-c", AFTER_ITS_END, str(made(tmp_path / "log"))]
    done = subprocess.run(job, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == [STOPPED] * 4
