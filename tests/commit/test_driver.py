"""The thread driver on a place that can be held up and failed: who leads, who waits, and what failures do."""

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
def rigs() -> Iterator[list[DriverHarness]]:
    """Rigs to be stopped at the end; stopping must never hang."""
    made: list[DriverHarness] = []
    yield made
    for rig in made:
        rig.place.release()
        Task(rig.driver.stop, LogClosedError("the test is over")).result()


def test_a_caller_that_is_handed_the_lead_leads_until_its_own_record_is_written(
    rigs: list[DriverHarness],
) -> None:
    """Queue many frames between a leader and a waiting caller: the caller is handed the lead for frames without it."""
    rig = DriverHarness(frame_bytes_max=4096)
    rigs.append(rig)
    leader = rig.leader_in_write()
    between = [rig.queued(bytes(3900)) for _ in range(5)]
    waiting = Task(rig.append, b"mine")
    wait_until(lambda: rig.core.pending_records == 6, "the caller to wait")
    rig.place.release()
    assert leader.result().outcome().last_lsn == 1
    assert waiting.result().outcome().first_lsn == 7
    assert [t.result(GUARD_S).first_lsn for t in between] == [2, 3, 4, 5, 6]
    assert [f.first_lsn for f in rig.place.frames] == [1, 2, 3, 4, 5, 6, 7]


def test_a_sync_that_fails_between_taking_and_sealing_leaves_nobody_waiting(
    rigs: list[DriverHarness],
) -> None:
    """Fail a sync in the very moment before a frame is sealed: its caller is told the outcome is unknown."""
    rig = DriverHarness(sync_writes=False)
    rigs.append(rig)
    rig.append(b"written and not synced")
    rig.place.fail("sync", io_error())

    def fail_now() -> int:
        rig.clock = lambda: 0
        assert isinstance(Task(rig.driver.sync).join().error, StorageError)
        return 0

    rig.clock = fail_now
    ticket = rig.ticket()
    assert Task(rig.driver.append, ticket).result()
    with pytest.raises(CommitFailedError):
        ticket.result(0)
    with pytest.raises(LogPoisonedError):
        rig.driver.enqueue(rig.ticket())


def test_a_caller_that_got_the_lead_and_a_failure_at_once_gives_the_lead_back(
    rigs: list[DriverHarness],
) -> None:
    """Fail a sync while the lead is being handed on: the successor is refused, and stopping does not hang."""
    rig = DriverHarness(sync_writes=False, frame_bytes_max=4096)
    rigs.append(rig)
    leader = rig.leader_in_write()
    waiting = Task(rig.append, b"successor")
    wait_until(lambda: rig.core.pending_records == 1, "the successor to wait")
    rig.place.fail("sync", io_error())
    failed: list[BaseException] = []

    def fail_now() -> None:
        with pytest.raises(StorageError) as caught:
            rig.driver.sync()
        failed.append(caught.value)

    rig.driver.on_room(fail_now)
    rig.place.release()
    leader.result()
    with pytest.raises(LogPoisonedError):
        waiting.result().result(0)
    assert failed
    Task(rig.driver.stop, LogClosedError("over")).result()


def busy(rig: DriverHarness) -> bool:
    """Whether the log has acknowledged a few records."""
    return rig.core.acked_lsn > 20


def test_failing_syncs_under_load_leave_nobody_waiting() -> None:
    """Fail the sync of a busy log in many rounds: every caller is told something, and stopping never hangs."""
    for _ in range(30):
        rig = DriverHarness(sync_writes=False)
        rig.append()

        def work(rig: DriverHarness = rig) -> type[BaseException]:
            while True:
                ticket = rig.ticket()
                try:
                    rig.driver.append(ticket)
                    ticket.result(0)
                except (CommitFailedError, LogPoisonedError) as error:
                    return type(error)

        tasks = [Task(work) for _ in range(6)]
        wait_until(partial(busy, rig), "some load")
        rig.place.fail("sync", io_error())
        with pytest.raises(StorageError):
            rig.driver.sync()
        assert {t.result() for t in tasks} <= {CommitFailedError, LogPoisonedError}
        Task(rig.driver.stop, LogClosedError("over")).result()


@pytest.mark.parametrize("completion", [False, True])
def test_no_lead_is_lost_when_another_leader_takes_the_record_of_a_successor(completion: bool) -> None:
    """Append from eight threads with four places, many rounds: all are acknowledged, and stopping finds no leader."""
    for _ in range(25):
        rig = DriverHarness(in_flight_max=4, completion_order=completion, policy=CappedFrames(records=2))

        def work(rig: DriverHarness = rig) -> list[int]:
            return [rig.append().first_lsn for _ in range(20)]

        told = [lsn for task in [Task(work) for _ in range(8)] for lsn in task.result()]
        assert sorted(told) == list(range(1, 161))
        Task(rig.driver.stop, LogClosedError("over")).result()
        assert rig.driver.election.leaders == 0


def test_an_error_that_is_no_storage_error_poisons_too(rigs: list[DriverHarness]) -> None:
    """Raise something unforeseen in the write: the caller is not left waiting, and the log takes no more."""
    rig = DriverHarness()
    rigs.append(rig)
    rig.place.fail("write", ZeroDivisionError("a bug"))
    with pytest.raises(CommitFailedError) as failed:
        rig.append().result(0)
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    with pytest.raises(LogPoisonedError):
        rig.append()


def test_a_sync_covers_what_was_written_before_it_began(rigs: list[DriverHarness]) -> None:
    """Append while a sync is under way: the durable mark stops where the sync began (B15)."""
    rig = DriverHarness(sync_writes=False)
    rigs.append(rig)
    rig.append(b"before")
    end = rig.core.written_position
    rig.place.before_sync = lambda: Task(rig.append, b"meanwhile").result()
    rig.driver.sync()
    assert (rig.core.durable_position, rig.core.durable_lsn, rig.core.acked_lsn) == (end, 1, 2)
    assert rig.place.published == [(end, 1)]
    rig.place.before_sync = lambda: None
    rig.driver.sync()
    assert rig.core.durable_lsn == 2


def test_waiting_for_what_was_queued_does_not_wait_for_what_comes_later(rigs: list[DriverHarness]) -> None:
    """Keep the queue from ever being empty: `wait_acked` returns once the records of its moment are acknowledged."""
    rig = DriverHarness(frame_bytes_max=4096)
    rigs.append(rig)
    leader = rig.leader_in_write()
    rig.queued()
    waiting = Task(rig.driver.wait_acked)
    wait_until(lambda: rig.driver.signal.waiting == 1, "the waiter")

    def refill() -> None:
        if waiting.thread.is_alive():
            if rig.core.pending_records < 4:
                rig.queued(bytes(3000))
            rig.driver.on_room(refill)

    for _ in range(3):
        rig.queued(bytes(3000))
    rig.driver.on_room(refill)
    rig.place.release()
    leader.result()
    waiting.result()


def test_a_full_queue_takes_no_more_and_one_record_always_fits_an_empty_one(
    rigs: list[DriverHarness],
) -> None:
    """Fill the queue behind a held write: False for callers and tickets, room is told when the frame is taken."""
    rig = DriverHarness(queue_bytes_max=100)
    rigs.append(rig)
    leader = rig.leader_in_write()
    large = rig.queued(bytes(150))
    assert not rig.driver.enqueue(rig.ticket())
    assert not rig.driver.append(rig.ticket())
    assert not rig.driver.wait_for_room(22, 0.01)
    room = Task(rig.driver.wait_for_room, 22, GUARD_S)
    told: list[str] = []
    rig.driver.on_room(lambda: told.append("room"))
    assert told == []
    rig.place.release()
    leader.result()
    assert room.result() is True
    large.result(GUARD_S)
    wait_until(lambda: told == ["room"])


def test_room_is_told_when_a_frame_is_taken_not_when_it_has_landed(rigs: list[DriverHarness]) -> None:
    """Wait for room behind a full queue whose frame is then taken and hangs: the waiter goes on all the same."""
    place = GatedSink()
    rig = DriverHarness(place=place, queue_bytes_max=100)
    rigs.append(rig)
    first = rig.queued()
    wait_until(lambda: len(place.gates) == 1, "the first write")
    large = rig.queued(bytes(150))
    room = Task(rig.driver.wait_for_room, 22, None)
    wait_until(lambda: rig.driver.signal.waiting == 1, "the waiter")
    assert first.frame is not None
    place.let(first.frame)
    assert room.result() is True
    assert not large.done()
    assert rig.queued().frame is None


def test_withdrawing_makes_room(rigs: list[DriverHarness]) -> None:
    """Withdraw what fills the queue while a caller waits for room: it is woken."""
    rig = DriverHarness(queue_bytes_max=100)
    rigs.append(rig)
    rig.leader_in_write()
    large = rig.queued(bytes(150))
    room = Task(rig.driver.wait_for_room, 22, None)
    wait_until(lambda: rig.driver.signal.waiting == 1, "the waiter")
    assert rig.driver.withdraw(large)
    assert room.result() is True


def test_poison_is_told_once_and_carries_its_cause(rigs: list[DriverHarness]) -> None:
    """Fail two writes in flight, one after the other: one event; every refusal names the first cause."""
    place = GatedSink()
    rig = DriverHarness(place=place, in_flight_max=2, policy=OneRecordPerFrame())
    rigs.append(rig)
    first, second = rig.in_flight(2)
    tickets: list[Any] = [*first.submissions, *second.submissions]
    queued = rig.queued()
    causes = io_error("second"), io_error("first")
    place.let(second, causes[0])
    with pytest.raises(LogPoisonedError) as refused:
        queued.result(GUARD_S)
    place.let(first, causes[1])
    with pytest.raises(CommitFailedError) as failed:
        tickets[0].result(GUARD_S)
    assert failed.value.__cause__ is causes[1]
    with pytest.raises(LogPoisonedError) as later:
        rig.driver.enqueue(rig.ticket())
    for error in (refused.value, later.value):
        assert error.__cause__ is causes[0]
        assert error.cause == repr(causes[0])
    assert pickle.loads(pickle.dumps(later.value)).cause == repr(causes[0])
    wait_until(lambda: [name for name, _ in rig.events] == ["walkit.log.poison"])


def test_observers_that_come_between_two_frames_of_one_landing_miss_none_after(
    rigs: list[DriverHarness],
) -> None:
    """Add an observer while several frames are released at once: from the first it sees on, it sees every one."""
    place = GatedSink()
    rig = DriverHarness(place=place, in_flight_max=4, policy=OneRecordPerFrame())
    rigs.append(rig)
    frames = rig.in_flight(4)
    seen: list[int] = []

    class Gate:
        """Stands in for a waiter's lock: opening it adds the observer in the midst of the release."""

        def release(self) -> None:
            rig.driver.delivery.add_observer(lambda frame: seen.append(frame.first_lsn))

    frames[1].submissions[0].latch = Gate()
    for frame in frames:
        frame.submissions[0].callbacks = [lambda _: None]
    for frame in reversed(frames):
        place.let(frame)
    place.release()
    rig.queued().result(GUARD_S)
    wait_until(lambda: seen and seen[-1] == 5, "the observer")
    assert seen == list(range(seen[0], 6))


def test_a_sync_under_way_ends_before_stopping_does(rigs: list[DriverHarness]) -> None:
    """Stop while a sync hangs: stop waits for it, since what comes after stopping closes the files."""
    rig = DriverHarness(sync_writes=False)
    rigs.append(rig)
    rig.append()
    order: list[str] = []
    rig.place.hold()

    def hang() -> None:
        rig.place.entered.set()
        assert rig.place.released.wait(GUARD_S)
        order.append("synced")

    rig.place.before_sync = hang
    syncing = Task(rig.driver.sync)
    assert rig.place.entered.wait(GUARD_S)

    def stop() -> None:
        rig.driver.stop(LogClosedError("closed"))
        order.append("stopped")

    stopping = Task(stop)
    wait_until(lambda: rig.driver.refusal is not None, "the refusal")
    stopping.thread.join(0.2)
    rig.place.release()
    syncing.result()
    stopping.result()
    assert order == ["synced", "stopped"]


def test_a_failing_mark_poisons(rigs: list[DriverHarness]) -> None:
    """Fail the write of a mark: it is a write like any other."""
    rig = DriverHarness(idle_marker_us=2000)
    rigs.append(rig)
    rig.clock = lambda: time.monotonic_ns() // 1000
    rig.place.fail("mark", io_error())
    rig.append()
    wait_until(lambda: rig.core.failure is not None, "the mark to fail")
    with pytest.raises(LogPoisonedError):
        rig.append()


def test_a_tail_that_somebody_synced_is_promised_too(rigs: list[DriverHarness]) -> None:
    """Sync a log that has no interval, once its timer sleeps: when it is durable the idle tail gets its mark."""
    rig = DriverHarness(sync_writes=False, idle_marker_us=2000)
    rigs.append(rig)
    asked: list[int] = []

    def clock() -> int:
        asked.append(time.monotonic_ns() // 1000)
        return asked[-1]

    rig.clock = clock
    rig.append()
    wait_until(
        lambda: len(asked) >= 3,
        "the timer's last look before it sleeps: one for the frame, two for the timer",
    )
    rig.driver.sync()
    wait_until(lambda: rig.driver.counters.marks_written == 1, "the mark")


def test_a_lead_that_comes_to_a_caller_who_is_done_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promote a caller and let another leader write its record before it looks: append returns, and nobody leads."""
    place = GatedSink()
    rig = DriverHarness(place=place, in_flight_max=2, policy=OneRecordPerFrame())
    driver = rig.driver
    rig.in_flight(2)
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
    Task(rig.append, b"third").result()
    wait_until(lambda: driver.election.leaders == 0, "the lead to be given back")
    driver.stop(LogClosedError())


def test_waits_for_room_that_end_in_time_leave_nothing(rigs: list[DriverHarness]) -> None:
    """Wait for room many times while a frame hangs, each time in vain: no wait is kept for the next frame."""
    rig = DriverHarness(queue_bytes_max=10)
    rigs.append(rig)
    leading = rig.leader_in_write()
    rig.queued(b"x" * 10)
    for _ in range(50):
        assert not rig.driver.wait_for_room(10, 0.0001)
    assert rig.driver.signal.waiting == 0
    rig.place.release()
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
    rig = DriverHarness(place=place, in_flight_max=2, idle_marker_us=2000)
    rig.clock = lambda: time.monotonic_ns() // 1000
    first = rig.queued()
    wait_until(lambda: rig.core.in_flight, "the first frame")
    place.let(rig.core.in_flight[0])
    first.result(GUARD_S)
    wait_until(lambda: rig.core.in_flight and rig.core.in_flight[0].position in place.gates, "the marker")
    marker = rig.core.in_flight[0]
    assert not marker.count
    second = rig.queued()
    wait_until(lambda: second.frame is not None and second.frame.position in place.gates, "the second frame")
    looks: list[bool] = []
    rig.driver.failure.on_poison = lambda: looks.append(bool(rig.core.in_flight))
    assert second.frame is not None
    place.let(second.frame, io_error())
    with pytest.raises(CommitFailedError):
        second.result(GUARD_S)
    wait_until(lambda: looks == [True], "the first look")
    place.let(marker)
    wait_until(lambda: looks[-1:] == [False], "the look after the marker has landed")
    rig.driver.stop(LogClosedError("over"))


@pytest.mark.parametrize("way", ["alone", "in flight", "sync"])
def test_a_publication_that_fails_poisons(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the durable slot take no value, on each way to it: the log takes no more, and names the cause."""
    rig = DriverHarness(sync_writes=way != "sync", in_flight_max=2 if way == "in flight" else 1)

    def publish(position: int, lsn: int) -> None:
        raise io_error("no slot")

    monkeypatch.setattr(rig.place, "publish", publish)
    rig.append()
    if way == "sync":
        with pytest.raises(StorageError, match="no slot"):
            rig.driver.sync()
    assert isinstance(rig.driver.refusal, LogPoisonedError) and "no slot" in str(rig.driver.refusal)
    with pytest.raises(LogPoisonedError):
        rig.append()
    rig.driver.stop(LogClosedError())
