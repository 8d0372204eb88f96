"""The second bound on acknowledgement: all callers are released by the smaller of durable here and the limit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import walkit
from tests.support.fake_segments import DriverHarness
from tests.support.interrupts import interrupt_in
from tests.support.logs import SEGMENTS, faulty_log, lsns, memory_log, tiny, values
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.commit.background import AckLimit
from walkit.errors import (
    CommitFailedError,
    CommitTimeoutError,
    LogFullError,
    LogPoisonedError,
    OptionsError,
    WalkitError,
)
from walkit.storage import MemoryStorage
from walkit.store import Store

LATE = CommitTimeoutError("no replica in time")


def committed(log: walkit.WriteAheadLog) -> Any:
    """Append by a transaction."""
    with log.transaction() as tx:
        tx.put(b"k", b"v")
    return tx.result


def called_back(log: walkit.WriteAheadLog) -> Any:
    """Wait for the callback of a ticket."""
    done = threading.Event()
    ticket = log.submit(b"v")
    ticket.add_done_callback(lambda _: done.set())
    assert done.wait(GUARD_S)
    return ticket.result(0)


WAYS: dict[str, Callable[[walkit.WriteAheadLog], Any]] = {
    "append": lambda log: log.append(b"v"),
    "append of two buffers": lambda log: log.append(bytearray(b"v"), key=bytearray(b"k")),
    "append with a timeout": lambda log: log.append(b"v", timeout=GUARD_S),
    "ticket": lambda log: log.submit(b"v").result(GUARD_S),
    "many": lambda log: log.append_many([b"v"]),
    "tasks": lambda log: asyncio.run(log.append_async(b"v")),
    "transaction": committed,
    "delete": lambda log: log.delete(b"k"),
    "callback": called_back,
}


def limited(log: walkit.WriteAheadLog, timeout_ms: int = 60_000, **late: Any) -> AckLimit:
    """Have a log wait for a limit; late records are given up."""
    limit = log.parts.driver.ack_limit
    limit.begin(timeout_ms * 1000, late.get("on_late", lambda: limit.give_up_late(LATE)))
    return limit


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """A log in memory with two records; closing it must never hang."""
    log = memory_log(idle_marker_ms=0)
    log.append_many([b"1", b"2"])
    yield log
    log.parts.driver.ack_limit.end(LATE)
    Task(log.close).result()


@pytest.mark.parametrize("way", WAYS)
def test_each_way_in_returns_when_the_limit_has_reached_its_record(
    log: walkit.WriteAheadLog, way: str
) -> None:
    """Append by each way in: durable and read here, published, not acknowledged, nor observed, until then."""
    limit, seen = limited(log), list[int]()
    log.observe(lambda frames: seen.append(frames.last_lsn))
    task = Task(WAYS[way], log)
    wait_until(lambda: log.durable_lsn == 3, "the write")
    with walkit.open(storage=log.parts.storage, mode="r") as reader:
        assert lsns(reader.read()) == lsns(log.read()) == lsns(log.follow(1, timeout=0)) == [1, 2, 3]
    assert log.sync() == 3 and (log.acked_lsn, limit.unacked_records) == (2, 1)
    assert task.thread.is_alive() and not seen
    limit.raise_to(2)
    assert task.thread.is_alive() and log.acked_lsn == 2
    limit.raise_to(3)
    assert task.result().last_lsn == 3 == log.acked_lsn
    wait_until(lambda: seen == [3], "the observer")


@pytest.mark.parametrize("options", [{"in_flight": 4}, {"durability": "interval", "interval_ms": 1}])
def test_a_crowd_is_released_in_order_whichever_thread_moves_the_limit(options: dict[str, Any]) -> None:
    """Let threads append while others raise the limit to the durable LSN: observers see all in order."""
    log, seen, over = memory_log(**options), list[int](), threading.Event()
    limit = limited(log)
    log.observe(lambda frames: seen.extend(range(frames.first_lsn, frames.last_lsn + 1)))

    def replicate() -> None:
        while not over.is_set():
            limit.raise_to(log.durable_lsn)
            time.sleep(0.0002)

    raisers = [Task(replicate) for _ in range(2)]
    crowd = [Task(lambda: [log.append(b"v").first_lsn for _ in range(40)]) for _ in range(6)]
    found = sorted(lsn for task in crowd for lsn in task.result())
    over.set()
    for raiser in raisers:
        raiser.result()
    assert found == list(range(1, 241))
    Task(log.close).result()
    assert seen == found


def test_what_is_late_fails_its_callers_and_counts_once_the_limit_has_reached_it() -> None:
    """Give up two puts of a Store: CommitFailedError, no poison; its state has them when the limit has, in order."""
    with Store.open(storage=MemoryStorage(), options=tiny(idle_marker_ms=0)) as store:
        log, limit = store.log, limited(store.log, timeout_ms=30)
        seen: list[int] = []
        log.observe(lambda frames: seen.append(frames.last_lsn))
        for value in (b"1", b"2"):
            with pytest.raises(CommitFailedError, match="no replica in time") as caught:
                store.put(b"k", value)
            assert caught.value.outcome == "unknown" and isinstance(caught.value, TimeoutError)
        assert values(log.read()) == [b"1", b"2"] and log.acked_lsn == 0 and dict(store.items()) == {}
        assert (limit.late_records, log.statistics().late_records, limit.unacked_records) == (2, 2, 2)
        log.parts.core.ack_timeout_us = 60_000_000
        task = Task(store.put, b"k", b"3")
        wait_until(lambda: log.durable_lsn == 3)
        limit.raise_to(1)
        assert store[b"k"] == b"1" and log.acked_lsn == 1
        limit.raise_to(3)
        task.result()
        assert store[b"k"] == b"3"
        wait_until(lambda: seen == [1, 2, 3], "the observer")
        assert log.statistics().poisoned == 0


@pytest.mark.parametrize("error", [LATE, None])
def test_the_end_of_the_limit_ends_each_waiting(log: walkit.WriteAheadLog, error: WalkitError | None) -> None:
    """End the limit with a caller waiting: it gets the error, or its result; both records are acknowledged by then."""
    limit = limited(log)
    ticket = log.submit(b"3")
    wait_until(lambda: log.durable_lsn == 3)
    assert limit.end(error) == (error is not None)
    assert (ticket.exception(0) is None) == (error is None) and log.acked_lsn == 3
    assert log.append(b"4").last_lsn == log.acked_lsn == 4


def test_lifted_it_acknowledges_what_is_written_until_it_is_restored(log: walkit.WriteAheadLog) -> None:
    """Lift the limit at the time-out, as "continue" does, and restore it: then the next append waits again."""
    limit = log.parts.driver.ack_limit
    limited(log, timeout_ms=20, on_late=limit.lift)
    assert log.append(b"3").last_lsn == log.acked_lsn == 3
    assert log.append(b"4").last_lsn == 4
    limit.end(None)
    limited(log)
    limit.lift()
    assert log.append(b"5").last_lsn == 5
    limit.restore(1)
    ticket = log.submit(b"6")
    wait_until(lambda: log.durable_lsn == 6)
    assert not ticket.done() and log.acked_lsn == 5
    limit.raise_to(6)
    assert ticket.result(GUARD_S).last_lsn == 6


def test_close_waits_for_replicas_within_the_timeout(log: walkit.WriteAheadLog) -> None:
    """Close with a record waiting that replicas have in time, then with a late one: each caller is released."""
    for in_time in (True, False):
        mine = memory_log()
        limit = limited(mine, timeout_ms=60_000 if in_time else 100)
        ticket = mine.submit(b"1")
        wait_until(lambda: mine.durable_lsn == 1, "the write")  # noqa: B023
        closing = Task(mine.close)
        wait_until(lambda: mine.parts.driver.refusal is not None)  # noqa: B023
        if in_time:
            assert closing.thread.is_alive() and not ticket.done()
            limit.raise_to(1)
        closing.result()
        assert (ticket.exception(0) is None) == in_time
        limit.raise_to(1)
        assert mine.acked_lsn == in_time and limit.end(LATE) == 0


def test_a_failed_write_leaves_what_is_durable_waiting() -> None:
    """Poison the log while a record waits: that one is acknowledged anyway, and failed ones never are."""
    storage, log = faulty_log(idle_marker_ms=0)
    limit = limited(log)
    waiting = log.submit(b"2")
    wait_until(lambda: log.durable_lsn == 2)
    storage.fail("synced_write", SEGMENTS)
    with pytest.raises(CommitFailedError):
        log.append(b"3")
    assert log.statistics().poisoned and not waiting.done()
    limit.raise_to(2)
    assert waiting.result(GUARD_S).last_lsn == 2 == log.acked_lsn
    with pytest.raises(LogPoisonedError):
        log.append(b"4")
    Task(log.close).result()


def test_a_failed_sync_fails_what_it_was_to_make_durable() -> None:
    """Fail the sync of level "interval" under a waiting record: it can be on no replica, so it fails at once."""
    storage, log = faulty_log(durability="interval", interval_ms=60_000, idle_marker_ms=0)
    log.sync()
    limited(log)
    waiting = log.submit(b"2")
    wait_until(lambda: log.parts.core.written_lsn == 2)
    storage.fail("sync", SEGMENTS)
    with pytest.raises(WalkitError):
        log.sync()
    assert isinstance(waiting.exception(GUARD_S), CommitFailedError) and log.acked_lsn == 1
    Task(log.close).result()


def test_a_sink_that_raises_when_the_limit_moves_poisons_the_log() -> None:
    """Let the sink raise at the second of three waiting frames: the first is acknowledged, no caller stays waiting."""

    def sink(frame: Any) -> None:
        if frame.first_lsn == 2:
            raise ZeroDivisionError

    harness = DriverHarness(ack_sink=sink)
    limit = harness.driver.ack_limit
    limit.begin(60_000_000, lambda: None)
    tickets = []
    for lsn in (1, 2, 3):
        tickets.append(harness.queued())
        wait_until(lambda: harness.core.written_lsn == lsn)  # noqa: B023
    limit.raise_to(3)
    assert tickets[0].result(GUARD_S).last_lsn == 1
    assert all(isinstance(t.exception(GUARD_S), CommitFailedError) for t in tickets[1:])
    harness.core._check()
    Task(harness.driver.stop, LogPoisonedError("over", cause="test")).result()


def test_what_waits_is_bounded_and_refused_once_it_is_late() -> None:
    """Fill the bound: nothing more is written; once something is late, LogFullError; with room the log goes on."""
    log = memory_log(queue_bytes_max=4096, frame_bytes_max=4096)
    limit, core = limited(log), log.parts.core
    waiting = [log.submit(bytes(3000))]
    wait_until(lambda: log.durable_lsn == 1)
    waiting.append(log.submit(bytes(3000)))
    wait_until(lambda: log.durable_lsn == 2)
    assert core.is_full
    held = log.submit(b"3")
    time.sleep(0.02)  # a leader would take it now
    assert (log.appended_lsn, core.pending_records) == (2, 1)
    limit.raise_to(1)
    wait_until(lambda: log.durable_lsn == 3)
    assert waiting[0].done() and not held.done()
    waiting.append(log.submit(bytes(3000)))
    wait_until(lambda: log.durable_lsn == 4)
    core.ack_timeout_us = 1
    log.parts.driver.timer.wake()
    assert all(isinstance(t.exception(GUARD_S), CommitFailedError) for t in (*waiting[1:], held))
    with pytest.raises(LogFullError) as caught:
        log.append(b"5")
    assert caught.value.reason == "replicas" and log.appended_lsn == 4
    core.ack_timeout_us = 0
    limit.raise_to(4)
    after = log.submit(b"after")
    wait_until(lambda: log.durable_lsn == 5)
    limit.raise_to(5)
    assert after.result(GUARD_S).last_lsn == 5
    Task(log.close).result()


def test_ctrl_c_ends_the_waiting_and_not_the_record(log: walkit.WriteAheadLog) -> None:
    """Interrupt the main thread while its durable record waits: KeyboardInterrupt, and it is acknowledged later."""
    limit = limited(log)
    shooter = interrupt_in("append_put", "_wait_done")
    with pytest.raises(KeyboardInterrupt):
        log.append(b"3")
    shooter.result()
    assert (log.durable_lsn, log.acked_lsn) == (3, 2)
    limit.raise_to(3)
    assert log.acked_lsn == 3


def test_one_has_the_limit_and_a_lone_write_under_way_is_limited_too() -> None:
    """Begin while a lone writer is in its write: its append waits; a second beginning is refused."""
    harness = DriverHarness()
    limit = harness.driver.ack_limit
    lone = harness.leader_in_write()
    limit.begin(60_000_000, lambda: None)
    with pytest.raises(OptionsError, match="another primary"):
        limit.begin(1, lambda: None)
    harness.place.release()
    wait_until(lambda: harness.core.written_lsn == 1)
    assert harness.core.acked_lsn == 0 and lone.thread.is_alive()
    limit.raise_to(1)
    assert lone.result().result(GUARD_S).last_lsn == 1
    Task(harness.driver.stop, LogPoisonedError("over", cause="test")).result()
