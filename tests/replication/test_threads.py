"""The thread of a loop: started by one call, again after a failure, and joined from wherever a stop may come."""

from __future__ import annotations

import threading

import pytest

from tests.replication.blocking_callers import WAIT_S
from walkit._internal.threads import LogThread
from walkit.replication.transport.threads import LoopThread


def test_of_calls_at_once_one_starts_the_thread() -> None:
    """Start from eight threads at a barrier: the loop has run once, on a daemon thread of the given name."""
    ran: list[threading.Thread] = []
    loop, together = LoopThread(lambda: ran.append(threading.current_thread())), threading.Barrier(8)

    def start() -> None:
        together.wait(WAIT_S)
        loop.start("the loop")

    callers = [threading.Thread(target=start) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(WAIT_S)
    loop.join(WAIT_S)
    loop.start("another")
    assert loop.begun and loop.ended and not loop.running and not loop.hangs()
    assert [thread.name for thread in ran] == [loop.name] == ["the loop"] and ran[0].daemon


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()], ids=repr)
def test_a_start_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Refuse the first thread: the call raises, nothing runs, a join returns, and the next call starts it."""
    ran = threading.Event()
    loop = LoopThread(ran.set)

    def refused(_: LogThread) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(LogThread, "start", refused)
        with pytest.raises(type(error)):
            loop.start("the loop")
    loop.join()
    assert not (loop.begun or loop.ended or loop.running or loop.hangs()) and loop.name == ""
    loop.start("the loop")
    assert ran.wait(WAIT_S)
    loop.join(WAIT_S)
    assert loop.ended


def test_the_thread_itself_does_not_wait_for_its_end() -> None:
    """Join from within the loop: it returns at once, and says that nothing hangs."""
    said: list[bool] = []

    def run() -> None:
        loop.join()
        said.append(loop.running and not loop.hangs())

    loop = LoopThread(run)
    loop.start("the loop")
    loop.join(WAIT_S)
    assert said == [True] and loop.ended


def test_a_thread_that_has_not_come_to_life_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Join while the system is still making the thread: at once; the one who starts it finds the loop stopped."""
    entered, go, stopping, seen = threading.Event(), threading.Event(), threading.Event(), list[bool]()
    loop = LoopThread(lambda: seen.append(stopping.is_set()))
    start = LogThread.start

    def slow(thread: LogThread) -> None:
        if thread.name == "the loop":
            entered.set()
            assert go.wait(WAIT_S)
        start(thread)

    monkeypatch.setattr(LogThread, "start", slow)
    caller = threading.Thread(target=loop.start, args=("the loop",))
    caller.start()
    assert entered.wait(WAIT_S)
    stopping.set()
    loop.join()
    assert loop.begun and loop.running and not loop.hangs()
    go.set()
    caller.join(WAIT_S)
    loop.join(WAIT_S)
    assert seen == [True] and loop.ended


def test_a_join_waits_and_reports_a_hang() -> None:
    """Join a loop that waits for an event: False after the time, when it hangs; and its end after the event."""
    go = threading.Event()

    def run() -> None:
        go.wait(WAIT_S)

    loop = LoopThread(run)
    loop.start("the loop")
    loop.join(0.01)
    assert loop.running and loop.hangs() and not loop.ended
    go.set()
    loop.join(WAIT_S)
    assert loop.ended and not loop.running and not loop.hangs()
