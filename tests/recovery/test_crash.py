"""Power cuts: at every acknowledgement, at every operation, and during recovery itself."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from tests.support.crashes import SMALL, Script, dirty_image, log_of, recovered_rows, rows_of
from tests.support.damaged_logs import contents
from walkit.errors import LogPoisonedError, StorageError
from walkit.format.manifest import MANIFEST_NAME
from walkit.models import CrashingStorage
from walkit.models.faults import FaultyStorage


@pytest.mark.parametrize("policy", ["prefix", "holes", "salvage"])
@pytest.mark.parametrize("torn_tail", ["on the disk", "in the page cache"])
def test_what_an_opening_leaves_is_on_the_disk(torn_tail: str, policy: str) -> None:
    """Open what a kill left in the page cache, or on the disk; cut the power: the records and the cut are there."""
    image, appended = dirty_image(30, replace(SMALL, durability="none"))
    if torn_tail == "on the disk":
        image = image.crash(keep="all")
    with log_of(image, replace(SMALL, recovery=policy)) as log:  # type: ignore[arg-type]
        assert log.recovery.cuts and rows_of(log) == appended
        left, after = (
            {name: data.rstrip(b"\0") for name, data in contents(place).items()}
            for place in (image, image.crash(keep="none"))
        )
        assert after == left and any(name.endswith(".tail") for name in left)
        assert recovered_rows(image.crash(keep="none")) == appended


@pytest.mark.parametrize("operation", ["write", "create", "sync"])
def test_an_opening_syncs_its_folder_first(operation: str) -> None:
    """Fail the sync after a manifest, and the next opening's first change: a power cut leaves the new manifest."""
    storage = CrashingStorage()
    faulty = FaultyStorage(storage)
    with suppress(StorageError, LogPoisonedError), log_of(faulty) as log:
        Script().run(log, lambda: None, 40)
        faulty.fail("synced_write", MANIFEST_NAME)  # after an edit that fails comes a new base
        faulty.fail("sync_directory", times=None)
        with suppress(StorageError):
            log.trim(log.durable_lsn)
        log.trim(log.durable_lsn)
    newest = contents(storage)[MANIFEST_NAME]
    assert contents(storage.crash(keep="none"))[MANIFEST_NAME] != newest
    opening = FaultyStorage(storage.process_kill())
    opening.fail(operation)  # type: ignore[arg-type]
    with suppress(StorageError):
        log_of(opening).close()
    assert isinstance(opening.inner, CrashingStorage)
    assert contents(opening.inner.crash(keep="none"))[MANIFEST_NAME].startswith(newest.rstrip(b"\0"))


def test_nothing_is_sealed_that_is_in_the_page_cache_only() -> None:
    """Kill a writer that never synced, fail the opening after its seal, cut the power: all records are there."""
    image, appended = dirty_image(30, replace(SMALL, durability="none"))
    faulty = FaultyStorage(image)
    faulty.fail("shorten")
    with pytest.raises(StorageError):
        log_of(faulty)
    assert recovered_rows(image.crash(keep="none")) == appended


OPERATIONS = ("write", "synced_write", "sync", "allocate", "create", "replace", "sync_directory", "remove")
