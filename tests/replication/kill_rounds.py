"""Rounds of real kills over stream and bootstrap, shared by the tests and by `scripts/kill_replicas.py`.

A round has a writer, in half of the rounds a server of its own, and a replica, each a process. Again and again one of
them gets SIGKILL: at a random moment, or a replica right before a random change of its folder. Where the replica is
away the writer may drop its claims and trim or checkpoint past it, so that it has to be bootstrapped when it is back.
"""

from __future__ import annotations

import math
import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import walkit
from tests.replication.blocking_callers import until
from tests.replication.processes import Processes, processes
from tests.support.imports import bytes_of
from tests.support.ports import free_address
from walkit.errors import CorruptionError, GapError, LogNotFoundError, StorageError
from walkit.format.file_names import BOOTSTRAP_PREFIX
from walkit.recovery.log_scan import read_durable_slot
from walkit.replication.logs.source import StoredSource
from walkit.segments.manifest_store import load_manifest
from walkit.state.table import KeyedTable
from walkit.storage import FileStorage

CHANGES_MAX = 160
"""A bootstrap of a log of this size has somewhat fewer changes."""


@dataclass
class Tally:
    """Counts of a round."""

    kills: int = 0
    bootstrapping: int = 0
    """Of them, those while the replica gathered another log or put it in its place."""
    trims: int = 0


class Round:
    """One log and its replica under kills, made from a seed."""

    def __init__(self, folder: Path, seed: int, processes: Processes) -> None:
        self.chance = random.Random(seed)
        self.primary, self.replica = folder / "primary", folder / "replica"
        self.address = free_address()
        self.has_server = bool(seed % 2)
        self.is_store = bool(seed // 2 % 2)
        self._processes = processes
        self.tally = Tally()
        self.roles: list[str] = ["writer", "replica", *(["server"] if self.has_server else [])]
        self.living: dict[str, int] = {}
        for role in ("writer", "server", "replica"):
            if role in self.roles:
                self.living[role] = self._start(role)
        self._seen: dict[int, Any] = {}
        self._reached: dict[Path, int] = {}

    def _start(self, role: str, nth: int = 0) -> int:
        """Start one role; a replica may kill itself before its nth change, 0 for never."""
        if role == "writer":
            address = None if self.has_server else self.address
            pid = self._processes.start("write", str(self.primary), address, self.is_store)
            until((self.primary / "manifest").exists, "the log")
            return pid
        if role == "server":
            return self._processes.start("serve", str(self.primary), self.address)
        return self._processes.start("follow", self.address, str(self.replica), nth)

    def turn(self) -> None:
        """Let them run, kill one, look at what is there, and start it again."""
        chance = self.chance
        if not chance.randrange(8):
            self._kill_all()
            return
        role = chance.choice((*self.roles, "replica", "replica"))
        deadline = time.monotonic() + chance.uniform(0.0, 0.4)
        while not self._processes.has_ended(self.living["replica"]):
            if time.monotonic() >= deadline:
                self._processes.kill(self.living[role])
                break
            time.sleep(0.005)
        else:
            role = "replica"
        self.tally.kills += 1
        self.tally.bootstrapping += any(p.name.startswith(BOOTSTRAP_PREFIX) for p in files(self.replica))
        self.check()
        nth = 0
        if role == "replica":
            trims = chance.randrange(5) < 2
            if trims:
                self._trim()
            nth = chance.randrange(1, CHANGES_MAX) if trims or chance.randrange(3) else 0
        self.living[role] = self._start(role, nth)

    def _kill_all(self) -> None:
        """Kill all processes at once, and start them again."""
        time.sleep(self.chance.uniform(0.0, 0.4))
        for role in self.roles:
            if not (role == "replica" and self._processes.has_ended(self.living[role])):
                self._processes.kill(self.living[role])
            self.tally.kills += 1
        self.check()
        for role in ("writer", "server", "replica"):
            if role in self.roles:
                self.living[role] = self._start(role)

    def _trim(self) -> None:
        """Have the writer drop all of its records, needed or not."""
        before = load_manifest(FileStorage(str(self.primary))).low_watermark
        asked_s = -math.inf

        def has_trimmed() -> bool:
            nonlocal asked_s
            # Again each second: a writer that has appended nothing yet has nothing to drop.
            if time.monotonic() > asked_s + 1:
                os.kill(self.living["writer"], signal.SIGUSR1)
                asked_s = time.monotonic()
            return load_manifest(FileStorage(str(self.primary))).low_watermark > before

        until(has_trimmed, "the writer to trim")
        self.tally.trims += 1

    def check(self) -> None:
        """The replica's frames are the primary's at the same positions, and neither has lost what it published."""
        published = {
            folder: read_durable_slot(FileStorage(str(folder))).lsn if files(folder) else 0
            for folder in (self.primary, self.replica)
        }
        theirs, ours = frames_in(self.replica), frames_in(self.primary)
        self._seen.update({header.position: (header, body) for header, body in ours})
        for header, body in theirs:
            known = self._seen.get(header.position)
            assert known is None or known == (header, body), f"another frame at position {header.position:,}"
        for folder, frames in ((self.primary, ours), (self.replica, theirs)):
            last = frames[-1][0].last_lsn if frames else 0
            # The published end, not the end of the file: while a writer opens, a reader sees no more than that.
            reached = self._reached.get(folder, 0)
            assert not frames or last >= reached, (
                f"{folder}: LSN {reached} was published, and it ends at {last}"
            )
            self._reached[folder] = max(reached, published[folder])

    def finish(self) -> None:
        """Without kills both end equal, frame by frame, and so do the states."""
        if self._processes.has_ended(self.living["replica"]):
            self.tally.kills += 1
        else:  # one that is yet to kill itself goes, too
            self._processes.kill(self.living["replica"])
            self.tally.kills += 1
        self.living["replica"] = self._start("replica")
        self._processes.end(self.living["writer"])
        if not self.has_server:
            self.living["server"] = self._processes.start("serve", str(self.primary), self.address)
        end = load_manifest(FileStorage(str(self.primary))).end
        until(lambda: durable_lsn(self.replica) == end.last_lsn, "the replica")
        self._processes.end(self.living["replica"])
        self._processes.end(self.living["server"])
        self.check()
        assert walkit.verify(self.replica).ok and walkit.verify(self.primary).ok
        with walkit.open(self.primary, mode="r") as ours, walkit.open(self.replica, mode="r") as theirs:
            first = max(ours.first_lsn, theirs.first_lsn)
            assert ours.to_arrow(first).equals(theirs.to_arrow(first))
            if self.is_store:
                walkit.recover(ours, one := KeyedTable())
                walkit.recover(theirs, other := KeyedTable())
                assert dict(one.items()) == dict(other.items())
        left = [p.name for p in files(self.replica) if p.name.startswith(BOOTSTRAP_PREFIX)]
        assert not left, left


def durable_lsn(folder: Path) -> int:
    """The last LSN that a replica has published; 0 if it has nothing yet, or its log is being replaced."""
    try:
        return StoredSource(FileStorage(str(folder))).durable()[0]
    except (CorruptionError, GapError, LogNotFoundError, StorageError):
        return 0


def files(folder: Path) -> list[Path]:
    """The files of a folder, which may not be there yet."""
    return list(folder.iterdir()) if folder.exists() else []


def frames_in(path: Path) -> list[Any]:
    """The frames of a log that may be trimmed and replaced meanwhile; tried again where that is under way."""
    for _ in range(50):
        # A file that is named and gone a moment later.
        with suppress(CorruptionError, GapError, StorageError):
            try:
                return bytes_of(FileStorage(str(path)))
            except LogNotFoundError:
                return []
        time.sleep(0.02)
    return bytes_of(FileStorage(str(path)))


def run_round(folder: Path, seed: int, kills: int) -> Tally:
    """Run one round of this many kills over stream and bootstrap; AssertionError if a promise is broken."""
    with processes() as started:
        world = Round(folder, seed, started)
        while world.tally.kills < kills - 1:
            world.turn()
        world.finish()
    return world.tally
