"""A failed write or sync: each caller's error, no caller waits forever, and reopening is right."""

from __future__ import annotations

import threading
from typing import Any, get_args

import pytest

import walkit
from tests.support.logs import SEGMENTS, FaultyMemory, faulty_log, lsns, reopened, segment_set, tiny, values
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.errors import CommitFailedError, LogPoisonedError, StorageError
from walkit.models import CrashingStorage
from walkit.models.faults import OperationName

WAYS_TO_FAIL: dict[str, dict[str, Any]] = {
    "nothing arrives": {},
    "everything arrives": {"landed": True},
    "the header arrives": {"short_bytes": 96},
    "half of it arrives": {"short_bytes": 200},
    "not even a header": {"short_bytes": 10},
}


@pytest.mark.parametrize("way", WAYS_TO_FAIL.values(), ids=WAYS_TO_FAIL)
def test_a_failed_write_fails_all_callers_and_reopening_recovers(way: dict[str, Any]) -> None:
    """Fail a write with others queued: one event, unknown for the frame, unwritten for the rest; a prefix survives."""
    events: list[tuple[str, dict[str, Any]]] = []
    storage, log = faulty_log(events=lambda *event: events.append(event))
    hang = storage.hang("synced_write", SEGMENTS)
    storage.fail("synced_write", SEGMENTS, **way)
    told: list[str] = []
    in_flight = log.submit(b"in flight" * 40)
    assert hang.entered.wait(GUARD_S)
    in_flight.add_done_callback(lambda t: told.append(type(t.exception(0)).__name__))
    queued = [log.submit(b"queued") for _ in range(3)]
    queued[-1].add_done_callback(lambda t: told.append(type(t.exception(0)).__name__))
    waiting = [Task(log.append, b"waits") for _ in range(3)]
    wait_until(lambda: log.statistics().queue_records == 6)
    hang.release()
    with pytest.raises(CommitFailedError) as failed:
        in_flight.result(GUARD_S)
    assert failed.value.outcome == "unknown" and failed.value.acked_lsn == 1
    assert isinstance(failed.value.__cause__, StorageError)
    for ticket in queued:
        with pytest.raises(LogPoisonedError):
            ticket.result(GUARD_S)
    assert [type(t.join().error) for t in waiting] == [LogPoisonedError] * 3
    with pytest.raises(LogPoisonedError, match="open it again"):
        log.append(b"later")
    wait_until(lambda: told == ["CommitFailedError", "LogPoisonedError"])
    assert log.statistics().poisoned == 1 and "poisoned" in log._repr_html_()
    assert values(log.read()) == [b"first"], "what is acknowledged can still be read"
    log.close()
    wait_until(lambda: "walkit.log.poison" in dict(events), "the event, which a thread of its own sends")
    (poison,) = [facts for name, facts in events if name == "walkit.log.poison"]
    assert poison["acked_lsn"] == 1 and "EIO" in poison["cause"]
    survived = values(reopened(storage.inner))
    expected: list[bytes | None] = [b"first", b"in flight" * 40]
    assert survived == (expected if way.get("landed") else expected[:1])
    assert values(reopened(storage.inner.crash(keep="none"))) in [expected, expected[:1]]


@pytest.mark.parametrize("durability", ["interval", "none"])
@pytest.mark.parametrize("landed", [True, False])
def test_a_failed_sync_poisons_and_what_looks_clean_is_not_believed(durability: str, landed: bool) -> None:
    """Fail sync(): StorageError there, poison for all; a reopening believes the device, not the page cache."""
    storage, log = faulty_log(
        durability=durability, **({"interval_ms": 86_400_000} if durability == "interval" else {})
    )
    log.sync()
    log.append(b"never synced")
    storage.fail("sync", SEGMENTS, landed=landed)
    with pytest.raises(StorageError):
        log.sync()
    assert log.durable_lsn == 1
    for attempt in (
        log.sync,
        lambda: log.append(b"x"),
        lambda: log.submit(b"x"),
        lambda: log.append_many([b"x"]),
    ):
        with pytest.raises(LogPoisonedError):
            attempt()
    log.close()
    found = values(reopened(storage.inner))
    assert found == ([b"first", b"never synced"] if landed else [b"first"])
    assert values(reopened(storage.inner.crash(keep="none"))) == found


def test_the_timers_failed_sync_poisons_as_well() -> None:
    """Fail the sync of the interval's timer: the next append is refused, nothing hangs."""
    storage = FaultyMemory()
    storage.fail("sync", SEGMENTS, times=None)
    log = walkit.open(storage=storage, options=tiny(durability="interval", interval_ms=1))
    log.append(b"acknowledged, and never durable")
    wait_until(lambda: log.statistics().poisoned, "the timer's sync")
    with pytest.raises(LogPoisonedError):
        log.append(b"x")
    assert (log.acked_lsn, log.durable_lsn) == (1, 0)
    log.close()


def test_a_failing_write_in_a_busy_log_ends_all_waits() -> None:
    """Fail one write among 16 appending threads, many times over: all get an error, acknowledged records survive."""
    for nth in range(1, 16):
        storage, log = faulty_log()
        storage.fail("synced_write", SEGMENTS, nth=nth, short_bytes=nth * 7 if nth % 2 else None)
        acknowledged: list[int] = []

        def work(log: walkit.WriteAheadLog = log, acknowledged: list[int] = acknowledged) -> str:
            try:
                for _ in range(200):
                    acknowledged.append(log.append(bytes(300)).last_lsn)
            except (CommitFailedError, LogPoisonedError) as error:
                return type(error).__name__
            return "none"

        told = [task.result() for task in [Task(work) for _ in range(16)]]
        assert "none" not in told
        Task(log.close).result()
        found = lsns(reopened(storage.inner))
        assert found == list(range(1, len(found) + 1)) and set(acknowledged) <= set(found)


def test_a_follower_gets_the_failure_of_the_log() -> None:
    """Poison a log with a follower waiting: it raises the cause after the acknowledged records, without any close."""
    storage, log = faulty_log()
    seen: list[int] = []
    following = Task(lambda: seen.extend(r.lsn for r in log.follow(1)))
    wait_until(lambda: seen == [1])
    storage.fail("synced_write", SEGMENTS)
    with pytest.raises(CommitFailedError):
        log.append(b"lost")
    with pytest.raises(LogPoisonedError) as told:
        following.result()
    assert seen == [1] and isinstance(told.value.__cause__, StorageError)
    with pytest.raises(LogPoisonedError):
        next(log.follow(2))
    log.close()


def test_a_poisoned_log_can_be_dropped_trimmed_and_closed() -> None:
    """Trim, hold and statistics of a poisoned log work; closing frees the lock; nothing is sealed that is not known."""
    storage, log = faulty_log()
    log.append_many([bytes(3000)] * 50)
    storage.fail("synced_write", SEGMENTS)
    with pytest.raises(CommitFailedError):
        log.append(b"lost")
    hold = log.hold("h", 20)
    assert log.trim(100) == 19
    hold.release()
    log.close()
    with walkit.open(storage=storage.inner, options=tiny()) as again:
        assert again.first_lsn == 20 and lsns(again.read()) == list(range(20, 52))
        assert again.append(b"after").first_lsn == 52
        assert again.recovery.verdict == "recovered"


def test_a_seal_that_fails_is_made_up_for_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail two seals in the background: the next makes up for them in order, and a kill at any time loses nothing."""
    # A segment that stays unsealed before a sealed one would be taken for something that does not follow.
    events: list[str] = []
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny(), events=lambda name, _: events.append(name))
    store = log.parts.manifest_store
    update, failures = store.update, [1, 1]

    def flaky(change: Any) -> Any:
        if len(change(store.current).sealed) > len(store.current.sealed) and failures:
            failures.pop()
            raise StorageError("no", errno=5, name="manifest")
        return update(change)

    monkeypatch.setattr(store, "update", flaky)
    images = []
    while len(store.current.sealed) < 5:
        log.append(bytes(7000))
        log.wait_idle()
        images.append((log.acked_lsn, storage.process_kill()))
        images.append((log.acked_lsn, storage.crash(keep="none")))
    numbers = [s.number for s in store.current.sealed]
    assert numbers == sorted(numbers) and not failures
    wait_until(lambda: events.count("walkit.maintenance.fail") == 2)
    log.close()
    for acknowledged, image in [*images, (log.acked_lsn, storage)]:
        assert lsns(reopened(image)) == list(range(1, acknowledged + 1))


def test_a_seal_takes_those_before_it_along() -> None:
    """Hold the background up over three segments, then seal the newest full one: the one before it is sealed first."""
    storage, log = faulty_log()
    held = threading.Event()
    segments = segment_set(log)

    def hold_up() -> None:
        assert held.wait(GUARD_S)

    segments.maintenance.submit("seal", hold_up)
    while len(segments.open_segments) < 3:
        log.append(bytes(7000))
    order = [s.number for s in segments.open_segments]
    segments.seal(segments.open_segments[-2])
    assert [s.number for s in log.parts.manifest_store.current.sealed] == order[:-1]
    assert [s.number for s in segments.open_segments] == order[-1:]
    held.set()
    log.append(b"goes on")
    log.close()
    assert len(reopened(storage.inner)) == log.acked_lsn


def test_closing_frees_every_file_of_a_failed_device() -> None:
    """Keep three segments open, let every later call fail, and close: the error is raised, no file stays open."""
    storage = FaultyMemory()
    log = walkit.open(storage=storage, options=tiny())
    held = threading.Event()
    segments = segment_set(log)

    def hold_up() -> None:
        assert held.wait(GUARD_S)

    segments.maintenance.submit("seal", hold_up)
    while len(segments.open_segments) < 3:
        log.append(bytes(7000))
    for name in get_args(OperationName):
        storage.fail(name, times=None)
    with pytest.raises(CommitFailedError):
        log.append(b"lost")
    held.set()
    with pytest.raises(StorageError):
        log.close()
    assert log.closed and not storage.open_files and not storage.inner.is_locked("lock")
    assert lsns(reopened(storage.inner)) == list(range(1, log.acked_lsn + 1))


def test_a_sync_during_which_the_log_fails_is_not_reported_as_done() -> None:
    """Fail a write while a sync is under way, then let the sync end well: its caller is refused, and no mark moves."""
    storage, log = faulty_log(durability="none")
    hang = storage.hang("sync", SEGMENTS)
    syncing = Task(log.sync)
    assert hang.entered.wait(GUARD_S)
    storage.fail("write", SEGMENTS)
    with pytest.raises(CommitFailedError):
        log.append(b"fails")
    hang.release()
    with pytest.raises(LogPoisonedError):
        syncing.result()
    assert (log.acked_lsn, log.durable_lsn) == (1, 0)
    log.close()
