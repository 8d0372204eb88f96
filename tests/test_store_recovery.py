"""The Store opened again: after closing, kills, power cuts, damage, and with snapshots of every kind of trouble."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walkit
from tests.support.examples import examples
from tests.support.stores import SMALL, copy, filled, memory_store, run_threads
from walkit.errors import CommitFailedError, LogPoisonedError, SnapshotError
from walkit.models import CrashingStorage, FaultyStorage
from walkit.state import KeyedTable, read_snapshot, replay, snapshot_name
from walkit.store import Store

KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"d"])
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.binary(max_size=20)),
    st.tuples(st.just("delete"), KEYS, st.none()),
    st.tuples(st.just("submit"), KEYS, st.binary(max_size=20)),
    st.tuples(st.just("event"), st.none(), st.binary(max_size=20)),
    st.tuples(
        st.just("transaction"),
        st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=5)))),
        st.none(),
    ),
    st.tuples(st.sampled_from(["snapshot", "reopen", "kill", "power cut"]), st.none(), st.none()),
)


@settings(max_examples=examples(60))
@given(st.lists(OPERATIONS, max_size=40))
def test_the_state_is_that_of_a_dict(operations: list[tuple[str, object, object]]) -> None:
    """Random operations with snapshots, closings, kills and power cuts in between: always what a dict would hold."""
    storage = CrashingStorage()
    store = memory_store(storage)
    model: dict[bytes, bytes] = {}
    for name, key, value in operations:
        if name == "put":
            store.put(key, value)
            model[key] = value  # type: ignore[index,assignment]
        elif name == "submit":
            store.submit(key, value).result()
            model[key] = value  # type: ignore[index,assignment]
        elif name == "delete":
            store.delete(key)
            model.pop(key, None)  # type: ignore[call-overload]
        elif name == "event":
            store.log.append(value)
        elif name == "transaction":
            with store.transaction() as tx:
                for k, v in key:  # type: ignore[attr-defined]
                    if v is None:
                        tx.delete(k)
                        model.pop(k, None)
                    else:
                        tx.put(k, v)
                        model[k] = v
        elif name == "snapshot":
            store.snapshot()
        else:
            image = storage.process_kill() if name == "kill" else storage.crash(keep="none")
            store.close()
            storage = storage if name == "reopen" else image
            store = memory_store(storage)
        assert store.items() == sorted(model.items())
    full = KeyedTable()
    replay(store.log, full)
    assert store.to_arrow() == full.to_arrow()
    store.close()


CHILD = """
import sys, threading
from walkit.store import Store
store = Store.open(sys.argv[1])
out = threading.Lock()
def work(thread):
    i = 0
    while True:
        key, value = b"%d-%d" % (thread, i % 50), b"%d" % i
        if i % 10 == 9:
            with store.transaction() as tx:
                tx.put(b"left-%d" % thread, value)
                tx.put(b"right-%d" % thread, value)
        else:
            store.put(key, value)
            with out:
                sys.stdout.write(f"{thread} {i}\\n")
                sys.stdout.flush()
        if thread == 0 and i % 100 == 50:
            store.snapshot()
        i += 1
for n in range(4):
    threading.Thread(target=work, args=(n,), daemon=True).start()
threading.Event().wait()
"""


def test_a_killed_process_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """SIGKILL while four threads write: every reported put is there, or a later one of its key; no half transaction."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(600)]
    child.kill()
    rest = child.stdout.read()
    child.wait()
    child.stdout.close()
    lines += rest.splitlines(keepends=True)
    told: dict[bytes, int] = {}
    for line in lines:
        if line.endswith("\n"):
            thread, i = map(int, line.split())
            key = b"%d-%d" % (thread, i % 50)
            told[key] = max(told.get(key, 0), i)
    with Store.open(tmp_path / "s") as store:
        assert store.recovery.verdict == "recovered"
        assert len(told) > 20
        for key, i in told.items():
            assert int(store[key] or b"-1") >= i, key
        for thread in range(4):
            assert store.get(b"left-%d" % thread) == store.get(b"right-%d" % thread)
        full = KeyedTable()
        replay(store.log, full)
        assert store.items() == full.items()
        store.put(b"next", b"one")


def test_the_recovery_report_has_the_replay() -> None:
    """The log's phases, then snapshot and replay, one after the other; what they did is in their detail."""
    storage = CrashingStorage()
    with memory_store(storage) as store:
        assert [phase.name for phase in store.recovery.phases][-2:] == ["snapshot", "replay"]
        for i in range(30):
            store.put(b"%d" % i, b"v")
        store.snapshot()
        store.put(b"x", b"y")
    told: list[tuple[str, int, int]] = []
    with Store.open(storage=storage, options=SMALL, progress=lambda *step: told.append(step)) as store:
        phases = {phase.name: phase for phase in store.recovery.phases}
        assert list(phases)[-2:] == ["snapshot", "replay"]
        assert phases["snapshot"].detail == {"lsn": 30, "records": 30, "skipped": []}
        assert (phases["replay"].detail["first_lsn"], phases["replay"].detail["records"]) == (31, 1)
        starts = [phase.started_s for phase in store.recovery.phases]
        assert starts == sorted(starts)
        assert ("replay", 1, 1) in told
        assert "replay" in store.recovery._repr_html_()
        assert store.log.recovery.phases == store.recovery.phases[:-2]


def test_a_snapshot_beside_writers_shows_one_moment() -> None:
    """Snapshots among transactions of four writers: each restores to the state of the log at its very LSN."""
    storage = CrashingStorage()
    with memory_store(storage) as store:

        def work(number: int) -> None:
            for i in range(80):
                with store.transaction() as tx:
                    tx.put(b"left-%d" % number, b"%d" % i)
                    tx.put(b"right-%d" % number, b"%d" % i)
                if number == 0 and i % 8 == 0:
                    info = store.snapshot()
                    table = KeyedTable()
                    replay(store.log, table, last_lsn=info.lsn)
                    read_snapshot(storage, info.lsn, restored := KeyedTable())
                    assert restored.to_arrow() == table.to_arrow()

        run_threads(4, work)


# -- when things go wrong


def test_a_poisoned_store_shows_what_was_acknowledged() -> None:
    """A failed write: put raises what the log raises, the table keeps to acknowledged records, and can be read."""
    memory = CrashingStorage()
    faulty = FaultyStorage(memory)
    store = memory_store(faulty)
    store.put(b"k", b"good")
    faulty.fail("synced_write", "*.segment", times=None)
    with pytest.raises(CommitFailedError):
        store.put(b"k", b"bad")
    for call in (
        lambda: store.put(b"k", b"worse"),
        lambda: store.delete(b"k"),
        lambda: store.submit(b"k", b"w"),
    ):
        with pytest.raises(LogPoisonedError):
            call()
    assert (store[b"k"], store.applied_lsn, store.log.acked_lsn) == (b"good", 1, 1)
    faulty.clear()
    assert store.snapshot().lsn == 1
    store.close()
    with memory_store(memory.crash(keep="none")) as again:
        assert again.items() == [(b"k", b"good")]
        again.put(b"k", b"better")


@pytest.mark.parametrize("durability", ["sync", "interval", "none"])
def test_a_snapshot_makes_its_log_durable_first(durability: str) -> None:
    """Whatever the level: after a snapshot a power cut loses nothing up to its LSN, and the log reaches it."""
    storage = CrashingStorage()
    options = walkit.LogOptions(durability=durability, idle_marker_ms=0)  # type: ignore[arg-type]
    with Store.open(storage=storage, options=options) as store:
        for i in range(20):
            store.put(b"%d" % i, b"v")
        info = store.snapshot()
        assert store.log.durable_lsn >= info.lsn == 20
        image = storage.crash(keep="none")
    with Store.open(storage=image, options=options) as again:
        assert (again.log.acked_lsn, len(again), again.statistics().snapshot_lsn) == (20, 20, 20)


def trimmed(storage: CrashingStorage) -> None:
    """Fill a store of two snapshots over several segments, and trim the log up to the newest."""
    with memory_store(storage) as store:
        for i in range(30):
            store.put(b"%02d" % i, b"v" * 8000)
            if i in (9, 19):
                store.snapshot()
    with memory_store(storage) as store:
        assert store.log.trim(20) == 20


def test_a_log_that_does_not_reach_back_needs_its_snapshot() -> None:
    """Trimmed up to the snapshot: it opens with it; without it, or with it damaged: typed refusals, nothing held."""
    storage = CrashingStorage()
    trimmed(storage)
    with memory_store(storage) as store:
        assert len(store) == 30
    newest, older = (snapshot_name(lsn) for lsn in (20, 10))
    broken, absent = storage.process_kill(), storage.process_kill()
    copy(broken, broken, newest, b"nonsense")
    for _ in range(2):
        with pytest.raises(SnapshotError, match="cut short"):
            memory_store(broken)
    absent.remove(newest)
    absent.remove(older)
    with pytest.raises(walkit.HistoryTrimmedError):
        memory_store(absent)
    with walkit.open(storage=absent) as log:
        assert log.first_lsn == 21


def behind_its_snapshot() -> CrashingStorage:
    """A log of five puts, of the same epoch as a snapshot at LSN 10 beside it: what a disk leaves that lies."""
    storage = CrashingStorage()
    with memory_store(storage) as store:
        for i in range(10):
            if i == 5:
                image = storage.process_kill()
            store.put(b"%d" % i, b"v")
        name = store.snapshot().name
    copy(storage, image, name)
    return image


def test_a_log_that_ends_before_its_snapshot_is_corrupt() -> None:
    """A snapshot promises that the log was durable up to it: a log that ends before has lost acknowledged records."""
    image = behind_its_snapshot()
    for _ in range(2):
        with pytest.raises(walkit.CorruptionError, match="acknowledged records are missing") as caught:
            memory_store(image)
        assert caught.value.first_lost_lsn == 6
    with walkit.open(storage=image) as log:
        assert log.acked_lsn == 5


def test_a_snapshot_of_another_history_is_passed_over() -> None:
    """The log was cut and written otherwise: record 10 has another epoch now, and the snapshot is not used."""
    image = behind_its_snapshot()
    with walkit.open(storage=image) as log:
        for i in range(10):
            log.append(b"other", b"%d" % i)
    with memory_store(image) as store:
        (skipped,) = store.recovery.phases[-2].detail["skipped"]
        assert "another history" in skipped
        assert store.items() == [(b"%d" % i, b"other") for i in range(10)]


def test_a_snapshot_of_another_log_is_passed_over() -> None:
    """A file copied from another store is recognised by its log id."""
    one, other = CrashingStorage(), CrashingStorage()
    filled(one, 5, (5,))
    filled(other, 5)
    copy(one, other, snapshot_name(5))
    with memory_store(other) as store:
        (skipped,) = store.recovery.phases[-2].detail["skipped"]
        assert "another log" in skipped
        assert len(store) == 5


def test_an_opening_that_fails_half_way_frees_the_lock() -> None:
    """The replay meets damage, or the progress callback raises: the error comes out, and the lock is free."""
    storage = CrashingStorage()
    filled(storage, 30)

    def stop(phase: str, done: int, total: int) -> None:
        if phase == "replay":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        Store.open(storage=storage, options=SMALL, progress=stop)
    segment = next(name for name in storage.names() if name.endswith(".segment"))
    file = storage.open(segment, "write")
    file.write(file.size() // 2, [b"\xff" * 8])
    for _ in range(2):
        with pytest.raises(walkit.CorruptionError):
            memory_store(storage)
