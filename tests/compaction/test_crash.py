"""Compaction and crashes: power cuts with a checkpoint beside it, drops, forks, readers."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.compaction.histories import State, opened_state
from tests.support.crash_recorder import Filmed
from tests.support.logs import run_python
from tests.support.stores import SMALL, memory_store
from tests.support.threads import wait_until
from walkit.errors import GapError, LogClosedError
from walkit.models import CrashingStorage, FaultyStorage
from walkit.segments.manifest_store import load_manifest
from walkit.storage import FileStorage
from walkit.store import Store


@cache
def made(case: str) -> tuple[CrashingStorage, State, int]:
    """A closed store that can be compacted, its state, and its last LSN."""
    storage = CrashingStorage()
    state: State = {}
    epochs = 2 if case == "several groups" else 1
    for epoch in range(epochs):
        with memory_store(storage) as store:
            for i in range(20):
                key, value = b"%d" % (i % 4), b"%d" % ((epoch + i) % 10) * 12000
                store.put(key, value)
                state[key] = value
                if case == "several groups" and i % 7 == 3:
                    store.log.append(b"event %d" % i)
                    with store.transaction() as tx:
                        tx.put(b"left", b"%d" % i)
                        tx.delete(b"0")
                    state[b"left"] = b"%d" % i
                    del state[b"0"]
            store.delete(b"3")
            del state[b"3"]
            if case == "with a snapshot":
                store.snapshot()
            for i in range(8):
                store.put(b"last", b"%d" % i * 12000)
            state[b"last"] = b"7" * 12000
            last_lsn = store.log.acked_lsn
    return storage, state, last_lsn


def check(image: CrashingStorage, state: State, last_lsn: int, what: str) -> None:
    """Open the log after a crash: same state, same next LSN, nothing left over; it can be compacted, and written to."""
    assert opened_state(image) == state, what
    with memory_store(image) as store:
        named = {s.name for s in store.log.parts.manifest_store.current.segments}
        assert {n for n in image.names() if n.endswith(".segment")} == named, what
        assert store.log.acked_lsn == last_lsn, what
        store.compact()
        assert store.put(b"after", b"it").first_lsn == last_lsn + 1, what
    assert opened_state(image) == {**state, b"after": b"it"}, what
    assert "lost+found/" not in image.names(), what


def beside(storage: Filmed, waits_at: tuple[Any, str], waiting: str, working: str) -> Store:
    """Let one work wait at an operation while the other one runs, which is filmed; then let it end."""
    store = memory_store(storage)
    hang = storage.hang(*waits_at)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            getattr(store, waiting)()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert hang.entered.wait(30)
    storage.running = True
    getattr(store, working)()
    hang.release()
    thread.join(30)
    storage.running = False
    assert not thread.is_alive() and not errors, errors
    return store


def test_a_store_dropped_after_a_compaction_closes_itself() -> None:
    """Drop a compacted store without close: a warning, and the next opening finds it closed and whole."""
    base, state, last_lsn = made("several groups")
    storage = base.process_kill()
    gc.collect()
    store = memory_store(storage)
    store.compact()
    with pytest.warns(ResourceWarning, match="dropped without close"):
        del store
    check(storage, state, last_lsn, "dropped")


def test_a_store_dropped_during_a_compaction() -> None:
    """Drop the last name of a store whose compaction a thread still runs: it ends, then the log closes itself."""
    base, state, last_lsn = made("several groups")
    storage = base.process_kill()
    faulty = FaultyStorage(storage)
    gc.collect()
    store = memory_store(faulty)
    hang = faulty.hang("sync", "compaction.new")
    thread = threading.Thread(target=store.compact)
    thread.start()
    assert hang.entered.wait(30)
    del store
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hang.release()
        thread.join(30)
        del thread
        gc.collect()
        wait_until(lambda: not storage.is_locked("lock"), "the log closes itself")
        wait_until(lambda: bool(caught), "a warning")
    assert "dropped without close" in str(caught[0].message)
    check(storage, state, last_lsn, "dropped")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("moment", ["before", "within"])
@pytest.mark.parametrize("work", ["compact", "checkpoint", "snapshot"])
def test_a_forked_child_is_refused_and_harms_nothing(work: str, moment: str) -> None:
    """Fork before a compaction, checkpoint or snapshot and in its midst: the child is refused, the parent goes on."""
    base, state, last_lsn = made("several groups")
    storage = base.process_kill()
    faulty = FaultyStorage(storage)
    store = memory_store(faulty)
    hang = faulty.hang("sync", "compaction.new" if work == "compact" else "snapshot.new")
    thread = threading.Thread(target=getattr(store, work))
    if moment == "within":
        thread.start()
        assert hang.entered.wait(30)
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                getattr(store, work)()
            except LogClosedError:
                code = 0
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    if moment == "before":
        thread.start()
    hang.release()
    thread.join(30)
    assert not thread.is_alive()
    store.close()
    check(storage, state, last_lsn, moment)


def read_on(reader: walkit.LogReader, expected: dict[int, walkit.Record], ends: Callable[[], bool]) -> int:
    """Read and follow from another handle until told to end; records are right, and only following has gaps to tell."""
    gaps = 0
    while True:
        last = ends()
        for first in (1, 12, reader.durable_lsn - 3):
            lsns = []
            for record in reader.read(first):
                assert record == expected[record.lsn]
                lsns.append(record.lsn)
            assert lsns == sorted(set(lsns)) and lsns[-1] == max(expected)
            try:
                for record in reader.follow(first, timeout=0):
                    assert record == expected[record.lsn]
            except GapError:
                gaps += 1
        if last:
            return gaps


# Slow: a compaction for each operation; the first two of each kind are in the default case.
@pytest.mark.parametrize("numbers", [(1, 2), pytest.param((3, 4), marks=pytest.mark.slow)], ids=str)
def test_a_reader_of_another_handle_beside_a_compaction(numbers: tuple[int, ...]) -> None:
    """Stop a compaction at each operation, read through another handle: right records; GapErrors to followers alone."""
    base, _, _ = made("several groups")
    expected = {r.lsn: r for r in walkit.open(storage=base, mode="r").read()}
    gaps = 0
    for operation, file in [
        *((n, "*") for n in ("create", "replace", "remove", "sync_directory")),
        ("sync", "*.new"),
    ]:
        for nth in numbers:
            storage = base.process_kill()
            faulty = FaultyStorage(storage)
            reader = walkit.open(storage=storage, mode="r")
            begun = reader.read(1)
            first = next(iter(begun))
            with memory_store(faulty) as store:
                hang = faulty.hang(operation, file, nth=nth)  # type: ignore[arg-type]
                thread = threading.Thread(target=store.compact)
                thread.start()
                while thread.is_alive() and not hang.entered.wait(0.001):
                    pass
                gaps += read_on(reader, expected, lambda: True)
                hang.release()
                thread.join(30)
                rest = [first, *begun]
                assert rest == list(expected.values())
    assert gaps > 0


READER = """
    import sys, walkit
    from tests.compaction.test_crash import read_on
    reader = walkit.open(sys.argv[1], mode="r")
    expected = {r.lsn: r for r in walkit.open(sys.argv[2], mode="r").read()}
    rounds = 0
    print("ready", flush=True)
    def ends():
        global rounds
        rounds += 1
        return rounds >= 5
    print(read_on(reader, expected, ends))
"""


def test_a_reader_of_another_process_beside_a_compaction(tmp_path: Path) -> None:
    """Compact on disk again and again while another process reads: right records; GapErrors to followers alone."""
    base, state, _ = made("several groups")
    for name in ("compacted", "as it was"):
        target = FileStorage(tmp_path / name)
        target.create()
        for file in base.names():
            source = base.open(file, "read")
            copied = target.open(file, "create")
            copied.write(0, [source.read(0, source.size())])
            copied.close()
    done: list[Any] = []
    thread = threading.Thread(
        target=lambda: done.append(run_python(READER, tmp_path / "compacted", tmp_path / "as it was"))
    )
    with Store.open(tmp_path / "compacted", options=SMALL) as store:
        thread.start()
        exact = 5
        while thread.is_alive():
            store.compact(exact_from_lsn=exact)
            exact += 5
        thread.join()
        store.compact()
        assert dict(store.items()) == state
    assert done[0].stdout.startswith("ready")
    assert load_manifest(FileStorage(tmp_path / "compacted")).complete_from_lsn > 1
    assert walkit.verify(tmp_path / "compacted").ok
