"""`%load_ext walkit`: the command and a workload as magics of IPython."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

import walkit
from walkit.cli.usage import UsageError
from walkit.measure import Run

IPython = pytest.importorskip("IPython")


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A shell of its own in this process, with the extension loaded."""
    from IPython.core.interactiveshell import InteractiveShell

    # The shell puts a module of its own there. Processes that are spawned later need the true one.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    made = InteractiveShell()  # type: ignore[no-untyped-call]
    made.run_line_magic("load_ext", "walkit")
    yield made
    made.reset(new_session=False)  # type: ignore[no-untyped-call]


def test_a_command_runs_as_a_line(shell: Any, tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Inspect a log and one that is missing: the report, and the exit code of the failure."""
    with walkit.open(tmp_path / "log") as log:
        log.append(b"value")
    shell.run_line_magic("walkit", f"inspect {tmp_path / 'log'}")
    assert "LSN" in capfd.readouterr().out
    shell.run_line_magic("walkit", f"inspect {tmp_path / 'none'}")
    assert "exit code 3" in capfd.readouterr().out


def test_a_cell_drives_a_log(shell: Any) -> None:
    """Drive a log by fields of a workload: the Run is returned and named; anything but a literal is refused."""
    with walkit.open("memory://magics") as shell.user_ns["log"]:
        run = shell.run_cell_magic("drive", "log run", "operations = 50\nvalue_bytes = 10\nwriters = 2")
        assert isinstance(run, Run) and run.records == 50
        assert shell.user_ns["run"] is run
        for cell in ("print(1)", "operations = open('x')"):
            with pytest.raises((UsageError, ValueError)):
                shell.run_cell_magic("drive", "log", cell)
