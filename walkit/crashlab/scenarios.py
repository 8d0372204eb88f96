"""Scenarios for power cuts: small histories of a log or a Store, with their promises on the way."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from walkit._internal.arguments import check_choice
from walkit.config import StoreOptions
from walkit.crashlab.consumer_scenarios import CONSUMER_SCENARIOS
from walkit.crashlab.fault_scenarios import FAULT_SCENARIOS
from walkit.crashlab.hanging_scenarios import HANGING_SCENARIOS
from walkit.crashlab.history_scenarios import HISTORY_SCENARIOS
from walkit.crashlab.object_scenarios import OBJECT_SCENARIOS
from walkit.crashlab.racing_scenarios import RACING_SCENARIOS
from walkit.crashlab.rescue_scenarios import RESCUE_SCENARIOS
from walkit.crashlab.scenario import SMALL as SMALL
from walkit.crashlab.scenario import Scenario as Scenario
from walkit.crashlab.script import Script
from walkit.errors import CommitFailedError, MissingExtraError
from walkit.record import Kind
from walkit.segments.manifest_store import DURABLE_NAME, level_of, load_manifest

try:
    from walkit.crashlab.replica_scenarios import REPLICA_SCENARIOS
except MissingExtraError:  # without gRPC no log becomes a replica
    REPLICA_SCENARIOS = ()


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


def _groups(script: Script) -> None:
    with script.open() as log:
        for _ in range(3):
            script.append(log, 14_000)
        for turn in range(4):
            with script.during("transaction rotates"):
                script.transaction(log, 3, 4_000)
            script.append_many(log, 20, 2_000)
            script.append(log, 3_000 + turn)


def _unsynced(script: Script) -> None:
    with script.open() as log:
        # Readers of the folder take this level.
        assert (level_of(load_manifest(script.storage)) == "none") == (script.options.durability == "none")
        for number in range(24):
            script.append(log, 9_000 if number % 3 else 100)
            if number % 5 == 3:
                script.sync(log)


def _trim(script: Script) -> None:
    with script.open() as log:
        for _ in range(20):
            script.append_many(log, 2, 4_000)
        hold = log.hold("consumer", 9)
        script.keep_from("consumer", 9)
        script.trim(log, 20)
        for _ in range(15):
            script.append_many(log, 2, 4_000)
        claim = script.claim("reader", 45)
        script.let_go("consumer")
        hold.release()
        script.trim(log, 60)
        script.keep_from("reader", 49)
        claim.advance(49)
        script.trim(log, 65)
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


def _checkpoint_by_itself(script: Script) -> None:
    with script.open_store(StoreOptions(checkpoint_every=5)) as store:
        for number in range(18):
            script.may_drop(number + 1)  # a checkpoint may be taken at any moment
            script.put(store, b"key %d" % (number % 4), 9_000)


def _compaction(script: Script) -> None:
    with script.open_store() as store:
        for number in range(8):
            script.put(store, b"key %d" % (number % 3), 12_000)
        script.delete(store, b"key 1")  # no snapshot has the key: the deletion goes with the records
        for _ in range(8):
            script.put(store, b"key 0", 12_000)
        script.compact(store)
        script.checkpoint(store, trim=False)
        script.delete(store, b"key 2")  # the snapshot has the key: the deletion stays
        for _ in range(10):
            script.put(store, b"key 0", 12_000)
        script.compact(store)
        script.put(store, b"key 3", 300)


def _parallel(script: Script) -> None:
    with script.open() as log:
        for _ in range(3):
            script.submit(log, 8, 1_500)


def _parallel_rotation(script: Script) -> None:
    with script.open() as log:
        for _ in range(4):
            script.submit(log, 18, 3_500)
            script.sync(log)


def _recovery(script: Script) -> None:
    for turn in range(3):
        with script.during("recovery"):
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
    with script.during("recovery"), script.open() as log:
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
    with script.during("recovery"), script.open() as log:  # on the same page cache, as after a restart
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
        with script.during("recovery"):
            log = script.open()
        with log:
            script.append(log, 300)
            script.append(log, 600)
    disk = script.storage.inner
    for name in disk.names():  # the log is removed by hand, except its durable slot
        if name != DURABLE_NAME:
            disk.remove(name)
    disk.sync_directory()
    vars(script.ledger).update(vars(type(script.ledger)()))
    for _ in range(2):
        with script.open() as log:
            script.append(log, 300)


_ALL = (
    Scenario(
        "append",
        "one record, a deletion, a transaction and a batch, each acknowledged when durable",
        _append,
        covers=("append", "manifest", "edit"),
    ),
    Scenario(
        "rotation",
        "large records over three segments: each is prepared, filled and sealed beside the writer",
        _rotation,
        covers=("append", "prepare", "seal", "edit"),
    ),
    Scenario(
        "rotation-zstd",
        "the same with frames that are compressed",
        _rotation,
        replace(SMALL, codec="zstd"),
        covers=("append", "prepare", "seal", "edit"),
    ),
    Scenario(
        "rotation-direct",
        "the same past the page cache, in frames of whole pages",
        _rotation,
        replace(SMALL, direct_io=True, frame_bytes_max=20 * 1024),
        covers=("append", "prepare", "seal", "edit"),
    ),
    Scenario(
        "groups",
        "transactions and batches that meet the end of a segment",
        _groups,
        covers=("transaction rotates", "seal", "prepare"),
    ),
    Scenario(
        "unsynced",
        "durability none: records over several segments, of which log.sync() makes some durable",
        _unsynced,
        replace(SMALL, durability="none"),
        covers=("append", "seal"),
    ),
    Scenario(
        "interval",
        "durability interval: the same, and the log syncs from time to time",
        _unsynced,
        replace(SMALL, durability="interval", interval_ms=5),
        covers=("append", "seal"),
    ),
    Scenario(
        "reopen",
        "a log that is closed and opened again, an epoch each time",
        _reopen,
        covers=("recovery", "manifest", "edit"),
    ),
    Scenario(
        "recovery",
        "a write fails halfway, the power is cut, and the recovery is cut in its turn",
        _recovery,
        covers=("recovery",),
    ),
    Scenario(
        "failed-sync",
        "the sync of a write fails, and the log is opened again on the same page cache",
        _failed_sync,
        covers=("recovery",),
    ),
    Scenario(
        "trim",
        "trims that claims of this and another process limit, and that rewrite a segment",
        _trim,
        covers=("claim limits", "trim rewrite", "removal", "claim", "manifest", "edit"),
    ),
    Scenario(
        "checkpoint",
        "a Store's checkpoints: snapshot, low watermark, trim",
        _checkpoint,
        is_store=True,
        covers=("checkpoint", "snapshot", "removal"),
    ),
    Scenario(
        "checkpoint-every",
        "a Store that takes its checkpoints by itself beside the writer",
        _checkpoint_by_itself,
        is_store=True,
        covers=("snapshot", "removal", "seal"),
    ),
    Scenario(
        "checkpoint-unsynced",
        "durability none: a Store's checkpoint, before anything else was synced",
        _checkpoint_unsynced,
        replace(SMALL, durability="none"),
        is_store=True,
        covers=("checkpoint", "snapshot"),
    ),
    Scenario(
        "compaction",
        "a Store's log is compacted, keeps deletions, and drops them once a snapshot is newer",
        _compaction,
        is_store=True,
        covers=("compaction", "records kept", "records dropped", "tombstones kept", "tombstones dropped"),
    ),
    Scenario(
        "parallel",
        "four frames in flight, acknowledged in append order",
        _parallel,
        replace(SMALL, in_flight=4, frame_bytes_max=4096),
        covers=("in flight",),
    ),
    Scenario(
        "parallel-unsynced",
        "durability none: four frames in flight where one segment ends and the next begins",
        _parallel_rotation,
        replace(SMALL, durability="none", in_flight=4, frame_bytes_max=4096),
        covers=("in flight", "two open", "seal"),
    ),
    Scenario(
        "completion",
        "four frames in flight, each acknowledged when it is written",
        _parallel,
        replace(SMALL, in_flight=4, frame_bytes_max=4096, ack_order="completion", recovery="holes"),
        covers=("in flight",),
    ),
    *CONSUMER_SCENARIOS,
    *FAULT_SCENARIOS,
    *HANGING_SCENARIOS,
    *RACING_SCENARIOS,
    *HISTORY_SCENARIOS,
    *RESCUE_SCENARIOS,
    *REPLICA_SCENARIOS,
    *OBJECT_SCENARIOS,
)
SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
"""By name."""


def scenario_of(given: str | Scenario) -> Scenario:
    """Return the scenario of this name, or the one that is given. OptionsError."""
    if isinstance(given, Scenario):
        return given
    check_choice(given, SCENARIOS, "scenario", ", or a walkit.crashlab.Scenario")
    return SCENARIOS[given]
