"""A storage that is as slow as a modelled device, in real time, over any other storage.

Only operations on stable storage wait: synced writes, and syncs, which pay for the bytes that were written since the
last one. Plain writes go to the page cache and cost the device nothing, and so do reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from walkit.models.device import DeviceModel, device_model
from walkit.models.latency import TimedFile, TimedStorage
from walkit.storage.interface import OpenMode, Storage, StorageFile


class ThrottledStorage(TimedStorage):
    """A `TimedStorage` whose requests are synced writes and syncs, of files and of folders.

    `device` is a `DeviceModel` or the name of a preset.
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
        super().__init__(inner, device_model(device), seed=seed, clock_ns=clock_ns, sleep=sleep)

    def open(self, name: str, mode: OpenMode) -> StorageFile:
        """Open a file, whose synced writes and syncs take the device's time."""
        return TimedFile(self, self.inner.open(name, mode))

    def sync_directory(self, folder: str = "") -> None:
        """Make creations, replacements and removals in the folder durable: one I/O."""
        self.request("sync", folder, lambda: self.inner.sync_directory(folder))
