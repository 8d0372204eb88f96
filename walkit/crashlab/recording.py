"""A disk that notes each moment at which a power cut leaves something else, with what was promised then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from walkit._locks import once
from walkit.crashlab.ledger import Ledger, Promise
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import FaultyFile, Operation
from walkit.storage.interface import Buffer, OpenMode, StorageFile

CHANGES = frozenset(
    ("write", "synced_write", "sync", "allocate", "shorten", "create", "replace", "remove", "sync_directory")
)


@dataclass(frozen=True)
class CrashPoint:
    """One moment: the storage as it is then, and what holds of it."""

    number: int
    """Counted from 0, in the order of the run."""
    operation: str
    """The operation that is under way or about to begin, in words."""
    storage: CrashingStorage
    promise: Promise

    def __repr__(self) -> str:
        return f"<CrashPoint {self.number}: {self.operation}>"


class RecordingStorage(FaultyStorage):
    """A storage of which a point is taken before each operation that changes it, and within each synced write.

    A crash after an operation is a crash before the next one. Faults can be set, as in any `FaultyStorage`.
    """

    inner: CrashingStorage

    def __init__(self, inner: CrashingStorage, ledger: Ledger) -> None:
        super().__init__(inner)
        self.points: list[CrashPoint] = []
        self.is_recording = True
        self.failure: Exception | None = None
        """What ended the run before its end; None where it came to that."""
        self._ledger = ledger
        self._taking = threading.RLock()

    def open(self, name: str, mode: OpenMode) -> StorageFile:
        """See `Storage`; what is written with a sync can be struck in its midst."""
        operation = Operation(name="create" if mode == "create" else "open", file=name)
        return _RecordedFile(self, self.perform(operation, lambda: self.inner.open(name, mode)))

    def perform(self, operation: Operation, *how: Any, **else_: Any) -> Any:
        """See `FaultyStorage`."""
        if operation.name in CHANGES and operation.name != "synced_write":
            self.take(words_of(operation))
        return super().perform(operation, *how, **else_)

    def take(self, operation: str, change: Callable[[CrashingStorage], object] | None = None) -> None:
        """Take the point of this moment; `change` makes of a copy what is under way."""
        if not self.is_recording:
            return
        with once(self._taking), self._taking:
            promise = self._ledger.promise()  # first: what is promised later may rest on what is stored later
            storage = self.inner.process_kill()
            if change is not None:
                change(storage)
            self.points.append(CrashPoint(len(self.points), operation, storage, promise))


class _RecordedFile(FaultyFile):
    """An open file that shows each synced write while it is under way: not covered by its own sync yet."""

    def __init__(self, storage: RecordingStorage, inner: StorageFile) -> None:
        super().__init__(storage, inner)
        self._recording = storage

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """See `StorageFile`."""
        if sync:
            name, parts = self.name, [bytes(buffer) for buffer in buffers]

            def begun(storage: CrashingStorage) -> None:
                file = storage.open(name, "write")
                file.write(offset, parts)
                file.close()

            size = sum(map(len, parts))
            operation = Operation(name="synced_write", file=name, offset=offset, size=size, sync=True)
            self._recording.take(words_of(operation), begun)
        super().write(offset, buffers, sync=sync)


def words_of(operation: Operation) -> str:
    """Return an operation in words."""
    action, file = operation.name.replace("_", " "), operation.file or "the folder"
    if operation.name in ("write", "synced_write"):
        return f"{action} of [{operation.offset:,}, {operation.offset + operation.size:,}) of {file}"
    if operation.name == "replace":
        return f"replace {file} by {operation.source}"
    if operation.name == "allocate":
        return f"allocate {operation.size:,} bytes of {file}"
    return f"{action} {file}" if operation.name != "sync_directory" else f"sync of {file}"
