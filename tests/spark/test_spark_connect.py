"""Spark Connect: a client without a JVM of its own reads, replays, compares and streams a log by a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.spark.kinds import fill
from walkit.spark.java import find_java

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

JOB = """
import json, sys
from pyspark.sql import SparkSession
import walkit
import walkit.spark

path, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
walkit.spark.register(spark)
records = spark.read.format("walkit").load(path)
try:
    walkit.spark.replay(records.where("kind = 1"))
    refused = ""
except walkit.NotALoadError as error:
    refused = str(error)
stream = spark.readStream.format("walkit").load(path).writeStream.format("parquet").option("path", f"{folder}/sink")
query = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
query.awaitTermination(120)
state = walkit.spark.replay(records).collect()
tasks = []
with walkit.spark.progress(lambda done, total: tasks.append((done, total))):
    walkit.spark.replay(records).count()
changed = walkit.spark.diff((records, 500), records).groupBy("change").count().collect()
print(json.dumps({
    "session": type(spark).__module__,
    "records": records.count(),
    "state": sorted((bytes(r.key).decode(), bytes(r.value).decode(), r.lsn) for r in state),
    "changed": {r.change: r["count"] for r in changed},
    "feed": walkit.spark.changes(records, 990).count(),
    "streamed": spark.read.parquet(f"{folder}/sink").select("lsn").distinct().count(),
    "refused": refused,
    "tasks": tasks,
}))
spark.stop()
"""


def over_connect(*job: str) -> Any:
    """Run a job whose server has the Java of this process, and its workers the Python; return what it prints."""
    pytest.importorskip("grpc_status", reason="the extra connect is not installed")
    environment = {**os.environ, "JAVA_HOME": str(find_java().path), "PYSPARK_PYTHON": sys.executable}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, *job], capture_output=True, text=True, timeout=600, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_each_kind_is_right_or_no_load_over_connect(tmp_path: Path) -> None:
    """The table of 27 kinds over a Connect server, by both ways to load: the log's answers, or NotALoadError."""
    fill(tmp_path / "log")
    assert over_connect("-m", "tests.spark.kinds", str(tmp_path / "log")) == []


def test_a_client_of_spark_connect_does_what_any_session_does(tmp_path: Path) -> None:
    """Run a job over a Connect server that it starts: state, diff, feed and stream are those in process."""
    path = tmp_path / "log"
    with walkit.open(path) as log:
        log.append_many([b"%d" % n for n in range(1000)], keys=[b"key %d" % (n % 10) for n in range(1000)])
        log.delete(b"key 3")
    said = over_connect("-c", JOB, str(path), str(tmp_path))
    with walkit.Store.open(path) as store, walkit.open(path, "r") as reader:
        changes = walkit.diff((reader, 500), reader).column("change").to_pylist()
        wanted = [(key.decode(), (value or b"").decode()) for key, value in sorted(store.items())]
    assert [(key, value) for key, value, _ in said["state"]] == wanted
    assert said["changed"] == {change: changes.count(change) for change in set(changes)}
    assert (said["records"], said["streamed"]) == (1001, 1001) and said["feed"] == 12
    assert said["session"].startswith("pyspark.sql.connect")
    assert "takes a log" in said["refused"]
    assert said["tasks"] and all(done <= total for done, total in said["tasks"])
    assert said["tasks"][-1][0] == said["tasks"][-1][1] > 0
