"""Whether Spark's Python workers can import walkit, and the remedy if they cannot.

Workers import the data source by its name. They see the packages that are installed in their Python or were on
`PYTHONPATH` when the JVM started, but no path that a notebook has put on `sys.path` since.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.utils import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IMPORT_TIMEOUT_S = 60.0


def package_folder() -> Path:
    """Return the folder of the walkit that runs here."""
    return Path(__file__).resolve().parents[1]


def package_parent() -> str:
    """Return the folder that has to be on a worker's path for it to import this walkit."""
    return str(package_folder().parent)


def make_importable(spark: SparkSession) -> None:
    """Send the package to the workers of a local session that cannot import it (`SparkContext.addPyFile`).

    For other masters, and over Spark Connect, nothing is done: there walkit and its dependencies have to be
    installed on the workers.
    """
    if is_remote():
        return
    context = spark.sparkContext
    if (context.master or "").startswith("local") and not _importable(spark):
        context.addPyFile(str(_package_zip()))


def _importable(spark: SparkSession) -> bool:
    """Start the workers' Python as the JVM would, and see which walkit it imports (about 0.1 s)."""
    context = spark.sparkContext
    jvm = context._jvm
    assert jvm is not None
    jvm_path = jvm.java.lang.System.getenv("PYTHONPATH") or ""
    if package_parent() in jvm_path.split(os.pathsep):
        return True
    done = subprocess.run(
        [context.pythonExec, "-c", "import walkit; print(walkit.__file__)"],
        cwd=jvm.java.lang.System.getProperty("user.dir"),
        env={**os.environ, "PYTHONPATH": jvm_path},
        capture_output=True,
        text=True,
        timeout=IMPORT_TIMEOUT_S,
    )
    return done.returncode == 0 and Path(done.stdout.strip()).resolve().parent == package_folder()


@functools.cache
def _package_zip() -> Path:
    """Return a zip of the package's Python files; one a process, removed at its end."""
    folder = tempfile.mkdtemp(prefix="walkit-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "walkit.zip"
    package = package_folder()
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(package.rglob("*.py")):
            archive.write(file, file.relative_to(package.parent))
    return path
