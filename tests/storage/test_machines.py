"""Random operations: FileStorage against CrashingStorage, and crashes against the contract."""

from __future__ import annotations

import shutil
import tempfile

from hypothesis import settings

from tests.support.examples import examples
from tests.support.machines import that_did
from walkit.models import CrashingStorage, FaultyStorage
from walkit.storage import FileStorage, Storage
from walkit.testing.storage_machines import CrashPromises, StorageComparison


class FileAgainstMemory(StorageComparison):
    """The two storages, under a wrapper without faults on one side, answer alike."""

    def make_storages(self) -> tuple[Storage, Storage]:
        self.place = tempfile.mkdtemp(prefix="walkit-machine-")
        return FileStorage(f"{self.place}/log"), FaultyStorage(CrashingStorage())

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "place"):
            shutil.rmtree(self.place)


TestFileAgainstMemory = that_did(
    FileAgainstMemory, "write", "read", "allocate", "shorten", "sync", "drop", "close", "replace", "remove"
)
TestFileAgainstMemory.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)

TestCrashPromises = that_did(
    CrashPromises,
    *("write", "synced write", "sync", "resize", "replace", "remove"),
    *("sync of names", "name lost", "bytes lost"),
)
TestCrashPromises.settings = settings(max_examples=examples(160), stateful_step_count=40, deadline=None)
