"""The names of a storage that can crash: those there, those durably there, and the changes in between."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from walkit.models.page_cache import LOST, Fates, Inode, Keep, numbers
from walkit.storage.interface import parent_folder
from walkit.storage.memory import MemoryNames, NameChangeKind, change_name


@dataclass(frozen=True, slots=True)
class NameChange:
    """One change of names that no `sync_directory` has covered; `target` is the new name of a replacement."""

    kind: NameChangeKind
    name: str
    inode: Inode
    target: str = ""
    replaced: Inode | None = None
    """The other file that had the target's name."""
    number: int = field(default_factory=lambda: next(numbers))

    @property
    def folder(self) -> str:
        """The folder whose sync makes the change durable: for a replacement between folders, that of the target."""
        return parent_folder(self.target or self.name)

    @property
    def of_the_replaced(self) -> NameChange:
        """The part of a replacement that is about the other file: it has the name no longer."""
        assert self.replaced is not None
        return replace(self, kind="remove", name=self.target, target="", inode=self.replaced, replaced=None)

    def apply(self, names: dict[str, Inode]) -> None:
        """Do the change."""
        change_name(names, self.kind, self.name, self.inode, self.target)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" -> {self.target}" if self.target else "")


class Names(MemoryNames[Inode]):
    """All names of one storage. Its folders are there as long as the storage; only files come and go durably."""

    def __init__(self, location: str) -> None:
        super().__init__(location, Inode)
        self._durable: dict[str, Inode] = {}
        self._pending: list[NameChange] = []

    def sync(self, folder: str) -> None:
        """Make the changes of names in `folder` durable."""
        super().sync(folder)
        left: list[NameChange] = []
        for change in self._pending:
            if change.folder != folder:
                left.append(change)
                continue
            change.apply(self._durable)
            # Earlier events of a file that has moved here must not give it back its old name. A file that it has
            # replaced on its way is still replaced.
            left = [
                earlier.of_the_replaced if earlier.inode is change.inode else earlier
                for earlier in left
                if earlier.inode is not change.inode or earlier.replaced is not None
            ]
        self._pending = left

    def copy(self) -> Names:
        """Return an independent copy, as a new process finds it after the old one was killed."""
        twins: dict[int, Inode] = {}

        def twin(inode: Inode) -> Inode:
            return twins.setdefault(id(inode), inode.copy())

        other = Names(self.location)
        other.created, other._folders = self.created, set(self._folders)
        other.current = {name: twin(inode) for name, inode in self.current.items()}
        other._durable = {name: twin(inode) for name, inode in self._durable.items()}
        other._pending = [
            replace(c, inode=twin(c.inode), replaced=c.replaced and twin(c.replaced)) for c in self._pending
        ]
        return other

    def survivors(self, keep: Keep, chance: random.Random) -> tuple[dict[str, Inode], list[str], list[str]]:
        """Return the names that a power cut could leave, and the changes that it kept and undid."""
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

    @property
    def pending(self) -> tuple[NameChange, ...]:
        """The changes of names that no sync of their folder has covered, in their order."""
        return tuple(self._pending)

    def inodes(self) -> list[tuple[str, Inode]]:
        """Return each file that a power cut may leave, with a name that it has or had; a name of now comes first."""
        found: dict[int, tuple[str, Inode]] = {}
        for names in (self.current, self._durable, {c.name: c.inode for c in self._pending}):
            for name, inode in names.items():
                found.setdefault(id(inode), (name, inode))
        return list(found.values())

    def image(self, fates: Fates) -> dict[str, Inode]:
        """Return the names that a power cut leaves that makes this of their changes."""
        names = dict(self._durable)
        for change in self._pending:
            if fates.get((change.number, 0), LOST).kept:
                change.apply(names)
        return names

    def begin(self, inodes: dict[str, Inode], *, created: bool) -> None:
        """Start with these files, all of them durable."""
        self.created = created
        for name in inodes:
            self.make_parents(name)
        self.current, self._durable = dict(inodes), dict(inodes)

    def _do(self, kind: NameChangeKind, name: str, inode: Inode, target: str = "") -> None:
        there = self.current.get(target)
        super()._do(kind, name, inode, target)
        self._pending.append(NameChange(kind, name, inode, target, None if there is inode else there))
