"""A storage that is as far away as an object store, over any other storage: every request has a price in time.

Each request waits for its first byte, and its bytes share the rate of one link; so many requests are served at the same
time, and the others wait in order. Reads cost as much as writes: nothing is cached here, and nothing is read ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from walkit._internal.locks import once
from walkit.models.device import DeviceModel, MeasuredLatency
from walkit.models.latency import TimedFile, TimedStorage
from walkit.storage.interface import OpenMode, Storage, StorageFile

T = TypeVar("T")

REMOTE = DeviceModel(
    name="remote-object",
    latency=MeasuredLatency((10_000, 30_000)),
    bytes_per_s=100e6,
    queue_depth=16,
)
"""First byte after 10 to 30 ms, evenly; 100 MB/s; 16 requests at a time. This project's choice, no seller's."""


class RemoteStorage(TimedStorage):
    """A `TimedStorage` to which nearly everything is a request.

    Requests are: each read of a file, each opening, each write and each sync that has something to send (bytes that
    were written without sync are sent by the next sync of the file), and each call that names, moves, removes or makes
    files. Cells and locks are those of this machine, at no price: a reader elsewhere has none.

    In real time each caller sleeps on its own thread. With `clock_ns` and `sleep` (seconds) replaced together it is
    virtual time, and the same calls with the same seed take the same time.
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
        super().__init__(inner, model, seed=seed, clock_ns=clock_ns, sleep=sleep)
        self.bytes_read = self.bytes_written = 0

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

    def request(self, action: str, name: str, act: Callable[[], T], *, sent: int = 0, wanted: int = 0) -> T:
        """Do a request, and count the bytes that went either way."""
        result = super().request(action, name, act, sent=sent, wanted=wanted)
        with once(self._guard), self._guard:
            self.bytes_written += sent
            self.bytes_read += len(result) if isinstance(result, bytes) else 0
        return result


class RemoteFile(TimedFile):
    """An open file of a `RemoteStorage`. `data_ranges`, `size` and `read_ahead` cost no request."""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`: a request."""
        wanted = max(min(size, self.inner.size() - offset), 0)
        return self._storage.request("read", self.name, lambda: self.inner.read(offset, size), wanted=wanted)
