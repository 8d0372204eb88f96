"""Scenarios of a Store and a log of which one thread writes while another compacts, takes checkpoints or trims."""

from __future__ import annotations

from walkit.config import StoreOptions
from walkit.crashlab.scenario import Scenario
from walkit.crashlab.script import Script


def _compaction_beside(script: Script) -> None:
    with script.open_store() as store:
        for number in range(12):
            script.put(store, b"key %d" % (number % 3), 12_000)
        script.delete(store, b"key 1")
        script.put(store, b"key 0", 12_000)
        with script.beside(lambda: script.compact(store)):
            for number in range(5):
                script.put(store, b"key %d" % (number % 2), 9_000)
            script.checkpoint(store)
            script.put(store, b"key 2", 100)


def _trim_beside(script: Script) -> None:
    with script.open() as log:
        for _ in range(20):
            script.append_many(log, 2, 4_000)
        script.may_drop(30)
        with script.beside(lambda: script.trim(log, 30)):
            for number in range(8):
                script.append(log, 9_000)
                if number == 4:
                    log.hold("late", 38)
                    script.keep_from("late", 38)
        script.trim(log, 44)


def _journal(script: Script) -> None:
    with script.open_store(StoreOptions(journal_slots=8)) as store:
        for number in range(26):
            script.may_drop(number + 1)  # a checkpoint may be taken at any moment
            script.put(store, b"key %d" % (number % 4), 5_000)


RACING_SCENARIOS = (
    Scenario(
        "compaction-beside",
        "a Store's log is compacted while another thread writes and takes a checkpoint",
        _compaction_beside,
        is_store=True,
        covers=("compaction", "snapshot", "append", "removal"),
    ),
    Scenario(
        "trim-beside",
        "a trim rewrites a segment while another thread appends and takes a hold",
        _trim_beside,
        covers=("trim rewrite", "hold limits", "append", "removal"),
    ),
    Scenario(
        "journal",
        "a Store whose bounded journal takes checkpoints by itself beside the writer",
        _journal,
        is_store=True,
        covers=("snapshot", "removal", "seal"),
    ),
)
