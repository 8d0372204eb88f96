"""Compaction: the same state from fewer records, whatever the history, the readers and the crashes."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walkit
from tests.compaction.histories import HISTORIES, SMALL, History, full_of_changes, opened_state
from tests.support.examples import examples
from tests.support.logs import headers, view_of
from tests.support.makers import joined_flags
from tests.support.stores import memory_store, state_or_border
from tests.support.threads import Task
from walkit.compaction.rewriter import FRAME_GOAL_RECORDS
from walkit.errors import GapError, HistoryTrimmedError, LogClosedError
from walkit.format.checksum import crc32c
from walkit.format.file_names import COMPACTION_NEW_NAME, TRIM_NEW_NAME
from walkit.format.frame import decode_frame
from walkit.format.layout import FRAME_HEADER, SegmentFlag
from walkit.format.manifest import SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.models import CrashingStorage, FaultyStorage
from walkit.read.ranges import plan_ranges, read_range
from walkit.record import Kind
from walkit.segments.frame_walk import FrameWalk
from walkit.segments.manifest_store import load_manifest
from walkit.state.snapshot import snapshot_lsns
from walkit.state.table import KeyedTable
from walkit.store import Store


@settings(max_examples=examples(60))
@given(steps=HISTORIES, exact=st.none() | st.integers(0, 60))
def test_the_state_of_a_compacted_log_is_the_state_before(
    steps: list[tuple[Any, ...]], exact: int | None
) -> None:
    """Any history, compacted: the state, every state that can be told, and all that is read are right."""
    with contextlib.closing(History()) as history:
        for name, *arguments in steps:
            history.do(name, *arguments)
        history.do("compact", exact)
        check_readings(history)
    assert opened_state(history.storage) == history.state


def check_readings(history: History) -> None:
    """Compare the compacted log with the records put into it."""
    store = history.store
    assert dict(store.items()) == history.state
    for lsn, state in history.states.items():
        found = state_or_border(store, lsn)
        assert found == state or (lsn < store.exact_from_lsn == found), (lsn, store.exact_from_lsn)
    read = list(store.log.read())
    complete = store.log.complete_from_lsn
    assert [r.lsn for r in read] == sorted({r.lsn for r in read})
    assert all(history.records[r.lsn] == r for r in read)
    low = load_manifest(history.storage).low_watermark
    kept = {r.lsn for r in read}
    for lsn, record in history.records.items():
        if lsn > low and (record.key is None or lsn >= complete):
            assert lsn in kept, record


def compacted(
    **compaction: Any,
) -> tuple[CrashingStorage, dict[bytes, bytes | None], walkit.CompactionReport]:
    """A store of two epochs that was compacted and closed, its state, and the report."""
    storage = CrashingStorage()
    state = full_of_changes(storage)
    with memory_store(storage) as store:
        report = store.compact(**compaction)
    return storage, state, report


def test_no_frame_spans_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a frame cover 60 LSNs at most: each of the compacted log does, and the state stays the same."""
    monkeypatch.setattr("walkit.compaction.rewriter.SPAN_MAX", 60)
    storage, state, _ = compacted()
    with memory_store(storage) as store:
        assert max(header.span for header in headers(store.log)) == 60
    assert opened_state(storage) == state


def test_the_report_agrees_with_the_files() -> None:
    """Counts and bytes before and after are those of the manifest and the files; a second run finds nothing to do."""
    storage = CrashingStorage()
    state = full_of_changes(storage)
    before = load_manifest(storage)
    with memory_store(storage) as store:
        report = store.compact()
        after = store.log.parts.manifest_store.current
        files = sum(storage.open(s.name, "read").size() for s in after.sealed)
        assert report.records_before == sum(s.records for s in before.sealed) == store.log.acked_lsn
        assert report.records_after == sum(s.records for s in after.sealed) == len(list(store.log.read()))
        assert report.bytes_after == files < report.bytes_before / 3
        assert (report.segments_before, report.segments_after) == (len(before.sealed), len(after.sealed))
        assert report.segments_rewritten > 3 and report.tombstones_dropped > 0
        assert (report.exact_from_lsn, report.complete_from_lsn) == (
            store.log.exact_from_lsn,
            store.log.complete_from_lsn,
        )
        assert {p.name for p in report.phases} == {"log", "survey", "rewrite", "publish", "tidy"}
        assert "bytes after" in report._repr_html_() and report.duration_s > 0
        again = store.compact()
        assert again.records_dropped == again.bytes_saved == again.segments_rewritten == 0
    assert opened_state(storage) == state
    assert not [n for n in storage.names() if n.startswith("lost+found")]
    flags = [s.flags for s in load_manifest(storage).sealed]
    assert flags[0] == SegmentFlag.COMPACTED and flags[-1] == 0


def test_frames_of_small_records_are_bounded_by_their_number() -> None:
    """Empty events, 2,000 a frame, between puts that are superseded: compacted frames hold 64 K of them and some."""
    storage = CrashingStorage()
    options = walkit.LogOptions(durability="none", segment_bytes=2 << 20, frame_bytes_max=64 * 1024)
    with Store.open(storage=storage, options=options) as store:
        for _ in range(160):
            store.log.append_many([b""] * 2000)
            store[b"key"] = b"x" * 30_000
        report = store.compact()
        assert report.segments_rewritten and report.records_after > 100_000
        frames = walkit.scan(storage).frames
        assert FRAME_GOAL_RECORDS <= frames["records"].max() <= FRAME_GOAL_RECORDS + 2000


def test_tombstones_stay_until_every_snapshot_is_newer() -> None:
    """A key deleted after a snapshot: its tombstone stays for that snapshot, and goes once it is replaced."""
    storage = CrashingStorage()
    with memory_store(storage) as store:
        store.put(b"gone" * 50, b"v")
        store.snapshot()
        store.delete(b"gone" * 50)
        for i in range(60):
            store.put(b"%d" % (i % 3), b"v" * 4000)
    with memory_store(storage) as store:
        store.compact()
        assert (2, Kind.DELETE) in [(r.lsn, r.kind) for r in store.log.read()]
        assert b"gone" * 50 not in store
    with memory_store(storage) as store:
        assert store.recovery.phases[-1].detail["first_lsn"] == 2 and b"gone" * 50 not in store
        store.checkpoint(trim=False)
        store.checkpoint(trim=False)
        assert snapshot_lsns(storage) == [1, store.log.acked_lsn]
        store.put(b"0", b"v")
        store.checkpoint(trim=False)
        assert min(snapshot_lsns(storage)) > 2
        report = store.compact()
        assert report.tombstones_dropped == 1
        assert b"gone" * 50 not in {r.key for r in store.log.read()}
        assert b"gone" * 50 not in store.state_at(report.exact_from_lsn)
        old = KeyedTable()
        old.restore(iter(()), 1)
        with pytest.raises(HistoryTrimmedError):
            walkit.replay(store.log, old)
    assert b"gone" * 50 not in opened_state(storage)


def test_a_tombstone_stays_while_what_it_suppresses_does() -> None:
    """Where a segment cannot be made smaller and stays, with a superseded record in it, its tombstone stays too."""
    storage = CrashingStorage()
    with memory_store(storage) as store:
        store.put(b"gone", b"")
        store.log.append_many([b"a short event %06d" % i for i in range(2800)])
        for i in range(12):
            store.log.append(b"%d" % i * 6000)
        store.delete(b"gone")
        for i in range(20):
            store.put(b"same", b"%d" % i * 6000)
        for i in range(20):
            store.log.append(b"%d" % i * 6000)
    with memory_store(storage) as store:
        report = store.compact()
        assert report.segments_kept > 0 and report.segments_rewritten > 0
        left = [(r.lsn, r.kind) for r in store.log.read() if r.key == b"gone"]
        assert left == [(1, Kind.PUT), (2814, Kind.DELETE)]
    assert b"gone" not in opened_state(storage)


def test_a_hold_keeps_its_segments_and_its_history() -> None:
    """Nothing at or after a hold is touched, nor superseded by later records; released, it is compacted."""
    storage = CrashingStorage()
    full_of_changes(storage)
    with memory_store(storage) as store:
        middle = store.log.acked_lsn // 2
        state = dict(store.state_at(middle - 1))
        behind = list(store.log.read(middle))
        hold = store.log.hold("reader", middle)
        first = store.compact()
        assert first.records_dropped > 0
        assert first.exact_from_lsn < middle >= first.complete_from_lsn
        assert list(store.log.read(middle)) == behind
        assert list(store.log.follow(middle, timeout=0)) == behind
        assert dict(store.state_at(middle - 1)) == state
        hold.release()
        second = store.compact()
        assert second.records_dropped > 0 and second.exact_from_lsn > middle


def test_exact_history_can_be_kept() -> None:
    """compact(exact_from_lsn=n): every state from n on is the same as before, and later segments stay the same."""
    storage = CrashingStorage()
    full_of_changes(storage)
    with memory_store(storage) as store:
        border = store.log.acked_lsn * 2 // 3
        states = {lsn: dict(store.state_at(lsn)) for lsn in range(border, store.log.acked_lsn + 1, 7)}
        report = store.compact(exact_from_lsn=border)
        assert report.records_dropped > 0 and report.exact_from_lsn <= border
        assert {lsn: dict(store.state_at(lsn)) for lsn in states} == states
        with pytest.raises(HistoryTrimmedError):
            store.state_at(3)
        with pytest.raises(walkit.OptionsError):
            store.compact(exact_from_lsn=-1)


def test_what_is_left_of_a_transaction_is_joined_only_within_itself() -> None:
    """F-6.4: of two transactions in one frame each loses records: the rest of one is never joined to the other."""
    storage = CrashingStorage()
    with memory_store(storage) as store:
        for keys in (("a", "x", "b"), ("y", "c", "z")):
            with store.transaction() as tx:
                for key in keys:
                    tx.put(key.encode(), b"first")
        for i in range(40):
            store.put(b"fill", b"%d" % i * 4000)
        for name in (b"x", b"y", b"z"):
            store.put(name, b"new")
        for i in range(40):
            store.put(b"fill", b"%d" % i * 4000)
    with memory_store(storage) as store:
        store.compact()
        view = view_of(store.log)
        header, data, _ = next(iter(view.frames(1)))
        columns = decode_frame(header, data)
        offsets = columns.lsn_offsets
        assert offsets is not None
        joined = dict(zip((header.first_lsn + offsets).tolist(), joined_flags(columns).tolist(), strict=True))
        assert {lsn: joined[lsn] for lsn in (1, 3, 5)} == {1: True, 3: False, 5: False}
        assert 2 not in joined and 4 not in joined


def test_every_reader_reads_a_compacted_log() -> None:
    """read, read_batches, a reader elsewhere, ranges, scan and verify agree; follow refuses segments with holes."""
    storage, _, report = compacted()
    with walkit.open(storage=storage, options=SMALL) as log:
        records = list(log.read())
        table = log.to_arrow()
        assert table.column("lsn").to_pylist() == [r.lsn for r in records]
        assert len(records) == report.records_after < log.acked_lsn
        for lsn in (1, 17, records[5].lsn, records[5].lsn + 1, report.complete_from_lsn):
            assert list(log.read(lsn)) == [r for r in records if r.lsn >= lsn]
            assert list(log.read(1, lsn)) == [r for r in records if r.lsn <= lsn]
        with pytest.raises(GapError) as caught:
            next(log.follow(1))
        assert caught.value.oldest == report.complete_from_lsn
        rest = list(log.follow(report.complete_from_lsn, timeout=0))
        assert [r.lsn for r in rest] == list(range(report.complete_from_lsn, log.acked_lsn + 1))
        elsewhere = walkit.open(storage=storage, mode="r")
        assert list(elsewhere.read()) == records and elsewhere.to_arrow() == table
        with pytest.raises(GapError):
            next(elsewhere.follow(1))
    for parts in (1, 3, 50):
        ranges = plan_ranges(storage, parts=parts)
        found = [lsn for r in ranges for b in read_range(storage, r) for lsn in b.column("lsn").to_pylist()]
        assert found == [r.lsn for r in records]
        assert sum(r.records for r in ranges) == len(records)
    for tool in (walkit.scan, walkit.verify):
        seen = tool(storage)
        assert seen.ok and seen.records_checked == len(records), [str(p) for p in seen.problems]
    walkit.open(storage=storage, options=walkit.LogOptions(recovery="absolute")).close()


def test_damage_in_a_compacted_segment_is_noticed() -> None:
    """Flip a byte in each frame of a compacted segment: reading raises, verify and an absolute opening refuse."""
    storage, _, _ = compacted()
    record = load_manifest(storage).sealed[0]
    for offset in (4096 + 20, 4096 + 60, 4096 + record.size_bytes - 200):
        image = storage.process_kill()
        file = image.open(record.name, "write")
        byte = file.read(offset, 1)
        file.write(offset, [bytes([byte[0] ^ 1])])
        assert not walkit.verify(image).ok
        with pytest.raises(walkit.CorruptionError):
            list(walkit.open(storage=image, mode="r").read())
        with pytest.raises(walkit.CorruptionError):
            walkit.open(storage=image, options=walkit.LogOptions(recovery="absolute"))


def with_another_last_frame(storage: CrashingStorage, record: SegmentRecord) -> CrashingStorage:
    """A copy in which the last frame of a segment is another one: intact, in its place, and after the same frame."""
    image = storage.process_kill()
    file = image.open(record.name, "write")
    header = SegmentHeader.decode(file.read(0, 4096), record.name)
    assert header is not None
    walk = FrameWalk(file, header, position=record.start_position, end_position=record.end_position)
    *_, (last, _) = walk
    other = last._replace(sealed_us=last.sealed_us ^ 1)
    block = FRAME_HEADER.pack(*other)[:-4]
    file.write(header.offset_of(last.position), [block + crc32c(block).to_bytes(4, "little")])
    return image


@pytest.mark.parametrize("kind", ["compacted", "as written"])
def test_another_last_frame_is_noticed(kind: str) -> None:
    """F-6.6: replace a sealed segment's last frame by an intact one: every reader and tool refuses it."""
    storage, _, _ = compacted()
    sealed = load_manifest(storage).sealed
    record = sealed[0] if kind == "compacted" else sealed[-1]
    assert bool(record.flags & SegmentFlag.COMPACTED) == (kind == "compacted")
    image = with_another_last_frame(storage, record)
    report = walkit.verify(image)
    assert [p.segment for p in report.problems] == [record.name]
    reader = walkit.open(storage=image, mode="r")
    for first in (1, record.last_lsn):
        with pytest.raises(walkit.CorruptionError, match="finished with"):
            list(reader.read(first))
    with pytest.raises(walkit.CorruptionError):
        walkit.open(storage=image, options=walkit.LogOptions(recovery="absolute"))
    ranges = [r for r in plan_ranges(storage, parts=50) if r.segment == record.number]
    with pytest.raises(walkit.CorruptionError, match="finished with"):
        list(read_range(image, ranges[-1]))


def test_a_hold_or_a_trim_that_comes_meanwhile_is_heeded() -> None:
    """While the new segment is synced a hold is taken, or the log trimmed: the old segments stay, or are gone."""
    for disturb in ("hold", "trim"):
        storage = CrashingStorage()
        state = full_of_changes(storage)
        faulty = FaultyStorage(storage)
        with memory_store(faulty) as store:
            before = list(store.log.read())
            store.snapshot()
            hang = faulty.hang("sync", "compaction.new")
            thread = threading.Thread(target=store.compact)
            thread.start()
            assert hang.entered.wait(30)
            if disturb == "hold":
                store.log.hold("late", 1)
            else:
                store.log.trim(len(before) // 2)
            hang.release()
            thread.join(30)
            assert dict(store.items()) == state
            if disturb == "hold":
                assert list(store.log.read()) == before
            named = {s.name for s in store.log.parts.manifest_store.current.segments}
            assert {n for n in storage.names() if n.endswith(".segment")} == named
        assert opened_state(storage) == state


def test_a_segment_that_a_trim_copies_meanwhile_is_left_to_the_next_compaction() -> None:
    """Compact between a trim's new watermark and its copy of the segment there: it ends, and the next one works."""
    storage = CrashingStorage()
    state = full_of_changes(storage)
    faulty = FaultyStorage(storage)
    with memory_store(faulty) as store:
        store.checkpoint(trim=False)
        first = store.log.parts.manifest_store.current.sealed[0]
        copying = faulty.hang("create", TRIM_NEW_NAME)
        trimming = Task(store.log.trim, first.last_lsn - 4)
        assert copying.entered.wait(30)
        surveyed = faulty.hang("create", COMPACTION_NEW_NAME)
        compacting = Task(store.compact)
        assert surveyed.entered.wait(30)
        copying.release()
        assert trimming.result().rewritten.bytes_after < trimming.result().rewritten.bytes_before
        surveyed.release()
        assert compacting.result().segments_rewritten == 0
        assert store.compact().segments_rewritten > 0 and dict(store.items()) == state
    assert opened_state(storage) == state


def test_closing_ends_a_compaction() -> None:
    """Close during a compaction: it ends with LogClosedError, and the next opening finds all as it was."""
    storage = CrashingStorage()
    state = full_of_changes(storage)
    faulty = FaultyStorage(storage)
    store = memory_store(faulty)
    hang = faulty.hang("write", "compaction.new")
    ended: list[BaseException] = []

    def work() -> None:
        try:
            store.compact()
        except LogClosedError as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert hang.entered.wait(30)
    closing = threading.Thread(target=store.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    hang.release()
    thread.join(30)
    closing.join(30)
    assert len(ended) == 1
    with pytest.raises(LogClosedError):
        store.compact()
    assert opened_state(storage) == state
