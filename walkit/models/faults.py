"""A storage that fails on demand and writes down each call: a wrapper over any other storage.

Faults are rules: an operation, a pattern of file names (as in `fnmatch`), and which of the matching operations they
meet. Pebble's errorfs is the source of the idea. Over a `CrashingStorage` a failed sync has its effect on ext4
and XFS: pages that look clean and were never written (Rebello et al., ATC 2020). Over another storage it only reports
the error, for which the place below cannot be made to forget.
"""

from __future__ import annotations

import errno as errno_codes
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from walkit._internal.locks import once
from walkit.models.fault_rules import ACTIONS as ACTIONS
from walkit.models.fault_rules import ASIDE as ASIDE
from walkit.models.fault_rules import Fault as Fault
from walkit.models.fault_rules import Operation as Operation
from walkit.models.fault_rules import OperationName as OperationName
from walkit.models.wrapper import PassingFile, PassingStorage
from walkit.storage.interface import (
    Buffer,
    Cell,
    DirectStorage,
    ExclusiveNames,
    LockHolder,
    OpenMode,
    Storage,
    StorageFile,
    StorageLock,
    storage_error,
)

_Result = TypeVar("_Result")


@runtime_checkable
class _HasPageCache(Protocol):
    """The methods of `MemoryFile` beyond a file's: syncs that begin and end, or leave the state of a failed one."""

    def sync_mark(self) -> int: ...

    def sync_up_to(self, mark: int) -> None: ...

    def fail_sync(self, mark: int, *, landed: bool = False) -> None: ...

    def fail_synced_write(self, offset: int, buffers: Sequence[Buffer], *, landed: bool = False) -> None: ...


class FaultyStorage(PassingStorage):
    """A storage that passes everything on to `inner`, except where a fault says otherwise.

    `trace` lists the operations in the order in which they began, the failed ones too; those `ASIDE` are not in it.
    Rules that are added first are asked first; all delays and hangs of an operation are waited for, then its first
    failure or skip happens.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.trace: list[Operation] = []
        self.open_files: set[FaultyFile] = set()
        """Files that are open for writing."""
        self._faults: list[Fault] = []
        self._guard = threading.RLock()

    def fail(
        self,
        operation: OperationName,
        file: str = "*",
        *,
        nth: int = 1,
        times: int | None = 1,
        errno: int = errno_codes.EIO,
        short_bytes: int | None = None,
        landed: bool = False,
    ) -> Fault:
        """Fail the `nth` matching operation from now on, and the following ones up to `times` (None: forever).

        The StorageError has this `errno`. `short_bytes` is for writes: so many bytes arrive in the page cache, then
        the write is refused as short. With `landed` the operation happens in full and reports the error all the same.
        """
        fault = Fault("fail", operation, file, nth, times)
        fault.errno, fault.short_bytes, fault.landed = errno, short_bytes, landed
        return self._add(fault)

    def delay(
        self,
        operation: OperationName,
        file: str = "*",
        *,
        seconds: float,
        nth: int = 1,
        times: int | None = None,
    ) -> Fault:
        """Make matching operations begin `seconds` later; without `times`, all of them."""
        fault = Fault("delay", operation, file, nth, times)
        fault.seconds = seconds
        return self._add(fault)

    def hang(
        self, operation: OperationName, file: str = "*", *, nth: int = 1, times: int | None = 1
    ) -> Fault:
        """Make matching operations wait until the fault is released; a hanging operation has done nothing yet.

        A sync that hangs over a `CrashingStorage` began before it hung: it does not cover later writes.
        """
        return self._add(Fault("hang", operation, file, nth, times))

    def skip(
        self, operation: OperationName, file: str = "*", *, nth: int = 1, times: int | None = None
    ) -> Fault:
        """Make matching syncs do nothing and report success, as a disk that lies; a `synced_write` is only written."""
        return self._add(Fault("skip", operation, file, nth, times))

    def clear(self) -> None:
        """Cancel all faults; hanging operations continue. The trace stays."""
        with once(self._guard), self._guard:
            faults, self._faults = self._faults, []
        for fault in faults:
            fault.cancel()

    def exists(self) -> bool:
        """Say whether the folder is there."""
        return self.perform(Operation(name="exists"), self.inner.exists)

    def create(self) -> None:
        """Make the folder."""
        self.perform(Operation(name="create_folder"), self.inner.create)

    def names(self, folder: str = "") -> list[str]:
        """Return the names in one folder."""
        return self.perform(Operation(name="names", file=folder), lambda: self.inner.names(folder))

    def lock(self, name: str) -> StorageLock | LockHolder:
        """Take a lock; a failing call returns none, even if it landed."""
        operation = Operation(name="lock", file=name)
        return self.perform(operation, lambda: self.inner.lock(name), failed=lambda _: None)

    def is_locked(self, name: str) -> bool:
        """Ask about a lock."""
        return self.perform(Operation(name="is_locked", file=name), lambda: self.inner.is_locked(name))

    def cell(self, name: str, size: int, *, writable: bool) -> Cell | None:
        """Return a cell; its reads and writes pass through the faults of this storage."""
        operation = Operation(name="cell", file=name, size=size)
        cell = self.perform(operation, lambda: self.inner.cell(name, size, writable=writable))
        return None if cell is None else _FaultyCell(self, cell, name)

    def open(self, name: str, mode: OpenMode) -> StorageFile:
        """Open a file; its operations pass through the faults of this storage."""
        operation = Operation(name="create" if mode == "create" else "open", file=name)
        return FaultyFile(self, self.perform(operation, lambda: self.inner.open(name, mode)), mode)

    def direct_io_refusal(self) -> str | None:
        """Return the inner storage's answer; see `DirectStorage`."""
        inner = self.inner
        return inner.direct_io_refusal() if isinstance(inner, DirectStorage) else "the inner storage has none"

    def open_direct(self, name: str, mode: OpenMode) -> StorageFile:
        """Open a direct file of the inner storage; its operations pass through the faults of this storage."""
        inner = self.inner
        assert isinstance(inner, DirectStorage)
        operation = Operation(name="create" if mode == "create" else "open", file=name)
        return FaultyFile(self, self.perform(operation, lambda: inner.open_direct(name, mode)), mode)

    def replace(self, source: str, target: str) -> None:
        """Rename `source` to `target`."""
        operation = Operation(name="replace", file=target, source=source)
        self.perform(operation, lambda: self.inner.replace(source, target))

    def rename_new(self, source: str, target: str) -> None:
        """Rename `source` to `target` in a storage that has `ExclusiveNames`; a fault of "replace" meets it, too."""
        assert isinstance(self.inner, ExclusiveNames)
        operation = Operation(name="replace", file=target, source=source)
        self.perform(operation, partial(self.inner.rename_new, source, target))

    def remove(self, name: str) -> None:
        """Remove a file."""
        self.perform(Operation(name="remove", file=name), lambda: self.inner.remove(name))

    def sync_directory(self, folder: str = "") -> None:
        """Make creations, replacements and removals in the folder durable."""
        operation = Operation(name="sync_directory", file=folder)
        self.perform(operation, lambda: self.inner.sync_directory(folder), skipped=lambda: None)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the inner storage."""
        return super().facts() | {"faulty": True}

    def perform(
        self,
        operation: Operation,
        act: Callable[[], _Result],
        *,
        failed: Callable[[Fault], object] | None = None,
        skipped: Callable[[], _Result] | None = None,
    ) -> _Result:
        """Write the operation down and do it, changed by its faults; for the files of this storage.

        `failed` does the rest of a failing operation (by default all of it if it landed, else nothing);
        `skipped` replaces a skipped operation.
        """
        with once(self._guard), self._guard:
            if operation.name not in ASIDE:
                self.trace.append(operation)
            met = [fault for fault in self._faults if fault.meets(operation)]
        for fault in met:
            fault.wait()
        deciding = [fault for fault in met if fault.kind in ("fail", "skip")]
        if not deciding:
            return act()
        fault = deciding[0]
        if fault.kind == "skip" and skipped is not None:
            return skipped()
        if failed is not None:
            failed(fault)
        elif fault.landed:
            act()
        action = ACTIONS.get(operation.name, operation.name)
        reason = (
            ""
            if fault.short_bytes is None
            else f"only {min(fault.short_bytes, operation.size):,} of {operation.size:,} bytes"
        )
        raise storage_error(action, operation.file, self.location, fault.errno, reason)

    def _add(self, fault: Fault) -> Fault:
        with once(self._guard), self._guard:
            self._faults.append(fault)
        return fault


class FaultyFile(PassingFile):
    """An open file of a `FaultyStorage`; `inner` is the file below."""

    def __init__(self, storage: FaultyStorage, inner: StorageFile, mode: OpenMode) -> None:
        super().__init__(inner)
        self._storage = storage
        if mode != "read":
            storage.open_files.add(self)
        self._cached = inner if isinstance(inner, _HasPageCache) else None

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        operation = Operation(name="read", file=self.name, offset=offset, size=size)
        return self._storage.perform(operation, lambda: self.inner.read(offset, size))

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write all bytes of `buffers` at `offset`."""
        name: OperationName = "synced_write" if sync else "write"
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        operation = Operation(name=name, file=self.name, offset=offset, size=size, sync=sync)

        def fail(fault: Fault) -> None:
            if fault.short_bytes is not None:
                self.inner.write(offset, [b"".join(buffers)[: fault.short_bytes]])
            elif sync and self._cached is not None:
                self._cached.fail_synced_write(offset, buffers, landed=fault.landed)
            elif fault.landed:
                self.inner.write(offset, buffers, sync=sync)

        self._storage.perform(
            operation,
            lambda: self._write(operation, buffers),
            failed=fail,
            skipped=lambda: self.inner.write(offset, buffers),
        )

    def _write(self, operation: Operation, buffers: Sequence[Buffer]) -> None:
        """Do a write that meets no fault."""
        self.inner.write(operation.offset, buffers, sync=operation.sync)

    def sync(self) -> None:
        """Put everything that was written before this call on stable storage."""
        cached = self._cached
        operation = Operation(name="sync", file=self.name, sync=True)
        if cached is None:
            self._storage.perform(operation, self.inner.sync, skipped=lambda: None)
            return
        mark = cached.sync_mark()
        self._storage.perform(
            operation,
            lambda: cached.sync_up_to(mark),
            failed=lambda fault: cached.fail_sync(mark, landed=fault.landed),
            skipped=lambda: None,
        )

    def allocate(self, size: int) -> None:
        """Reserve space up to `size` bytes."""
        operation = Operation(name="allocate", file=self.name, size=size)
        self._storage.perform(operation, lambda: self.inner.allocate(size))

    def shorten(self, size: int) -> None:
        """Drop all bytes from `size` on."""
        operation = Operation(name="shorten", file=self.name, size=size)
        self._storage.perform(operation, lambda: self.inner.shorten(size))

    def drop_cached(self) -> None:
        """Read clean bytes from the device again."""
        self._storage.perform(Operation(name="drop_cached", file=self.name), self.inner.drop_cached)

    def size(self) -> int:
        """Return the file's size in bytes."""
        return self._storage.perform(Operation(name="size", file=self.name), self.inner.size)

    def close(self) -> None:
        """Close the file. A descriptor is gone even if that fails; the error is about writes: reading leaves none."""
        if self not in self._storage.open_files:
            self.inner.close()
            return
        self._storage.open_files.discard(self)
        operation = Operation(name="close", file=self.name)
        self._storage.perform(operation, self.inner.close, failed=lambda _: self.inner.close())


class _FaultyCell:
    """A cell of a `FaultyStorage`. Releasing one cannot fail."""

    def __init__(self, storage: FaultyStorage, inner: Cell, name: str) -> None:
        self._storage, self._inner, self._name = storage, inner, name

    def read(self) -> bytes:
        """Return all bytes of the cell."""
        return self._storage.perform(Operation(name="cell_read", file=self._name), self._inner.read)

    def write(self, offset: int, data: bytes) -> None:
        """Store `data` at `offset`."""
        operation = Operation(name="cell_write", file=self._name, offset=offset, size=len(data))
        self._storage.perform(operation, lambda: self._inner.write(offset, data))

    def close(self) -> None:
        """Release the cell."""
        self._inner.close()
