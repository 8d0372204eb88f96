"""The way of one append through the package stays short enough to be read."""

from __future__ import annotations

from pathlib import Path

from tests.log.append_trace import append_trace

MODULES_MAX = 11
FILE_CHANGES_MAX = 17
ON_MAIN_MODULES_MAX = 12
ON_MAIN_FILE_CHANGES_MAX = 22


def test_an_append_enters_few_modules(tmp_path: Path) -> None:
    """Trace one append of a lone writer to real files: modules and changes of file stay within their bounds."""
    trace = append_trace(tmp_path / "log")
    assert len(trace.modules) <= MODULES_MAX, trace
    assert trace.file_changes <= FILE_CHANGES_MAX, trace
    assert {file for file in trace.modules if file.startswith("commit/")} == {
        "commit/leader.py",
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
