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
from itertools import islice
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from walkit.errors import MissingExtraError, StorageError, WalkitError, how_to_install
from walkit.measure.baseline import ROUNDS, raw_rates
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


ROUND_S, BLOCK_BYTES = 0.2, 4096
"""The raw device: seconds of a loop, and bytes of a write."""
SPARK_S = 120.0
"""Time after which Spark counts as not starting."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "firefox")
REINSTALL = f"install walkit again, {how_to_install('all')}, or make setup"
TMPFS = (
    "this file system is memory: a sync means nothing here, and a power cut takes everything; keep logs on a disk, and "
    "set TMPDIR to a folder on one for scratch logs and benchmarks"
)
COPYING = (
    "writing over a file takes new blocks here: on a full disk a trim, which makes room, may find none; keep some of "
    "it free"
)
SHOWN = 4
"""Packages of an extra that are named as missing; of more their number is said."""
STARTS_SPARK = (
    "import walkit.spark; s = walkit.spark.session(); print('rows', s.range(3).count(), s.version); s.stop()"
)


def _checked(part: str, name: str, found: str, fault: str = "", state: State = "problem") -> Finding:
    """Return a finding that is fine without a fault; else in this state, with the fault as its advice."""
    return Finding(part=part, name=name, found=found, state=state if fault else "fine", advice=fault)


def packages() -> Iterator[Finding]:
    """Report the versions, and the extras with missing packages."""
    part = "packages"
    yield _checked(part, "Python", f"{platform.python_version()} ({sys.executable})")
    try:
        yield _checked(part, "walkit", metadata.version("walkit"))
        required = metadata.requires("walkit") or []
        known = metadata.metadata("walkit").get_all("Provides-Extra", [])
    except metadata.PackageNotFoundError:
        yield _checked(part, "walkit", "runs, and is not installed", REINSTALL)
        return
    missing: dict[str, list[str]] = {}
    for name, (extras, ranges) in _requirements(
        required, [extra for extra in known if extra != "all"]
    ).items():
        of = f" ({', '.join(extras)})" if extras else ""
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            for extra in extras:
                missing.setdefault(extra, []).append(name)
            if not extras:
                yield _checked(part, name, "not installed", REINSTALL)
            continue
        wrong = [asked for asked in ranges if not asked.contains(version, prereleases=True)]
        fault = f"walkit is tested with {wrong[0]}: pip install '{name}{wrong[0]}'" if wrong else ""
        yield _checked(part, name + of, version, fault)
    if missing:
        lacking = [f"{extra} ({_some(missing[extra])})" for extra in sorted(missing)]
        advice = how_to_install(",".join(sorted(missing)))
        yield _checked(part, "extras", f"not installed: {', '.join(lacking)}", advice, "note")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _requirements(required: list[str], extras: list[str]) -> dict[str, tuple[list[str], list[SpecifierSet]]]:
    """Return by package the extras that bring it (none: the core), and its ranges; without other Pythons' packages."""
    found: dict[str, tuple[list[str], list[SpecifierSet]]] = {}
    for asked in map(Requirement, required):
        brought_by = [x for x in ("", *extras) if asked.marker is None or asked.marker.evaluate({"extra": x})]
        if brought_by:
            names, ranges = found.setdefault(asked.name, ([], []))
            names += [] if "" in brought_by else brought_by
            ranges.append(asked.specifier)
    return found


def object_store(url: str) -> Iterator[Finding]:
    """Check whether an object store honours conditional puts: two objects are put, and removed."""
    part, name = f"object store {url.partition('?')[0]}", "conditional puts"
    try:
        with closing(open_store(url)) as store:
            prove_conditional_writes(store, "walkit-doctor")
        yield _checked(part, name, "honoured")
    except WalkitError as error:
        advice = "a log needs them: correct the endpoint or the credentials, or use another store"
        yield _checked(part, name, str(error), advice)


def folder(path: str) -> Iterator[Finding]:
    """Report a folder's file system, whether it takes files and direct writes, and its raw device's rate of syncs."""
    if is_object_url(path):
        yield from object_store(path)
        return
    part, place = f"folder {path}", file_system(path)
    found = f"{place.type or 'unknown'}, mounted at {place.mount_point or 'an unknown place'}"
    if place.tmpfs:
        yield _checked(part, "file system", found, TMPFS)
    else:
        fault = COPYING if place.type in COPYING_FILE_SYSTEMS else ""
        yield _checked(part, "file system", found, fault, "note")
    yield _checked(part, "mount options", place.mount_options or "unknown")
    disk = None if place.rotational is None else "rotational" if place.rotational else "not rotational"
    about = ", ".join(filter(None, (place.device, disk, place.write_cache and f"cache: {place.write_cache}")))
    yield _checked(part, "disk", about or "unknown")
    yield _checked(part, "free", f"{shutil.disk_usage(path).free / 2**30:,.1f} GiB")
    try:
        work = tempfile.TemporaryDirectory(prefix=".walkit-doctor-", dir=path)
    except OSError as error:
        advice = "give walkit a folder that this user may write to"
        yield _checked(part, "writing", f"refused: {error.strerror}", advice)
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
    if same:
        return _checked(part, "file numbers", "the same by name and by descriptor")
    fault = "a writer here notices removed files, not replaced ones: let nothing else write into the folder of a log"
    return _checked(part, "file numbers", "others by name than by descriptor", fault)


def _raw_device(part: str, path: str, *, direct: bool) -> Iterator[Finding]:
    name = "raw device past the page cache (O_DIRECT)" if direct else "raw device, synced 4 KiB writes"
    try:
        rates = raw_rates(path, block_bytes=BLOCK_BYTES, direct=direct, seconds=ROUND_S)
        rate = next(islice(rates, ROUNDS - 1, None))
    except StorageError as error:
        if direct:
            yield _checked(part, name, f"does not work: {error}", "open logs here without direct_io", "note")
        else:
            yield _checked(part, name, f"does not work: {error}", "use another disk")
    except MissingExtraError as error:
        found = f"not measured: {error.package} is not installed, see extras"
        yield _checked(part, name, found)
    else:
        spread = f"{rate.lowest:,.0f} to {rate.highest:,.0f}, n={rate.rounds}"
        yield _checked(part, name, f"{rate.writes_per_s:,.0f} writes/s ({spread})")


def java() -> Iterator[Finding]:
    """Report the Java that Spark would run on."""
    part, name = "Spark", "Java"
    try:
        from walkit.spark.java import find_java

        with tempfile.TemporaryDirectory(prefix="walkit-doctor-") as work:
            found = find_java({**os.environ, "XDG_CACHE_HOME": work})
        yield _checked(part, name, f"{found.version}, of {found.source} ({found.runtime})")
    except (WalkitError, ImportError) as error:
        if _version("pyspark") is None:
            yield _checked(part, name, "not looked for: pyspark is not installed, see extras")
            return
        yield _checked(part, name, "none that Spark can use", str(error))


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
    if counted:
        yield _checked(part, name, f"yes, {counted[1]}")
    else:
        advice = "see its words with: python -c 'import walkit.spark; walkit.spark.session()'"
        yield _checked(part, name, f"no: {last[:200]}", advice)


def browser() -> Iterator[Finding]:
    """Report the browser."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    fault = (
        "" if found else "the dashboard needs one, here or over a tunnel; Debian: apt-get install chromium"
    )
    yield _checked("dashboard and notebooks", "browser on this machine", found or "none", fault, "note")


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
    return _checked("dashboard and notebooks", name, version or "not installed: see extras")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
