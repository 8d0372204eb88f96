"""Primary and replica as processes that are killed with SIGKILL: the replica is always a prefix and ends equal.

`scripts/kill_replicas.py` runs the same rounds until a thousand kills are counted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.replication.blocking_callers import WAIT_S
from tests.replication.kill_rounds import run_round

ROOT = Path(__file__).resolve().parents[2]
KILLS = 6
"""In each of four rounds: by the writer and by a server, of a log and of a store."""


class Process:
    """A child that says a word when it is ready."""

    def __init__(self, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline()
        assert self.first, f"{arguments} ended with {self.process.wait()}"
        self.lines: list[str] = []
        self._drain = threading.Thread(target=self._collect, args=(self.process.stdout,), daemon=True)
        self._drain.start()

    def _collect(self, output: Iterable[str]) -> None:
        for line in output:
            self.lines.append(line)

    def kill(self) -> None:
        """SIGKILL: it can do nothing about it, and nothing more."""
        self.process.kill()
        self.wait()

    def end(self, number: int = signal.SIGTERM) -> int:
        """SIGTERM, or another signal that ends it in order."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        code = self.process.wait(WAIT_S)
        self._drain.join(WAIT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_killed_at_random_moments_the_replica_is_a_prefix_and_ends_equal(tmp_path: Path, seed: int) -> None:
    """Kill writer, server or replica at random moments, in stream and bootstrap: a prefix each time; they end equal."""
    assert run_round(tmp_path, seed, KILLS).kills >= KILLS
