"""Replicas and their logs that nothing stopped or closed: dropped, collected in cycles, forked, or open at the end."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.imports import import_all, log_of_epochs, replica_on
from tests.support.logs import run_python
from tests.support.threads import GUARD_S, wait_until
from walkit.errors import LogClosedError
from walkit.replication import Primary, Replica
from walkit.replication.logs.imported_log import ImportedLog
from walkit.segments.manifest_store import LOCK_NAME, load_manifest
from walkit.storage import FileStorage, MemoryStorage


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> Iterator[None]:
    """Collections look at what these tests make, and not at all that the process has."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def own_events() -> Iterator[None]:
    """Nothing of an earlier test is collected within one of these."""
    gc.collect()
    yield
    gc.collect()


@pytest.fixture(scope="module")
def primary() -> Iterator[Primary]:
    """A primary that serves three records."""
    with walkit.open(storage=MemoryStorage()) as log, Primary(log) as primary:
        for number in range(3):
            log.append(b"%d" % number, key=b"k")
        yield primary


def threads_of_replicas() -> list[str]:
    """The names of the threads that replicas and their logs have."""
    names = [thread.name for thread in threading.enumerate()]
    return [n for n in names if n.startswith(("walkit-replica", "walkit-maintenance", "walkit-close"))]


def test_a_dropped_log_of_a_replica_closes_itself_with_a_warning() -> None:
    """Drop a replica's log that has imported: it is collected, warns, seals and frees its lock, and its thread ends."""
    source, storage = log_of_epochs(23, 17), MemoryStorage()
    log = replica_on(storage, load_manifest(source))
    import_all(log, source)
    assert any(name.startswith("walkit-maintenance") for name in threads_of_replicas())
    reference, events = weakref.ref(log), log.events
    seen: list[str] = []
    events.add_listener(lambda name, _: seen.append(name))
    with pytest.warns(
        ResourceWarning, match=r"the replica's log at .* dropped without close\(\); it is closed"
    ):
        del log
    assert reference() is None and not storage.is_locked(LOCK_NAME)
    assert seen[-1] == "walkit.log.drop" and load_manifest(storage).unsealed == ()
    wait_until(lambda: not threads_of_replicas(), "its threads to end")


def test_a_closed_one_is_dropped_silently() -> None:
    """Close a replica's log and stop a replica, then drop them: no warning."""
    log, replica = ImportedLog(MemoryStorage()), Replica(MemoryStorage(), "127.0.0.1:1").start()
    log.close()
    replica.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del log, replica
        gc.collect()


@pytest.mark.parametrize("starts", [True, False])
def test_a_dropped_replica_stops_and_frees_its_lock(primary: Primary, starts: bool) -> None:
    """Drop a replica, at work or new, and keep its log and store: its threads end, the lock is free, all is closed."""
    storage = MemoryStorage()
    replica = Replica(storage, primary.address)
    if starts:
        replica.start().wait_for(3, GUARD_S)
    reference, log, store = weakref.ref(replica), replica.log, replica.store
    with pytest.warns(
        ResourceWarning, match=r"the replica at .* dropped without stop\(\); it is stopped now"
    ) as told:
        del replica
    assert [w.category for w in told] == [ResourceWarning], "one warning, not another for its log"
    assert reference() is None and not storage.is_locked(LOCK_NAME)
    assert log.closed and log.durable_lsn == 3 * starts
    with pytest.raises(LogClosedError):
        store.get(b"k")
    wait_until(lambda: not threads_of_replicas(), "its threads to end")
    with Replica(storage, primary.address) as again:
        again.wait_for(3, GUARD_S)


def test_a_log_that_is_read_is_not_dropped() -> None:
    """Follow a replica's log that only the follower refers to: it stays open while it is read, then closes."""
    source, storage = log_of_epochs(23, 17), MemoryStorage()
    log = replica_on(storage, load_manifest(source))
    import_all(log, source)
    last, following = log.durable_lsn, log.follow(1, timeout=0)
    del log
    assert [next(following).lsn for _ in range(last)][-1] == last
    assert storage.is_locked(LOCK_NAME)
    with pytest.warns(ResourceWarning):
        del following
    assert not storage.is_locked(LOCK_NAME)


class Owner:
    """Holds a thing, and itself."""

    def __init__(self, thing: object) -> None:
        self.thing, self.me = thing, self


def in_a_replica(storage: MemoryStorage, address: str) -> Owner:
    """A replica in a cycle."""
    return Owner(Replica(storage, address))


def test_a_replica_in_a_cycle_is_collected_on_its_own_thread(primary: Primary) -> None:
    """Collect a dropped replica on its own thread, during an import: it stops, and nothing waits forever."""
    dropped, caught = threading.Event(), list[Any]()

    class Collecting(MemoryStorage):
        """Collects as a replica's own thread makes a segment."""

        def sync_directory(self, folder: str = "") -> None:
            super().sync_directory(folder)
            if threading.current_thread().name.startswith("walkit-replica") and not caught:
                assert dropped.wait(GUARD_S)
                with warnings.catch_warnings(record=True) as seen:
                    warnings.simplefilter("always")
                    gc.collect()
                    caught.extend(seen)

    storage = Collecting()
    gc.disable()
    try:
        owner = in_a_replica(storage, primary.address)
        assert isinstance(owner.thing, Replica)
        owner.thing.start()
        del owner
        dropped.set()
        wait_until(lambda: caught and not storage.is_locked(LOCK_NAME), "the dropped replica to stop")
    finally:
        gc.enable()
    assert [w.category for w in caught] == [ResourceWarning]
    with Replica(storage, primary.address) as again:
        again.wait_for(3, GUARD_S)


FORKS = """
    import gc, os, sys
    from walkit.errors import LogLockedError
    from walkit.replication import Replica
    from walkit.replication.logs.imported_log import ImportedLog
    from walkit.storage import FileStorage

    place, other = FileStorage(sys.argv[1]), sys.argv[1] + "-other"
    log, replica = ImportedLog(place), Replica(other, "127.0.0.1:1")
    log.adopt(7, created_us=1, ack_order="append", extra={})
    for drops in (False, True):
        if os.fork() == 0:
            assert log.closed and replica.status().state == "stopped"
            if not drops:
                sys.exit(0)
            del log, replica
            gc.collect()
            os._exit(0)
        assert os.wait()[1] == 0
    for again in (lambda: ImportedLog(place), lambda: Replica(other, "127.0.0.1:1")):
        try:
            again()
        except LogLockedError as error:
            assert error.same_process
        else:
            raise SystemExit("the lock was lost")
    log.close()
    replica.stop()
"""


def test_a_forked_child_frees_nothing_of_the_parents(tmp_path: Path) -> None:
    """Fork beside a replica and a log, let children exit or drop their copies: silent, and the parent's stay locked."""
    run_python(FORKS, tmp_path / "log")
    log = ImportedLog(FileStorage(str(tmp_path / "log")))
    assert log.manifest.log_id == 7
    log.close()


def test_at_the_end_of_the_process_nothing_is_said(tmp_path: Path) -> None:
    """End a process with a primary, replicas at work, alone and new, and a replica's log: no noise, they open again."""
    script = """
        import sys
        import walkit
        from walkit.replication import Primary, Replica
        from walkit.replication.logs.imported_log import ImportedLog
        from walkit.storage import FileStorage
        log = walkit.open(sys.argv[1] + "-primary")
        log.append(b"x")
        primary = Primary(log).start()
        replica = Replica(sys.argv[1], primary.address).start()
        replica.wait_for(1, 30)
        new = Replica(sys.argv[1] + "-new", "127.0.0.1:1")
        alone = Replica(sys.argv[1] + "-alone", "127.0.0.1:1").start()
        imported = ImportedLog(FileStorage(sys.argv[1] + "-imported"))
    """
    assert run_python(script, tmp_path / "r").stdout == ""
    for name in ("r-new", "r-alone"):
        Replica(tmp_path / name, "127.0.0.1:1").stop()
    with (
        walkit.open(tmp_path / "r-primary") as log,
        Primary(log) as primary,
        Replica(tmp_path / "r", primary.address) as replica,
    ):
        replica.wait_for(log.append(b"y"), GUARD_S)
        assert [r.value for r in replica.log.read()] == [b"x", b"y"]
