"""A storage whose requests take a modelled device's time, over any other storage: shared by `throttled` and `remote`.

The storage below does its own work within the same time: a model that is faster than it changes nothing.
"""

from __future__ import annotations

import errno as errno_codes
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from walkit._internal.locks import once
from walkit.models.device import Device, DeviceModel
from walkit.models.wrapper import PassingFile, PassingStorage
from walkit.storage.interface import Buffer, Storage, StorageFile, storage_error

T = TypeVar("T")


class TimedStorage(PassingStorage):
    """Passes everything on to `inner`; a request ends when the one device of all files is done with it.

    Where the model lets one fail, the call raises a StorageError (EIO) at the time at which it would have been done,
    and nothing has happened. `clock_ns` and `sleep` (seconds) may be replaced together. Safe from any thread.
    """

    def __init__(
        self,
        inner: Storage,
        model: DeviceModel,
        *,
        seed: int = 0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self.model = model
        self.requests = self.failures = 0
        self.busy_ns = 0
        """Nanoseconds that callers have waited beyond the inner storage's time."""
        self._device = Device(model, seed)
        self._clock_ns, self._sleep = clock_ns, sleep
        self._guard = threading.RLock()

    def facts(self) -> dict[str, Any]:
        """Return the facts of the inner storage, and the device that is modelled."""
        return super().facts() | {"modelled_device": self.model.name}

    def request(self, action: str, name: str, act: Callable[[], T], *, sent: int = 0, wanted: int = 0) -> T:
        """Do `act` as one request that sends and wants so many bytes; return its result when both are done.

        A short answer takes as long: the model computes the time before the answer is known.
        """
        with once(self._guard), self._guard:
            self.requests += 1
            service = self._device.submit(self._clock_ns(), sent + wanted)
            self.failures += service.failed
        try:
            if service.failed:
                raise storage_error(
                    action, name, self.location, errno_codes.EIO, "the modelled device failed"
                )
            return act()
        finally:
            left_ns = service.done_ns - self._clock_ns()
            if left_ns > 0:
                self._sleep(left_ns / 1e9)
                with once(self._guard), self._guard:
                    self.busy_ns += left_ns


class TimedFile(PassingFile):
    """An open file of a `TimedStorage`; `inner` is the file below. Its synced writes and syncs are requests."""

    def __init__(self, storage: TimedStorage, inner: StorageFile) -> None:
        super().__init__(inner)
        self._storage = storage
        self._unsynced_bytes = 0
        self._guard = threading.RLock()

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write all bytes of `buffers` at `offset`; with `sync` as a request, else they are sent by the next sync."""
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        if sync:
            self._storage.request(
                "write", self.name, lambda: self.inner.write(offset, buffers, sync=True), sent=size
            )
            return
        self.inner.write(offset, buffers)
        with once(self._guard), self._guard:
            self._unsynced_bytes += size

    def sync(self) -> None:
        """Put everything on stable storage that was written before: one request with all its bytes."""
        with once(self._guard), self._guard:
            size, self._unsynced_bytes = self._unsynced_bytes, 0
        try:
            self._storage.request("sync", self.name, self.inner.sync, sent=size)
        except BaseException:  # the next sync has them to send, too
            with once(self._guard), self._guard:
                self._unsynced_bytes += size
            raise
