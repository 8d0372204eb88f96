"""The journal of a store: its ring, its refusals before anything is written, and checkpoints that make room."""

from __future__ import annotations

import asyncio
import errno
import pickle
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import walkit
from tests.support.damaged_logs import patch, read
from tests.support.stores import SMALL, memory_store, run_threads
from walkit.commit.driver import WAYS_IN
from walkit.config import LogOptions, StoreOptions
from walkit.errors import (
    CorruptionError,
    JournalFullError,
    LogClosedError,
    LogFullError,
    OptionsError,
    SnapshotError,
)
from walkit.models import CrashingStorage, FaultyStorage
from walkit.state.journal import Ring
from walkit.state.snapshot import snapshot_lsns, snapshot_name
from walkit.store import Store

WAIT_S = 30


def journalled(
    storage: CrashingStorage | FaultyStorage,
    slots: int,
    margin: int | None = 0,
    options: LogOptions = SMALL,
    **more: Any,
) -> Store:
    """A store with a journal, which by itself takes no checkpoint."""
    chosen = StoreOptions(journal_slots=slots, checkpoint_margin=margin)
    return Store.open(storage=storage, options=options, store_options=chosen, **more)


def full(storage: CrashingStorage | FaultyStorage, slots: int = 4, **more: Any) -> Store:
    """A store whose journal is full."""
    store = journalled(storage, slots, **more)
    store.put_many([b"%d" % i for i in range(slots)], [b"v"] * slots)
    assert store.remaining_capacity == 0
    return store


def files_of(storage: CrashingStorage) -> dict[str, bytes]:
    """Every byte of a storage."""
    files = {}
    for name in storage.names():
        if name != "lock":
            file = storage.open(name, "read")
            files[name] = file.read(0, file.size())
    return files


def test_the_journal_admits_every_way_of_appending() -> None:
    """Open a store with a journal: each way in of its driver, and of one without, is the guarded or the plain one."""
    for store in (memory_store(), journalled(CrashingStorage(), 8)):
        driver = store.log.parts.driver
        ways = [name for name in vars(driver) if name.startswith(("append", "enqueue"))]
        assert sorted(ways) == sorted(WAYS_IN)
        assert [
            name for name in ways if hasattr(getattr(driver, name), "__self__") is (store.journal is not None)
        ] == []
        store.close()


@given(st.integers(1, 12), st.lists(st.integers(1, 30), max_size=12))
def test_the_ring_finds_what_a_dict_of_slots_finds(slots: int, frames: list[int]) -> None:
    """Frames of any length, also longer than the ring: each slot has the newest LSN that came to it."""
    ring, model, lsn = Ring(slots), {}, 0
    for number, records in enumerate(frames):
        ring.put(lsn + 1, lsn + records, 64 * number)
        model.update({n % slots: (n, 64 * number) for n in range(lsn + 1, lsn + records + 1)})
        lsn += records
    expected = dict(model.values())
    assert {n: ring.position_of(n) for n in range(-1, lsn + slots + 1)} == {
        n: expected.get(n) for n in range(-1, lsn + slots + 1)
    }


WAYS: dict[str, Callable[[Store], object]] = {
    "put": lambda s: s.put(b"k", b"v"),
    "put in time": lambda s: s.put(b"k", b"v", timeout=5),
    "setitem": lambda s: s.__setitem__(b"k", b"v"),
    "delete": lambda s: s.delete(b"0"),
    "submit": lambda s: s.submit(b"k", b"v").result(),
    "put_many": lambda s: s.put_many([b"k"], [b"v"]),
    "put_async": lambda s: asyncio.run(put_async(s)),
    "transaction": lambda s: transact(s, 1),
    "log.append": lambda s: s.log.append(b"event"),
    "log.submit_many": lambda s: s.log.submit_many([b"1", b"2"]).result(),
    "log.append_many": lambda s: s.log.append_many([b"1", b"2"]),
    "log.append_arrow": lambda s: s.log.append_arrow(pa.table({"value": pa.array([b"v"])})),
    "log.append_bundle": lambda s: s.log.append_bundle(pa.record_batch({"a": [1]})),
    "submit on a loop": lambda s: asyncio.run(submit_on_a_loop(s)),
}


async def put_async(store: Store) -> walkit.AppendResult:
    return await store.put_async(b"k", b"v")


async def submit_on_a_loop(store: Store) -> walkit.AppendResult:
    return await store.submit(b"k", b"v")


def transact(store: Store, records: int) -> None:
    with store.transaction() as tx:
        for number in range(records):
            tx.put(b"%d" % number, b"v")


@pytest.mark.parametrize("way", WAYS)
def test_a_full_journal_refuses_every_way_in_before_a_byte_is_written(way: str) -> None:
    """Fill the slots, try once more: JournalFullError, and no file has changed; a checkpoint makes room for it."""
    storage = CrashingStorage()
    with full(storage) as store:
        before, items = files_of(storage), store.items()
        with pytest.raises(JournalFullError) as refused:
            WAYS[way](store)
        assert files_of(storage) == before
        assert (store.log.appended_lsn, store.remaining_capacity, store.items()) == (4, 0, items)
        error = pickle.loads(pickle.dumps(refused.value))
        assert (error.slots, error.checkpoint_lsn, error.reason, error.failed) == (4, 0, "journal", "")
        assert error.acknowledged_prefix == 0 and isinstance(error, LogFullError)
        store.checkpoint()
        assert store.remaining_capacity == 4
        WAYS[way](store)
        assert store.log.appended_lsn > 4


def test_records_are_looked_up_and_slots_taken_again() -> None:
    """Wrap around twice, over checkpoints: unsaved records are found."""
    storage = CrashingStorage()
    with journalled(storage, 8) as store:
        journal = store.journal
        assert journal is not None and (journal.slots, journal.lookup(1)) == (8, None)
        hold = store.log.hold("all", 1)
        for lsn in range(1, 20):
            if not store.remaining_capacity:
                store.checkpoint()
            assert store.put(b"k%d" % lsn, b"v%d" % lsn).last_lsn == lsn
        assert (journal.checkpoint_lsn, store.remaining_capacity) == (16, 5)
        found = {lsn: entry for lsn in range(25) if (entry := journal.lookup(lsn)) is not None}
        assert list(found) == list(range(12, 20))
        for lsn, entry in found.items():
            record = journal.record(lsn)
            assert record is not None and (record.lsn, record.key) == (lsn, b"k%d" % lsn)
            assert (entry.lsn, entry.slot) == (lsn, lsn % 8)
        hold.release()
        store.checkpoint()
        assert journal.lookup(19) is None and journal.record(19) is None
        assert "5 slots" not in repr(journal) and "8 free" in repr(journal)
        assert "room for records" in journal._repr_html_()
        assert store.statistics().journal_slots == 8
    with memory_store(storage) as store:
        assert (store.journal, store.remaining_capacity) == (None, None)


def test_records_are_read_by_lsn_also_after_compaction() -> None:
    """Compact segments that the ring points into: the rest is read, superseded records are None."""
    storage = CrashingStorage()
    with journalled(storage, 200) as store:
        for i in range(60):
            store.put(b"%d" % (i % 7 if i % 5 else i), b"v%d" % i * 700)
        store.compact()
        left = {record.lsn: record for record in store.log.read()}
        assert 7 < len(left) < 60
        journal = store.journal
        assert journal is not None
        assert {lsn: journal.record(lsn) for lsn in range(1, 61)} == {
            lsn: left.get(lsn) for lsn in range(1, 61)
        }
    with journalled(storage, 200) as store:
        journal = store.journal
        assert journal is not None
        assert {lsn: journal.record(lsn) for lsn in range(1, 61)} == {
            lsn: left.get(lsn) for lsn in range(1, 61)
        }


def test_a_record_that_is_damaged_is_refused() -> None:
    """Damage the frame of a record of an open journal: reading it names the segment; the next record is read."""
    storage = CrashingStorage()
    with journalled(storage, 8) as store:
        journal = store.journal
        assert journal is not None
        for n in range(2):
            store.put(b"%d" % n, b"v" * 1000)
        name = max(name for name in storage.names() if name.endswith(".segment"))
        patch(storage, name, read(storage, name).index(b"v" * 1000), b"w")
        with pytest.raises(CorruptionError) as caught:
            journal.record(1)
        assert caught.value.segment == name
        record = journal.record(2)
        assert record is not None and record.key == b"1"


def test_a_margin_of_nothing_refuses_also_where_checkpoints_come_by_themselves() -> None:
    """checkpoint_every beyond the slots and no margin: the journal fills up, and refuses without waiting."""
    options = StoreOptions(journal_slots=4, checkpoint_margin=0, checkpoint_every=100)
    with Store.open(storage=CrashingStorage(), options=SMALL, store_options=options) as store:
        store.put_many([b"%d" % i for i in range(4)], [b"v"] * 4)
        with pytest.raises(JournalFullError):
            store.put(b"k", b"v")
        assert store.remaining_capacity == 0


def test_reopening_finds_what_was_not_saved() -> None:
    """Open again after a kill: the ring has every record above the checkpoint, and as much room as before."""
    storage = CrashingStorage()
    with journalled(storage, 16) as store:
        store.put_many([b"a"] * 5, [b"1"] * 5)
        store.checkpoint()
        store.put_many([b"b"] * 3, [b"2"] * 3)
        store.put(b"c", b"3")
        for image in (storage.process_kill(), storage.crash()):
            with journalled(image, 16) as again:
                assert again.remaining_capacity == store.remaining_capacity == 12
                journal, before = again.journal, store.journal
                assert journal is not None and before is not None
                assert [journal.lookup(n) for n in range(6, 11)] == [before.lookup(n) for n in range(6, 11)]
                assert journal.record(9) == before.record(9)
                assert again.put(b"d", b"4").last_lsn == 10
                assert journal.lookup(10) is not None


def test_fewer_slots_than_live_records_are_refused() -> None:
    """Shrink the ring below the records that are not saved: refused with both numbers, and the segments stay."""
    storage = CrashingStorage()
    with journalled(storage, 16) as store:
        store.put_many([b"%d" % i for i in range(10)], [b"v"] * 10)
        items = store.items()
    before = files_of(storage)
    with pytest.raises(OptionsError, match="10 records are in no checkpoint") as refused:
        journalled(storage, 9)
    assert (refused.value.option, refused.value.wanted, refused.value.stored) == ("journal_slots", 9, 10)
    assert {n: b for n, b in files_of(storage).items() if n.endswith("segment")} == {
        n: b for n, b in before.items() if n.endswith("segment")
    }
    with journalled(storage, 10) as store:
        assert (store.items(), store.remaining_capacity) == (items, 0)
        store.checkpoint()
    with journalled(storage, 2) as store:
        assert (store.items(), store.remaining_capacity) == (items, 2)


def test_a_checkpoint_is_forced_before_the_journal_is_full() -> None:
    """Four writers over a ring of 64 slots and eight left over: no append is refused, and the log stays short."""
    storage = CrashingStorage()
    with journalled(storage, 64, None) as store:

        def work(number: int) -> None:
            for i in range(150):
                store.put(b"%d-%d" % (number, i % 10), b"%d" % i)
                assert store.log.appended_lsn <= store._checkpointer.snapshot_lsn + 64

        run_threads(4, work)
        store.put_many([b"k"] * 500, [b"v"] * 500)
        items = store.items()
        assert store.log.acked_lsn == 1100 and store.log.first_lsn > 1000
        assert 0 <= (store.remaining_capacity or 0) <= 64
    with journalled(storage, 64) as store:
        assert store.items() == items


def test_room_that_somebody_else_took_is_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the slots that a checkpoint has freed just before the append that waited for them: it waits for the next."""
    storage = FaultyStorage(CrashingStorage())
    store, hang = hung_checkpoint(storage)
    assert store.journal is not None
    admission = store.journal._admission
    wait_for, hangs = admission._news.wait_for, [hang]

    def take_it_first(*arguments: Any) -> bool:
        hangs[-1].release()
        moved: bool = wait_for(*arguments)
        if len(hangs) == 1:
            # Nobody frees them again before they are looked at.
            hangs.append(storage.hang("sync", "snapshot.new"))
            room = store.remaining_capacity or 0
            store.put_many([b"quicker"] * room, [b"v"] * room)
        return moved

    monkeypatch.setattr(admission._news, "wait_for", take_it_first)
    try:
        assert store.put(b"k", b"v").last_lsn > 9
    finally:
        hangs[-1].release()
    assert len(hangs) == 2 and store[b"quicker"] == b"v"
    store.close()


def test_a_failed_checkpoint_drops_no_append() -> None:
    """Fail every snapshot: appends continue while they have slots, then are refused; once repaired they continue."""
    storage = FaultyStorage(CrashingStorage())
    with journalled(storage, 16, 8) as store:
        fault = storage.fail("create", "snapshot.new", times=None)
        for lsn in range(1, 17):
            assert store.put(b"k", b"%d" % lsn).last_lsn == lsn
        with pytest.raises(JournalFullError) as refused:
            store.put(b"k", b"lost")
        assert isinstance(refused.value.__cause__, SnapshotError) and "stage 'write'" in refused.value.failed
        assert fault.hits and store.log.appended_lsn == 16 and store[b"k"] == b"16"
        fault.cancel()
        assert store.put(b"k", b"17").last_lsn == 17
    with memory_store(storage) as store:
        assert store[b"k"] == b"17"


def test_what_was_refused_for_another_reason_leaves_its_slots() -> None:
    """A full disk and a full queue refuse appends that were let in: their slots are there for the next ones."""
    storage = FaultyStorage(CrashingStorage())
    with journalled(storage, 4) as store:
        no_room = storage.fail("allocate", "*.segment", errno=errno.ENOSPC, times=None)
        for _ in range(3):
            with pytest.raises(LogFullError, match="disk"):
                store.put_many([b"a", b"b", b"c"], [b"v"] * 3)
        assert store.remaining_capacity == 4
        no_room.cancel()
        assert store.put_many([b"a", b"b", b"c", b"d"], [b"v"] * 4).last_lsn == 4
        assert store.remaining_capacity == 0


def test_a_transaction_that_never_fits_is_refused() -> None:
    """A transaction of more records than slots is an OptionsError, checkpoint or not; many puts are cut to fit."""
    with journalled(CrashingStorage(), 8) as store:
        with pytest.raises(OptionsError, match="never fit") as refused:
            transact(store, 9)
        assert (refused.value.wanted, refused.value.stored) == (9, 8)
        with pytest.raises(JournalFullError) as many:
            store.put_many([b"%d" % i for i in range(11)], [b"v"] * 11)
        assert many.value.acknowledged_prefix == store.log.acked_lsn == 8
        assert sorted(store) == [b"%d" % i for i in range(8)]


def hung_checkpoint(storage: FaultyStorage, **more: Any) -> tuple[Store, Any]:
    """A store with a full journal, whose checkpoint hangs."""
    store = journalled(storage, 8, 4, **more)
    hang = storage.hang("sync", "snapshot.new")
    for i in range(8):
        store.put(b"%d" % i, b"v")
    assert hang.entered.wait(WAIT_S)
    return store, hang


def test_appends_wait_for_the_checkpoint_that_makes_room() -> None:
    """Hang a checkpoint with the journal full: an append and an await wait, one in time gives up, readers go on."""
    storage = FaultyStorage(CrashingStorage())
    store, hang = hung_checkpoint(storage)
    with pytest.raises(JournalFullError):
        store.put(b"late", b"v", timeout=0.01)
    done: list[object] = []

    async def awaits() -> None:
        ticks = 0
        waiting = asyncio.ensure_future(put_async(store))
        while not waiting.done():
            await asyncio.sleep(0)
            ticks += 1
            if ticks == 50:
                with pytest.raises(JournalFullError):
                    store.submit(b"late", b"v")
                hang.release()
        done.append(await waiting)

    threads = [threading.Thread(target=lambda: done.append(store.put(b"p", b"v"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert store[b"7"] == b"v"
    asyncio.run(awaits())
    for thread in threads:
        thread.join(WAIT_S)
    assert len(done) == 3 and store.log.acked_lsn == 11
    store.close()


def test_closing_ends_the_wait_for_room() -> None:
    """Close while an append waits for a checkpoint that hangs: it ends in LogClosedError, nothing of it is written."""
    storage = FaultyStorage(CrashingStorage())
    store, hang = hung_checkpoint(storage)
    errors: list[BaseException] = []

    def put() -> None:
        try:
            store.put(b"late", b"v")
        except LogClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    closing = threading.Thread(target=store.close)
    closing.start()
    thread.join(WAIT_S)
    assert errors and closing.is_alive()
    hang.release()
    closing.join(WAIT_S)
    with memory_store(storage) as again:
        assert b"late" not in again and again.log.acked_lsn == 8
    with pytest.raises(LogClosedError):
        _ = store.remaining_capacity


def test_on_full_raise_does_not_wait() -> None:
    """With on_full="raise" an append that finds the journal full is refused while a checkpoint is under way."""
    options = LogOptions(
        segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, on_full="raise", idle_marker_ms=0
    )
    store, hang = hung_checkpoint(FaultyStorage(CrashingStorage()), options=options)
    with pytest.raises(JournalFullError):
        store.put(b"k", b"v")
    hang.release()
    store.close()


def test_the_thread_that_checkpoints_is_never_made_to_wait() -> None:
    """Append from a callback of the checkpoint's own events with the journal full: refused at once, no deadlock."""
    storage = FaultyStorage(CrashingStorage())
    outcomes: list[object] = []
    numbers = count()

    def note(name: str, _: dict[str, Any]) -> None:
        if name == "walkit.checkpoint.fail" and not outcomes:
            try:
                while True:
                    store.put(b"from within %d" % next(numbers), b"v")
            except JournalFullError as error:
                outcomes.append(error)

    store = journalled(storage, 8, 4, events=note)
    fault = storage.fail("create", "snapshot.new", times=1)
    refused = 0
    for i in range(20):
        try:
            store.put(b"%d" % i, b"v")
        except JournalFullError:  # it waited for the checkpoint that fails
            refused += 1
    assert fault.hits == 1 and len(outcomes) == 1 and refused < 2
    store.close()


def test_a_snapshot_that_went_bad_forces_a_checkpoint_at_opening() -> None:
    """Damage the newest snapshot under a hold: the older one and a longer replay give the state, and room is made."""
    storage = CrashingStorage()
    with journalled(storage, 8) as store:
        store.log.hold("all", 1)
        for first in (0, 8):
            store.put_many([b"%d" % i for i in range(first, first + 8)], [b"v"] * 8)
            store.checkpoint()
        store.put_many([b"x", b"y"], [b"v"] * 2)
        items = store.items()
    storage.open(snapshot_name(16), "write").write(5000, [b"damage"])
    with journalled(storage, 8) as store:
        assert (store.items(), store.remaining_capacity) == (items, 0)
        with pytest.raises(JournalFullError):
            store.put(b"z", b"v")
        assert store.checkpoint().lsn == 18 and store.remaining_capacity == 8
    storage.open(snapshot_name(18), "write").write(5000, [b"damage"])
    with journalled(storage, 32, 31) as store:
        assert store.put(b"z", b"v").last_lsn == 19
    assert snapshot_lsns(storage)[-1] >= 18


def test_a_poisoned_log_reports_the_failure_before_a_full_journal() -> None:
    """Fail a write with a full journal: appends report the failure, and no append waits."""
    storage = FaultyStorage(CrashingStorage())
    store = journalled(storage, 4, 1)
    store.put(b"k", b"v")
    storage.fail("synced_write", "*.segment", times=None)
    with pytest.raises(walkit.CommitFailedError):
        store.put(b"k", b"w")
    for _ in range(5):
        with pytest.raises(walkit.LogPoisonedError):
            store.put(b"k", b"w")
    assert store.checkpoint().lsn == 1  # acknowledged records are durable, and can be saved
    store.close()
