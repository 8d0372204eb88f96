"""Durability levels: the promise of an acknowledgement, the moves of the durable mark, and the view of others."""

from __future__ import annotations

import pytest

import walkit
from tests.support.logs import (
    SEGMENTS,
    FaultyMemory,
    faulty_log,
    lsns,
    memory_log,
    reopened,
    tiny,
    values,
    view_of,
)
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.config import DURABILITY_PROMISES
from walkit.models import CrashingStorage
from walkit.recovery.log_scan import read_durable_slot

FOREVER_MS = 86_400_000


def test_sync_means_durable_when_acknowledged() -> None:
    """Append with durability sync: the marks move together, and a power cut right then loses nothing."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny())
    for n in range(1, 40):
        assert log.append(b"%d" % n + bytes(2000)).last_lsn == log.acked_lsn == log.durable_lsn == n
        assert lsns(reopened(storage.crash(keep="none"))) == list(range(1, n + 1))
    log.close()


@pytest.mark.parametrize(
    "level", [{"durability": "interval", "interval_ms": FOREVER_MS}, {"durability": "none"}]
)
def test_the_other_levels_acknowledge_before_they_sync(level: dict[str, object]) -> None:
    """Append below level sync: acknowledged at once, durable after sync(), which loses nothing in a power cut."""
    storage = FaultyMemory()
    log = walkit.open(storage=storage, options=tiny(**level))
    for n in range(1, 6):
        assert log.append(b"x").last_lsn == log.acked_lsn == n
    assert log.durable_lsn == 0 and read_durable_slot(storage).lsn == 0
    assert values(log.read()) == [b"x"] * 5, "the writer reads what is acknowledged"
    assert lsns(reopened(storage.inner.crash(keep="none"))) == []
    syncs = log.statistics().syncs
    assert log.sync() == 5 == log.durable_lsn == read_durable_slot(storage).lsn
    assert log.statistics().syncs == syncs + 1
    assert log.sync() == 5 and log.statistics().syncs == syncs + 1
    assert lsns(reopened(storage.inner.crash(keep="none"))) == [1, 2, 3, 4, 5]
    log.close()


def test_sync_waits_for_submitted_records() -> None:
    """Submit during a hung write and call sync: it returns when all of it is durable, not before."""
    storage, log = faulty_log(durability="none")
    hang = storage.hang("write", SEGMENTS)
    tickets = [log.submit(b"x") for _ in range(5)]
    assert hang.entered.wait(GUARD_S)
    syncing = Task(log.sync)
    syncing.thread.join(0.05)
    assert syncing.thread.is_alive()
    hang.release()
    assert syncing.result() == 6
    assert all(t.done() for t in tickets) and log.durable_lsn == 6
    log.close()


def test_the_timer_syncs_an_idle_tail() -> None:
    """Append once at level interval and do nothing: the record becomes durable by itself, and is promised by a mark."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny(durability="interval", interval_ms=3, idle_marker_ms=5))
    log.append(b"tail")
    wait_until(lambda: log.durable_lsn == 1, "the timer's sync")
    wait_until(lambda: log.statistics().marker_frames == 1, "the mark")
    wait_until(
        lambda: log.parts.driver.timer is not None and log.parts.driver.timer.parked, "the timer to park"
    )
    assert lsns(reopened(storage.crash(keep="none"))) == [1]
    assert log.statistics().syncs <= 2
    log.close()


def test_a_record_after_a_synced_one_has_its_interval_too() -> None:
    """Append, wait for the timer's sync, append again, with a marker in a day: each becomes durable by itself."""
    with memory_log(tiny(durability="interval", interval_ms=3, idle_marker_ms=FOREVER_MS)) as log:
        for lsn in range(1, 4):
            log.append(b"x")
            wait_until(lambda lsn=lsn: log.durable_lsn == lsn, "the timer's sync")  # type: ignore[misc]


def test_a_busy_log_is_synced_by_the_timer_too() -> None:
    """Append without a pause at level interval: the durable mark follows, with far fewer syncs than frames."""
    with memory_log(tiny(durability="interval", interval_ms=2)) as log:
        while log.durable_lsn < 200:
            log.append(b"x")
        assert log.durable_lsn <= log.acked_lsn
        statistics = log.statistics()
        assert 0 < statistics.syncs < statistics.frames_written


def test_level_none_syncs_only_at_rotation_and_on_request() -> None:
    """Append within one segment and over several at level none: no sync within, and one at each rotation."""
    storage = FaultyMemory()
    with walkit.open(storage=storage, options=tiny(durability="none")) as log:
        for _ in range(5):
            log.append(bytes(1000))
        assert log.statistics().syncs == 0 and log.durable_lsn == 0
        while log.statistics().rotations < 4:
            log.append(bytes(7000))
        assert log.statistics().syncs == 3
        assert 0 < log.durable_lsn < log.acked_lsn


@pytest.mark.parametrize("level", ["sync", "interval", "none"])
def test_the_durable_mark_and_its_file_are_never_ahead(level: str) -> None:
    """Append from four threads under repeated power cuts: records below the cell's LSN are always there."""
    storage = CrashingStorage()
    options = tiny(durability=level, **({"interval_ms": 1} if level == "interval" else {}))
    log = walkit.open(storage=storage, options=options)

    def work() -> None:
        for _ in range(80):
            log.append(bytes(900))

    tasks = [Task(work) for _ in range(4)]
    for _ in range(25):
        promised = read_durable_slot(storage).lsn
        marks = (log.durable_lsn, log.acked_lsn, log.appended_lsn)
        image = storage.crash(keep="none")
        assert promised <= marks[0] <= marks[1] <= marks[2]
        assert len(reopened(image, options)) >= promised
    for task in tasks:
        task.result()
    log.sync()
    assert read_durable_slot(storage).lsn == log.durable_lsn == log.acked_lsn == 320
    log.close()


def test_closing_makes_durable_at_every_level() -> None:
    """Close without a sync and cut the power: everything acknowledged is there, at every level."""
    for level in DURABILITY_PROMISES:
        storage = CrashingStorage()
        with walkit.open(storage=storage, options=tiny(durability=level)) as log:
            log.append_many([bytes(3000)] * 30)
        assert len(reopened(storage.crash(keep="none"))) == 30


def test_statistics_count_what_was_done() -> None:
    """Append a known load: records, bytes, frames, padding and syncs agree exactly with the files."""
    with memory_log() as log:
        log.append(b"12345", key=b"k")
        log.append_many([b"x" * 10] * 7, keys=[b"kk"] * 7)
        log.append_many([bytes(7000)] * 10)
        statistics = log.statistics()
        view = view_of(log)
        frames = [header for header, _, _ in view.frames(1)]
        assert statistics.records_acked == statistics.records_appended == 18
        assert statistics.user_bytes == 6 + 84 + 70_000
        assert statistics.frames_written == len(frames) == statistics.syncs
        assert statistics.frame_bytes == sum(h.footprint for h in frames) == statistics.log_bytes
        assert statistics.padding_bytes == sum(h.footprint - 96 - h.body_stored_bytes for h in frames)
        assert statistics.segments == len(view.spans) == statistics.rotations
        assert (statistics.queue_records, statistics.queue_bytes, statistics.poisoned) == (0, 0, 0)
        assert statistics.write_ns > 0 and statistics.prepare_ns > 0
