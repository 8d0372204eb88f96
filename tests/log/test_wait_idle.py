"""`log.wait_idle`: the facts that hold when it returns, and its errors."""

from __future__ import annotations

from typing import Any

import pytest

import walkit
from tests.support.logs import SEGMENTS, SMALL_SEGMENT, FaultyMemory, faulty_log, memory_log, tiny
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.errors import LogClosedError, LogPoisonedError, OptionsError, StorageError
from walkit.format.index import has_index
from walkit.format.manifest import Manifest
from walkit.segments.manifest_store import load_manifest
from walkit.storage import MemoryStorage


@pytest.mark.parametrize("in_flight", [1, 4])
def test_what_is_full_is_sealed_and_indexed(in_flight: int) -> None:
    """Fill ten segments, wait: all but the last are sealed, in the manifest of the files too, each with its index."""
    storage = MemoryStorage()
    with walkit.open(storage=storage, options=tiny(in_flight=in_flight, segment_bytes=1 << 20)) as log:
        for _ in range(10):
            log.append_many([bytes(700)] * 1_000)
        assert log.wait_idle()
        begun = log.statistics().rotations
        sealed = load_manifest(storage).sealed
        assert len(sealed) == begun - 1 > 4
        indexed = [record.name + ".index" for record in sealed if has_index(record)]
        assert len(indexed) == len(sealed) and set(indexed) <= set(storage.names())
        assert log.wait_idle(0)


def test_statistics_count_a_segment_once_while_it_is_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask between the manifest that seals a segment and its leaving the open ones: each segment counts once."""
    with memory_log() as log:
        store, segments, counted = log.parts.manifest_store, log.parts.segments, list[tuple[int, int]]()
        real_update = store.update

        def update(change: Any) -> Manifest:
            manifest = real_update(change)
            numbers = {s.number for s in manifest.sealed} | {s.number for s in segments.open_segments}
            counted.append((log.statistics().segments, len(numbers)))
            return manifest

        monkeypatch.setattr(store, "update", update)
        log.append_many([bytes(7000)] * 60)
        assert log.wait_idle(GUARD_S)
    assert len(counted) > 4 and all(found == there for found, there in counted)


def test_retention_has_dropped_what_it_drops() -> None:
    """Write five times the retention's limit, wait: the log has no more than that and the segment in use."""
    with memory_log(tiny(retention=walkit.Retention(bytes_max=4 * SMALL_SEGMENT))) as log:
        log.append_many([bytes(7000)] * 160)
        assert log.wait_idle(GUARD_S)
        assert log.statistics().log_bytes <= 5 * SMALL_SEGMENT and log.first_lsn > 100


def test_it_waits_for_the_running_job_up_to_its_timeout() -> None:
    """Hang the making of the next segment: False after the timeout, and a waiter without one returns when it ends."""
    storage, log = faulty_log()
    hang = storage.hang("allocate", SEGMENTS)
    while not hang.entered.is_set():
        log.append(bytes(4000))
        assert hang.entered.wait(0.05) or log.statistics().frame_bytes < SMALL_SEGMENT
    assert log.wait_idle(0.01) is False
    waiting = Task(log.wait_idle)
    hang.release()
    assert waiting.result() is True
    log.close()


def test_a_hanging_device_is_reported() -> None:
    """Hang that job in a log with a time limit: StorageError that names the option, not a wait without an end."""
    storage, log = faulty_log(write_timeout_ms=50)
    hang = storage.hang("allocate", SEGMENTS)
    while not hang.entered.is_set():
        log.append(bytes(4000))
        assert hang.entered.wait(0.05) or log.statistics().frame_bytes < SMALL_SEGMENT
    with pytest.raises(StorageError, match="write_timeout_ms"):
        Task(log.wait_idle).result()
    hang.release()
    log.close()


def test_a_failed_or_closed_log_refuses() -> None:
    """Poison a log, and wait; close it, and wait: the error that refuses work, and for no number OptionsError."""
    storage, log = faulty_log()
    with pytest.raises(OptionsError):
        log.wait_idle("soon")  # type: ignore[arg-type]
    storage.fail("synced_write", SEGMENTS)
    with pytest.raises(walkit.CommitFailedError):
        log.append(b"lost")
    with pytest.raises(LogPoisonedError, match="EIO"):
        log.wait_idle()
    log.close()
    whole = memory_log()
    whole.close()
    with pytest.raises(LogClosedError):
        whole.wait_idle()


def test_the_callback_of_a_seal_may_wait_for_the_maintenance_thread() -> None:
    """Wait in the callback of a seal's event: another thread than that of the maintenance makes it."""
    told: list[Any] = []

    def called(name: str, _: object) -> None:
        if name == "walkit.segment.seal" and not told:
            told.append(log.wait_idle(GUARD_S))

    log = walkit.open(storage=FaultyMemory(), options=tiny(), events=called)
    log.append_many([bytes(7000)] * 20)
    wait_until(lambda: told, "the seal")
    assert told == [True]
    log.close()
