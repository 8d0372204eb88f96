"""Work that Ctrl-C must not cut in two: what the main thread gets of it, where callbacks run, what is undone."""

from __future__ import annotations

import contextvars
import gc
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.commit.fake_segments import GUARD_S, Task, wait_until
from tests.interrupts import interrupt_in
from walkit.commit import to_end
from walkit.commit.to_end import GivenUp, end_if_given_up, relayed, run_to_end
from walkit.events import EventSink


@pytest.fixture(autouse=True)
def plain_handler() -> Iterator[None]:
    """Interrupts are Python's own in these tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def on_main() -> bool:
    """Whether this is the main thread."""
    return threading.current_thread() is threading.main_thread()


def interrupted(work: Callable[[], Any], **named: Any) -> None:
    """Run the work, and interrupt the main thread while it waits for it."""
    shooter = interrupt_in("run_to_end", "serve")
    with pytest.raises(KeyboardInterrupt):
        run_to_end(work, "test", **named)
    shooter.result()


def test_the_main_thread_has_it_done_and_others_do_it_themselves() -> None:
    """Ask where it runs: on the main thread another one does it, with the caller's context; elsewhere the caller."""
    variable = contextvars.ContextVar[str]("variable")
    variable.set("the caller's")
    assert run_to_end(lambda: (on_main(), variable.get()), "test") == (False, "the caller's")
    here = Task(lambda: run_to_end(threading.get_ident, "test"))
    assert here.result() == here.thread.ident
    assert not [thread for thread in threading.enumerate() if thread.name == "walkit-test"]


def test_an_error_comes_with_its_cause_and_is_not_kept() -> None:
    """Raise with a cause: the main thread gets that very error, and without the collector it is gone afterwards."""

    class FailedError(Exception):
        pass

    def work() -> None:
        try:
            raise ValueError("the cause")
        except ValueError as cause:
            raise FailedError from cause

    gc.disable()
    try:
        with pytest.raises(FailedError) as raised:
            run_to_end(work, "test")
        assert isinstance(raised.value.__cause__, ValueError)
        assert "work" in [entry.name for entry in raised.traceback]
        kept = weakref.ref(raised.value)
        del raised
        assert kept() is None
    finally:
        gc.enable()


def test_a_callback_runs_where_its_caller_is_and_what_it_raises_ends_the_work() -> None:
    """Have a worker call back: on the main thread each time, and an error goes through the work to its caller."""
    seen: list[Any] = []

    def work() -> None:
        tell = relayed(lambda number: seen.append((number, on_main())))
        assert tell is not None
        for number in range(3):
            tell(number)
        Task(tell, 3).result()  # a thread that the worker waits for may tell, too
        refuse = relayed(lambda: 1 // 0)
        assert refuse is not None
        try:
            refuse()
        finally:
            seen.append("unwound")

    with pytest.raises(ZeroDivisionError):
        run_to_end(work, "test")
    assert seen == [(0, True), (1, True), (2, True), (3, True), "unwound"]
    assert Task(lambda: relayed(print)).result() is print and Task(lambda: relayed(None)).result() is None


def test_a_callback_may_ask_for_work_that_needs_the_locks_of_the_worker() -> None:
    """Call back while a lock is held that the same thread may take again: what the callback asks for takes it."""
    lock, taken = threading.RLock(), list[bool]()

    def inner() -> str:
        taken.append(lock.acquire(timeout=GUARD_S))
        tell = relayed(lambda: taken.append(on_main()))
        assert tell is not None
        tell()
        return "inner"

    def callback() -> None:
        taken.append(run_to_end(inner, "inner") == "inner")
        with pytest.raises(ZeroDivisionError):
            run_to_end(lambda: 1 // 0, "inner")

    def work() -> str:
        tell = relayed(callback)
        assert tell is not None
        with lock:
            tell()
        return "outer"

    assert run_to_end(work, "test") == "outer"
    assert taken == [True, True, True]


def test_a_signal_handler_may_ask_for_work_while_the_main_thread_waits() -> None:
    """Signal the main thread while it waits; the handler has work done, which the first waits for: both are done."""
    done, halfway, told = list[str](), threading.Event(), threading.Event()

    def handler(number: int, frame: object) -> None:
        done.append(run_to_end(lambda: str(told.wait(GUARD_S)), "second"))

    def work() -> None:
        tell = relayed(told.set)
        assert tell is not None
        halfway.wait(GUARD_S)
        tell()  # the main thread is in the handler, and calls it there

    def runs(name: str) -> bool:
        return name in [thread.name for thread in threading.enumerate()]

    def shoot() -> None:
        wait_until(lambda: runs("walkit-first"))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        wait_until(lambda: runs("walkit-second"))
        halfway.set()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        shooter = Task(shoot)
        run_to_end(work, "first")
        shooter.result()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert done == ["True"]


def test_an_interrupt_waits_for_what_can_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt work that looks whether it is wanted, by itself and by a callback: it has ended when Ctrl-C comes."""
    monkeypatch.setattr(to_end, "GRACE_S", 60.0)  # a busy machine may give the work no core for two seconds

    def told() -> None:
        tell = relayed(None)
        assert tell is not None
        tell()

    for look in (end_if_given_up, told):
        ended = list[bool]()

        def work(look: Callable[[], object] = look, ended: list[bool] = ended) -> None:
            try:
                while True:
                    look()
            except GivenUp:
                ended.append(True)
                raise

        interrupted(work)
        assert ended == [True]


def test_an_interrupt_in_a_callback_goes_through_the_work() -> None:
    """Interrupt the main thread in a callback: the work is unwound as if the callback had raised, then it is raised."""
    unwound = list[type[BaseException]]()

    def callback() -> None:
        signal.raise_signal(signal.SIGINT)

    def work() -> None:
        tell = relayed(callback)
        assert tell is not None
        try:
            tell()
        except BaseException as error:
            unwound.append(type(error))
            raise

    with pytest.raises(KeyboardInterrupt):
        run_to_end(work, "test")
    assert unwound == [KeyboardInterrupt]


def test_what_nobody_takes_is_undone_and_its_failure_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the waiting for work that goes on: its result is undone once it is there, an error becomes an event."""
    monkeypatch.setattr(to_end, "GRACE_S", 0.01)
    go_on, undone, told = threading.Event(), list[str](), list[dict[str, Any]]()

    def work() -> str:
        go_on.wait(GUARD_S)
        return "made"

    def fail() -> str:
        go_on.wait(GUARD_S)
        raise ValueError("too late")

    events = EventSink(lambda name, attributes: told.append({"name": name, **attributes}))
    interrupted(work, events=events, undo=undone.append)
    interrupted(fail, events=events, undo=undone.append)
    assert not undone and not told
    go_on.set()
    wait_until(lambda: undone and told)
    assert undone == ["made"]
    assert told == [{"name": "walkit.upkeep.fail", "job": "test", "error": "too late"}]


def test_work_that_ends_while_it_is_given_up_is_undone_once() -> None:
    """Have the worker end after, and before, the main thread gives it up: one of the two undoes, not both."""
    undone: list[str] = []
    late, early = (to_end._Errand(lambda: "made", "test", None, undone.append) for _ in range(2))
    assert not late.give_up()
    late.do()
    assert late.ended and undone == ["made"]
    early.do()
    assert early.give_up() and undone == ["made"]


def test_where_no_thread_can_be_started_the_caller_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no threads to give, as when the interpreter ends: the main thread does the work, and raises its error."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert run_to_end(on_main, "test")
    with pytest.raises(RuntimeError, match="of the work"):
        run_to_end(lambda: (_ for _ in ()).throw(RuntimeError("of the work")), "test")


def test_a_child_forked_in_a_callback_does_its_work() -> None:
    """Fork in a callback that a worker waits for: the child, which has no such worker, runs work of its own."""
    script = """
        import os, sys
        from walkit.commit.to_end import relayed, run_to_end

        def callback():
            pid = os.fork()
            if not pid:
                os._exit(run_to_end(lambda: 7, "child"))
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7

        run_to_end(lambda: relayed(callback)(), "parent")
        print("fine")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=GUARD_S
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
