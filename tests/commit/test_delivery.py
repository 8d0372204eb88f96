"""Delivery: one thread, in order, under no lock; errors of user code there hurt no other code."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import pytest

from tests.support.fake_segments import DriverHarness, io_error
from tests.support.interrupts import Strike
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.commit.ticket import SingleTicket, Ticket
from walkit.errors import CommitFailedError, LogClosedError


def note(event: threading.Event, _: Ticket) -> None:
    """Be a callback that says it was called."""
    event.set()


@pytest.fixture
def harness() -> Iterator[DriverHarness]:
    """A driver, stopped at the end."""
    made = DriverHarness()
    yield made
    made.place.release()
    made.driver.stop(LogClosedError("the test is over"))


def test_callbacks_come_in_lsn_order_on_one_thread(harness: DriverHarness) -> None:
    """Add a callback to each of 300 tickets from four threads: one thread calls them, LSNs grow."""
    seen: list[tuple[int, str]] = []

    def work() -> None:
        for _ in range(75):
            ticket = harness.ticket()
            ticket.callbacks = [lambda t: seen.append((t.first_lsn, threading.current_thread().name))]
            assert harness.driver.enqueue(ticket)

    for task in [Task(work) for _ in range(4)]:
        task.result()
    wait_until(lambda: len(seen) == 300, "all callbacks")
    assert [lsn for lsn, _ in seen] == list(range(1, 301))
    assert {name for _, name in seen} == {"walkit-delivery test"}


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError(), SystemExit(3)])
def test_a_callback_that_raises_is_an_event_and_nothing_else(
    harness: DriverHarness, error: BaseException
) -> None:
    """Raise anything from callbacks: reported (an observer's first alone), and the next callbacks are called."""
    seen: list[Any] = []

    def bad(_: Any) -> None:
        raise error

    raised = harness.driver.delivery.add_observer(bad)
    harness.driver.delivery.add_observer(lambda frame: seen.append(frame.first_lsn))
    ticket = harness.ticket()
    ticket.callbacks = [bad, seen.append]
    harness.driver.enqueue(ticket)
    ticket.result(GUARD_S)
    harness.queued().result(GUARD_S)
    wait_until(lambda: len(seen) == 3, "those after the one that raised")
    assert seen == [ticket, 1, 2]
    wait_until(lambda: len(harness.events) == 2, "the events, which another thread sends")
    assert [name for name, _ in harness.events] == ["walkit.callback.fail"] * 2
    assert (raised.count, harness.driver.delivery.errors) == (2, 3)
    assert type(error).__name__ in harness.events[0][1]["error"]


def test_a_callback_that_blocks_delays_no_append(harness: DriverHarness) -> None:
    """Block the delivery thread: appends, waits and syncs continue, and delayed callbacks are called afterwards."""
    entered, go_on, seen = threading.Event(), threading.Event(), list[Any]()

    def block(_: Ticket) -> None:
        entered.set()
        assert go_on.wait(GUARD_S)

    first = harness.queued()
    first.add_done_callback(block)
    assert entered.wait(GUARD_S)
    for _ in range(10):
        harness.append().outcome()
    later = harness.queued()
    later.add_done_callback(lambda t: seen.append(t.first_lsn))
    assert later.result(GUARD_S).first_lsn == 12
    assert seen == []
    assert harness.driver.delivery.waiting >= 1
    assert not harness.driver.delivery.drain(0.01)
    go_on.set()
    assert harness.driver.delivery.drain(GUARD_S)
    wait_until(lambda: seen == [12])


def test_a_callback_added_after_the_end_is_called_soon(harness: DriverHarness) -> None:
    """Add a callback after the acknowledgement: it is called on the delivery thread, not on the caller's."""
    ticket = harness.queued()
    ticket.result(GUARD_S)
    threads: list[str] = []
    ticket.add_done_callback(lambda _: threads.append(threading.current_thread().name))
    wait_until(lambda: threads)
    assert threads == ["walkit-delivery test"]


def test_a_callback_added_after_the_end_is_still_called() -> None:
    """Stop the driver, then add callbacks: the thread has ended, and they are called all the same."""
    harness = DriverHarness()
    ticket = harness.queued()
    ticket.result(GUARD_S)
    harness.driver.stop(LogClosedError("over"))
    for attempt in range(3):
        called = threading.Event()
        ticket.add_done_callback(partial(note, called))
        assert called.wait(GUARD_S), attempt


def test_an_observer_sees_every_frame_from_its_beginning_on_and_no_gap(harness: DriverHarness) -> None:
    """Observe while a frame with a callback is held up, and one without passed: neither is seen, all later ones are."""
    entered, go_on, seen = threading.Event(), threading.Event(), list[Any]()

    def block(_: Ticket) -> None:
        entered.set()
        assert go_on.wait(GUARD_S)

    harness.queued().add_done_callback(block)
    assert entered.wait(GUARD_S)
    held_up = harness.ticket()
    held_up.callbacks = [lambda _: None]
    harness.driver.enqueue(held_up)
    held_up.result(GUARD_S)
    harness.append(b"without anybody to tell")
    harness.driver.delivery.add_observer(lambda frame: seen.append(frame.first_lsn))
    harness.append()
    harness.append()
    go_on.set()
    wait_until(lambda: len(seen) == 2)
    assert seen == [4, 5]


def test_an_observer_that_left_is_not_called_again(harness: DriverHarness) -> None:
    """Leave while frames for the observer are queued: none of them reaches it."""
    entered, go_on, seen = threading.Event(), threading.Event(), list[Any]()

    def block(frame: Any) -> None:
        entered.set()
        assert go_on.wait(GUARD_S)

    harness.driver.delivery.add_observer(block)
    harness.driver.delivery.add_observer(seen.append)
    harness.append()
    assert entered.wait(GUARD_S)
    harness.append()
    harness.driver.delivery.remove_observer(seen.append)
    go_on.set()
    assert harness.driver.delivery.drain(GUARD_S)
    assert seen == []
    assert harness.driver.delivery.observers == (block,)


def test_observers_that_come_and_go_at_once_are_not_lost(harness: DriverHarness) -> None:
    """Come and go on four threads with the shortest switching: who came and did not leave is there at the end."""
    delivery = harness.driver.delivery
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def come_and_go() -> Any:
            for _ in range(400):
                observer = object().__eq__
                delivery.add_observer(observer)
                delivery.remove_observer(observer)
            stays = object().__eq__
            delivery.add_observer(stays)
            return stays

        stay = [task.result() for task in [Task(come_and_go) for _ in range(4)]]
    finally:
        sys.setswitchinterval(before)
    assert sorted(map(repr, delivery.observers)) == sorted(map(repr, stay))


@pytest.mark.parametrize(("in_flight_max", "completion"), [(1, False), (2, False), (2, True)])
def test_a_bell_rings_after_each_frame_and_needs_no_thread(in_flight_max: int, completion: bool) -> None:
    """Append alone, by one and in groups: the waker is called once the records are acknowledged, by who wrote them."""
    harness = DriverHarness(in_flight_max=in_flight_max, completion_order=completion)
    calls: list[tuple[int, str]] = []

    def waker() -> None:
        calls.append((harness.core.acked_lsn, threading.current_thread().name))

    harness.driver.delivery.add_waker(waker)
    try:
        for _ in range(3):
            harness.append()
        assert [lsn for lsn, _ in calls] == [1, 2, 3]
        harness.queued()
        harness.append()
        wait_until(lambda: harness.core.acked_lsn == 5 and calls[-1][0] == 5, "the call of the last frame")
        assert not any("delivery" in name for _, name in calls)
        harness.driver.delivery.remove_waker(waker)
        before = len(calls)
        harness.append()
        assert len(calls) == before and harness.driver.delivery.wakers == ()
    finally:
        harness.driver.stop(LogClosedError("the test is over"))


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_closed_loop_hurts_no_other(harness: DriverHarness, cancelled: bool) -> None:
    """Close a loop whose task awaits a ticket, cancelled before or not: only the second is an event; others go on."""
    leader = harness.leader_in_write()
    ticket = harness.queued()

    async def settled() -> None:
        await ticket

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # asyncio, too, says that a task was left
    task = loop.create_task(settled())
    loop.run_until_complete(asyncio.sleep(0))
    if cancelled:
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
    loop.close()
    after = harness.queued()
    harness.place.release()
    leader.result()
    assert ticket.result(GUARD_S).first_lsn == 2 and after.result(GUARD_S).first_lsn == 3
    harness.driver.stop(LogClosedError())
    wait_until(
        lambda: [name for name, _ in harness.events] == ([] if cancelled else ["walkit.callback.fail"])
    )


def test_a_delivered_frame_is_not_kept_alive(harness: DriverHarness) -> None:
    """Deliver a frame and drop every own reference: its tickets are collected while the thread sleeps."""

    class Weak(SingleTicket):
        __slots__ = ("__weakref__",)

    ticket = Weak(harness.driver, 1, b"", b"")
    called = threading.Event()
    ticket.callbacks = [lambda _: called.set()]
    harness.driver.enqueue(ticket)
    assert called.wait(GUARD_S)
    assert harness.driver.delivery.drain(GUARD_S)
    reference = weakref.ref(ticket)
    del ticket
    harness.place.frames.clear()
    wait_until(lambda: gc.collect() >= 0 and reference() is None, "the ticket to be collected")


@pytest.mark.parametrize(
    ("in_flight_max", "completion", "waits"),
    [(1, False, False), (1, True, True), (3, False, True), (3, True, False)],
)
def test_a_fully_delivered_frame_is_not_kept(in_flight_max: int, completion: bool, waits: bool) -> None:
    """Append and submit under each order of acknowledgement: nothing of the log keeps the frames."""
    harness = DriverHarness(in_flight_max=in_flight_max, completion_order=completion)
    frames: list[weakref.ref[Any]] = []
    for n in range(4):
        if waits:
            Task(harness.put, b"%d" % n).result()
        else:
            harness.putted(b"%d" % n).result(GUARD_S)
        frames.append(weakref.ref(harness.place.frames[-1]))
        harness.place.frames.clear()
        harness.place.assigned.clear()
    harness.driver.stop(LogClosedError())
    wait_until(
        lambda: gc.collect() >= 0 and not any(frame() for frame in frames), "the frames to be collected"
    )


def test_many_threads_wait_for_one_ticket(harness: DriverHarness) -> None:
    """Wait for one ticket on twelve threads, with and without a timeout: all get the same answer."""
    leader = harness.leader_in_write()
    ticket = harness.queued()
    waiting = [Task(ticket.result, None if n % 2 else GUARD_S) for n in range(12)]
    with pytest.raises(TimeoutError, match="still on their way"):
        ticket.result(0.01)
    with pytest.raises(TimeoutError):
        ticket.exception(0)
    assert not ticket.done()
    harness.place.release()
    leader.result()
    assert {task.result() for task in waiting} == {ticket.outcome()}
    assert ticket.exception() is None


def test_many_threads_get_one_failure(harness: DriverHarness) -> None:
    """Fail a write that eight threads wait for: each gets an error object of its own, with the cause."""
    harness.place.hold()
    ticket = harness.queued()
    assert harness.place.entered.wait(GUARD_S)
    waiting = [Task(ticket.result) for _ in range(8)]
    cause = io_error()
    harness.place.fail("write", cause)
    harness.place.release()
    errors = [task.join().error for task in waiting]
    assert {type(e) for e in errors} == {CommitFailedError}
    assert all(e is not None and e.__cause__ is cause for e in errors)
    assert len({id(e) for e in errors}) == 8


def test_an_interrupted_wait_for_deliveries_stops_none() -> None:
    """Strike a wait for deliveries at each point of a possible signal: the next callback is delivered."""
    for number in count(1):
        harness, go_on, called = DriverHarness(), threading.Event(), list[object]()

        def slow(ticket: object, go_on: threading.Event = go_on, called: list[object] = called) -> None:
            assert go_on.wait(GUARD_S)
            called.append(ticket)

        harness.queued().add_done_callback(slow)
        wait_until(lambda harness=harness: harness.driver.delivery._busy, "the delivery")  # type: ignore[misc]
        strike = Strike(number)
        with suppress(KeyboardInterrupt):
            strike.run(lambda harness=harness: harness.driver.delivery.drain(0.05))  # type: ignore[misc]
        go_on.set()
        harness.queued().add_done_callback(slow)
        wait_until(lambda called=called: len(called) == 2, f"the second delivery, after {strike.where}")  # type: ignore[misc]
        harness.driver.stop(LogClosedError())
        if not strike.where:
            break
    assert number > 5, "the wait has as many points as that"
