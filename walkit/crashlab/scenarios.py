"""What is run until the power is cut: small histories of a log or a Store, each with what it promises as it goes."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from walkit.config import LogOptions
from walkit.crashlab.ledger import Ledger
from walkit.crashlab.oracle import Oracle, quiet
from walkit.crashlab.recording import RecordingStorage
from walkit.errors import CommitFailedError, OptionsError, WalkitError
from walkit.log.open import open_log
from walkit.log.wal import WriteAheadLog
from walkit.models import CrashingStorage
from walkit.record import Kind
from walkit.store import Store

SMALL = LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=0)
IDLE_S = 30.0


class Script:
    """Does what a scenario says, and notes in the ledger what each call was given and has promised."""

    def __init__(self, options: LogOptions, seed: int) -> None:
        self.options = options
        self.ledger = Ledger()
        self.chance = random.Random(seed)
        self.storage = RecordingStorage(CrashingStorage(), self.ledger)

    def open(self) -> WriteAheadLog:
        """Open the log."""
        return open_log(storage=self.storage, options=self.options, events=quiet)

    def open_store(self) -> Store:
        """Open the Store."""
        return Store.open(storage=self.storage, options=self.options, events=quiet)

    def value(self, size: int) -> bytes:
        """Return bytes that no compression makes smaller, and none of which is zero."""
        return bytes(self.chance.choices(range(1, 256), k=size))

    def append(self, log: WriteAheadLog, size: int, key: bytes | None = None) -> None:
        """Append one record."""
        value = self.value(size)
        lsn = self.ledger.submit((Kind.PUT, key, value))
        log.append(value, key)
        self._acknowledged(log, lsn)

    def delete(self, log: WriteAheadLog | Store, key: bytes) -> None:
        """Append a deletion."""
        lsn = self.ledger.submit((Kind.DELETE, key, None))
        log.delete(key)
        self._acknowledged(log, lsn)

    def append_many(self, log: WriteAheadLog, count: int, size: int) -> None:
        """Append several records with one call."""
        values = [self.value(size) for _ in range(count)]
        lsn = self.ledger.submit(*((Kind.PUT, None, value) for value in values))
        log.append_many(values)
        self._acknowledged(log, lsn)

    def transaction(self, log: WriteAheadLog, count: int, size: int) -> None:
        """Append records that are all or nothing."""
        values = [self.value(size) for _ in range(count)]
        keys = [b"key %d" % number for number in range(count)]
        rows = ((Kind.PUT, key, value) for key, value in zip(keys, values, strict=True))
        lsn = self.ledger.submit(*rows, together=True)
        with log.transaction() as tx:
            for key, value in zip(keys, values, strict=True):
                tx.put(key, value)
        self._acknowledged(log, lsn)

    def submit(self, log: WriteAheadLog, count: int, size: int) -> None:
        """Submit records that are in flight together, and wait for each."""
        tickets = []
        for _ in range(count):
            value = self.value(size)
            lsn = self.ledger.submit((Kind.PUT, None, value))
            tickets.append((lsn, log.submit(value)))
        for lsn, ticket in tickets:
            ticket.result()
            self.ledger.keep_also(lsn, lsn) if self.options.ack_order == "completion" else self.ledger.keep(
                lsn
            )
        self.settle(log)

    def put(self, store: Store, key: bytes, size: int) -> None:
        """Put a value into a Store."""
        value = self.value(size)
        lsn = self.ledger.submit((Kind.PUT, key, value))
        store.put(key, value)
        self._acknowledged(store, lsn)

    def sync(self, log: WriteAheadLog) -> None:
        """Make all that was appended durable."""
        self.ledger.keep(log.sync())
        self.settle(log)

    def trim(self, log: WriteAheadLog, lsn: int) -> None:
        """Trim the log."""
        self.ledger.trimmed = max(self.ledger.trimmed, lsn)
        log.trim(lsn)
        self.settle(log)

    def checkpoint(self, store: Store) -> None:
        """Take a checkpoint, which trims the log; what is in it is durable on return."""
        self.ledger.trimmed = len(self.ledger.rows)
        report = store.checkpoint()
        self.ledger.keep(report.lsn)
        self.settle(store)

    def compact(self, store: Store) -> None:
        """Compact the log of a Store."""
        self.ledger.compacted = True
        store.compact()
        self.settle(store)

    def cut_power(self, seed: int) -> None:
        """Cut the power, for once, and continue on what that leaves: what comes next begins with a recovery."""
        self.storage.inner = self.storage.inner.crash(keep="random", seed=seed)

    def restarted(self, log: WriteAheadLog) -> WriteAheadLog:
        """Note where a log that was opened after a cut ends."""
        self.ledger.restart(log.acked_lsn)
        return log

    def settle(self, opened: WriteAheadLog | Store) -> None:
        """Wait until the maintenance thread rests, so that a run has the same operations each time."""
        log = opened.log if isinstance(opened, Store) else opened
        log.wait_idle(IDLE_S)

    def _acknowledged(self, opened: WriteAheadLog | Store, lsn: int) -> None:
        if self.options.durability == "sync":
            self.ledger.keep(lsn)
        self.settle(opened)


@dataclass(frozen=True)
class Scenario:
    """One history: what is run, with which options, and by what its crash states are judged."""

    name: str
    text: str
    """What happens in it, in a sentence."""
    run: Callable[[Script], None] = field(repr=False)
    options: LogOptions = SMALL
    is_store: bool = False

    def play(self, seed: int = 0) -> RecordingStorage:
        """Run it and return its storage, with all the points at which the power may be cut.

        Where walkit raises what the scenario does not expect, that is the storage's `failure`, and the run ends there.
        """
        script = Script(self.options, seed)
        storage = script.storage
        try:
            self.run(script)
        except (WalkitError, AssertionError) as error:
            storage.failure = error
        storage.take("the end of the run")
        storage.is_recording = False
        return storage

    def oracle(self) -> Oracle:
        """Return what judges the states of its points."""
        return Oracle(self.options, self.is_store)


def _append(script: Script) -> None:
    with script.open() as log:
        for number in range(3):
            script.append(log, 40, b"key %d" % number)
        script.delete(log, b"key 1")
        script.transaction(log, 3, 400)
        script.append_many(log, 4, 300)
        script.append(log, 0)


def _rotation(script: Script) -> None:
    with script.open() as log:
        for number in range(11):
            script.append(log, 14_000, b"key %d" % (number % 3))


def _unsynced(script: Script) -> None:
    with script.open() as log:
        for number in range(12):
            script.append(log, 9_000 if number % 3 else 100)
            if number in (3, 11):
                script.sync(log)


def _trim(script: Script) -> None:
    with script.open() as log:
        for _ in range(9):
            script.append(log, 14_000)
        script.trim(log, 4)
        hold = log.hold("consumer", 7)
        script.trim(log, 6)
        script.append(log, 14_000)
        hold.release()
        script.trim(log, 9)
        script.append(log, 100)


def _checkpoint(script: Script) -> None:
    with script.open_store() as store:
        for number in range(6):
            script.put(store, b"key %d" % (number % 3), 12_000)
        script.checkpoint(store)
        script.delete(store, b"key 1")
        script.put(store, b"key 4", 12_000)
        script.checkpoint(store)
        script.put(store, b"key 2", 200)


def _compaction(script: Script) -> None:
    with script.open_store() as store:
        for number in range(14):
            script.put(store, b"key %d" % (number % 3), 12_000)
        script.delete(store, b"key 1")
        script.compact(store)
        script.put(store, b"key 0", 300)


def _parallel(script: Script) -> None:
    with script.open() as log:
        for _ in range(3):
            script.submit(log, 8, 1_500)


def _recovery(script: Script) -> None:
    for turn in range(3):
        log = script.restarted(script.open())
        script.append(log, 700)
        script.append(log, 700)
        script.storage.fail("synced_write", "*.segment", short_bytes=900)
        script.ledger.submit((Kind.PUT, None, value := script.value(2_000)))
        with suppress(
            CommitFailedError
        ):  # its outcome is unknown: after the cut it may be there, or a part of it
            log.append(value)
        script.storage.clear()
        log.close()
        script.cut_power(turn)
    with script.open() as log:
        script.restarted(log)
        script.append(log, 100)


def _failed_sync(script: Script) -> None:
    log = script.open()
    script.append(log, 700)
    script.storage.fail("synced_write", "*.segment")
    value = script.value(600)
    lsn = script.ledger.submit((Kind.PUT, None, value))
    try:
        log.append(value)
    except CommitFailedError:
        pass  # its outcome is unknown
    else:
        script.ledger.keep(lsn)
    script.storage.clear()
    log.close()
    with script.open() as log:  # on the same page cache, as after a restart of the process
        script.restarted(log)
        script.append(log, 100)


def _checkpoint_unsynced(script: Script) -> None:
    with script.open_store() as store:
        for number in range(4):
            script.put(store, b"key %d" % (number % 3), 3_000)
        script.checkpoint(store)
        script.put(store, b"key 2", 200)


def _reopen(script: Script) -> None:
    for _ in range(3):
        with script.open() as log:
            script.append(log, 300)
            script.append(log, 600)


_ALL = (
    Scenario(
        "append", "one record, a deletion, a transaction and a batch, each acknowledged when durable", _append
    ),
    Scenario("rotation", "large records over three segments: each is prepared, filled and sealed", _rotation),
    Scenario(
        "unsynced",
        "durability none: records over two segments, of which log.sync() makes some durable",
        _unsynced,
        replace(SMALL, durability="none"),
    ),
    Scenario("reopen", "a log that is closed and opened again, an epoch each time", _reopen),
    Scenario(
        "recovery",
        "a write fails halfway, the power is cut, and the recovery is cut in its turn",
        _recovery,
    ),
    Scenario(
        "failed-sync",
        "the sync of a write fails, and the log is opened again on the same page cache",
        _failed_sync,
    ),
    Scenario("trim", "trims, one of which a hold limits", _trim),
    Scenario(
        "checkpoint", "a Store's checkpoints: snapshot, low watermark, trim", _checkpoint, is_store=True
    ),
    Scenario(
        "checkpoint-unsynced",
        "durability none: a Store's checkpoint, before anything else was synced",
        _checkpoint_unsynced,
        replace(SMALL, durability="none"),
        is_store=True,
    ),
    Scenario("compaction", "a Store's log is compacted and continues", _compaction, is_store=True),
    Scenario(
        "parallel",
        "four frames in flight, acknowledged in append order",
        _parallel,
        replace(SMALL, in_flight=4, frame_bytes_max=4096),
    ),
    Scenario(
        "completion",
        "four frames in flight, each acknowledged when it is written",
        _parallel,
        replace(SMALL, in_flight=4, frame_bytes_max=4096, ack_order="completion", recovery="holes"),
    ),
)
SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
"""By name. In `parallel` and `completion` several threads write, so that two runs have not the same operations."""


def scenario_of(given: str | Scenario) -> Scenario:
    """Return the scenario of this name, or the one that is given. OptionsError."""
    if isinstance(given, Scenario):
        return given
    if given not in SCENARIOS:
        raise OptionsError(
            f"scenario={given!r}: it is one of {', '.join(SCENARIOS)}, or a walkit.crashlab.Scenario",
            option="scenario",
            wanted=given,
        )
    return SCENARIOS[given]
