"""Ctrl-C on the main thread: held back for one frame, then handled as it would have been."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from walkit._main_thread import Uninterrupted, on_main_thread


@pytest.fixture(autouse=True)
def handler_stays() -> Iterator[None]:
    """Every test leaves the handler as it found it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_within_is_raised_at_the_end() -> None:
    """Send three signals inside: the block runs to its end, then one KeyboardInterrupt."""
    steps: list[int] = []

    def interrupted() -> None:
        with Uninterrupted():
            for step in range(3):
                signal.raise_signal(signal.SIGINT)
                steps.append(step)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert steps == [0, 1, 2]


def test_without_an_interrupt_nothing_happens() -> None:
    """Run a block without a signal, and one that raises: its error comes through, the handler is back."""
    with Uninterrupted():
        pass
    with pytest.raises(ZeroDivisionError), Uninterrupted():
        raise ZeroDivisionError


def test_a_handler_of_ones_own_is_called_once_afterwards() -> None:
    """Install a handler: it is called after the block, once, and is in place again."""
    calls: list[int] = []

    def own(number: int, frame: Any) -> None:
        calls.append(number)

    signal.signal(signal.SIGINT, own)
    try:
        with Uninterrupted():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            assert calls == []
        assert calls == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_an_ignored_signal_stays_ignored() -> None:
    """Ignore SIGINT: a signal inside does nothing, then or later."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Uninterrupted():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_process_that_dies_of_the_signal_still_does() -> None:
    """Set the default action in a process: a signal inside kills it, after the block."""
    script = """
        import signal
        from walkit._main_thread import Uninterrupted
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with Uninterrupted():
            signal.raise_signal(signal.SIGINT)
            print("written", flush=True)
        print("never")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "written\n")


def test_only_the_main_thread_defers_signals() -> None:
    """Ask on two threads: signals reach the main one only."""
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(on_main_thread()))
    thread.start()
    thread.join()
    assert (on_main_thread(), answers) == (True, [False])
