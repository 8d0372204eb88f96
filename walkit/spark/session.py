"""A Spark session that just works on one machine, without a network, and one data source for every session.

It sets up each of these, which fail or chatter otherwise: the Java (`walkit.spark.java`), the
Python of the workers (the one that runs this), where the workers find walkit, addresses (127.0.0.1 only, so
neither a host name that does not resolve nor a firewall matters), the session time zone (UTC, as in
`walkit.RECORD_SCHEMA`), and the words that Spark and the JVM print on a terminal.

A class archive (AppCDS) is left out on purpose: it saves less than it takes to make, and HotSpot crashes on a damaged
one even with `-Xshare:auto`.
"""

from __future__ import annotations

import contextlib
import os
import site
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import IO, Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from walkit.errors import WalkitError
from walkit.spark.java import JavaHome, find_java
from walkit.spark.source import WalkitDataSource
from walkit.spark.workers import make_importable, package_parent

_starting = threading.Lock()


class SparkStartError(WalkitError):
    """The JVM of a new session ended before it answered; `output` holds the first and last lines it wrote."""

    code = "spark-start"

    def __init__(self, java: JavaHome, output: str) -> None:
        super().__init__(
            f"Spark did not start on Java {java.version} of {java.source} ({java.path}). It wrote:\n{output}"
        )
        self.output = output


def session(
    *,
    master: str = "local[*]",
    app_name: str = "walkit",
    config: Mapping[str, str] | None = None,
    quiet: bool = True,
    ui: bool = False,
) -> SparkSession:
    """Return a Spark session that knows `format("walkit")`.

    An active session is returned as it is, with the data source registered, and the arguments have no effect.
    Without one, a session is started on this machine, which takes 5 to 15 seconds, with a line on standard error.

    `master` is Spark's; for one that is not `local`, addresses and the workers' Python are left to you, and
    walkit has to be installed on the workers. `config` goes over walkit's settings. `quiet` keeps what the
    JVM writes to its standard error (warnings, log lines of Spark) from the terminal; if it does not start,
    the error shows it. `ui` starts Spark's pages in the browser, at `spark.sparkContext.uiWebUrl`, with the progress of
    each job, and shows that progress on the terminal.

    Sets PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON in this process, for local masters; other variables change
    only for the JVM. Raises `JavaNotFoundError`, `SparkStartError`. Safe from any thread; the session may be
    shared by threads.
    """
    with _starting:
        spark = active_session()
        if spark is None:
            config = config or {}
            settings = {**session_settings(config.get("spark.master", master), app_name, ui=ui), **config}
            # A process has one JVM, which outlives the session it was started for.
            java = find_java() if SparkContext._gateway is None else None
            if java is not None:
                where = f"{settings['spark.master']}, Java {java.version}"
                # Standard output belongs to the program: `walkit ... --json` is read by others.
                print(f"walkit: starting Spark ({where}); this takes 5 to 15 s", file=sys.stderr, flush=True)
            spark = start(settings, java, quiet=quiet)
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("walkit")` work in this session, under any settings.

    Where the workers of a local session cannot import this walkit (it is on `sys.path` of this process only),
    a copy of the package is sent to them. Doing it twice does no harm.
    """
    make_importable(spark)
    spark.dataSource.register(WalkitDataSource)


def active_session() -> SparkSession | None:
    """Return the session that is active in this thread, else the process's own, or None."""
    try:
        spark = SparkSession.active()
    except PySparkRuntimeError:
        return None
    # One whose context was stopped under it is still returned, and is useless.
    stopped = not is_remote() and spark.sparkContext._jsc is None
    return None if stopped else spark


def session_settings(master: str, app_name: str, *, ui: bool = False) -> dict[str, str]:
    """Return the settings of a new session."""
    settings = {
        "spark.master": master,
        "spark.app.name": app_name,
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": str(ui).lower(),
        "spark.sql.session.timeZone": "UTC",
    }
    if master.startswith("local"):
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
        # 200, Spark's default, is meant for a cluster: on one machine most of these tasks are empty.
        settings["spark.sql.shuffle.partitions"] = str(max(4, 2 * (os.cpu_count() or 1)))
        settings["spark.driver.memory"] = "2g"
    return settings


def start(settings: Mapping[str, str], java: JavaHome | None, *, quiet: bool) -> SparkSession:
    """Start a context on `java` and return its session; `java` is None when a JVM runs already."""
    local = settings["spark.master"].startswith("local")
    if local:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with _environment(_jvm_environment(java, local)):
        conf = SparkConf().setAll(list(settings.items()))
        gateway = None if java is None else _launch(conf, java, quiet=quiet)
        SparkContext(conf=conf, gateway=gateway)
        return SparkSession.builder.getOrCreate()


def _launch(conf: SparkConf, java: JavaHome, *, quiet: bool) -> Any:
    """Start the JVM; its standard error goes to a nameless file, which vanishes with it."""
    with tempfile.TemporaryFile() if quiet else contextlib.nullcontext() as output:
        try:
            options = None if output is None else {"stderr": output}
            return launch_gateway(conf, options)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            raise SparkStartError(java, _digest(output)) from error


def _digest(output: IO[bytes] | None, count: int = 12) -> str:
    """The first and last lines: a JVM prints the cause at the end, Spark's launcher before a page of help."""
    if output is None:
        return "(see above)"
    output.seek(0)
    lines = output.read().decode("utf-8", "replace").splitlines()
    return "\n".join(lines if len(lines) <= 2 * count else [*lines[:count], "...", *lines[-count:]])


def _jvm_environment(java: JavaHome | None, local: bool) -> dict[str, str]:
    changes = java.environment(os.environ) if java is not None else {}
    parent = package_parent()
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if parent not in {*inherited, *site.getsitepackages(), site.getusersitepackages()}:
        changes["PYTHONPATH"] = os.pathsep.join([parent, *inherited])
    if local:
        changes["SPARK_LOCAL_IP"] = "127.0.0.1"
    return changes


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change variables of this process for as long as a child is being started, then put them back."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
