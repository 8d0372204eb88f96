"""A storage in memory that can crash: it separates the contents that reads see from those that a power cut leaves.

Every opening of one `CrashingStorage` object sees the same files, as processes of one machine do; a "reader process"
in a test is given the same object. `crash` and `process_kill` return a new storage and leave this one as it is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from walkit._internal.arguments import refuse
from walkit._internal.locks import once
from walkit.models.crash_report import CrashReport, PendingChange
from walkit.models.namespace import Names
from walkit.models.page_cache import CrashOutcome, FileOutcome, Inode, Keep
from walkit.storage.interface import Buffer, OpenMode, checked_name
from walkit.storage.memory import MemoryFile, MemoryStorage


class CrashingStorage(MemoryStorage):
    """A `MemoryStorage` over a model of a device: a power cut loses, keeps or tears each unsynced change."""

    def __init__(self) -> None:
        super().__init__()
        self._crash_report: CrashReport | None = None

    @property
    def crash_report(self) -> CrashReport | None:
        """The effect of the crash that made this storage; None without one."""
        return self._crash_report

    def open(self, name: str, mode: OpenMode) -> CrashingFile:
        """Open a file."""
        checked_name(name, self._location)
        with once(self._guard), self._guard:
            inode = self._tree.create(name) if mode == "create" else self._tree.get(name)
        return CrashingFile(self._guard, inode, name, self._location, writable=mode != "read")

    def direct_io_refusal(self) -> str | None:
        """Return None: a file is written past the page cache; see `DirectStorage`."""
        return None

    def open_direct(self, name: str, mode: OpenMode) -> CrashingFile:
        """Open a file. Its writes stay in the device's cache until a sync: they can be lost, kept or torn as any."""
        return self.open(name, mode)

    def crash(
        self, *, keep: Keep = "none", seed: int = 0, torn: bool = True, sector_bytes: int = 512
    ) -> CrashingStorage:
        """Return a new storage with one possible result of a power cut at this moment; see its `crash_report`.

        `keep="none"` loses all that no sync covers, cells too; "all" keeps it; "random" decides by `seed` for each
        change, and with `torn` for each sector of a write that spans several. It leaves out changes of names in the
        same way, and gives each cell any earlier content. The same state, seed and options give the same image.
        All locks are free in the image. An image costs time by its files and changes, not by its bytes.
        """
        chance = random.Random(seed)
        image = CrashingStorage()
        with once(self._guard), self._guard:
            survivors, kept, undone = self._tree.survivors(keep, chance)
            files: dict[str, Inode] = {}
            fates: list[FileOutcome] = []
            for name, inode in sorted(survivors.items()):
                files[name], fate = inode.crash(name, keep, chance, torn, sector_bytes)
                fates.append(fate)
            image._tree.begin(files, created=self._tree.created)
        image._crash_report = CrashReport(
            keep=keep,
            seed=seed,
            torn=torn,
            sector_bytes=sector_bytes,
            files=tuple(fates),
            names_kept=tuple(kept),
            names_undone=tuple(undone),
        )
        return image

    def pending(self, sector_bytes: int = 512) -> tuple[PendingChange, ...]:
        """Return the changes that no sync has covered, in their order: a power cut may lose them."""
        found: list[PendingChange] = []
        with once(self._guard), self._guard:
            for name, inode in self._tree.inodes():
                if inode.cell_contents is not None:
                    number, count = inode.cell_number, len(inode.cell_contents)
                    found.append(PendingChange(number=number, kind="cell", file=name, size=count))
                    continue
                size = inode.durable.size
                for change in inode.pending:
                    found.append(
                        PendingChange(
                            number=change.number,
                            kind=change.kind,
                            file=name,
                            offset=change.offset,
                            size=len(change.data),
                            sectors=inode.effects(change, sector_bytes),
                            grows=change.kind != "shorten" and change.end > size,
                        )
                    )
            for named in self._tree.pending:
                found.append(
                    PendingChange(number=named.number, kind=named.kind, file=named.name, target=named.target)
                )
        return tuple(sorted(found, key=lambda change: (change.number, change.offset)))

    def image(
        self,
        fates: Sequence[CrashOutcome],
        *,
        sector_bytes: int = 512,
        changes: Sequence[PendingChange] | None = None,
    ) -> CrashingStorage:
        """Return a new storage after a power cut with these fates, one for each change of `pending()`.

        `changes` is the result of `pending()`, if nothing changed since: many images of one moment need it once. All
        locks are free in the image. It costs time by files and changes, not by bytes.
        """
        if changes is None:
            changes = self.pending(sector_bytes)
        if len(fates) != len(changes):
            refuse(
                "fates", len(fates), f"one for each of the {len(changes)} changes that no sync has covered"
            )
        by_number = {
            (c.number, c.offset if c.kind in ("write", "allocate", "shorten") else 0): fate
            for c, fate in zip(changes, fates, strict=True)
        }
        image = CrashingStorage()
        with once(self._guard), self._guard:
            files = {
                name: inode.image(by_number, sector_bytes)
                for name, inode in self._tree.image(by_number).items()
            }
            image._tree.begin(files, created=self._tree.created)
        return image

    def digest(self) -> bytes:
        """Return a hash of the readable content: names, sizes and bytes. Equal storages have equal ones."""
        hashed = blake2b(digest_size=16)
        with once(self._guard), self._guard:
            for name, inode in sorted(self._tree.current.items()):
                content = inode.content
                data = content.read(0, content.stored).rstrip(b"\0")
                hashed.update(f"{name}\0{content.size}\0{len(data)}\0".encode())
                hashed.update(data)
        return hashed.digest()

    def process_kill(self) -> CrashingStorage:
        """Return a new storage as the next process finds it when this one is killed: locks free, all else as it was.

        Unsynced bytes are still in the page cache: the image reads the same, and can still lose it in a `crash`.
        """
        image = CrashingStorage()
        with once(self._guard), self._guard:
            image._names = image._tree = self._tree.copy()
        image.rename(image._location)
        return image

    def rename(self, location: str) -> None:
        """Set the location that errors name."""
        self._location = self._tree.location = location

    def _new_names(self) -> Names:
        self._tree = Names(self._location)
        return self._tree


class CrashingFile(MemoryFile):
    """An open file whose syncs can be taken apart, and can fail as they do on ext4: `FaultyStorage` does so."""

    def __init__(self, guard: Any, inode: Inode, name: str, location: str, *, writable: bool) -> None:
        super().__init__(guard, inode, name, location, writable=writable)
        self._cached = inode

    def sync(self) -> None:
        """Make durable everything that was written before this call."""
        self.sync_up_to(self.sync_mark())

    def sync_mark(self) -> int:
        """Return the moment up to which a sync that begins now covers the writes."""
        self._check("sync")
        with once(self._guard), self._guard:
            return self._cached.mark()

    def sync_up_to(self, mark: int) -> None:
        """Finish the sync that began at `mark`: later writes are not covered."""
        self._check("sync")
        with once(self._guard), self._guard:
            self._cached.sync(mark)

    def fail_sync(self, mark: int, *, landed: bool = False) -> None:
        """Leave the state of a sync that began at `mark` and reported an error; the caller raises the error.

        Pages look clean and reads return the new bytes, but the device holds the old ones (the new ones with
        `landed`), and no later sync changes that.
        """
        with once(self._guard), self._guard:
            self._cached.sync_failed(mark, landed=landed)

    def fail_synced_write(self, offset: int, buffers: Sequence[Buffer], *, landed: bool = False) -> None:
        """Leave the state of a `write(sync=True)` that reported an error: see `fail_sync`."""
        data = self._joined(offset, buffers)
        with once(self._guard), self._guard:
            self._cached.write_synced_failed(offset, data, landed=landed)
