"""Executors that are processes of their own: a log is read, replayed, compared and verified on `local-cluster`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import walkit
from tests.conftest import Checkout
from tests.test_docs import examples

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

JOB = """
import json, sys
import walkit.spark

spark = walkit.spark.session(master="local-cluster[2,1,1024]")
records = spark.read.format("walkit").option("partitions", 4).load(sys.argv[1])
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
found = [records.count(), walkit.spark.replay(records).count(), walkit.spark.diff((records, 500), records).count()]
whole = [row.asDict() for row in walkit.spark.verify([sys.argv[1]]).collect()]
print(json.dumps({"executors": executors, "found": found, "verified": len(whole)}))
spark.stop()
"""


def test_two_executors_read_a_log(tmp_path: Path) -> None:
    """Run a job on two executors of their own in a process of its own: counts as in process, and both took part."""
    path = tmp_path / "log"
    with walkit.open(path) as log:
        log.append_many([b"v%d" % n for n in range(1000)], keys=[b"%d" % (n % 50) for n in range(1000)])
    job = [sys.executable, "-c", JOB, str(path)]
    done = subprocess.run(job, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    with walkit.open(path, "r") as log:
        changed = walkit.diff((log, 500), log).num_rows
    assert said == {"executors": 2, "found": [1000, 50, changed], "verified": 1}


def test_each_block_of_the_page_runs(checkout: Checkout, tmp_path: Path) -> None:
    """Run the page's blocks in a fresh process and folder each, as a person does: three records, two live keys."""
    pytest.importorskip("grpc_status", reason="the extra connect is not installed")
    page = (checkout.root / "docs/how-to/spark-on-a-cluster.md").read_text()
    anywhere, blocks = examples(page)
    assert (len(anywhere), len(blocks)) == (0, 2)
    unset = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "JAVA_HOME"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    for number, block in enumerate(blocks):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", block],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, f"{block}\n{done.stderr[-2000:]}"
        assert done.stdout.split()[-2:] == ["3", "2"], block
