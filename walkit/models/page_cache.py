"""The page cache over a file in memory, and the effect of a power cut on it.

Nothing here knows names, locks or threads; `walkit.models.crashing` calls it under one lock.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from walkit.storage.memory import ChangeKind, Content, MemoryInode

Keep = Literal["none", "all", "random"]

_CELL_CONTENTS_MAX = 64

numbers = itertools.count(1)
"""Numbers of changes, of bytes and of names: those that were made later have larger ones."""


class CrashOutcome(NamedTuple):
    """The fate of one unsynced change in a power cut."""

    kept: bool = True
    """Whether it happened, in whole or in part."""
    sectors: frozenset[int] | None = None
    """The sectors of a torn write that arrived, counted from its first; None: all of them."""
    grown: bool = True
    """Of a torn write, whether the file has the size that all of it needs."""
    content: int = -1
    """The index of a cell's content; -1: its last durable one."""


KEPT, LOST = CrashOutcome(), CrashOutcome(kept=False)
Fates = Mapping[tuple[int, int], CrashOutcome]
"""By number and offset of a change: a sync within a write leaves two of one number. Those not named are lost."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change that no sync has covered. `offset` is the new size if the change is not a write."""

    number: int
    kind: ChangeKind
    offset: int
    data: bytes = b""

    @property
    def end(self) -> int:
        """The position after the last byte that is written."""
        return self.offset + len(self.data)

    def apply(self, content: Content) -> None:
        """Do the change."""
        content.change(self.kind, self.offset, self.data)

    def without(self, start: int, end: int) -> Iterator[Change]:
        """Yield the rest of a write when the bytes from `start` to `end` are taken out."""
        if self.end <= start or end <= self.offset:
            yield self
            return
        if self.offset < start:
            yield replace(self, data=self.data[: start - self.offset])
        if end < self.end:
            yield replace(self, offset=end, data=self.data[end - self.offset :])


@dataclass(frozen=True, kw_only=True, slots=True)
class FileOutcome:
    """The effect of a power cut on one file.

    Counts are of changes (writes, allocations, shortenings) that no sync had covered; `bytes_lost` counts bytes of
    writes. `cell` is the fate of a shared cell, which is never synced; "" for other files.
    """

    name: str
    kept: int = 0
    lost: int = 0
    torn: int = 0
    bytes_lost: int = 0
    cell: str = ""


class Inode(MemoryInode):
    """One file: the readable bytes, the device's bytes, and the changes in between, in their order."""

    __slots__ = ("_last", "_suspect", "cell_contents", "cell_number", "durable", "pending")

    def __init__(self) -> None:
        super().__init__()
        self.durable = Content()
        self.pending: list[Change] = []
        self.cell_contents: deque[bytes] | None = None
        self.cell_number = 0
        """Number of the first store into a cell."""
        self._last = 0
        self._suspect = False

    def change(self, kind: ChangeKind, offset: int, data: bytes = b"") -> None:
        """Do a change in the page cache only."""
        self._last = next(numbers)
        change = Change(self._last, kind, offset, data)
        change.apply(self.content)
        self.pending.append(change)

    def write_synced(self, offset: int, data: bytes) -> None:
        """Write, durably for exactly these bytes and the size they need."""
        self.content.write(offset, data)
        if data:
            self._settle(offset, offset + len(data))
            self.durable.write(offset, data)

    def write_synced_failed(self, offset: int, data: bytes, *, landed: bool) -> None:
        """Leave the state of a synced write that reported an error: see `sync_failed`.

        The error may be that of any page of the file: Linux keeps one record of errors for each file, reports it to
        the next sync, be it a few bytes of it, and with that it is forgotten.
        """
        if landed:
            self.write_synced(offset, data)
        elif data:
            self.content.write(offset, data)
            self._settle(offset, offset + len(data))
            self.sync_failed(self._last, landed=False)

    def mark(self) -> int:
        """Return the number of the last change: a sync that begins now covers the changes up to it."""
        return self._last

    def sync(self, mark: int) -> None:
        """Make changes up to `mark` durable."""
        self._take_pending(mark, apply=True)
        if self.cell_contents is not None:
            self.durable = self.content.copy()

    def sync_failed(self, mark: int, *, landed: bool) -> None:
        """Leave the state of a failed sync on ext4 and XFS: the pages look clean.

        Reads still return the new bytes, no later sync writes them, a crash or dropping the cache shows what the
        device holds. With `landed` the device holds them in spite of the error. (Rebello et al., ATC 2020.)
        """
        self._take_pending(mark, apply=landed)
        self._suspect = True

    def drop_cached(self) -> None:
        """Read clean bytes from the device again; changes that wait for a sync stay, and so does the size."""
        if not self._suspect:
            return
        size = self.content.size
        self.content = self.durable.copy()
        for change in self.pending:
            change.apply(self.content)
        self.content.shorten(size)
        self.content.grow(size)
        self._suspect = False

    def write_cell(self, offset: int, data: bytes) -> None:
        """Store into the page cache; the kernel may write any of these contents back at any time."""
        if self.cell_contents is None:
            first = self.content.read(0, self.content.size)
            self.cell_number = next(numbers)
            self.cell_contents = deque([first], maxlen=_CELL_CONTENTS_MAX)
        self.content.write(offset, data)
        self.cell_contents.append(self.content.read(0, self.content.size))

    def copy(self) -> Inode:
        """Return an independent inode in the same state, as a process finds it after another was killed."""
        twin = Inode()
        twin.content, twin.durable = self.content.copy(), self.durable.copy()
        twin.pending = list(self.pending)
        twin.cell_contents = None if self.cell_contents is None else self.cell_contents.copy()
        twin._last, twin._suspect, twin.cell_number = self._last, self._suspect, self.cell_number
        return twin

    def image(self, fates: Fates, sector_bytes: int) -> Inode:
        """Return the file after a power cut with this outcome for its changes."""
        after = Inode()
        after.durable = self.durable.copy()
        if self.cell_contents is not None:
            content = fates.get((self.cell_number, 0), LOST).content
            if content >= 0:
                after.durable.shorten(0)
                after.durable.write(0, self.cell_contents[content])
        for change in self.pending if self.cell_contents is None else ():
            fate = fates.get((change.number, change.offset), LOST)
            if not fate.kept:
                continue
            if fate.sectors is None:
                change.apply(after.durable)
                continue
            if fate.grown:
                after.durable.grow(change.end)
            for number, piece in enumerate(sectors_of(change, sector_bytes)):
                if number in fate.sectors:
                    piece.apply(after.durable)
        after.content = after.durable.copy()
        return after

    def effects(self, change: Change, sector_bytes: int) -> tuple[int, ...]:
        """Return the sectors of a write in which it changes durable bytes, counted from the one it begins in."""
        pieces = enumerate(sectors_of(change, sector_bytes))
        durable = self.durable
        return tuple(
            number
            for number, piece in pieces
            if durable.read(piece.offset, len(piece.data)).ljust(len(piece.data), b"\0") != piece.data
        )

    def crash(
        self, name: str, keep: Keep, chance: random.Random, torn: bool, sector: int
    ) -> tuple[Inode, FileOutcome]:
        """Return one possible content of the file after a power cut, and its report."""
        after = Inode()
        after.durable = self.durable.copy()
        if self.cell_contents is not None:
            fate = self._crash_cell(name, after.durable, keep, chance)
        else:
            fate = self._crash_pages(name, after.durable, keep, chance, torn, sector)
        after.content = after.durable.copy()
        return after, fate

    def _crash_cell(self, name: str, image: Content, keep: Keep, chance: random.Random) -> FileOutcome:
        contents = self.cell_contents or ()
        choice = {"none": -1, "all": len(contents) - 1}.get(keep)
        if choice is None:
            choice = chance.randrange(-1, len(contents))
        if choice >= 0:
            image.shorten(0)
            image.write(0, contents[choice])
        what = "lost" if choice < 0 else "kept" if choice == len(contents) - 1 else "earlier content"
        return FileOutcome(name=name, cell=what)

    def _crash_pages(
        self, name: str, image: Content, keep: Keep, chance: random.Random, torn: bool, sector: int
    ) -> FileOutcome:
        kept = lost = torn_count = bytes_lost = 0
        # Another bias for each image, so that nearly nothing and nearly everything come up as well as halves.
        bias = {"none": 0.0, "all": 1.0}.get(keep)
        if bias is None:
            bias = chance.choice((0.1, 0.5, 0.9))
        for change in self.pending:
            sectors = list(sectors_of(change, sector)) if torn and keep == "random" else []
            if len(sectors) > 1 and chance.random() < 0.5:
                survivors = [piece for piece in sectors if chance.random() < bias]
                if chance.random() < 0.5:
                    image.grow(change.end)  # the size arrived, and not all of the bytes
                for piece in survivors:
                    piece.apply(image)
                torn_count += 1
                bytes_lost += len(change.data) - sum(len(piece.data) for piece in survivors)
            elif chance.random() < bias:
                change.apply(image)
                kept += 1
            else:
                lost += 1
                bytes_lost += len(change.data)
        return FileOutcome(name=name, kept=kept, lost=lost, torn=torn_count, bytes_lost=bytes_lost)

    def _take_pending(self, mark: int, *, apply: bool) -> None:
        covered = [change for change in self.pending if change.number <= mark]
        if apply:
            for change in covered:
                change.apply(self.durable)
        self.pending = self.pending[len(covered) :]

    def _settle(self, start: int, end: int) -> None:
        """Take the bytes from `start` to `end` out of the pending changes: a sync has decided about them.

        A pending shortening below `end` becomes durable: the size that synced bytes need is durable with them.
        """
        left: list[Change] = []
        for change in self.pending:
            if change.kind == "write":
                left.extend(change.without(start, end))
            elif change.kind == "shorten" and change.offset < end:
                self.durable.shorten(change.offset)
                left = _cut_changes(left, change.offset)
            else:
                left.append(change)
        self.pending = left


def _cut_changes(changes: list[Change], size: int) -> list[Change]:
    """Return the changes as they are when everything from `size` on is dropped after them."""
    left: list[Change] = []
    for change in changes:
        if change.kind == "write":
            left.extend(change.without(size, max(size, change.end)))
        elif change.offset <= size:
            left.append(change)
    return left


def sectors_of(change: Change, sector: int) -> Iterator[Change]:
    """Yield a write in pieces that end at sector boundaries of the file; nothing for other changes."""
    start = change.offset
    while change.kind == "write" and start < change.end:
        end = min((start // sector + 1) * sector, change.end)
        yield Change(change.number, "write", start, change.data[start - change.offset : end - change.offset])
        start = end
