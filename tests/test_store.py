"""The Store: a dict that survives, sees what was acknowledged, and nothing else."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import walkit
from tests.support.stores import memory_store, run_threads
from walkit.commit.frame import SealedFrame
from walkit.commit.ports import LogPorts
from walkit.commit.ticket import SingleTicket
from walkit.config import StoreOptions
from walkit.errors import (
    LogClosedError,
    LogExistsError,
    OptionsError,
    RecordTooLargeError,
    RecordTypeError,
)
from walkit.log.open import open_writer
from walkit.models import CrashingStorage
from walkit.state import KeyedTable, replay
from walkit.state.applier import FRAMES_WAITING_MAX
from walkit.store import FRAMES_SUBMITTED_MAX, Store

# -- as a mapping


def test_a_store_is_a_dict_of_bytes(tmp_path: Path) -> None:
    """put, [], get, del, delete, in, len, iteration and items, before and after opening again."""
    with Store.open(tmp_path / "s") as store:
        assert store  # though it is empty
        assert (len(store), list(store), store.items()) == (0, [], [])
        result = store.put(b"b", b"2")
        assert (result.first_lsn, result.last_lsn, store.applied_lsn) == (1, 1, 1)
        store[b"a"] = b"1"
        store[b"c"] = b""
        store.put(bytearray(b"d"), memoryview(b"4"))
        store.delete(b"never there")
        del store[b"d"]
        with pytest.raises(KeyError):
            del store[b"d"]
        with pytest.raises(KeyError):
            store[b"d"]
        assert store.log.acked_lsn == 6
    with Store.open(tmp_path / "s") as again:
        assert again.items() == [(b"a", b"1"), (b"b", b"2"), (b"c", b"")]
        assert (again[b"a"], again.get(b"d"), again.get(b"d", b"?")) == (b"1", None, b"?")
        assert (b"c" in again, b"d" in again, bytearray(b"a") in again) == (True, False, True)
        assert again[memoryview(b"b")] == b"2"
        assert (again.lsn_of(b"b"), again.lsn_of(b"d")) == (1, None)
        assert (len(again), list(again)) == (3, [b"a", b"b", b"c"])


def test_what_is_not_bytes_is_refused_before_anything_is_written() -> None:
    """Text, None and numbers as key or value, one or many: RecordTypeError, and the log is empty."""
    with memory_store() as store:
        for bad in ("text", None, 7):
            for call in (
                lambda bad=bad: store.put(bad, b"v"),
                lambda bad=bad: store.put(b"k", bad),
                lambda bad=bad: store.submit(bad, b"v"),
                lambda bad=bad: store.submit(b"k", bad),
                lambda bad=bad: store.delete(bad),
                lambda bad=bad: store.put_many([b"k", bad], [b"v", b"w"]),
                lambda bad=bad: store.put_many([b"k", b"l"], [bad, b"w"]),
                lambda bad=bad: store.get(bad),
                lambda bad=bad: store[bad],
                lambda bad=bad: bad in store,
                lambda bad=bad: store.lsn_of(bad),
            ):
                with pytest.raises(RecordTypeError):
                    call()
        decoded = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([None], pa.binary()))
        for absent in (
            pa.array([None], pa.binary()),
            decoded,
            iter([None]),
            memoryview(b"ab").cast("B", (1, 2)),
        ):
            with pytest.raises(RecordTypeError):
                store.put_many(absent, [b"v"])
        with pytest.raises(RecordTooLargeError):
            store.put(b"k", b"v" * 20_000)
        assert (store.log.appended_lsn, len(store)) == (0, 0)


def test_events_are_history_and_not_state() -> None:
    """Records without a key are in the log, and count for no key, also after opening again; a keyed bundle does."""
    storage = CrashingStorage()
    with memory_store(storage) as store:
        store.log.append(b"event")
        store.put(b"k", b"v")
        with store.transaction() as tx:
            tx.append(b"another event")
            tx.append(b"keyed", key=b"l")
        store.log.append(None, key=b"without a value")
        assert len(store) == 3
    with memory_store(storage) as store:
        assert store.items() == [(b"k", b"v"), (b"l", b"keyed"), (b"without a value", None)]
        assert [record.value for record in store.log.read()] == [
            b"event",
            b"v",
            b"another event",
            b"keyed",
            None,
        ]


def test_many_puts_at_once() -> None:
    """put_many takes lists, Arrow arrays and iterators; the last of a key that comes twice stays."""
    with memory_store() as store:
        result = store.put_many([b"%d" % (i % 500) for i in range(1000)], [b"%d" % i for i in range(1000)])
        assert (result.first_lsn, result.last_lsn, len(store)) == (1, 1000, 500)
        assert store[b"7"] == b"507"
        store.put_many(pa.array([b"7", b"8"]), pa.array([b"x", b"y"]))
        assert (store[b"7"], store[b"8"], store.lsn_of(b"8")) == (b"x", b"y", 1002)
        store.put_many(iter([b"9"]), iter([b"z"]))
        assert (store[b"9"], store.lsn_of(b"9")) == (b"z", 1003)


# -- what is seen


def test_each_thread_reads_its_own_writes() -> None:
    """Eight threads put, submit, delete, transact, and look at once: each finds the records just reported to it."""
    with memory_store() as store:

        def work(thread: int) -> None:
            for i in range(60):
                key, value = b"%d-%d" % (thread, i % 7), b"%d" % i
                store.put(key, value)
                assert store[key] == value
                assert store.applied_lsn <= store.log.acked_lsn
                store.submit(key, value + b"s").result()
                assert store[key] == value + b"s"
                with store.transaction() as tx:
                    tx.put(key, value + b"t")
                assert store.get(key) == value + b"t"
                if i % 3 == 0:
                    del store[key]
                    assert key not in store

        run_threads(8, work)
        replayed = KeyedTable()
        replay(store.log, replayed)
        assert store.items() == replayed.items()


def test_a_ticket_that_is_done_is_seen() -> None:
    """Polling a ticket without waiting at its gate: from the moment done() is true, another thread finds the put."""
    with memory_store() as store:
        for i in range(300):
            ticket = store.submit(b"k", b"%d" % i)
            while not ticket.done():
                time.sleep(0)
            assert store[b"k"] == b"%d" % i


def test_sinks_are_called_before_callers_return() -> None:
    """When the commit path hands a frame to its sink, its tickets are not done yet, and acked_lsn has moved."""
    seen: list[tuple[bool, int, int]] = []

    def sink(frame: SealedFrame) -> None:
        done = any(ticket.done() for ticket in frame.submissions if isinstance(ticket, SingleTicket))
        seen.append((done, frame.last_lsn, log.acked_lsn))

    with open_writer(CrashingStorage(), "x", ports=LogPorts(ack_sink=sink)) as log:
        for i in range(20):
            log.append(b"%d" % i)
            log.submit(b"%d" % i)
        log.sync()
        assert log.acked_lsn == 40
    assert seen[-1][1] == 40
    assert [(False, last, last) for _, last, _ in seen] == seen
    assert [last for _, last, _ in seen] == sorted({last for _, last, _ in seen})


def test_transactions_are_seen_whole() -> None:
    """Two keys that are always set together are equal in every look at the items, while two writers change them."""
    with memory_store() as store:
        stop = threading.Event()

        def work(number: int) -> None:
            if number == 0:
                while not stop.is_set():
                    state = dict(store.items())
                    assert state.get(b"left") == state.get(b"right")
                return
            try:
                for i in range(150):
                    with store.transaction() as tx:
                        tx.put(b"left", b"%d-%d" % (number, i))
                        tx.put(b"right", b"%d-%d" % (number, i))
            finally:
                if number == 1:
                    stop.set()

        run_threads(3, work)
        assert store[b"left"] == store[b"right"]


def test_a_transaction_that_raises_leaves_nothing() -> None:
    """An exception in the block: nothing in the log, nothing in the table."""
    with memory_store() as store:
        store.put(b"k", b"before")

        def broken() -> None:
            with store.transaction() as tx:
                tx.put(b"k", b"after")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            broken()
        assert (store[b"k"], store.log.acked_lsn) == (b"before", 1)


def test_asyncio_puts() -> None:
    """Many tasks put at once without blocking the loop; each finds its value."""

    async def work(store: Store, number: int) -> None:
        result = await store.put_async(b"%d" % number, b"v%d" % number)
        assert store[b"%d" % number] == b"v%d" % number
        assert result.first_lsn > 0

    async def main(store: Store) -> None:
        await asyncio.gather(*(work(store, number) for number in range(200)))

    with memory_store() as store:
        asyncio.run(main(store))
        assert len(store) == 200


def test_frames_do_not_pile_up_without_a_reader() -> None:
    """Submitting alone, putting alone, transactions alone, appending past the store: few frames wait at any time."""
    with memory_store() as store:
        most = 0
        for i in range(2000):
            way = i % 500
            if i < 500:
                ticket = store.submit(b"%d" % way, b"v")
                if way % 5 == 0:
                    ticket.result()
                bound = FRAMES_SUBMITTED_MAX + 2
            elif i < 1000:
                store.put(b"%d" % way, b"w")
                bound = 1
            elif i < 1500:
                with store.transaction() as tx:
                    tx.put(b"%d" % way, b"x")
                bound = FRAMES_SUBMITTED_MAX + 2
            else:
                store.log.append(b"y", b"%d" % way)
                bound = FRAMES_WAITING_MAX + 1
            waiting = store.statistics().frames_waiting
            most = max(most, waiting)
            assert waiting <= bound, i
        assert most > 10  # or this tested nothing
        assert set(store.items()) == {(b"%d" % i, b"y") for i in range(500)}


def test_a_closed_store_refuses(tmp_path: Path) -> None:
    """After close, twice, and after closing the log itself: LogClosedError for reading and writing."""
    for close in (Store.close, lambda store: store.log.close()):
        store = memory_store()
        store.put(b"k", b"v")
        close(store)
        close(store)
        assert store.closed
        for call in (
            lambda store=store: store.get(b"k"),
            lambda store=store: store[b"k"],
            lambda store=store: b"k" in store,
            lambda store=store: len(store),
            lambda store=store: store.items(),
            lambda store=store: list(store),
            lambda store=store: store.to_arrow(),
            lambda store=store: store.put(b"k", b"v"),
            lambda store=store: store.delete(b"k"),
            lambda store=store: store.submit(b"k", b"v"),
            lambda store=store: store.put_many([b"k"], [b"v"]),
            lambda store=store: store.snapshot(),
        ):
            with pytest.raises(LogClosedError):
                call()
        assert "closed" in repr(store)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_copy_refuses() -> None:
    """In a forked child reading and writing raise; the parent goes on."""
    with memory_store() as store:
        store.put(b"k", b"v")
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            told = b""
            for call in (lambda: store.get(b"k"), lambda: store.put(b"k", b"w"), lambda: len(store)):
                try:
                    call()
                except LogClosedError:
                    told += b"refused "
            os.write(write, told)
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(read, 100) == b"refused refused refused "
        os.close(read)
        os.close(write)
        store.put(b"k", b"x")
        assert store[b"k"] == b"x"


def drop(held: list[Store]) -> None:
    """Let go of stores, and collect them."""
    held.clear()
    gc.collect()


def test_a_dropped_store_closes_itself(tmp_path: Path) -> None:
    """Dropped without close(): a ResourceWarning, the lock is free, and everything is there."""
    store = Store.open(tmp_path / "s")
    store.put(b"k", b"v")
    held = [store]
    del store
    with pytest.warns(ResourceWarning, match="without close"):
        drop(held)
    with Store.open(tmp_path / "s") as again:
        assert again[b"k"] == b"v"


def test_opening_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    """Modes, options and places that are not a store's: a typed error, and nothing is held afterwards."""
    path = tmp_path / "s"
    for bad in (
        lambda: Store.open(path, mode="r"),
        Store.open,
        lambda: Store.open(path, storage=CrashingStorage()),
        lambda: Store.open(path, store_options=walkit.LogOptions()),  # type: ignore[arg-type]
        lambda: StoreOptions(journal_slots=1),
        lambda: StoreOptions(journal_slots=8, checkpoint_margin=8),
        lambda: StoreOptions(checkpoint_margin=1),
        lambda: StoreOptions(checkpoint_every=0),
    ):
        with pytest.raises(OptionsError):
            bad()
    assert not path.exists()
    Store.open(path, mode="x").close()
    with pytest.raises(LogExistsError):
        Store.open(path, mode="x")
    with Store.open(path), pytest.raises(walkit.LogLockedError):
        Store.open(path)


def test_how_a_store_looks() -> None:
    """repr, HTML and statistics name the keys, the marks and what waits."""
    with memory_store() as store:
        store.put(b"k", b"v")
        store.delete(b"k")
        store.submit(b"l", b"w").result()
        len(store)
        statistics = store.statistics()
        assert (statistics.keys, statistics.applied_lsn, statistics.acked_lsn) == (1, 3, 3)
        assert (statistics.frames_waiting, statistics.snapshot_lsn) == (0, 0)
        assert "live keys in the table" in statistics._repr_html_()
        assert "1 key at LSN 3" in repr(store)
        html = store._repr_html_()
        assert "live keys" in html
        assert "<script" not in html
