"""The part of the storage suite about the folder: names, modes, renames and removals."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from walkit.storage import LockHolder, Storage
from walkit.storage.interface import OpenMode
from walkit.testing.storage_hooks import Refused, StorageHooks

BAD_NAMES = ("", "/", "/etc/hosts", "../outside", "a/../b", "a//b", "./a", "a/", "a\0b")
"""Names that no method takes."""


class NameTests(StorageHooks):
    """Creation, names, replacement, removal and the properties of a storage."""

    def test_nothing_is_there_before_create(self, tmp_path: Path) -> None:
        """A new storage has no folder and no names, and makes no file until `create`."""
        storage = self.make_storage(tmp_path)
        assert not storage.exists()
        assert storage.names() == []
        with Refused(errno.ENOENT):
            storage.open("file", "create")
        with Refused(errno.ENOENT):
            storage.sync_directory()
        assert not storage.is_locked("lock")
        assert storage.cell("cell", 8, writable=False) is None
        assert not storage.exists()

    def test_create_is_repeatable(self, tmp_path: Path) -> None:
        """Creating twice, and by another opening, keeps the files."""
        storage, _ = self.with_file(tmp_path, b"kept")
        storage.create()
        other = self.reopen(storage)
        other.create()
        assert storage.exists()
        assert other.exists()
        assert self.raw_read(storage, "file") == b"kept"

    def test_names_are_sorted_and_of_one_folder(self, tmp_path: Path) -> None:
        """Files, locks, cells and sub-folders are listed in order by every opening; what is below them is not."""
        storage = self.created(tmp_path)
        for name in ("b", "a", "lost+found/2.tail", "lost+found/1.tail", "x/y/z", "a0"):
            storage.open(name, "create").close()
        lock = storage.lock("lock")
        cell = storage.cell("cell", 8, writable=True)
        expected = {
            "": ["a", "a0", "b", "cell", "lock", "lost+found/", "x/"],
            "lost+found": ["lost+found/1.tail", "lost+found/2.tail"],
            "x": ["x/y/"],
            "x/y": ["x/y/z"],
            "nowhere": [],
            "nowhere/below": [],
        }
        for folder, names in expected.items():
            assert storage.names(folder) == self.reopen(storage).names(folder) == names, folder
        assert cell is not None
        cell.close()
        assert not isinstance(lock, LockHolder)
        lock.release()

    def test_modes(self, tmp_path: Path) -> None:
        """A table: each mode on a missing name, a file, a folder, and below a file, with its errno."""
        storage, _ = self.with_file(tmp_path, b"", "folder/file")
        table: list[tuple[OpenMode, str, int]] = [
            ("read", "missing", errno.ENOENT),
            ("write", "missing", errno.ENOENT),
            ("read", "nowhere/missing", errno.ENOENT),
            ("create", "folder/file", errno.EEXIST),
            ("read", "folder", errno.EISDIR),
            ("write", "folder", errno.EISDIR),
            ("create", "folder", errno.EEXIST),
            ("read", "folder/file/below", errno.ENOTDIR),
            ("create", "folder/file/below", errno.ENOTDIR),
        ]
        for mode, name, code in table:
            with Refused(code) as caught:
                storage.open(name, mode)
            assert caught.error.name == name, (mode, name)
        assert storage.names("folder") == ["folder/file"]

    def test_names_cannot_leave_the_storage(self, tmp_path: Path) -> None:
        """Absolute names, dots, empty parts and zero bytes are EINVAL in every method that takes a name."""
        storage, _ = self.with_file(tmp_path)
        for bad in BAD_NAMES:
            calls: list[tuple[Callable[..., object], tuple[object, ...]]] = [
                (storage.open, (bad, "read")),
                (storage.open, (bad, "create")),
                (storage.replace, (bad, "file")),
                (storage.replace, ("file", bad)),
                (storage.remove, (bad,)),
                (storage.lock, (bad,)),
                (storage.is_locked, (bad,)),
                (partial(storage.cell, writable=True), (bad, 8)),
            ]
            if bad:
                calls += [(storage.sync_directory, (bad,)), (storage.names, (bad,))]
            for call, arguments in calls:
                with Refused(errno.EINVAL):
                    call(*arguments)
        assert storage.names() == ["file"]

    def test_replace_renames_over_what_is_there(self, tmp_path: Path) -> None:
        """The target has the source's bytes, the source is gone, and an open handle keeps the old file."""
        storage, file = self.with_file(tmp_path, b"old")
        new = self.opened(storage, "new", "create")
        new.write(0, [b"new bytes"])
        storage.replace("new", "file")
        assert storage.names() == ["file"]
        assert self.raw_read(storage, "file") == b"new bytes"
        assert file.read(0, 100) == b"old"
        new.write(0, [b"NEW"])
        assert self.raw_read(storage, "file") == b"NEW bytes"

    def test_replace_moves_between_folders(self, tmp_path: Path) -> None:
        """A file moves into a folder that is made for it, and back; a missing source is ENOENT and moves nothing."""
        storage, _ = self.with_file(tmp_path, b"data")
        storage.replace("file", "lost+found/file")
        assert (storage.names(), storage.names("lost+found")) == (["lost+found/"], ["lost+found/file"])
        storage.replace("lost+found/file", "file")
        storage.replace("file", "file")
        assert self.raw_read(storage, "file") == b"data"
        with Refused(errno.ENOENT) as caught:
            storage.replace("missing", "file")
        assert caught.error.name == "missing"
        assert self.raw_read(storage, "file") == b"data"

    def test_replace_is_atomic_for_readers(self, tmp_path: Path) -> None:
        """While one thread replaces a file over and over, another always finds it, whole, old or new."""
        storage, file = self.with_file(tmp_path, b"0" * 50)
        file.close()
        stop = threading.Event()
        seen: list[bytes] = []
        failures: list[Exception] = []

        def look() -> None:
            other = self.reopen(storage)
            try:
                while not stop.is_set() or not seen:
                    reader = other.open("file", "read")
                    seen.append(reader.read(0, 100))
                    reader.close()
            except Exception as error:  # noqa: BLE001 - shown by the assertion below
                failures.append(error)

        thread = threading.Thread(target=look)
        thread.start()
        for turn in range(200):
            new = storage.open("new", "create")
            new.write(0, [b"%d" % (turn % 10) * 50])
            new.close()
            storage.replace("new", "file")
        stop.set()
        thread.join()
        assert not failures
        assert seen
        assert all(len(data) == 50 and len(set(data)) == 1 for data in seen)

    def test_remove(self, tmp_path: Path) -> None:
        """A removed file is gone for names, readable by an open handle, and its name is free again."""
        storage, file = self.with_file(tmp_path, b"data")
        storage.remove("file")
        assert storage.names() == []
        assert file.read(0, 100) == b"data"
        with Refused(errno.ENOENT) as caught:
            storage.remove("file")
        assert caught.error.name == "file"
        assert self.opened(storage, "file", "create").size() == 0

    def test_sync_directory(self, tmp_path: Path) -> None:
        """The storage's folder and sub-folders can be synced; one that is not there is ENOENT."""
        storage, _ = self.with_file(tmp_path, b"", "one/two/file")
        for folder in ("", "one", "one/two"):
            storage.sync_directory(folder)
        with Refused(errno.ENOENT) as caught:
            storage.sync_directory("three")
        assert caught.error.name == "three"

    def test_openings_share_the_files(self, tmp_path: Path) -> None:
        """A second opening reads what the first wrote, and the first sees what the second replaced and removed."""
        storage, file = self.with_file(tmp_path, b"first")
        file.close()
        other = self.reopen(storage)
        assert self.opened(other, "file", "read").read(0, 100) == b"first"
        other.replace("file", "moved")
        assert storage.names() == ["moved"]
        other.remove("moved")
        assert storage.names() == []

    def test_facts_are_plain_values(self, tmp_path: Path) -> None:
        """The facts say a kind, can be kept as JSON, and the location is a text that names the place."""
        storage: Storage = self.created(tmp_path)
        facts = storage.facts()
        assert json.loads(json.dumps(facts)) == facts
        assert facts["kind"]
        assert isinstance(facts["in_memory"], bool | None)
        assert storage.location
        assert self.reopen(storage).location == storage.location

    def test_closing_a_storage_leaves_its_files_open(self, tmp_path: Path) -> None:
        """After `close`, an open file and a held lock stay valid; closing twice does nothing."""
        storage, file = self.with_file(tmp_path, b"data")
        lock = storage.lock("lock")
        other = self.reopen(storage)
        storage.close()
        storage.close()
        assert file.read(0, 4) == b"data"
        assert other.is_locked("lock")
        assert not hasattr(lock, "same_process")
        lock.release()
        file.close()
