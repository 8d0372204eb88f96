"""The amount, rate and reports of a compaction: waste ratio, throttle, progress, continuing."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.compaction.histories import full_of_changes, opened_state
from tests.support.stores import memory_store
from walkit.compaction import SegmentLoad, plan_groups
from walkit.compaction.compactor import Throttle
from walkit.errors import LogClosedError, OptionsError
from walkit.format.layout import SegmentFlag
from walkit.format.manifest import SegmentRecord, SegmentState
from walkit.models import CrashingStorage
from walkit.record import Kind


def load(number: int, droppable: int, *, compacted: bool = False, epoch: int = 1) -> SegmentLoad:
    """A segment of 100 records and 1000 bytes, of which so many records can be dropped."""
    record = SegmentRecord(
        number=number, state=SegmentState.SEALED, epoch=epoch, start_position=0, end_position=1000, records=100,
        flags=SegmentFlag.COMPACTED if compacted else 0,
    )  # fmt: skip
    return SegmentLoad(record, droppable)


@pytest.mark.parametrize(
    ("loads", "waste_ratio", "groups"),
    [
        ([load(1, 30), load(2, 60), load(3, 29)], 0.3, [[1, 2]]),
        ([load(1, 30), load(2, 60), load(3, 29)], 0.0, [[1, 2, 3]]),
        ([load(1, 30), load(2, 60), load(3, 29)], 0.61, []),
        ([load(1, 0), load(2, 0)], 0.0, []),
        ([load(1, 90), load(2, 10), load(3, 90)], 0.5, [[1], [3]]),
        ([load(1, 0, compacted=True), load(2, 90)], 0.5, [[1, 2]]),
        ([load(1, 10, compacted=True), load(2, 90)], 0.5, [[2]]),
        ([load(1, 10, compacted=True), load(2, 5, compacted=True)], 0.5, []),
        ([load(1, 100)], 1.0, [[1]]),
        ([load(1, 90), load(2, 90, epoch=2)], 0.5, [[1], [2]]),
    ],
    ids=str,
)
def test_only_wasteful_segments_are_rewritten(
    loads: list[SegmentLoad], waste_ratio: float, groups: list[list[int]]
) -> None:
    """Plan loads with a waste ratio: segments with less to drop are in no group."""
    planned = plan_groups(loads, 10_000, waste_ratio)
    assert [[record.number for record in group] for group in planned] == groups


def test_a_tombstone_stays_while_a_segment_that_is_left_alone_needs_it() -> None:
    """Leave a segment alone for its waste, and a put in it whose tombstone could go: the key stays deleted."""
    storage = CrashingStorage()
    with memory_store(storage) as store:
        store.put(b"gone", b"")
        for i in range(10):
            store.put(b"kept %d" % i, b"%d" % i * 6000)
        store.delete(b"gone")
        for i in range(40):
            store.put(b"same", b"%d" % (i % 10) * 6000)
    with memory_store(storage) as store:
        report = store.compact(waste_ratio=0.5)
        assert report.segments_left == 1 and report.segments_rewritten >= 2 and report.tombstones_dropped == 0
        assert [r.kind for r in store.log.read() if r.key == b"gone"] == [Kind.PUT, Kind.DELETE]
    assert b"gone" not in opened_state(storage)
    with memory_store(storage) as store:
        assert store.compact().tombstones_dropped == 1 and b"gone" not in store
    assert b"gone" not in opened_state(storage)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("waste_ratio", w) for w in (-0.1, 1.1, "0.5", None, float("nan"), True)),
        *(("bytes_per_s", w) for w in (0, -1, 0.5, "fast", float("inf"), float("nan"), True)),
    ],
)
def test_invalid_rates_are_refused(name: str, wrong: Any) -> None:
    """Give a wrong ratio or rate: an OptionsError by its name, and nothing is done."""
    with memory_store() as store:
        with pytest.raises(OptionsError) as refused:
            store.compact(**{name: wrong})
        assert refused.value.option == name


def test_the_throttle_keeps_to_its_rate() -> None:
    """Spend bytes on a clock of one's own: work keeps to the rate, and a pause is not made up for."""
    now = [0.0]
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    throttle = Throttle(100.0, wait, lambda: now[0])
    for size in (50, 100, 0):
        throttle.spend(size)
    assert waits == [0.5, 1.0, 0.0] and throttle.bytes == 150
    now[0] = 60.0
    throttle.spend(100)
    throttle.spend(100)
    assert waits[3:] == [1.0, 1.0]
    free = Throttle(None, wait, lambda: now[0])
    free.spend(10**12)
    assert len(waits) == 5 and free.bytes == 10**12


def test_progress_and_bytes_of_the_report() -> None:
    """Follow a compaction: stages in order, each to its end; the bytes of the report are those of the files."""
    storage = CrashingStorage()
    state = full_of_changes(storage)
    steps: list[tuple[str, int, int]] = []
    with memory_store(storage) as store:
        before = store.log.parts.manifest_store.current.sealed
        report = store.compact(bytes_per_s=1e12, progress=lambda *step: steps.append(step))
        new = [s for s in store.log.parts.manifest_store.current.sealed if s not in before]
        assert report.bytes_written == sum(storage.open(s.name, "read").size() for s in new) > 0
        assert report.bytes_read > sum(s.size_bytes for s in before[:-1])
        assert report.write_amplification == 1 + report.bytes_written / report.bytes_before
        nothing = store.compact()
        assert (nothing.bytes_written, nothing.write_amplification) == (0, 1.0) and nothing.bytes_read > 0
        assert dict(store.items()) == state
    for stage in ("survey", "rewrite"):
        done = [(d, t) for s, d, t in steps if s == stage]
        assert done == sorted(done) and done[0][0] == 0 and len({t for _, t in done}) == 1
    assert [s for s, _, _ in steps] == sorted((s for s, _, _ in steps), key=["survey", "rewrite"].index)
    assert steps[-1][1] == steps[-1][2] > 0


class EnoughError(Exception):
    """The caller has seen enough."""


def test_an_ended_compaction_is_continued() -> None:
    """End a compaction by its progress before each group in turn: the same state, and the next one does the rest."""
    whole = CrashingStorage()
    state = full_of_changes(whole)
    with memory_store(whole) as store:
        steps: list[str] = []
        store.compact(progress=lambda stage, *_: steps.append(stage))
        wanted = [(s.first_lsn, s.last_lsn, s.records) for s in store.log.parts.manifest_store.current.sealed]
    assert steps.count("rewrite") > 2
    for nth in range(1, steps.count("rewrite")):
        storage = CrashingStorage()
        full_of_changes(storage)
        seen = [0]

        def stop(stage: str, *_: int, seen: list[int] = seen, nth: int = nth) -> None:
            seen[0] += stage == "rewrite"
            if seen[0] == nth:
                raise EnoughError

        with memory_store(storage) as store:
            with pytest.raises(EnoughError):
                store.compact(progress=stop)
            assert sum(bool(s.flags) for s in store.log.parts.manifest_store.current.sealed) == nth - 1
        with memory_store(storage) as store:
            assert dict(store.items()) == state
            store.compact()
            assert [
                (s.first_lsn, s.last_lsn, s.records) for s in store.log.parts.manifest_store.current.sealed
            ] == wanted


def test_closing_does_not_wait_for_the_throttle() -> None:
    """Close a store whose compaction may read a byte a second: it ends at once, and the log is whole."""
    storage = CrashingStorage()
    state = full_of_changes(storage)
    store = memory_store(storage)
    errors: list[BaseException] = []
    begun = threading.Event()

    def compact() -> None:
        try:
            store.compact(bytes_per_s=1, progress=lambda *_: begun.set())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=compact)
    thread.start()
    assert begun.wait(30)
    store.close()
    thread.join(30)
    assert not thread.is_alive() and isinstance(errors[0], LogClosedError)
    assert opened_state(storage) == state
