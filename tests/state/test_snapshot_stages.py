"""Writing a snapshot: each stage failing, each crash between two operations, and the order that makes it a promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import walkit
from walkit.errors import LogPoisonedError, SnapshotError, StorageError
from walkit.format.frame import FrameIdentity
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import OperationName
from walkit.record import Batch
from walkit.state import KeyedTable, read_snapshot, snapshot_lsns, take_image, write_snapshot
from walkit.state.snapshot import NEW_NAME, RETRY_STAGES, STAGES, SnapshotWrite
from walkit.testing.state import random_records

IDENTITY = FrameIdentity(7, 3, 99)
OLD, NEW = 20, 40


def nothing(lsn: int) -> None:
    """Make nothing durable."""


def table_at(lsn: int) -> KeyedTable:
    """A table that has applied so many random records; 40 continues after 20."""
    table = KeyedTable()
    batch = random_records(1, NEW)
    for row in list(batch.rows())[:lsn]:
        table.apply(Batch([row[0]], [row[1]], [row[2]], [row[3]]))
    return table


def save(storage: CrashingStorage | FaultyStorage, lsn: int) -> None:
    """Write the snapshot of the table at this LSN."""
    write_snapshot(storage, take_image(table_at(lsn)), identity=IDENTITY, make_durable=nothing)


def prepared() -> tuple[CrashingStorage, FaultyStorage]:
    """A storage that holds a good old snapshot, and the same with faults."""
    memory = CrashingStorage()
    memory.create()
    save(memory, OLD)
    return memory, FaultyStorage(memory)


def check_good(storage: CrashingStorage, lsn: int) -> None:
    """The snapshot at this LSN restores the very state."""
    table = KeyedTable()
    read_snapshot(storage, lsn, table, identity=IDENTITY)
    assert table.to_arrow() == table_at(lsn).to_arrow()


FAULTS: list[tuple[str, OperationName, str, dict[str, int]]] = [
    ("write", "create", NEW_NAME, {}),
    ("write", "write", NEW_NAME, {}),
    ("write", "write", NEW_NAME, {"short_bytes": 10}),
    ("write", "write", NEW_NAME, {"nth": 2}),
    ("sync", "sync", NEW_NAME, {}),
    ("sync", "sync", NEW_NAME, {"landed": True}),
    ("rename", "replace", "snapshot-*", {}),
    ("sync_directory", "sync_directory", "", {}),
]


@pytest.mark.parametrize(("stage", "operation", "file", "how"), FAULTS)
def test_each_stage_fails_by_its_name(
    stage: str, operation: OperationName, file: str, how: dict[str, int]
) -> None:
    """A fault at each stage: SnapshotError with the stage, the stage to retry and the cause; a second try succeeds."""
    memory, faulty = prepared()
    faulty.fail(operation, file, **how)  # type: ignore[arg-type]
    with pytest.raises(SnapshotError) as caught:
        save(faulty, NEW)
    assert (caught.value.stage, caught.value.retry) == (stage, STAGES[stage])
    assert caught.value.retry_stage == RETRY_STAGES[stage]
    assert isinstance(caught.value.__cause__, StorageError)
    assert stage in str(caught.value)
    check_good(memory, OLD)
    assert NEW_NAME not in memory.names() or stage == "rename"
    assert (NEW in snapshot_lsns(memory)) == (stage == "sync_directory")
    save(faulty, NEW)
    check_good(memory.crash(keep="none"), NEW)
    assert NEW_NAME not in memory.names()


def test_every_stage_is_tested() -> None:
    """The table above has a row for each stage, except the log's own, which has its test below."""
    assert {row[0] for row in FAULTS} | {"log"} == set(STAGES)


def test_a_log_that_cannot_be_made_durable_stops_it() -> None:
    """An error of make_durable is stage "log", chained; no snapshot appears, and the new file is gone."""
    memory, _ = prepared()

    def fail(lsn: int) -> None:
        raise LogPoisonedError("no more")

    with pytest.raises(SnapshotError) as caught:
        write_snapshot(memory, take_image(table_at(NEW)), identity=IDENTITY, make_durable=fail)
    assert caught.value.stage == "log"
    assert isinstance(caught.value.__cause__, LogPoisonedError)
    assert memory.names() == [memory.names()[0]]
    assert snapshot_lsns(memory) == [OLD]


def writing(storage: FaultyStorage, make_durable: Callable[[int], object] = nothing) -> SnapshotWrite:
    """A snapshot of the newer table that is about to be written."""
    return SnapshotWrite(storage, take_image(table_at(NEW)), identity=IDENTITY, make_durable=make_durable)


@pytest.mark.parametrize(
    ("stage", "operation", "file", "landed", "again"),
    [
        ("rename", "replace", "snapshot-*", False, ["replace", "sync_directory"]),
        ("rename", "replace", "snapshot-*", True, ["sync_directory"]),
        ("sync_directory", "sync_directory", "", False, ["sync_directory"]),
        ("sync_directory", "sync_directory", "", True, ["sync_directory"]),
    ],
)
def test_a_stage_is_retried_alone(
    stage: str, operation: OperationName, file: str, landed: bool, again: list[str]
) -> None:
    """Fail a rename and a directory sync, done or not: going on changes nothing but that, and the snapshot stands."""
    memory, faulty = prepared()
    faulty.fail(operation, file, landed=landed)
    write = writing(faulty)
    with pytest.raises(SnapshotError) as caught:
        write.finish()
    assert (caught.value.retry_stage, write.stage) == (stage, stage)
    faulty.trace.clear()
    assert write.finish().lsn == NEW
    changes = {"create", "write", "sync", "remove", "replace", "sync_directory"}
    assert [op.name for op in faulty.trace if op.name in changes] == again
    check_good(memory.crash(keep="none"), NEW)
    assert write.stage is None and NEW_NAME not in memory.names()


def test_a_log_that_is_durable_at_the_second_try_lets_it_stand() -> None:
    """make_durable raises once: the file that was written is kept, and going on renames that one."""
    memory, faulty = prepared()
    asked: list[int] = []

    def fail_once(lsn: int) -> None:
        asked.append(lsn)
        if len(asked) == 1:
            raise StorageError("not now")

    write = writing(faulty, fail_once)
    with pytest.raises(SnapshotError) as caught:
        write.finish()
    assert caught.value.retry_stage == "log" and snapshot_lsns(memory) == [OLD]
    faulty.trace.clear()
    write.finish()
    assert asked == [NEW, NEW]
    assert [op.name for op in faulty.trace] == ["replace", "sync_directory"]
    check_good(memory.crash(keep="none"), NEW)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_file_that_failed_is_never_synced_again(operation: OperationName) -> None:
    """A failed write or sync: going on says the same and touches nothing; only a new image in a new file does it."""
    memory, faulty = prepared()
    faulty.fail(operation, NEW_NAME)
    write = writing(faulty)
    with pytest.raises(SnapshotError) as caught:
        write.finish()
    assert caught.value.retry_stage == "write"
    faulty.trace.clear()
    with pytest.raises(SnapshotError) as again:
        write.finish()
    assert again.value is caught.value
    assert faulty.trace == [] and snapshot_lsns(memory) == [OLD]
    save(faulty, NEW)
    check_good(memory.crash(keep="none"), NEW)


@pytest.mark.parametrize("appended", [False, True])
def test_a_store_continues_at_the_stage_that_failed(appended: bool) -> None:
    """Fail a store's directory sync: the next snapshot does that alone, or is a new one where records came since."""
    memory = CrashingStorage()
    faulty = FaultyStorage(memory)
    with walkit.Store.open(storage=faulty) as store:
        store[b"k"] = b"v"
        faulty.fail("sync_directory")
        with pytest.raises(SnapshotError):
            store.snapshot()
        if appended:
            store[b"k"] = b"w"
        faulty.trace.clear()
        assert store.snapshot().lsn == 1 + appended
        files = {op.file for op in faulty.trace if op.name == "create"}
        assert (NEW_NAME in files) == appended
    with walkit.Store.open(storage=memory.crash(keep="none")) as store:
        assert store[b"k"] == (b"w" if appended else b"v")


def test_the_order_of_operations() -> None:
    """Written, then synced, then the log made durable up to the LSN, then renamed, then the folder synced."""
    _, faulty = prepared()
    faulty.trace.clear()
    seen: list[str] = []

    def note(lsn: int) -> None:
        seen.extend(operation.name for operation in faulty.trace)
        seen.append(f"durable {lsn}")
        faulty.trace.clear()

    write_snapshot(faulty, take_image(table_at(NEW)), identity=IDENTITY, make_durable=note)
    assert seen == ["remove", "create", "write", "write", "sync", f"durable {NEW}"]
    assert [operation.name for operation in faulty.trace] == ["replace", "sync_directory"]


def test_what_a_crash_left_is_cleared_away() -> None:
    """A half-written new file of an earlier process is replaced, and never taken for a snapshot."""
    memory, _ = prepared()
    memory.open(NEW_NAME, "create").write(0, [b"half of a snapshot"])
    assert snapshot_lsns(memory) == [OLD]
    save(memory, NEW)
    check_good(memory, NEW)
    assert NEW_NAME not in memory.names()


def test_bytes_that_change_between_two_reads_are_reported() -> None:
    """The file changes after it was verified: stage "restore", and the next restore starts afresh."""
    memory, faulty = prepared()
    name = memory.names()[0]

    class Changing(KeyedTable):
        def restore(self, batches, lsn):  # type: ignore[no-untyped-def]
            file = memory.open(name, "write")
            file.write(file.size() - 100, [b"\xff" * 50])
            super().restore(batches, lsn)

    with pytest.raises(SnapshotError) as caught:
        read_snapshot(faulty, OLD, Changing())
    assert caught.value.stage == "restore"


def test_a_storage_that_cannot_read_is_reported() -> None:
    """A read error is a SnapshotError at the stage it met, with the StorageError chained."""
    for nth, stage in ((1, "header"), (2, "verify")):
        _, faulty = prepared()
        faulty.fail("read", "snapshot-*", nth=nth, times=None)
        with pytest.raises(SnapshotError) as caught:
            read_snapshot(faulty, OLD, KeyedTable())
        assert caught.value.stage == stage
        assert isinstance(caught.value.__cause__, StorageError)
