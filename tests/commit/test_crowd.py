"""A crowd of callers: the writer thread leads for them, from frame to frame, and no caller is left waiting."""

from __future__ import annotations

import threading

import pytest

from tests.support.fake_segments import DriverHarness, Sink, io_error
from tests.support.threads import GUARD_S, Task, wait_until
from walkit._internal.threads import EndingThread
from walkit.commit.election import WRITER_THREAD_MIN_WAITERS
from walkit.commit.frame import SealedFrame
from walkit.errors import CommitFailedError, LogClosedError, LogPoisonedError

WRITER = "walkit-commit test"


class NamedPlace(Sink):
    """Notes which thread wrote each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: list[str] = []

    def write(self, frame: SealedFrame, *, sync: bool) -> None:
        self.writers.append(threading.current_thread().name)
        super().write(frame, sync=sync)


def crowd(harness: DriverHarness, callers: int = WRITER_THREAD_MIN_WAITERS) -> list[Task]:
    """Return a caller that hangs in its write, and so many that wait after it."""
    return [harness.leader_in_write(), *harness.waiting(callers)]


def with_writer() -> tuple[DriverHarness, NamedPlace]:
    """Return a harness whose writer thread runs, and its place."""
    place = NamedPlace()
    harness = DriverHarness(place=place)
    assert harness.putted(b"first").result(GUARD_S).first_lsn == 1
    assert place.writers == [WRITER]
    return harness, place


@pytest.mark.parametrize(
    "callers", [WRITER_THREAD_MIN_WAITERS - 1, WRITER_THREAD_MIN_WAITERS, 3 * WRITER_THREAD_MIN_WAITERS]
)
def test_the_writer_thread_leads_for_a_crowd(callers: int) -> None:
    """Let callers wait for a write: the writer thread writes their frame, or one of them if they are few."""
    harness, place = with_writer()
    tasks = crowd(harness, callers)
    harness.place.release()
    assert sorted(task.result().first_lsn for task in tasks) == list(range(2, callers + 3))
    assert len(place.writers) == 3 and (place.writers[2] == WRITER) is (callers >= WRITER_THREAD_MIN_WAITERS)
    wait_until(lambda: not harness.driver.election.leaders, "the lead to be given up")
    assert Task(harness.put, b"alone").result().first_lsn == callers + 3
    assert place.writers[-1] != WRITER
    harness.driver.stop(LogClosedError())


def test_the_first_crowd_has_the_writer_thread_started() -> None:
    """Let two crowds wait in turn: a caller leads for the first, and a writer thread is there for the next."""
    place = NamedPlace()
    harness = DriverHarness(place=place)
    for _ in range(2):
        tasks = crowd(harness)
        harness.place.release()
        for task in tasks:
            task.result()
        wait_until(
            lambda: harness.driver.election.pool.running and not harness.driver.election.leaders,
            "the writer thread",
        )
    assert [name == WRITER for name in place.writers] == [False, False, False, True]
    harness.driver.stop(LogClosedError())


def test_a_crowd_is_led_by_callers_if_no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every new thread, as a system does that has none left: two crowds are served all the same."""
    start = EndingThread.start

    def refuse(thread: EndingThread) -> None:
        if thread.name == WRITER:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(EndingThread, "start", refuse)
    place = NamedPlace()
    harness = DriverHarness(place=place)
    for _ in range(2):
        tasks = crowd(harness)
        harness.place.release()
        for task in tasks:
            task.result()
    assert harness.core.acked_lsn == 2 * WRITER_THREAD_MIN_WAITERS + 2 and WRITER not in place.writers
    harness.driver.stop(LogClosedError())


@pytest.mark.parametrize("fails", ["the write before", "its own write"])
def test_a_crowd_gets_a_failure(fails: str) -> None:
    """Fail the write before that of a crowd, or its own, which the writer thread makes: every caller gets the error."""
    harness, place = with_writer()
    leader, *tasks = crowd(harness)
    if fails == "its own write":
        write = place.write

        def fail_later(frame: SealedFrame, *, sync: bool) -> None:
            if frame.count > 1:
                raise io_error()
            write(frame, sync=sync)

        place.write = fail_later  # type: ignore[method-assign]
    else:
        harness.place.fail("write", io_error())
    harness.place.release()
    leader.join()
    for task in tasks:
        task.join()
    expected = CommitFailedError if fails == "its own write" else LogPoisonedError
    assert all(isinstance(task.error, expected) for task in tasks)
    Task(harness.driver.stop, LogClosedError()).result()


def test_closing_while_a_crowd_waits_writes_the_queue() -> None:
    """Close while callers wait for a write: they are acknowledged before closing returns, and no thread is left."""
    harness, place = with_writer()
    tasks = crowd(harness)
    stopping = Task(harness.driver.stop, LogClosedError())
    wait_until(lambda: harness.driver.refusal is not None, "the log to refuse")
    harness.place.release()
    stopping.result()
    assert sorted(task.result().first_lsn for task in tasks) == list(range(2, WRITER_THREAD_MIN_WAITERS + 3))
    assert place.writers[-1] == WRITER
    assert WRITER not in {thread.name for thread in threading.enumerate()}
