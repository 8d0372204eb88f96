"""A class archive (AppCDS), made once for a machine and kept in the user's cache: Spark starts faster with it.

The JVM of a session spends most of its start on loading and checking some ten thousand classes. HotSpot can
dump them to a file when a JVM ends, and map that file when the next one starts. `make_archive` makes it;
sessions use it when it is there. It is bound to this Java and to these jars: the JVM looks at both and does
without where they differ.

A damaged archive is another matter: HotSpot maps it without a look and then crashes. So one is named in
`archive.json` only after it is whole, its size is compared before each use, and `-XX:+VerifySharedSpaces` has
the JVM check its checksums.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

import walkit
from walkit.errors import StorageError
from walkit.spark.java import JavaHome, cache_folder, find_java
from walkit.spark.workers import package_parent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INDEX = "archive.json"
MAKE_TIMEOUT_S = 300.0
# HotSpot writes its warnings to standard output, which belongs to the program.
WARNINGS_TO_STDERR = ("-Xlog:disable", "-Xlog:all=warning:stderr")
ERRORS_TO_STDERR = ("-Xlog:disable", "-Xlog:all=error:stderr")


def archive_folder(java: JavaHome) -> Path:
    """Return where the archive for this Java and this pyspark is kept."""
    jars = Path(pyspark.__file__).parent / "jars"
    digest = hashlib.sha256(os.fsencode(java.runtime) + b"\0" + os.fsencode(jars)).hexdigest()[:8]
    return cache_folder() / f"spark-{pyspark.__version__}-java-{java.version}-{digest}"


def archive_options(java: JavaHome) -> list[str]:
    """Return the JVM options that use the archive; none when there is no whole archive for this Java."""
    folder = archive_folder(java)
    if not _supported(java, folder):
        return []
    try:
        sizes: dict[str, int] = json.loads((folder / INDEX).read_text("utf-8"))
        whole = bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return []
    if not whole:
        return []
    files = ":".join(str(folder / name) for name in sizes)
    return [f"-XX:SharedArchiveFile={files}", "-Xshare:auto", "-XX:+VerifySharedSpaces", *WARNINGS_TO_STDERR]


def make_archive() -> Path | None:
    """Make the archive for the Java that sessions use, and return its folder.

    None where there can be none: another JVM than HotSpot, Windows, a blank or colon in the path. Runs a small
    Spark job in a process of its own: about 30 s, and 170 MB in the cache. What was there is replaced; sessions
    that are starting meanwhile use the old one or none. Raises `JavaNotFoundError`, and `StorageError` when no
    archive comes out.
    """
    java = find_java()
    folder = archive_folder(java)
    if not _supported(java, folder):
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"the cache folder {folder} cannot be made: {error.strerror}", errno=error.errno
        ) from error
    unique = f"{os.getpid()}-{os.urandom(4).hex()}"
    base, top = folder / f"base-{unique}.jsa", folder / f"spark-{unique}.jsa"
    files = [top] if _has_base(java) else [base, top]
    try:
        if base in files:
            dump = ["-Xshare:dump", f"-XX:SharedArchiveFile={base}", *ERRORS_TO_STDERR]
            _run([str(java.runtime / "bin" / "java"), *dump])
        on_base = [f"-XX:SharedArchiveFile={base}"] if base in files else []
        options = [*on_base, f"-XX:ArchiveClassesAtExit={top}", *ERRORS_TO_STDERR]
        program = f"from walkit.spark.archive import record_classes; record_classes({' '.join(options)!r})"
        _run([sys.executable, "-c", program])
        _publish(folder, files)
    except BaseException:
        for file in files:
            file.unlink(missing_ok=True)
        raise
    return folder


def record_classes(options: str) -> None:
    """Run a session with these JVM options through what walkit does with Spark; wait for its JVM to end."""
    from pyspark import SparkContext

    from walkit.spark.session import JAVA_OPTIONS, register, session_settings, start

    settings = {**session_settings("local[2]", "walkit"), JAVA_OPTIONS: options}
    spark = start(settings, find_java(), quiet=True)
    register(spark)
    gateway = SparkContext._gateway
    _exercise(spark)
    spark.stop()
    # The JVM ends, and dumps its classes, when its standard input is closed.
    process = gateway.proc  # type: ignore[union-attr]
    process.stdin.close()
    process.wait(MAKE_TIMEOUT_S)


def _exercise(spark: SparkSession) -> None:
    from walkit.spark.replay import replay

    with tempfile.TemporaryDirectory() as folder:
        with walkit.open(os.path.join(folder, "log"), options=walkit.LogOptions(durability="none")) as log:
            log.append_many([b"v"] * 100, keys=[b"%d" % (n % 7) for n in range(100)])
        records = spark.read.format("walkit").load(os.path.join(folder, "log"))
        replay(records).toArrow()
        records.selectExpr("count(*)", "max(lsn)").collect()
        spark.createDataFrame(records.toArrow()).toPandas()


def _supported(java: JavaHome, folder: Path) -> bool:
    # The options are one string, split at blanks, in which a colon parts two archives.
    return java.hotspot and sys.platform != "win32" and not set(str(folder)) & set(" \t:\"'\\")


def _has_base(java: JavaHome) -> bool:
    """Whether the runtime brings an archive of its own classes, for ours to stand on (jlink makes none)."""
    return (java.runtime / "lib" / "server" / "classes.jsa").exists()


def _run(command: list[str]) -> None:
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([package_parent(), os.environ.get("PYTHONPATH", "")]),
    }
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=MAKE_TIMEOUT_S, env=environ)
    except subprocess.CalledProcessError as error:
        output = (error.stderr or b"").decode("utf-8", "replace")
        raise StorageError(f"the class archive could not be made: {output[-2000:]}") from error
    except subprocess.TimeoutExpired as error:
        raise StorageError(f"the class archive was not made in {MAKE_TIMEOUT_S:.0f} s") from error


def _publish(folder: Path, files: list[Path]) -> None:
    """Name the files in the index by a rename, then remove what an earlier one named."""
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise StorageError(f"the JVM did not write the class archive {', '.join(missing)} in {folder}")
    for file in files:
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".index-")
    with os.fdopen(handle, "w", encoding="utf-8") as index:
        json.dump({file.name: file.stat().st_size for file in files}, index)
        index.flush()
        os.fsync(index.fileno())
    os.replace(temporary, folder / INDEX)
    for old in folder.glob("*.jsa"):
        if old not in files:
            with contextlib.suppress(OSError):
                old.unlink()
