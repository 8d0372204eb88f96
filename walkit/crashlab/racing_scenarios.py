"""Scenarios of a Store and a log of which one thread writes while another compacts, takes checkpoints or trims."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import monotonic, sleep

from walkit.config import StoreOptions
from walkit.crashlab.scenario import SMALL, Scenario
from walkit.crashlab.script import Script
from walkit.errors import JournalFullError, OptionsError, StorageError
from walkit.format.file_names import COMPACTION_NEW_NAME
from walkit.store import Store

ROOM_S = 5.0
"""No checkpoint takes longer."""


def _puts(script: Script, store: Store, count: int) -> None:
    for number in range(count):
        script.put(store, b"key %d" % (number % 3), 12_000)


class _Meanwhile:
    """An action, done once: when a compaction comes to a phase."""

    def __init__(self, phase: str, do: Callable[[], object]) -> None:
        self._phase, self._do = phase, do
        self.is_done = False

    def __call__(self, phase: str, done: int, total: int) -> None:
        if phase == self._phase and not self.is_done:
            self.is_done = True
            self._do()


def _compaction_meets(script: Script) -> None:
    """Compact as a hold comes, beside that hold, as a checkpoint drops the surveyed segments, and after a failure."""
    with script.open_store() as store:

        def hold() -> None:
            store.log.hold("late", 6)
            script.keep_from("late", 6)

        _puts(script, store, 12)
        coming = _Meanwhile("rewrite", hold)
        assert not script.compact(store, coming).segments_rewritten and coming.is_done
        assert script.compact(store).segments_rewritten  # what is older than the hold
        _puts(script, store, 6)
        script.let_go("late")
        store.log.hold("late", store.log.acked_lsn).release()
        trimming = _Meanwhile("survey", lambda: script.checkpoint(store))
        script.compact(store, trimming)
        assert trimming.is_done and store.log.first_lsn > 12
        _puts(script, store, 16)
        script.claim("reader", store.log.acked_lsn - 5)
        script.fail_at(
            "create", COMPACTION_NEW_NAME, ("sync", COMPACTION_NEW_NAME), ("remove", COMPACTION_NEW_NAME)
        )
        with suppress(StorageError):
            script.compact(store)
        assert COMPACTION_NEW_NAME in script.storage.names()
        script.storage.clear()
        script.fail_at("replace", COMPACTION_NEW_NAME, ("sync_directory", "*"))
        with suppress(StorageError):
            script.compact(store)
        assert script.compact(store).segments_rewritten
        script.check_segments(store)
        script.put(store, b"key 1", 300)


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
        with suppress(OptionsError):  # larger than the journal: refused at once
            script.transaction(store, 9, 100)
        script.ledger.take_back(26)


def _refusing_journal(script: Script) -> None:
    """Refuse a transaction that does not fit: this alone demands the checkpoint that makes room."""
    with script.open_store(StoreOptions(journal_slots=8)) as store:
        assert store.journal is not None
        for _ in range(3):
            _puts(script, store, 4)
            before = len(script.ledger.rows)
            script.may_drop(before + 5)
            try:
                script.transaction(store, 5, 3_000)  # fits if a checkpoint came first
            except JournalFullError:
                script.ledger.take_back(before)
                until_s = monotonic() + ROOM_S
                while store.journal.checkpoint_lsn < before:
                    assert monotonic() < until_s, "no checkpoint has made room"
                    sleep(0.001)
                script.transaction(store, 5, 3_000)
            script.settle(store)
            script.checkpoint(store)


RACING_SCENARIOS = (
    Scenario(
        "compaction-meets",
        "compactions meet a new hold, a checkpoint that drops their segments, and the file of one that failed",
        _compaction_meets,
        is_store=True,
        covers=("compaction", "records dropped", "checkpoint", "removal"),
    ),
    Scenario(
        "compaction-beside",
        "a Store's log is compacted while another thread writes and takes a checkpoint",
        _compaction_beside,
        is_store=True,
        covers=("compaction", "snapshot", "append", "removal"),
    ),
    Scenario(
        "trim-beside",
        "a trim rewrites a segment while another thread appends and takes a claim",
        _trim_beside,
        covers=("trim rewrite", "claim limits", "append", "removal"),
    ),
    Scenario(
        "journal",
        "a Store whose bounded journal takes checkpoints by itself beside the writer",
        _journal,
        is_store=True,
        covers=("snapshot", "removal", "seal"),
    ),
    Scenario(
        "journal-refuses",
        "a Store refuses records without room in its journal, and takes a checkpoint for it",
        _refusing_journal,
        replace(SMALL, on_full="raise"),
        is_store=True,
        covers=("snapshot", "removal"),
    ),
)
