"""Transactions: all or nothing, in one frame, used once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walkit
from tests.support.examples import examples
from tests.support.logs import SEGMENTS, faulty_log, headers, memory_log, reopened, values, view_of
from tests.support.makers import joined_flags
from tests.support.threads import GUARD_S, Task, wait_until
from walkit import Kind, Record
from walkit.errors import (
    CommitFailedError,
    LogClosedError,
    LogPoisonedError,
    RecordTooLargeError,
    RecordTypeError,
)
from walkit.format.frame import decode_frame


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """An empty log in memory."""
    with memory_log() as made:
        yield made


def joined(log: walkit.WriteAheadLog) -> list[list[bool]]:
    """Return, per frame, which records are joined to the next."""
    view = view_of(log)
    return [joined_flags(decode_frame(header, frame)).tolist() for header, frame, _ in view.frames(1)]


def test_its_operations_are_one_frame_with_one_result(log: walkit.WriteAheadLog) -> None:
    """Put, delete and append in one: consecutive LSNs in one frame, joined except the last, result as of append."""
    log.append(b"before")
    with log.transaction() as tx:
        tx.put(b"k", b"v", timestamp=7)
        tx.delete(b"k")
        tx.append(b"event")
        tx.append(None, key=b"only a key")
        assert len(tx) == 4 and tx.result is None
    assert tx.result is not None
    assert (tx.result.first_lsn, tx.result.last_lsn) == (2, 5)
    assert headers(log)[1].records == 4
    assert (headers(log)[1].position, headers(log)[1].end_position) == tx.result[2:4]
    assert joined(log) == [[False], [True, True, True, False]]
    kinds = [(r.kind, r.key, r.value) for r in log.read(2)]
    assert kinds == [
        (Kind.PUT, b"k", b"v"),
        (Kind.DELETE, b"k", None),
        (Kind.PUT, None, b"event"),
        (Kind.PUT, b"only a key", None),
    ]
    assert [r.timestamp is None for r in log.read(2)] == [False, True, True, True]


def test_one_operation_is_a_transaction_too(log: walkit.WriteAheadLog) -> None:
    """Put once: the record is not joined to the next one."""
    with log.transaction() as tx:
        tx.put(b"", b"")
    log.append(b"after")
    assert joined(log) == [[False], [False]]
    assert next(log.read()) == Record(1, Kind.PUT, b"", b"", None)


def test_several_share_a_frame_and_stay_apart(log: walkit.WriteAheadLog) -> None:
    """Queue two transactions and a record during a held write: one frame, the joins end with each transaction."""
    storage, log2 = faulty_log()
    hang = storage.hang("synced_write", SEGMENTS)
    log2.submit(b"hangs")
    assert hang.entered.wait(GUARD_S)

    def run() -> None:
        with log2.transaction() as tx:
            tx.put(b"a", b"1")
            tx.put(b"b", b"2")

    tasks = [Task(run) for _ in range(2)]
    wait_until(lambda: log2.statistics().queue_records == 4)
    log2.submit(b"single")
    hang.release()
    for task in tasks:
        task.result()
    log2.sync()
    assert joined(log2)[-1] == [True, False, True, False, False]
    log2.close()


def test_an_exception_appends_nothing(log: walkit.WriteAheadLog) -> None:
    """Raise in the block: nothing is appended, the exception comes through, the log goes on."""
    tx = log.transaction()

    def fails() -> None:
        with tx:
            tx.put(b"k", b"v")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fails()
    assert (tx.result, log.appended_lsn) == (None, 0)
    assert log.append(b"after").first_lsn == 1


def test_an_empty_one_gives_none(log: walkit.WriteAheadLog) -> None:
    """Leave the block without an operation: no frame, no result."""
    with log.transaction() as tx:
        pass
    assert tx.result is None
    assert log.statistics().frames_written == 0


@pytest.mark.parametrize("ending", ["committed", "empty", "failed"])
def test_it_is_used_once(log: walkit.WriteAheadLog, ending: str) -> None:
    """Enter a second time after each ending: refused, and its remaining operations are never written."""
    tx = log.transaction()
    try:
        with tx:
            if ending != "empty":
                tx.put(b"k", b"v")
            if ending == "failed":
                raise KeyError
    except KeyError:
        pass
    before = log.appended_lsn
    with pytest.raises(LogClosedError, match="once"):
        tx.__enter__()
    with pytest.raises(LogClosedError):
        tx.put(b"late", b"v")
    assert log.appended_lsn == before == (1 if ending == "committed" else 0)


def test_operations_need_the_block_and_a_key(log: walkit.WriteAheadLog) -> None:
    """Use one outside its block, and put or delete without a key: refused."""
    tx = log.transaction()
    with pytest.raises(LogClosedError, match="with"):
        tx.append(b"v")
    with tx:
        for attempt in (partial(tx.put, None, b"v"), partial(tx.delete, None)):
            with pytest.raises(ValueError, match="needs a key"):
                attempt()
        with pytest.raises(RecordTypeError):
            tx.put("text", b"v")
        tx.put(b"k", b"v")
    assert log.appended_lsn == 1


def test_over_the_limit_is_refused_whole(log: walkit.WriteAheadLog) -> None:
    """Put more than one frame holds: RecordTooLargeError that says transaction, nothing written, the log usable."""
    tx = log.transaction()

    def too_much() -> None:
        with tx:
            for _ in range(10):
                tx.put(b"k", bytes(900))

    with pytest.raises(RecordTooLargeError, match="transaction") as caught:
        too_much()
    assert caught.value.what == "transaction"
    assert log.appended_lsn == 0
    with log.transaction() as fits:
        for _ in range(8):
            fits.put(b"k", bytes(900))
    assert fits.result is not None and fits.result.last_lsn == 8


def test_on_a_closed_and_on_a_poisoned_log() -> None:
    """Commit after close and after a failed write: the typed error, and no result."""
    storage, log = faulty_log()
    storage.fail("synced_write", SEGMENTS)
    failing = log.transaction()

    def commit(tx: walkit.log.append.Transaction) -> None:
        with tx:
            tx.put(b"k", b"v")

    with pytest.raises(CommitFailedError):
        commit(failing)
    with pytest.raises(LogPoisonedError):
        commit(log.transaction())
    log.close()
    with pytest.raises((LogClosedError, LogPoisonedError)):
        commit(log.transaction())
    assert failing.result is None
    assert values(reopened(storage.inner))[0] == b"first"


@settings(max_examples=examples(40))
@given(st.lists(st.lists(st.binary(max_size=60), min_size=1, max_size=12), min_size=1, max_size=20))
def test_every_transaction_comes_back_whole(groups: list[list[bytes]]) -> None:
    """Commit random groups over several segments; cut at its joins, the log gives them back."""
    with memory_log() as log:
        for group in groups:
            with log.transaction() as tx:
                for value in group:
                    tx.put(b"k" * 500, value)
        flat = [flag for flags in joined(log) for flag in flags]
        found: list[list[bytes | None]] = [[]]
        for record, more in zip(log.read(), flat, strict=True):
            found[-1].append(record.value)
            if not more:
                found.append([])
    assert found == [*groups, []]
