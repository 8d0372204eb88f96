"""A machine of one's own: saved beside its log, found again, and every way in which that can be refused."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import walkit
from tests.support.examples import examples
from tests.support.machines import that_did
from tests.support.stores import SMALL, copy, filled, memory_store
from walkit.errors import (
    HistoryTrimmedError,
    LogClosedError,
    OptionsError,
    SnapshotError,
)
from walkit.models import CrashingStorage, FaultyStorage
from walkit.record import Batch
from walkit.state import Counter, KeyedTable, snapshot_lsns, snapshot_name
from walkit.testing.state import picture


def opened(storage: CrashingStorage | FaultyStorage) -> walkit.WriteAheadLog:
    return walkit.open(storage=storage, options=SMALL)


def expected(records: int) -> Counter:
    """Return the counters after that many records of `count_to`."""
    machine = Counter()
    for lsn in range(1, records + 1):
        machine.apply(Batch([lsn], 1, [b"%d" % ((lsn - 1) % 5)], [b"1"]))
    return machine


def saved(*at: int, records: int = 60, trim: bool = True) -> CrashingStorage:
    """Return a closed log of so many records, with checkpoints of a Counter at these LSNs."""
    storage, machine = CrashingStorage(), Counter()
    with opened(storage) as log:
        for lsn in at:
            count_to(log, lsn)
            walkit.replay(log, machine)
            assert walkit.checkpoint(log, machine, trim=trim).lsn == lsn
        count_to(log, records)
    return storage


def count_to(log: walkit.WriteAheadLog, lsn: int) -> None:
    """Append up to this LSN records of five keys, each a count of one, large enough to fill segments."""
    for i in range(log.acked_lsn, lsn):
        log.append(b"%04000d" % 1, key=b"%d" % (i % 5))


def damage(storage: CrashingStorage, lsn: int) -> None:
    """Change one byte of a snapshot's first frame."""
    file = storage.open(snapshot_name(lsn), "read")
    data = bytearray(file.read(0, file.size()))
    data[4096 + 8] ^= 1
    copy(storage, storage, snapshot_name(lsn), bytes(data))


@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("at", [(), (40,), (20, 40), (60,)], ids=str)
def test_a_machine_comes_back_from_its_snapshot_and_the_tail(mode: str, at: tuple[int, ...]) -> None:
    """Without a snapshot, with one, with two, with nothing after it; by a writer and a reader: all counts."""
    storage, machine = saved(*at), Counter()
    with opened(storage) if mode == "a" else walkit.open(storage=storage, mode="r") as log:
        assert log.first_lsn == (at[-1] + 1 if at else 1)
        if at:
            with pytest.raises(HistoryTrimmedError):
                walkit.replay(log, Counter())
        report = walkit.recover(log, machine)
    assert picture(machine) == picture(expected(60))
    assert (report.snapshot.lsn if report.snapshot else 0) == (at[-1] if at else 0)
    assert (report.applied_lsn, report.replay.records) == (60, 60 - (at[-1] if at else 0))
    assert report.refused == () and "LSN 60" in report._repr_html_()


def test_what_the_machine_held_is_forgotten() -> None:
    """A machine with another history, recovered from a snapshot, a whole log, an empty one: the log's state."""
    with opened(CrashingStorage()) as empty:
        for storage, records in ((saved(40), 60), (saved(), 60), (None, 0)):
            machine = Counter()
            machine.apply(Batch(range(1, 100), 1, [b"other"] * 99, [b"7"] * 99))
            if storage is None:
                assert walkit.recover(empty, machine).snapshot is None
            else:
                with opened(storage) as log:
                    walkit.recover(log, machine)
            assert picture(machine) == picture(expected(records))


def test_a_checkpoint_of_an_empty_log_is_found() -> None:
    """Nothing was ever appended: the snapshot is at LSN 0, and appending and recovering go on from there."""
    storage = CrashingStorage()
    with opened(storage) as log:
        assert walkit.checkpoint(log, Counter()).lsn == 0
        count_to(log, 3)
    with opened(storage) as log:
        machine = Counter()
        walkit.recover(log, machine)
        assert picture(machine) == picture(expected(3))


def test_a_damaged_newest_snapshot_gives_way_to_the_older_while_the_log_reaches_back() -> None:
    """Untrimmed: the older one, then the whole log, with an event each. Trimmed: the newest one's own error."""
    storage, events = saved(20, 40, trim=False), list[str]()
    for damaged, found in ((40, 20), (20, None)):
        damage(storage, damaged)
        with opened(storage) as log:
            log.events.add_listener(lambda name, _: events.append(name))
            machine = Counter()
            report = walkit.recover(log, machine)
        assert (report.snapshot and report.snapshot.lsn) == found
        assert picture(machine) == picture(expected(60))
    assert [error.stage for error in report.refused if isinstance(error, SnapshotError)] == ["verify"] * 2
    assert events.count("walkit.snapshot.skip") == 3
    assert "passed over" in report._repr_html_()
    storage = saved(20, 40)
    damage(storage, 40)
    with opened(storage) as log, pytest.raises(SnapshotError) as caught:
        walkit.recover(log, Counter())
    assert caught.value.stage == "verify"


def test_needed_snapshots_of_another_machine_are_refused() -> None:
    """A Store's log, whole: a Counter replays it. Trimmed: SnapshotError "format". A keyed table is restored."""
    storage = CrashingStorage()
    filled(storage, 20, (10,))
    with opened(storage) as log:
        report = walkit.recover(log, one := CountingKeys())
        assert (report.snapshot, one.applied_lsn, len(one)) == (None, 20, 20)
        before = storage.names()
        with pytest.raises(SnapshotError, match="'keyed-table/1'") as caught:
            walkit.checkpoint(log, one)
        assert (caught.value.stage, storage.names(), log.first_lsn) == ("format", before, 1)
    with memory_store(storage) as store:
        store.checkpoint()
        store.put(b"tail", b"")
    with opened(storage) as log:
        with pytest.raises(SnapshotError) as caught:
            walkit.recover(log, CountingKeys())
        assert caught.value.stage == "format"
        table = KeyedTable()
        report = walkit.recover(log, table)
        assert (len(table), report.replay.records) == (21, 1)
        assert walkit.checkpoint(log, table).lsn == 21
    with memory_store(storage) as store:
        assert len(store) == 21 and store.statistics().snapshot_lsn == 21


class CountingKeys(Counter):
    """Counts the records of each key, whatever they hold."""

    snapshot_format = "counting-keys/1"

    def apply(self, batch: Batch) -> None:
        super().apply(
            Batch(
                list(range(batch.first_lsn, batch.last_lsn + 1)),
                1,
                [key for *_, key, _ in batch.rows()],
                [b"1"] * len(batch),
            )
        )


def test_a_store_does_not_take_away_the_snapshots_of_a_machine() -> None:
    """Counters were saved beside a log: a Store that opens it cannot save its own there, and theirs stay usable."""
    storage = saved(40, trim=False)
    with memory_store(storage) as store:
        for save in (store.checkpoint, store.snapshot):
            with pytest.raises(SnapshotError, match="'counter/1'"):
                save()
    assert snapshot_lsns(storage) == [40]
    with opened(storage) as log:
        assert walkit.recover(log, Counter()).snapshot is not None


class OnlyFed:
    """The members that a replay needs of a machine, without those that save it."""

    applied_lsn = 0

    def apply(self, batch: Batch) -> None:
        """Take the records for nothing."""


def test_wrong_arguments_are_refused_before_anything_is_written() -> None:
    """A reader, a Store's log, a machine ahead of its log, a closed log, no machine, no callable: typed; no file."""
    storage, machine = saved(), Counter()
    ahead = expected(61)
    with opened(storage) as log:
        before = storage.names()
        cases: list[tuple[Callable[[], object], str]] = [
            (lambda: walkit.checkpoint(log, ahead), "machine"),
            (lambda: walkit.checkpoint(log, object()), "machine"),  # type: ignore[arg-type]
            (lambda: walkit.checkpoint(log, OnlyFed()), "machine"),  # type: ignore[arg-type]
            (lambda: walkit.recover(log, OnlyFed()), "machine"),  # type: ignore[arg-type]
            (lambda: walkit.recover(log, object()), "machine"),  # type: ignore[arg-type]
            (lambda: walkit.recover("path", machine), "log"),  # type: ignore[arg-type]
            (lambda: walkit.recover(log, machine, progress=7), "progress"),  # type: ignore[arg-type]
            (
                lambda: walkit.checkpoint(walkit.open(storage=storage, mode="r"), machine),  # type: ignore[arg-type]
                "log",
            ),
        ]
        for call, option in cases:
            with pytest.raises(OptionsError) as caught:
                call()
            assert caught.value.option == option
        assert storage.names() == before
    for closed in (walkit.checkpoint, walkit.recover):
        with pytest.raises(LogClosedError):
            closed(log, machine)
    with memory_store() as store, pytest.raises(OptionsError, match=r"store\.checkpoint\(\)"):
        walkit.checkpoint(store.log, KeyedTable())


def test_a_reader_recovers_beside_a_writer_that_checkpoints(tmp_path: Path) -> None:
    """One thread appends and checkpoints without a pause; readers recover meanwhile: each a prefix, none an error."""
    over, failed = threading.Event(), list[BaseException]()
    with walkit.open(tmp_path / "log", options=SMALL) as log:

        def write() -> None:
            machine = Counter()
            try:
                while not over.is_set():
                    count_to(log, log.acked_lsn + 7)
                    walkit.replay(log, machine)
                    walkit.checkpoint(log, machine)
            except BaseException as error:
                failed.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(12):
                with walkit.open(tmp_path / "log", mode="r") as reader:
                    walkit.recover(reader, machine := Counter())
                assert picture(machine) == picture(expected(machine.applied_lsn))
        finally:
            over.set()
            writer.join()
    assert failed == []


def test_checkpoints_of_one_log_wait_for_each_other_and_closing_waits_for_them() -> None:
    """Four threads checkpoint one machine while the log is closed: each is done, or refused; the log is whole."""
    storage = saved()
    log, machine = opened(storage), Counter()
    walkit.recover(log, machine)
    outcomes = list[object]()

    def save() -> None:
        try:
            outcomes.append(walkit.checkpoint(log, machine).lsn)
        except (LogClosedError, SnapshotError) as error:
            outcomes.append(type(error))

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    log.close()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 4
    with opened(storage) as log:
        walkit.recover(log, fresh := Counter())
    assert picture(fresh) == picture(expected(60))


class Saved(RuleBasedStateMachine):
    """Appends, checkpoints, trims below the snapshot, openings, in any order: recovery counts every record."""

    did: ClassVar[collections.Counter[str]] = collections.Counter()

    def __init__(self) -> None:
        super().__init__()
        self.storage = CrashingStorage()
        self.log = opened(self.storage)
        self.machine = Counter()

    @rule(records=st.integers(1, 9))
    def append(self, records: int) -> None:
        count_to(self.log, self.log.acked_lsn + records)

    @rule(trim=st.booleans())
    def checkpoint(self, trim: bool) -> None:
        walkit.replay(self.log, self.machine)
        walkit.checkpoint(self.log, self.machine, trim=trim)

    @rule(records=st.integers(20, 40), more=st.integers(0, 3))
    def append_checkpoint_and_trim(self, records: int, more: int) -> None:
        self.append(records)
        self.checkpoint(False)
        self.trim(self.log.acked_lsn)
        if more:
            self.append(more)
            self.reopen()

    @rule(lsn=st.integers(0, 100))
    def trim(self, lsn: int) -> None:
        saved, first = snapshot_lsns(self.storage), self.log.first_lsn
        self.log.trim(min(lsn, saved[-1] if saved else 0))
        self.did["trimmed"] += self.log.first_lsn > first

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = opened(self.storage)
        self.machine = Counter()
        report = walkit.recover(self.log, self.machine)
        self.did["from a snapshot"] += report.snapshot is not None and report.replay.records > 0

    @invariant()
    def recovered(self) -> None:
        walkit.recover(self.log, machine := Counter())
        assert picture(machine) == picture(expected(self.log.acked_lsn))

    def teardown(self) -> None:
        self.log.close()


TestSaved = that_did(Saved, "trimmed", "from a snapshot")
TestSaved.settings = settings(max_examples=examples(32), stateful_step_count=15, deadline=None)
