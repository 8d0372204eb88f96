"""A storage in memory, plain and volatile: the storage of `memory://`, which ends with the process.

Every opening of one `MemoryStorage` object sees the same files, as processes of one machine do; a "reader process"
in a test is given the same object. One that can crash is `walkit.models.CrashingStorage`.

Files share bytes until one is written. Files and names know no locks or threads: the storage calls them under one lock.
`walkit.models` holds the effect of a power cut on such files.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, NoReturn, Protocol, TypeVar

from walkit._internal.locks import once
from walkit.errors import StorageError
from walkit.storage.bulk import copy_into
from walkit.storage.interface import (
    Buffer,
    Cell,
    LockHolder,
    OpenMode,
    StorageLock,
    checked_folder,
    checked_name,
    parent_folder,
    storage_error,
)
from walkit.storage.locks import lock_information, own_command

ChangeKind = Literal["write", "allocate", "shorten"]
NameChangeKind = Literal["create", "replace", "remove"]


class Content:
    """The bytes of a file: the stored ones, and zeros up to `size`. A copy costs nothing until one side is written."""

    __slots__ = ("_bytes", "_shared", "size")

    def __init__(self) -> None:
        self._bytes, self._shared, self.size = bytearray(), False, 0

    @property
    def stored(self) -> int:
        """How many bytes are kept; those after them, up to `size`, are zeros."""
        return len(self._bytes)

    def copy(self) -> Content:
        """Return an independent content with the same bytes."""
        twin = Content()
        twin._bytes, twin.size = self._bytes, self.size
        twin._shared = self._shared = True
        return twin

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`, fewer at the end of the content."""
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        return bytes(memoryview(self._bytes)[offset:end]).ljust(end - offset, b"\0")

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Store `data` at `offset`, with zeros before it if the content was shorter."""
        if not data:
            return
        end = offset + len(data)
        if offset >= len(self._bytes) and data[0] == 0 and data == bytes(len(data)):
            self.grow(end)  # as a log zeroes a whole segment beforehand
            return
        stored = self._own()
        if offset > len(stored):
            stored.extend(bytes(offset - len(stored)))
        stored[offset:end] = data
        self.size = max(self.size, end)

    def grow(self, size: int) -> None:
        """Have at least `size` bytes; new ones are zero."""
        self.size = max(self.size, size)

    def shorten(self, size: int) -> None:
        """Have at most `size` bytes."""
        if size < self.size:
            del self._own()[size:]
            self.size = size

    def change(self, kind: ChangeKind, offset: int, data: bytes = b"") -> None:
        """Write `data` at `offset`, or have at least (allocate) or at most (shorten) `offset` bytes."""
        if kind == "write":
            self.write(offset, data)
        elif kind == "allocate":
            self.grow(offset)
        else:
            self.shorten(offset)

    def _own(self) -> bytearray:
        if self._shared:
            self._bytes, self._shared = bytearray(self._bytes), False
        return self._bytes


class MemoryInode:
    """One file: its bytes, of which nothing survives the process."""

    __slots__ = ("content",)

    def __init__(self) -> None:
        self.content = Content()

    def change(self, kind: ChangeKind, offset: int, data: bytes = b"") -> None:
        """Do a change: see `Content.change`."""
        self.content.change(kind, offset, data)

    def write_synced(self, offset: int, data: bytes) -> None:
        """Write; a sync means nothing here."""
        self.content.write(offset, data)

    def write_cell(self, offset: int, data: bytes) -> None:
        """Store bytes that are never synced."""
        self.content.write(offset, data)

    def mark(self) -> int:
        """Return a moment for `sync`."""
        return 0

    def sync(self, mark: int) -> None:
        """Do nothing: there is nothing below the memory."""

    def drop_cached(self) -> None:
        """Do nothing: there is nothing below the memory."""


InodeT = TypeVar("InodeT", bound=MemoryInode)


def change_name(
    names: dict[str, InodeT], kind: NameChangeKind, name: str, inode: InodeT, target: str = ""
) -> None:
    """Do one change of names. A file has one name; a name that is not there needs no removing."""
    if kind == "create":
        names[name] = inode
    elif kind == "replace":
        for standing in [standing for standing, found in names.items() if found is inode]:
            del names[standing]
        names[target] = inode
    else:
        names.pop(name, None)


class MemoryNames(Generic[InodeT]):
    """All names of one storage, and the file of each. Its folders are there as long as the storage."""

    def __init__(self, location: str, make: Callable[[], InodeT]) -> None:
        self.location = location
        self.current: dict[str, InodeT] = {}
        self.created = False
        self._folders: set[str] = set()
        self._make = make

    def of(self, folder: str) -> list[str]:
        """Return the names in one folder, sorted: files, and its sub-folders with a "/" after their names."""
        if folder in self.current:
            raise storage_error("list", folder, self.location, errno.ENOTDIR)
        files = [name for name in self.current if parent_folder(name) == folder]
        return sorted(files + [f"{sub}/" for sub in self._folders if parent_folder(sub) == folder])

    def get(self, name: str) -> InodeT:
        """Return the file of this name, or raise with the errno that a file system has for it."""
        inode = self.current.get(name)
        if inode is None:
            self._raise_missing("open", name)
        return inode

    def create(self, name: str) -> InodeT:
        """Make an empty file under a new name, and its folders."""
        if name in self.current or name in self._folders:
            raise storage_error("open (create)", name, self.location, errno.EEXIST)
        self.make_parents(name)
        inode = self._make()
        self._do("create", name, inode)
        return inode

    def replace(self, source: str, target: str) -> None:
        """Rename a file, replacing any at `target`."""
        inode = self.current.get(source)
        if inode is None:
            self._raise_missing(f"rename to {target!r} the file", source)
        if target in self._folders:
            raise storage_error(f"rename to {target!r} the file", source, self.location, errno.EISDIR)
        self.make_parents(target)
        if source != target:
            self._do("replace", source, inode, target)

    def remove(self, name: str) -> None:
        """Remove a name; an open handle keeps the file."""
        inode = self.current.get(name)
        if inode is None:
            self._raise_missing("remove", name)
        self._do("remove", name, inode)

    def sync(self, folder: str) -> None:
        """Refuse a folder that is not there; all else is done already."""
        if not self.created or (folder and folder not in self._folders):
            raise storage_error("sync the folder", folder, self.location, errno.ENOENT)

    def make_parents(self, name: str) -> None:
        """Make the folders above a name."""
        if not self.created:
            raise storage_error("create", name, self.location, errno.ENOENT)
        parts = name.split("/")[:-1]
        for count in range(1, len(parts) + 1):
            folder = "/".join(parts[:count])
            if folder in self.current:
                raise storage_error("create", name, self.location, errno.ENOTDIR)
            self._folders.add(folder)

    def _do(self, kind: NameChangeKind, name: str, inode: InodeT, target: str = "") -> None:
        change_name(self.current, kind, name, inode, target)

    def _raise_missing(self, action: str, name: str) -> NoReturn:
        parts = name.split("/")
        parents = ("/".join(parts[:count]) for count in range(1, len(parts)))
        if name in self._folders:
            code = errno.EISDIR
        elif any(parent in self.current for parent in parents):
            code = errno.ENOTDIR
        else:
            code = errno.ENOENT
        raise storage_error(action, name, self.location, code)


_numbers = itertools.count(1)


class NameTable(Protocol):
    """The names of a storage, as it uses them: see `MemoryNames`."""

    created: bool

    @property
    def current(self) -> Mapping[str, MemoryInode]:
        """The inode of each name."""

    def of(self, folder: str) -> list[str]:
        """Return the names in one folder, sorted."""

    def get(self, name: str) -> MemoryInode:
        """Return the file of this name."""

    def create(self, name: str) -> MemoryInode:
        """Make an empty file under a new name."""

    def replace(self, source: str, target: str) -> None:
        """Rename a file, replacing any at `target`."""

    def remove(self, name: str) -> None:
        """Take a name away."""

    def sync(self, folder: str) -> None:
        """Make the changes of names in `folder` durable."""


class MemoryStorage:
    """A folder of files in memory: see `walkit.storage.Storage`. Holes take memory up to the last byte written."""

    def __init__(self, location: str | None = None) -> None:
        self._location = location or f"memory://{next(_numbers)}"
        # Guards the names, the bytes of all files and the locks of this storage. Taken last: every call is one step
        # under it.
        self._guard: Any = threading.RLock()
        self._names = self._new_names()
        self._locks: dict[str, MemoryLock] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the files; a copy has a location of its own, and all its locks are free."""
        return {name: value for name, value in vars(self).items() if name not in ("_guard", "_locks")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _guard=threading.RLock(), _locks={}, _location=f"memory://{next(_numbers)}")

    @property
    def location(self) -> str:
        """A URL that names this object within its process."""
        return self._location

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._location}>"

    def exists(self) -> bool:
        """Say whether `create` was called."""
        return self._names.created

    def create(self) -> None:
        """Make the folder, durably."""
        self._names.created = True

    def names(self, folder: str = "") -> list[str]:
        """Return the names in one folder, sorted; locks and cells are files too."""
        checked_folder(folder, self._location)
        with once(self._guard), self._guard:
            return self._names.of(folder)

    def open(self, name: str, mode: OpenMode) -> MemoryFile:
        """Open a file."""
        checked_name(name, self._location)
        with once(self._guard), self._guard:
            inode = self._names.create(name) if mode == "create" else self._names.get(name)
        return MemoryFile(self._guard, inode, name, self._location, writable=mode != "read")

    def replace(self, source: str, target: str) -> None:
        """Rename `source` to `target` atomically. Between folders it is durable when that of `target` is synced."""
        checked_name(source, self._location)
        checked_name(target, self._location)
        with once(self._guard), self._guard:
            self._names.replace(source, target)

    def rename_new(self, source: str, target: str) -> None:
        """Rename, unless the name is taken: see `walkit.storage.interface.ExclusiveNames`."""
        checked_name(source, self._location)
        checked_name(target, self._location)
        with once(self._guard), self._guard:
            if target in self._names.current:
                raise storage_error(f"rename to {target!r} the file", source, self._location, errno.EEXIST)
            self._names.replace(source, target)

    def remove(self, name: str) -> None:
        """Remove a file."""
        checked_name(name, self._location)
        with once(self._guard), self._guard:
            self._names.remove(name)

    def sync_directory(self, folder: str = "") -> None:
        """Make creations, replacements and removals in this folder durable."""
        checked_folder(folder, self._location)
        with once(self._guard), self._guard:
            self._names.sync(folder)

    def lock(self, name: str) -> StorageLock | LockHolder:
        """Take the lock of this name, or say that this process holds it."""
        checked_name(name, self._location)
        with once(self._guard), self._guard:
            if name in self._locks:
                return LockHolder(pid=self._locks[name].pid, command=own_command(), same_process=True)
            inode = self._names.current.get(name) or self._names.create(name)
            inode.change("shorten", 0)
            inode.change("write", 0, lock_information())
            lock = MemoryLock(self._guard, self._locks, name)
            self._locks[name] = lock
            return lock

    def is_locked(self, name: str) -> bool:
        """Say whether the lock is held."""
        checked_name(name, self._location)
        return name in self._locks

    def cell(self, name: str, size: int, *, writable: bool) -> Cell | None:
        """Return the shared cell of this name; a writable one that is missing or too short is replaced by zeros."""
        checked_name(name, self._location)
        with once(self._guard), self._guard:
            inode = self._names.current.get(name)
            if inode is None and not writable:
                return None
            if inode is None or (writable and inode.content.size < size):
                inode = self._renewed_cell(name, size)
        return MemoryCell(self._guard, inode, size, name, self._location, writable=writable)

    def facts(self) -> dict[str, Any]:
        """Return that this is memory: nothing survives the process."""
        return {"kind": "memory", "path": self._location, "file_system": "walkit memory", "in_memory": True}

    def close(self) -> None:
        """Nothing is held between calls."""

    def _new_names(self) -> NameTable:
        return MemoryNames(self._location, MemoryInode)

    def _renewed_cell(self, name: str, size: int) -> MemoryInode:
        temporary = f"{name}.new"
        if temporary in self._names.current:
            self._names.remove(temporary)
        inode = self._names.create(temporary)
        inode.change("write", 0, bytes(size))
        self._names.replace(temporary, name)
        return inode


class MemoryFile:
    """An open file in memory: see `walkit.storage.StorageFile`. Buffers as in `FileStorageFile`."""

    def __init__(self, guard: Any, inode: MemoryInode, name: str, location: str, *, writable: bool) -> None:
        self._guard, self._inode, self._name, self._location = guard, inode, name, location
        self._writable, self._closed = writable, False

    @property
    def name(self) -> str:
        """The file's name within its storage."""
        return self._name

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""
        self._check("read", offset, size)
        with once(self._guard), self._guard:
            return self._inode.content.read(offset, size)

    def data_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the part of [start, end) that is kept; the rest is zeros."""
        self._check("look for data in", start, end)
        with once(self._guard), self._guard:
            end = min(end, self._inode.content.stored)
        return [(start, end)] if start < end else []

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Read into `buffer`; return how many bytes were there."""
        return copy_into(buffer, self.read(offset, len(buffer)))

    def read_ahead(self, offset: int, size: int) -> None:
        """Do nothing: it is memory."""
        self._check("read ahead in", offset, size)

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write all bytes of `buffers` at `offset`; with `sync` exactly these are durable on return."""
        data = self._joined(offset, buffers)
        with once(self._guard), self._guard:
            if sync:
                self._inode.write_synced(offset, data)
            elif data:
                self._inode.change("write", offset, data)

    def sync(self) -> None:
        """Finish at once: as durable as the storage is, all was when it was written."""
        self._check("sync")
        with once(self._guard), self._guard:
            self._inode.sync(self._inode.mark())

    def allocate(self, size: int) -> None:
        """Have at least `size` bytes."""
        self._check("allocate space for", size, writing=True)
        with once(self._guard), self._guard:
            if size > self._inode.content.size:
                self._inode.change("allocate", size)

    def shorten(self, size: int) -> None:
        """Drop all bytes from `size` on."""
        self._check("shorten", size, writing=True)
        with once(self._guard), self._guard:
            if size < self._inode.content.size:
                self._inode.change("shorten", size)

    def size(self) -> int:
        """Return the file's size in bytes."""
        self._check("read the size of")
        return self._inode.content.size

    def drop_cached(self) -> None:
        """Read clean bytes again from the storage below the memory; without one, do nothing."""
        self._check("drop the cached pages of")
        with once(self._guard), self._guard:
            self._inode.drop_cached()

    def close(self) -> None:
        """Close the file."""
        self._closed = True

    def _joined(self, offset: int, buffers: Sequence[Buffer]) -> bytes:
        if self._closed or not self._writable or offset < 0:
            self._check("write", offset, writing=True)
        for buffer in buffers:
            if type(buffer) is not bytes and not memoryview(buffer).c_contiguous:
                raise BufferError("a buffer to write is not C-contiguous")
        return b"".join(buffers)

    def _check(self, action: str, *numbers: int, writing: bool = False) -> None:
        if self._closed:
            raise self._refused(action, errno.EBADF, "the file is closed")
        if writing and not self._writable:
            raise self._refused(action, errno.EBADF, "it was opened for reading")
        if numbers and min(numbers) < 0:
            raise self._refused(action, errno.EINVAL, "a negative offset or size")

    def _refused(self, action: str, code: int, reason: str) -> StorageError:
        return storage_error(action, self._name, self._location, code, reason)


class MemoryCell:
    """A cell in memory: see `walkit.storage.Cell`."""

    def __init__(
        self,
        guard: Any,
        inode: MemoryInode,
        size: int,
        name: str,
        location: str,
        *,
        writable: bool,
    ) -> None:
        self._guard, self._inode, self._size, self._writable = guard, inode, size, writable
        self._name, self._location, self._closed = name, location, False

    def read(self) -> bytes:
        """Return all bytes of the cell."""
        self._check("read")
        with once(self._guard), self._guard:
            return self._inode.content.read(0, self._size).ljust(self._size, b"\0")

    def write(self, offset: int, data: bytes) -> None:
        """Store `data` at `offset`; every other opening sees it at once."""
        if self._closed:
            self._check("write")
        end = offset + len(data)
        if offset < 0 or end > self._size:
            raise self._refused("write", errno.EINVAL, f"bytes {offset} to {end} of a cell of {self._size}")
        if not self._writable:
            raise self._refused("write", errno.EACCES, "it was opened for reading")
        with once(self._guard), self._guard:
            self._inode.write_cell(offset, data)

    def close(self) -> None:
        """Release the cell; its bytes stay."""
        self._closed = True

    def _check(self, action: str) -> None:
        if self._closed:
            raise self._refused(action, errno.EBADF, "it is closed")

    def _refused(self, action: str, code: int, reason: str) -> StorageError:
        return storage_error(f"{action} the cell", self._name, self._location, code, reason)


class MemoryLock:
    """A held lock: see `walkit.storage.StorageLock`. A forked child's copy of the storage stays locked forever."""

    def __init__(self, guard: Any, locks: dict[str, MemoryLock], name: str) -> None:
        self._guard, self._locks, self._name, self.pid = guard, locks, name, os.getpid()

    def release(self) -> None:
        """Give the lock up."""
        with once(self._guard), self._guard:
            if self.pid == os.getpid() and self._locks.get(self._name) is self:
                del self._locks[self._name]

    def forget(self) -> None:
        """Do nothing: a child's memory is its own, and nothing in it holds the parent's lock."""
