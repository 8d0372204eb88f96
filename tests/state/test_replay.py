"""Replay: a log into a machine, with bounds, refusals, interruption, bounded memory."""

from __future__ import annotations

import contextlib
import signal
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import walkit
from tests.support.logs import Child
from walkit.errors import CorruptionError, GapError, HistoryTrimmedError, OptionsError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.models import CrashingStorage
from walkit.record import Batch
from walkit.state import KeyedTable, StateMachine, replay
from walkit.state.latest_reducer import FinalState
from walkit.state.replay import Pieces
from walkit.testing.state import CountingMachine, picture, random_records

SMALL = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=0)


class RowTable(KeyedTable):
    """A keyed table that does not take Arrow."""

    apply_arrow = None  # type: ignore[assignment]


def fill(log: walkit.WriteAheadLog, seed: int, count: int = 200) -> None:
    """Append random records one by one, in transactions, and many at a time."""
    rows = list(random_records(seed, count).rows())
    while rows:
        size = len(rows) % 7 + 1
        part, rows = rows[:size], rows[size:]
        with log.transaction() as tx:
            for _, kind, key, value in part:
                if kind == 2:
                    tx.delete(key)
                else:
                    tx.append(value, key)


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """A log of 200 random records in memory."""
    with walkit.open(storage=CrashingStorage(), options=SMALL) as log:
        fill(log, 1)
        yield log


def test_replay_gives_the_state_of_the_log(log: walkit.WriteAheadLog) -> None:
    """Through Arrow, through rows, and by applying record after record: one state; the report counts."""
    table, rows, single = KeyedTable(), RowTable(), KeyedTable()
    report = replay(log, table)
    replay(log, rows)
    for record in log.read():
        single.apply(Batch([record.lsn], [record.kind], [record.key], [record.value]))
    assert picture(table) == picture(rows) == picture(single)
    assert (report.first_lsn, report.applied_lsn, report.records) == (1, 200, 200)
    assert report.size_bytes > 0
    assert report.records_per_s == pytest.approx(200 / report.duration_s)
    assert "records/s" in report._repr_html_()


@given(st.integers(0, 1000), st.integers(0, 210), st.integers(0, 210))
def test_bounds_are_inclusive_and_pieces_add_up(seed: int, one: int, two: int) -> None:
    """Replayed up to any LSN, then on to another, then to the end: as the records up to there say."""
    first, second = sorted((one, two))
    with walkit.open(storage=CrashingStorage(), options=SMALL) as log:
        fill(log, seed)
        table = KeyedTable()
        for bound in (first, second, None):
            replay(log, table, last_lsn=bound)
            expected = KeyedTable()
            for record in log.read(last_lsn=bound) if bound != 0 else ():
                expected.apply(Batch([record.lsn], [record.kind], [record.key], [record.value]))
            assert picture(table) == picture(expected)
        assert replay(log, table).records == 0


def test_a_reader_can_be_replayed(tmp_path: Path) -> None:
    """A log open for reading gives the same state as the writer's own."""
    with walkit.open(tmp_path / "log", options=SMALL) as log:
        fill(log, 2)
        written = KeyedTable()
        replay(log, written)
        with walkit.open(tmp_path / "log", mode="r") as reader:
            read = KeyedTable()
            replay(reader, read)
    assert picture(read) == picture(written)


def test_an_empty_log_is_replayed_at_once() -> None:
    """No records: nothing applied, nothing wrong."""
    with walkit.open(storage=CrashingStorage()) as log:
        report = replay(log, machine := CountingMachine())
    assert (report.records, report.records_per_s, machine.applied_lsn) == (0, 0, 0)


def trimmed_log() -> walkit.WriteAheadLog:
    """A log whose first segments are gone."""
    log = walkit.open(storage=CrashingStorage(), options=SMALL)
    for i in range(30):
        log.append(b"x" * 8000, b"k%d" % i)
    log.close()
    log = walkit.open(storage=log.parts.storage, options=SMALL)
    assert log.trim(15) == 15
    return log


def test_a_beginning_that_is_gone_is_refused() -> None:
    """Without a snapshot base: HistoryTrimmedError; an explicit first LSN that is gone: GapError; later ones work."""
    with trimmed_log() as log:
        with pytest.raises(HistoryTrimmedError) as trimmed:
            replay(log, KeyedTable())
        assert (trimmed.value.wanted, trimmed.value.exact_from_lsn) == (1, 16)
        with pytest.raises(GapError) as gap:
            replay(log, KeyedTable(), first_lsn=3)
        assert (gap.value.wanted, gap.value.oldest) == (3, 16)
        counts = CountingMachine()
        assert replay(log, counts, first_lsn=20).records == 11
        based = KeyedTable()
        based.restore([], 15)
        assert replay(log, based).records == 15


def test_records_are_never_applied_twice(log: walkit.WriteAheadLog) -> None:
    """An explicit first LSN that the machine has already is an OptionsError, and changes nothing."""
    counts = CountingMachine()
    replay(log, counts, last_lsn=50)
    before = picture(counts)
    for first in (1, 50):
        with pytest.raises(OptionsError, match="50"):
            replay(log, counts, first_lsn=first)
    assert picture(counts) == before
    assert replay(log, counts, first_lsn=51).records == 150


def test_damage_ends_the_replay(tmp_path: Path) -> None:
    """A flipped byte in a sealed segment ends the replay with CorruptionError; the machine stops before the damage."""
    with walkit.open(tmp_path / "log", options=SMALL) as log:
        fill(log, 1)
    (segment,) = (tmp_path / "log").glob("*.segment")
    data = bytearray(segment.read_bytes())
    data[SEGMENT_HEADER_BYTES + len(data) // 2] ^= 1
    segment.write_bytes(data)
    with walkit.open(tmp_path / "log", mode="r") as reader:
        table = KeyedTable()
        with pytest.raises(CorruptionError) as caught:
            replay(reader, table)
    assert caught.value.first_lost_lsn is not None
    assert table.applied_lsn < caught.value.first_lost_lsn


def many_batches(log: walkit.WriteAheadLog, count: int = 250_000) -> None:
    """Enough records for several batches of a replay in rows."""
    log.append_many([b"%d" % i for i in range(count)], [b"%d" % (i % 1000) for i in range(count)])


def test_progress_is_reported_and_may_end_the_replay(log: walkit.WriteAheadLog) -> None:
    """Progress grows up to the whole; an error from it ends the replay, and calling again goes on to the same state."""
    many_batches(log)
    told: list[tuple[int, int]] = []

    def stop_at_third(done: int, total: int) -> None:
        told.append((done, total))
        if len(told) == 3:
            raise InterruptedError

    table, whole = RowTable(), KeyedTable()
    with pytest.raises(InterruptedError):
        replay(log, table, progress=stop_at_third)
    assert 0 < table.applied_lsn < log.acked_lsn
    assert told[-1] == (table.applied_lsn, log.acked_lsn)
    rest = replay(log, table, progress=lambda done, total: told.append((done, total)))
    assert rest.records == log.acked_lsn - rest.first_lsn + 1
    assert told[-1][0] == told[-1][1] == rest.records
    replay(log, whole)
    assert picture(table) == picture(whole)


def test_ctrl_c_strikes_between_batches(log: walkit.WriteAheadLog) -> None:
    """SIGINT during apply is held back until the batch is applied: a machine that counts counts nothing twice."""
    many_batches(log)

    class Interrupted(CountingMachine):
        strikes = taken = 0

        def apply(self, batch: Batch) -> None:
            self.taken += len(batch)
            if self.strikes < 2:
                self.strikes += 1
                signal.raise_signal(signal.SIGINT)
            super().apply(batch)

    counts, expected = Interrupted(), CountingMachine()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            replay(log, counts)
    replay(log, counts)
    replay(log, expected)
    assert picture(counts) == picture(expected)
    assert counts.taken == log.acked_lsn


INTERRUPTED = """
    import json, sys, walkit
    from walkit.state import KeyedTable

    log, table = walkit.open(sys.argv[1]), KeyedTable()
    walkit.replay(log, table)
    try:
        while True:
            stopped = KeyedTable()
            print("1", flush=True)
            walkit.replay(log, stopped)
    except KeyboardInterrupt:
        stood = stopped.applied_lsn
    rest = walkit.replay(log, stopped)
    print(json.dumps([stood, rest.records, stopped.checksum() == table.checksum()]))
    log.append(b"the log is as usable as before")
    log.close()
"""


def test_a_stopped_cell_ends_the_replay(tmp_path: Path) -> None:
    """A real SIGINT to a process that replays without end: it stops, the rest of that replay gives the same state."""
    with walkit.open(tmp_path / "log", options=walkit.LogOptions(durability="none")) as log:
        for first in range(0, 30_000, 10_000):
            numbers = range(first, first + 10_000)
            log.append_many([b"v%d" % i for i in numbers], [b"k%d" % (i % 7919) for i in numbers])
    with Child(INTERRUPTED, tmp_path / "log") as child:
        assert child.read() == 1
        child.process.send_signal(signal.SIGINT)
        while (said := child.read()) == 1:
            pass
        assert child.process.wait() == 0
    stood, rest, same = said
    assert stood + rest == 30_000 and same
    with walkit.open(tmp_path / "log") as log:
        assert log.recovery.verdict == "clean" and log.acked_lsn == 30_001


def test_an_interrupt_while_records_are_reduced_loses_none(
    log: walkit.WriteAheadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt every reduction, before and after it, and go on: each time the state is that of its LSN."""
    whole = KeyedTable()
    replay(log, whole)
    reduced = FinalState.newest
    interrupted: set[tuple[int, bool]] = set()

    def newest(state: FinalState) -> pa.Table:
        for done in (False, True):
            table = reduced(state) if done else None
            if (machine.applied_lsn, done) not in interrupted:
                interrupted.add((machine.applied_lsn, done))
                raise KeyboardInterrupt
        return table

    monkeypatch.setattr("walkit.state.latest_reducer.REDUCE_BYTES", 1)
    monkeypatch.setattr(sys.modules["walkit.state.replay"], "ARROW_RECORDS", 20)
    monkeypatch.setattr("walkit.segments.frame_walk.ROW_READ_BYTES", 1024)
    machine = KeyedTable()
    with monkeypatch.context() as patch:
        patch.setattr(FinalState, "newest", newest)
        for _ in range(100):
            with contextlib.suppress(KeyboardInterrupt):
                replay(log, machine)
                machine.checksum()
                break
            stood = KeyedTable()
            with monkeypatch.context() as mended:
                mended.setattr(FinalState, "newest", reduced)
                replay(log, stood, last_lsn=machine.applied_lsn)
                assert picture(machine) == picture(stood)
    assert len(interrupted) > 4
    assert picture(machine) == picture(whole)


def test_a_slow_machine_is_given_small_pieces() -> None:
    """Learn from pieces of known length: the next holds an interrupt for half a second, within its bounds."""
    pieces = Pieces(CountingMachine())
    for records, took_s, expected in (
        (65_536, 6.5536, 5_000),
        (5_000, 0.25, 10_000),
        (10, 3.0, 10_000),  # too few to say anything
        (10_000, 60.0, 256),
        (256, 0.0, 1 << 18),
    ):
        pieces.learn(records, took_s)
        assert pieces.records == expected


def test_pieces_are_the_batch(log: walkit.WriteAheadLog) -> None:
    """Apply a batch in pieces of one record, of seven, and in one: each machine comes to the state of a replay."""
    batch = log.to_arrow().combine_chunks().to_batches()[0]
    assert len(batch) == log.acked_lsn
    for make in (KeyedTable, RowTable, CountingMachine):
        whole = make()
        replay(log, whole)
        for records in (1, 7, 1 << 18):
            cut = make()
            pieces = Pieces(cut)
            pieces.records = records
            pieces.apply(batch)
            assert picture(cut) == picture(whole)


@pytest.mark.parametrize(
    ("make", "log_mib", "peak_mib"),
    # Slow: a log of 160 MiB; the batches that bound the memory are the same for every machine.
    [(CountingMachine, 96, 64), pytest.param(KeyedTable, 160, 128, marks=pytest.mark.slow)],
)
def test_memory_is_bounded(make: Callable[[], StateMachine], log_mib: int, peak_mib: int) -> None:
    """A log is replayed into a machine with next to no state in less memory than the log has bytes."""
    options = walkit.LogOptions(durability="none")
    with walkit.open(storage=CrashingStorage(), options=options) as log:
        for _ in range(log_mib // 4):
            log.append_many([b"x" * (1 << 20)] * 4, [b"key"] * 4)
        machine = make()
        tracemalloc.start()
        try:
            replay(log, machine)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert machine.applied_lsn == log_mib
    assert peak < peak_mib << 20
