"""MemoryStorage and CrashingStorage: the shared suite in memory, and the effect of a power cut."""

from __future__ import annotations

from pathlib import Path
from random import Random

import walkit
from walkit.models import CrashingStorage, FaultyStorage
from walkit.simulate.runner import Process, Runner
from walkit.simulate.world_disk import Disk, DiskStorage
from walkit.storage import MemoryStorage, Storage
from walkit.storage.address import storage_at
from walkit.storage.memory import Content
from walkit.testing import StorageTests
from walkit.testing.storage_crash import CrashTests


class TestMemoryStorage(StorageTests):
    """The suite as it is; another opening is the same object."""

    def make_storage(self, place: Path) -> Storage:
        return MemoryStorage()

    def bare(self, storage: Storage) -> Storage:
        return storage

    def reopen(self, storage: Storage) -> Storage:
        return storage

    def raw_read(self, storage: Storage, name: str) -> bytes:
        storage = self.bare(storage)
        assert isinstance(storage, MemoryStorage)
        content = storage._names.current[name].content
        return bytes(content._bytes).ljust(content.size, b"\0")

    def raw_write(self, storage: Storage, name: str, data: bytes) -> None:
        storage = self.bare(storage)
        assert isinstance(storage, MemoryStorage)
        content = storage._names.create(name).content
        content._bytes[:] = data
        content.size = len(data)


class TestCrashingStorage(TestMemoryStorage):
    """The same with a page cache below it."""

    def make_storage(self, place: Path) -> Storage:
        return CrashingStorage()


class TestFaultyOverMemory(TestMemoryStorage):
    """The suite through a wrapper that has no faults."""

    def make_storage(self, place: Path) -> Storage:
        return FaultyStorage(CrashingStorage())

    def bare(self, storage: Storage) -> Storage:
        assert isinstance(storage, FaultyStorage)
        return storage.inner


class TestWorldDisk(TestMemoryStorage):
    """The suite through the disk of a seeded world, as one process sees it."""

    def make_storage(self, place: Path) -> Storage:
        runner = Runner(0)
        return DiskStorage(Disk("disk", runner, Random(0)), Process("process", runner).start())

    def bare(self, storage: Storage) -> Storage:
        assert isinstance(storage, DiskStorage)
        return storage.disk.image


class TestPowerCuts(CrashTests):
    """The crash suite as it is."""


def test_zeros_after_kept_bytes_need_no_memory() -> None:
    """Write zeros to the end of a file, then bytes among and after them: all is read, and zeros alone are not kept."""
    content = Content()
    content.write(0, b"head")
    twin = content.copy()
    content.write(4, bytes(1 << 20))
    assert (content.stored, content.size, twin.size) == (4, 4 + (1 << 20), 4)
    content.write(2, bytes(3))
    content.write(8, b"\0tail")
    assert content.read(0, 16) == b"he" + bytes(7) + b"tail" + bytes(3)
    content.shorten(7)
    assert content.read(0, 99) == b"he" + bytes(5) and twin.read(0, 99) == b"head"


def test_a_log_in_plain_memory_keeps_what_crashes_out() -> None:
    """`memory://` and MemoryStorage are plain: logs on them come back within the process; none can crash."""
    for storage in (MemoryStorage(), storage_at("memory://plain")):
        assert not isinstance(storage, CrashingStorage) and not hasattr(storage, "crash")
        for expected in (1, 2, 3):
            with walkit.open(storage=storage) as log:
                assert log.append(b"x").first_lsn == expected
            assert walkit.verify(storage).ok
