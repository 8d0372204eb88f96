"""Files that a writer left half written: the next one removes them, who reads does not, and none keeps a log shut."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import walkit
from tests.support.crashes import SMALL
from walkit.format.file_names import TEMPORARY_NAMES
from walkit.models import CrashingStorage, FaultyStorage
from walkit.replication.logs.imported_log import ImportedLog
from walkit.segments.orphan_files import KEPT_NEW_NAME
from walkit.storage.interface import Storage

LEFT = (*TEMPORARY_NAMES, "manifest.new", KEPT_NEW_NAME)
STAY = ("cursor-mine.new", "mine.new")
"""A consumer of any process may be writing the first now, and the second belongs to no part of walkit."""

WRITERS: dict[str, Callable[[Storage], object]] = {
    "an opening": lambda place: walkit.open(storage=place, options=SMALL).close(),
    "one that salvages": lambda place: walkit.open(
        storage=place, options=walkit.LogOptions(recovery="salvage")
    ).close(),
    "a repair": walkit.repair,
    "a replica": lambda place: ImportedLog(place, SMALL).close(),
    "a store": lambda place: walkit.Store.open(storage=place).close(),
}


def put(storage: Storage, name: str) -> None:
    """Write a file of some bytes, durably."""
    file = storage.open(name, "create")
    file.write(0, [b"half of it"])
    file.sync()
    file.close()
    folder = name.rpartition("/")[0]
    storage.sync_directory(folder)
    storage.sync_directory()


def made() -> CrashingStorage:
    """A closed log of three records, beside which stands every file that may be left half written."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=SMALL) as log:
        log.append_many([b"1", b"2", b"3"], keys=[b"a", b"b", b"a"])
    for name in (*LEFT, *STAY):
        put(storage, name)
    return storage


def names_in(storage: Storage) -> set[str]:
    return {*storage.names(), *storage.names("lost+found")}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_who_writes_removes_what_was_left_half_written(writer: Callable[[Storage], object]) -> None:
    """Put each such file beside a log and let each kind of writer open it: they go, other files stay."""
    storage = made()
    writer(storage)
    assert not names_in(storage) & set(LEFT) and names_in(storage) >= set(STAY)
    with walkit.open(storage=storage, mode="r") as reader:
        assert [r.value for r in reader.read()] == [b"1", b"2", b"3"]


def test_reading_removes_nothing() -> None:
    """Read, scan, verify and repair dry beside such files: each stays, verify names them, repair its plan."""
    storage = made()
    before = names_in(storage)
    with walkit.open(storage=storage, mode="r") as reader:
        assert len(list(reader.read())) == 3
    assert walkit.scan(storage).ok and walkit.verify(storage).ok
    told = [note for note in walkit.verify(storage).notes if "cut short" in note]
    assert len(told) == len(TEMPORARY_NAMES) + 1, "and the cursor's"
    assert walkit.repair(storage, dry_run=True).changed
    assert names_in(storage) == before
    assert walkit.repair(storage).changed and not walkit.repair(storage).changed


def test_one_that_cannot_be_removed_does_not_keep_the_log_shut() -> None:
    """Let every removal of them fail: the log opens and is written to, and the next opening removes them."""
    storage = made()
    faulty = FaultyStorage(storage)
    faults = [faulty.fail("remove", name) for name in LEFT]
    with walkit.open(storage=faulty, options=SMALL):
        assert names_in(storage) >= set(LEFT) and all(fault.hits == 1 for fault in faults)
    with walkit.open(storage=storage, options=SMALL) as log:
        assert not names_in(storage) & set(LEFT)
        assert log.append(b"4").first_lsn == 4
