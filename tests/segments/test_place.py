"""A writer is known by its open folder and files, not by names: two processes, one folder, every way to meet."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import pytest

import walkit
from tests.support.logs import manifest_store
from tests.support.threads import wait_until
from walkit.errors import LogLockedError, StorageError
from walkit.format.manifest import encode_base
from walkit.segments.manifest_store import load_manifest
from walkit.storage import FileStorage, LockHolder, locks
from walkit.storage.folder import number_at
from walkit.testing.storage_hooks import OtherProcess

linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="folders are held by flock, segments by OFD locks"
)
pytestmark = linux_only

WRITERS = """
import os, select
import walkit
from walkit.segments import segment_set
from walkit.errors import WalkitError

def asked():
    # From the descriptor: nothing that a later writer is asked for is read ahead.
    line = b""
    while not line.endswith(b"\\n"):
        line += os.read(0, 1) or os._exit(0)
    return line.decode().strip()

def write():
    log, said = None, []
    def note(name, facts):
        if name in ("walkit.log.move", "walkit.log.poison"):
            said.append(name)
    while (line := asked()) != "end":
        call, _, argument = line.partition(" ")
        try:
            if call == "open":
                log = walkit.open(argument, options=walkit.LogOptions(segment_bytes=1 << 20), events=note)
                answer = "ok"
            elif call == "append":
                answer = "ok " + str(log.append(argument.encode()).last_lsn)
            elif call == "fork":
                if os.fork() == 0:
                    hung_up = select.poll()
                    hung_up.register(0, 0)  # it outlives the writer, but not the tests of this file
                    hung_up.poll()
                    os._exit(0)
                answer = "ok"
            elif call == "said":
                answer = " ".join(said)
            elif call == "close":
                log.close()
                answer = "ok"
        except WalkitError as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            answer = type(error).__name__ + " " + str(getattr(cause, "errno", None))
        print(answer, flush=True)

while True:
    segment_set.LOOK_S = float(asked())
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        write()
        os._exit(0)
    os.wait()
    print("ended", flush=True)
"""


REFUSED = (f"CommitFailedError {errno.ESTALE}", f"LogPoisonedError {errno.ESTALE}")


class Writer:
    """A process that opens a log and appends to it, as it is asked to; a fork of one that has walkit imported."""

    def __init__(self, writers: OtherProcess, place: Path, look_s: float = 0) -> None:
        self.place = place
        self._writers = writers
        self._pid: int | None = int(self.ask(str(look_s)))

    def ask(self, call: str) -> str:
        """Let it do a call; returns its answer."""
        self._writers.send(call)
        return self._writers.line()

    def begin(self, value: str = "first") -> None:
        """Open the log and append a record."""
        assert self.ask(f"open {self.place}") == "ok"
        assert self.ask(f"append {value}").startswith("ok")

    def kill(self) -> None:
        """End it by SIGKILL and wait until it is gone."""
        assert self._pid is not None
        os.kill(self._pid, signal.SIGKILL)
        self._pid = None
        assert self._writers.line() == "ended"

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it, unless it was killed."""
        if self._pid is not None:
            self.kill()


NewWriter = Callable[..., Writer]


@pytest.fixture(scope="module")
def writer() -> Iterator[NewWriter]:
    """Begins a writer, one at a time."""
    with OtherProcess("", WRITERS) as writers:
        yield partial(Writer, writers)


def values_of(place: Path) -> list[bytes | None]:
    """Return the values of a log that is sound by every judge."""
    assert walkit.verify(place).ok
    with walkit.open(place) as log:
        return [record.value for record in log.read()]


def write_another(place: Path, count: int = 200) -> None:
    """Make a log at a path and close it, in this process: another than the first writer's."""
    with walkit.open(place) as log:
        assert log.append_many([b"%d" % n for n in range(count)]).last_lsn == count


def _retarget(path: Path, real: Path, to: str | None = "other") -> Path:
    path.unlink()
    if to is not None:
        path.parent.joinpath(to).mkdir()
        path.symlink_to(path.with_name(to))
    return real


MOVES: dict[str, Callable[[Path, Path], Path | None]] = {
    "renamed": lambda path, real: Path(shutil.move(real, real.with_name("kept"))),
    "removed": lambda path, real: shutil.rmtree(real),
    "link retargeted": _retarget,
    "link removed": lambda path, real: _retarget(path, real, to=None),
}


@pytest.mark.parametrize(
    ("move", "look_s"), [*((move, 0) for move in MOVES), ("renamed", 1000), ("removed", 1000)]
)
def test_two_writers_of_one_path_keep_their_own_records(
    writer: NewWriter, tmp_path: Path, move: str, look_s: float
) -> None:
    """Take the folder of a living writer from its path, and let another make a log there: both logs are whole."""
    path, real = tmp_path / "log", tmp_path / "log"
    if "link" in move:
        real = tmp_path / "real"
        real.mkdir()
        path.symlink_to(real)
    with writer(path, look_s) as first:
        first.begin()
        kept = MOVES[move](path, real)
        write_another(path)
        if kept is None:
            # The maintenance thread may have looked before.
            assert first.ask("append second") in REFUSED
            assert first.ask("append third") == REFUSED[1]
            assert first.ask("close") == "ok"
        else:
            assert first.ask("append second") == "ok 2"
            if look_s == 0:
                wait_until(lambda: first.ask("said") == "walkit.log.move", "the event")
            assert first.ask("close") == "ok"
            assert values_of(kept) == [b"first", b"second"]
    assert values_of(path) == [b"%d" % n for n in range(200)]


def _restore(path: Path, *only: str) -> None:
    for name in only or ("manifest", "lock", *(p.name for p in path.glob("*.segment"))):
        copied = path / f"{name}.copy"
        shutil.copy(path / name, copied)
        os.replace(copied, path / name)


def _newer_manifest(path: Path) -> None:
    whole = path.parent / "whole"
    write_another(whole)
    shutil.copy(whole / "manifest", path / "manifest")  # the same file, other bytes


def _diverged_manifest(path: Path) -> None:
    ours = load_manifest(FileStorage(path))
    (path / "manifest").write_bytes(encode_base(replace(ours, next_segment=ours.next_segment + 7)))


REMOVALS: dict[str, Callable[[Path], object]] = {
    "lock": lambda path: (path / "lock").unlink(),
    "lock replaced": lambda path: _restore(path, "lock"),
    "manifest": lambda path: (path / "manifest").unlink(),
    "manifest of another log": _newer_manifest,
    "manifest of a copy, as new": _diverged_manifest,
    "segment": lambda path: next(path.glob("*.segment")).unlink(),
    "segment renamed": lambda path: os.replace(next(path.glob("*.segment")), path / "away"),
    "restored over": _restore,
}


@pytest.mark.parametrize("what", REMOVALS)
def test_a_writer_whose_files_were_taken_is_poisoned_at_the_next_look(
    writer: NewWriter, tmp_path: Path, what: str
) -> None:
    """Remove or replace each of the files that a living writer relies on: a typed error, and it replaces nothing."""
    path = tmp_path / "log"
    with writer(path) as first:
        first.begin()
        REMOVALS[what](path)
        manifest = (path / "manifest").read_bytes() if (path / "manifest").exists() else None
        assert first.ask("append second") in REFUSED
        assert first.ask("append third") == REFUSED[1]
        assert first.ask("close") == "ok"
        assert manifest is None or (path / "manifest").read_bytes() == manifest


def test_a_removed_segment_is_seen_before_each_acknowledgement(writer: NewWriter, tmp_path: Path) -> None:
    """Remove the open segment between two looks that are far apart: the very next record is not acknowledged."""
    with writer(tmp_path / "log", look_s=1000) as first:
        first.begin()
        next((tmp_path / "log").glob("*.segment")).unlink()
        assert first.ask("append second") == f"CommitFailedError {errno.ESTALE}"


def test_a_close_changes_nothing_in_a_folder_that_is_not_the_writers(
    writer: NewWriter, tmp_path: Path
) -> None:
    """Remove the lock of an idle writer, which closes: it neither seals nor replaces the manifest, and reports why."""
    path = tmp_path / "log"
    with writer(path, look_s=1000) as first:
        first.begin()
        (path / "lock").unlink()
        before = (path / "manifest").read_bytes()
        assert first.ask("close") == f"StorageError {errno.ESTALE}"
        assert (path / "manifest").read_bytes() == before
    assert values_of(path) == [b"first"]


def _without_lock(path: Path) -> Path:
    (path / "lock").unlink()
    return path


TAKEN: dict[str, Callable[[Path], Path]] = {
    "as it is": lambda path: path,
    "lock removed": _without_lock,
    "lock replaced": lambda path: _restore(path, "lock") or path,  # type: ignore[func-returns-value]
    "renamed": lambda path: path.rename(path.with_name("kept")),
    "renamed, lock removed": lambda path: _without_lock(path.rename(path.with_name("kept"))),
}


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        *((how, "all locks") for how in TAKEN),
        *((how, "no flock on folders") for how in ("lock removed", "renamed, lock removed")),
        *((how, "a forked child") for how in ("as it is", "lock removed")),
    ],
)
def test_a_second_writer_is_refused_until_the_first_dies(
    writer: NewWriter, tmp_path: Path, how: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open and repair the folder of a writer whose lock or name was taken, by each kind: refused, until it dies."""
    with writer(tmp_path / "log") as first:
        if kind == "no flock on folders":
            monkeypatch.setattr(fcntl, "flock", _refused_for_folders(fcntl.flock))
        first.begin()
        if kind == "a forked child":
            assert first.ask("fork") == "ok"
        path = TAKEN[how](tmp_path / "log")
        for call in (walkit.open, walkit.repair, lambda p: walkit.repair(p, dry_run=True)):
            with pytest.raises(LogLockedError) as locked:
                call(path)
            assert not locked.value.same_process
        assert walkit.scan(path).state == "live"
        with walkit.open(path, "r") as reader:
            assert [record.value for record in reader.read()] == [b"first"]
        first.kill()
        assert values_of(path) == [b"first"]


def _refused_for_folders(flock: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Return an flock that folders do not have, as NFS refuses it."""

    def refused(fd: int, how: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(fd, how)

    return refused


def test_a_forked_child_opens_by_path_and_keeps_nothing(tmp_path: Path) -> None:
    """Fork beside an open log whose folder then moves: the child's storage means the path, and it holds no folder."""
    storage = FileStorage(tmp_path / "log")
    log = walkit.open(storage=storage)
    log.append(b"1")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(write_end)
            os.read(read_end, 1)  # the folder has moved
            status = 0 if not storage.exists() else 2
        finally:
            os._exit(status)
    os.rename(tmp_path / "log", tmp_path / "kept")
    os.close(read_end)
    os.close(write_end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    log.append(b"2")
    log.close()
    assert values_of(tmp_path / "kept") == [b"1", b"2"]
    assert not (tmp_path / "log").exists()


def test_a_storage_that_is_held_is_one_folder(tmp_path: Path) -> None:
    """Do every call by name through a held storage after its folder was renamed and another is there: none sees it."""
    storage = FileStorage(tmp_path / "log")
    storage.create()
    storage.open("old", "create").close()
    hold = storage.hold("lock")
    assert not isinstance(hold, LockHolder)
    assert isinstance(storage.hold("lock"), LockHolder)
    os.rename(tmp_path / "log", tmp_path / "kept")
    (tmp_path / "log").mkdir()
    storage.open("sub/new", "create").close()
    storage.replace("old", "other/moved")
    cell = storage.cell("cell", 8, writable=True)
    lock = storage.lock("lock")
    assert cell is not None and not isinstance(lock, LockHolder)
    cell.close()
    lock.release()
    storage.sync_directory("sub")
    storage.create()
    assert storage.names() == ["cell", "lock", "other/", "sub/"] and storage.exists()
    storage.remove("cell")
    assert storage.names("other") == ["other/moved"] and os.listdir(tmp_path / "log") == []
    assert (hold.number() == hold.number_of("")) is False and hold.place() == str(tmp_path / "kept")
    hold.release()
    assert storage.names() == []


def test_an_untrue_number_turns_the_looks_by_name_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the file system give other numbers by name than by descriptor, as some overlays do: the log works on."""
    monkeypatch.setattr(
        locks,
        "number_at",
        lambda *at: None if (n := number_at(*at)) is None else n._replace(inode=n.inode + 1),
    )
    log = walkit.open(tmp_path / "log", options=walkit.LogOptions(segment_bytes=1 << 20))
    log.append(b"1")
    manifest_store(log).look()
    log.close()
    assert values_of(tmp_path / "log") == [b"1"]


def test_a_moved_folder_is_reported_once(tmp_path: Path) -> None:
    """Move the folder away, on, back and away, with looks between: an event each time that it left, with its place."""
    told: list[object] = []

    def note(name: str, facts: dict[str, object]) -> None:
        if name == "walkit.log.move":
            told.append(facts["place"])

    with walkit.open(tmp_path / "log", events=note) as log:
        log.append(b"1")
        for there, here in (("log", "kept"), ("kept", "on"), ("on", "log"), ("log", "again")):
            os.rename(tmp_path / there, tmp_path / here)
            manifest_store(log).look()
            manifest_store(log).look()
        wait_until(lambda: len(told) == 2, "the events")
    assert told == [str(tmp_path / "kept"), str(tmp_path / "again")]


def test_files_to_be_removed_stay_if_the_log_was_replaced(tmp_path: Path) -> None:
    """Note a file to remove, then take `lock` away: the removal is a StorageError (ESTALE), and the file is there."""
    with walkit.open(tmp_path / "log") as log:
        (tmp_path / "log" / "needless").touch()
        log.parts.orphan_files.add(["needless"])
        (tmp_path / "log" / "lock").unlink()
        with pytest.raises(StorageError) as refused:
            log.parts.orphan_files.remove()
        assert refused.value.errno == errno.ESTALE and (tmp_path / "log" / "needless").exists()


@pytest.mark.parametrize("dies", [False, True], ids=["closed", "killed"])
def test_a_copy_of_hard_links_leaves_the_original_alone(
    writer: NewWriter, tmp_path: Path, dies: bool
) -> None:
    """A copy whose files have the same inodes is opened and written: the original opens with all its own records."""
    folder, copied = tmp_path / "orders", tmp_path / "copied"
    if dies:
        with writer(folder, 1000) as first:
            first.begin("ours")
            first.kill()
    else:
        with walkit.open(folder) as log:
            log.append(b"ours")
    shutil.copytree(folder, copied, copy_function=os.link)
    with walkit.open(copied) as log:
        log.append(b"theirs")
    assert values_of(folder) == [b"ours"]
    assert values_of(copied) == [b"ours", b"theirs"]
