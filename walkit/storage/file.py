"""A storage in a folder of the file system, through the page cache.

Durability is the file system's: RWF_DSYNC and fdatasync for bytes, fsync of a folder for names (macOS: F_FULLFSYNC).
Nothing here buffers, retries a failed sync, or starts a thread.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from typing import Any

from walkit.storage.direct import open_direct, why_not_direct
from walkit.storage.interface import Cell, LockHolder, OpenMode, StorageFile, StorageLock
from walkit.storage.io_errors import (
    Translated,
    checked_folder,
    checked_name,
    open_regular,
    parent_folder,
    storage_error,
)
from walkit.storage.locks import lock_is_held, take_lock
from walkit.storage.mounts import mount_of
from walkit.storage.openfile import FileStorageFile, make_cell, open_cell

_FLAGS: dict[OpenMode, int] = {
    "read": os.O_RDONLY | os.O_CLOEXEC,
    "write": os.O_RDWR | os.O_CLOEXEC,
    "create": os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
}


class FileStorage:
    """A folder of the file system: see `walkit.storage.Storage`."""

    __slots__ = ("_root",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """`path` need not be there yet: `create` makes it. Made absolute at once, so chdir changes nothing."""
        self._root = os.path.abspath(os.fspath(path))

    @property
    def location(self) -> str:
        """The folder's absolute path."""
        return self._root

    def __repr__(self) -> str:
        return f"FileStorage({self._root!r})"

    def exists(self) -> bool:
        """Say whether the folder is there; something else in its place is a StorageError with errno ENOTDIR."""
        with Translated("look at", "", self._root):
            try:
                status = os.stat(self._root)
            except FileNotFoundError:
                return False
        if not stat.S_ISDIR(status.st_mode):
            raise storage_error("use", "", self._root, errno.ENOTDIR)
        return True

    def create(self) -> None:
        """Make the folder and its missing parents, each durable before the next.

        A folder that is there may have been made by a process that died before its sync, so its record in its
        parent is synced too, where this process may do that.
        """
        with Translated("create", "", self._root):
            missing: list[str] = []
            place = self._root
            while not os.path.isdir(place):
                missing.append(place)
                place = os.path.dirname(place)
            if not missing:
                try:
                    _sync_folder(os.path.dirname(self._root))
                except PermissionError:
                    return  # the folder was made by a privileged user
            for folder in reversed(missing):
                _make_folder(folder)
                _sync_folder(os.path.dirname(folder))

    def names(self, folder: str = "") -> list[str]:
        """Return the names in one folder, sorted; locks and cells are files too."""
        path = self._path(folder) if folder else self._root
        prefix = f"{folder}/" if folder else ""
        with Translated("list", folder, self._root):
            try:
                with os.scandir(path) as entries:
                    return sorted(prefix + e.name + "/" * e.is_dir(follow_symlinks=False) for e in entries)
            except FileNotFoundError:
                return []

    def open(self, name: str, mode: OpenMode) -> StorageFile:
        """Open a file; "create" makes missing sub-folders, but never the storage's own folder."""
        path = self._path(name)
        with Translated(f"open ({mode})", name, self._root):
            if mode == "create":
                self._make_parents(name)
            fd = open_regular(path, _FLAGS[mode], f"open ({mode})", name, self._root)
        return FileStorageFile(fd, name, self._root)

    def create_private(self, name: str) -> StorageFile:
        """Create a file that its owner alone may read and write. See `PrivateFiles`."""
        path, action = self._path(name), "open (create)"
        with Translated(action, name, self._root):
            self._make_parents(name)
            fd = open_regular(path, _FLAGS["create"], action, name, self._root, permissions=0o600)
        return FileStorageFile(fd, name, self._root)

    def why_not_direct(self) -> str | None:
        """Say why files cannot be written past the page cache here; None where they can. See `DirectStorage`."""
        return why_not_direct(self._root)

    def open_direct(self, name: str, mode: OpenMode) -> StorageFile:
        """Open a file whose aligned writes go past the page cache; "read" is as `open` has it."""
        if mode == "read":
            return self.open(name, mode)
        path = self._path(name)
        if mode == "create":
            with Translated("open (create)", name, self._root):
                self._make_parents(name)
        return open_direct(path, _FLAGS[mode], name, self._root)

    def replace(self, source: str, target: str) -> None:
        """Rename `source` to `target` atomically."""
        paths = self._path(source), self._path(target)
        with Translated(f"rename to {target!r} the file", source, self._root):
            try:
                os.replace(*paths)
            except FileNotFoundError:
                if not os.path.lexists(paths[0]):
                    raise
                self._make_parents(target)
                os.replace(*paths)

    def remove(self, name: str) -> None:
        """Remove a file."""
        path = self._path(name)
        with Translated("remove", name, self._root):
            os.unlink(path)

    def sync_directory(self, folder: str = "") -> None:
        """Make names in `folder` durable, and the folder's own record in its parents up to the storage."""
        folder = checked_folder(folder, self._root)
        with Translated("sync the folder", folder, self._root):
            while folder:
                _sync_folder(os.path.join(self._root, folder))
                folder = parent_folder(folder)
            _sync_folder(self._root)

    def lock(self, name: str) -> StorageLock | LockHolder:
        """Take the exclusive lock of this name, or return its holder: see `walkit.storage.locks`."""
        path = self._path(name)
        with Translated("lock", name, self._root):
            self._make_parents(name)
        return take_lock(path, name, self._root)

    def is_locked(self, name: str) -> bool:
        """Say whether a living process holds the lock."""
        return lock_is_held(self._path(name), name, self._root)

    def cell(self, name: str, size: int, *, writable: bool) -> Cell | None:
        """Return the shared cell of this name; a writable one that is missing or too short is made anew, zeroed."""
        path = self._path(name)
        with Translated("open the cell", name, self._root):
            cell = open_cell(path, size, name, self._root, writable=writable)
            if cell is None and writable:
                self._make_parents(name)
                make_cell(path, size, name, self._root)
                cell = open_cell(path, size, name, self._root, writable=writable)
        return cell

    def facts(self) -> dict[str, Any]:
        """Return the kind, the path, and the mount it is on: file system, device, options, whether it is memory."""
        mount = mount_of(self._root)
        facts: dict[str, Any] = {"kind": "file", "path": self._root, "platform": sys.platform}
        return facts | (mount.as_dict() if mount else {"file_system": None, "in_memory": None})

    def free_bytes(self) -> int:
        """Return how many bytes the file system has left for this user. StorageError."""
        with Translated("look at", "", self._root):
            left = os.statvfs(self._root)
        return left.f_bavail * left.f_frsize

    def close(self) -> None:
        """Nothing is held between calls."""

    def _path(self, name: str) -> str:
        return f"{self._root}/{checked_name(name, self._root)}"

    def _make_parents(self, name: str) -> None:
        # The storage's own folder is not made here: a writer whose folder was removed must fail, not begin anew.
        made = self._root
        for part in name.split("/")[:-1]:
            made = f"{made}/{part}"
            _make_folder(made)


def _make_folder(path: str) -> None:
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
