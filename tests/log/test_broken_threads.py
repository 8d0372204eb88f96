"""Unforeseen errors on the log's own threads: they poison with their cause, and no call hangs."""

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
    """Return a function that raises an error in its first calls, and then does nothing."""
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
@pytest.mark.parametrize("job", ["seal", "prepare", "zero", "index", "retain", "of the device"])
def test_error_of_a_job_poisons(job: str, error: BaseException) -> None:
    """Raise an error outside WalkitError in each kind of job: poison with its cause, and the job after it is done."""
    storage, log = faulty_log()
    parts, done = log.parts, list[str]()
    on_device = job == "of the device"
    do: Callable[..., Any] = parts.driver.syncer.worker.do if on_device else parts.segments.maintenance.submit
    do(job, raiser(error))
    do("index", lambda: done.append("after it"))
    wait_until(lambda: done, "the job after it")
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
    """Raise in the maintenance thread's periodic look at age: poison with its cause, and close ends."""
    storage = FaultyMemory()
    options = tiny(retention=walkit.Retention(age_s=5.0))
    monkeypatch.setattr(retention, "period_s", lambda _: 0.01)
    monkeypatch.setattr(retention.Retainer, "enforce", raiser(RuntimeError("a fault")))
    log = walkit.open(storage=storage, options=options)
    log.append(b"first")
    log.parts.segments.maintenance.submit("index", lambda: None)
    check_poisoned(log, storage, "a fault")


@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("step", ["sync", "start of a thread"])
def test_error_of_the_timer_poisons(monkeypatch: pytest.MonkeyPatch, step: str, in_flight: int) -> None:
    """Raise in the sync of the interval, or at its start: poison, and no sync, append or close hangs."""
    storage = FaultyMemory()
    options = tiny(durability="interval", interval_ms=1, in_flight=in_flight)
    log = walkit.open(storage=storage, options=options)
    broken = raiser(MemoryError("none left"), times=99)
    if step == "sync":
        monkeypatch.setattr(log.parts.segments, "sync", broken)
    else:
        monkeypatch.setattr(log.parts.driver.syncer.worker, "do_once", broken)
    log.append(b"first")
    check_poisoned(log, storage, "none left")


@pytest.mark.parametrize("in_flight", [1, 8])
def test_an_error_of_a_writer_thread_poisons(monkeypatch: pytest.MonkeyPatch, in_flight: int) -> None:
    """Raise as a writer thread takes the queue: the ticket gets the error, and the log closes."""
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
    wait_until(lambda: called, "the callback after it")
    assert log.parts.driver.delivery.waiting_bytes == 0
    check_poisoned(log, storage, "none left")
