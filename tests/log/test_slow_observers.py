"""Observers that fall behind: memory stays bounded, no other waits, and they see every frame or get an error."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import pytest

import walkit
from tests.support.logs import memory_log, tiny
from tests.support.threads import GUARD_S, wait_until
from walkit import GapError, ObservedFrames
from walkit.log.observe import Observation
from walkit.storage import MemoryStorage

LIMIT_BYTES = 64 * 1024


class Slow:
    """An observer that waits at its first frame until it is released, and keeps all its frames."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.entered = threading.Event()
        self.seen: list[ObservedFrames] = []

    def __call__(self, frames: ObservedFrames) -> None:
        self.entered.set()
        assert self.go_on.wait(GUARD_S)
        self.seen.append(frames)


def filled(log: walkit.WriteAheadLog, slow: Slow) -> Observation:
    """Observe, and append many times more than may wait while the observer is at its first frame."""
    observation = log.observe(slow)
    log.append(b"first")
    assert slow.entered.wait(GUARD_S)
    for n in range(60):
        log.append(b"%d" % n + bytes(5000))
    return observation


@pytest.mark.parametrize("options", [{}, {"in_flight": 4}, {"in_flight": 4, "ack_order": "completion"}])
def test_a_late_observer_gets_every_frame_once(options: dict[str, Any]) -> None:
    """Append five times the queue's limit during a blocked observer: it sees all, in order, and little is kept."""
    slow = Slow()
    with memory_log(tiny(queue_bytes_max=LIMIT_BYTES, **options)) as log:
        observation = filled(log, slow)
        delivery = log.parts.driver.delivery
        assert delivery.waiting_bytes <= LIMIT_BYTES
        assert len(delivery._queue) < 20 < log.statistics().deliveries_waiting
        slow.go_on.set()
        wait_until(lambda: slow.seen and slow.seen[-1].last_lsn == 61)
        log.append(b"and what comes now")
        wait_until(lambda: slow.seen[-1].last_lsn == 62)
        assert all(b.first_lsn == a.last_lsn + 1 for a, b in pairwise(slow.seen))
        assert all(b.position == a.next_position for a, b in pairwise(slow.seen))
        assert [r for frames in slow.seen for r in frames.records()] == list(log.read())
        assert (delivery.waiting_bytes, delivery.waiting, observation.error) == (0, 0, None)


def test_an_observer_whose_frames_were_trimmed_ends_with_an_error() -> None:
    """Trim an observer's unseen frames: it sees no gap, its `error` is a GapError, an event names the last LSN."""
    events: list[tuple[str, dict[str, Any]]] = []
    slow = Slow()
    options = tiny(queue_bytes_max=LIMIT_BYTES)
    storage = MemoryStorage()
    log = walkit.open(
        storage=storage, options=options, events=lambda name, facts: events.append((name, facts))
    )
    observation = filled(log, slow)
    followed = log.follow(61)
    assert next(followed).lsn == 61
    log.trim(55)
    slow.go_on.set()
    wait_until(lambda: observation.error, "the end of the observer")
    assert isinstance(observation.error, GapError)
    wait_until(lambda: "walkit.observer.lose" in [name for name, _ in events], "the event")
    told = [facts for name, facts in events if name == "walkit.observer.lose"]
    assert [facts["after_lsn"] for facts in told] == [slow.seen[-1].last_lsn]
    assert [frames.first_lsn for frames in slow.seen] == list(range(1, len(slow.seen) + 1))
    log.append(b"next")
    assert next(followed).lsn == 62
    assert len(slow.seen) < 60
    log.close()


def test_a_callback_that_blocks_holds_no_records() -> None:
    """Block a callback and submit more with callbacks after it: all are called, and their tickets hold no bytes."""
    slow = threading.Event()
    called: list[int] = []
    with memory_log() as log:
        first = log.submit(b"first")
        first.add_done_callback(lambda _: slow.wait(GUARD_S))
        tickets = [log.submit(bytes(5000)) for _ in range(20)]
        for ticket in tickets:
            ticket.add_done_callback(lambda t: called.append(t.result(0).first_lsn))
        tickets[-1].result(GUARD_S)
        wait_until(lambda: log.parts.driver.delivery.waiting, "the callbacks")
        assert log.parts.driver.delivery.waiting_bytes == 0
        slow.set()
        wait_until(lambda: called == list(range(2, 22)), "all of them, in order")
