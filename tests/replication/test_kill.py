"""Primary and replica as processes that are killed with SIGKILL: the replica is always a prefix and ends equal."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import walkit
from tests.log.imports import bytes_of, frames_of
from walkit.errors import CorruptionError, GapError, LogNotFoundError
from walkit.format.frame import FrameHeader
from walkit.replication.source import StoredSource
from walkit.segments.manifest_store import load_manifest
from walkit.storage import FileStorage

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60.0
KILLS = 10


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for: {what}"
        time.sleep(0.01)


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
        self._drain = threading.Thread(target=self.process.stdout.read, daemon=True)
        self._drain.start()

    def kill(self) -> None:
        """SIGKILL: it can do nothing about it, and nothing more."""
        self.process.kill()
        self._reap()

    def end(self, number: int = signal.SIGTERM) -> int:
        """SIGTERM, or another signal that ends it in order."""
        self.process.send_signal(number)
        return self._reap()

    def _reap(self) -> int:
        code = self.process.wait(WAIT_S)
        self._drain.join(WAIT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def frames_in(path: Path) -> list[tuple[FrameHeader, bytes]]:
    """The frames that can be read of a log whose writer may be at work; tried again where it trims or begins."""
    for _ in range(20):
        with suppress(CorruptionError, GapError):
            return bytes_of(FileStorage(str(path)))
        time.sleep(0.02)
    return bytes_of(FileStorage(str(path)))


def check_prefix(primary: Path, replica: Path) -> int:
    """The replica's frames first, then the primary's, which can only have grown: a prefix, frame by frame."""
    try:
        have = frames_in(replica)
    except LogNotFoundError:
        return 0
    whole = frames_in(primary)
    assert [h.position for h, _ in have] == [h.position for h, _ in whole[: len(have)]]
    assert have == whole[: len(have)]
    return len(have)


@pytest.mark.parametrize("served_by", ["the writer", "a reader"])
def test_killed_at_random_moments_the_replica_is_a_prefix_and_ends_equal(
    tmp_path: Path, served_by: str
) -> None:
    """Kill writer, server or replica ten times at random moments: a prefix each time; in the end equal, verified."""
    primary, replica, address = tmp_path / "primary", tmp_path / "replica", free_address()
    room = "walkit.replication"
    makers: dict[str, Callable[[], Process]] = {
        "writer": lambda: Process("-m", "tests.replication.writer", str(primary), address),
        "replica": lambda: Process("-m", room, "follow", address, str(replica)),
    }
    if served_by == "a reader":
        makers["writer"] = lambda: Process("-m", "tests.replication.writer", str(primary))
        makers["server"] = lambda: Process("-m", room, "serve", str(primary), address)
    chance = random.Random(served_by)
    living = {name: make() for name, make in makers.items()}
    frames = 0
    try:
        for turn in range(KILLS):
            time.sleep(chance.uniform(0.0, 0.5))
            victim = list(makers)[turn % len(makers)]
            living[victim].kill()
            frames = max(frames, check_prefix(primary, replica))
            living[victim] = makers[victim]()
        assert frames > 0
        assert living["writer"].end() == 0
        if served_by == "the writer":
            living["server"] = Process("-m", room, "serve", str(primary), address)
        end = load_manifest(FileStorage(str(primary))).end
        until(lambda: StoredSource(FileStorage(str(replica))).durable()[1] == end.position, "the replica")
        assert living["replica"].end() == 0
        assert living["server"].end() == 0
    finally:
        for process in living.values():
            process.kill()
    assert check_prefix(primary, replica) == len(frames_of(FileStorage(str(primary))))
    assert walkit.verify(replica).ok
    lineage = load_manifest(FileStorage(str(replica))).lineage
    assert lineage == load_manifest(FileStorage(str(primary))).lineage[: len(lineage)]
    assert len(lineage) > KILLS // len(makers) // 2
    with walkit.open(primary, mode="r") as ours, walkit.open(replica, mode="r") as theirs:
        assert ours.to_arrow().equals(theirs.to_arrow())
