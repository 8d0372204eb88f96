"""Foreign code on the commit path: an error of a sink, an observer or a policy leaves no caller waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest

import walkit
from tests.support.fake_segments import DriverHarness, GatedSink
from tests.support.logs import faulty_log, lsns, memory_log, reopened, tiny
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.commit.frame import SealedFrame
from walkit.commit.policy import OneRecordPerFrame, QueueState, Take
from walkit.errors import CallbackError, CommitFailedError, LogClosedError, LogPoisonedError
from walkit.models import CrashingStorage

Moment = Literal["writing", "wrote", "synced"]


class Asking:
    """Observes a log's writes, and at one moment, once, makes a call; keeps its result or error."""

    def __init__(self, moment: Moment, call: Callable[[], object]) -> None:
        self._moment, self._call = moment, call
        self.answers: list[object] = []

    def _ask(self, moment: Moment) -> None:
        if moment == self._moment and not self.answers:
            self.answers.append(None)
            try:
                self.answers[0] = self._call()
            except walkit.errors.WalkitError as error:
                self.answers[0] = error

    def writing(self, frame: SealedFrame) -> None:
        self._ask("writing")

    def wrote(self, frame: SealedFrame, began_ns: int, ended_ns: int) -> None:
        self._ask("wrote")

    def synced(self, began_ns: int, ended_ns: int) -> None:
        self._ask("synced")


@pytest.mark.parametrize("error", [ZeroDivisionError("a fault"), SystemExit(3)])
@pytest.mark.parametrize("completion", [False, True])
def test_a_sink_that_raises_in_a_run_of_frames_leaves_no_ticket_open(
    completion: bool, error: BaseException
) -> None:
    """Land the oldest of three frames last, and raise at the second: the first is acknowledged, none stays open."""

    def sink(frame: SealedFrame) -> None:
        if frame.first_lsn == 2:
            raise error

    place = GatedSink()
    harness = DriverHarness(
        place=place, in_flight_max=4, ack_sink=sink, completion_order=completion, policy=OneRecordPerFrame()
    )
    frames = harness.in_flight(3)
    tickets: list[Any] = [frame.submissions[0] for frame in frames]
    for frame in (frames[2], frames[1]):
        place.let(frame)
        wait_until(partial(getattr, frame, "written"), "a frame to land")
    place.let(frames[0])
    assert tickets[0].result(GUARD_S).last_lsn == 1
    for ticket in tickets[1:]:
        outcome = ticket.exception(GUARD_S)
        assert isinstance(outcome, CommitFailedError | None) and (completion or outcome is not None)
    wait_until(lambda: harness.driver.refusal is not None, "the poison")
    with pytest.raises(LogPoisonedError):
        harness.append()
    Task(harness.driver.stop, LogClosedError()).result()


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_sink_that_raises_fails_its_frame_and_poisons(in_flight: int) -> None:
    """Raise at the first of the frames of appends and tickets: each gets the error, and stopping ends."""

    def sink(frame: SealedFrame) -> None:
        raise ZeroDivisionError("a fault")

    harness = DriverHarness(in_flight_max=in_flight, ack_sink=sink)
    with pytest.raises((CommitFailedError, LogPoisonedError)):
        Task(harness.put).result()
    with pytest.raises(LogPoisonedError, match="a fault"):
        harness.queued()
    Task(harness.driver.stop, LogClosedError()).result()


CALLS: dict[str, Callable[[walkit.WriteAheadLog], object]] = {
    "append": lambda log: log.append(b"within"),
    "append with a time": lambda log: log.append(b"within", timeout=60),
    "append_many": lambda log: log.append_many([bytes(5000)] * 5),
    "the result of a ticket": lambda log: log.submit(b"within").result(),
    "sync": lambda log: log.sync(),
}


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("moment", ["writing", "wrote"])
@pytest.mark.parametrize("name", CALLS)
def test_an_observer_of_writes_that_would_wait_for_itself_is_refused(
    name: str, moment: Moment, in_flight: int
) -> None:
    """Wait for the log in the thread of a frame's write: CallbackError instead of a hang, and the frame lands."""
    log = memory_log(in_flight=in_flight)
    observer = Asking(moment, lambda: CALLS[name](log))
    log.observe_writes(observer)
    assert Task(log.append, b"observed").result().first_lsn == 1
    assert isinstance(observer.answers[0], CallbackError)
    Task(log.close).result()


def test_an_observer_of_a_sync_may_not_sync() -> None:
    """Sync on the thread that syncs, from its observer: CallbackError, and the first sync succeeds."""
    log = memory_log(durability="none")
    observer = Asking("synced", log.sync)
    log.observe_writes(observer)
    log.append(b"first")
    assert Task(log.sync).result() == 1
    assert isinstance(observer.answers[0], CallbackError)
    log.close()


@pytest.mark.parametrize("in_flight", [1, 4])
def test_an_observer_of_writes_may_close_the_log(in_flight: int) -> None:
    """Close the log in the thread of a frame's write: the call returns, the frame lands, and the log closes."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny(in_flight=in_flight))
    log.observe_writes(Asking("writing", log.close))
    assert Task(log.append, b"observed").result().first_lsn == 1
    wait_until(lambda: log.closed and not storage.is_locked("lock"), "the log to be closed")
    assert lsns(reopened(storage)) == [1]


class Leaving:
    """A policy that raises a BaseException after so many questions."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def decide(self, queue: QueueState) -> Take:
        self.left -= 1
        if not self.left:
            raise asyncio.CancelledError
        return Take(records=1)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_policy_may_raise_a_base_exception(in_flight: int) -> None:
    """Raise a CancelledError at each of the first questions: the policy is dropped, all is written, closing ends."""
    for questions in range(1, 12):
        log = memory_log(in_flight=in_flight, policy=Leaving(questions))
        callers = [Task(log.append, b"caller") for _ in range(3)]
        tickets = [log.submit(b"ticket") for _ in range(3)]
        assert sorted(c.result().first_lsn for c in callers) + sorted(
            t.result(GUARD_S).first_lsn for t in tickets
        )
        assert log.acked_lsn == 6
        Task(log.close).result()


class StubbornLoop(asyncio.SelectorEventLoop):
    """A foreign loop, which cannot be woken once the test sets `broken`."""

    broken = False

    def call_soon_threadsafe(self, *arguments: Any, **named: Any) -> Any:  # type: ignore[override]
        if self.broken:
            raise ZeroDivisionError("a fault of the loop")
        return super().call_soon_threadsafe(*arguments, **named)


def test_a_loop_that_cannot_be_woken_keeps_no_caller_waiting() -> None:
    """Fill the queue so that a task waits for room, and break its loop: the log goes on, and it is an event."""
    rig_storage, log = faulty_log(queue_bytes_max=8192)
    seen: list[str] = []
    log.events.add_listener(lambda name, facts: seen.append(name))
    hang = rig_storage.hang("synced_write", "*.segment")
    leading = Task(log.append, b"leads")
    assert hang.entered.wait(GUARD_S)
    loop = StubbornLoop()

    async def fill() -> None:
        log.submit(bytes(7000))
        waiting = asyncio.ensure_future(log.append_async(bytes(7000)))
        await asyncio.sleep(0)
        assert not waiting.done()

    running = Task(lambda: loop.run_until_complete(fill()))
    wait_until(lambda: log.statistics().queue_bytes >= 7000, "a full queue")
    running.join()
    loop.broken = True
    hang.release()
    assert leading.result().first_lsn == 2
    assert Task(log.append, b"later").result().first_lsn == 4
    wait_until(lambda: "walkit.callback.fail" in seen, "the event")
    assert "walkit.log.poison" not in seen
    Task(log.close).result()
    loop.broken = False
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_an_event_callback_may_append_when_a_loop_is_closed() -> None:
    """Close a loop whose task waits for a record, and append in the callback of that event: no thread hangs."""
    storage, log = faulty_log()
    appended: list[int] = []

    def note(name: str, facts: dict[str, Any]) -> None:
        if name == "walkit.callback.fail":
            appended.append(log.append(b"noted").last_lsn)

    log.events.add_listener(note)
    hang = storage.hang("synced_write", "*.segment")
    leading = Task(log.append, b"leads")
    assert hang.entered.wait(GUARD_S)
    loop = asyncio.new_event_loop()

    async def wait_for_record() -> asyncio.Task[Any]:
        waiting = asyncio.ensure_future(log.append_async(b"waited for"))
        await asyncio.sleep(0)
        return waiting

    waiting = loop.run_until_complete(wait_for_record())
    loop.close()
    hang.release()
    leading.join()
    wait_until(lambda: appended, "the append of the callback")
    Task(log.close).result()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # it is never run again, which is meant here
    assert lsns(reopened(storage.inner))[-1] == appended[0] == 4
