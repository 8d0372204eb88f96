"""Power cuts at every operation of something: a storage that takes an image before each one that changes it."""

from __future__ import annotations

from typing import Any

from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import Operation, OperationName

CHANGES: tuple[OperationName, ...] = (
    *("write", "synced_write", "sync", "create", "replace", "remove", "sync_directory", "shorten"),
)


class Filmed(FaultyStorage):
    """A storage of which, while the film runs, a power cut's image is taken before each operation that changes it."""

    inner: CrashingStorage

    def __init__(self, inner: CrashingStorage, *, every_way: bool = False) -> None:
        super().__init__(inner)
        self.running = False
        self.every_way = every_way
        """Take all ways of keeping what no sync covers at each operation, and not one after the other."""
        self.images: list[tuple[str, CrashingStorage]] = []

    def perform(self, operation: Operation, *how: Any, **else_: Any) -> Any:
        """See FaultyStorage."""
        if self.running and operation.name in CHANGES:
            self.take(f"before {operation.name} of {operation.file}")
        return super().perform(operation, *how, **else_)

    def take(self, moment: str) -> None:
        """Take what a power cut at this moment leaves."""
        ways: tuple[Any, ...] = ("none", "random", "all")
        for keep in ways if self.every_way else (ways[len(self.images) % 3],):
            image = self.inner.crash(keep=keep, seed=len(self.images))
            self.images.append((f"{keep}, {moment}", image))
