"""Whose files a log has: those of its manifest's owner, also if another user makes them; and which users may."""

from __future__ import annotations

import ast
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.conftest import Checkout
from tests.support.logs import Child
from walkit.storage import FileStorage

OWNER, OTHER, GROUP = 61234, 61235, 61236
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")

PROGRAM = f"""
OF = {OWNER}, {GROUP}
"""
PROGRAM += """
import json, os, sys, tempfile, traceback
import walkit
from pathlib import Path
from typing import Any
from walkit.errors import StorageError

OPTIONS = walkit.LogOptions(segment_bytes=128 * 1024, idle_marker_ms=0)
STORE = walkit.StoreOptions(journal_slots=1024)

def write(path):
    with walkit.open(path + "/log", options=OPTIONS) as log:
        log.append_many([bytes(4000)] * 80)
        log.cursor("c").advance(log.acked_lsn)
        log.hold("h", log.acked_lsn)
        log.trim(log.first_lsn + 10, waste_ratio=0.01)

def store(path):
    with walkit.Store.open(path + "/store", options=OPTIONS, store_options=STORE) as store:
        store.log.append_many([bytes(4000)] * 80, [b"%d" % (n % 40) for n in range(80)])
        store.checkpoint()
        store.compact()

def claim(path):
    with walkit.open(path + "/log", mode="r") as log:
        last = log.last_lsn
    walkit.claim(path + "/log", "reader", last, lease_s=60, take_over=True)

def rebuild(path):
    os.remove(path + "/log/manifest")
    walkit.repair(path + "/log", policy="salvage")
    walkit.copy(path + "/log", path + f"/copy-{os.getpid()}")

def repair(path):
    last = sorted(Path(path + "/log").glob("*.segment"))[-1]
    with open(last, "r+b") as file:
        file.seek(6000)
        file.write(os.urandom(64))
    walkit.repair(path + "/log", policy="salvage")

def give(path, mode, of=OF):
    for each in (Path(path), *Path(path).rglob("*")):
        os.chown(each, *of)
        each.chmod(mode | (mode >> 2 & 0o111) if each.is_dir() else mode)

WORK = {"write": write, "store": store, "claim": claim, "repair": repair, "rebuild": rebuild}

def act(user, groups, names, path):
    os.setgroups(groups)
    os.setegid(groups[0] if groups else 65534)
    os.seteuid(user)
    answers = []
    for name in names:
        try:
            give(path, name) if isinstance(name, int) else WORK[name](path)
            answers.append("done")
        except StorageError as error:
            answers.append(f"StorageError {error.errno}")
        except Exception as error:
            answers.append(repr(error))
    return answers

with tempfile.TemporaryDirectory() as warm:  # the modules that are loaded late are out of another user's reach
    for work in WORK.values():
        work(warm)
import numpy.ma
os.umask(0o027)
for line in sys.stdin:
    user, groups, names, path = json.loads(line)
    read, sent = os.pipe()
    if not os.fork():
        os.write(sent, json.dumps(act(user, groups, names, path)).encode())
        os._exit(0)
    os.wait()
    os.close(sent)
    print(os.read(read, 65536).decode(), flush=True)
    os.close(read)
"""


MADE: list[Any] = ["write", "store"]
WORK: list[Any] = ["write", "store", "claim", "repair", "write", "rebuild"]


Acts = Callable[..., list[list[str]]]


@pytest.fixture(scope="module")
def acts() -> Iterator[Acts]:
    """Do steps at a place, each as a user with groups, and return their answers; a number gives all files that mode."""
    with Child(PROGRAM) as child:

        def act(place: Path, *steps: tuple[int, list[int], list[Any]]) -> list[list[str]]:
            answers = []
            for step in steps:
                child.send((*step, str(place)))
                answers.append(child.read())
            return answers

        yield act


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can reach, and all of `GROUP` can write to."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        within = Path(folder) / "within"
        within.mkdir()
        os.chown(within, OWNER, GROUP)
        within.chmod(0o770)
        yield within


def facts(path: Path) -> set[tuple[str, int, int, str]]:
    """Return kind, owner, group and mode of all files and folders of a log."""
    statuses = [each.stat() for name in ("log", "store") for each in (path / name).rglob("*")]
    return {
        ("folder" if stat.S_ISDIR(s.st_mode) else "file", s.st_uid, s.st_gid, f"{stat.S_IMODE(s.st_mode):o}")
        for s in statuses
    }


@needs_root
# Slow: processes of three users for each mode; 0o664 has bits that the others lack.
@pytest.mark.parametrize("mode", [0o664, *(pytest.param(m, marks=pytest.mark.slow) for m in (0o600, 0o666))])
def test_root_leaves_a_log_to_its_owner(acts: Acts, place: Path, mode: int) -> None:
    """Write, claim and repair as root in another user's log: all files are that user's, who can continue with them."""
    made, by_root = (OWNER, [GROUP], MADE), (0, [0], [mode, *WORK])
    assert acts(place, made, by_root) == [["done"] * 2, ["done"] * 7]
    folder = mode | (mode >> 2 & 0o111) | 0o100
    assert facts(place) == {("file", OWNER, GROUP, f"{mode:o}"), ("folder", OWNER, GROUP, f"{folder:o}")}
    assert {(s.st_uid, s.st_gid) for s in map(os.stat, place.rglob("*"))} == {(OWNER, GROUP)}
    assert acts(place, (OWNER, [GROUP], WORK)) == [["done"] * 6]


@needs_root
def test_a_stranger_is_refused_before_anything_is_made(acts: Acts, place: Path) -> None:
    """Work as a user who may write all but the manifest, whose files the owner could not use: EACCES, no change."""
    acts(place, (OWNER, [GROUP], MADE), (0, [0], [0o644]))
    for each in (place, *place.rglob("*")):
        if each.name != "manifest":
            each.chmod(0o777 if each.is_dir() else 0o666)
    before = {each: each.read_bytes() for each in place.rglob("*") if each.is_file()}
    refused = [f"StorageError {errno.EACCES}"] * 3
    work: list[Any] = ["write", "store", "claim"]
    assert acts(place, (OTHER, [], work), (OTHER, [GROUP], work)) == [refused] * 2
    assert {each: each.read_bytes() for each in place.rglob("*") if each.is_file()} == before


@needs_root
def test_strangers_share_a_log_that_everybody_may_write(acts: Acts, place: Path) -> None:
    """Write as a user of another group, which the owner is in, too: the owner can use its files, which all are 0666."""
    place.chmod(0o777)
    steps = (OWNER, [GROUP], MADE), (0, [0], [0o666]), (OTHER, [OTHER], MADE), (OWNER, [GROUP, OTHER], MADE)
    assert {answer for answers in acts(place, *steps) for answer in answers} == {"done"}
    assert {mode for _, _, _, mode in facts(place)} == {"666"}


@needs_root
def test_users_of_one_group_share_a_log(acts: Acts, place: Path) -> None:
    """Write as two users of a group that may write: each file is its maker's, has the log's mode, and serves both."""
    steps = (OWNER, [GROUP], MADE), (0, [0], [0o660]), (OTHER, [GROUP], WORK), (OWNER, [GROUP], WORK)
    assert {answer for answers in acts(place, *steps) for answer in answers} == {"done"}
    assert {owner for _, owner, _, _ in facts(place)} == {OWNER, OTHER}
    assert {(kind, group, mode) for kind, _, group, mode in facts(place)} == {
        ("file", GROUP, "660"),
        ("folder", GROUP, "770"),
    }


def test_the_folder_of_a_replica_and_of_a_readers_checkpoint_is_private(tmp_path: Path) -> None:
    """Follow a log by a replica and a delta reader: new folders are 0700, a folder that was there keeps its mode."""
    (tmp_path / "made").mkdir(mode=0o755)
    with walkit.open(tmp_path / "log") as log:
        result = log.append(b"v", key=b"k")
        primary = walkit.replication.Primary(log)
        primary.start()
        try:
            with walkit.replication.Replica(tmp_path / "replica", primary.address) as replica:
                replica.wait_for(result, 10)
            with walkit.replication.DeltaReader(
                tmp_path / "log", primary.address, checkpoint=tmp_path / "checkpoint"
            ) as reader:
                reader.wait_for(result, 10)
            with walkit.replication.DeltaReader(
                tmp_path / "log", primary.address, checkpoint=tmp_path / "made"
            ) as reader:
                reader.wait_for(result, 10)
        finally:
            primary.stop()
    modes = {
        name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("replica", "checkpoint", "made")
    }
    assert modes == {"replica": 0o700, "checkpoint": 0o700, "made": 0o755}
    FileStorage(tmp_path / "a" / "b").create_private_folder()
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_files_of_a_log_have_one_opener(checkout: Checkout) -> None:
    """Look for calls that make, own or chmod by name in the rooms of the log: `storage/folder.py` is the only one."""
    rooms = (
        "storage",
        "segments",
        "commit",
        "recovery",
        "read",
        "log",
        "copier",
        "state",
        "compaction",
        "replication",
    )
    calls = {"open", "mkdir", "makedirs", "chown", "chmod", "lchown", "mknod", "mkfifo", "fchown", "fchmod"}
    found = {
        f"{name.removeprefix('walkit/')}: os.{node.attr}"
        for name, text in checkout.files(".py").items()
        if name.startswith(tuple(f"walkit/{room}/" for room in rooms)) and "os." in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr in calls and ast.unparse(node.value) == "os"
    }
    others = {
        "log/scratch.py: os.open",  # its folder, to lock it
        "log/scratch.py: os.mkdir",  # a folder of this process
        "copier/log_copy.py: os.fchmod",  # the copy's folder, to close it
    }
    assert {each for each in found if not each.startswith("storage/folder.py")} == others
