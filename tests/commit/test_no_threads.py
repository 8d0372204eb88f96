"""A system that has no thread to give: queued records are refused with the cause, and no caller waits forever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.fake_segments import DriverHarness
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.commit.policy import QueueState, Take, Wait
from walkit.errors import CommitFailedError, LogClosedError, LogPoisonedError


@contextmanager
def no_threads() -> Iterator[None]:
    """Have the system refuse every new thread: no process has room for stacks of this size."""
    before = threading.stack_size(1 << 46)
    try:
        yield
    finally:
        threading.stack_size(before)


def test_no_thread_starts_without_one_left() -> None:
    """Start a thread while the helper of these tests leaves none: RuntimeError; afterwards one starts."""
    with no_threads(), pytest.raises(RuntimeError, match="new thread"):
        threading.Thread(target=print).start()
    assert Task(lambda: 3).result() == 3


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_ticket_that_no_thread_can_write_is_refused(in_flight: int) -> None:
    """Submit when no writer thread can be started: the ticket has the reason, and syncing and stopping end."""
    harness = DriverHarness(in_flight_max=in_flight)
    with no_threads():
        ticket = harness.queued()
    assert isinstance(ticket.exception(GUARD_S), LogPoisonedError)
    assert "new thread" in str(ticket.exception(0))
    Task(harness.driver.wait_written).result()
    Task(harness.driver.stop, LogClosedError()).result()


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_ticket_that_waits_for_a_leader_is_refused(in_flight: int) -> None:
    """Queue a ticket while all places are taken, and leave no thread when they are given up: it is refused."""
    harness = DriverHarness(in_flight_max=in_flight)
    harness.place.hold()
    leaders: list[Task] = []
    while len(leaders) < in_flight:
        leaders.append(Task(harness.append, b"lead"))
        # A record that is queued before the last leader takes its frame goes with it, and its caller leads nothing.
        wait_until(lambda: len(harness.core.in_flight) == len(leaders), "the frame of the leader")
    assert harness.driver.election.leaders == in_flight
    ticket = harness.queued()
    with no_threads():
        harness.place.release()
        outcomes = [leader.result().exception(0) for leader in leaders]
        outcomes.append(ticket.exception(GUARD_S))
    # The first to give its place up finds no thread for the ticket; other frames are under way, and have failed then.
    assert outcomes[0] is None or in_flight > 1
    assert all(isinstance(outcome, LogPoisonedError | CommitFailedError | None) for outcome in outcomes)
    assert harness.driver.refusal is not None
    Task(harness.driver.stop, LogClosedError()).result()


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_task_is_woken_without_a_thread_for_callbacks(in_flight: int) -> None:
    """Have a callback and a task wait for one ticket, and no thread for the callback: the task continues anyway."""
    harness = DriverHarness(in_flight_max=in_flight)
    leading = harness.leader_in_write()
    wait_until(lambda: harness.core.in_flight, "the frame")
    ticket: Any = harness.core.in_flight[0].submissions[0]
    called: list[object] = []
    ticket.add_done_callback(called.append)

    async def wait_for_it() -> int:
        return (await asyncio.wait_for(ticket, GUARD_S)).last_lsn  # type: ignore[no-any-return]

    waiting = Task(lambda: asyncio.run(wait_for_it()))
    wait_until(lambda: ticket.task_wait is not None, "the task to wait")
    with no_threads():
        harness.place.release()
        assert leading.result().result(0).last_lsn == waiting.result() == 1
        wait_until(lambda: harness.driver.refusal is not None, "the poison")
        assert not called and not harness.driver.delivery.drain()
    Task(harness.driver.stop, LogClosedError()).result()
    assert called == [ticket]


class Patient:
    """A policy that waits for a time that does not come."""

    def decide(self, queue: QueueState) -> Take | Wait:
        return Wait(1 << 40)


def test_a_policy_whose_time_cannot_be_waited_for_is_dropped() -> None:
    """Hold a record back when no timer can be started: the policy is dropped, and the record is written at once."""
    harness = DriverHarness(policy=Patient())
    harness.clock = lambda: 1
    with no_threads():
        assert harness.append().result(0).last_lsn == 1
    Task(harness.driver.stop, LogClosedError()).result()
    wait_until(lambda: "walkit.policy.fail" in [name for name, _ in harness.events])
