"""A storage in memory on which every call counts, whatever its kind and its thread, and the n-th can be failed.

`FaultyStorage` fails calls of one kind, of files of one name. Here all are one row of numbers, reads, listings, cells,
locks and closings included, so that a loop over the numbers comes to every call that there is.
"""

from __future__ import annotations

import errno as errno_codes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from walkit.models import CrashingStorage
from walkit.models.crashing import CrashingFile
from walkit.storage.bulk import BulkThrough
from walkit.storage.interface import Buffer, Cell, LockHolder, OpenMode, StorageLock
from walkit.storage.io_errors import storage_error
from walkit.storage.memory import MemoryCell

Kind = Literal["error", "landed", "short", "full", "delay", "slow sync"]
"""error: nothing is done, EIO is told. landed: it is done, and EIO is told. short: of a write one half arrives.
full: what needs room is refused with ENOSPC. delay: it is done, and it takes its time; slow sync: of syncs alone."""

DELAY_S = 0.05
_NEEDS_ROOM = ("write", "synced_write", "allocate", "create", "lock", "cell", "replace")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Fault:
    """What the n-th call meets, and with `forever` all that come after it."""

    kind: Kind
    nth: int
    forever: bool = False

    def counts(self, name: str) -> bool:
        """Say whether a call of this name is one of those that are counted."""
        if self.kind == "short":
            return name in ("write", "synced_write")
        if self.kind == "slow sync":
            return name == "sync"
        return self.kind != "full" or name in _NEEDS_ROOM

    @property
    def slow(self) -> bool:
        """Whether a call that meets it is done, and takes its time."""
        return self.kind in ("delay", "slow sync")

    def __str__(self) -> str:
        return f"{self.kind} {'from' if self.forever else 'at'} call {self.nth}"


class EveryCall:
    """The storage: see the module's words. Without a fault it is what `inner` is."""

    def __init__(self, inner: CrashingStorage, *, write_s: float = 0.0) -> None:
        self.inner = inner
        self.write_s = write_s
        """How long a write takes: with none, frames in flight would land one after the other."""
        self.fault: Fault | None = None
        self.calls = 0
        """How many calls were counted since `arm`."""
        self.hits: list[str] = []
        """What the calls were that met the fault."""
        self.open_files: set[EveryFile] = set()
        """Files that are open for writing."""
        self._guard = threading.Lock()

    def arm(self, fault: Fault) -> None:
        """Count from now on."""
        self.fault, self.calls = fault, 0

    def disarm(self) -> None:
        """Let every call through."""
        self.fault = None

    def _met(self, name: str, file: str) -> Fault | None:
        with self._guard:
            fault = self.fault
            if fault is None or not fault.counts(name):
                return None
            self.calls += 1
            if self.calls < fault.nth or (self.calls > fault.nth and not fault.forever):
                return None
            self.hits.append(f"{name} {file or '.'} on {threading.current_thread().name}")
            return fault

    def call(
        self,
        name: str,
        file: str,
        act: Callable[[], _Result],
        failed: Callable[[Fault], object] | None = None,
    ) -> _Result:
        """Make a call, or what its fault makes of it. `failed` does what a failing one still does."""
        fault = self._met(name, file)
        if fault is None:
            return act()
        if fault.slow:
            time.sleep(DELAY_S)  # a slow device: the fault itself
            return act()
        if failed is not None:
            failed(fault)
        elif fault.kind == "landed":
            act()
        code = errno_codes.ENOSPC if fault.kind == "full" else errno_codes.EIO
        raise storage_error(name.replace("_", " "), file, self.location, code, f"{fault}")

    # -- the storage

    @property
    def location(self) -> str:
        return self.inner.location

    def exists(self) -> bool:
        return self.call("exists", "", self.inner.exists)

    def create(self) -> None:
        self.call("create_folder", "", self.inner.create)

    def names(self, folder: str = "") -> list[str]:
        return self.call("names", folder, lambda: self.inner.names(folder))

    def open(self, name: str, mode: OpenMode) -> EveryFile:
        kind = "create" if mode == "create" else "open"
        return EveryFile(self, self.call(kind, name, lambda: self.inner.open(name, mode)), mode)

    def replace(self, source: str, target: str) -> None:
        self.call("replace", target, lambda: self.inner.replace(source, target))

    def remove(self, name: str) -> None:
        self.call("remove", name, lambda: self.inner.remove(name))

    def sync_directory(self, folder: str = "") -> None:
        self.call("sync_directory", folder, lambda: self.inner.sync_directory(folder))

    def lock(self, name: str) -> StorageLock | LockHolder:
        return self.call("lock", name, lambda: self.inner.lock(name), failed=lambda _: None)

    def is_locked(self, name: str) -> bool:
        return self.call("is_locked", name, lambda: self.inner.is_locked(name))

    def cell(self, name: str, size: int, *, writable: bool) -> Cell | None:
        cell = self.call("cell", name, lambda: self.inner.cell(name, size, writable=writable))
        return None if cell is None else EveryCell(self, cell, name)

    def facts(self) -> dict[str, Any]:
        return self.inner.facts()

    def close(self) -> None:
        self.inner.close()


class EveryCell:
    """A cell of it. Letting go of one cannot fail."""

    def __init__(self, storage: EveryCall, inner: Cell, name: str) -> None:
        assert isinstance(inner, MemoryCell)
        self._storage, self._inner, self._name = storage, inner, name

    def read(self) -> bytes:
        return self._storage.call("cell_read", self._name, self._inner.read)

    def write(self, offset: int, data: bytes) -> None:
        self._storage.call("cell_write", self._name, lambda: self._inner.write(offset, data))

    def close(self) -> None:
        self._inner.close()


class EveryFile(BulkThrough):
    """A file of it. A sync that fails leaves pages that look clean: no later one writes them, a crash has lost them."""

    inner: CrashingFile

    def __init__(self, storage: EveryCall, inner: CrashingFile, mode: OpenMode) -> None:
        self.inner, self._storage, self._mode = inner, storage, mode
        if mode != "read":
            storage.open_files.add(self)

    @property
    def name(self) -> str:
        return self.inner.name

    def read(self, offset: int, size: int) -> bytes:
        return self._storage.call("read", self.name, lambda: self.inner.read(offset, size))

    def data_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        return self._storage.call("data_ranges", self.name, lambda: self.inner.data_ranges(start, end))

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        def fail(fault: Fault) -> None:
            if fault.kind == "short":
                data = b"".join(buffers)
                self.inner.write(offset, [data[: len(data) // 2]])
            elif sync:
                self.inner.fail_synced_write(offset, buffers, landed=fault.kind == "landed")
            elif fault.kind == "landed":
                self.inner.write(offset, buffers)

        def write() -> None:
            if self._storage.write_s:
                time.sleep(self._storage.write_s)
            self.inner.write(offset, buffers, sync=sync)

        self._storage.call("synced_write" if sync else "write", self.name, write, fail)

    def sync(self) -> None:
        mark = self.inner.sync_mark()  # it covers what was written before it began, however long it takes
        self._storage.call(
            "sync",
            self.name,
            lambda: self.inner.sync_up_to(mark),
            lambda fault: self.inner.fail_sync(mark, landed=fault.kind == "landed"),
        )

    def allocate(self, size: int) -> None:
        self._storage.call("allocate", self.name, lambda: self.inner.allocate(size))

    def shorten(self, size: int) -> None:
        self._storage.call("shorten", self.name, lambda: self.inner.shorten(size))

    def size(self) -> int:
        return self._storage.call("size", self.name, self.inner.size)

    def drop_cached(self) -> None:
        self._storage.call("drop_cached", self.name, self.inner.drop_cached)

    def close(self) -> None:
        """Close it. A descriptor is gone also where that tells an error, which is of writes: reading leaves none."""
        if self._mode == "read":
            self.inner.close()
            return
        self._storage.open_files.discard(self)
        self._storage.call("close", self.name, self.inner.close, failed=lambda _: self.inner.close())
