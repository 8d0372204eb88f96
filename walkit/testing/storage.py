"""The conformance suite of `walkit.storage.Storage`: every sentence of its contract that a test can hold it to.

A backend's test module is mostly inheritance::

    class TestMyStorage(walkit.testing.StorageTests):
        def make_storage(self, place):
            return MyStorage(place)

        def reopen(self, storage):
            return MyStorage(storage.location)

        def raw_read(self, storage, name): ...  # past the code under test
        def raw_write(self, storage, name, data): ...

See `StorageHooks` for the rest: other processes, small devices. Power cuts are in
`walkit.testing.storage_crash`, a comparison with `CrashingStorage` on random operations in
`walkit.testing.storage_machines`. Zarr's StoreTests are the source of the shape.
"""

from __future__ import annotations

from walkit.testing.storage_files import FileTests, SpaceTests
from walkit.testing.storage_hooks import StorageHooks
from walkit.testing.storage_names import NameTests
from walkit.testing.storage_sharing import CellTests, LockTests

__all__ = ["CellTests", "FileTests", "LockTests", "NameTests", "SpaceTests", "StorageHooks", "StorageTests"]


class StorageTests(FileTests, SpaceTests, NameTests, LockTests, CellTests):
    """All tests that a storage passes, on any medium; each base can be run alone too."""
