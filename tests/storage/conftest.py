"""Fixtures of the storage tests: a storage in a folder, and the shipped suite's failed assertions with values."""

from __future__ import annotations

from pathlib import Path

import pytest

from walkit.storage import FileStorage

pytest.register_assert_rewrite(
    "walkit.testing.object_store",
    "walkit.testing.storage_crash",
    "walkit.testing.storage_files",
    "walkit.testing.storage_hooks",
    "walkit.testing.storage_machines",
    "walkit.testing.storage_names",
    "walkit.testing.storage_sharing",
)


@pytest.fixture
def storage(tmp_path: Path) -> FileStorage:
    """A created storage."""
    made = FileStorage(tmp_path / "log")
    made.create()
    return made
