"""The files of locks, and a storage as a user sees it who may only read."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from walkit.storage import FileStorage, LockHolder
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
    """What stands in the lock's file is for people: garbage neither holds the lock nor breaks the answer."""
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


def test_a_storage_can_be_asked_without_permission_to_write() -> None:
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
        assert not isinstance(lock, LockHolder)
        lock.release()
