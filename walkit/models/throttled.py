"""A storage that is as slow as a modelled device, in real time, over any other storage.

What reaches stable storage is held back: synced writes, and syncs, which pay for the bytes that were written since the
last one. Plain writes go to the page cache and cost the device nothing, and so do reads. The storage below does its own
work within the same time: a model that is faster than it changes nothing.
"""

from __future__ import annotations

import errno as errno_codes
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from walkit.models.device import Device, DeviceModel, device_model
from walkit.storage.bulk import BulkThrough
from walkit.storage.interface import Buffer, Cell, LockHolder, OpenMode, Storage, StorageFile, StorageLock
from walkit.storage.io_errors import storage_error


class ThrottledStorage:
    """Passes everything on to `inner`; synced writes and syncs end when the modelled device is done with them.

    `device` is a `DeviceModel` or the name of a preset. One device serves all files. Where the model lets an I/O fail,
    the call raises a StorageError (EIO) at the time at which it would have been done, and nothing has been written.
    `clock_ns` and `sleep` (seconds) may be replaced together.
    """

    def __init__(
        self,
        inner: Storage,
        device: str | DeviceModel,
        *,
        seed: int = 0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.inner = inner
        self.model = device_model(device)
        self.busy_ns = 0
        """Nanoseconds that callers have waited beyond what the inner storage took."""
        self._device = Device(self.model, seed)
        self._clock_ns = clock_ns
        self._sleep = sleep
        self._guard = threading.Lock()

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
        """Open a file, whose synced writes and syncs take the device's time."""
        return ThrottledFile(self, self.inner.open(name, mode))

    def replace(self, source: str, target: str) -> None:
        """Rename `source` to `target`."""
        self.inner.replace(source, target)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self.inner.remove(name)

    def sync_directory(self, folder: str = "") -> None:
        """Make creations, replacements and removals in the folder durable: one I/O."""
        self.serve(0, folder, "sync", lambda: self.inner.sync_directory(folder))

    def lock(self, name: str) -> StorageLock | LockHolder:
        """Take a lock."""
        return self.inner.lock(name)

    def is_locked(self, name: str) -> bool:
        """Ask about a lock."""
        return self.inner.is_locked(name)

    def cell(self, name: str, size: int, *, writable: bool) -> Cell | None:
        """Return a cell: memory, as fast as ever."""
        return self.inner.cell(name, size, writable=writable)

    def facts(self) -> dict[str, Any]:
        """Return what is known of the inner storage, and the device that is modelled."""
        return self.inner.facts() | {"modelled_device": self.model.name}

    def close(self) -> None:
        """Close the inner storage."""
        self.inner.close()

    def serve(self, size_bytes: int, name: str, action: str, act: Callable[[], object]) -> None:
        """Do `act` as one I/O of the device; returns when both are done. For the files of this storage."""
        with self._guard:
            service = self._device.submit(self._clock_ns(), size_bytes)
        if not service.failed:
            act()
        left_ns = service.done_ns - self._clock_ns()
        if left_ns > 0:
            self._sleep(left_ns / 1e9)
            with self._guard:
                self.busy_ns += left_ns
        if service.failed:
            raise storage_error(action, name, self.location, errno_codes.EIO, "the modelled device failed")


class ThrottledFile(BulkThrough):
    """An open file of a `ThrottledStorage`; `inner` is the file below."""

    def __init__(self, storage: ThrottledStorage, inner: StorageFile) -> None:
        self.inner: StorageFile = inner
        self._storage = storage
        self._unsynced_bytes = 0
        self._guard = threading.Lock()

    @property
    def name(self) -> str:
        """The file's name within its storage."""
        return self.inner.name

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write all bytes of `buffers` at `offset`; with `sync` as one I/O of the device."""
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        if sync:
            self._storage.serve(
                size, self.name, "write", lambda: self.inner.write(offset, buffers, sync=True)
            )
            return
        self.inner.write(offset, buffers)
        with self._guard:
            self._unsynced_bytes += size

    def sync(self) -> None:
        """Put everything on stable storage that was written before: one I/O of all its bytes."""
        with self._guard:
            size, self._unsynced_bytes = self._unsynced_bytes, 0
        self._storage.serve(size, self.name, "sync", self.inner.sync)

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
        """Read clean bytes from the device again."""
        self.inner.drop_cached()

    def close(self) -> None:
        """Close the file."""
        self.inner.close()
