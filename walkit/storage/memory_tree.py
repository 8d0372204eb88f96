"""The files of a storage in memory: bytes that share until written, and their names.

Nothing here knows locks or threads; `walkit.storage.memory` calls it under one lock. What a power cut does to such
files is in `walkit.models`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Generic, Literal, NoReturn, TypeVar

from walkit.storage.interface import parent_folder, storage_error

ChangeKind = Literal["write", "allocate", "shorten"]
NameChangeKind = Literal["create", "replace", "remove"]


class Content:
    """The bytes of a file: what was stored, and zeros up to `size`. A copy costs nothing until one side is written."""

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
        """Return up to `size` bytes from `offset`, fewer where the content ends."""
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        return bytes(memoryview(self._bytes)[offset:end]).ljust(end - offset, b"\0")

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Store `data` at `offset`, with zeros before it where the content was shorter."""
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
        """Rename a file over what is at `target`."""
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
