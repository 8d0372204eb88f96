"""Spark Connect: a client without a JVM of its own is answered by a server as a session in process is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.questions import QUESTIONS, make_logs
from walkit.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the logs that are asked about."""
    make_logs(folder := tmp_path_factory.mktemp("logs"))
    return folder


@pytest.fixture(scope="module")
def said(logs: Path) -> dict[str, Any]:
    """The answers over Connect: its server has the Java of this process, and its workers the Python."""
    pytest.importorskip("grpc_status", reason="the extra connect is not installed")
    environment = {**os.environ, "JAVA_HOME": str(find_java().path), "PYSPARK_PYTHON": sys.executable}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "tests.spark.questions", str(logs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_has_one_answer(
    spark: SparkSession, logs: Path, said: dict[str, Any], question: str
) -> None:
    """Ask a question over a Connect server and in process: the same rows, or the same error of walkit's."""
    found = json.loads(json.dumps(QUESTIONS[question](spark, logs)))
    assert said["answers"][question] == found and found


def test_each_kind_is_right_or_no_load_over_connect(said: dict[str, Any]) -> None:
    """The table of kinds over a Connect server, by both ways to load: the log's answers, or NotALoadError."""
    assert said["session"].startswith("pyspark.sql.connect") and said["kinds"] == []


def test_progress_counts_tasks_over_connect(said: dict[str, Any]) -> None:
    """Follow a replay over a Connect server: tasks done never pass those known, and all are done at the end."""
    tasks = said["tasks"]
    assert all(done <= total for done, total in tasks) and tasks[-1][0] == tasks[-1][1] > 0
