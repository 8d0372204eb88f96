"""Claims and drops of records at the same time: at every step, and in processes that are killed and stopped."""

from __future__ import annotations

import errno
import os
import random
import signal
import uuid
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.logs import Child, lsns, tiny
from tests.support.threads import Task
from walkit.config import Retention
from walkit.errors import GapError, StorageError
from walkit.format.file_names import CLAIMS_LOCK_NAME
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import Operation
from walkit.read.claim import Claim
from walkit.storage import FileStorage, Storage

WANTED = 20
"""The LSN that the claims of these tests ask for: in the middle of the dropped records."""


class Interleaved(FaultyStorage):
    """A storage at whose n-th operation another consumer asks for a claim, as from another process."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.at: int | None = None
        """Ask at this operation; None for none."""
        self.operations = 0
        self.outcome: Claim | GapError | StorageError | None = None

    def perform(self, operation: Operation, *how: Any, **else_: Any) -> Any:
        """See FaultyStorage."""
        self._ask()
        return super().perform(operation, *how, **else_)

    def lock(self, name: str) -> Any:
        """See FaultyStorage. The moment before the lock is one to ask at, too."""
        self._ask()
        return super().lock(name)

    def _ask(self) -> None:
        if self.at is not None:
            self.operations += 1
            if self.operations == self.at:
                try:
                    self.outcome = Task(lambda: walkit.claim(self.inner, "other", WANTED, wait_s=0)).result()
                except (GapError, StorageError) as error:
                    self.outcome = error


DROPS: dict[str, Callable[[walkit.Store], object]] = {
    "trim": lambda store: store.log.trim(60),
    "drain": lambda store: list(store.log.drain(60)),
    "retention": lambda store: store.log.enforce_retention(Retention(records_max=15)),
    "checkpoint": lambda store: store.checkpoint(),
    "compaction": lambda store: store.compact(),
}


@pytest.mark.parametrize("drop", DROPS.values(), ids=DROPS)
@pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.slow), 5]
)  # slow: 250 drops, 100 of them compactions
def test_a_claim_at_every_step_of_what_drops_records(
    drop: Callable[[walkit.Store], object], step: int
) -> None:
    """Ask for a claim at each operation of a drop: it is kept, or a gap at once, or it waits for the claims' lock."""
    base = CrashingStorage()
    with walkit.Store.open(storage=base, options=tiny()) as store:
        for i in range(80):
            store.put(b"%d" % (i % 7), b"%d" % i * 3500)
        store.snapshot()
        store.put(b"last", b"")
    outcomes = set()
    for at in count(1, step):
        storage = Interleaved(base.process_kill())
        with walkit.Store.open(storage=storage, options=tiny()) as store:
            storage.at = at
            drop(store)
            storage.at = None
            outcome = storage.outcome
            if outcome is None:
                break
            outcomes.add(type(outcome))
            if isinstance(outcome, Claim):
                assert lsns(store.log.read(WANTED)) == list(range(WANTED, 82)), at
                assert store.log.complete_from_lsn <= WANTED, at
                outcome.advance(82)
                drop(store)
            elif isinstance(outcome, StorageError):
                assert outcome.errno == errno.ETIMEDOUT, at
            assert store.log.complete_from_lsn > WANTED, at
    assert outcomes == {Claim, GapError, StorageError} and at > 10


def test_two_openings_of_one_place_exclude_each_other(tmp_path: Path) -> None:
    """Take the claims' lock by one storage and by another of the same folder: the kernel lets one in at a time."""
    log = walkit.open(tmp_path / "log", options=tiny())
    log.append_many([bytes(7000)] * 40)
    lock: Any = FileStorage(tmp_path / "log").lock(CLAIMS_LOCK_NAME)
    with pytest.raises(StorageError) as busy:
        walkit.claim(tmp_path / "log", "c", wait_s=0)
    assert busy.value.errno == errno.ETIMEDOUT and f"process {os.getpid()}" in str(busy.value)
    lock.release()
    assert walkit.claim(tmp_path / "log", "c", 5).first_lsn == 5 and log.trim(30) == 4
    log.close()


HOLDER = """
    import json, sys
    from walkit.segments.consumer_files import claims_locked
    from walkit.storage import FileStorage

    with claims_locked(FileStorage(sys.argv[1])):
        print(json.dumps("locked"), flush=True)
        sys.stdin.readline()
    print(json.dumps("free"), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_process_that_has_the_lock_ends_or_stops(tmp_path: Path, how: str) -> None:
    """Kill a process that has the lock: it is free at once. Stop one: a trim gives up, names it, and later is done."""
    with walkit.open(tmp_path / "log", options=tiny()) as log:
        log.append_many([bytes(7000)] * 40)
        log.wait_idle()
        log.parts.claims._wait_s = 0.05
        with Child(HOLDER, tmp_path / "log") as child:
            assert child.read() == "locked"
            pid = child.process.pid
            if how == "killed":
                child.kill()
            else:
                os.kill(pid, signal.SIGSTOP)
                with pytest.raises(StorageError, match=f"process {pid}") as busy:
                    log.trim(30)
                assert busy.value.errno == errno.ETIMEDOUT and log.first_lsn == 1
                os.kill(pid, signal.SIGCONT)
                child.send("free it")
                assert child.read() == "free"
            assert log.trim(30) == 30


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Fork while the lock is held, and kill the parent: the child lives, and the lock is free."""
    walkit.open(tmp_path / "log", options=tiny()).close()
    script = """
        import os, signal, sys
        from walkit.segments.consumer_files import claims_locked
        from walkit.storage import FileStorage

        with claims_locked(FileStorage(sys.argv[1])):
            ready, tell = os.pipe()
            parent = os.getpid()
            if os.fork():
                os.close(tell)
                os.read(ready, 1)
                os.kill(parent, signal.SIGKILL)
            os.write(tell, b"!")
            print(os.getpid(), flush=True)
            os.read(os.open(sys.argv[2], os.O_RDONLY), 1)
    """
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with Child(script, tmp_path / "log", gate) as child:
        orphan = child.read()
        child.process.wait()
        try:
            assert walkit.claim(tmp_path / "log", "c", wait_s=5).first_lsn == 1
        finally:
            os.kill(orphan, signal.SIGKILL)


WRITER = """
    import json, sys
    import walkit

    log = walkit.open(sys.argv[1], options=walkit.LogOptions(
        segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=1,
        retention=walkit.Retention(records_max=100)))
    events = []
    log.events.add_listener(lambda name, about: events.append(name))
    print(json.dumps("open"), flush=True)
    end = int(sys.argv[2])
    while True:
        if log.acked_lsn < end:
            # A killed writer may have written a part of the last 20.
            log.append_many([b"%d" % log.acked_lsn * 400] * min(20, end - log.acked_lsn))
        log.trim(log.acked_lsn)
        print(json.dumps({"acked": log.acked_lsn, "events": events}), flush=True)
        sys.stdin.readline()
"""
CONSUMER = """
    import json, sys, uuid
    import walkit

    path, owner, end = sys.argv[1], uuid.UUID(sys.argv[2]), int(sys.argv[3])
    claim = walkit.claim(path, "consumer", owner=owner)
    done = open(sys.argv[4], "r+")
    saved = done.read()
    assert not saved or claim.first_lsn <= int(saved) + 1, (claim.first_lsn, saved)
    print(json.dumps({"begins": claim.first_lsn}), flush=True)
    reader = walkit.open(path, mode="r")
    wanted = claim.first_lsn
    for record in reader.follow(wanted):
        assert record.lsn == wanted, (record.lsn, wanted)
        wanted += 1
        if wanted % 7 == 0 or wanted > end:
            done.seek(0)
            done.write(f"{record.lsn:020d}")
            done.flush()
            claim.advance(wanted)
            print(json.dumps({"at": claim.first_lsn}), flush=True)
            if wanted > end:
                break
"""


def test_a_consumer_and_a_writer_that_are_killed(tmp_path: Path) -> None:
    """Kill a writer that trims and a consumer that advances, in turns, at any moment: no record is missed."""
    path, owner, end = tmp_path / "log", uuid.uuid4(), 150
    walkit.open(path, options=tiny()).close()
    done = tmp_path / "done"
    done.touch()
    draw = random.Random(21)
    at = acked = 0
    writer = consumer = None
    while at <= end:
        if writer is None:
            writer = Child(WRITER, path, str(end))
            assert writer.read() == "open"
        if consumer is None:
            consumer = Child(CONSUMER, path, str(owner), str(end), done)
            begins = consumer.read()["begins"]
            assert begins >= at, "a claim never moves back"
            at = begins
        for _ in range(draw.randrange(1, 8)):
            if acked < end:
                acked = max(acked, (told := writer.read())["acked"])
                assert not [name for name in told["events"] if name.startswith("walkit.claim.")]
                writer.send("go on")
        for _ in range(draw.randrange(1, 8)):
            if at < acked - 7:
                at = consumer.read()["at"]
        if at >= acked - 7 == end - 7:
            while at <= end:
                at = consumer.read()["at"]
        elif draw.random() < 0.5:
            consumer.__exit__()
            consumer = None
        else:
            writer.__exit__()
            writer = None
    for child in (writer, consumer):
        if child is not None:
            child.__exit__()
    with walkit.open(path, options=tiny()) as log:
        assert [(c.first_lsn, c.state) for c in log.claims()] == [(end + 1, "live")]
        log.trim(end)
        assert log.first_lsn == end + 1
