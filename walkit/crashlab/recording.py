"""A disk that notes each moment at which a power cut has another effect, with the promises of that moment."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from walkit._internal.locks import once
from walkit.crashlab.promises import Ledger, Promise
from walkit.crashlab.turns import Turns
from walkit.errors import StorageError
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import FaultyFile, Operation, OperationName
from walkit.storage.interface import Buffer, OpenMode, StorageFile

CHANGES: frozenset[OperationName] = frozenset(
    ("write", "synced_write", "sync", "allocate", "shorten", "create", "replace", "remove", "sync_directory")
)


@dataclass(frozen=True)
class CrashPoint:
    """One moment: the storage as it is then, and its promises."""

    number: int
    """Counted from 0, in the order of the run."""
    operation: str
    """The operation that is under way or about to begin, in words."""
    storage: CrashingStorage
    promise: Promise
    during: set[str] = field(default_factory=set, repr=False)
    """The operations under way in the scenario or in the log's maintenance: names of `COVERAGE`."""

    def __repr__(self) -> str:
        return f"<CrashPoint {self.number}: {self.operation}>"


class RecordingStorage(FaultyStorage):
    """A storage of which a point is taken before each operation that changes it, and within each synced write.

    A crash after an operation is a crash before the next one. Threads take turns by `turns`. Faults can be set, as in
    any `FaultyStorage`.
    """

    inner: CrashingStorage

    def __init__(self, inner: CrashingStorage, ledger: Ledger, turns: Turns) -> None:
        super().__init__(inner)
        self.points: list[CrashPoint] = []
        self.is_recording = True
        self.failure: Exception | None = None
        """The error that ended the run early; None if it ran to its end."""
        self.job: Callable[[], str | None] = lambda: None
        """Returns the kind of the maintenance job under way."""
        self.watch: Callable[[Operation], object] = lambda operation: None
        """Called with each operation as it begins, on its thread: a fault may be set for it there."""
        self._ledger = ledger
        self.turns = turns
        self._taking = threading.RLock()
        self.failed_writes: Counter[str] = Counter()
        """By file, how many of its synced writes have failed."""

    def open(self, name: str, mode: OpenMode) -> StorageFile:
        """See `Storage`; a synced write can be struck while it runs."""
        operation = Operation(name="create" if mode == "create" else "open", file=name)
        return _RecordedFile(self, self.perform(operation, lambda: self.inner.open(name, mode)), mode)

    def open_direct(self, name: str, mode: OpenMode) -> StorageFile:
        """See `CrashingStorage`: to a crash a direct write is as any other."""
        return self.open(name, mode)

    def perform(self, operation: Operation, *how: Any, **else_: Any) -> Any:
        """See `FaultyStorage`."""
        if operation.name in CHANGES and self.is_recording:
            self.turns.wait()
            if operation.name != "synced_write":
                self.take(describe(operation))
        self.watch(operation)
        return super().perform(operation, *how, **else_)

    def take(self, operation: str) -> None:
        """Take the point of this moment."""
        if not self.is_recording:
            return
        with once(self._taking), self._taking:
            promise = self._ledger.promise()  # first: a later promise may rest on later bytes
            point = CrashPoint(len(self.points), operation, self.inner.process_kill(), promise)
            if job := self.job():
                point.during.add(job)
            self.points.append(point)

    def give_up(self) -> None:
        """Take no more points, and fail each change from now on: the run ends soon."""
        self.is_recording = False
        for operation in CHANGES:
            self.fail(operation, times=None)

    def note(self, name: str, since: int) -> None:
        """Note the running calls at each point from that number on."""
        for point in self.points[since:]:
            point.during.add(name)

    def interrupt_write(self, operation: Operation) -> None:
        """Take the point within a synced write, once other threads have had their turns."""
        if self.is_recording:
            self.turns.wait()
            self.take(describe(operation))


class _RecordedFile(FaultyFile):
    """An open file of which each synced write is written first and synced in a later turn."""

    def __init__(self, storage: RecordingStorage, inner: StorageFile, mode: OpenMode) -> None:
        super().__init__(storage, inner, mode)
        self._recording = storage

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """See `StorageFile`; one that fails with its sync takes the pages of those in flight along."""
        try:
            super().write(offset, buffers, sync=sync)
        except StorageError:
            self._recording.failed_writes[self.name] += sync
            raise

    def _write(self, operation: Operation, buffers: Sequence[Buffer]) -> None:
        if operation.sync:
            failed = self._recording.failed_writes[self.name]
            self.inner.write(operation.offset, buffers)
            self._recording.interrupt_write(operation)
            if self._recording.failed_writes[self.name] > failed:
                return  # the error was reported to the other write: this one finds clean pages
        super()._write(operation, buffers)


def describe(operation: Operation) -> str:
    """Return an operation in words."""
    action, file = operation.name.replace("_", " "), operation.file or "the folder"
    if operation.name in ("write", "synced_write"):
        return f"{action} of [{operation.offset:,}, {operation.offset + operation.size:,}) of {file}"
    if operation.name == "replace":
        return f"replace {file} by {operation.source}"
    if operation.name == "allocate":
        return f"allocate {operation.size:,} bytes of {file}"
    return f"{action} {file}" if operation.name != "sync_directory" else f"sync of {file}"
