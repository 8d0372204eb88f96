"""A storage and a file that pass every call on to others: a model of storage overrides the calls that it changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from walkit.storage.bulk import BulkThrough
from walkit.storage.interface import (
    Cell,
    FolderHold,
    HoldableFile,
    LockHolder,
    OpenMode,
    Storage,
    StorageFile,
    StorageLock,
    hold_file,
    hold_folder,
    is_held,
)


class PassingStorage:
    """Passes everything on to `inner`: see `walkit.storage.Storage`."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    @property
    def location(self) -> str:
        """Where the inner storage is."""
        return self.inner.location

    def exists(self) -> bool:
        """Say whether the folder is there."""
        return self.inner.exists()

    def create(self) -> None:
        """Make the folder."""
        self.inner.create()

    def names(self, folder: str = "") -> list[str]:
        """Return the names in one folder."""
        return self.inner.names(folder)

    def open(self, name: str, mode: OpenMode) -> StorageFile:
        """Open a file."""
        return self.inner.open(name, mode)

    def replace(self, source: str, target: str) -> None:
        """Rename `source` to `target`."""
        self.inner.replace(source, target)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self.inner.remove(name)

    def sync_directory(self, folder: str = "") -> None:
        """Make creations, replacements and removals in the folder durable."""
        self.inner.sync_directory(folder)

    def hold(self, lock_name: str) -> FolderHold | LockHolder | None:
        """Hold the folder of the inner storage; None if it has none."""
        return hold_folder(self.inner, lock_name)

    def lock(self, name: str) -> StorageLock | LockHolder:
        """Take a lock of the inner storage."""
        return self.inner.lock(name)

    def is_locked(self, name: str) -> bool:
        """Ask about a lock of the inner storage."""
        return self.inner.is_locked(name)

    def cell(self, name: str, size: int, *, writable: bool) -> Cell | None:
        """Return a cell of the inner storage."""
        return self.inner.cell(name, size, writable=writable)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the inner storage."""
        return self.inner.facts()

    def close(self) -> None:
        """Close the inner storage."""
        self.inner.close()


class PassingFile(BulkThrough):
    """Passes everything to `inner` except reads, writes and syncs: see `walkit.storage.StorageFile`."""

    def __init__(self, inner: StorageFile) -> None:
        self.inner: StorageFile = inner

    @property
    def name(self) -> str:
        """The file's name within its storage."""
        return self.inner.name

    def allocate(self, size: int) -> None:
        """Reserve space up to `size` bytes."""
        self.inner.allocate(size)

    def shorten(self, size: int) -> None:
        """Drop all bytes from `size` on."""
        self.inner.shorten(size)

    def size(self) -> int:
        """Return the file's size in bytes."""
        return self.inner.size()

    def drop_cached(self) -> None:
        """Drop the inner file's cache."""
        self.inner.drop_cached()

    def hold(self) -> bool:
        """Take the inner file's lock."""
        return hold_file(self.inner)

    def free(self) -> None:
        """Give the inner file's lock up."""
        if isinstance(self.inner, HoldableFile):
            self.inner.free()

    def is_held(self) -> bool:
        """Say whether another opening has the inner file's lock."""
        return is_held(self.inner)

    def status_call(self) -> Callable[[], os.stat_result]:
        """Return the inner file's call; a file that says nothing has one name."""
        if isinstance(self.inner, HoldableFile):
            return self.inner.status_call()
        return lambda: os.stat_result((0, 0, 0, 1, 0, 0, 0, 0, 0, 0))

    def close(self) -> None:
        """Close the file."""
        self.inner.close()
