"""Semi-synchronous mode: what is acknowledged is on k replicas, whichever processes are killed."""

from __future__ import annotations

import random
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.replication.blocking_callers import until
from tests.replication.processes import Processes, free_address, processes
from tests.support.logs import memory_log
from walkit.errors import CommitFailedError, OptionsError
from walkit.recovery.log_scan import read_durable_slot
from walkit.replication import DeltaReader, Primary, Replica, promote
from walkit.replication.primary.replica_acks import AckStatus, ReplicaAcks
from walkit.segments.manifest_store import load_manifest
from walkit.storage import FileStorage
from walkit.store import Store

WAIT_S = 30.0
Session = tuple[str, str, int]
"""A session, the key of its replica, and the LSN that it acknowledges; -1 where the session ends."""


def acks_of(primary: Primary) -> AckStatus:
    """The replicas that its appends wait for."""
    status = primary.status().acks
    assert status is not None
    return status


@pytest.mark.parametrize(
    ("replicas", "sessions", "reached"),
    [
        (1, [], 0),
        (1, [("s", "A", 5)], 5),
        (1, [("s", "A", 5), ("t", "B", 7)], 7),
        (2, [("s", "A", 5)], 0),
        (2, [("s", "A", 5), ("t", "B", 7)], 5),
        (2, [("s", "A", 5), ("t", "A", 7)], 0),  # one replica in two sessions counts once
        (2, [("s", "A", 5), ("t", "A", 7), ("u", "B", 6)], 6),
        (2, [("s", "A", 5), ("t", "B", 7), ("u", "C", 6)], 6),
        (3, [("s", "A", 5), ("t", "B", 7), ("u", "C", 6)], 5),
        (1, [("s", "A", 5), ("s", "A", -1)], 0),  # it has left
        (2, [("s", "A", 5), ("t", "B", 7), ("s", "A", -1), ("t", "B", 9)], 0),
        (2, [("s", "A", 5), ("t", "B", 7), ("s", "A", -1), ("u", "A", 6)], 6),
    ],
)
def test_the_kth_largest_end_of_different_replicas_counts(
    replicas: int, sessions: list[Session], reached: int
) -> None:
    """Let sessions acknowledge and end: what so many different replicas have, of those that are connected."""
    with memory_log() as log:
        acks = ReplicaAcks(log, replicas, 1000, "fail", log.events)
        for session, key, lsn in sessions:
            if lsn < 0:
                acks.leave(session)
            else:
                acks.acknowledged(session, key, lsn)
        assert acks.status().reached_lsn == reached


@pytest.mark.parametrize(
    "options",
    [
        {"ack_replicas": 0},
        {"ack_replicas": 33},
        {"ack_replicas": 1, "ack_timeout_ms": 0},
        {"ack_timeout_ms": "1"},
        {"on_ack_timeout": "stop"},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    """Give wrong values: OptionsError, and the log does not wait."""
    with memory_log() as log:
        with pytest.raises(OptionsError):
            Primary(log, **options)
        assert log.append(b"v").first_lsn == 1


def test_another_source_than_the_open_log_is_refused(tmp_path: Path, stack: ExitStack) -> None:
    """Ask for replicas on a path, a reader, a replica's log and out of order; then on a log that has the mode."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log, ack_replicas=1))
    replica = stack.enter_context(Replica(tmp_path / "replica", primary.address))
    assert replica.wait_for(log.append(b"v"), WAIT_S)
    reader = stack.enter_context(walkit.open(tmp_path / "log", mode="r"))
    unordered = stack.enter_context(memory_log(in_flight=2, ack_order="completion"))
    for source in (tmp_path / "log", reader, replica.log, unordered):
        with pytest.raises(OptionsError, match="ack_replicas"):
            Primary(source, ack_replicas=1)
    with pytest.raises(OptionsError, match="another primary"):
        Primary(log, ack_replicas=1).start()
    assert log.append(b"v").first_lsn == 2  # the first one's mode has not ended
    with Primary(log) as plain:
        assert plain.status().acks is None


@pytest.mark.parametrize("is_store", [False, True])
def test_fail_raises_and_the_record_counts_once_replicas_have_it(
    tmp_path: Path, stack: ExitStack, is_store: bool
) -> None:
    """Append without a replica, then start one: CommitFailedError, then acknowledged; after `stop` nothing waits."""
    events: list[tuple[str, Any]] = []
    opening: Any = Store.open if is_store else walkit.open
    source = stack.enter_context(opening(tmp_path / "log", events=lambda *event: events.append(event)))
    log = source.log if is_store else source
    address = free_address()
    primary = stack.enter_context(Primary(source, address, ack_replicas=1, ack_timeout_ms=50))
    with pytest.raises(CommitFailedError):
        log.append(b"1", key=b"k")
    assert (log.acked_lsn, log.durable_lsn) == (0, 1)
    status = acks_of(primary)
    assert (status.state, status.waiting_records, status.late_records) == (
        "waiting",
        1,
        1,
    )
    assert "waiting, 0 of 1 replica" in primary._repr_html_()
    replica = Replica(tmp_path / "replica", primary.address).start()
    until(lambda: log.acked_lsn == 1, "the replica")
    assert not is_store or source[b"k"] == b"1"
    primary.stop()
    primary = stack.enter_context(Primary(source, address, ack_replicas=1, ack_timeout_ms=60_000))
    for number in range(2, 30):
        lsn = log.append(b"%d" % number, key=b"k").last_lsn
        assert replica.log.durable_lsn >= lsn == log.acked_lsn
    replica.stop()
    ticket = log.submit(b"last")
    until(lambda: log.durable_lsn == 30, "the write")
    primary.stop()
    assert isinstance(ticket.exception(WAIT_S), CommitFailedError)
    assert log.append(b"alone").last_lsn == log.acked_lsn == 31
    names = [name for name, _ in events if name.startswith("walkit.acks")]
    assert names[0] == "walkit.acks.begin" and names[-1] == "walkit.acks.end" and "walkit.acks.late" in names
    with Primary(source, ack_replicas=1, ack_timeout_ms=10), pytest.raises(CommitFailedError):
        log.append(b"again")


def test_a_late_record_is_called_written_before_its_sync(stack: ExitStack) -> None:
    """Let the time-out come long before the interval's sync: the error promises no sync."""
    log = stack.enter_context(memory_log(durability="interval", interval_ms=60_000))
    stack.enter_context(Primary(log, ack_replicas=1, ack_timeout_ms=10))
    with pytest.raises(CommitFailedError, match="it is written here"):
        log.append(b"v")
    assert log.durable_lsn == 0


def test_continue_acknowledges_until_replicas_have_caught_up(tmp_path: Path, stack: ExitStack) -> None:
    """Append without a replica: acknowledged at the time-out, with one event; with a replica it waits again."""
    events: list[str] = []
    log = stack.enter_context(walkit.open(tmp_path / "log", events=lambda name, _: events.append(name)))
    primary = stack.enter_context(Primary(log, ack_replicas=1, ack_timeout_ms=100, on_ack_timeout="continue"))
    began = time.monotonic()
    for number in range(20):
        assert log.append(b"%d" % number).last_lsn == log.acked_lsn == number + 1
    assert time.monotonic() - began >= 0.1
    assert events.count("walkit.acks.continue") == 1 and acks_of(primary).state == "continuing"
    replica = stack.enter_context(Replica(tmp_path / "replica", primary.address))
    until(lambda: acks_of(primary).state == "waiting", "the replica to catch up")
    assert events.count("walkit.acks.resume") == 1
    lsn = log.append(b"both").last_lsn
    assert replica.log.durable_lsn >= lsn or events.count("walkit.acks.continue") == 2  # a busy machine


def test_delta_readers_and_replicas_of_replicas_do_not_count(tmp_path: Path, stack: ExitStack) -> None:
    """Have a replica, its replica and a delta reader follow a log that waits for two: nothing is acknowledged."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log, ack_replicas=2, ack_timeout_ms=60_000))
    near = stack.enter_context(Replica(tmp_path / "near", primary.address))
    ticket = log.submit(b"v", key=b"k")
    assert near.store.wait_for(1, WAIT_S)
    middle = stack.enter_context(Primary(near.log))
    far = stack.enter_context(Replica(tmp_path / "far", middle.address))
    reader = stack.enter_context(DeltaReader(tmp_path / "log", primary.address))
    until(lambda: far.log.durable_lsn == reader.applied_lsn == 1, "all readers")
    until(lambda: acks_of(primary).counted == 1, "the replica's acknowledgement")
    assert not ticket.done() and log.acked_lsn == 0
    stack.enter_context(Replica(tmp_path / "second", primary.address))
    assert ticket.result(WAIT_S).last_lsn == log.acked_lsn == 1


class Failovers:
    """A primary and three replicas as processes; an append is acknowledged when two replicas have it."""

    replicas = 2

    def __init__(self, folder: Path, seed: int, started: Processes) -> None:
        self.chance, self.folder, self.started = random.Random(seed), folder, started
        self.is_store = bool(seed % 2)
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self.kills = 0
        self.primary, *self.others = [folder / f"node{number}" for number in range(4)]

    def turn(self) -> None:
        """Append under kills, kill the primary, look at each pair of replicas, and go on with the furthest of one."""
        address, before = free_address(), self.ledger.stat().st_size
        living = [self._begin("promise", self.primary, address)]
        until((self.primary / "manifest").exists, "the log")
        living += [self._begin("follow", node, address) for node in self.others]
        # An acknowledgement has the whole log with it: until there is one, only older promises hold.
        until(lambda: self.ledger.stat().st_size > before, "something acknowledged")
        if self.chance.randrange(2):
            victim = self.chance.randrange(3)
            self._kill(living.pop(victim + 1))
            living.append(self._begin("follow", self.others[victim], address))
        time.sleep(self.chance.uniform(0.0, 0.3))
        for pid in living:
            self._kill(pid)
        promised = dict(line.split() for line in self.ledger.read_bytes().split(b"\n")[:-1])
        for out in range(3):
            self._check(promised, self._furthest([n for i, n in enumerate(self.others) if i != out]))
        survivors = self.chance.sample(self.others, 2)
        chosen = self._furthest(survivors)
        promote(chosen)
        shutil.rmtree(self.primary)
        self.others = [node for node in (*self.others, self.primary) if node != chosen]
        self.primary = chosen

    def _begin(self, role: str, node: Path, address: str) -> int:
        if role == "follow":
            return self.started.start("follow", address, str(node), 0, True)
        return self.started.start(role, str(node), address, self.replicas, self.is_store, str(self.ledger))

    def _kill(self, pid: int) -> None:
        self.started.kill(pid)
        self.kills += 1

    def _furthest(self, nodes: list[Path]) -> Path:
        """The replica whose last epoch is the newest, and of those the longest."""

        def end(node: Path) -> tuple[int, int]:
            if not (node / "manifest").exists():
                return 0, 0
            manifest, slot = load_manifest(FileStorage(str(node))), read_durable_slot(FileStorage(str(node)))
            return manifest.lineage[-1].number if manifest.lineage else 0, max(
                slot.lsn, manifest.end.last_lsn
            )

        return max(nodes, key=end)

    def _check(self, promised: dict[bytes, bytes], node: Path) -> None:
        with walkit.open(node, mode="r") as log:
            there = {b"%d" % record.lsn: record.value for record in log.read()}
        lost = {lsn: value for lsn, value in promised.items() if there.get(lsn) != value}
        assert not lost, f"{node} has lost {len(lost)} of {len(promised)}: {sorted(lost)[:5]}"


@pytest.mark.parametrize(
    ("seed", "turns"),
    # slow: each turn starts and kills five processes
    [(0, 1), *(pytest.param(seed, 12, marks=pytest.mark.slow) for seed in (1, 2, 3))],
)
def test_a_failover_to_the_furthest_of_each_two_replicas_loses_nothing(
    tmp_path: Path, seed: int, turns: int
) -> None:
    """Kill primaries and replicas again and again: each two of three replicas have all that was acknowledged."""
    with processes() as started:
        world = Failovers(tmp_path, seed, started)
        for _ in range(turns):
            world.turn()
    assert world.kills >= 4 * turns
