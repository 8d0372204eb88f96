"""`%load_ext walkit`: the command and a workload as magics of IPython."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
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


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("inspect {log}", "LSN"),
        ("inspect {log} --json", '"last_lsn": 1'),
        ("verify {log}", "ok: 1 frame"),
        ("dump {log} --format csv", "value"),
        ("claims {log}", "claims"),
        ("inspect {log}x", "exit code 3"),
        ("inspect", "exit code 2"),
    ],
)
def test_a_command_runs_as_a_line(shell: Any, tmp_path: Path, command: str, said: str) -> None:
    """Look at a log, and miss one, on a standard output for text alone, as in a notebook: report, or exit code."""
    with walkit.open(tmp_path / "log") as log:
        log.append(b"value")
    with redirect_stdout(StringIO()) as out:
        shell.run_line_magic("walkit", command.format(log=tmp_path / "log"))
    assert said in out.getvalue()
    assert ("exit code" in out.getvalue()) == ("exit code" in said)


def test_a_cell_drives_a_log(shell: Any) -> None:
    """Drive a log by fields of a workload: the Run is returned and named; anything but a literal is refused."""
    with walkit.open("memory://magics") as shell.user_ns["log"]:
        run = shell.run_cell_magic("drive", "log run", "operations = 50\nvalue_bytes = 10\nwriters = 2")
        assert isinstance(run, Run) and run.records == 50
        assert shell.user_ns["run"] is run
        for cell in ("print(1)", "operations = open('x')"):
            with pytest.raises((UsageError, ValueError)):
                shell.run_cell_magic("drive", "log", cell)
