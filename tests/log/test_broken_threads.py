"""Errors that nobody has thought of on the log's own threads: they poison with their cause, and nobody hangs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import walkit
from tests.support.logs import FaultyMemory, faulty_log, lsns, reopened, tiny
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.commit import delivery
from walkit.errors import CommitFailedError, LogPoisonedError
from walkit.log import retention
from walkit.models import CrashingStorage


def raiser(error: BaseException, times: int = 1) -> Callable[..., Any]:
    """Return what raises an error the first times it is called, and then does nothing."""
    left = [error] * times

    def broken(*_: object, **__: object) -> None:
        if left:
            raise left.pop()

    return broken


def check_poisoned(log: walkit.WriteAheadLog, storage: FaultyMemory | CrashingStorage, cause: str) -> None:
    """The log is poisoned with this cause, everything ends, and the next opening finds all that was acknowledged."""
    wait_until(lambda: log.statistics().poisoned, "the poison")
    for attempt in (lambda: log.append(b"refused"), lambda: log.submit(b"refused"), log.sync):
        with pytest.raises(LogPoisonedError, match=cause):
            Task(attempt).result()
    with pytest.raises(LogPoisonedError, match=cause):
        Task(log.wait_idle).result()
    Task(log.close).result()
    image = storage.inner if isinstance(storage, FaultyMemory) else storage
    found = lsns(reopened(image.process_kill()))
    assert found == list(range(1, len(found) + 1))
    # A record that was written when the log was poisoned was not acknowledged, and is there.
    assert log.acked_lsn <= len(found) <= log.acked_lsn + 1


@pytest.mark.parametrize("error", [MemoryError("none left"), ZeroDivisionError("a fault"), SystemExit(3)])
@pytest.mark.parametrize("job", ["seal", "prepare", "zero", "index", "retain"])
def test_an_error_on_the_upkeep_thread_poisons(job: str, error: BaseException) -> None:
    """Raise in each kind of job what is no WalkitError: poison with its cause, and what is queued behind is done."""
    storage, log = faulty_log()
    maintenance = log.parts.segments.maintenance
    done: list[str] = []
    maintenance.submit(job, raiser(error))
    maintenance.submit("index", lambda: done.append("behind it"))
    wait_until(lambda: done, "the job behind it")
    check_poisoned(log, storage, type(error).__name__)


def test_an_error_of_a_seal_poisons_and_the_others_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the manifest of a seal run out of memory: poison, and trim and close do not wait for that seal."""
    storage, log = faulty_log()
    broken = raiser(MemoryError("none left"))
    monkeypatch.setattr("walkit.segments.segment_set.with_sealed", broken)
    for _ in range(60):
        with suppress(LogPoisonedError, CommitFailedError):
            log.append(bytes(7000))
    wait_until(lambda: log.statistics().poisoned, "the poison")
    monkeypatch.undo()
    assert Task(log.trim, 0).result() == 0
    check_poisoned(log, storage, "none left")


def test_an_error_of_the_periodic_retention_poisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise where the maintenance thread looks at age from time to time: poison with its cause, and close ends."""
    storage = FaultyMemory()
    options = tiny(retention=walkit.Retention(age_s=5.0))
    monkeypatch.setattr(retention, "period_s", lambda _: 0.01)
    monkeypatch.setattr(retention.Retainer, "enforce", raiser(RuntimeError("a fault")))
    log = walkit.open(storage=storage, options=options)
    log.append(b"first")
    log.parts.segments.maintenance.submit("index", lambda: None)
    check_poisoned(log, storage, "a fault")


@pytest.mark.parametrize("in_flight", [1, 8])
def test_an_error_of_the_timers_sync_poisons(monkeypatch: pytest.MonkeyPatch, in_flight: int) -> None:
    """Raise what is no WalkitError in the sync of the interval: poison, and who syncs or closes does not hang."""
    storage = FaultyMemory()
    log = walkit.open(
        storage=storage, options=tiny(durability="interval", interval_ms=1, in_flight=in_flight)
    )
    monkeypatch.setattr(log.parts.segments, "sync", raiser(MemoryError("none left"), times=99))
    log.append(b"first")
    check_poisoned(log, storage, "none left")


def test_an_error_on_the_hand_poisons() -> None:
    """Raise in a job of the thread that syncs: poison, and the job behind it is done all the same."""
    storage, log = faulty_log(durability="none")
    hand = log.parts.driver.syncer.worker
    done: list[str] = []
    assert hand.do("broken", raiser(ZeroDivisionError("a fault")))
    assert hand.do("behind it", lambda: done.append("behind it"))
    wait_until(lambda: done, "the job behind it")
    check_poisoned(log, storage, "a fault")


def test_an_error_of_the_timer_poisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the timer find no thread to start: poison instead of a log that is never synced again."""
    storage = FaultyMemory()
    log = walkit.open(storage=storage, options=tiny(durability="interval", interval_ms=1))
    monkeypatch.setattr(
        log.parts.driver.syncer.worker, "do_once", raiser(RuntimeError("can't start new thread"), times=99)
    )
    log.append(b"first")
    check_poisoned(log, storage, "new thread")


@pytest.mark.parametrize("in_flight", [1, 8])
def test_an_error_of_a_writer_thread_poisons(monkeypatch: pytest.MonkeyPatch, in_flight: int) -> None:
    """Raise where a writer thread takes what waits: the ticket is told, and the log closes."""
    storage, log = faulty_log(in_flight=in_flight)
    monkeypatch.setattr(log.parts.core, "take", raiser(MemoryError("none left")))
    ticket = log.submit(b"never taken")
    assert isinstance(ticket.exception(GUARD_S), LogPoisonedError)
    check_poisoned(log, storage, "none left")


def test_an_error_of_the_delivery_thread_poisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise in the delivery's own code: poison, those behind are called, and close does not wait for nothing."""
    storage, log = faulty_log()
    seen: list[int] = []
    log.observe(lambda frames: seen.append(frames.first_lsn))
    find = delivery.with_callbacks
    broken = raiser(MemoryError("none left"))
    monkeypatch.setattr(delivery, "with_callbacks", lambda frames: broken() or find(frames))
    log.append(b"its delivery breaks")
    wait_until(lambda: log.statistics().poisoned, "the poison")
    monkeypatch.undo()
    called: list[Any] = []
    log.parts.driver.delivery.put_callback(object(), called.append)  # type: ignore[arg-type]
    wait_until(lambda: called, "the callback behind it")
    assert log.parts.driver.delivery.waiting_bytes == 0
    check_poisoned(log, storage, "none left")
