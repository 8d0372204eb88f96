"""A storage in a folder of the file system, through the page cache or past it.

Durability is the file system's: RWF_DSYNC and fdatasync for bytes, fsync of a folder for names (macOS: F_FULLFSYNC).
Nothing here buffers, retries a failed sync, or starts a thread.

A direct write whose offset and size are multiples of 4096 goes to the device as it is (O_DIRECT, with `sync` as O_DSYNC
does); any other goes through the page cache. Linux keeps the two coherent on one file: a direct write first writes back
and then drops the cached pages of its range, so a read that begins after it sees it. Direct writes to different places
of one file run in parallel, which makes several frames in flight worthwhile.

The device reads memory that begins at a page, so the bytes are copied once, into page-aligned buffers that are reused.
"""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import stat
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final

from walkit._internal.locks import once
from walkit.storage.folder import Folder, make_folder, open_raw, open_regular, opened_folder, refuse_stranger
from walkit.storage.interface import (
    Buffer,
    Cell,
    LockHolder,
    OpenMode,
    Storage,
    StorageFile,
    StorageLock,
    Translated,
    checked_folder,
    checked_name,
    parent_folder,
    storage_error,
)
from walkit.storage.locks import FolderLock, lock_is_held, own_command, take_folder, take_lock
from walkit.storage.mounts import mount_of
from walkit.storage.openfile import FileStorageFile, make_cell, open_cell

DIRECT_BYTES: Final = 4096
"""Direct writes begin and end at multiples of this: no device has larger logical blocks."""
BUFFER_BYTES_MAX: Final = 8 << 20
"""A longer write is split into parts of this size."""
POOL_BYTES_MAX: Final = 32 << 20
O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)


class AlignedBuffers:
    """Page-aligned memory for writes, kept for the next one; safe from any thread."""

    def __init__(self, bytes_max: int = POOL_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        # Guards `_free` and `_free_bytes`. Taken alone, for a few steps of Python.
        self._lock = threading.RLock()
        self._free: dict[int, list[mmap.mmap]] = {}
        self._free_bytes = 0

    def take(self, size: int) -> mmap.mmap:
        """Return memory of at least `size` bytes, of any content; give it back after use."""
        capacity = 1 << max(size - 1, DIRECT_BYTES - 1).bit_length()
        with once(self._lock), self._lock:
            free = self._free.get(capacity)
            if free:
                self._free_bytes -= capacity
                return free.pop()
        # Private: a forked child must not share the parent's buffer of a write.
        return mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def _check(self) -> None:
        """Assert that kept memory is counted, and bounded; needs the lock held."""
        assert self._free_bytes == sum(len(m) for kept in self._free.values() for m in kept) <= self.bytes_max
        assert all(len(memory) == size for size, kept in self._free.items() for memory in kept)

    def give(self, memory: mmap.mmap) -> None:
        """Keep the memory for the next write, or drop it if enough is kept."""
        with once(self._lock), self._lock:
            if self._free_bytes + len(memory) <= self.bytes_max:
                self._free_bytes += len(memory)
                self._free.setdefault(len(memory), []).append(memory)
            else:  # rarely: enough is kept
                self._check()


_buffers = AlignedBuffers()


class DirectFile(FileStorageFile):
    """An open file with two descriptors: one past the page cache for aligned writes, one through it for all else."""

    __slots__ = ("_direct",)

    def __init__(self, raw: io.FileIO, direct: io.FileIO, name: str, location: str) -> None:
        super().__init__(raw, name, location)
        self._raws.append(direct)
        self._direct = direct.fileno()

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write all bytes of `buffers` at `offset`; past the page cache if offset and size are aligned."""
        pieces = [memoryview(buffer).cast("B") for buffer in buffers]
        size = sum(map(len, pieces))
        if offset % DIRECT_BYTES or size % DIRECT_BYTES or not size or offset < 0 or self._fd < 0:
            super().write(offset, pieces, sync=sync)
            return
        memory = _buffers.take(min(size, BUFFER_BYTES_MAX))
        try:
            with memoryview(memory)[: min(size, BUFFER_BYTES_MAX)] as room:
                self._write_parts(offset, pieces, room, sync)
        finally:
            _buffers.give(memory)

    def _write_parts(self, offset: int, pieces: list[memoryview], room: memoryview, sync: bool) -> None:
        filled = 0
        for piece in pieces:
            taken = 0
            while taken < len(piece):
                count = min(len(piece) - taken, len(room) - filled)
                room[filled : filled + count] = piece[taken : taken + count]
                taken, filled = taken + count, filled + count
                if filled == len(room):
                    self._write_once(offset, [room], filled, sync, self._direct)
                    offset, filled = offset + filled, 0
        if filled:
            with room[:filled] as rest:
                self._write_once(offset, [rest], filled, sync, self._direct)

    def close(self) -> None:
        """Close the file."""
        self._direct = -1
        super().close()


def open_direct(folder: Folder, flags: int, name: str) -> DirectFile:
    """Open a file with both descriptors; a file that `flags` created is removed again if that fails."""
    action = "open past the page cache"
    if not O_DIRECT:
        raise storage_error(action, name, folder.path, errno.EINVAL, "this platform cannot")
    with Translated(action, name, folder.path):
        raw = open_regular(folder, name, flags, action)
        try:
            direct = open_raw(folder, name, os.O_RDWR | O_DIRECT)
            direct.name = raw.name
        except BaseException:
            raw.close()
            if flags & os.O_CREAT:
                with contextlib.suppress(OSError):  # the first error is raised
                    os.unlink(folder.at(name), dir_fd=folder.fd)
            raise
        if not os.path.sameopenfile(raw.fileno(), direct.fileno()):
            raw.close()
            direct.close()
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))  # another file took the name meanwhile
    return DirectFile(raw, direct, name, folder.path)


def direct_io_refusal(folder: Folder) -> str | None:
    """Return why files in this folder cannot be written past the page cache; None if they can.

    Asks by a synced write of one block to a file without a name, so nothing is left, also after a crash.
    """
    mount = mount_of(folder.path)
    if mount is not None and mount.in_memory:
        return f"{mount.file_system} is in memory"  # newer kernels take the flag there, and it means nothing
    if not O_DIRECT or not hasattr(os, "O_TMPFILE"):
        return "this platform has no direct I/O"
    memory = _buffers.take(DIRECT_BYTES)
    try:
        with (
            open_raw(folder, "", os.O_TMPFILE | os.O_RDWR | O_DIRECT, 0o600) as raw,
            memoryview(memory)[:DIRECT_BYTES] as block,
        ):
            written = os.pwritev(raw.fileno(), [block], 0, getattr(os, "RWF_DSYNC", 0))
    except OSError as error:
        return f"the file system refuses it ({errno.errorcode.get(error.errno or 0, error.errno)})"
    finally:
        _buffers.give(memory)
    return None if written == DIRECT_BYTES else "the file system took a part of a block"


_FLAGS: dict[OpenMode, int] = {
    "read": os.O_RDONLY | os.O_CLOEXEC,
    "write": os.O_RDWR | os.O_CLOEXEC,
    "create": os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
}


class FileStorage:
    """A folder of the file system: see `walkit.storage.Storage`.

    While the folder is held (`hold`), everything is done in that folder, wherever it is by then, and else by its path.
    """

    __slots__ = ("_folder", "_root")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """`path` need not be there yet: `create` makes it. Made absolute at once, so chdir changes nothing."""
        self._root = os.path.abspath(os.fspath(path))
        self._folder = Folder(self._root)

    @property
    def location(self) -> str:
        """The folder's absolute path."""
        return self._root

    def __repr__(self) -> str:
        return f"FileStorage({self._root!r})"

    def __reduce__(self) -> tuple[type[FileStorage], tuple[str]]:
        """Pickle by path: a copy in another process holds no folder."""
        return FileStorage, (self._root,)

    def exists(self) -> bool:
        """Say whether the folder is there; something else in its place is a StorageError with errno ENOTDIR."""
        folder = self._folder
        with Translated("look at", "", self._root):
            try:
                status = os.stat(folder.at(), dir_fd=folder.fd)
            except FileNotFoundError:
                return False
        if not stat.S_ISDIR(status.st_mode):
            raise storage_error("use", "", self._root, errno.ENOTDIR)
        return True

    def create(self) -> None:
        """See `_create`."""
        self._create(0o777)

    def create_private_folder(self) -> None:
        """Make the folder so that its owner alone may enter it; one that is there stays as it is."""
        self._create(0o700)

    def create_for(self, source: Storage) -> None:
        """Make the folder for a log that is made from another: if root makes it, it belongs to that log's owner."""
        self._create(0o777, source._folder if isinstance(source, FileStorage) else None)

    def _create(self, permissions: int, like: Folder | None = None) -> None:
        """Make the folder and its missing parents, each durable before the next.

        A folder that is there may have been made by a process that died before its sync, so its record in its
        parent is synced too, if this process may do that. One that is held is there.
        """
        if self._folder.fd is not None:
            return
        with Translated("create", "", self._root):
            missing: list[str] = []
            place = self._root
            while not os.path.isdir(place):
                missing.append(place)
                place = os.path.dirname(place)
            if not missing:
                try:
                    _sync_folder(Folder(os.path.dirname(self._root)))
                except PermissionError:
                    return  # the folder was made by a privileged user
            for path in reversed(missing):
                if path == self._root:
                    make_folder(Folder(path), permissions=permissions, like=like)
                else:
                    make_folder(Folder(path))
                _sync_folder(Folder(os.path.dirname(path)))

    def names(self, folder: str = "") -> list[str]:
        """Return the names in one folder, sorted; locks and cells are files too."""
        prefix = f"{checked_folder(folder, self._root)}/" if folder else ""
        with Translated("list", folder, self._root):
            try:
                # Its own descriptor: two listings of one would share its position.
                with opened_folder(self._folder, folder) as fd, os.scandir(fd) as entries:
                    return sorted(prefix + e.name + "/" * e.is_dir(follow_symlinks=False) for e in entries)
            except FileNotFoundError:
                return []

    def open(self, name: str, mode: OpenMode) -> StorageFile:
        """Open a file; "create" makes missing sub-folders, but never the storage's own folder."""
        return self._open(name, mode, 0o666)

    def create_private(self, name: str) -> StorageFile:
        """Create a file that its owner alone may read and write. See `PrivateFiles`."""
        return self._open(name, "create", 0o600)

    def _open(self, name: str, mode: OpenMode, permissions: int) -> FileStorageFile:
        folder, action = self._folder, f"open ({mode})"
        checked_name(name, self._root)
        with Translated(action, name, self._root):
            if mode == "create":
                _make_parents(folder, name)
            return FileStorageFile(
                open_regular(folder, name, _FLAGS[mode], action, permissions=permissions), name, self._root
            )

    def direct_io_refusal(self) -> str | None:
        """Return why files cannot be written past the page cache here; None if they can. See `DirectStorage`."""
        return direct_io_refusal(self._folder)

    def open_direct(self, name: str, mode: OpenMode) -> StorageFile:
        """Open a file whose aligned writes go past the page cache; "read" is as `open` has it."""
        if mode == "read":
            return self.open(name, mode)
        folder = self._folder
        checked_name(name, self._root)
        if mode == "create":
            with Translated("open (create)", name, self._root):
                _make_parents(folder, name)
        return open_direct(folder, _FLAGS[mode], name)

    def replace(self, source: str, target: str) -> None:
        """Rename `source` to `target` atomically."""
        folder = self._folder
        checked_name(source, self._root)
        checked_name(target, self._root)
        with Translated(f"rename to {target!r} the file", source, self._root):
            try:
                _rename(folder, source, target)
            except FileNotFoundError:
                os.stat(folder.at(source), dir_fd=folder.fd, follow_symlinks=False)
                _make_parents(folder, target)
                _rename(folder, source, target)

    def rename_new(self, source: str, target: str) -> None:
        """Rename by a second link, which is made only if the name is free: see `ExclusiveNames`."""
        folder = self._folder
        checked_name(source, self._root)
        checked_name(target, self._root)
        with Translated(f"rename to {target!r} the file", source, self._root):
            os.link(
                folder.at(source),
                folder.at(target),
                src_dir_fd=folder.fd,
                dst_dir_fd=folder.fd,
                follow_symlinks=False,
            )
            os.unlink(folder.at(source), dir_fd=folder.fd)

    def remove(self, name: str) -> None:
        """Remove a file."""
        folder = self._folder
        checked_name(name, self._root)
        with Translated("remove", name, self._root):
            os.unlink(folder.at(name), dir_fd=folder.fd)

    def sync_directory(self, folder: str = "") -> None:
        """Make names in `folder` durable, and the folder's own record in its parents up to the storage."""
        folder = checked_folder(folder, self._root)
        with Translated("sync the folder", folder, self._root):
            while folder:
                _sync_folder(self._folder, folder)
                folder = parent_folder(folder)
            _sync_folder(self._folder)

    def hold(self, lock_name: str) -> FolderLock | LockHolder:
        """Hold the folder, whatever its name becomes: see `walkit.storage.interface.HoldableStorage`."""
        if self._folder.fd is not None:
            return LockHolder(pid=os.getpid(), command=own_command(), same_process=True)
        checked_name(lock_name, self._root)
        with Translated("hold", "", self._root):
            refuse_stranger(self._folder)
        return take_folder(self._root, lock_name, self._bind)

    def _bind(self, folder: Folder) -> None:
        self._folder = folder

    def lock(self, name: str) -> StorageLock | LockHolder:
        """Take the exclusive lock of this name, or return its holder: see `walkit.storage.locks`."""
        folder = self._folder
        checked_name(name, self._root)
        with Translated("lock", name, self._root):
            refuse_stranger(folder)
            _make_parents(folder, name)
        return take_lock(folder, name)

    def is_locked(self, name: str) -> bool:
        """Say whether a living process holds the lock."""
        return lock_is_held(self._folder, checked_name(name, self._root))

    def cell(self, name: str, size: int, *, writable: bool) -> Cell | None:
        """Return the shared cell of this name; a writable one that is missing or too short is replaced by zeros."""
        folder = self._folder
        checked_name(name, self._root)
        with Translated("open the cell", name, self._root):
            cell = open_cell(folder, size, name, writable=writable)
            if cell is None and writable:
                _make_parents(folder, name)
                make_cell(folder, size, name)
                cell = open_cell(folder, size, name, writable=writable)
        return cell

    def facts(self) -> dict[str, Any]:
        """Return the kind, the path, and the mount it is on: file system, device, options, whether it is memory."""
        mount = mount_of(self._root)
        facts: dict[str, Any] = {"kind": "file", "path": self._root, "platform": sys.platform}
        return facts | (mount.as_dict() if mount else {"file_system": None, "in_memory": None})

    def free_bytes(self) -> int:
        """Return how many bytes the file system has left for this user. StorageError."""
        folder = self._folder
        with Translated("look at", "", self._root):
            left = os.statvfs(folder.at() if folder.fd is None else folder.fd)
        return left.f_bavail * left.f_frsize

    def close(self) -> None:
        """Nothing is held between calls, except a folder that is held by `hold`."""


def _make_parents(folder: Folder, name: str) -> None:
    # The storage's own folder is not made here: a writer whose folder was removed must fail, not start again.
    made = ""
    for part in name.split("/")[:-1]:
        made = f"{made}/{part}" if made else part
        make_folder(folder, made)


def _rename(folder: Folder, source: str, target: str) -> None:
    os.replace(folder.at(source), folder.at(target), src_dir_fd=folder.fd, dst_dir_fd=folder.fd)


def _sync_folder(folder: Folder, name: str = "") -> None:
    with opened_folder(folder, name) as fd:
        os.fsync(fd)
