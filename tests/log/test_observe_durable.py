"""Observers that see frames when they are on stable storage: in order, each once, never one before."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import walkit
from tests.support.logs import memory_log, tiny
from tests.support.threads import wait_until
from walkit import ObservedFrames
from walkit.errors import GapError, OptionsError

NEVER_MS = 3_600_000


def test_at_level_sync_durable_frames_are_the_acknowledged_ones() -> None:
    """Observe at both: the same frames in the same order, and the log's durable LSN is never below the seen LSNs."""
    acked: list[int] = []
    durable: list[int] = []
    ahead: list[int] = []
    with memory_log() as log:
        log.observe(lambda frames: acked.append(frames.first_lsn))

        def see(frames: ObservedFrames) -> None:
            durable.append(frames.first_lsn)
            if frames.last_lsn > log.durable_lsn:
                ahead.append(frames.last_lsn)

        log.observe(see, at="durable")
        for n in range(20):
            log.append(b"%d" % n)
        wait_until(lambda: len(durable) == len(acked) == 20)
    assert (acked, ahead) == (durable, [])


@pytest.mark.parametrize("level", ["interval", "none"])
def test_nothing_is_seen_before_it_is_synced(level: Any) -> None:
    """Append at levels that acknowledge first, twice the limit in memory: all is seen after the sync, none before."""
    interval = {"interval_ms": NEVER_MS} if level == "interval" else {}
    options = tiny(durability=level, queue_bytes_max=24 * 1024, segment_bytes=1 << 20, **interval)
    seen: list[ObservedFrames] = []
    acked: list[int] = []
    with memory_log(options) as log:
        observation = log.observe(seen.append, at="durable")
        log.observe(lambda frames: acked.append(frames.last_lsn))
        for n in range(30):
            log.append(b"%d" % n + bytes(2000))
        wait_until(lambda: acked[-1:] == [30])
        assert seen == []
        assert observation._gate is not None
        assert observation._gate.waiting_bytes <= 24 * 1024
        log.sync()
        wait_until(lambda: bool(seen) and seen[-1].last_lsn == 30)
        log.append(b"not yet")
        log.append(b"not yet")
        wait_until(lambda: acked[-1] == 32)
        assert seen[-1].last_lsn == 30
        log.sync()
        wait_until(lambda: seen[-1].last_lsn == 32)
        assert all(b.first_lsn == a.last_lsn + 1 for a, b in pairwise(seen))
        assert [r for frames in seen for r in frames.records()] == list(log.read())
        assert (observation.error, observation._gate.waiting_bytes) == (None, 0)


def test_the_timer_of_level_interval_shows_them_too() -> None:
    """Append once at a short interval: the background sync alone makes it seen."""
    seen: list[int] = []
    with memory_log(tiny(durability="interval", interval_ms=5)) as log:
        log.observe(lambda frames: seen.append(frames.last_lsn), at="durable")
        log.append(b"x")
        wait_until(lambda: seen == [1])


def test_a_callback_that_raises_is_counted_and_gets_the_next_frames() -> None:
    """Raise at each frame that a sync releases: both are counted, the first is an event."""
    events: list[str] = []
    options = tiny(durability="interval", interval_ms=NEVER_MS)

    def bad(_: ObservedFrames) -> None:
        raise ValueError("no")

    with memory_log(options) as log:
        log.events.add_listener(lambda name, _: events.append(name))
        observation = log.observe(bad, at="durable")
        log.append(b"1")
        log.append(b"2")
        log.sync()
        wait_until(lambda: observation.errors == 2 and "walkit.callback.fail" in events)
    assert events.count("walkit.callback.fail") == 1


def test_frames_that_are_gone_when_they_are_durable_end_the_observer() -> None:
    """Make the frames beyond memory unreadable at the sync: a GapError, an event, nothing skipped."""
    options = tiny(durability="interval", interval_ms=NEVER_MS, queue_bytes_max=16 * 1024)
    events: list[dict[str, Any]] = []
    seen: list[int] = []
    acked: list[int] = []
    with memory_log(options) as log:
        delivery = log.parts.driver.delivery

        def gone(first_lsn: int, last_lsn: int) -> Any:
            raise GapError(first_lsn, last_lsn + 1)

        delivery.reread = gone
        log.events.add_listener(lambda name, data: events.append(data) if "lose" in name else None)
        observation = log.observe(lambda frames: seen.append(frames.last_lsn), at="durable")
        log.observe(lambda frames: acked.append(frames.last_lsn))
        for _ in range(20):
            log.append(bytes(2000))
            wait_until(lambda: delivery.waiting == 0)
        log.sync()
        wait_until(lambda: observation.error is not None)
        assert isinstance(observation.error, GapError)
        assert seen == list(range(1, seen[-1] + 1))
        wait_until(lambda: events, "the event, which another thread sends")
        assert events[0]["after_lsn"] == seen[-1] < 20
        assert delivery.durable_listeners == ()
        assert len(delivery.observers) == 1


def test_a_closed_observer_sees_nothing_more() -> None:
    """Close it between the append and the sync: no call is made, and the delivery knows it no more."""
    seen: list[int] = []
    acked: list[int] = []
    with memory_log(tiny(durability="interval", interval_ms=NEVER_MS)) as log:
        observation = log.observe(lambda frames: seen.append(frames.last_lsn), at="durable")
        log.observe(lambda frames: acked.append(frames.last_lsn))
        log.append(b"x")
        wait_until(lambda: acked == [1])
        observation.close()
        log.sync()
        assert log.parts.driver.delivery.drain()
        assert seen == []
        assert log.parts.driver.delivery.durable_listeners == ()


def test_another_moment_is_refused() -> None:
    """Ask for a moment that there is not: an OptionsError that names the option."""
    with memory_log() as log, pytest.raises(OptionsError) as caught:
        log.observe(print, at="appended")  # type: ignore[arg-type]
    assert caught.value.option == "at"
    assert walkit.OptionsError is OptionsError
