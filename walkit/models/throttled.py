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
from walkit.models.passing import PassingFile, PassingStorage
from walkit.storage.interface import Buffer, OpenMode, Storage, StorageFile
from walkit.storage.io_errors import storage_error


class ThrottledStorage(PassingStorage):
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
        super().__init__(inner)
        self.model = device_model(device)
        self.busy_ns = 0
        """Nanoseconds that callers have waited beyond what the inner storage took."""
        self._device = Device(self.model, seed)
        self._clock_ns = clock_ns
        self._sleep = sleep
        self._guard = threading.Lock()

    def open(self, name: str, mode: OpenMode) -> StorageFile:
        """Open a file, whose synced writes and syncs take the device's time."""
        return ThrottledFile(self, self.inner.open(name, mode))

    def sync_directory(self, folder: str = "") -> None:
        """Make creations, replacements and removals in the folder durable: one I/O."""
        self.serve(0, folder, "sync", lambda: self.inner.sync_directory(folder))

    def facts(self) -> dict[str, Any]:
        """Return what is known of the inner storage, and the device that is modelled."""
        return super().facts() | {"modelled_device": self.model.name}

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


class ThrottledFile(PassingFile):
    """An open file of a `ThrottledStorage`; `inner` is the file below."""

    def __init__(self, storage: ThrottledStorage, inner: StorageFile) -> None:
        super().__init__(inner)
        self._storage = storage
        self._unsynced_bytes = 0
        self._guard = threading.Lock()

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
