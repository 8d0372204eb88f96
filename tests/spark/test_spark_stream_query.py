"""Streams as queries: Parquet sinks under rotation, compaction, reopening and kill -9."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import StreamingQueryException

import walkit
import walkit.spark
from tests.spark.test_spark_stream import append, filled
from walkit.record import RECORD_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

OPTIONS = walkit.LogOptions(segment_bytes=64 * 1024)
CHURN_KEYS = 9


OF_ONE: dict[str, Any] = {"of": "log"}
CHANGES: dict[str, Any] = {"of": "log", "view": "changes"}
OF_SEVERAL: dict[str, Any] = {"of": "log*"}
"""Kinds of queries: over `folder`/log, over the change feed of it, over all logs there."""


def started(
    spark: SparkSession,
    folder: Path,
    *,
    available_now: bool = False,
    per_trigger: int = 300,
    of: str = "log",
    view: str = "records",
) -> StreamingQuery:
    """A query from logs in `folder` into `folder`/sink, started or restarted."""
    stream = spark.readStream.format("walkit").option("maxRecordsPerTrigger", per_trigger)
    writer = stream.option("view", view).load(str(folder / of)).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer = (
        writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
    )
    return writer.start(str(folder / "sink"))


def finish(spark: SparkSession, folder: Path, *, per_trigger: int = 100_000, **kind: Any) -> StreamingQuery:
    """Read what is left with Trigger.AvailableNow, and return the query."""
    for _ in range(4):
        query = started(spark, folder, available_now=True, per_trigger=per_trigger, **kind)
        try:
            assert query.awaitTermination(120), query.lastProgress
            return query
        except StreamingQueryException as error:
            # Spark gives a planner ten seconds to start, by a number in its code (createSimpleWorker of
            # PythonWorkerFactory, 4.3.0) that no setting widens, and a loaded machine does not always keep.
            if "failed to connect back" not in str(error):
                raise
    raise AssertionError("no planner of Spark's started")


def sunk(spark: SparkSession, folder: Path) -> pa.Table:
    """The rows of the sink as Spark reads them, in LSN order."""
    return spark.read.parquet(str(folder / "sink")).toArrow().sort_by("lsn")


class Churn:
    """A log that gets a transaction at each step, and at each twentieth is maintained and opened again."""

    def __init__(self, path: Path, compacts: bool) -> None:
        """A stream of changes has to run before anything below its snapshot is compacted: no `compacts` then."""
        self.path, self.compacts, self.values = path, compacts, list[bytes]()
        self.steps = self.compacted = 0
        self.store = walkit.Store.open(path, options=OPTIONS)

    def step(self) -> None:
        """Append; from the first claim on, maintenance spares records that the stream has not read."""
        with self.store.transaction() as tx:
            for _ in range(15):
                value = b"%0150d" % len(self.values)
                tx.put(b"key-%d" % (len(self.values) % CHURN_KEYS), value)
                self.values.append(value)
        self.steps += 1
        if self.steps % 20 == 0:
            if self.store.log.claims():
                self.compacted += self.store.compact().segments_rewritten
                self.store.checkpoint()
            self.store.close()
            self.store = walkit.Store.open(self.path, options=OPTIONS)

    def close(self) -> None:
        """Close the log as it is open now."""
        self.store.close()

    @property
    def is_churned(self) -> bool:
        """Whether the log was reopened, and compacted if it can be."""
        return self.steps > 60 and (self.compacted > 0 or not self.compacts)


@contextmanager
def churning(folder: Path, kind: dict[str, Any]) -> Iterator[list[Churn]]:
    """The logs of a kind of query, closed on leaving."""
    names = ("log", "log-2") if kind is OF_SEVERAL else ("log",)
    with ExitStack() as stack:
        churns = [Churn(folder / name, compacts=kind is not CHANGES) for name in names]
        for churn in churns:
            stack.callback(churn.close)
        yield churns


def step(churns: list[Churn]) -> None:
    """Take a step of each log, and a pause."""
    for churn in churns:
        churn.step()
    time.sleep(0.02)


def planners() -> list[int]:
    """The Python processes that plan the streams of this process's session.

    Not its other workers: Spark 4.3 keeps those that are idle, and hands a dead one out to whatever asks next.
    """
    parents, named = dict[int, int](), set[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except OSError:
            continue
        parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
        if b"python_streaming_source_runner" in command:
            named.add(int(folder.name))

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return [pid for pid in named if is_ours(pid)]


@pytest.mark.parametrize(
    "kind",
    [
        # The stream of changes has the same reader, and that of several logs is made of such readers: by default
        # test_a_stream_of_several_logs_has_each_record_once (test_spark_objects.py) restarts it in process.
        pytest.param(OF_ONE, marks=pytest.mark.slow),
        CHANGES,
        pytest.param(OF_SEVERAL, marks=pytest.mark.slow),
    ],
    ids=["one", "changes", "several"],
)
def test_a_stream_that_is_killed_has_each_lsn_once(
    spark: SparkSession, tmp_path: Path, kind: dict[str, Any]
) -> None:
    """Kill -9 the planner of a query of each kind beside logs that churn: each LSN of each log once in the sink."""
    killed = False
    with churning(tmp_path, kind) as churns:
        while not killed:
            query = started(spark, tmp_path, **kind)
            # However long the disk and Spark take for it.
            while query.isActive and not (query.recentProgress and all(c.is_churned for c in churns)):
                step(churns)
            for pid in planners():
                os.kill(pid, signal.SIGKILL)
                killed = True
            with pytest.raises(StreamingQueryException):
                query.awaitTermination()
        step(churns)
    finish(spark, tmp_path, **kind)
    check_sink(sunk(spark, tmp_path), churns)


def check_sink(found: pa.Table, churns: list[Churn]) -> None:
    """Assert that the sink has every record of the churned logs once, or every change, with its value."""
    for churn in churns:
        own = found.filter(pc.equal(found["log"], str(churn.path))) if "log" in found.column_names else found
        assert own["lsn"].to_pylist() == list(range(1, len(churn.values) + 1))
        if "post_value" not in own.column_names:
            assert own["value"].to_pylist() == churn.values
            continue
        assert own["post_value"].to_pylist() == churn.values
        assert own["pre_value"].to_pylist() == [None] * CHURN_KEYS + churn.values[:-CHURN_KEYS]


# Slow: two queries. test_credentials_are_shown_nowhere has a query of records to its end, the test above one of
# changes over restarts; test_spark_stream has columns and claims of the reader, without Spark.
@pytest.mark.slow
def test_a_stream_is_a_stream_of_records(spark: SparkSession, tmp_path: Path) -> None:
    """Run to the end with Trigger.AvailableNow, append, and run again: all columns of all records, and the claim."""
    filled(tmp_path / "log", 500)
    finish(spark, tmp_path)
    with walkit.open(tmp_path / "log") as log:
        append(log, 100)
        log.delete(b"key-1")
    query = finish(spark, tmp_path)
    with walkit.open(tmp_path / "log", mode="r") as log:
        assert sunk(spark, tmp_path).cast(RECORD_SCHEMA).equals(log.to_arrow())
        # Spark commits a batch when it begins the next: the claim is never ahead of the checkpoint.
        assert [claim.first_lsn for claim in log.claims()] == [501]
    (source,) = query.recentProgress[0]["sources"]
    assert json.loads(source["endOffset"])["lsn"] == json.loads(source["latestOffset"])["lsn"] == 601


@pytest.mark.slow  # three queries; test_a_stream_of_changes_continues_after_trims has it of the reader, without Spark
def test_a_stream_of_changes_restarts_after_a_trim(spark: SparkSession, tmp_path: Path) -> None:
    """Stop a query, checkpoint, trim, append and run it again: the changes of the model, each once."""
    # Without the snapshots the query ends with HistoryTrimmedError, and the sink stays as it is.
    path, values = tmp_path / "log", list[bytes]()

    def put(count: int) -> None:
        for _ in range(0, count, 10):
            with store.transaction() as tx:
                for _ in range(10):
                    values.append(b"%0150d" % len(values))
                    tx.put(b"key-%d" % (len(values) % CHURN_KEYS), values[-1])

    with walkit.Store.open(path, options=OPTIONS) as store:
        put(100)
        store.checkpoint()
        put(50)
        store.checkpoint(trim=False)
        put(50)
    finish(spark, tmp_path, per_trigger=40, **CHANGES)
    with walkit.Store.open(path, options=OPTIONS) as store:
        assert store.checkpoint().low_watermark == 150
        put(70)
        store.checkpoint()
    finish(spark, tmp_path, **CHANGES)
    found = sunk(spark, tmp_path)
    assert found["lsn"].to_pylist() == list(range(101, 271))
    assert found["post_value"].to_pylist() == values[100:]
    assert found["pre_value"].to_pylist() == values[100 - CHURN_KEYS : -CHURN_KEYS]
    for snapshot in path.glob("snapshot-*"):
        snapshot.unlink()
    with walkit.open(path) as log:
        append(log, 10)
    with pytest.raises(walkit.HistoryTrimmedError), walkit.spark.errors():
        finish(spark, tmp_path, **CHANGES)
    assert sunk(spark, tmp_path).equals(found)


# Two queries; test_a_stream_continues_over_a_promotion has the DivergenceError of the reader, and
# test_what_a_stream_does_not_take_is_refused the words of an error of a query.
@pytest.mark.slow
def test_a_stream_over_another_log_ends_in_walkits_words(spark: SparkSession, tmp_path: Path) -> None:
    """Put another log under a query's path between two runs: DivergenceError, in one line by `errors()`."""
    filled(tmp_path / "log", 50)
    finish(spark, tmp_path)
    os.rename(tmp_path / "log", tmp_path / "gone")
    filled(tmp_path / "log", 50)
    with (
        pytest.raises(walkit.DivergenceError, match="the query has read log") as caught,
        walkit.spark.errors(),
    ):
        finish(spark, tmp_path)
    assert "start a query with a new checkpoint" in str(caught.value) and "\n" not in str(caught.value)


CHILD = """
import json, sys
import walkit.spark
from pathlib import Path
from tests.spark.test_spark_stream_query import started
spark = walkit.spark.session(master="local[2]", config={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
query = started(spark, Path(sys.argv[1]), **json.loads(sys.argv[2]))
print("started", flush=True)
query.awaitTermination()
"""


def kill_session(
    folder: Path, kind: dict[str, Any], churns: list[Churn], reached: Callable[[], bool]
) -> None:
    """Start a query in a session of its own, and kill driver, JVM and workers when a moment is reached.

    The session is restarted if Spark did not start its planner in time, as in `finish`: nothing was killed then.
    """
    command = [sys.executable, "-c", CHILD, str(folder), json.dumps(kind)]
    for _ in range(8):
        with tempfile.TemporaryFile("w+") as errors:
            child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
            try:
                assert child.stdout is not None
                is_started = child.stdout.readline() == "started\n"
                while is_started and child.poll() is None and not reached():
                    step(churns)
                ended = child.poll()
            finally:
                with suppress(ProcessLookupError):  # it may have ended, JVM and workers too
                    os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
            if is_started and ended is None:
                return
            errors.seek(0)
            told = errors.read()
            assert "failed to connect back" in told, told
    raise AssertionError("no planner of Spark's started")


class AfterABatch:
    """Whether so many seconds have passed since a query committed its next batch."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.commits, self.seconds = folder / "checkpoint" / "commits", seconds
        self.before, self.seen_at = self._newest(), 0.0

    def _newest(self) -> int:
        return max((int(file.name) for file in self.commits.glob("[0-9]*")), default=-1)

    def __call__(self) -> bool:
        """Look, and return whether the time is over."""
        if not self.seen_at and self._newest() > self.before:
            self.seen_at = time.monotonic()
        return bool(self.seen_at) and time.monotonic() >= self.seen_at + self.seconds


@pytest.mark.slow  # up to twenty JVMs begin; by default the planner of a query is killed
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kind", "kills"), [(OF_ONE, 20), (CHANGES, 6), (OF_SEVERAL, 6)], ids=["one", "changes", "several"]
)
def test_kills_of_the_whole_session(
    spark: SparkSession, tmp_path: Path, kind: dict[str, Any], kills: int
) -> None:
    """Kill -9 driver, JVM and workers of a query again and again, while its logs churn: each LSN once in the sink."""
    # Every second kill may be before the session's first batch; the others are up to 1.5 s after one was committed.
    choice = random.Random(7)
    with churning(tmp_path, kind) as churns:
        for n in range(kills):
            if n % 2 == 0:
                moment = time.monotonic() + choice.uniform(2, 12)
                kill_session(tmp_path, kind, churns, lambda moment=moment: time.monotonic() >= moment)  # type: ignore[misc]
            else:
                kill_session(tmp_path, kind, churns, AfterABatch(tmp_path, choice.uniform(0, 1.5)))
        assert all(churn.is_churned for churn in churns)
    finish(spark, tmp_path, **kind)
    check_sink(sunk(spark, tmp_path), churns)
