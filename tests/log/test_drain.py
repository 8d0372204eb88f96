"""Draining: records are taken out of the log, and go only when the last of them has been taken."""

from __future__ import annotations

import pytest

import walkit
from tests.support.logs import faulty_log, lsns, memory_log, tiny
from tests.support.stores import memory_store
from walkit.errors import GapError, LogClosedError, StorageError
from walkit.models import CrashingStorage


def forty() -> walkit.WriteAheadLog:
    """A log of forty records in five segments."""
    log = memory_log()
    log.append_many([bytes(7000)] * 40)
    return log


def test_what_is_drained_goes_when_the_last_record_has_been_taken() -> None:
    """Drain a part: all is there until the iterator is exhausted, then it is gone; the rest and its numbers stay."""
    with forty() as log:
        drained = log.drain(20)
        assert lsns(next(drained) for _ in range(20)) == list(range(1, 21))
        assert log.first_lsn == 1
        with pytest.raises(StopIteration):
            next(drained)
        assert log.first_lsn == 21 and lsns(log.read()) == list(range(21, 41))
        assert lsns(log.drain(10**9)) == list(range(21, 41))
        assert (log.first_lsn, log.acked_lsn, lsns(log.drain(10**9))) == (41, 40, [])
        assert log.append(b"next").first_lsn == 41
        assert lsns(log.drain(40)) == [] and lsns(log.drain(0)) == [] and log.first_lsn == 41


@pytest.mark.parametrize("taken", [0, 1, 19, 20])
def test_a_drain_that_is_left_alone_removes_nothing(taken: int) -> None:
    """Take some records, or all without the end, and stop: all remain, and draining again yields all again."""
    with forty() as log:
        drained = log.drain(20)
        for _ in range(taken):
            next(drained)
        del drained
        assert log.first_lsn == 1 and lsns(log.drain(20)) == list(range(1, 21)) and log.first_lsn == 21


def test_what_comes_after_the_call_is_not_touched() -> None:
    """Append while a drain of everything is under way: it ends at the log's old end, and the new records stay."""
    with forty() as log:
        drained = log.drain(10**9)
        next(drained)
        log.append(b"new")
        assert lsns(drained) == list(range(2, 41)) and lsns(log.read()) == [41]


def test_holds_and_states_keep_yielded_records() -> None:
    """Drain past a hold, and a store's log: everything is yielded, and claimed records stay."""
    with forty() as log:
        log.hold("reader", 12)
        assert lsns(log.drain(30)) == list(range(1, 31)) and log.first_lsn == 12
        assert lsns(log.drain(30)) == list(range(12, 31))
    with memory_store() as store:
        for i in range(20):
            store.put(b"%d" % i, bytes(7000))
        assert len(list(store.log.drain(20))) == 20 and store.log.first_lsn == 1
        store.snapshot()
        assert len(list(store.log.drain(15))) == 15 and store.log.first_lsn == 16


def test_what_is_not_durable_is_made_durable_first() -> None:
    """Drain a log of level none: yielded records are on stable storage, and its numbers are not given again."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=tiny(durability="none")) as log:
        log.append_many([b"x"] * 10)
        assert lsns(log.drain(10)) == list(range(1, 11)) and log.first_lsn == 11
        image = storage.crash(keep="none")
    with walkit.open(storage=image, options=tiny()) as log:
        assert log.append(b"next").first_lsn == 11


def test_two_drains_of_one_range() -> None:
    """Drain the same range twice at once: records that the first removed are a GapError for the other, never a skip."""
    with forty() as log:
        one, two = log.drain(30), log.drain(30)
        assert lsns(one) == list(range(1, 31))
        with pytest.raises(GapError):
            next(two)
        assert lsns(log.read()) == list(range(31, 41))


def test_a_trim_that_fails_is_made_up_for() -> None:
    """Fail the manifest, and the removal, at the end of a drain: every record was yielded; draining again ends it."""
    for operation, file, left in (("synced_write", "manifest", 1), ("remove", "*.segment", 17)):
        storage, log = faulty_log()
        with log:
            log.append_many([bytes(7000)] * 30)
            log.wait_idle()
            storage.fail(operation, file)  # type: ignore[arg-type]
            taken: list[int] = []
            with pytest.raises(StorageError):
                taken.extend(r.lsn for r in log.drain(16))
            assert log.first_lsn == left
            assert lsns(log.drain(16)) == list(range(left, 17)) and log.first_lsn == 17
            log.trim(16)
            named = {s.name for s in log.parts.manifest_store.current.segments}
            assert {n for n in storage.names() if n.endswith(".segment")} == named


def test_a_closed_log_is_refused() -> None:
    """Drain a closed log: LogClosedError at the call; one that was closed under way raises at its end."""
    log = forty()
    under_way = log.drain(40)
    next(under_way)
    log.close()
    with pytest.raises(LogClosedError):
        log.drain(40)
    with pytest.raises(LogClosedError):
        list(under_way)
