"""Every order in which frames can land: the pure core and the thread driver acknowledge by the same rule.

AutoMQ never tested this (reference, 4.1): the order of callbacks under shuffled completions, and a failure among them.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest

from tests.commit.cores import make_core, seal_next
from tests.support.fake_segments import DriverHarness, GatedSink, io_error
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.commit.frame import SealedFrame
from walkit.commit.policy import OneRecordPerFrame
from walkit.errors import CommitFailedError, LogClosedError

ORDERS = [False, True]
MOST = 6
ON_THREADS = 5
"""Frames of a driver: a sixth of the orders, which wait for threads; that core above is the driver's, too."""


def acknowledged_by(landed: set[int], count: int, completion: bool) -> set[int]:
    """Return which of `count` frames are acknowledged when these have landed, by the definition."""
    prefix = set(itertools.takewhile(lambda i: i in landed, range(count)))
    return set(landed) if completion else prefix


@pytest.mark.parametrize("completion", ORDERS)
@pytest.mark.parametrize("count", range(1, MOST + 1))
def test_the_core_acknowledges_by_the_rule_in_every_order(count: int, completion: bool) -> None:
    """Land up to six frames in all orders: after each, the frames of the rule are acknowledged; marks as the prefix."""
    for order in itertools.permutations(range(count)):
        core = make_core(in_flight_max=count, completion_order=completion)
        frames = [seal_next(core) for _ in range(count)]
        told: list[SealedFrame] = []
        for done, index in enumerate(order, 1):
            told += core.written(frames[index], durable=True)
            expected = acknowledged_by(set(order[:done]), count, completion)
            assert {i for i, f in enumerate(frames) if f.state == "acked"} == expected
            prefix = acknowledged_by(set(order[:done]), count, False)
            assert core.acked_lsn == core.durable_lsn == 100 + len(prefix)
        assert told == ([frames[i] for i in order] if completion else frames)


@pytest.mark.parametrize("completion", ORDERS)
def test_the_core_fails_by_the_rule_in_every_order(completion: bool) -> None:
    """Fail each of five frames at each point of each order: it and its suffix fail, earlier frames may land."""
    count = 5
    for order in itertools.permutations(range(count)):
        for at in range(count):
            core = make_core(in_flight_max=count, completion_order=completion)
            frames = [seal_next(core) for _ in range(count)]
            for index in order[:at]:
                core.written(frames[index], durable=True)
            bad = order[at]
            before = {i for i in range(count) if frames[i].state == "acked"}
            lost, _ = core.fail(OSError("gone"), frames[bad])
            assert lost == [frames[i] for i in range(bad, count) if i not in before]
            for index in order[at + 1 :]:
                core.written(frames[index], durable=True)
            assert all(f.state == "acked" for f in frames[:bad])
            expected = ["acked" if i in before else "failed" for i in range(bad, count)]
            assert [f.state for f in frames[bad:]] == expected
            assert core.acked_lsn == 100 + bad
            assert not core.in_flight


def gated(completion: bool, count: int) -> tuple[DriverHarness, GatedSink]:
    """Return a driver with one record to a frame, whose frames land as the test says."""
    place = GatedSink()
    harness = DriverHarness(
        place=place,
        in_flight_max=count,
        completion_order=completion,
        reorder_window_bytes=64 << 20,
        policy=OneRecordPerFrame(),
    )
    return harness, place


def is_written(frame: SealedFrame) -> bool:
    """Whether the core knows that the frame has landed."""
    return frame.written


@pytest.mark.parametrize("completion", ORDERS)
def test_the_driver_acknowledges_by_the_rule_in_every_order(completion: bool) -> None:
    """Land five frames on threads in all orders: states by the rule; callbacks and observers in their orders."""
    harness, place = gated(completion, ON_THREADS)
    called: list[int] = []
    seen: list[int] = []
    harness.driver.delivery.add_observer(lambda frame: seen.append(frame.first_lsn))
    for order in itertools.permutations(range(ON_THREADS)):
        frames = harness.in_flight(ON_THREADS)
        base = frames[0].first_lsn
        for frame in frames:
            frame.submissions[0].callbacks = [lambda t: called.append(t.first_lsn)]
        landed: set[int] = set()
        for index in order:
            place.let(frames[index])
            landed.add(index)
            wait_until(partial(is_written, frames[index]), "the frame to land")
            with harness.driver.lock:
                states = {i for i, f in enumerate(frames) if f.state == "acked"}
            assert states == acknowledged_by(landed, ON_THREADS, completion), order
        wait_until(lambda: len(called) == len(seen) == ON_THREADS, "callbacks and observers")
        assert called == [base + i for i in (order if completion else range(ON_THREADS))]
        assert seen == [base + i for i in range(ON_THREADS)]
        called.clear()
        seen.clear()
    Task(harness.driver.stop, LogClosedError("over")).result()


@pytest.mark.parametrize("completion", ORDERS)
@pytest.mark.parametrize("bad", range(4))
def test_a_failed_frame_fails_its_suffix_at_once_on_threads(bad: int, completion: bool) -> None:
    """Fail one of four held frames: those after it fail while their writes hang, those before are acknowledged."""
    harness, place = gated(completion, 4)
    frames = harness.in_flight(4)
    tickets: list[Any] = [f.submissions[0] for f in frames]
    waiting = [Task(t.result, GUARD_S) for t in tickets]
    cause = io_error()
    place.let(frames[bad], cause)
    for task in waiting[bad:]:
        with pytest.raises(CommitFailedError) as failed:
            task.result()
        assert failed.value.__cause__ is cause
        assert failed.value.acked_lsn == 0
    assert not any(t.done() for t in tickets[:bad])
    for frame in reversed(frames[:bad]):
        place.let(frame)
    assert [task.result().first_lsn for task in waiting[:bad]] == list(range(1, bad + 1))
    place.release()
    Task(harness.driver.stop, LogClosedError("over")).result()
    assert harness.core.acked_lsn == harness.core.durable_lsn == bad
    assert [f.state for f in frames] == ["acked"] * bad + ["failed"] * (4 - bad)
    wait_until(lambda: [name for name, _ in harness.events] == ["walkit.log.poison"])
