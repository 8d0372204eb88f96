"""The replica's process and the watch on its lag: what they see, what they raise, and that no process is left."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

import walkit
from walkit.config import LogOptions
from walkit.demo.followed_step import caught_up_at
from walkit.demo.replica import LagWatch, ReplicaProcess, ReplicaProcessError
from walkit.errors import OptionsError
from walkit.replication import Primary
from walkit.workload.process import python_child
from walkit.workload.role import ORPHANED


def nothing() -> None:
    """A check that finds nothing wrong."""


def test_a_replica_is_killed_started_again_and_stopped(tmp_path: Path) -> None:
    """Kill it, write on, start it again: it stands where it was, then catches up, and ends in order when told to."""
    with (
        walkit.open(tmp_path / "p") as log,
        Primary(log) as primary,
        ReplicaProcess(primary.address, tmp_path / "r") as replica,
        LagWatch(lambda: log.durable_lsn, replica.durable_lsn) as watch,
    ):
        assert replica.durable_lsn() == 0
        log.append(b"one")
        replica.start()
        watch.wait(1, replica.check)
        assert replica.kill() == -signal.SIGKILL
        log.append_many([b"two", b"three"])
        assert replica.durable_lsn() == 1
        replica.start()
        watch.wait(3, replica.check)
        assert replica.stop() == 0
        rows = watch.samples
    assert rows.shape[1] == 3
    assert (rows[:, 2] <= rows[:, 1]).all()
    assert tuple(rows[-1, 1:]) == (3, 3)


def test_no_process_is_left(tmp_path: Path) -> None:
    """Leave the block by Ctrl-C: the process is gone; end its standard input: it ends by itself."""
    with walkit.open(tmp_path / "p") as log, Primary(log) as primary:
        replica = ReplicaProcess(primary.address, tmp_path / "r")
        with suppress(KeyboardInterrupt), replica:
            replica.start()
            pid = replica.pid
            raise KeyboardInterrupt
        assert not psutil.pid_exists(pid)
        given = {"path": str(tmp_path / "s"), "address": primary.address, "name": "replica", "codec": "zstd"}
        role = "walkit.workload.replicated_process:follow"
        command, environment = python_child("walkit.workload", role, json.dumps(given))
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        ) as orphan:
            assert orphan.stdin is not None and orphan.stdout is not None
            assert b"status" in orphan.stdout.readline()
            orphan.stdin.close()
            assert orphan.wait(60) == ORPHANED


def test_a_failed_replica_reports_its_error(tmp_path: Path) -> None:
    """Follow another log into a replica's folder: waiting ends with the last words of the process."""
    for name in ("one", "other"):
        with walkit.open(tmp_path / name) as log, Primary(log) as primary:
            log.append(name.encode())
            with (
                ReplicaProcess(primary.address, tmp_path / "r") as replica,
                LagWatch(lambda: 1, lambda: 0) as watch,
            ):
                replica.start()
                if name == "one":
                    while replica.durable_lsn() < 1:
                        replica.check()
                else:
                    with pytest.raises(ReplicaProcessError, match="The first difference is LSN 1"):
                        watch.wait(1, replica.check)


def fail() -> None:
    LogOptions(in_flight=0)


class Sides:
    """Two sides that are moved by hand."""

    def __init__(self) -> None:
        self.primary, self.replica = 0, 0


def watch_of(sides: Sides) -> LagWatch:
    return LagWatch(lambda: sides.primary, lambda: sides.replica)


def test_what_is_due_is_done_once_at_its_lsn() -> None:
    """Nothing is done below the LSN; at it the act runs once, on the watch's thread, and waiting for it ends."""
    sides, done = Sides(), []
    with watch_of(sides) as watch:
        sides.primary = 9
        watch.at(10, lambda: done.append(threading.current_thread().name))
        seen = len(watch.samples)
        while len(watch.samples) < seen + 3:
            watch.wait(0, nothing)
        assert done == []
        sides.primary = 11
        watch.due_done()
        sides.replica = 11
        watch.wait(11, nothing)
    assert done == ["lag-watch"]


@pytest.mark.parametrize("waiting", [LagWatch.due_done, lambda watch: watch.wait(1, nothing)])
def test_what_fails_on_the_watch_is_raised_where_it_is_waited_for(
    waiting: Callable[[LagWatch], object],
) -> None:
    """An act that raises ends the watch, and every wait raises what it raised."""
    sides = Sides()
    with watch_of(sides) as watch:
        watch.at(0, fail)
        with pytest.raises(OptionsError, match="in_flight"):
            waiting(watch)


def test_a_replica_has_caught_up_when_it_is_a_tenth_of_a_second_behind() -> None:
    """Of samples of a replica that comes nearer: the first one that has what the primary had 0.1 s before."""
    at = np.arange(0.0, 2.0, 0.05)
    primary = np.round(at * 1_000)
    for delay, expected in ((0.05, 1.0), (0.09, 1.0), (0.15, 1.95)):
        replica = np.where(at < 0.975, 0.0, primary - delay * 1_000)
        found = caught_up_at(np.column_stack([at, primary, replica]), 0.5)
        assert found == pytest.approx(expected)
