"""The ways of one append and of one opening through the package stay short enough to be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.log.append_trace import CallTrace, append_trace, traced
from tests.support.threads import Task

MODULES_MAX = 11
FILE_CHANGES_MAX = 17
ON_MAIN_MODULES_MAX = 12
ON_MAIN_FILE_CHANGES_MAX = 22
OPENING_MODULES_MAX = {walkit.open: 50, walkit.Store.open: 70}


def test_an_append_enters_few_modules(tmp_path: Path) -> None:
    """Trace one append of a lone writer to real files: modules and changes of file stay within their bounds."""
    trace = append_trace(tmp_path / "log")
    assert len(trace.modules) <= MODULES_MAX, trace
    assert trace.file_changes <= FILE_CHANGES_MAX, trace
    assert {file for file in trace.modules if file.startswith("commit/")} == {
        "commit/ways_in.py",
        "commit/core.py",
        "commit/frame.py",
        "commit/ticket.py",
    }, trace


def test_the_main_thread_only_holds_interrupts_back(tmp_path: Path) -> None:
    """Trace the same on the main thread: one module more, which holds Ctrl-C back for the frame."""
    trace = append_trace(tmp_path / "log", on_main=True)
    assert len(trace.modules) <= ON_MAIN_MODULES_MAX, trace
    assert trace.file_changes <= ON_MAIN_FILE_CHANGES_MAX, trace
    assert "_main_thread.py" in trace.modules


@pytest.mark.parametrize("opener", OPENING_MODULES_MAX)
def test_an_opening_enters_few_modules(opener: Callable[[Path], Any], tmp_path: Path) -> None:
    """Trace the opening of a closed log, and of a store, with records: they enter no more modules than their bound."""
    with opener(tmp_path / "log") as opened:
        for number in range(100):
            (opened.append if opener is walkit.open else opened.put)(b"%d" % (number % 10), b"v")

    def reopen() -> CallTrace:
        found: list[Any] = []
        trace = traced(lambda: found.append(opener(tmp_path / "log")))
        found[0].close()
        return trace

    trace = Task(reopen).join().value
    assert 0 < len(trace.modules) <= OPENING_MODULES_MAX[opener], "\n".join(sorted(trace.modules))
