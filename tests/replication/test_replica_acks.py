"""Semi-synchronous mode: what is acknowledged is on k replicas, whichever processes are killed."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, until
from tests.support.interrupts import interrupt_in
from tests.support.logs import memory_log
from tests.support.ports import free_address
from walkit.errors import CommitFailedError, OptionsError
from walkit.replication import DeltaReader, Primary, Replica
from walkit.replication.primary.replica_acks import AckStatus, ReplicaAcks
from walkit.segments.manifest_store import LOCK_NAME
from walkit.store import Store

Session = tuple[str, str, int]
"""A session, the key of its replica, and the LSN that it acknowledges; -1 if the session ends."""


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


def test_an_interrupted_close_does_not_end_the_waiting(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt the close of a log that waits for replicas: KeyboardInterrupt soon, free once the waiting ends."""
    monkeypatch.setattr("walkit._main_thread.GRACE_S", 0.05)
    log = stack.enter_context(memory_log())
    primary = stack.enter_context(Primary(log, ack_replicas=1, ack_timeout_ms=60_000))
    ticket = log.submit(b"v")
    until(lambda: log.durable_lsn == 1, "the write")
    shooter = interrupt_in("close")
    with pytest.raises(KeyboardInterrupt):
        log.close()
    shooter.result()
    storage = log.parts.storage
    assert not ticket.done() and storage.is_locked(LOCK_NAME)
    primary.stop()
    assert isinstance(ticket.exception(WAIT_S), CommitFailedError)
    until(lambda: not storage.is_locked(LOCK_NAME), "the rest of the close")


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
    until(lambda: events.count("walkit.acks.resume") == 1, "its event, which comes after")
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
