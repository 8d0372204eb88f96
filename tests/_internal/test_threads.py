"""Threads that are waited for: an interrupted wait takes no running thread for ended."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from tests.support.interrupts import interrupt_in
from tests.support.threads import GUARD_S, Task
from walkit._internal.locks import holds, marked
from walkit._internal.threads import EndingThread, Latch, WakeEvent

ROOT = Path(__file__).parents[2]


def test_an_interrupted_join_takes_no_running_thread_for_ended() -> None:
    """SIGINT while the main thread joins, several times: the thread is alive, and the next join waits for it."""
    entered, go_on, done = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        entered.set()
        go_on.wait(GUARD_S)
        done.append("done")

    thread = EndingThread(target=work, daemon=True)
    thread.start()
    assert entered.wait(GUARD_S)
    for _ in range(5):
        shooter = interrupt_in("join", "wait")
        with pytest.raises(KeyboardInterrupt):
            thread.join(GUARD_S)
        shooter.result()
        assert thread.is_alive() and not thread.ended
    thread.join(0.001)
    assert thread.is_alive() and done == []
    go_on.set()
    thread.join()
    assert not thread.is_alive() and done == ["done"]


def test_a_thread_that_raised_has_ended_and_one_that_never_ran_cannot_be_joined() -> None:
    """Join a thread whose function raised, and one that was not started: at once, and the RuntimeError of any."""
    hooked, before = list[object](), threading.excepthook
    threading.excepthook = lambda args: hooked.append(args.exc_type)
    try:
        thread = EndingThread(target=lambda: 1 // 0)
        thread.start()
        thread.join(GUARD_S)
    finally:
        threading.excepthook = before
    assert thread.ended and not thread.is_alive() and hooked == [ZeroDivisionError]
    with pytest.raises(RuntimeError, match="before it is started"):
        EndingThread(target=print).join()


def test_a_bell_wakes_once_for_any_number_of_rings() -> None:
    """Set before and during a wait, and clear: one wait clears all of it, and a wait for none has an end."""
    event = WakeEvent()
    assert not event.wait(0) and not event.wait(-1)
    event.set()
    event.set()
    assert event.wait() and not event.wait(0)
    event.set()
    event.clear()
    event.clear()
    assert not event.wait(0)
    waiter = Task(event.wait, GUARD_S)
    event.set()
    assert waiter.result() is True


def test_a_latch_lets_all_through_once_it_is_set() -> None:
    """Let three threads wait, and set it twice: each continues, as does a later one; before that a wait has an end."""
    latch = Latch()
    assert not latch.wait(0) and not latch.is_set()
    waiting = [Task(latch.wait) for _ in range(3)]
    latch.set()
    latch.set()
    assert all(task.result() for task in waiting) and latch.wait() and latch.wait(0) and latch.is_set()


def test_no_lock_that_others_wait_for_is_made_of_python_code() -> None:
    """Look for Event, Condition and Semaphore of threading, and locks in an ExitStack: an error leaves them taken."""
    made = re.compile(
        r"threading\.(Event|Condition|Semaphore|BoundedSemaphore|Barrier)\(|queue\.Queue\(|enter_context\([\w.(]*lock\b"
    )
    rooms = ["commit", "compaction", "log", "metrics", "read", "recovery", "replication", "segments", "state"]
    files = [*ROOT.glob("walkit/*.py"), *(f for room in rooms for f in ROOT.glob(f"walkit/{room}/**/*.py"))]
    found = [f"{file.relative_to(ROOT)}: {m[0]}" for file in files for m in made.finditer(file.read_text())]
    assert len(files) > 150 and found == []


def test_marks_end_with_their_thread() -> None:
    """End a thread inside its mark, and start threads until one has its number: that one holds nothing."""
    numbers = list[int]()

    def leave_a_mark() -> None:
        marked().acquire()
        assert holds()
        numbers.append(threading.get_ident())

    def look() -> bool:
        numbers.append(threading.get_ident())
        return holds()

    left = Task(leave_a_mark)
    left.result()
    while len(numbers) < 2 or numbers[-1] != numbers[0]:
        assert len(numbers) < 1000, "the number comes back"
        assert not Task(look).result()
