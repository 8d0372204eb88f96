"""Scenarios about logs that are copied, damaged, repaired, and recovered more than once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from walkit.config import RecoveryPolicy
from walkit.copier.log_copy import copy_into
from walkit.crashlab.consumer_scenarios import FRAME_BYTES
from walkit.crashlab.crash_rules import passes_holes, quiet
from walkit.crashlab.failing_script import FailingScript
from walkit.crashlab.promises import Ledger
from walkit.crashlab.recording import RecordingStorage
from walkit.crashlab.scenario import SMALL, Scenario
from walkit.crashlab.script import Script
from walkit.errors import CommitFailedError, WalkitError
from walkit.format.layout import DURABLE_SLOT_STRIDE, DURABLE_SLOTS_BYTES, SEGMENT_HEADER_BYTES
from walkit.format.manifest import MANIFEST_NAME
from walkit.format.segment import segment_name
from walkit.log.wal import WriteAheadLog
from walkit.models import CrashingStorage
from walkit.models.faults import Operation, OperationName
from walkit.objects.entrance import open_log
from walkit.record import Kind
from walkit.recovery.repair import repair
from walkit.segments.manifest_store import DURABLE_NAME, LOST_FOLDER, load_manifest
from walkit.store import Store

PARALLEL = replace(SMALL, in_flight=4, frame_bytes_max=4096)
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


def _fail_append(script: Script, log: WriteAheadLog) -> None:
    """Append a record of which a part is written: the log has failed, and does not seal its segment."""
    script.storage.fail("synced_write", "*.segment", short_bytes=900)
    script.ledger.submit((Kind.PUT, b"key 4", value := script.value(2_000)))
    with suppress(CommitFailedError):
        log.append(value, b"key 4")
    script.storage.clear()


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
        _fail_append(script, store.log)
    script.cut_power(3)
    copy.make()
    return copy


def _closed(script: Script) -> list[str]:
    """Write a log of two epochs, each of which has a full segment and one of a record; return their names."""
    for epoch in range(2):
        with script.open() as log:
            for number in range(5):
                script.append(log, 14_000, b"key %d" % (5 * epoch + number))
    script.ledger.keep(10)
    return [name for name in script.storage.names() if name.endswith(".segment")]


def _damaged(script: Script, segments: list[str]) -> None:
    """Damage the header of the first segment and a frame of the third."""
    script.damage(segments[0], 0)
    script.damage(segments[2], SEGMENT_HEADER_BYTES + FRAME_BYTES + 300, lost=7)


def _salvage(script: Script) -> None:
    _damaged(script, _closed(script))
    script.foresee_repair()
    with script.open() as log:
        script.ledger.is_damaged = False
        script.append(log, 500)


def _headless_epoch(script: Script, segments: list[str]) -> None:
    """Damage the manifest and the header with which an epoch begins."""
    script.damage(MANIFEST_NAME, 60)
    script.damage(segments[2], 0)


def _foreign_slot(script: Script) -> None:
    """Overwrite the durable slot by that of another log."""
    other = CrashingStorage()
    with open_log(storage=other, options=script.options, events=quiet) as log:
        log.append(b"another log's record")
    file = other.open(DURABLE_NAME, "read")
    script.damage(DURABLE_NAME, 0, data=file.read(0, DURABLE_SLOTS_BYTES))


def _unreadable(script: Script) -> None:
    """Put a segment beside the log that cannot be read."""
    name = segment_name(90)
    script.damage(name, 0)
    script.storage.fail("read", name, times=None)


def _repaired(script: Script, policy: RecoveryPolicy = "salvage") -> None:
    """Repair a damaged log; files under lost+found stay there."""
    with script.during("repair"):
        repair(script.storage, policy=policy)
        script.ledger.is_damaged = False
        script.ledger.aside = frozenset(script.storage.names(LOST_FOLDER))
        script.storage.take("the repair is done")
    script.storage.clear()


def _repair(script: Script) -> None:
    segments = _closed(script)
    lineage = load_manifest(script.storage).lineage
    damages: tuple[Callable[[], None], ...] = (
        lambda: script.damage(MANIFEST_NAME, 60),
        lambda: script.damage(DURABLE_NAME, 0),
        lambda: _headless_epoch(script, segments),
        lambda: _foreign_slot(script),
        lambda: _unreadable(script),
        lambda: _damaged(script, segments),
    )
    for damage in damages:
        damage()
        _repaired(script)
        assert load_manifest(script.storage).lineage == lineage
    with script.open() as log:
        script.append(log, 500)


def _repair_store(script: Script) -> None:
    """Lose the last record and the promise of it: a snapshot holds it, and its LSN is not given again."""
    with script.open_store() as store:
        _puts(script, store, 6)
    with script.open_store() as store:
        _puts(script, store, 1)
        script.checkpoint(store, trim=False)
        _fail_append(script, store.log)
    script.cut_power(1)  # else a stored slot may still reach the disk after its damage
    last = max(name for name in script.storage.names() if name.endswith(".segment"))
    for offset in range(0, DURABLE_SLOTS_BYTES, DURABLE_SLOT_STRIDE):
        script.damage(DURABLE_NAME, offset)
    script.damage(last, SEGMENT_HEADER_BYTES + 300, lost=7)
    _repaired(script)
    with script.open_store() as store:
        script.restarted(store.log)
        script.put(store, b"key 1", 300)


def _repair_cached(given: Script) -> None:
    """Fail the sync of a seal, and lose the manifest: a repair believes no page that only reads show."""
    script = FailingScript(given)
    storage = script.storage
    first = segment_name(1)
    log = script.open()
    fault = storage.fail("sync", first)
    with script.during("seal fails"):
        script.submit(log, 40, 3_500)
        with script.failing():
            script.sync(log)
        script.note_durable(log)
        log.close()
    assert fault.hits
    storage.clear()
    script.damage(MANIFEST_NAME, 60)
    script.ledger.lost = frozenset(range(script.ledger.kept + 1, 41))  # a salvage may leave any of them out
    with script.during("repair"):
        script.ledger.restart(repair(storage).last_lsn)  # on return it is durable
        script.ledger.is_damaged, script.ledger.lost = False, frozenset()
        storage.take("the repair is done")
    with script.open() as log:
        script.append(log, 500)


def _second_recovery(given: Script) -> None:
    """Fail the first of the frames in flight once those after it are written: a hole. Fail recoveries then."""
    script = FailingScript(given)
    storage = script.storage
    log = script.open()
    script.append(log, 700)

    def fail_last(operation: Operation) -> None:
        if operation.name == "synced_write":
            storage.watch = lambda operation: None
            storage.turns.wait(last=True)
            storage.fail("synced_write", operation.file, short_bytes=900)

    storage.watch = fail_last
    script.submit(log, 6, 3_500)
    storage.clear()
    log.close()
    acknowledged = script.ledger.promise()
    script.ledger.lost = (
        frozenset(range(acknowledged.kept + 1, acknowledged.submitted + 1)) - acknowledged.also
    )
    for turn in range(6):
        script.cut_power(turn)
        for operation in OPERATIONS:
            script.storage.fail(operation, nth=1 + script.chance.randrange(3), times=None)
        with script.during("second recovery" if turn else "recovery"), suppress(WalkitError):
            script.open().close()
        script.storage.clear()
    script.cut_power(9)
    with script.during("second recovery"), script.open() as log:
        assert bool(load_manifest(storage).holes) == passes_holes(script.options)
        script.restarted(log)
        script.append(log, 100)


RESCUE_SCENARIOS = (
    *(
        Scenario(
            f"second-recovery{suffix}",
            f"a frame in flight fails; recoveries that {what} fail at drawn operations, each after a cut",
            _second_recovery,
            options,
            covers=("recovery", "second recovery"),
        )
        for suffix, what, options in (
            ("", "cut the bytes after it", PARALLEL),
            ("-holes", "keep the frames after it", replace(PARALLEL, recovery="holes")),
            ("-completion", "keep acknowledged frames", replace(PARALLEL, ack_order="completion")),
        )
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
        "manifest, durable slot, headers and a frame are damaged or foreign, and repaired, one after the other",
        _repair,
        covers=("repair", "salvage", "manifest"),
    ),
    Scenario(
        "repair-store",
        "a Store's last record and the promise of it are lost, and a snapshot vouches for it",
        _repair_store,
        is_store=True,
        covers=("repair", "checkpoint", "manifest"),
    ),
    Scenario(
        "repair-cached",
        "durability none: the sync of a seal fails, and a repair rebuilds the damaged manifest",
        _repair_cached,
        replace(PARALLEL, durability="none"),
        covers=("seal fails", "repair", "in flight"),
    ),
    Scenario(
        "copy",
        "a Store's log is copied beside its writer, twice, and after a power cut: the copy's power is cut",
        _target,
        is_store=True,
        covers=("copy", "manifest"),
    ),
    Scenario(
        "copied",
        "the same, and the power of the log that is copied is cut",
        _source,
        is_store=True,
        covers=("claim", "checkpoint", "removal"),
    ),
)
