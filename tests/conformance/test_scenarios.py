"""Scenarios of other logs that no room's own tests hold; `scenarios.md` has all of them, with their tests."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import walkit
from tests.replication.frame_history import batches_of, whole
from tests.state.test_journal import journalled
from tests.support.damaged_logs import OPTIONS, contents, crash_image, gone, opened, patch, read
from tests.support.fake_segments import DriverHarness, GatedSink
from tests.support.logs import lsns, reopened, tiny, values
from tests.support.stores import memory_store
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.commit.frame_writer import prepare
from walkit.commit.policy import OneRecordPerFrame
from walkit.config import Retention
from walkit.errors import FormatVersionError, LogClosedError, LogPoisonedError, SegmentMissingError
from walkit.format.checksum import crc32c
from walkit.format.layout import DURABLE_SLOTS_BYTES
from walkit.format.manifest import MANIFEST_NAME, LogEnd, Manifest, encode_base
from walkit.format.segment import segment_name
from walkit.models import CrashingStorage, FaultyStorage
from walkit.objects.bulks import AHEAD_BYTES, PARALLEL, Bulks
from walkit.objects.layout import object_key
from walkit.objects.open import open_object_writer
from walkit.recovery.log_scan import read_durable_slot
from walkit.replication.protocol.codecs import pack, unpack
from walkit.segments.manifest_store import DURABLE_NAME, NEW_NAME
from walkit.storage.bulk import write_whole
from walkit.storage.object_memory import MemoryObjectStore, ObjectRequest


def test_batches_are_whole_frames_up_to_their_size_and_none_is_left_out() -> None:
    """Let a publisher send with small batches: each holds whole frames, up to the size or one, and all come once."""
    history = whole()
    borders = {0} | {header.end_position for _, header, _ in history.frames}
    sizes = {header.position: header.footprint for _, header, _ in history.frames}
    for batch_bytes in (1, 2000, 8000):
        at = 0
        for batch in batches_of(history, batch_bytes):
            assert batch.after_position == at and {batch.start_position, batch.end_position} <= borders
            size = batch.end_position - batch.start_position
            assert size <= max(batch_bytes, sizes[batch.start_position])
            at = batch.end_position
        assert at == history.end().position


@pytest.mark.parametrize("codec", ["", "zstd", "snappy"])
def test_codecs_give_back_what_they_took_or_nothing(codec: str) -> None:
    """Pack and unpack; then cut, flip, and lie about size and codec: the same bytes again, or none, and no more."""
    for data in (b"again and again " * 500, bytes(range(256)), b"x"):
        used, packed = pack(data, codec)
        assert used in ("", codec) and len(packed) <= len(data)
        assert (used == "") == (packed == data)
        assert unpack(packed, used, len(data)) == data
        for size in (0, -1, len(data) - 1, len(data) + 1, 1 << 40):
            assert unpack(packed, used, size) is None
        assert unpack(packed[:-1], used, len(data)) is None
    used, packed = pack(b"again and again " * 500, codec or "zstd")
    assert used and len(packed) < 4000
    assert unpack(packed, "", 8000) is None and unpack(b"plain text", "zstd", 10) is None
    for at in range(len(packed)):
        found = unpack(packed[:at] + bytes([packed[at] ^ 0x20]) + packed[at + 1 :], used, 8000)
        assert found is None or len(found) == 8000


def segments_log(storage: CrashingStorage | None = None, count: int = 40) -> walkit.WriteAheadLog:
    """A log of forty records, eight per segment; each value has its number."""
    log = walkit.open(storage=storage or CrashingStorage(), options=tiny())
    log.append_many([b"%07d" % (n + 1) * 1000 for n in range(count)])
    log.wait_idle()
    return log


def numbers(records: Any) -> list[int]:
    """Which records these are, by their values."""
    return [int(value[:7]) for value in values(records) if value is not None]


def test_numbers_are_never_given_again_after_everything_was_cleaned() -> None:
    """#4024: drop all, restart, append: the cursor at the old end sees all new records."""
    storage = CrashingStorage()
    with segments_log(storage) as log:
        log.cursor("c").advance(40)
        log.trim(40)
    for round_ in range(3):
        with walkit.open(storage=storage, options=tiny()) as log:
            taken = {s.number for s in log.parts.manifest_store.current.segments}
            assert log.cursor("c").lsn == 40 + round_ and list(log.cursor("c").read()) == []
            assert log.append(b"new").first_lsn == 41 + round_
            assert {s.number for s in log.parts.segments.open_segments}.isdisjoint(taken)
            assert lsns(log.cursor("c").read()) == [41 + round_]
            log.cursor("c").advance(41 + round_)
            log.trim(41 + round_)


def test_segments_are_read_in_the_order_of_the_log() -> None:
    """After compaction the oldest records are in the file of the highest number: they are read first."""
    storage = CrashingStorage()
    with memory_store(storage) as store:
        for n in range(40):
            store.put(b"%d" % (n % 30), b"%07d" % (n + 1) * 800)
    with memory_store(storage) as store:
        assert store.compact().segments_rewritten > 0
        found = [s.number for s in store.log.parts.manifest_store.current.sealed]
        assert found[0] == max(found)
        left = lsns(store.log.read())
        assert left == sorted(left) and len(left) < 40 and left[-1] == 40


def test_what_was_dropped_does_not_come_back_after_a_power_cut() -> None:
    """#4137: undo every removal that no sync covers: the records stay dropped, an opening removes the files."""
    storage = CrashingStorage()
    with segments_log(storage) as log:
        log.enforce_retention(Retention(records_max=10))
        first = log.first_lsn
        images = [storage.crash(keep="none"), *(storage.crash(keep="random", seed=s) for s in range(5))]
    assert first > 1
    for image in images:
        with walkit.open(storage=image, options=tiny()) as log:
            assert log.first_lsn == first and numbers(log.read()) == list(range(first, 41))
            named = {s.name for s in log.parts.manifest_store.current.segments}
            assert {n for n in image.names() if n.endswith(".segment")} == named


def test_compaction_makes_nothing_young() -> None:
    """#1980: compact and reopen: the time from which retention counts is that at which the records were written."""
    storage = CrashingStorage()
    with memory_store(storage) as store:
        for n in range(40):
            store.put(b"%d" % (n % 30), b"%07d" % (n + 1) * 800)
    with memory_store(storage) as store:
        oldest = store.log.parts.manifest_store.current.sealed[0]
        store.compact()
        compacted = store.log.parts.manifest_store.current.sealed[0]
        assert compacted.flags and compacted.created_us == oldest.created_us
    with memory_store(storage) as store:
        assert store.log.parts.manifest_store.current.sealed[0].created_us == oldest.created_us


def test_a_log_with_a_damaged_slot_is_written_on() -> None:
    """Damage both slots of a closed log's cell, append, kill: the new slots are true, and every record is there."""
    image = crash_image(closed=True)
    cell = image.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=True)
    assert cell is not None
    cell.write(0, b"\xff" * DURABLE_SLOTS_BYTES)
    cell.close()
    with opened(image) as log:
        log.append(b"more")
        after = image.process_kill()
    assert read_durable_slot(after).lsn == 9
    assert lsns(reopened(after, OPTIONS)) == list(range(1, 10))


def test_a_gap_stops_recovery_and_is_named() -> None:
    """Take a segment out of the middle: no record after the gap is read as if it followed, and the gap is named."""
    image = crash_image(closed=True)
    gone(2)(image)
    with pytest.raises(SegmentMissingError) as refused:
        opened(image)
    assert (refused.value.segment, refused.value.first_lost_lsn, refused.value.found) == (
        segment_name(2),
        3,
        None,
    )


def test_a_header_of_another_version_is_refused_by_version() -> None:
    """Give a segment header version 9 and its right checksum: FormatVersionError, by salvage too, and no change."""
    image = crash_image(closed=True)
    block = bytearray(read(image, segment_name(2))[:4092])
    block[8] = 9
    patch(image, segment_name(2), 0, bytes(block) + crc32c(bytes(block)).to_bytes(4, "little"))
    before = contents(image)
    for policy in ("prefix", "salvage"):
        with pytest.raises(FormatVersionError):
            opened(image, policy)
    assert contents(image) == before


def test_appends_go_on_while_a_snapshot_is_written() -> None:
    """Hang a checkpoint in the sync of its snapshot: appends that have slots are acknowledged meanwhile (#3767)."""
    storage = FaultyStorage(CrashingStorage())
    with journalled(storage, 16) as store:
        store.put(b"k", b"0")
        hang = storage.hang("sync", "snapshot.new")
        checkpoint = threading.Thread(target=store.checkpoint)
        checkpoint.start()
        assert hang.entered.wait(30)
        for i in range(1, 16):
            store.put(b"k", b"%d" % i)
        assert store[b"k"] == b"15" and checkpoint.is_alive()
        hang.release()
        checkpoint.join(30)
        assert store.remaining_capacity == 1


def test_frames_are_sealed_in_the_order_they_were_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the preparing of the first of three groups take longest: LSNs are in the order of the submissions."""
    place = GatedSink()
    place.release()
    harness = DriverHarness(place=place, in_flight_max=3, policy=OneRecordPerFrame())
    begun: list[bytes] = []

    def slowly(group: Any, codec: Any, **options: Any) -> Any:
        value = group[0].value
        begun.append(value)
        if value == b"0":
            wait_until(lambda: len(begun) == 3, "the other two to be prepared")
        return prepare(group, codec, **options)

    monkeypatch.setattr("walkit.commit.frame_writer.prepare", slowly)
    tickets = [harness.queued(b"%d" % n) for n in range(3)]
    assert [t.result(GUARD_S).first_lsn for t in tickets] == [1, 2, 3]
    assert sorted(begun) == [b"0", b"1", b"2"]
    Task(harness.driver.stop, LogClosedError("over")).result()


def test_what_cannot_be_prepared_fails_all_that_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise while the second of four groups is encoded: it and later ones are refused, the first may land."""
    place = GatedSink()
    harness = DriverHarness(place=place, in_flight_max=4, policy=OneRecordPerFrame())

    def fails(group: Any, codec: Any, **options: Any) -> Any:
        if group[0].value == b"1":
            raise MemoryError("no room to encode")
        return prepare(group, codec, **options)

    monkeypatch.setattr("walkit.commit.frame_writer.prepare", fails)
    first: Any = harness.queued(b"0")
    wait_until(lambda: len(place.gates) == 1)
    others = [harness.queued(b"1")]
    with pytest.raises(LogPoisonedError) as refused:
        others[0].result(GUARD_S)
    assert isinstance(refused.value.__cause__, MemoryError)
    with pytest.raises(LogPoisonedError):
        harness.queued(b"2")
    assert not first.done()
    place.release()
    assert first.result(GUARD_S).first_lsn == 1
    Task(harness.driver.stop, LogClosedError("over")).result()
    assert harness.core.acked_lsn == harness.core.appended_lsn == 1


@pytest.mark.parametrize("start", [(1 << 31) - 4096, (1 << 32) - 4096, (1 << 40) - 4096])
@pytest.mark.parametrize("order", ["append", "completion"])
def test_positions_and_lsns_cross_what_32_bits_hold(start: int, order: str) -> None:
    """Let a log begin just below 2^31, 2^32 and 2^40, in positions and LSNs: append, rotate, cut, reopen and read."""
    storage = CrashingStorage()
    storage.create()
    manifest = Manifest(
        log_id=99,
        created_us=1,
        ack_order=order,
        end=LogEnd(last_lsn=start, position=start, chain=7),
        low_watermark=start,
    )
    write_whole(storage, MANIFEST_NAME, NEW_NAME, encode_base(manifest))
    options = tiny(in_flight=4, policy=OneRecordPerFrame())
    with walkit.open(storage=storage, options=options) as log:
        results = [t.result(GUARD_S) for t in [log.submit(bytes(1500)) for _ in range(100)]]
        wait_until(lambda: log.acked_lsn == start + 100)
        assert [r.first_lsn for r in results] == list(range(start + 1, start + 101))
        assert results[0].position == start
        assert results[-1].next_position > start + 100 * 1500
        assert log.statistics().rotations > 1
        image = storage.crash(keep="none")
    for place in (storage, image):
        with walkit.open(storage=place, options=options) as log:
            assert lsns(log.read()) == list(range(start + 1, start + 101))
            after = log.append(b"after")
            assert after.first_lsn == start + 101
            assert after.position == results[-1].next_position
            assert log.trim(start + 50) == start + 50
    with walkit.open(storage=storage, mode="r") as reader:
        assert lsns(reader.read(start + 60))[-1] == start + 101


def test_ten_threads_append_and_closing_puts_what_is_queued() -> None:
    """Append 1,000 records on ten threads, submit more, close at once and twice: all are there as they were given."""
    store = MemoryObjectStore()
    log = open_object_writer(store)
    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(lambda n: (n, log.append(b"%d" % n * (n % 50))), range(1000)))
    tickets = [log.submit(b"queued %d" % n) for n in range(100)]
    log.close()
    log.close()
    with pytest.raises(LogClosedError):
        log.append(b"late")
    with walkit.open(storage=store, mode="r") as reader:
        values = {r.lsn: r.value for r in reader}
    assert {result.first_lsn: b"%d" % n * (n % 50) for n, result in results}.items() <= values.items()
    assert [values[t.result().first_lsn] for t in tickets] == [b"queued %d" % n for n in range(100)]
    assert len(values) == 1100


def test_bulks_are_read_ahead_within_a_bound_of_bytes() -> None:
    """Read a log of large bulks and stop at each: never more than the bound, or one, has been asked for ahead."""
    size = AHEAD_BYTES // 4
    store = MemoryObjectStore()
    with open_object_writer(store, options=walkit.LogOptions(frame_bytes_max=2 * size)) as log:
        for _ in range(8):
            log.append(bytes(size))
    asked: list[str] = []

    def count(request: ObjectRequest) -> None:
        asked.append(request.key)

    taken, most = 0, 0
    for bulk in Bulks(store.client(count)).ahead(1, 9):
        assert bulk is not None
        taken += 1
        most = max(most, len(asked) - taken)
    assert taken == 9 and object_key(9) in asked and 1 <= most <= AHEAD_BYTES // size < PARALLEL
