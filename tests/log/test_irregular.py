"""Something else stands under the name of a log's file: a pipe, a folder. Nothing waits for it, and errors name it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.logs import tiny
from tests.support.threads import Task
from walkit.errors import StorageError, WalkitError
from walkit.format.index import index_name
from walkit.segments.manifest_store import load_manifest
from walkit.storage import FileStorage

OPTIONS = tiny(segment_bytes=512 * 1024)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A killed store with two sealed segments, an open one, an index, a snapshot and a cursor."""
    folder = tmp_path_factory.mktemp("whole")
    with walkit.Store.open(folder / "first", OPTIONS) as store:
        for n in range(200):
            store.put(b"%d" % (n % 50), bytes(2000))
        store.checkpoint()
        for n in range(150):
            store.put(b"%d" % (n % 50), bytes(2000))
        store.log.cursor("c").advance(120)
    store = walkit.Store.open(folder / "first", OPTIONS)
    store.put(b"last", b"1")
    shutil.copytree(folder / "first", folder / "killed")
    store.close()
    return folder / "killed"


FILES = (
    *("manifest", "lock", "durable", "sealed segment", "open segment", "index", "snapshot", "cursor"),
    *("lost+found", "stray segment", "unfinished manifest", "unfinished cell"),
)


def names_of(whole: Path) -> dict[str, str]:
    """The names of the log's files, by kind."""
    manifest = load_manifest(FileStorage(whole))
    sealed = manifest.sealed[-1].name
    snapshot = next(n for n in os.listdir(whole) if n.startswith("snapshot-"))
    return {
        "manifest": "manifest",
        "lock": "lock",
        "durable": "durable",
        "sealed segment": sealed,
        "open segment": manifest.unsealed[0].name,
        "index": index_name(sealed),
        "snapshot": snapshot,
        "cursor": "cursor-c",
        "lost+found": "lost+found",
        "stray segment": "00000000000000000099.segment",
        "unfinished manifest": "manifest.new",
        "unfinished cell": "durable.new",
    }


def read_all(path: Path) -> int:
    """Read the log from outside."""
    with walkit.open(path, mode="r") as reader:
        return len(list(reader.read()))


def moved(path: Path) -> int:
    """Advance the cursor from outside."""
    with walkit.open(path, mode="r") as reader:
        cursor = reader.cursor("c")
        cursor.advance(cursor.lsn)
        return cursor.lsn


WAYS: dict[str, Callable[[Path], Any]] = {
    "read": read_all,
    "cursor": moved,
    "scan": walkit.scan,
    "verify": walkit.verify,
    "dry repair": lambda path: walkit.repair(path, dry_run=True),
    "open": lambda path: walkit.open(path, options=OPTIONS).close(),
    "open a store": lambda path: walkit.Store.open(path, OPTIONS).close(),
    "salvage": lambda path: walkit.open(path, options=tiny(recovery="salvage")).close(),
    "repair": walkit.repair,
}
NEEDED = {
    "manifest": set(WAYS),
    "lock": set(WAYS),
    "durable": set(WAYS),
    "sealed segment": {"open", "open a store", "dry repair", "repair"},
    "open segment": {"read", "cursor", "open", "open a store", "dry repair", "repair"},
    "cursor": {"cursor"},
}
"""The uses that need each file."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", FILES)
def test_a_pipe_under_a_files_name_hangs_nothing(whole: Path, tmp_path: Path, what: str, way: str) -> None:
    """Replace each file by a pipe and use the log in each way: done, or a typed error; it names the file."""
    name = names_of(whole)[what]
    shutil.copytree(whole, tmp_path / "log")
    place = tmp_path / "log" / name
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    found, error = None, ""
    try:
        found = Task(WAYS[way], tmp_path / "log").result()
    except WalkitError as raised:
        error = str(raised)
    assert name in error or (not error and way not in NEEDED.get(what, set()))
    if isinstance(found, walkit.ScanReport) and "segment" in what:
        assert any(name in said for said in [*map(str, found.problems), *found.notes])


@pytest.mark.parametrize(
    ("name", "target", "said"), [("manifest", "nowhere", "manifest"), ("lock", "lock", "remove it")]
)
@pytest.mark.parametrize("way", WAYS)
def test_a_link_that_leads_nowhere_is_a_typed_error(
    whole: Path, tmp_path: Path, way: str, name: str, target: str, said: str
) -> None:
    """Put a link to nothing or to itself in a file's place and use the log in each way: the error names it."""
    shutil.copytree(whole, tmp_path / "log")
    place = tmp_path / "log" / name
    place.unlink(missing_ok=True)
    place.symlink_to(target)
    with pytest.raises(StorageError, match=said):
        Task(WAYS[way], tmp_path / "log").result()
    assert place.is_symlink()


def test_a_pipe_in_lost_and_found_receives_no_cut_bytes(whole: Path, tmp_path: Path) -> None:
    """Cut a torn tail whose name in lost+found a pipe has already: it is kept under another name, and read back."""
    record = load_manifest(FileStorage(whole)).unsealed[0]
    kept = ""
    for turn in range(2):
        place = tmp_path / f"log {turn}"
        shutil.copytree(whole, place)
        with open(place / record.name, "r+b") as file:
            file.seek(300_000)
            file.write(b"torn")
        if turn:
            (place / "lost+found").mkdir(exist_ok=True)
            os.mkfifo(place / kept)
        report = Task(walkit.repair, place).result()
        (cut,) = report.cuts
        kept = cut.kept_as or ""
        there = place / (f"{kept}.1" if turn else kept)
        assert there.read_bytes().endswith(b"torn")
