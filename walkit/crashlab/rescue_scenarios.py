"""Scenarios about logs that are copied, damaged, repaired, and recovered more than once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from walkit.crashlab.consumer_scenarios import FRAME_BYTES
from walkit.crashlab.ledger import Ledger
from walkit.crashlab.recording import RecordingStorage
from walkit.crashlab.scenario import SMALL, Scenario
from walkit.crashlab.script import Script
from walkit.errors import CommitFailedError, WalkitError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import MANIFEST_NAME
from walkit.models import CrashingStorage
from walkit.models.faults import OperationName
from walkit.record import Kind
from walkit.recovery.repair import repair
from walkit.segments.manifest_store import DURABLE_NAME
from walkit.state.log_copy import copy_into
from walkit.store import Store

OPERATIONS: tuple[OperationName, ...] = (
    "write",
    "synced_write",
    "sync",
    "replace",
    "sync_directory",
    "remove",
)


class _Copy:
    """A copy of the script's log, in a storage whose power is cut by itself."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._ledger = Ledger()
        self._ledger.rows = script.ledger.rows
        self.storage = RecordingStorage(CrashingStorage(), self._ledger, script.storage.turns)

    def make(self, *meanwhile: Callable[[], object]) -> None:
        """Copy the log, and do this meanwhile."""
        script, its, left = self._script, self._ledger, list(meanwhile)
        its.kept, its.trimmed = 0, script.ledger.trimmed
        its.source = script.storage.inner.process_kill()

        def progress(done: int, total: int) -> None:
            if left:
                left.pop(0)()
                its.trimmed = script.ledger.trimmed

        durable = script.ledger.kept
        last_lsn = copy_into(script.storage, self.storage, progress, "the copy").last_lsn
        assert last_lsn >= durable and not left
        its.keep(last_lsn)
        script.ledger.keep(last_lsn)


def _puts(script: Script, store: Store, count: int) -> None:
    for number in range(count):
        script.put(store, b"key %d" % (number % 3), 12_000)


def _source(script: Script) -> None:
    _copied(script)


def _target(script: Script) -> None:
    copy = _copied(script)
    script.storage.is_recording = False
    script.storage = copy.storage


def _copied(script: Script) -> _Copy:
    """Copy a Store's log beside its writer, once more over that copy, and once more after a power cut."""
    copy = _Copy(script)
    with script.open_store() as store:
        _puts(script, store, 6)
        script.checkpoint(store)
        _puts(script, store, 6)
        copy.make(lambda: _puts(script, store, 1), lambda: script.checkpoint(store))
        _puts(script, store, 5)
        script.checkpoint(store)
        _puts(script, store, 1)
        copy.make(lambda: _puts(script, store, 2))
        script.storage.fail("synced_write", "*.segment", short_bytes=900)
        script.ledger.submit((Kind.PUT, b"key 4", value := script.value(2_000)))
        with suppress(CommitFailedError):
            store.put(b"key 4", value)
        script.storage.clear()
    script.cut_power(3)
    copy.make()
    return copy


def _damage(script: Script, name: str, offset: int, lost: int = 0) -> None:
    """Damage a file of a closed log, durably; note the record that this hits."""
    file = script.storage.inner.open(name, "write")
    file.write(offset, [b"\xff" * 16], sync=True)
    file.close()
    script.ledger.is_damaged = True
    if lost:
        script.ledger.lost |= {lost}


def _closed(script: Script) -> list[str]:
    """Write a log of three segments, four records in each, and close it; return the names of its segments."""
    with script.open() as log:
        for number in range(10):
            script.append(log, 14_000, b"key %d" % number)
    script.ledger.keep(10)
    return [name for name in script.storage.names() if name.endswith(".segment")]


def _damaged(script: Script, segments: list[str]) -> None:
    """Damage the header of the first segment and a frame of the second."""
    _damage(script, segments[0], 0)
    _damage(script, segments[1], SEGMENT_HEADER_BYTES + FRAME_BYTES + 300, lost=6)


def _salvage(script: Script) -> None:
    _damaged(script, _closed(script))
    with script.open() as log:
        script.ledger.is_damaged = False
        script.append(log, 500)


def _repair(script: Script) -> None:
    segments = _closed(script)
    damages: tuple[Callable[[], None], ...] = (
        lambda: _damage(script, MANIFEST_NAME, 60),
        lambda: _damage(script, DURABLE_NAME, 0),
        lambda: _damaged(script, segments),
    )
    for damage in damages:
        damage()
        with script.during("repair"):
            repair(script.storage, policy="salvage")
        script.ledger.is_damaged = False
    with script.open() as log:
        script.append(log, 500)


def _second_recovery(script: Script) -> None:
    log = script.open()
    for _ in range(3):
        script.append(log, 700)
    script.storage.fail("synced_write", "*.segment", short_bytes=900)
    script.ledger.submit((Kind.PUT, None, value := script.value(2_000)))
    with suppress(CommitFailedError):
        log.append(value)
    script.storage.clear()
    log.close()
    for turn in range(6):
        script.cut_power(turn)
        for operation in OPERATIONS:
            script.storage.fail(operation, nth=1 + script.chance.randrange(3), times=None)
        with script.during("second recovery" if turn else "recovery"), suppress(WalkitError):
            script.open().close()
        script.storage.clear()
    script.cut_power(9)
    with script.during("second recovery"), script.open() as log:
        script.restarted(log)
        script.append(log, 100)


RESCUE_SCENARIOS = (
    Scenario(
        "second-recovery",
        "recoveries fail at drawn operations, each after another power cut, and the last one succeeds",
        _second_recovery,
        covers=("recovery", "second recovery"),
    ),
    Scenario(
        "salvage",
        "a header and a frame are damaged, and an opening salvages the rest",
        _salvage,
        replace(SMALL, recovery="salvage"),
        covers=("salvage", "manifest"),
    ),
    Scenario(
        "repair",
        "the manifest, the durable slot, a header and a frame are damaged and repaired, one after the other",
        _repair,
        covers=("repair", "salvage", "manifest"),
    ),
    Scenario(
        "copy",
        "a Store's log is copied beside its writer, twice, and after a power cut: the copy's power is cut",
        _target,
        is_store=True,
        covers=("copy", "manifest", "removal"),
    ),
    Scenario(
        "copied",
        "the same, and the power of the log that is copied is cut",
        _source,
        is_store=True,
        covers=("claim", "checkpoint", "removal"),
    ),
)
