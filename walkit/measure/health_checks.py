"""The single checks of `walkit.measure.doctor`. None of them raises because of its findings."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

from walkit.errors import MissingExtraError, StorageError, WalkitError, how_to_install
from walkit.measure.baseline import raw_rate
from walkit.measure.machine import file_system
from walkit.storage import FileStorage, LockHolder
from walkit.storage.address import is_object_url, open_store
from walkit.storage.conditional_puts import prove_conditional_writes
from walkit.storage.interface import NumberedFile
from walkit.storage.mounts import COPYING_FILE_SYSTEMS

State = Literal["fine", "note", "problem"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    part: str
    """Where it belongs: packages, a folder, java, ..."""
    name: str
    found: str
    state: State = "fine"
    """A note costs something that walkit can do; a problem makes it, or its numbers, wrong or impossible."""
    advice: str = ""
    """Advice; empty if nothing has to be done."""


ROUNDS, ROUND_S, BLOCK_BYTES = 5, 0.2, 4096
"""The raw device: number and seconds of loops for each kind of write, and its bytes."""
SPARK_S = 120.0
"""Time after which Spark counts as not starting."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "firefox")
REINSTALL = f"install walkit again, {how_to_install('all')}, or make setup"
SHOWN = 4
"""Packages of an extra that are named as missing; of more their number is said."""
STARTS_SPARK = (
    "import walkit.spark; s = walkit.spark.session(); print('rows', s.range(3).count(), s.version); s.stop()"
)


def packages() -> Iterator[Finding]:
    """Report the versions, and the extras with missing packages."""
    part = "packages"
    yield Finding(part=part, name="Python", found=f"{platform.python_version()} ({sys.executable})")
    try:
        yield Finding(part=part, name="walkit", found=metadata.version("walkit"))
        required = metadata.requires("walkit") or []
    except metadata.PackageNotFoundError:
        yield Finding(
            part=part, name="walkit", found="runs, and is not installed", state="problem", advice=REINSTALL
        )
        return
    missing: dict[str, list[str]] = {}
    for name, extras, ranges in _requirements(required):
        of = f" ({', '.join(extras)})" if extras else ""
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            for extra in extras:
                missing.setdefault(extra, []).append(name)
            if not extras:
                yield Finding(part=part, name=name, found="not installed", state="problem", advice=REINSTALL)
            continue
        wrong = [asked for asked in ranges if not _within(version, asked)]
        yield Finding(
            part=part,
            name=name + of,
            found=version,
            state="problem" if wrong else "fine",
            advice=f"walkit is tested with {wrong[0]}: pip install '{name}{wrong[0]}'" if wrong else "",
        )
    if missing:
        lacking = [f"{extra} ({_some(missing[extra])})" for extra in sorted(missing)]
        wanted = ",".join(sorted(missing))
        yield Finding(
            part=part,
            name="extras",
            found=f"not installed: {', '.join(lacking)}",
            state="note",
            advice=how_to_install(wanted),
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _requirements(required: list[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each package once, with the extras that bring it (none: the core) and the required ranges."""
    extras: dict[str, list[str]] = {}
    ranges: dict[str, list[str]] = {}
    for line in required:
        asked, _, marker = line.partition(";")
        python = re.search(r"python_version\s*<\s*['\"](\d+)\.(\d+)", marker)
        if python and sys.version_info[:2] >= (int(python[1]), int(python[2])):
            continue
        found = re.match(r"\s*([\w.-]+)(\[[^]]*\])?\s*(.*)", asked)
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker)
        if found is None or found[1] == "walkit" or (extra and extra[1] == "all"):
            continue
        extras.setdefault(found[1], [])
        ranges.setdefault(found[1], []).append(found[3].strip(" ()"))
        if extra:
            extras[found[1]].append(extra[1])
    for name, brought_by in extras.items():
        yield name, brought_by, ranges[name]


def _within(version: str, asked: str) -> bool:
    """Whether a version is in a range like >=1.2,<2; True if numbers alone cannot decide it."""
    compare = {">=": lambda a, b: a >= b, "<": lambda a, b: a < b, "==": lambda a, b: a == b}
    for clause in filter(None, asked.split(",")):
        found = re.fullmatch(r"\s*(>=|<|==)\s*([\d.]+)\s*", clause)
        numbers = re.match(r"\d+(\.\d+)*", version)
        if found is None or numbers is None:
            continue
        have, want = ([int(n) for n in text.strip(".").split(".")] for text in (numbers[0], found[2]))
        width = max(len(have), len(want))
        have, want = (n + [0] * (width - len(n)) for n in (have, want))
        if not compare[found[1]](have, want):
            return False
    return True


def object_store(url: str) -> Iterator[Finding]:
    """Check whether an object store honours conditional puts: two objects are put, and removed."""
    part, name = f"object store {url.partition('?')[0]}", "conditional puts"
    try:
        with closing(open_store(url)) as store:
            prove_conditional_writes(store, "walkit-doctor")
        yield Finding(part=part, name=name, found="honoured")
    except WalkitError as error:
        advice = "a log needs them: correct the endpoint or the credentials, or use another store"
        yield Finding(part=part, name=name, found=str(error), state="problem", advice=advice)


def folder(path: str) -> Iterator[Finding]:
    """Report a folder's file system, whether it takes files and direct writes, and its raw device's rate of syncs."""
    if is_object_url(path):
        yield from object_store(path)
        return
    part, place = f"folder {path}", file_system(path)
    tmpfs = bool(place.tmpfs)
    yield Finding(
        part=part,
        name="file system",
        found=f"{place.type or 'unknown'}, mounted at {place.mount_point or 'an unknown place'}",
        state="problem" if tmpfs else "note" if place.type in COPYING_FILE_SYSTEMS else "fine",
        advice=f"{place.type} is memory: a sync means nothing here, and a power cut takes everything; keep logs on a "
        "disk, and set TMPDIR to a folder on one for scratch logs and benchmarks"
        if tmpfs
        else "writing over a file takes new blocks here: on a full disk a trim, which makes room, may find none; keep "
        "some of it free"
        if place.type in COPYING_FILE_SYSTEMS
        else "",
    )
    yield Finding(part=part, name="mount options", found=place.mount_options or "unknown")
    disk = None if place.rotational is None else "rotational" if place.rotational else "not rotational"
    about = ", ".join(filter(None, (place.device, disk, place.write_cache and f"cache: {place.write_cache}")))
    yield Finding(part=part, name="disk", found=about or "unknown")
    yield Finding(part=part, name="free", found=f"{shutil.disk_usage(path).free / 2**30:,.1f} GiB")
    try:
        work = tempfile.TemporaryDirectory(prefix=".walkit-doctor-", dir=path)
    except OSError as error:
        yield Finding(
            part=part,
            name="writing",
            found=f"refused: {error.strerror}",
            state="problem",
            advice="give walkit a folder that this user may write to",
        )
        return
    with work as inside:
        yield _numbers(part, inside)
        yield from _raw_device(part, inside, direct=False)
        yield from _raw_device(part, inside, direct=True)


def _numbers(part: str, path: str) -> Finding:
    """Check that a file has one number by name and by descriptor: else a writer cannot see that one was replaced."""
    storage = FileStorage(path)
    hold, file = storage.hold("lock"), storage.open("numbered", "create")
    try:
        same = isinstance(hold, LockHolder) or (
            isinstance(file, NumberedFile) and file.number() == hold.number_of("numbered")
        )
    finally:
        file.close()
        if not isinstance(hold, LockHolder):
            hold.release()
    return Finding(
        part=part,
        name="file numbers",
        found="the same by name and by descriptor" if same else "others by name than by descriptor",
        state="fine" if same else "problem",
        advice=""
        if same
        else "a writer here notices removed files, and does not notice replaced ones: let nothing else "
        "write into the folder of a log",
    )


def _raw_device(part: str, path: str, *, direct: bool) -> Iterator[Finding]:
    name = "raw device past the page cache (O_DIRECT)" if direct else "raw device, synced 4 KiB writes"
    try:
        rate = raw_rate(path, block_bytes=BLOCK_BYTES, direct=direct, rounds=ROUNDS, seconds=ROUND_S)
    except StorageError as error:
        yield Finding(
            part=part,
            name=name,
            found=f"does not work: {error}",
            state="note" if direct else "problem",
            advice="open logs here without direct_io" if direct else "use another disk",
        )
    except MissingExtraError as error:
        found = f"not measured: {error.package} is not installed, see extras"
        yield Finding(part=part, name=name, found=found)
    else:
        spread = f"{rate.lowest:,.0f} to {rate.highest:,.0f}, n={rate.rounds}"
        yield Finding(part=part, name=name, found=f"{rate.writes_per_s:,.0f} writes/s ({spread})")


def java() -> Iterator[Finding]:
    """Report the Java that Spark would run on."""
    part, name = "Spark", "Java"
    try:
        from walkit.spark.java import find_java

        with tempfile.TemporaryDirectory(prefix="walkit-doctor-") as work:
            found = find_java({**os.environ, "XDG_CACHE_HOME": work})
        yield Finding(part=part, name=name, found=f"{found.version}, of {found.source} ({found.runtime})")
    except (WalkitError, ImportError) as error:
        if _version("pyspark") is None:
            yield Finding(part=part, name=name, found="not looked for: pyspark is not installed, see extras")
            return
        none = "none that Spark can use"
        yield Finding(part=part, name=name, found=none, state="problem", advice=str(error))


def spark_starts() -> Iterator[Finding]:
    """Start Spark in a separate process, and let it count three rows."""
    part, name = "Spark", "starts"
    with tempfile.TemporaryDirectory(prefix="walkit-doctor-") as work:
        here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        child = subprocess.Popen(
            [sys.executable, "-c", STARTS_SPARK],
            cwd=work,
            env={**os.environ, "XDG_CACHE_HOME": work, "TMPDIR": work, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        try:
            said, _ = child.communicate(timeout=SPARK_S)
        except BaseException as error:
            child.kill()
            child.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            said = f"it was not there after {SPARK_S:.0f} seconds"
    counted = re.search(r"^rows 3 (\S+)$", said, re.MULTILINE)
    last = (said.strip().splitlines() or ["it said nothing"])[-1]
    yield Finding(
        part=part,
        name=name,
        found=f"yes, {counted[1]}" if counted else f"no: {last[:200]}",
        state="fine" if counted else "problem",
        advice=""
        if counted
        else "see its words with: python -c 'import walkit.spark; walkit.spark.session()'",
    )


def browser() -> Iterator[Finding]:
    """Report the browser."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    yield Finding(
        part="dashboard and notebooks",
        name="browser on this machine",
        found=found or "none",
        state="fine" if found else "note",
        advice=""
        if found
        else "the dashboard needs one, here or over a tunnel; Debian: apt-get install chromium",
    )


def lab() -> Iterator[Finding]:
    """Report whether JupyterLab has the packages of live views and the launcher tile."""
    yield _notebook_package("JupyterLab", "jupyterlab")
    if _version("jupyterlab") is None:
        return
    yield _notebook_package("live views in cells (anywidget)", "anywidget")
    tile = _notebook_package("launcher tile (jupyter-server-proxy)", "jupyter-server-proxy")
    if _version("jupyter-server-proxy") and not metadata.entry_points(
        group="jupyter_serverproxy_servers", name="walkit"
    ):
        found = f"{tile.found}, and does not know walkit"
        tile = replace(tile, found=found, state="problem", advice=REINSTALL)
    yield tile


def _notebook_package(name: str, package: str) -> Finding:
    version = _version(package)
    return Finding(part="dashboard and notebooks", name=name, found=version or "not installed: see extras")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
