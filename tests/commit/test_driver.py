"""The thread driver on a place that can be held up and failed: leaders, waiters and failures."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.fake_segments import DriverHarness, GatedSink, io_error
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.commit.latches import CommitSignal, call_all
from walkit.commit.policy import CappedFrames, OneRecordPerFrame
from walkit.commit.ticket import TO_LEAD, LeaderState, SingleTicket
from walkit.errors import CommitFailedError, LogClosedError, LogPoisonedError, StorageError


@pytest.fixture
def harnesses() -> Iterator[list[DriverHarness]]:
    """Harnesses to be stopped at the end; stopping must never hang."""
    made: list[DriverHarness] = []
    yield made
    for harness in made:
        harness.place.release()
        Task(harness.driver.stop, LogClosedError("the test is over")).result()


def test_a_caller_that_is_handed_the_lead_leads_until_its_own_record_is_written(
    harnesses: list[DriverHarness],
) -> None:
    """Queue many frames between a leader and a waiting caller: the caller is handed the lead for frames without it."""
    harness = DriverHarness(frame_bytes_max=4096)
    harnesses.append(harness)
    leader = harness.leader_in_write()
    between = [harness.queued(bytes(3900)) for _ in range(5)]
    waiting = Task(harness.append, b"mine")
    wait_until(lambda: harness.core.pending_records == 6, "the caller to wait")
    harness.place.release()
    assert leader.result().outcome().last_lsn == 1
    assert waiting.result().outcome().first_lsn == 7
    assert [t.result(GUARD_S).first_lsn for t in between] == [2, 3, 4, 5, 6]
    assert [f.first_lsn for f in harness.place.frames] == [1, 2, 3, 4, 5, 6, 7]


def test_a_failed_sync_between_taking_and_sealing_ends_all_waits(
    harnesses: list[DriverHarness],
) -> None:
    """Fail a sync in the very moment before a frame is sealed: its caller gets an unknown outcome."""
    harness = DriverHarness(sync_writes=False)
    harnesses.append(harness)
    harness.append(b"written and not synced")
    harness.place.fail("sync", io_error())

    def fail_now() -> int:
        harness.clock = lambda: 0
        assert isinstance(Task(harness.driver.sync).join().error, StorageError)
        return 0

    harness.clock = fail_now
    ticket = harness.ticket()
    assert Task(harness.driver.append, ticket).result()
    with pytest.raises(CommitFailedError):
        ticket.result(0)
    with pytest.raises(LogPoisonedError):
        harness.driver.enqueue(harness.ticket())


def test_a_caller_that_got_the_lead_and_a_failure_at_once_gives_the_lead_back(
    harnesses: list[DriverHarness],
) -> None:
    """Fail a sync while the lead is being handed on: the successor is refused, and stopping does not hang."""
    harness = DriverHarness(sync_writes=False, frame_bytes_max=4096)
    harnesses.append(harness)
    leader = harness.leader_in_write()
    waiting = Task(harness.append, b"successor")
    wait_until(lambda: harness.core.pending_records == 1, "the successor to wait")
    harness.place.fail("sync", io_error())
    failed: list[BaseException] = []

    def fail_now() -> None:
        with pytest.raises(StorageError) as caught:
            harness.driver.sync()
        failed.append(caught.value)

    harness.driver.on_space(fail_now)
    harness.place.release()
    leader.result()
    with pytest.raises(LogPoisonedError):
        waiting.result().result(0)
    assert failed
    Task(harness.driver.stop, LogClosedError("over")).result()


def busy(harness: DriverHarness) -> bool:
    """Whether the log has acknowledged a few records."""
    return harness.core.acked_lsn > 20


def test_failing_syncs_under_load_end_all_waits() -> None:
    """Fail the sync of a busy log in many rounds: every caller gets a result, and stopping never hangs."""
    for _ in range(30):
        harness = DriverHarness(sync_writes=False)
        harness.append()

        def work(harness: DriverHarness = harness) -> type[BaseException]:
            while True:
                ticket = harness.ticket()
                try:
                    harness.driver.append(ticket)
                    ticket.result(0)
                except (CommitFailedError, LogPoisonedError) as error:
                    return type(error)

        tasks = [Task(work) for _ in range(6)]
        wait_until(partial(busy, harness), "some load")
        harness.place.fail("sync", io_error())
        with pytest.raises(StorageError):
            harness.driver.sync()
        assert {t.result() for t in tasks} <= {CommitFailedError, LogPoisonedError}
        Task(harness.driver.stop, LogClosedError("over")).result()


@pytest.mark.parametrize("completion", [False, True])
def test_no_lead_is_lost_when_another_leader_takes_the_record_of_a_successor(completion: bool) -> None:
    """Append from eight threads with four places, many rounds: all are acknowledged, and stopping finds no leader."""
    for _ in range(25):
        harness = DriverHarness(in_flight_max=4, completion_order=completion, policy=CappedFrames(records=2))

        def work(harness: DriverHarness = harness) -> list[int]:
            return [harness.append().first_lsn for _ in range(20)]

        told = [lsn for task in [Task(work) for _ in range(8)] for lsn in task.result()]
        assert sorted(told) == list(range(1, 161))
        Task(harness.driver.stop, LogClosedError("over")).result()
        assert harness.driver.election.leaders == 0


def test_an_unforeseen_error_poisons_too(harnesses: list[DriverHarness]) -> None:
    """Raise something unforeseen in the write: the caller is not left waiting, and the log takes no more."""
    harness = DriverHarness()
    harnesses.append(harness)
    harness.place.fail("write", ZeroDivisionError("a bug"))
    with pytest.raises(CommitFailedError) as failed:
        harness.append().result(0)
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    with pytest.raises(LogPoisonedError):
        harness.append()


def test_a_sync_covers_what_was_written_before_it_began(harnesses: list[DriverHarness]) -> None:
    """Append while a sync is under way: the durable mark stops where the sync began (B15)."""
    harness = DriverHarness(sync_writes=False)
    harnesses.append(harness)
    harness.append(b"before")
    end = harness.core.written_position
    harness.place.before_sync = lambda: Task(harness.append, b"meanwhile").result()
    harness.driver.sync()
    assert (harness.core.durable_position, harness.core.durable_lsn, harness.core.acked_lsn) == (end, 1, 2)
    assert harness.place.published == [(end, 1)]
    harness.place.before_sync = lambda: None
    harness.driver.sync()
    assert harness.core.durable_lsn == 2


def test_waiting_for_the_queue_ignores_later_records(
    harnesses: list[DriverHarness],
) -> None:
    """Keep the queue from ever being empty: `wait_acked` returns once the records of its moment are acknowledged."""
    harness = DriverHarness(frame_bytes_max=4096)
    harnesses.append(harness)
    leader = harness.leader_in_write()
    harness.queued()
    waiting = Task(harness.driver.wait_written)
    wait_until(lambda: harness.driver.signal.waiting == 1, "the waiter")

    def refill() -> None:
        if waiting.thread.is_alive():
            if harness.core.pending_records < 4:
                harness.queued(bytes(3000))
            harness.driver.on_space(refill)

    for _ in range(3):
        harness.queued(bytes(3000))
    harness.driver.on_space(refill)
    harness.place.release()
    leader.result()
    waiting.result()


def test_a_full_queue_takes_no_more_and_one_record_always_fits_an_empty_one(
    harnesses: list[DriverHarness],
) -> None:
    """Fill the queue during a held write: False for callers and tickets, room is reported when the frame is taken."""
    harness = DriverHarness(queue_bytes_max=100)
    harnesses.append(harness)
    leader = harness.leader_in_write()
    large = harness.queued(bytes(150))
    assert not harness.driver.enqueue(harness.ticket())
    assert not harness.driver.append(harness.ticket())
    assert not harness.driver.wait_for_room(22, 0.01)
    room = Task(harness.driver.wait_for_room, 22, GUARD_S)
    told: list[str] = []
    harness.driver.on_space(lambda: told.append("room"))
    assert told == []
    harness.place.release()
    leader.result()
    assert room.result() is True
    large.result(GUARD_S)
    wait_until(lambda: told == ["room"])


def test_room_is_reported_when_a_frame_is_taken(harnesses: list[DriverHarness]) -> None:
    """Wait for room in a full queue whose frame is then taken and hangs: the waiter continues anyway."""
    place = GatedSink()
    harness = DriverHarness(place=place, queue_bytes_max=100)
    harnesses.append(harness)
    first = harness.queued()
    wait_until(lambda: len(place.gates) == 1, "the first write")
    large = harness.queued(bytes(150))
    room = Task(harness.driver.wait_for_room, 22, None)
    wait_until(lambda: harness.driver.signal.waiting == 1, "the waiter")
    assert first.frame is not None
    place.let(first.frame)
    assert room.result() is True
    assert not large.done()
    assert harness.queued().frame is None


def test_withdrawing_makes_room(harnesses: list[DriverHarness]) -> None:
    """Withdraw the record that fills the queue while a caller waits for room: it is woken."""
    harness = DriverHarness(queue_bytes_max=100)
    harnesses.append(harness)
    harness.leader_in_write()
    large = harness.queued(bytes(150))
    room = Task(harness.driver.wait_for_room, 22, None)
    wait_until(lambda: harness.driver.signal.waiting == 1, "the waiter")
    assert harness.driver.withdraw(large)
    assert room.result() is True


def test_poison_is_reported_once_with_its_cause(harnesses: list[DriverHarness]) -> None:
    """Fail two writes in flight, one after the other: one event; every refusal names the first cause."""
    place = GatedSink()
    harness = DriverHarness(place=place, in_flight_max=2, policy=OneRecordPerFrame())
    harnesses.append(harness)
    first, second = harness.in_flight(2)
    tickets: list[Any] = [*first.submissions, *second.submissions]
    queued = harness.queued()
    causes = io_error("second"), io_error("first")
    place.let(second, causes[0])
    with pytest.raises(LogPoisonedError) as refused:
        queued.result(GUARD_S)
    place.let(first, causes[1])
    with pytest.raises(CommitFailedError) as failed:
        tickets[0].result(GUARD_S)
    assert failed.value.__cause__ is causes[1]
    with pytest.raises(LogPoisonedError) as later:
        harness.driver.enqueue(harness.ticket())
    for error in (refused.value, later.value):
        assert error.__cause__ is causes[0]
        assert error.cause == repr(causes[0])
    assert pickle.loads(pickle.dumps(later.value)).cause == repr(causes[0])
    wait_until(lambda: [name for name, _ in harness.events] == ["walkit.log.poison"])


def test_observers_that_come_between_two_frames_of_one_landing_miss_none_after(
    harnesses: list[DriverHarness],
) -> None:
    """Add an observer while several frames are released at once: from the first it sees on, it sees every one."""
    place = GatedSink()
    harness = DriverHarness(place=place, in_flight_max=4, policy=OneRecordPerFrame())
    harnesses.append(harness)
    frames = harness.in_flight(4)
    seen: list[int] = []

    class Gate:
        """Replaces a waiter's lock: opening it adds the observer during the release."""

        def release(self) -> None:
            harness.driver.delivery.add_observer(lambda frame: seen.append(frame.first_lsn))

    frames[1].submissions[0].latch = Gate()
    for frame in frames:
        frame.submissions[0].callbacks = [lambda _: None]
    for frame in reversed(frames):
        place.let(frame)
    place.release()
    harness.queued().result(GUARD_S)
    wait_until(lambda: seen and seen[-1] == 5, "the observer")
    assert seen == list(range(seen[0], 6))


def test_a_sync_under_way_ends_before_stopping_does(harnesses: list[DriverHarness]) -> None:
    """Stop while a sync hangs: stop waits for it, since the next step closes the files."""
    harness = DriverHarness(sync_writes=False)
    harnesses.append(harness)
    harness.append()
    order: list[str] = []
    harness.place.hold()

    def hang() -> None:
        harness.place.entered.set()
        assert harness.place.released.wait(GUARD_S)
        order.append("synced")

    harness.place.before_sync = hang
    syncing = Task(harness.driver.sync)
    assert harness.place.entered.wait(GUARD_S)

    def stop() -> None:
        harness.driver.stop(LogClosedError("closed"))
        order.append("stopped")

    stopping = Task(stop)
    wait_until(lambda: harness.driver.refusal is not None, "the refusal")
    stopping.thread.join(0.2)
    harness.place.release()
    syncing.result()
    stopping.result()
    assert order == ["synced", "stopped"]


def test_a_failing_mark_poisons(harnesses: list[DriverHarness]) -> None:
    """Fail the write of a mark: it is a write like any other."""
    harness = DriverHarness(idle_marker_us=2000)
    harnesses.append(harness)
    harness.clock = lambda: time.monotonic_ns() // 1000
    harness.place.fail("mark", io_error())
    harness.append()
    wait_until(lambda: harness.core.failure is not None, "the mark to fail")
    with pytest.raises(LogPoisonedError):
        harness.append()


def test_a_tail_that_somebody_synced_is_promised_too(harnesses: list[DriverHarness]) -> None:
    """Sync a log that has no interval, once its timer sleeps: when it is durable the idle tail gets its mark."""
    harness = DriverHarness(sync_writes=False, idle_marker_us=2000)
    harnesses.append(harness)
    asked: list[int] = []

    def clock() -> int:
        asked.append(time.monotonic_ns() // 1000)
        return asked[-1]

    harness.clock = clock
    harness.append()
    wait_until(
        lambda: len(asked) >= 3,
        "the timer's last look before it sleeps: one for the frame, two for the timer",
    )
    harness.driver.sync()
    wait_until(lambda: harness.driver.counters.marker_frames == 1, "the mark")


def test_a_lead_for_a_finished_caller_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promote a caller and let another leader write its record before it looks: append returns, and no one leads."""
    place = GatedSink()
    harness = DriverHarness(place=place, in_flight_max=2, policy=OneRecordPerFrame())
    driver = harness.driver
    harness.in_flight(2)
    enter = driver.leader._enter_and_lead

    def enter_late(ticket: SingleTicket, lead: LeaderState) -> Any:
        gate = enter(ticket, lead)
        with driver.lock:
            ticket.lead = TO_LEAD
            driver.election.leading[ticket.thread] = True
        place.release()
        wait_until(ticket.done, "the record written by another leader")
        return gate

    monkeypatch.setattr(driver.leader, "_enter_and_lead", enter_late)
    Task(harness.append, b"third").result()
    wait_until(lambda: driver.election.leaders == 0, "the lead to be given back")
    driver.stop(LogClosedError())


def test_waits_for_room_that_end_in_time_leave_nothing(harnesses: list[DriverHarness]) -> None:
    """Wait for room many times while a frame hangs, each time in vain: no wait is kept for the next frame."""
    harness = DriverHarness(queue_bytes_max=10)
    harnesses.append(harness)
    leading = harness.leader_in_write()
    harness.queued(b"x" * 10)
    for _ in range(50):
        assert not harness.driver.wait_for_room(10, 0.0001)
    assert harness.driver.signal.waiting == 0
    harness.place.release()
    leading.result()


def test_a_callback_that_comes_after_a_notification_is_called_by_the_next() -> None:
    """Ask to be called back when a notification that had none has been taken: only the next one returns the call."""
    signal = CommitSignal()
    called: list[int] = []
    with signal.lock:
        callbacks = signal.notify_locked()
        signal.call_next_locked(lambda: called.append(1))
    call_all(callbacks)
    assert not called
    signal.notify()
    signal.notify()
    assert called == [1]


def test_the_last_frame_to_land_in_a_failed_log_wakes_its_followers() -> None:
    """Fail a frame while the marker frame before it is being written: when that lands, followers look again."""
    place = GatedSink()
    harness = DriverHarness(place=place, in_flight_max=2, idle_marker_us=2000)
    harness.clock = lambda: time.monotonic_ns() // 1000
    first = harness.queued()
    wait_until(lambda: harness.core.in_flight, "the first frame")
    place.let(harness.core.in_flight[0])
    first.result(GUARD_S)
    wait_until(
        lambda: harness.core.in_flight and harness.core.in_flight[0].position in place.gates, "the marker"
    )
    marker = harness.core.in_flight[0]
    assert not marker.count
    second = harness.queued()
    wait_until(lambda: second.frame is not None and second.frame.position in place.gates, "the second frame")
    looks: list[bool] = []
    harness.driver.failure.on_poison = lambda: looks.append(bool(harness.core.in_flight))
    assert second.frame is not None
    place.let(second.frame, io_error())
    with pytest.raises(CommitFailedError):
        second.result(GUARD_S)
    wait_until(lambda: looks == [True], "the first look")
    place.let(marker)
    wait_until(lambda: looks[-1:] == [False], "the look after the marker has landed")
    harness.driver.stop(LogClosedError("over"))


@pytest.mark.parametrize("way", ["alone", "in flight", "sync"])
def test_a_publication_that_fails_poisons(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the durable slot take no value, on each way to it: the log takes no more, and names the cause."""
    harness = DriverHarness(sync_writes=way != "sync", in_flight_max=2 if way == "in flight" else 1)

    def publish(position: int, lsn: int) -> None:
        raise io_error("no slot")

    monkeypatch.setattr(harness.place, "publish", publish)
    harness.append()
    if way == "sync":
        with pytest.raises(StorageError, match="no slot"):
            harness.driver.sync()
    assert isinstance(harness.driver.refusal, LogPoisonedError) and "no slot" in str(harness.driver.refusal)
    with pytest.raises(LogPoisonedError):
        harness.append()
    harness.driver.stop(LogClosedError())
