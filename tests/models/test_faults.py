"""FaultyStorage: every kind of fault, over memory and over files, and its trace."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from walkit.errors import OptionsError, StorageError
from walkit.models import CrashingStorage, FaultyStorage, Operation
from walkit.models.faults import ACTIONS, OperationName
from walkit.storage import FileStorage, Storage, StorageFile
from walkit.testing.storage_hooks import Refused


@pytest.fixture(params=["memory", "file"])
def faulty(request: pytest.FixtureRequest, tmp_path: Path) -> FaultyStorage:
    """A created storage under the wrapper, its trace empty."""
    inner: Storage = CrashingStorage() if request.param == "memory" else FileStorage(tmp_path / "log")
    storage = FaultyStorage(inner)
    storage.create()
    storage.trace.clear()
    return storage


def memory() -> tuple[CrashingStorage, FaultyStorage, StorageFile]:
    """A storage that can crash, its wrapper, and an open file that is durably there and empty."""
    inner = CrashingStorage()
    inner.create()
    storage = FaultyStorage(inner)
    file = storage.open("file", "create")
    storage.sync_directory()
    storage.trace.clear()
    return inner, storage, file


def durable(storage: CrashingStorage) -> bytes:
    """The bytes of the file that survive a power cut now for sure."""
    return storage.crash().open("file", "read").read(0, 1 << 20)


def test_the_trace_has_every_operation(faulty: FaultyStorage) -> None:
    """Every operation is written down in order, with its place and size, the failed one too."""
    faulty.fail("sync", "file")
    file = faulty.open("file", "create")
    file.write(3, [b"ab", b"c"])
    file.write(6, [b"de"], sync=True)
    with Refused(errno.EIO):
        file.sync()
    file.read(1, 4)
    file.allocate(64)
    file.shorten(8)
    file.drop_cached()
    file.close()
    faulty.replace("file", "sub/other")
    faulty.sync_directory("sub")
    faulty.open("sub/other", "read").close()
    faulty.remove("sub/other")
    assert faulty.trace == [
        Operation(name="create", file="file"),
        Operation(name="write", file="file", offset=3, size=3),
        Operation(name="synced_write", file="file", offset=6, size=2, sync=True),
        Operation(name="sync", file="file", sync=True),
        Operation(name="read", file="file", offset=1, size=4),
        Operation(name="allocate", file="file", size=64),
        Operation(name="shorten", file="file", size=8),
        Operation(name="drop_cached", file="file"),
        Operation(name="replace", file="sub/other", source="file"),
        Operation(name="sync_directory", file="sub"),
        Operation(name="open", file="sub/other"),
        Operation(name="remove", file="sub/other"),
    ]


def test_every_operation_can_fail_without_being_done(faulty: FaultyStorage) -> None:
    """Each operation in turn fails once with the errno asked for, changes nothing, and works the next time."""
    file = faulty.open("file", "create")
    file.write(0, [b"data"])
    cell = faulty.cell("cell", 4, writable=True)
    assert cell is not None
    calls: dict[OperationName, Callable[[], object]] = {
        "write": lambda: file.write(0, [b"XXXX"]),
        "allocate": lambda: file.allocate(100),
        "shorten": lambda: file.shorten(0),
        "read": lambda: file.read(0, 4),
        "open": lambda: faulty.open("file", "read"),
        "create": lambda: faulty.open("new", "create"),
        "replace": lambda: faulty.replace("file", "other"),
        "remove": lambda: faulty.remove("file"),
        "sync_directory": faulty.sync_directory,
        "create_folder": faulty.create,
        "exists": faulty.exists,
        "names": faulty.names,
        "lock": lambda: faulty.lock("taken"),
        "is_locked": lambda: faulty.is_locked("taken"),
        "cell": lambda: faulty.cell("file", 4, writable=False),
        "cell_read": cell.read,
        "cell_write": lambda: cell.write(0, b"XXXX"),
        "size": file.size,
    }
    for name, call in calls.items():
        fault = faulty.fail(name, errno=errno.ENOSPC)
        with Refused(errno.ENOSPC) as caught:
            call()
        assert f"cannot {ACTIONS.get(name, name)} " in str(caught.error)
        assert (faulty.names(), file.size(), file.read(0, 9)) == (["cell", "file"], 4, b"data"), name
        assert fault.hits == 1
    file.allocate(100)
    assert file.size() == 100 and faulty.open_files == {file}
    faulty.fail("close")
    with Refused(errno.EIO):
        file.close()
    file.close()
    assert not faulty.open_files and cell.read() == bytes(4)
    cell.close()


def test_failures_are_described_by_a_verb(faulty: FaultyStorage) -> None:
    """Fail a synced write, short by no byte, and a sync of the folder: each error is a sentence."""
    file = faulty.open("file", "create")
    faulty.fail("synced_write", short_bytes=100)
    with pytest.raises(StorageError, match=r"cannot write and sync 'file' .* only 4 of 4 bytes"):
        file.write(0, [b"four"], sync=True)
    file.close()
    faulty.fail("sync_directory")
    with pytest.raises(StorageError, match="cannot sync the folder"):
        faulty.sync_directory()


def test_the_nth_matching_operation_fails(faulty: FaultyStorage) -> None:
    """Counted from the rule's making, by name pattern, once, several times or forever, until cancelled."""
    file, other = faulty.open("a.segment", "create"), faulty.open("b.other", "create")
    file.write(0, [b"x"])
    third = faulty.fail("write", "*.segment", nth=3, times=2)
    outcome = []
    for _ in range(6):
        other.write(0, [b"x"])
        outcome.append(works(lambda: file.write(0, [b"x"])))
    assert outcome == [True, True, False, False, True, True]
    assert third.hits == 2
    forever = faulty.fail("write", "b.*", times=None)
    assert [works(lambda: other.write(0, [b"x"])) for _ in range(4)] == [False] * 4
    forever.cancel()
    assert works(lambda: other.write(0, [b"x"]))
    faulty.fail("write", times=None)
    faulty.clear()
    assert works(lambda: other.write(0, [b"x"]))
    file.close()
    other.close()


def test_a_short_write_leaves_its_first_bytes(faulty: FaultyStorage) -> None:
    """So many bytes arrive and the write is refused, with sync or without."""
    file = faulty.open("file", "create")
    writes: list[tuple[OperationName, bool]] = [("write", False), ("synced_write", True)]
    for name, sync in writes:
        file.shorten(0)
        faulty.fail(name, short_bytes=4)
        with Refused(errno.EIO) as caught:
            file.write(0, [b"abc", b"defg"], sync=sync)
        assert "4 of 7" in str(caught.error)
        assert file.read(0, 100) == b"abcd"
    file.close()


def test_a_landed_failure_is_done_and_reported(faulty: FaultyStorage) -> None:
    """With landed=True the operation has happened although it raised."""
    file = faulty.open("file", "create")
    faulty.fail("write", landed=True)
    faulty.fail("replace", landed=True)
    with Refused(errno.EIO):
        file.write(0, [b"data"])
    with Refused(errno.EIO):
        faulty.replace("file", "other")
    assert (faulty.names(), file.read(0, 9)) == (["other"], b"data")
    file.close()


def test_a_failed_sync_over_files_is_reported(tmp_path: Path) -> None:
    """Over a real file a failed sync and a failed synced write only raise: the bytes are not written by the latter."""
    faulty = FaultyStorage(FileStorage(tmp_path))
    file = faulty.open("file", "create")
    file.write(0, [b"one"])
    faulty.fail("sync")
    faulty.fail("synced_write")
    with Refused(errno.EIO):
        file.sync()
    with Refused(errno.EIO):
        file.write(3, [b"two"], sync=True)
    assert file.read(0, 100) == b"one"
    file.close()


def test_a_hang_waits_until_it_is_released(faulty: FaultyStorage) -> None:
    """A hanging write is in the trace, has done nothing, and lands after its release; others pass it meanwhile."""
    file = faulty.open("file", "create")
    hang = faulty.hang("write")
    thread = threading.Thread(target=lambda: file.write(0, [b"late"]))
    thread.start()
    assert hang.entered.wait(30)
    assert [operation.name for operation in faulty.trace] == ["create", "write"]
    file.write(4, [b"early"])
    assert file.read(0, 9) == bytes(4) + b"early"
    hang.release()
    thread.join()
    assert file.read(0, 9) == b"lateearly"
    file.close()


def test_a_sync_that_hangs_covers_what_was_before_it() -> None:
    """A sync hangs, a write happens, the sync returns: over memory the write is still not durable."""
    inner, storage, file = memory()
    file.write(0, [b"before "])
    hang = storage.hang("sync")
    thread = threading.Thread(target=file.sync)
    thread.start()
    assert hang.entered.wait(30)
    file.write(7, [b"after"])
    assert durable(inner) == b""
    hang.release()
    thread.join()
    assert durable(inner) == b"before "
    file.sync()
    assert durable(inner) == b"before after"


def test_a_hang_can_end_in_a_failure() -> None:
    """A hang and a failure on the same sync: it waits, then fails, and its bytes are lost for good."""
    inner, storage, file = memory()
    file.write(0, [b"data"])
    hang = storage.hang("sync")
    storage.fail("sync")
    errors: list[Any] = []

    def sync() -> None:
        with Refused(errno.EIO) as caught:
            file.sync()
        errors.append(caught.error)

    thread = threading.Thread(target=sync)
    thread.start()
    assert hang.entered.wait(30)
    assert not errors
    storage.clear()
    thread.join()
    assert len(errors) == 1
    file.sync()
    assert durable(inner) == b""


def test_a_delay_makes_operations_slow(faulty: FaultyStorage) -> None:
    """A delayed read takes at least that long; one of another file does not wait for it."""
    for name in ("slow", "fast"):
        file = faulty.open(name, "create")
        file.write(0, [b"data"])
        file.close()
    faulty.delay("read", "slow", seconds=0.05)
    slow, fast = faulty.open("slow", "read"), faulty.open("fast", "read")
    began = time.perf_counter()
    assert slow.read(0, 4) == b"data"
    assert time.perf_counter() - began >= 0.05
    assert fast.read(0, 4) == b"data"
    slow.close()
    fast.close()


def test_skipped_syncs_lie() -> None:
    """A sync, a synced write and a folder's sync that are skipped report success, and a power cut shows the lie."""
    inner, storage, file = memory()
    skips = [storage.skip("sync", "file"), storage.skip("synced_write"), storage.skip("sync_directory")]
    file.write(0, [b"one "])
    file.sync()
    file.write(4, [b"two"], sync=True)
    storage.open("new", "create")
    storage.sync_directory()
    assert file.read(0, 9) == b"one two"
    assert durable(inner) == b""
    assert inner.crash().names() == ["file"]
    assert [skip.hits for skip in skips] == [1, 1, 1]
    storage.clear()
    file.sync()
    storage.sync_directory()
    assert durable(inner) == b"one two"
    assert inner.crash().names() == ["file", "new"]


def test_skips_follow_their_pattern_and_count() -> None:
    """Only the second matching sync is skipped."""
    inner, storage, file = memory()
    storage.skip("sync", "f*", nth=2, times=1)
    storage.skip("sync", "other*")
    promised = []
    for turn in range(3):
        file.write(turn, [b"x"])
        file.sync()
        promised.append(len(durable(inner)))
    assert promised == [1, 1, 3]


def test_wrong_rules_are_refused() -> None:
    """An unknown operation, one that cannot be skipped, and counts below one are OptionsErrors."""
    _, storage, _ = memory()
    with pytest.raises(OptionsError, match="operation='writ'"):
        storage.fail(cast(OperationName, "writ"))
    with pytest.raises(OptionsError, match="operation='write'"):
        storage.skip("write")
    with pytest.raises(OptionsError, match="nth=0"):
        storage.fail("write", nth=0)
    with pytest.raises(OptionsError, match="times=0"):
        storage.hang("write", times=0)


def works(call: Callable[[], object]) -> bool:
    """Say whether a call raised no OSError."""
    try:
        call()
    except OSError:
        return False
    return True
