"""A device that hangs away from the path of a record: no caller waits forever, and each gets the cause."""

from __future__ import annotations

import threading
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any

import pytest

import walkit
from tests.support.fake_segments import DriverHarness, GatedSink, io_error
from tests.support.logs import SEGMENTS, FaultyMemory, reopened, tiny, values
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.commit.policy import OneRecordPerFrame
from walkit.errors import CommitFailedError, LogClosedError, LogLockedError, LogPoisonedError, StorageError
from walkit.segments.manifest_store import LOCK_NAME

LIMIT_MS = 60


def hung_log(**options: Any) -> tuple[FaultyMemory, walkit.WriteAheadLog]:
    """Return a log with a short time limit, one record in it, and its storage."""
    storage = FaultyMemory()
    log = walkit.open(storage=storage, options=tiny(**({"write_timeout_ms": LIMIT_MS} | options)))
    log.append(b"first")
    return storage, log


@pytest.mark.parametrize("in_flight", [1, 3])
def test_a_hung_sync_of_the_timer_fails_the_log(in_flight: int) -> None:
    """Hang the interval's own sync: the log is poisoned with the cause, and every append, sync or close gets it."""
    storage, log = hung_log(durability="interval", interval_ms=5, in_flight=in_flight)
    wait_until(lambda: log.durable_lsn == 1, "the first sync")
    hang = storage.hang("sync", SEGMENTS)
    log.append(b"acknowledged, and never durable")
    syncing = Task(log.sync)
    with pytest.raises((LogPoisonedError, StorageError), match="write_timeout_ms"):
        syncing.result()
    with pytest.raises(LogPoisonedError, match="write_timeout_ms"):
        log.append(b"refused")
    with pytest.raises(LogPoisonedError, match="write_timeout_ms"):
        log.sync()
    Task(log.close).result()
    assert log.durable_lsn == 1
    hang.release()
    assert values(reopened(storage.inner))[:1] == [b"first"]


def fill(log: walkit.WriteAheadLog) -> None:
    """Submit until an append that waits for room is refused."""
    while True:
        log.submit(bytes(7000))


@pytest.mark.parametrize(
    ("call", "options"),
    [(walkit.WriteAheadLog.sync, {}), (fill, {"queue_bytes_max": 8192, "frame_bytes_max": 8192})],
)
def test_hung_sync_keeps_no_caller(call: Callable[[walkit.WriteAheadLog], None], options: Any) -> None:
    """Hang a sync that a caller, or room after a rotation, waits for: the cause comes within the limit."""
    storage, log = hung_log(durability="none", **options)
    hang = storage.hang("sync", SEGMENTS)
    with pytest.raises(LogPoisonedError, match="write_timeout_ms"):
        Task(call, log).result()
    assert hang.entered.is_set()
    Task(log.close).result()
    hang.release()


def test_a_hung_mark_fails_the_log() -> None:
    """Hang the write of a mark on an idle log: it is watched like any other."""
    plain, without = hung_log(idle_marker_ms=0)
    without.close()
    written = [done.file for done in plain.trace if done.name == "synced_write"]
    before_the_mark = sum(fnmatch(file, SEGMENTS) for file in written)
    storage = FaultyMemory()
    hang = storage.hang("synced_write", SEGMENTS, nth=before_the_mark + 1)
    log = walkit.open(storage=storage, options=tiny(idle_marker_ms=5, write_timeout_ms=LIMIT_MS))
    log.append(b"first")
    wait_until(lambda: log.statistics().poisoned, "the poison")
    assert hang.entered.is_set()
    with pytest.raises(LogPoisonedError, match="write_timeout_ms"):
        log.append(b"refused")
    Task(log.close).result()
    hang.release()


def test_a_frame_that_waits_for_a_hung_zeroing_fails() -> None:
    """Hang the maintenance thread's zeroing and write up to it: the frame's callers and `close` get the cause."""
    storage = FaultyMemory()
    options = tiny(
        durability="none", segment_bytes=4 << 20, frame_bytes_max=1 << 20, write_timeout_ms=LIMIT_MS
    )
    log = walkit.open(storage=storage, options=options)
    log.append(b"first")
    hang = storage.hang("synced_write", SEGMENTS)
    for _ in range(60):
        log.append(bytes(10_000))
    assert hang.entered.wait(GUARD_S)
    tickets = [log.submit(bytes(300_000)) for _ in range(6)]
    errors = [ticket.exception(GUARD_S) for ticket in tickets]
    failed = [error for error in errors if error is not None]
    assert failed and "write_timeout_ms" in str(failed[0].__cause__)
    assert [error is None for error in errors] == sorted([error is None for error in errors], reverse=True)
    with pytest.raises(StorageError, match="lock is freed"):
        Task(log.close).result()
    hang.release()
    wait_until(lambda: not storage.inner.is_locked(LOCK_NAME), "the lock")


def test_close_returns_from_a_hung_seal_and_keeps_the_lock() -> None:
    """Hang the edit of the last seal: close ends with the cause; no other writer until the device answers."""
    storage, log = hung_log()
    hang = storage.hang("synced_write", "manifest")
    with pytest.raises(StorageError, match="write_timeout_ms"):
        Task(log.close).result()
    assert log.closed
    with pytest.raises(LogLockedError):
        walkit.open(storage=storage.inner, options=tiny())
    hang.release()
    wait_until(lambda: not storage.inner.is_locked(LOCK_NAME), "the lock")
    assert values(reopened(storage.inner)) == [b"first"]
    log.close()


def test_a_trim_during_a_hung_upkeep_job_gets_the_cause() -> None:
    """Hang the making of the next segment on the maintenance thread, and trim: the trim ends with the cause."""
    storage, log = hung_log()
    hang = storage.hang("allocate", SEGMENTS)
    while log.statistics().frame_bytes < log.options.segment_bytes // 2:
        log.append(bytes(4000))
    assert hang.entered.wait(GUARD_S)
    with pytest.raises(StorageError, match="maintenance job"):
        Task(log.trim, 1).result()
    hang.release()
    log.close()


def test_close_returns_from_a_hung_write_of_a_failed_frame() -> None:
    """Fail one frame while the write of a later one hangs: close returns within the limit, as the log has failed."""
    place = GatedSink()
    harness = DriverHarness(
        place=place, in_flight_max=2, policy=OneRecordPerFrame(), write_timeout_us=LIMIT_MS * 10_000
    )
    first, _ = harness.in_flight(2)
    place.let(first, io_error())
    wait_until(lambda: harness.driver.refusal is not None, "the poison")
    stopping = Task(harness.driver.stop, LogClosedError())
    stopping.result()
    assert harness.driver.hung
    place.release()


def test_a_hung_sync_of_a_log_that_has_failed_does_not_keep_its_caller() -> None:
    """Hang a sync that a caller waits for, and fail a write meanwhile: the caller gets the error within the limit."""
    storage, log = hung_log(durability="none", write_timeout_ms=LIMIT_MS * 10)
    hang = storage.hang("sync", SEGMENTS)
    syncing = Task(log.sync)
    assert hang.entered.wait(GUARD_S)
    storage.fail("write", SEGMENTS)
    with pytest.raises(CommitFailedError):
        log.append(b"fails")
    with pytest.raises(LogPoisonedError):
        syncing.result()
    Task(log.close).result()
    hang.release()


class SlowToBegin(GatedSink):
    """A place whose segments begin when the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.may_begin = threading.Event()

    def begin_segment(self, *, position: int, first_lsn: int, chain: int) -> int:
        assert self.may_begin.wait(10 * GUARD_S)
        return super().begin_segment(position=position, first_lsn=first_lsn, chain=chain)


def test_close_returns_from_a_leader_that_waits_for_a_hung_one() -> None:
    """Hang the beginning of a segment while a second leader waits to seal: both are refused, and stopping ends."""
    place = SlowToBegin()
    harness = DriverHarness(
        place=place, in_flight_max=2, policy=OneRecordPerFrame(), write_timeout_us=LIMIT_MS * 1000
    )
    tickets = [harness.queued(), harness.queued()]
    for ticket in tickets:
        with pytest.raises(LogPoisonedError, match="write_timeout_ms"):
            ticket.result(GUARD_S)
    Task(harness.driver.stop, LogClosedError()).result()
    assert harness.driver.hung
    place.may_begin.set()
