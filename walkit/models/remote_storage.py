"""A storage that is as far away as an object store, over any other storage: every request has a price in time.

Each request waits for its first byte, and its bytes share the rate of one link; so many requests are served at the same
time, and the others wait in order. Reads cost as much as writes: nothing is cached here, and there is no read-ahead.
"""

from __future__ import annotations

import errno as errno_codes
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from walkit.models.device import Device, DeviceModel, MeasuredLatency
from walkit.models.passing import PassingFile, PassingStorage
from walkit.storage.interface import Buffer, OpenMode, Storage, StorageFile
from walkit.storage.io_errors import storage_error

T = TypeVar("T")

REMOTE = DeviceModel(
    name="remote-object",
    latency=MeasuredLatency((10_000, 30_000)),
    bytes_per_s=100e6,
    queue_depth=16,
)
"""First byte after 10 to 30 ms, evenly; 100 MB/s; 16 requests at a time. This project's choice, no seller's."""


class RemoteStorage(PassingStorage):
    """Passes everything on to `inner`; a request ends when the model is done with it, at the earliest.

    Requests are: each read of a file, each opening, each write and each sync that has something to send (bytes that
    were written without sync are sent by the next sync of the file), and each call that names, moves, removes or makes
    files. Where the model lets one fail, the call raises a StorageError (EIO) at the time at which it would have been
    done, and nothing has happened. Cells and locks are those of this machine, at no price: a reader elsewhere has none.

    In real time each caller sleeps on its own thread. With `clock_ns` and `sleep` (seconds) replaced together it is
    virtual time, and the same calls with the same seed take the same time. Safe from any thread.
    """

    def __init__(
        self,
        inner: Storage,
        model: DeviceModel = REMOTE,
        *,
        seed: int = 0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self.model = model
        self.requests = self.failures = 0
        self.bytes_read = self.bytes_written = 0
        self._device = Device(model, seed)
        self._clock_ns, self._sleep = clock_ns, sleep
        self._guard = threading.Lock()

    def exists(self) -> bool:
        """Say whether the folder is there: a request."""
        return self.request("look at", "", self.inner.exists)

    def create(self) -> None:
        """Make the folder: a request."""
        self.request("create", "", self.inner.create)

    def names(self, folder: str = "") -> list[str]:
        """Return the names in one folder: a request."""
        return self.request("list", folder, lambda: self.inner.names(folder))

    def open(self, name: str, mode: OpenMode) -> StorageFile:
        """Open a file: a request, as each of its reads will be."""
        return RemoteFile(self, self.request("open", name, lambda: self.inner.open(name, mode)))

    def replace(self, source: str, target: str) -> None:
        """Rename `source` to `target`: a request."""
        self.request("replace", source, lambda: self.inner.replace(source, target))

    def remove(self, name: str) -> None:
        """Remove a file: a request."""
        self.request("remove", name, lambda: self.inner.remove(name))

    def sync_directory(self, folder: str = "") -> None:
        """Make creations, replacements and removals in the folder durable: a request."""
        self.request("sync", folder, lambda: self.inner.sync_directory(folder))

    def facts(self) -> dict[str, Any]:
        """Return what is known of the inner storage, and the model."""
        return super().facts() | {"modelled_device": self.model.name}

    def request(self, action: str, name: str, act: Callable[[], T], *, sent: int = 0, wanted: int = 0) -> T:
        """Do `act` as one request that sends and wants so many bytes; return its result when both are done.

        An answer of fewer bytes than wanted is no faster: the model is asked before the answer is known.
        """
        with self._guard:
            self.requests += 1
            service = self._device.submit(self._clock_ns(), sent + wanted)
            self.failures += service.failed
        try:
            if service.failed:
                raise storage_error(
                    action, name, self.location, errno_codes.EIO, "the modelled request failed"
                )
            result = act()
        finally:
            left_ns = service.done_ns - self._clock_ns()
            if left_ns > 0:
                self._sleep(left_ns / 1e9)
        with self._guard:
            self.bytes_written += sent
            self.bytes_read += len(result) if isinstance(result, bytes) else 0
        return result


class RemoteFile(PassingFile):
    """An open file of a `RemoteStorage` over `inner`. `data_ranges`, `size` and `read_ahead` are no requests."""

    def __init__(self, storage: RemoteStorage, inner: StorageFile) -> None:
        super().__init__(inner)
        self._storage = storage
        self._unsent_bytes = 0
        self._guard = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`: a request."""
        wanted = max(min(size, self.inner.size() - offset), 0)
        return self._storage.request("read", self.name, lambda: self.inner.read(offset, size), wanted=wanted)

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write all bytes of `buffers` at `offset`; with `sync` as a request, else they are sent by the next sync."""
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        if sync:
            self._storage.request(
                "write", self.name, lambda: self.inner.write(offset, buffers, sync=True), sent=size
            )
            return
        self.inner.write(offset, buffers)
        with self._guard:
            self._unsent_bytes += size

    def sync(self) -> None:
        """Put everything on stable storage that was written before: one request with all its bytes."""
        with self._guard:
            size, self._unsent_bytes = self._unsent_bytes, 0
        try:
            self._storage.request("sync", self.name, self.inner.sync, sent=size)
        except BaseException:  # the next sync has them to send, too
            with self._guard:
                self._unsent_bytes += size
            raise
