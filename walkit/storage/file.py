"""A storage in a folder of the file system, through the page cache.

Durability is the file system's: RWF_DSYNC and fdatasync for bytes, fsync of a folder for names (macOS: F_FULLFSYNC).
Nothing here buffers, retries a failed sync, or starts a thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any

from walkit.errors import StorageError
from walkit.storage.base import Buffer, Cell, LockHolder, OpenMode, StorageFile, StorageLock
from walkit.storage.border import Translated, checked_folder, checked_name, parent_folder, storage_error
from walkit.storage.cells import FileCell, make_cell, map_cell
from walkit.storage.locks import lock_is_held, take_lock
from walkit.storage.mounts import mount_of

_WRITE_BYTES_MAX = 0x7FFF_F000
"""Most bytes one write or read call takes on Linux (MAX_RW_COUNT, write(2)); more is split."""
_BUFFERS_MAX = max(16, os.sysconf("SC_IOV_MAX"))
_READ_AT_ONCE = 1 << 20
_DSYNC: int = getattr(os, "RWF_DSYNC", 0)
_NO_SUCH_CALL = (errno.EOPNOTSUPP, errno.ENOSYS)
_FLAGS: dict[OpenMode, int] = {
    "read": os.O_RDONLY | os.O_CLOEXEC,
    "write": os.O_RDWR | os.O_CLOEXEC,
    "create": os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
}
_closing = threading.Lock()


_FULLFSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""macOS: its fsync leaves bytes in the drive's cache, and only this call does not (fcntl(2) there)."""


def _sync_data(fd: int) -> None:
    if _FULLFSYNC is None:
        os.fdatasync(fd)
    else:
        fcntl.fcntl(fd, _FULLFSYNC)


class FileStorageFile:
    """An open file: see `walkit.storage.StorageFile`.

    A buffer is anything contiguous with the buffer protocol; another object is a TypeError or BufferError before
    anything is written. `close` must not run while another call on this file does: the descriptor's number could
    be another file's by then.
    """

    __slots__ = ("_fd", "_location", "_name")

    def __init__(self, fd: int, name: str, location: str) -> None:
        self._fd, self._name, self._location = fd, name, location

    @property
    def name(self) -> str:
        """The file's name within its storage."""
        return self._name

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only where the file ends."""
        try:
            if size > _READ_AT_ONCE:
                # pread allocates what is asked for before it looks at the file.
                size = max(0, min(size, os.fstat(self._fd).st_size - offset))
            data = os.pread(self._fd, size, offset)
            if len(data) == size or not data:
                return data
            parts = [data]
            offset, size = offset + len(data), size - len(data)
            while size and (data := os.pread(self._fd, size, offset)):
                parts.append(data)
                offset, size = offset + len(data), size - len(data)
            return b"".join(parts)
        except OSError as error:
            raise self._refused("read", error) from error

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write all bytes of `buffers` at `offset`, with `sync` durably: one pwritev in all but extreme cases."""
        if offset < 0:
            # pwritev2 takes -1 as "where the descriptor stands", and would write.
            raise storage_error("write", self._name, self._location, errno.EINVAL, "a negative offset")
        size = sum(map(len, buffers))
        if memoryview in map(type, buffers):
            size = _byte_count(buffers)
        if size > _WRITE_BYTES_MAX or len(buffers) > _BUFFERS_MAX:
            self._write_split(offset, buffers, sync)
        else:
            self._write_once(offset, buffers, size, sync)

    def sync(self) -> None:
        """Put everything that was written before this call on stable storage, the file's size included."""
        try:
            if self._fd < 0:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # os.fdatasync has a ValueError for this
            _sync_data(self._fd)
        except OSError as error:
            raise self._refused("sync", error) from error

    def allocate(self, size: int) -> None:
        """Reserve space up to `size` bytes; what is new reads as zero.

        This counts as a write of the range from the old size to the new one: after a full disk the file is brought
        back to its old size. Holes below the old size stay holes. Where the file system cannot reserve, the file
        only grows.
        """
        with Translated("allocate space for", self._name, self._location):
            old = os.fstat(self._fd).st_size
            if size <= old:
                return
            try:
                os.posix_fallocate(self._fd, old, size - old)
            except AttributeError:
                os.ftruncate(self._fd, size)
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                    os.ftruncate(self._fd, size)
                    return
                # ext4 keeps the part it could reserve.
                os.ftruncate(self._fd, old)
                raise

    def shorten(self, size: int) -> None:
        """Drop all bytes from `size` on."""
        with Translated("shorten", self._name, self._location):
            if os.fstat(self._fd).st_size > size:
                os.ftruncate(self._fd, size)

    def size(self) -> int:
        """Return the file's size in bytes."""
        with Translated("read the size of", self._name, self._location):
            return os.fstat(self._fd).st_size

    def drop_cached(self) -> None:
        """Drop the clean pages of the file from the page cache (a hint; does nothing where there is no fadvise)."""
        if hasattr(os, "posix_fadvise"):
            with Translated("drop the cached pages of", self._name, self._location):
                os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file."""
        with _closing:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            with Translated("close", self._name, self._location):
                os.close(fd)

    def __del__(self) -> None:
        """Close what was dropped open, and say so as Python's own files do."""
        if getattr(self, "_fd", -1) >= 0:
            warnings.warn(f"unclosed file {self._name!r} in {self._location}", ResourceWarning, 2, self)
            os.close(self._fd)
            self._fd = -1

    def _write_once(self, offset: int, buffers: Sequence[Buffer], size: int, sync: bool) -> None:
        try:
            written = os.pwritev(self._fd, buffers, offset, _DSYNC if sync else 0)
        except OSError as error:
            if not (sync and error.errno in _NO_SUCH_CALL):
                raise self._refused("write", error) from error
            written = self._write_then_sync(offset, buffers)
        if written != size and written != (size := _byte_count(buffers)):
            reason = f"only {written:,} of {size:,} bytes were taken"
            raise storage_error("write", self._name, self._location, errno.EIO, reason)
        if sync and not _DSYNC:
            self.sync()

    def _write_split(self, offset: int, buffers: Sequence[Buffer], sync: bool) -> None:
        batch: list[memoryview] = []
        batch_bytes = 0
        for view in [memoryview(buffer).cast("B") for buffer in buffers]:
            rest = view
            while rest:
                if len(batch) == _BUFFERS_MAX or batch_bytes == _WRITE_BYTES_MAX:
                    self._write_once(offset, batch, batch_bytes, sync)
                    offset, batch, batch_bytes = offset + batch_bytes, [], 0
                batch.append(rest[: _WRITE_BYTES_MAX - batch_bytes])
                batch_bytes += len(batch[-1])
                rest = rest[len(batch[-1]) :]
        self._write_once(offset, batch, batch_bytes, sync)

    def _write_then_sync(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """Do what RWF_DSYNC does, on a kernel or file system that refuses the flag (it has written nothing then)."""
        try:
            written = os.pwritev(self._fd, buffers, offset)
        except OSError as error:
            raise self._refused("write", error) from error
        self.sync()
        return written

    def _refused(self, action: str, error: OSError) -> StorageError:
        reason = "the file is closed" if self._fd < 0 else ""
        return storage_error(action, self._name, self._location, error.errno, reason)


def _byte_count(buffers: Sequence[Buffer]) -> int:
    """Return the bytes of all buffers, also of views whose len() counts something else."""
    return sum(memoryview(buffer).nbytes for buffer in buffers)


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
                    return  # the folder was made by somebody who may
            for folder in reversed(missing):
                _make_folder(folder)
                _sync_folder(os.path.dirname(folder))

    def names(self, folder: str = "") -> list[str]:
        """Return the names of what stands in one folder, sorted; locks and cells are files too."""
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
            fd = os.open(path, _FLAGS[mode], 0o666)
            if mode != "create" and not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        return FileStorageFile(fd, name, self._root)

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
        """Take the exclusive lock of this name, or say who holds it: see `walkit.storage.locks`."""
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
        with Translated("map the cell", name, self._root):
            mapping = map_cell(path, size, writable=writable)
            if mapping is None and writable:
                self._make_parents(name)
                make_cell(path, size)
                mapping = map_cell(path, size, writable=writable)
        return None if mapping is None else FileCell(mapping, name, self._root)

    def facts(self) -> dict[str, Any]:
        """Return the kind, the path, and the mount it is on: file system, device, options, whether it is memory."""
        mount = mount_of(self._root)
        facts: dict[str, Any] = {"kind": "file", "path": self._root, "platform": sys.platform}
        return facts | (mount.as_dict() if mount else {"file_system": None, "in_memory": None})

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
