"""Signals of the commands that run long: an ignored Ctrl-C stays ignored, and none is lost."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import walkit
from walkit.cli import main
from walkit.cli.interrupts import interrupts_kept
from walkit.crashlab import SCENARIOS, Scenario
from walkit.crashlab.crash_rules import Oracle

ROOT = Path(__file__).resolve().parents[2]
GUARD_S = 60.0
LOOKS = 200

APPENDING = """
import sys, walkit
print("begins", flush=True)
with walkit.open(sys.argv[1]) as log:
    while True:
        log.append(b"value")
"""
DRIVING = """
import sys, walkit
print("begins", flush=True)
with walkit.open(sys.argv[1]) as log:
    while True:
        walkit.workload.drive(log, walkit.workload.Workload(operations=1000, seed=1), baseline=False, progress=False)
"""
# The arguments of Python, and the exit code after SIGTERM: in order, or by the signal.
LONG: dict[str, tuple[list[str], int]] = {
    "serve": (["-m", "walkit", "serve", "{log}", "--listen", "127.0.0.1:0"], 0),
    "follow": (["-m", "walkit", "follow", "127.0.0.1:1", "{new}"], 0),
    "dashboard": (["-m", "walkit", "dashboard", "{log}"], 0),
    "crashtest": (["-m", "walkit", "crashtest", "--budget", "1000000"], -signal.SIGTERM),
    "demo": (["-m", "walkit", "demo", "--operations", "500_000"], -signal.SIGTERM),
    "append": (["-c", APPENDING, "{new}"], -signal.SIGTERM),
    "drive": (["-c", DRIVING, "{new}"], -signal.SIGTERM),
}
# Slow: seconds of imports each. By default one command that takes signals itself, one that does not, and a library.
BY_DEFAULT = ("serve", "crashtest", "append")


def ignores_interrupts(pid: int) -> bool:
    """Whether the kernel has SIGINT down as ignored by the process, which its children inherit."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (line.split()[1] for line in lines if line.startswith("SigIgn:"))
    return bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="asks the kernel of Linux")
@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=() if what in BY_DEFAULT else pytest.mark.slow) for what in LONG],
)
def test_an_ignored_interrupt_stays_ignored(what: str, tmp_path: Path) -> None:
    """Start with SIGINT ignored, as a shell's background job: it is ignored at all times, and SIGTERM ends it."""
    arguments, code = LONG[what]
    with walkit.open(tmp_path / "log") as log:
        log.append(b"v")
    (tmp_path / "scratch").mkdir()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a child inherits it
    try:
        process = subprocess.Popen(
            [
                sys.executable,
                *(part.format(log=tmp_path / "log", new=tmp_path / "new") for part in arguments),
            ],
            cwd=tmp_path / "scratch",
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "scratch")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout is not None and process.stderr is not None
    try:
        if what == "crashtest":  # which prints nothing until its end
            Path(f"/proc/{process.pid}/status").read_text()
        else:
            assert process.stdout.readline(), process.stderr.read()
        for _ in range(LOOKS):
            process.send_signal(signal.SIGINT)
            assert ignores_interrupts(process.pid)
            time.sleep(0.001)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=GUARD_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == code and "Traceback" not in said, said


class Finalised:
    """Gets Ctrl-C while it is finalised."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


class Cycle(Finalised):
    """One that only the garbage collector finds."""

    def __init__(self) -> None:
        self.me = self


def in_a_finaliser() -> None:
    """Ctrl-C in `__del__`."""
    Finalised()


def in_a_collection() -> None:
    """Ctrl-C in `__del__`, which a collection calls."""
    Cycle()
    gc.collect()


def in_a_callback_of_a_weak_reference() -> None:
    """Ctrl-C in the callback that a WeakSet and its like have."""
    gone = set[int]()
    known = weakref.ref(gone, lambda _: signal.raise_signal(signal.SIGINT))
    del gone
    assert known() is None


DROPPING = (in_a_finaliser, in_a_collection, in_a_callback_of_a_weak_reference)


@pytest.mark.parametrize("dropping", DROPPING)
def test_an_interrupt_that_the_interpreter_drops_ends_the_command(
    dropping: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Interrupt a command where CPython ignores exceptions: it ends all the same, with 130, and says nothing else."""
    went_on: list[bool] = []

    class Interrupted(Scenario):
        def oracle(self) -> Oracle:  # on the main thread, as no call of the scenario's own
            dropping()
            deadline = time.monotonic() + GUARD_S
            while time.monotonic() < deadline:
                pass
            went_on.append(True)
            return super().oracle()

    monkeypatch.setitem(
        SCENARIOS, "interrupted", Interrupted("interrupted", "is interrupted", lambda _: None)
    )
    hook = sys.unraisablehook
    asked = ("crashtest", "--budget", "1", "--jobs", "1", "--profile", "issued")
    assert main([*asked, "--scenario", "interrupted"]) == 130
    assert not went_on and sys.unraisablehook is hook
    assert "Exception ignored" not in capsys.readouterr().err


@pytest.mark.parametrize("dropping", DROPPING)
def test_an_interrupt_that_is_dropped_at_the_end_is_raised_there(dropping: Callable[[], None]) -> None:
    """Drop it in the last call of the block: the block's end raises it, and nothing comes later."""
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117 - the end of the inner block raises
        with interrupts_kept():
            dropping()


def test_other_errors_that_are_dropped_go_to_the_hook_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise another error in a finaliser: the hook that was there gets it, once."""
    seen: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: seen.append(dropped.exc_type))

    class Failing:
        def __del__(self) -> None:
            raise ValueError

    with interrupts_kept():
        Failing()
    assert seen == [ValueError]
