"""The files of locks, and a storage as a user sees it who may only read."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

import walkit
from walkit.errors import LogLockedError
from walkit.storage import FileStorage, LockHolder, locks, mount_of
from walkit.testing.storage_hooks import OtherProcess

AS_NOBODY = """
import os
from walkit.storage import FileStorage
os.setgroups([]); os.setgid(65534); os.setuid(65534)
storage = FileStorage({location!r})
file = storage.open("file", "read")
print(storage.is_locked("lock"), file.read(0, 9), flush=True)
file.close()
print(len(storage.cell("cell", 8, writable=False).read()), flush=True)
for attempt in (lambda: storage.lock("lock"), lambda: storage.open("new", "create"), lambda: storage.remove("file")):
    try:
        attempt()
    except OSError as error:
        print(error.errno, flush=True)
"""


def test_a_lock_is_known_by_its_file(storage: FileStorage, tmp_path: Path) -> None:
    """A second path to the same folder, by a symbolic link, meets the same lock and knows it is this process's."""
    (tmp_path / "link").symlink_to(storage.location)
    lock = storage.lock("lock")
    holder = FileStorage(tmp_path / "link").lock("lock")
    assert isinstance(holder, LockHolder)
    assert holder.same_process
    assert not isinstance(lock, LockHolder)
    lock.release()


def test_a_lock_file_of_any_content_can_be_taken(storage: FileStorage) -> None:
    """The text in the lock's file is for people: garbage neither holds the lock nor breaks the answer."""
    path = Path(storage.location) / "lock"
    for garbage in (b"\xff\x00", b"[]", b'{"pid": "x", "command": 3}', b"{" * 9, b""):
        path.write_bytes(garbage)
        lock = storage.lock("lock")
        assert not isinstance(lock, LockHolder)
        path.write_bytes(garbage)
        assert storage.lock("lock") == LockHolder(pid=None, command=None, same_process=True)
        lock.release()


def test_a_lock_names_its_holder_only_while_held(storage: FileStorage) -> None:
    """The holder's line is in the file while the lock is held, and gone after the release; the file stays."""
    path = Path(storage.location) / "lock"
    lock = storage.lock("lock")
    assert f'"pid": {os.getpid()}' in path.read_text()
    assert not isinstance(lock, LockHolder)
    lock.release()
    assert path.read_bytes() == b""


def test_a_lock_is_visible_without_permission_to_write() -> None:
    """Another user, who may read the folder only, reads files and cells and asks about the lock; the rest is EACCES."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        storage = FileStorage(f"{folder}/log")
        storage.create()
        file = storage.open("file", "create")
        file.write(0, [b"data"])
        file.close()
        lock, cell = storage.lock("lock"), storage.cell("cell", 8, writable=True)
        with OtherProcess("", AS_NOBODY.format(location=storage.location)) as child:
            assert child.line() == "True b'data'"
            assert child.line() == "8"
            assert [int(child.line()) for _ in range(3)] == [errno.EACCES] * 3
        assert cell is not None
        cell.close()
        assert not isinstance(lock, LockHolder)
        lock.release()


HOLD_BY = """
import fcntl, os, struct
fd = os.open({path!r}, os.O_RDWR | os.O_CREAT)
if {kind!r} == "flock":
    fcntl.flock(fd, fcntl.LOCK_EX)
else:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
print("held", flush=True)
sys.stdin.readline()
"""
TAKE_BY = """
import fcntl, os, struct
fd = os.open({path!r}, os.O_RDWR)
for take in (
    lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
    lambda: fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)),
):
    try:
        take()
        print("taken", flush=True)
    except BlockingIOError:
        print("held", flush=True)
"""
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="open file description locks are Linux's")


@linux_only
@pytest.mark.parametrize("kind", ["flock", "ofd"])
def test_a_process_with_one_kind_of_lock_keeps_a_writer_out(tmp_path: Path, kind: str) -> None:
    """Hold the lock's file in another process by one kind of lock alone: LogLockedError, until that process dies."""
    log = tmp_path / "log"
    with walkit.open(log) as first:
        first.append(b"1")
    with OtherProcess("", HOLD_BY.format(path=str(log / "lock"), kind=kind)) as child:
        assert child.line() == "held"
        with pytest.raises(LogLockedError) as locked:
            walkit.open(log)
        assert not locked.value.same_process
        with pytest.raises(LogLockedError):
            walkit.repair(log)
        child.kill()
        with walkit.open(log) as again:
            assert again.append(b"2").first_lsn == 2


@linux_only
def test_a_writer_keeps_both_kinds_of_locks_out_and_frees_both(storage: FileStorage) -> None:
    """Try both kinds in another process while a lock is held, after its release, and after a refused taking."""
    path = str(Path(storage.location) / "lock")

    def tried() -> list[str]:
        with OtherProcess("", TAKE_BY.format(path=path)) as child:
            return [child.line(), child.line()]

    lock = storage.lock("lock")
    assert not isinstance(lock, LockHolder)
    assert tried() == ["held", "held"]
    assert isinstance(storage.lock("lock"), LockHolder)
    assert tried() == ["held", "held"]
    lock.release()
    assert tried() == ["taken", "taken"]


@linux_only
def test_a_holder_by_flock_alone_is_not_named_after_a_dead_writer(storage: FileStorage) -> None:
    """Kill a writer, whose line stays in the file, and hold the file by flock: who holds it is not known, and free."""
    path = str(Path(storage.location) / "lock")
    Path(path).write_text('{"pid": 1, "command": "a dead writer"}\n')
    with OtherProcess("", HOLD_BY.format(path=path, kind="flock")) as child:
        assert child.line() == "held"
        assert storage.lock("lock") == LockHolder(pid=None, command=None, same_process=False)
        assert not storage.is_locked("lock"), "the refused taking left nothing locked"


HOLDING = """
from walkit.storage import FileStorage
lock = FileStorage({location!r}).lock("lock")
print("held", flush=True)
sys.stdin.readline()
"""
FORKING = """
import os
from walkit.storage import FileStorage
lock = FileStorage({location!r}).lock("lock")
if os.fork() == 0:
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.readline()
"""


@linux_only
def test_a_forked_child_keeps_no_lock_of_a_parent_that_was_killed(storage: FileStorage) -> None:
    """Kill a holder whose forked child lives and knows nothing of the lock: it is free, and no holder is named."""
    with OtherProcess("", FORKING.format(location=storage.location)) as holder:
        assert holder.line() == "forked"
        assert storage.is_locked("lock")
        holder.kill()
        lock = storage.lock("lock")
        assert not isinstance(lock, LockHolder), "the child has the lock"
        lock.release()


def test_a_holder_is_named_in_one_line(storage: FileStorage) -> None:
    """A command of several lines, and one with control characters, are named in one plain line."""
    with OtherProcess("", HOLDING.format(location=storage.location)) as holder:
        assert holder.line() == "held"
        found = storage.lock("lock")
        assert isinstance(found, LockHolder) and found.command is not None
        assert "FileStorage" in found.command and found.command.isprintable()
        path = Path(storage.location) / "lock"
        path.write_text(json.dumps({"pid": 7, "command": "rm\n\x1b[31m -rf"}))
        assert storage.lock("lock") == LockHolder(pid=7, command="rm [31m -rf", same_process=False)


@linux_only
@pytest.mark.parametrize(
    ("file_system", "both"), [("nfs4", False), ("fuse.x", False), (None, False), ("xfs", True)]
)
def test_flock_is_taken_only_where_the_two_are_known_to_be_apart(
    storage: FileStorage, monkeypatch: pytest.MonkeyPatch, file_system: str | None, both: bool
) -> None:
    """Let the folder be on NFS, on FUSE, or nowhere known: the lock is taken beside another process's flock there."""
    mount = mount_of(storage.location)
    assert mount is not None
    known = None if file_system is None else replace(mount, file_system=file_system)
    monkeypatch.setattr(locks, "mount_of", lambda _: known)
    path = str(Path(storage.location) / "lock")
    with OtherProcess("", HOLD_BY.format(path=path, kind="flock")) as child:
        assert child.line() == "held"
        lock = storage.lock("lock")
        assert isinstance(lock, LockHolder) is both
        if not isinstance(lock, LockHolder):
            lock.release()


def test_a_lock_file_that_lost_its_name_is_not_taken(
    storage: FileStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remove a lock's file after it was opened and before it is taken: the one that has the name is taken."""
    real, path = locks.try_lock, Path(storage.location, "claims.lock")

    def replaced_before(fd: int) -> bool:
        monkeypatch.setattr(locks, "try_lock", real)
        path.unlink()
        return real(fd)

    monkeypatch.setattr(locks, "try_lock", replaced_before)
    lock = storage.lock("claims.lock")
    assert isinstance(lock, locks.FileLock) and lock.key.inode == path.stat().st_ino
    assert isinstance(FileStorage(storage.location).lock("claims.lock"), LockHolder)
    lock.release()
