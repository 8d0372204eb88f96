"""Scanning and verifying a log on object storage."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.objects.made_log import MadeLog
from tests.objects.races import objects_of, store_with
from tests.support.makers import flipped
from tests.support.threads import Task
from walkit.commit.policy import OneRecordPerFrame
from walkit.errors import (
    CorruptionError,
    DivergenceError,
    HistoryTrimmedError,
    LogNotFoundError,
    SegmentMissingError,
    SnapshotError,
)
from walkit.objects.layout import BULK_HEADER_BYTES, BulkHeader, object_key
from walkit.objects.verify import examine_objects
from walkit.recovery.scan_report import Verdict
from walkit.storage.object_memory import MemoryObjectStore, ObjectRequest

OPTIONS = walkit.LogOptions(segment_bytes=64 << 10, policy=OneRecordPerFrame())


def made() -> MadeLog:
    """Two epochs of five bulks with two records each, all vouched for, and one bulk after that."""
    log = MadeLog()
    for epoch in range(2):
        if epoch:
            log.fence()
        for _ in range(5):
            log.append([b"a", b"b"])
    log.save()
    log.append([b"c"])
    return log


def test_an_intact_log_is_ok() -> None:
    """Verify and scan an intact log: every frame is counted, and without bodies only the end is read."""
    log = made()
    progress: list[tuple[int, int]] = []
    report = examine_objects(log.store, "verify", progress=lambda *at: progress.append(at))
    assert report.ok is True and (report.first_lsn, report.last_lsn) == (1, 21) and report.state == "unclosed"
    assert (report.records_checked, report.frames_checked) == (21, 21) and progress[-1] == (13, 13)
    assert [r.verdict for r in report.verdict] == [Verdict.INTACT] and "21 records" in report.summary()
    assert [row.first_lsn for row in report.frame_rows()] == list(range(1, 22))
    store = log.store.client()
    short = examine_objects(store, "scan", bodies=False)
    assert short.ok is None and store.counts()["get"] <= 6 and short.last_lsn == 21 and "ok" not in str(short)
    assert [r.verdict for r in short.verdict] == [Verdict.NOT_READ, Verdict.INTACT]
    with pytest.raises(LogNotFoundError):
        examine_objects(MemoryObjectStore(), "verify")


def missing(log: MadeLog) -> None:
    log.store.delete(object_key(4))


def flipped_bit(log: MadeLog) -> None:
    log.put(object_key(4), flipped(log.store.get(object_key(4)).data, (BULK_HEADER_BYTES + 70) * 8))


def flipped_header(log: MadeLog) -> None:
    log.put(object_key(4), flipped(log.store.get(object_key(4)).data, 200))


def foreign(log: MadeLog) -> None:
    before = BulkHeader.decode(log.store.get(object_key(3)).data).end
    log.put(object_key(4), MadeLog(log_id=0x99).bulk([b"a", b"b"], before))


def promised_and_missing(log: MadeLog) -> None:
    lost = log.place
    log.append([b"lost"])
    log.append([b"promises it"])
    log.store.delete(lost.key)


@pytest.mark.parametrize(
    ("harm", "error", "records"),
    [
        (missing, SegmentMissingError, 19),
        (flipped_bit, CorruptionError, 19),
        (flipped_header, CorruptionError, 19),
        (foreign, DivergenceError, 19),
        (promised_and_missing, SegmentMissingError, 21),
    ],
)
def test_each_fault_is_one_problem(
    harm: Callable[[MadeLog], None], error: type[Exception], records: int
) -> None:
    """Do harm to one bulk: one problem of that kind, and everything after it is checked all the same."""
    log = made()
    harm(log)
    report = examine_objects(log.store, "verify")
    (problem,) = report.problems
    assert type(problem.error) is error and report.ok is False and report.records_checked == records
    assert report.last_lsn == 21 and len(report.verdict) == (1 if harm is promised_and_missing else 3)


def test_a_stale_bulk_is_a_note() -> None:
    """A bulk of an older epoch after the last fence is a note."""
    log = made()
    late = log.bulk([b"late"], log.place._replace(number=log.place.number + 1))
    log.fence()
    log.put(object_key(log.place.number + 1), late)
    report = examine_objects(log.store, "verify")
    assert report.ok is True and report.notes == ("after the end: 1 object that nothing promises",)


def test_bulks_put_during_a_check_leave_no_gap() -> None:
    """Append before the listing of a check is answered: its promises are of bulks that came since, and no problem."""
    log = made()

    def plan(request: ObjectRequest) -> None:
        is_of_bulks = request.method == "list_after" and not request.key.startswith("cursors")
        for value in (b"d", b"e", b"f") if is_of_bulks else ():
            log.append([value])

    report = examine_objects(log.store.client(plan), "verify")
    assert report.ok is True and report.last_lsn == 24 and not report.notes


def test_a_damaged_bulk_put_during_a_check_is_not_called_missing() -> None:
    """Append two bulks, the first of them damaged, before the listing of a check: it is corrupt, and not missing."""
    log = made()

    def plan(request: ObjectRequest) -> None:
        if request.method == "list_after" and log.place.lsn == 21 and not request.key.startswith("cursors"):
            key = log.place.key
            log.append([b"d"])
            log.put(key, flipped(log.store.get(key).data, (BULK_HEADER_BYTES + 70) * 8))
            log.append([b"e"])

    report = examine_objects(log.store.client(plan), "verify")
    (problem,) = report.problems
    assert type(problem.error) is CorruptionError and log.place.lsn == 23


def filled(base: MemoryObjectStore) -> None:
    with walkit.Store.open(base.client(), OPTIONS) as store:
        for n in range(8):
            store.put(b"hot", b"%d" % n + bytes(9000))


def trimmed(base: MemoryObjectStore) -> None:
    with walkit.Store.open(base.client(), OPTIONS) as store:
        store.put(b"new", b"")
        store.checkpoint()


def compacted(base: MemoryObjectStore) -> None:
    filled(base)
    with walkit.Store.open(base.client(), OPTIONS) as store:
        store.compact()


@pytest.mark.parametrize("act", [trimmed, compacted])
def test_a_log_is_ok_beside_a_trim_or_a_compaction(act: Callable[[MemoryObjectStore], None]) -> None:
    """Trim or compact by another writer before each request of a verification: it finds no problem."""
    begun = MemoryObjectStore()
    for make in (filled, compacted):
        make(begun)
    objects = objects_of(begun)
    for number in count():
        base, done = store_with(objects), list[Task]()

        def plan(
            request: ObjectRequest,
            number: int = number,
            base: MemoryObjectStore = base,
            done: list[Task] = done,
        ) -> None:
            if request.number == number and not done:
                done.append(Task(act, base))
                done[0].result()

        report = examine_objects(base.client(plan), "verify")
        for task in done:  # the request may be one that was read ahead and is not waited for
            task.result()
        assert report.ok is True, (number, report.problems)
        assert not any("another history" in note for note in report.notes)
        if not done:
            break
    assert number > 10


def put_and_checkpoint(store: walkit.Store) -> None:
    store.put(b"new", b"")
    store.checkpoint()


@pytest.mark.parametrize("act", [walkit.Store.snapshot, walkit.Store.checkpoint, put_and_checkpoint])
@pytest.mark.parametrize("check", [walkit.verify, walkit.scan])
@pytest.mark.parametrize("times", [1, 100])
def test_a_snapshot_may_be_replaced_while_it_is_read(
    act: Callable[[walkit.Store], object], check: Callable[..., walkit.ScanReport], times: int
) -> None:
    """Replace a snapshot while it is read, once or each time: its object is another one now, and the log is good."""
    base, done = MemoryObjectStore(), list[Task]()
    with walkit.Store.open(base.client(), OPTIONS) as store:
        store.put(b"k", b"v")
        store.checkpoint()
        hold = store.log.hold("hold", store.log.first_lsn)

        def plan(request: ObjectRequest) -> None:
            if request.method == "get_range" and request.key.startswith("files/") and len(done) < times:
                done.append(Task(act, store))
                done[-1].result()

        report = check(base.client(plan))
        assert done and report.ok is True and report.problems == ()
        hold.release()


@pytest.mark.parametrize(("in_folder", "foreign"), [(True, False), (True, True), (False, True)])
def test_a_lost_state_is_a_problem(tmp_path: Path, in_folder: bool, foreign: bool) -> None:
    """Take the only snapshot of a trimmed log away, or put another log's in its place: the state is lost."""
    places: list[Any] = [tmp_path / "a", tmp_path / "b"] if in_folder else [MemoryObjectStore() for _ in "ab"]
    for place in places:
        with walkit.Store.open(place, OPTIONS) as store:
            store.put(b"k", b"v")
            store.checkpoint()
        assert walkit.verify(place).ok is True
    if in_folder:
        mine, other = (next(place.glob("snapshot-*")) for place in places)
        other.replace(mine) if foreign else mine.unlink()
    else:
        held = [objects_of(place) for place in places]
        mine, other = (next(key for key in each if key.startswith("files/")) for each in held)
        places[0] = store_with({**held[0], mine: held[1][other]})
    report = walkit.verify(places[0])
    (problem,) = report.problems
    assert type(problem.error) is HistoryTrimmedError and report.ok is False
    with pytest.raises((HistoryTrimmedError, SnapshotError)):
        walkit.Store.open(places[0], OPTIONS)


def test_a_compacted_segment_that_is_gone_is_missing() -> None:
    """Delete the object of a compacted segment: reader and verification report it as missing, by name."""
    base = MemoryObjectStore()
    compacted(base)
    (key,) = (entry.key for entry in base.list_after("files") if entry.key.endswith(".segment"))
    base.delete(key)
    with walkit.open(base.client(), "r") as reader, pytest.raises(SegmentMissingError, match=key):
        list(reader.read())
    (problem,) = examine_objects(base.client(), "verify").problems
    assert type(problem.error) is SegmentMissingError and key in str(problem)
