"""MemoryStorage: the shared suite in memory, and what it does in a power cut."""

from __future__ import annotations

from pathlib import Path

from walkit.models import FaultyStorage
from walkit.storage import MemoryStorage, Storage
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


class TestFaultyOverMemory(TestMemoryStorage):
    """The suite through a wrapper that has no faults."""

    def make_storage(self, place: Path) -> Storage:
        return FaultyStorage(MemoryStorage())

    def bare(self, storage: Storage) -> Storage:
        assert isinstance(storage, FaultyStorage)
        return storage.inner


class TestPowerCuts(CrashTests):
    """The crash suite as it is."""
