"""Attacks on a bootstrap's folder and on the watch of a log's end: what is left half done is mended or goes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import walkit
from tests.replication.callers import WAIT_S, until
from tests.replication.test_bootstrap import assert_equal, follower, gathered, killed, trimmed
from tests.replication.test_grpc import quick
from tests.stores import SMALL
from walkit._threads import LogThread
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import OperationName
from walkit.replication import Primary, Replica, promote
from walkit.replication.end_watch import EndWatch


def test_a_promotion_in_the_midst_of_a_bootstrap_leaves_no_parts(tmp_path: Path) -> None:
    """Kill a bootstrap among its parts and promote the replica: no part of the other log stays, and it is written."""
    with trimmed(tmp_path / "p") as log, Primary(log) as primary:
        assert killed(tmp_path / "r", primary, log.acked_lsn, ("write", "bootstrap-*.part", 20))
    assert gathered(tmp_path / "r")
    assert not promote(tmp_path / "r").already
    assert gathered(tmp_path / "r") == []
    with walkit.open(tmp_path / "r") as promoted:
        promoted.append(b"new")
    assert walkit.verify(tmp_path / "r").ok


@pytest.mark.parametrize("missing", [0, -1])
def test_a_ready_bootstrap_whose_part_is_gone_begins_again(tmp_path: Path, missing: int) -> None:
    """Kill a bootstrap that is ready, remove its first or last part: the next run fetches it anew and ends equal."""
    with trimmed(tmp_path / "p") as log, Primary(log) as primary:
        assert killed(tmp_path / "r", primary, log.acked_lsn, ("replace", "*.segment", 1))
        parts = [name for name in gathered(tmp_path / "r") if name.endswith(".part")]
        (tmp_path / "r" / parts[missing]).unlink()
        with follower(tmp_path / "r", primary) as replica:
            replica.wait_for(log.append(b"the last").last_lsn, WAIT_S)
            assert_equal(log, replica)
    assert walkit.verify(tmp_path / "r").ok
    assert gathered(tmp_path / "r") == []


def test_a_watch_whose_thread_could_not_start_watches_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the thread of a watch once, then add again: the second callback is called."""
    watch, told = EndWatch(CrashingStorage(), lambda: (next(ends), 0)), threading.Event()
    ends = iter(range(1 << 60))

    def refused(_: LogThread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(LogThread, "start", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            watch.add(lambda: None)
    unwatch = watch.add(told.set)
    try:
        until(told.is_set, "the news")
    finally:
        unwatch()


@pytest.mark.parametrize(
    ("operation", "pattern", "synced"),
    [
        ("sync", "bootstrap-0*.part", False),
        ("sync", "bootstrap-snapshot-*.part", False),
        ("synced_write", "bootstrap-0*.part", True),
    ],
    ids=["segment", "snapshot", "header"],
)
def test_a_sync_that_fails_while_a_log_is_gathered_loses_nothing(
    tmp_path: Path, operation: OperationName, pattern: str, synced: bool
) -> None:
    """Fail one sync of a part, let the replica try again, cut the power: what it has acknowledged is there."""
    crashing = CrashingStorage()
    storage = FaultyStorage(crashing)
    with walkit.Store.open(tmp_path / "p", options=SMALL) as store:
        for number in range(300):
            store.put(b"key %d" % (number % 150), b"%d" % number * 1_000)
        store.checkpoint()
        for number in range(60):
            store.put(b"key %d" % number, b"newer %d" % number * 1_000)
        last, wanted = store.log.acked_lsn, dict(store.items())
        fault = storage.fail(operation, pattern)
        with Primary(store) as primary:
            for _ in range(2):  # a replica that its failed disk has ended is opened again
                replica = Replica(storage, primary.address, options=SMALL, backoff=quick())
                try:
                    replica.start().wait_for(last, WAIT_S)
                except walkit.StorageError:
                    assert synced, "a part that could not be synced is fetched again by itself"
                    replica.stop()
                    continue
                break
            assert replica.log.durable_lsn == last
            after = crashing.crash(keep="none")
            replica.stop()
            assert fault.hits, "the fault was not met"
            with Replica(after, primary.address, options=SMALL) as again:
                assert again.log.end.last_lsn == last
                assert dict(again.store.items()) == wanted
