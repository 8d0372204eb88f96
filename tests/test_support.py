"""The helpers of the test run: what a test leaves, where the run starts, what it costs, what a change reaches."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.budgets import AREAS, area_of
from tests.support.import_graph import front_door, import_graph, reached
from tests.support.once import made_once
from tests.support.quick import nearest_tests

CULPRITS = {
    "a log": "import walkit\n    globals()['kept'] = walkit.open(tmp_path / 'log')",
    "a thread": "threading.Thread(target=STOP.wait, name='stays').start()",
    "a child": "subprocess.Popen(['sleep', '600'])",
    "a descriptor": "os.open(tmp_path / 'file', os.O_CREAT)",
    "a handler": "signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "a variable": "os.environ['LEFT'] = '1'",
    "a folder": "os.chdir(tmp_path)",
}
NAMED = {
    "a log": "the log .*/log was open",
    "a thread": "thread 'stays' (ran|would not end)",
    "a child": "child [0-9]+ ran: sleep 600",
    "a descriptor": "descriptor [0-9]+ of .*/file was open",
    "a handler": "the handler of SIGINT was changed",
    "a variable": "LEFT was changed",
    "a folder": "the working folder was changed",
}
VARIABLES = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Of a run of toys, which needs no plugin."""


def run_pytest(
    folder: Path, source: str, *arguments: str, **popen: object
) -> subprocess.CompletedProcess[str]:
    """Run one file of tests in a process of its own, with what tests/conftest.py gives."""
    (folder / "conftest.py").write_text(
        "from tests.support.leftovers import no_leftovers, pytest_unconfigure\n"
        "from tests.support import leftovers\nleftovers.END_S = 0.4  # what a toy leaves never ends by itself\n"
        "from tests.support.surroundings import settle\nsettle()\n__all__ = ['no_leftovers', 'pytest_unconfigure']\n"
    )
    (folder / "test_toy.py").write_text(source)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rA",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
        *arguments,
    ]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [*command, "test_toy.py"],
        cwd=folder,
        env=os.environ | VARIABLES,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        **popen,  # type: ignore[call-overload]
    )
    return done


def test_what_a_test_leaves_is_named_and_ended(tmp_path: Path) -> None:
    """Leave each kind of thing in a test that passes or fails: each test is named alone, and the next sees nothing."""
    head = """
    import os, signal, subprocess, sys, threading
    import psutil
    STOP = threading.Event()
    BEFORE = dict(os.environ), os.getcwd()

    """
    tests = [
        f"def test_{number}(tmp_path):\n    {body}\n    assert {number % 2 == 0}\n"
        for number, body in enumerate(CULPRITS.values())
    ]
    last = """
    def test_nothing_is_left():
        assert [c for c in psutil.Process().children() if c.status() != "zombie"] == []
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert "LEFT" not in os.environ and os.getcwd() == BEFORE[1]
        assert not [f for f in psutil.Process().open_files() if f.path.endswith("/file")]
        import walkit
        assert walkit.open_logs() == []
    """
    done = run_pytest(tmp_path, textwrap.dedent(head) + "\n".join(tests) + textwrap.dedent(last))
    for number, named in enumerate(NAMED.values()):
        told = rf"ERROR at teardown of test_{number} _+\nthe test left behind: {named}"
        assert re.search(told, done.stdout), done.stdout
    assert re.search(r"^PASSED test_toy.py::test_nothing_is_left$", done.stdout, re.MULTILINE), done.stdout
    assert f"{len(CULPRITS)} errors" in done.stdout


def ignore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_a_run_with_sigint_ignored_and_no_environment_is_like_any_other(tmp_path: Path) -> None:
    """Start pytest with SIGINT ignored, and with a user's variables: the tests and their children do not see that."""
    source = """
    import os, signal, subprocess, sys
    def test_it():
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert not {"SPARK_HOME", "PYTHONWARNINGS", "COLUMNS"} & set(os.environ)
        assert os.access(os.environ["HOME"], os.W_OK)
        look = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
        assert subprocess.run([sys.executable, "-c", look], capture_output=True, text=True).stdout == "True\\n"
    """
    foreign = {"SPARK_HOME": "/nowhere", "PYTHONWARNINGS": "error", "COLUMNS": "20", "HOME": "/nowhere"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in foreign.items():
            patch.setenv(name, value)
        done = run_pytest(tmp_path, textwrap.dedent(source), preexec_fn=ignore_sigint)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def make_and_count(folder: Path) -> None:
    with (folder.parent / "made").open("a") as made:
        made.write("x")
    (folder / "thing").write_text("made")


def make_in_a_process(shared: Path) -> None:
    assert (made_once(shared, "thing", make_and_count) / "thing").read_text() == "made"


def test_once_makes_a_thing_in_one_of_several_processes(tmp_path: Path) -> None:
    """Two processes ask for one thing at once: each gets it, and it was made once; a failure is not tried again."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=make_in_a_process, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 2
    assert (tmp_path / "made").read_text() == "x"
    with pytest.raises(ZeroDivisionError):
        made_once(tmp_path, "nothing", lambda folder: 1 // 0)
    with pytest.raises(pytest.fail.Exception, match="ZeroDivisionError"):
        made_once(tmp_path, "nothing", make_and_count)


def test_every_test_has_an_area() -> None:
    """Look up a test of each folder: it has an area, and the budgets sum to three processes of twelve minutes."""
    assert area_of("tests/log/test_open.py::test_x") == "engine"
    assert area_of("tests/test_store_recovery.py::test_x") == "engine"
    assert area_of("tests/cli/test_look.py::test_x") == "cli, demo, workload, rest"
    assert {area_of(f"tests/{path.name}/x") for path in (ROOT / "tests").iterdir()} == {
        area.name for area in AREAS
    }
    assert sum(area.budget_s for area in AREAS) <= 3 * 12 * 60


def test_a_run_over_its_budget_fails_on_request(tmp_path: Path) -> None:
    """Run a toy test as an area of no seconds, with --budget: the table shows it, and the run fails."""
    (tmp_path / "tests").mkdir()
    toy = "import time\ndef test_a(): time.sleep(0.05)\ndef test_b(): ...\n"
    (tmp_path / "tests" / "test_toy.py").write_text(toy)
    code = (
        "import sys, pytest, tests.support.budgets as budgets\n"
        "budgets.AREAS = (budgets.Area('all of it', 0, ('tests/',)),)\n"
        "sys.exit(pytest.main(['-q', '-c', '/dev/null', '--rootdir', '.', 'tests', *sys.argv[1:]], [budgets]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--budget"],
        cwd=tmp_path,
        env=os.environ | VARIABLES,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^all of it +\d+ +0 +2  over by more than 25%$", done.stdout, re.MULTILINE), done.stdout


def test_a_change_reaches_what_imports_it_nearest_first() -> None:
    """Change one module of a small house: its room's tests come first, then others by steps; far rooms are left out."""
    files = {
        "walkit/__init__.py": "from walkit.log.wal import open\n",
        "walkit/format/frame.py": "",
        "walkit/log/wal.py": "from walkit.format.frame import x\n",
        "walkit/plots/bars.py": "",
        "tests/format/test_frame.py": "from walkit.format.frame import x\n",
        "tests/log/test_open.py": "import walkit\nwalkit.open()\n",
        "tests/state/test_frames.py": "def f():\n    from walkit.format import frame\n",
        "tests/plots/test_bars.py": "from walkit.plots import bars\n",
        "tests/spark/test_read.py": "from walkit.format.frame import x\n",
    }
    expected = ["tests/format/test_frame.py", "tests/state/test_frames.py", "tests/log/test_open.py"]
    assert nearest_tests(files, ["walkit/format/frame.py"]) == expected
    assert nearest_tests(files, ["tests/plots/test_bars.py", "README.md"]) == ["tests/plots/test_bars.py"]
    assert front_door(files["walkit/__init__.py"]) == {"open": "walkit.log.wal"}
    assert reached(import_graph(files), ["walkit.format.frame"])["walkit.log.wal"] == 1
