"""Readers that listed the segments before a compaction: they continue in the replacement, or get an error."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pytest

import walkit
from tests.support.stores import memory_store
from tests.support.threads import GUARD_S, Task
from walkit.errors import GapError, HistoryTrimmedError
from walkit.models import CrashingStorage, FaultyStorage
from walkit.read.resumable_scan import ResumableScan
from walkit.read.view import View
from walkit.record import Batch, Record
from walkit.state import KeyedTable
from walkit.state.state_at import exact_state
from walkit.store import Store

VALUE = 9000
"""Bytes of a value: seven records fill a segment."""
State = dict[bytes, bytes | None]


class Told:
    """A store that is written to, with every record it ever had and the state after each."""

    def __init__(self, seed: int = 1, storage: CrashingStorage | FaultyStorage | None = None) -> None:
        self.storage = storage or CrashingStorage()
        self.store: Store = memory_store(self.storage)
        self.random = random.Random(seed)
        self.records: dict[int, Record] = {}
        self.states: dict[int, State] = {0: {}}

    def write(self, count: int, *, deletes: float = 0.0, keys: int = 6) -> None:
        """Append puts of so many keys, events and tombstones; then look them up."""
        log = self.store.log
        for n in range(count):
            key = b"%d" % self.random.randrange(keys)
            if self.random.random() < deletes:
                self.store.delete(key)
            elif self.random.random() < 0.1:
                log.append(b"event %d" % n * 100)
            else:
                self.store.put(key, b"%09d" % self.random.randrange(10**9) * (VALUE // 9))
        log.wait_idle()  # full segments are sealed beside the path of a record
        for record in log.read(max(self.records, default=0) + 1):
            self.records[record.lsn] = record
        self.states = {0: {}}
        for lsn in sorted(self.records):
            self.states[lsn] = state_of(self.states[lsn - 1], [self.records[lsn]])
        log.wait_idle()

    @property
    def newest(self) -> int:
        """The LSN of the last record."""
        return max(self.records)


def state_of(state: State, records: Iterable[Record]) -> State:
    """Bring a state on by records."""
    after = dict(state)
    for record in records:
        if record.key is not None:
            after.pop(record.key, None)
            if record.kind == 1:
                after[record.key] = record.value
    return after


def pairs(view: View, first_lsn: int, last_lsn: int) -> Iterator[pa.RecordBatch]:
    """Batches of one or two frames, so that a reader has to come back for the next segment."""
    return view.batches(first_lsn, last_lsn, records=2)


def told(seed: int, *, outside: bool, to_newest: bool, deletes: float) -> str:
    """Read some of a log, compact it, read the rest; return its end, having checked every record."""
    made = Told(seed)
    made.write(30, deletes=deletes)
    reader = walkit.open(storage=made.storage, mode="r") if outside else made.store.log
    now = reader._now
    view, newest = now()
    onward = ResumableScan(now, view, 1, newest, pairs, to_newest=to_newest)
    got: list[Record] = []
    try:
        for batch in onward:
            got += Batch.from_arrow(batch)
            if made.random.random() < 0.2:
                made.write(made.random.randrange(9), deletes=deletes)
                if made.random.random() < 0.1:
                    made.store.checkpoint()
                made.store.compact()
        ended = "went on" if onward._view is not view else "as it was"
    except GapError:
        ended = "told"
    finally:
        made.store.close()
    assert [r.lsn for r in got] == sorted({r.lsn for r in got})
    assert got == [made.records[r.lsn] for r in got]
    if ended != "told":
        last = onward.last_lsn
        assert state_of({}, got) == made.states[last]
        assert [r for r in got if r.key is None] == [
            r for lsn, r in made.records.items() if r.key is None and lsn <= last
        ]
        assert last == newest if not to_newest else last >= newest
    return ended


@pytest.mark.parametrize("to_newest", [True, False])
@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("deletes", [0.0, 0.2])
def test_an_overtaken_reader_gets_the_state_or_an_error(
    outside: bool, to_newest: bool, deletes: float
) -> None:
    """Compact, trim and write between the batches of reads: the log's own state comes out, or a GapError."""
    ended = {
        told(seed, outside=outside, to_newest=to_newest, deletes=deletes)
        for seed in range(10 if deletes else 6)
    }
    assert "told" in ended or not deletes
    assert "went on" in ended or (deletes and not to_newest)


READS: dict[str, Callable[[walkit.LogReader | walkit.WriteAheadLog], Iterable[int]]] = {
    "records": lambda log: (r.lsn for r in log.read()),
    "from the middle on": lambda log: (r.lsn for r in log.read(9)),
    "batches": lambda log: (lsn for b in log.read_batches() for lsn in b.column("lsn").to_pylist()),
    "up to an LSN": lambda log: (r.lsn for r in log.read(1, 26)),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_read_planned_before_a_swap_equals_one_planned_after_it(
    read: Callable[[walkit.LogReader | walkit.WriteAheadLog], Iterable[int]],
) -> None:
    """Begin each kind of read, compact most of its segments away, read: it gives the same as a read of now."""
    made = Told()
    made.write(40, deletes=0.2)
    with walkit.open(storage=made.storage, mode="r") as reader, made.store:
        begun = [read(reader), read(made.store.log)]
        assert made.store.compact().segments_rewritten >= 4
        for reading in begun:
            assert [*reading] == [*read(reader)] != []


def test_a_key_that_was_deleted_does_not_live_again() -> None:
    """Read a put, let its tombstone be compacted away, read on: GapError; who had read nothing sees neither."""
    made = Told()
    with made.store as store:
        store.put(b"gone", b"v")
        made.write(10)
        store.delete(b"gone")
        made.write(20)
        now = store.log._now
        view, newest = now()
        begun, not_begun = (ResumableScan(now, view, 1, newest, pairs, to_newest=True) for _ in range(2))
        reading = iter(begun)
        assert next(reading).column("key")[0].as_py() == b"gone"
        store.compact()
        with pytest.raises(GapError) as gap:
            list(reading)
        assert gap.value.wanted > 1 and gap.value.oldest == store.log.complete_from_lsn
        assert b"gone" not in [key for batch in not_begun for key in batch.column("key").to_pylist()]


def test_a_read_that_a_trim_has_passed_is_a_gap() -> None:
    """Begin a read, checkpoint the records to come: GapError with the LSN it wanted and the oldest there is."""
    made = Told()
    made.write(30)
    with made.store as store:
        begun = store.log.read(2)
        store.checkpoint()
        with pytest.raises(GapError) as gap:
            list(begun)
        assert (gap.value.wanted, gap.value.oldest) == (2, store.log.first_lsn)


def test_followers_get_a_gap_for_compacted_segments() -> None:
    """Follow from an LSN, compact the segments to come: GapError that names that LSN, and never a skip."""
    made = Told()
    made.write(40)
    with walkit.open(storage=made.storage, mode="r") as reader, made.store:
        for log in (reader, made.store.log):
            view, newest = log._now()
            following = view.records(4, newest)
            made.write(3)
            if log is reader:
                made.store.compact()
                with pytest.raises(GapError) as gap:
                    list(following)
                assert gap.value.wanted == 4
            with pytest.raises(GapError) as gap:
                next(log.follow(4))
            assert gap.value.wanted == 4


@pytest.mark.parametrize("outside", [True, False])
def test_a_replay_continues_beside_a_compaction(outside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write and compact within a replay of small batches: the state at the newest record, also of many deletes."""
    replaying = importlib.import_module("walkit.state.replay")  # the package has the function under this name
    monkeypatch.setattr(replaying, "ARROW_RECORDS", 2)
    monkeypatch.setattr(replaying, "AHEAD", 1)
    outcomes = set()
    for seed in range(8):
        made = Told(seed)
        made.write(40)
        if seed % 2:
            made.store.delete(b"5")
        made.write(15, keys=5)
        with walkit.open(storage=made.storage, mode="r") as reader, made.store as store:
            log = reader if outside else store.log
            table, totals = KeyedTable(), list[int]()

            def compact(done: int, total: int, *, made: Told = made, totals: list[int] = totals) -> None:
                totals.append(total)
                assert done <= total
                if len(totals) == 1:
                    made.write(5)
                    made.store.compact()

            try:
                walkit.replay(log, table, progress=compact)
                outcomes.add("went on" if totals[-1] > totals[0] else "as it was")
            except GapError:
                outcomes.add("told")
                with pytest.raises(HistoryTrimmedError):
                    walkit.replay(log, table)
            assert dict(table.items()) == made.states[table.applied_lsn]
    assert "went on" in outcomes and "told" in outcomes


def test_a_state_beside_a_compaction_is_made_again() -> None:
    """Compact while the columns of a state are made of the log: the result is its state, exactly."""
    made = Told()
    made.write(40, deletes=0.2)
    faulty = FaultyStorage(made.storage)
    with walkit.open(storage=faulty, mode="r") as reader, made.store as store:
        hang = faulty.hang("open", reader.source.now().view.manifest.sealed[3].name)
        state = Task(lambda: exact_state(reader))
        assert hang.entered.wait(GUARD_S)
        assert store.compact().segments_rewritten > 3
        hang.release()
        columns = state.result().records.live().to_pydict()
    assert dict(zip(columns["key"], columns["value"], strict=True)) == made.states[made.newest]


def test_a_compaction_repeats_a_survey_that_a_trim_passed() -> None:
    """Checkpoint while a compaction looks through the segments: it ends in order, and the state stays."""
    faulty = FaultyStorage(CrashingStorage())
    made = Told(storage=faulty)
    made.write(40)
    with made.store as store:
        sealed = store.log.parts.manifest_store.current.sealed
        hang = faulty.hang("open", sealed[3].name)
        compaction = Task(store.compact)
        assert hang.entered.wait(GUARD_S)
        store.checkpoint()
        hang.release()
        assert compaction.result().segments_before < len(sealed)
        assert dict(store.items()) == made.states[made.newest]
