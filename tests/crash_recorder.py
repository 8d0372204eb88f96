"""Power cuts at every operation of something: a storage that takes an image before each one that changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

from walkit.errors import StorageError
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


def crashed_at_each_step(
    image: CrashingStorage, act: Callable[[FaultyStorage], object], *, least: int
) -> Iterator[CrashingStorage]:
    """Yield what a power cut leaves after each operation of `act` on a copy has failed; at least so many fail."""
    failed = 0
    for name in CHANGES:
        for nth in count(1):
            faulty = FaultyStorage(image.process_kill())
            fault = faulty.fail(name, nth=nth, times=1)
            with suppress(StorageError):
                act(faulty)
            if not fault.hits:
                break
            failed += 1
            inner = faulty.inner
            assert isinstance(inner, CrashingStorage)
            yield inner.crash(keep="none")
            yield inner.crash(keep="random", seed=nth)
    assert failed >= least
