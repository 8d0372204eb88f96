"""The names of a storage as memory sees them: what is there, what is durably there, and the changes in between."""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass
from typing import Literal, NoReturn

from walkit.storage.io_errors import parent_folder, storage_error
from walkit.storage.page_cache_model import Inode, Keep


@dataclass(frozen=True, slots=True)
class NameChange:
    """One change of names that no `sync_directory` has covered; `target` is the new name of a replacement."""

    kind: Literal["create", "replace", "remove"]
    name: str
    inode: Inode
    target: str = ""

    @property
    def folder(self) -> str:
        """The folder whose sync makes the change durable: for a replacement between folders, that of the target."""
        return parent_folder(self.target or self.name)

    def apply(self, names: dict[str, Inode]) -> None:
        """Do the change. A file has one name; a name that is not there needs no removing."""
        if self.kind == "create":
            names[self.name] = self.inode
        elif self.kind == "replace":
            for name in [name for name, inode in names.items() if inode is self.inode]:
                del names[name]
            names[self.target] = self.inode
        else:
            names.pop(self.name, None)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" -> {self.target}" if self.target else "")


class Names:
    """All names of one storage. Its folders are there as long as the storage; only files come and go durably."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.current: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._pending: list[NameChange] = []
        self._folders: set[str] = set()
        self.created = False

    def of(self, folder: str) -> list[str]:
        """Return what stands in one folder, sorted: files, and its sub-folders with a "/" behind their names."""
        if folder in self.current:
            raise storage_error("list", folder, self.location, errno.ENOTDIR)
        files = [name for name in self.current if parent_folder(name) == folder]
        return sorted(files + [f"{sub}/" for sub in self._folders if parent_folder(sub) == folder])

    def get(self, name: str) -> Inode:
        """Return the file of this name, or raise with the errno that a file system has for it."""
        inode = self.current.get(name)
        if inode is None:
            self._raise_missing("open", name)
        return inode

    def create(self, name: str) -> Inode:
        """Make an empty file under a new name, and its folders."""
        if name in self.current or name in self._folders:
            raise storage_error("open (create)", name, self.location, errno.EEXIST)
        self.make_parents(name)
        inode = Inode()
        self._do(NameChange("create", name, inode))
        return inode

    def replace(self, source: str, target: str) -> None:
        """Rename a file over what stands at `target`."""
        inode = self.current.get(source)
        if inode is None:
            self._raise_missing(f"rename to {target!r} the file", source)
        if target in self._folders:
            raise storage_error(f"rename to {target!r} the file", source, self.location, errno.EISDIR)
        self.make_parents(target)
        if source != target:
            self._do(NameChange("replace", source, inode, target))

    def remove(self, name: str) -> None:
        """Take a name away; who has the file open keeps it."""
        inode = self.current.get(name)
        if inode is None:
            self._raise_missing("remove", name)
        self._do(NameChange("remove", name, inode))

    def sync(self, folder: str) -> None:
        """Make the changes of names in `folder` durable."""
        if not self.created or (folder and folder not in self._folders):
            raise storage_error("sync the folder", folder, self.location, errno.ENOENT)
        left: list[NameChange] = []
        for change in self._pending:
            if change.folder != folder:
                left.append(change)
                continue
            change.apply(self._durable)
            # What happened before to a file that has moved here must not give it back its old name.
            left = [earlier for earlier in left if earlier.inode is not change.inode]
        self._pending = left

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

    def copy(self) -> Names:
        """Return an independent copy: what a new process finds after the old one was killed."""
        twins: dict[int, Inode] = {}

        def twin(inode: Inode) -> Inode:
            return twins.setdefault(id(inode), inode.copy())

        other = Names(self.location)
        other.created, other._folders = self.created, set(self._folders)
        other.current = {name: twin(inode) for name, inode in self.current.items()}
        other._durable = {name: twin(inode) for name, inode in self._durable.items()}
        other._pending = [NameChange(c.kind, c.name, twin(c.inode), c.target) for c in self._pending]
        return other

    def survivors(self, keep: Keep, chance: random.Random) -> tuple[dict[str, Inode], list[str], list[str]]:
        """Return what names a power cut could leave, and the changes that it kept and undid."""
        names = dict(self._durable)
        kept, undone = [], []
        bias = {"none": 0.0, "all": 1.0}.get(keep)
        if bias is None:
            bias = chance.choice((0.1, 0.5, 0.9))
        for change in self._pending:
            if chance.random() < bias:
                change.apply(names)
                kept.append(str(change))
            else:
                undone.append(str(change))
        return names, kept, undone

    def begin(self, inodes: dict[str, Inode], *, created: bool) -> None:
        """Start with these files, all of them durable."""
        self.created = created
        for name in inodes:
            self.make_parents(name)
        self.current, self._durable = dict(inodes), dict(inodes)

    def _do(self, change: NameChange) -> None:
        change.apply(self.current)
        self._pending.append(change)

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
