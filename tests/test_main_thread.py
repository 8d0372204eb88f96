"""Work that Ctrl-C must not cut in two: what the main thread gets of it, where callbacks run, what is undone."""

from __future__ import annotations

import contextvars
import gc
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.support.interrupts import Strike, interrupt_in
from tests.support.threads import GUARD_S, Task, wait_until
from walkit import _main_thread
from walkit._main_thread import Abandoned, abandonment, end_if_abandoned, ending_early, run_uninterrupted
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
    shooter = interrupt_in("run_uninterrupted", "join")
    with pytest.raises(KeyboardInterrupt):
        run_uninterrupted(work, "test", **named)
    shooter.result()


def test_a_signal_just_before_the_wait_ends_the_work() -> None:
    """Set Python's flag alone, as a signal does that no wait for a lock sees: the work ends long before its time."""
    abandoned = list[bool]()

    def work() -> None:
        given_up, deadline = abandonment(), time.monotonic() + 2 * GUARD_S
        while time.monotonic() < deadline and not given_up():
            time.sleep(0.001)
        abandoned.append(given_up())

    shooter = interrupt_in("run_uninterrupted", "join", unseen=True)
    with pytest.raises(KeyboardInterrupt):
        run_uninterrupted(work, "test")
    shooter.result()
    assert abandoned == [True]


TWO_SIGNALS = """
import signal, sys, time
from walkit._main_thread import abandonment, run_uninterrupted

def work():
    given_up, deadline = abandonment(), time.monotonic() + 30
    print("working", flush=True)
    while time.monotonic() < deadline and not given_up():
        time.sleep(0.001)
    return given_up()

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
run_uninterrupted(work, "test", undo=lambda told: print("told", told, flush=True))
"""


def test_two_signals_at_once_end_the_work() -> None:
    """Send SIGINT and SIGTERM to a stopped process that waits for its work, and let it go on: the work is told."""
    with subprocess.Popen([sys.executable, "-c", TWO_SIGNALS], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "working\n"
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            child.send_signal(number)
        assert child.stdout.read() == "told True\n"
    assert child.returncode


def test_the_main_thread_has_it_done_and_others_do_it_themselves() -> None:
    """Ask for the thread of the work: the main thread has another, with its context; others do it themselves."""
    variable = contextvars.ContextVar[str]("variable")
    variable.set("the caller's")
    assert run_uninterrupted(lambda: (on_main(), variable.get()), "test") == (False, "the caller's")
    here = Task(lambda: run_uninterrupted(threading.get_ident, "test"))
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
            run_uninterrupted(work, "test")
        assert isinstance(raised.value.__cause__, ValueError)
        assert "work" in [entry.name for entry in raised.traceback]
        kept = weakref.ref(raised.value)
        del raised
        assert kept() is None
    finally:
        gc.enable()


def test_progress_is_called_on_the_worker_and_its_error_ends_the_work() -> None:
    """Report from a worker that holds a lock: it makes each call, more work is allowed, and an error is raised."""
    lock, seen = threading.RLock(), list[Any]()

    def progress(number: int) -> None:
        seen.append((number, on_main(), run_uninterrupted(lambda: lock.acquire(timeout=GUARD_S), "inner")))
        if number == 2:
            raise ZeroDivisionError

    def work() -> None:
        tell = ending_early(progress)
        assert tell is not None
        try:
            with lock:
                for number in range(3):
                    tell(number)
        finally:
            seen.append("unwound")

    with pytest.raises(ZeroDivisionError):
        run_uninterrupted(work, "test")
    assert seen == [(0, False, True), (1, False, True), (2, False, True), "unwound"]
    assert ending_early(print) is print and ending_early(None) is None


def test_a_signal_handler_may_start_work_while_the_main_thread_waits() -> None:
    """Signal the main thread while it waits; the handler has work done, which the first waits for: both are done."""
    done, told = list[str](), threading.Event()

    def handler(number: int, frame: object) -> None:
        done.append(run_uninterrupted(lambda: told.set() or "second", "second"))  # type: ignore[func-returns-value]

    def work() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        assert told.wait(GUARD_S)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        run_uninterrupted(work, "first")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert done == ["second"]


def test_an_interrupt_waits_for_work_that_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt work that checks whether it is wanted, by each of three ways: it has ended when Ctrl-C comes."""
    monkeypatch.setattr(
        _main_thread, "GRACE_S", 60.0
    )  # a busy machine may give the work no core for two seconds

    def reported() -> None:
        tell = ending_early(None)
        assert tell is not None
        Task(tell).result()  # a thread that the worker waits for may report, too

    def asked() -> None:
        if abandonment()():
            raise Abandoned

    for check in (end_if_abandoned, reported, asked):
        ended = list[bool]()

        def work(check: Callable[[], object] = check, ended: list[bool] = ended) -> None:
            try:
                while True:
                    check()
            except Abandoned:
                ended.append(True)
                raise

        interrupted(work)
        assert ended == [True]


def test_work_that_ends_before_it_is_abandoned_is_undone_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the main thread at each point after the work has ended: the result is returned, or undone once."""
    for number in range(1, 100):
        made, undone, kept = threading.Event(), list[str](), list[str]()

        def work(made: threading.Event = made) -> str:
            made.set()
            return "made"

        def call(made: threading.Event = made, kept: list[str] = kept, undone: list[str] = undone) -> None:
            kept.append(run_uninterrupted(work, "test", undo=undone.append))

        strike = Strike(number)
        with suppress(KeyboardInterrupt):
            strike.run(call)
        if not strike.where:
            break
        if made.is_set() and not kept:
            wait_until(partial(len, undone), strike.where)
        assert len(kept + undone) <= 1, strike.where
    assert number > 10


def test_untaken_result_is_undone_and_its_error_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the waiting for work that goes on: its result is undone once it is there, an error becomes an event."""
    monkeypatch.setattr(_main_thread, "GRACE_S", 0.01)
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
    assert told == [{"name": "walkit.maintenance.fail", "job": "test", "error": "too late"}]


def test_caller_does_the_work_if_no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no threads to give, as when the interpreter ends: the main thread does the work, and raises its error."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert run_uninterrupted(on_main, "test")
    with pytest.raises(RuntimeError, match="of the work"):
        run_uninterrupted(lambda: (_ for _ in ()).throw(RuntimeError("of the work")), "test")
