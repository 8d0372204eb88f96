"""Questions about logs that a classic session and one over Spark Connect answer alike.

A program that is run with a folder and `sys.path` set asks them over Spark Connect, and prints the answers as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import walkit
import walkit.spark
from tests.spark.kinds import EARLY, KINDS, RECORDS, both_loads, fill, wrong_answers
from tests.spark.trimmed import make_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOME = [b"key 1", b"key 4", b"absent"]


def make_logs(folder: Path) -> None:
    """Make two logs that share keys, a trimmed store, and a file with a time between two records."""
    fill(folder / "log")
    (folder / "then").write_text(datetime.now(UTC).isoformat())
    with walkit.open(folder / "log") as log:
        log.append(b"later", key=b"key 1")
    fill(folder / "other")
    make_store(folder / "store", [("work", 3, 90), ("checkpoint", True), ("work", 4, 60)])


def rows(df: DataFrame) -> list[str]:
    """Return the rows as text, in order."""
    return sorted(repr([bytes(v) if isinstance(v, bytearray) else v for v in row]) for row in df.collect())


def refused(ask: Callable[[], object]) -> str:
    """Return walkit's own error that a question ends with."""
    try:
        with walkit.spark.errors():
            ask()
    except walkit.WalkitError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def in_an_order(folder: Path) -> list[str]:
    """Replay both logs, the second one over the first."""
    logs = [folder / "log", folder / "other"]
    ids = [walkit.spark.load(path).schema["lsn"].metadata["walkit"]["log_id"] for path in logs]
    return rows(walkit.spark.replay(logs, order=ids))


def report(folder: Path) -> list[object]:
    """Compare two states of the log by a report."""
    found = walkit.spark.diff_report((folder / "log", EARLY), folder / "log")
    return [found.reconciles, *(found.to_dict()[name] for name in ("inserted", "deleted", "changed"))]


def streamed(spark: SparkSession, path: Path | str, sink: str, **options: object) -> list[str]:
    """Run a query to the end of the logs at a path, from its checkpoint on; return its whole sink."""
    stream = spark.readStream.format("walkit").options(claim="none", **options).load(str(path))  # type: ignore[arg-type]
    writer = stream.writeStream.format("parquet").option("checkpointLocation", f"{sink}/checkpoint")
    query = writer.trigger(availableNow=True).start(f"{sink}/rows")
    assert query.awaitTermination(120)
    if failed := query.exception():
        raise failed
    return rows(spark.read.parquet(f"{sink}/rows"))


def over_a_gap(spark: SparkSession) -> list[object]:
    """Read a log, trim the records after it, and continue: a GapError, and with failOnDataLoss false what is left."""
    folder = tempfile.mkdtemp()
    options = walkit.LogOptions(durability="none", segment_bytes=64 * 1024)
    with walkit.open(f"{folder}/log", options=options) as log:
        log.append_many([b"first"] * 10)
        log.sync()
        read = len(streamed(spark, f"{folder}/log", folder))
        log.append_many([b"%01000d" % n for n in range(300)])
        log.sync()
        log.trim(200)
        gap = refused(lambda: streamed(spark, f"{folder}/log", folder)).partition(":")[0]
        return [read, gap, len(streamed(spark, f"{folder}/log", folder, failOnDataLoss="false"))]


def sql(spark: SparkSession, text: str) -> list[str]:
    """Ask in SQL, with walkit's table functions."""
    walkit.spark.sql_functions(spark)
    return rows(spark.sql(text))


QUESTIONS: dict[str, Callable[[SparkSession, Path], Any]] = {
    "records": lambda spark, at: rows(spark.read.format("walkit").load(f"{at}/log")),
    "records of two logs": lambda _, at: rows(walkit.spark.load([at / "log", at / "other"])),
    "frames": lambda _, at: rows(walkit.spark.load(at / "log", view="frames")),
    "replay": lambda _, at: rows(walkit.spark.replay(at / "store")),
    "replay at a time": lambda _, at: rows(
        walkit.spark.replay(at / "log", at_time=datetime.fromisoformat((at / "then").read_text()))
    ),
    "replay of some keys": lambda _, at: rows(walkit.spark.replay(at / "log", EARLY, only=SOME)),
    "replay in an order": lambda _, at: in_an_order(at),
    "states": lambda _, at: rows(walkit.spark.states(at / "log", [0, EARLY, RECORDS])),
    "history": lambda _, at: rows(walkit.spark.history(at / "log")),
    "history of some keys": lambda _, at: rows(walkit.spark.history(at / "log", SOME, EARLY)),
    "changes": lambda _, at: rows(walkit.spark.changes(at / "log", EARLY)),
    "changes since a time": lambda _, at: rows(
        walkit.spark.changes(at / "log", since=datetime.fromisoformat((at / "then").read_text()))
    ),
    "changes as cdc": lambda _, at: rows(walkit.spark.changes(at / "log", EARLY, style="cdc")),
    "net changes": lambda _, at: rows(walkit.spark.changes(at / "log", EARLY, net=True)),
    "diff": lambda _, at: rows(walkit.spark.diff((at / "log", EARLY), at / "log")),
    "report of a diff": lambda _, at: report(at),
    "verify": lambda _, at: rows(walkit.spark.verify([at / "log", at / "other"]).drop("seconds")),
    "verify a pair": lambda _, at: walkit.spark.verify_pair(at / "log", at / "other").to_dict(),
    "a trimmed state": lambda _, at: refused(lambda: walkit.spark.replay(at / "store", 2)),
    "a schema without a column": lambda spark, at: refused(
        lambda: spark.read.format("walkit").schema("x int").load(f"{at}/log").collect()
    ),
    "a stream": lambda spark, at: streamed(spark, at / "log", tempfile.mkdtemp(), maxRecordsPerTrigger=25),
    "a stream of changes": lambda spark, at: streamed(
        spark, at / "log", tempfile.mkdtemp(), view="changes", maxRecordsPerTrigger=25
    ),
    "a stream of two logs": lambda spark, at: streamed(spark, at / "*o*[gr]", tempfile.mkdtemp()),
    "a stream over a gap": lambda spark, _: over_a_gap(spark),
    "state by SQL": lambda spark, at: sql(spark, f"SELECT * FROM walkit_state('{at}/store')"),
    "an earlier state by SQL": lambda spark, at: sql(
        spark, f"SELECT * FROM walkit_state('{at}/log', {EARLY})"
    ),
    "changes by SQL": lambda spark, at: sql(spark, f"SELECT * FROM walkit_changes('{at}/log', {EARLY})"),
    "too much for SQL": lambda spark, at: refused(
        lambda: sql(spark, f"SELECT * FROM walkit_changes('{at}/log', 1, 999)")
    ),
}


def answer(spark: SparkSession, folder: Path, question: str) -> Any:
    """Return the answer to a question, or the error that it ends with."""
    try:
        return QUESTIONS[question](spark, folder)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:1000]}"


def progress_of(path: Path) -> list[tuple[int, int]]:
    """Return the numbers that a callback gets during a replay."""
    told: list[tuple[int, int]] = []
    with walkit.spark.progress(lambda done, total: told.append((done, total))):
        walkit.spark.replay(path).count()
    return told


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    walkit.spark.register(spark)
    folder = Path(sys.argv[1])
    said = {
        "session": type(spark).__module__,
        "kinds": wrong_answers(both_loads(f"{folder}/other"), KINDS),
        "tasks": progress_of(folder / "log"),
        "answers": {question: answer(spark, folder, question) for question in QUESTIONS},
    }
    print(json.dumps(said))
    spark.stop()
