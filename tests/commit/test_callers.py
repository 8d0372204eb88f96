"""Callers that wait for one frame: they let each other through, and an exception in one of them strands no other."""

from __future__ import annotations

import asyncio
import threading
from _thread import _count
from typing import Any

import pytest

from tests.support.fake_segments import DriverHarness, GatedSink, io_error
from tests.support.threads import Task, raise_in_thread, wait_until
from walkit.commit.asyncio_wait import is_woken_at_once
from walkit.commit.election import WriterPool
from walkit.commit.ticket import HAS_LEFT
from walkit.errors import LogClosedError, LogPoisonedError


class StruckError(Exception):
    """Raised by a test in a thread that waits."""


def waiting_callers(harness: DriverHarness, count: int) -> list[Task]:
    """Start a leader that hangs in its write, and `count` callers that wait for the next frame."""
    tasks = [harness.leader_in_write()]
    for number in range(count):
        tasks.append(Task(harness.append, b"%d" % number))
        wait_until(lambda number=number: len(harness.core.pending) == number + 1, "a caller to wait")  # type: ignore[misc]
    return tasks


def test_callers_of_one_frame_let_each_other_through() -> None:
    """Let twenty callers wait for one frame: all return, each with its own LSN, most of them let through by another."""
    harness = DriverHarness()
    tasks = waiting_callers(harness, 20)
    tickets: list[Any] = list(harness.core.pending)
    harness.place.release()
    assert sorted(task.result().first_lsn for task in tasks) == list(range(1, 22))
    assert len(harness.place.frames) == 2
    led_on = [t for t in tickets if t.next_latch is not None]
    assert len(led_on) == 17, "one led, two were let in by it, and the other seventeen each by another"
    assert {t.lead for t in tickets} == {HAS_LEFT}
    harness.driver.stop(LogClosedError())


@pytest.mark.parametrize("fails", [False, True])
def test_an_exception_in_a_waiting_caller_strands_no_other(fails: bool) -> None:
    """Raise an exception of another thread in each of nine waiting callers but one, then end the write: all return."""
    harness = DriverHarness()
    leader, *tasks = waiting_callers(harness, 9)
    for task in tasks[:-1]:
        raise_in_thread(task, StruckError)
    if fails:
        harness.place.fail("write", io_error())
    harness.place.release()
    leader.join()
    for task in tasks:
        task.join()
    assert all(isinstance(task.error, StruckError) for task in tasks[:-1])
    if not fails:
        assert tasks[-1].result().first_lsn == harness.core.acked_lsn == 10
        assert Task(harness.append, b"after").result().first_lsn == 11
    else:
        assert isinstance(tasks[-1].result().exception(0), LogPoisonedError)
    Task(harness.driver.stop, LogClosedError()).result()


class SinkError(Exception):
    """Raised by a sink, which never should."""


@pytest.mark.parametrize("in_flight_max", [1, 2])
@pytest.mark.parametrize("callers", [1, 5])
def test_an_internal_error_after_the_write_has_its_cause(in_flight_max: int, callers: int) -> None:
    """Let a sink raise when a written frame is acknowledged: every caller gets the cause, and the log is poisoned."""

    def broken(frame: Any) -> None:
        raise SinkError

    harness = DriverHarness(in_flight_max=in_flight_max, ack_sink=broken)
    harness.place.hold()
    tasks = [Task(harness.append) for _ in range(callers)]
    wait_until(lambda: harness.core.queued_lsn == callers, "all to be queued or in flight")
    harness.place.release()
    errors = [task.join().error or task.result().exception(0) for task in tasks]
    causes = [
        error if isinstance(error, SinkError) else getattr(error, "__cause__", None) for error in errors
    ]
    assert all(isinstance(cause, SinkError) for cause in causes), errors
    with pytest.raises(LogPoisonedError):
        harness.append(b"after")
    Task(harness.driver.stop, LogClosedError()).result()


class SlowToWake(asyncio.SelectorEventLoop):
    """A user's own event loop: its wake-up is user code."""

    woken_by: str = ""

    def call_soon_threadsafe(self, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        self.woken_by = threading.current_thread().name
        return super().call_soon_threadsafe(*arguments, **options)


@pytest.mark.parametrize("kind", [asyncio.SelectorEventLoop, SlowToWake])
def test_a_loop_that_is_not_asyncio_s_is_woken_by_the_delivery_thread(kind: type[Any]) -> None:
    """Await a ticket on asyncio's own loop and on one that overrides the wake-up: only this one waits for delivery."""
    harness = DriverHarness()
    leader = harness.leader_in_write()
    ticket = harness.queued()
    loop = kind()
    assert is_woken_at_once(loop) is (kind is asyncio.SelectorEventLoop)

    async def main() -> int:
        return int((await ticket).first_lsn)

    task = Task(loop.run_until_complete, main())
    wait_until(lambda: ticket.task_wait is not None or ticket.callbacks, "the loop to wait")
    assert (ticket.callbacks is None) is (kind is asyncio.SelectorEventLoop)
    harness.place.release()
    assert task.result() == 2 and leader.result()
    assert getattr(loop, "woken_by", "walkit-delivery").startswith("walkit-delivery")
    loop.close()
    harness.driver.stop(LogClosedError())


def test_a_ticket_shows_its_state() -> None:
    """Show a ticket that waits, is on the way, is acknowledged, has failed and was refused: each shows its state."""
    place = GatedSink()
    harness = DriverHarness(place=place)
    assert repr(harness.ticket()) == "<Ticket: 1 record, waiting>"
    ticket = harness.queued()
    wait_until(lambda: ticket.frame is not None and ticket.frame.position in place.gates, "the write")
    assert repr(ticket) == "<Ticket: 1 record from LSN 1, on the way>"
    assert ticket.frame is not None
    place.let(ticket.frame)
    ticket.result()
    assert repr(ticket) == "<Ticket: 1 record from LSN 1, acknowledged>"
    failing, behind = harness.queued(), harness.queued()
    wait_until(lambda: failing.frame is not None and failing.frame.position in place.gates, "the write")
    assert failing.frame is not None
    place.let(failing.frame, io_error())
    assert failing.exception() is not None and behind.exception() is not None
    assert repr(failing).startswith("<Ticket: 1 record, failed: StorageError(")
    assert repr(behind).startswith("<Ticket: 1 record, ")
    harness.driver.stop(LogClosedError())


def test_a_writer_thread_that_is_being_started_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close while a writer thread runs and its start has not returned: it ends."""
    writers = WriterPool("test", 1, lambda: None)
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_and_close(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("walkit-commit"):
            started.append(thread)
            closing.append(Task(writers.close))
            closing[0].thread.join(0.2)

    closing: list[Task] = []
    monkeypatch.setattr(threading.Thread, "start", start_and_close)
    writers.wake()
    monkeypatch.undo()
    closing[0].result()
    wait_until(lambda: not started[0].is_alive(), "the writer thread to end")


def test_a_writer_thread_is_not_started_after_close() -> None:
    """Close while a start that the main thread has handed on waits for its turn: it starts none."""
    looks = list[str]()
    writers, others = WriterPool("test", 2, lambda: looks.append(threading.current_thread().name)), _count()
    with writers.starting:
        writers.wake()
        wait_until(lambda: _count() == others + 1, "the start to be handed on")
        writers.close()
    wait_until(lambda: _count() == others, "the thread that starts others to end")
    assert not looks and not writers.running
