"""The disk of a process of a world, which outlives it: what was not synced may be gone after a power cut."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from walkit.models import CrashingStorage
from walkit.models.wrapper import PassingStorage
from walkit.simulate.runner import Killed, Life, Runner
from walkit.storage.interface import Buffer, OpenMode, storage_error

MOUNT_MS = 500.0
SYNC_MS = (0.2, 0.3, 0.5, 1.0, 4.0, 20.0)


class Disk:
    """A folder. Faults: it is cut from its power, its next write fails, it is away, or another folder is there."""

    def __init__(self, name: str, runner: Runner, random: Random) -> None:
        self.name, self.runner, self.random = name, runner, random
        self.opening = 0
        """Moves on when the files that were open have to be opened again."""
        self.away = 0
        """How many faults keep everyone from it."""
        self.returning = 0
        """How many have just ended: others see only a part of its files."""
        self.fails_next_write = False
        self.on_write: Any = None
        """Called once, as the next write is under way."""
        self.put(CrashingStorage())

    def cut_power(self) -> None:
        """Lose, keep or tear what no sync has covered; free all locks."""
        self.put(self.image.crash(keep="random", seed=self.random.getrandbits(32)))

    def free(self) -> None:
        """Free the locks of a process that ended; what it wrote is in the page cache."""
        self.put(self.image.process_kill())

    def put(self, image: CrashingStorage) -> None:
        """Have another folder in this place."""
        self.image, self.opening = image, self.opening + 1
        image.rename(f"world://{self.name}")

    def come_back(self) -> None:
        """Be there again, at first in part, as a folder that is being mounted."""
        self.away, self.returning = self.away - 1, self.returning + 1
        self.runner.after(MOUNT_MS, lambda: setattr(self, "returning", self.returning - 1))

    def view_for(self, life: Life) -> DiskStorage:
        """Return it as one life of a process sees it."""
        return DiskStorage(self, life)

    def wait_for_write(self) -> bool:
        """Let a write take its time; whether it is to fail then."""
        fails, self.fails_next_write = self.fails_next_write, False
        act, self.on_write = self.on_write, None
        if self.runner.here() is not None:
            took_ms = self.random.choice(SYNC_MS)
            if act is not None:
                self.runner.after(took_ms * self.random.random(), act)
            self.runner.sleep(took_ms)
        return fails


class DiskStorage(PassingStorage):
    """A disk as one life of a process sees it: see `walkit.storage.Storage`."""

    def __init__(self, disk: Disk, life: Life) -> None:
        self.disk, self._life = disk, life
        self.faults = Counter[str]()
        """By name, how many there are: it "fails" for this process, or is "read-only" for it."""
        self.saw_absence = False
        self.files: list[str] = []
        """Names of the files that it has open."""

    @property
    def place(self) -> DiskStorage:
        """The storage that is given to walkit."""
        return self

    @property
    def location(self) -> str:
        """Its name, as a URL."""
        return self.disk.image.location

    @property
    def inner(self) -> CrashingStorage:  # type: ignore[override]
        """The folder of this moment; StorageError if it cannot be used."""
        self.exists()
        if self.disk.away:
            self.saw_absence = True
            raise storage_error("use", "", self.location, errno.ENOENT, "the folder is away")
        if self.faults["fails"] and self.disk.random.random() < 0.7:
            raise storage_error("use", "", self.location, errno.EIO)
        return self.disk.image

    def exists(self) -> bool:
        """See Storage."""
        if self._life.is_over:
            raise Killed
        return not self.disk.away and self.disk.image.exists()

    def open(self, name: str, mode: OpenMode) -> DiskFile:
        """See Storage."""
        if self.faults["read-only"] and mode != "read":
            raise storage_error("write", name, self.location, errno.EROFS)
        is_other = self._life.process.name != self.disk.name
        if is_other and self.saw_absence and self.disk.returning and self.disk.random.random() < 0.5:
            raise storage_error("open", name, self.location, errno.ENOENT)
        return DiskFile(self, name, mode, self.inner.open(name, mode))

    def sync_directory(self, folder: str = "") -> None:
        """See Storage."""
        self.exists()
        if self.disk.wait_for_write():
            raise storage_error("sync the folder", folder, self.location, errno.EIO)
        self.inner.sync_directory(folder)

    def close(self) -> None:
        """See Storage."""


class DiskFile:
    """An open file: see `walkit.storage.StorageFile`. After a power cut it is opened again for reading alone."""

    def __init__(self, storage: DiskStorage, name: str, mode: OpenMode, inner: Any) -> None:
        self.name, self._storage, self._mode, self._file = name, storage, mode, inner
        self._opening, self._is_open = storage.disk.opening, True
        storage.files.append(name)

    def _inner(self) -> Any:
        image, disk = self._storage.inner, self._storage.disk
        if self._opening != disk.opening:
            if self._mode != "read":
                raise storage_error("use", self.name, self._storage.location, errno.ESTALE)
            self._file, self._opening = image.open(self.name, "read"), disk.opening
        return self._file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner(), name)

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """See StorageFile."""
        disk = self._storage.disk
        if sync:
            if disk.random.random() < 0.5:
                self._inner().write(offset, buffers)  # it is in the page cache while it is under way
            if disk.wait_for_write():
                self._inner().fail_synced_write(offset, buffers, landed=disk.random.random() < 0.5)
                raise storage_error("write", self.name, self._storage.location, errno.EIO)
        self._inner().write(offset, buffers, sync=sync)

    def sync(self) -> None:
        """See StorageFile."""
        disk, mark = self._storage.disk, self._inner().sync_mark()
        if disk.wait_for_write():
            self._inner().fail_sync(mark)
            raise storage_error("sync", self.name, self._storage.location, errno.EIO)
        self._inner().sync_up_to(mark)

    def close(self) -> None:
        """See StorageFile."""
        if self._is_open:
            self._storage.files.remove(self.name)
        self._is_open = False
        self._file.close()
