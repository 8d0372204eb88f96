"""Index sidecars: they spare reading, and nothing else depends on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product

import pytest

import walkit
from tests.support.crashes import SMALL
from tests.support.in_flight_logs import Flight
from tests.support.logs import FaultyMemory, tiny
from tests.support.makers import flipped
from walkit.errors import CorruptionError
from walkit.format.index import IndexEntry, IndexIdentity, encode_index, index_name
from walkit.models import CrashingStorage
from walkit.read.ranges import plan_ranges, ranges_of, read_range
from walkit.read.reader import view_of
from walkit.segments.index_file import index_segment, read_index, reindex
from walkit.storage import Storage

LARGE = tiny(segment_bytes=1 << 20, frame_bytes_max=1 << 13)
RECORDS = 1_500
PUT = bytes(1_000)


def made(storage: Storage | None = None) -> Storage:
    """A log of two sealed segments with an index each."""
    storage = storage or CrashingStorage()
    with walkit.open(storage=storage, options=LARGE) as log:
        for start in range(0, RECORDS, 4):
            log.append_many([b"%06d" % i + PUT for i in range(start, start + 4)])
    return storage


def indexes(storage: Storage) -> list[str]:
    return sorted(name for name in storage.names() if name.endswith(".index"))


def contents(storage: Storage, name: str) -> bytes:
    file = storage.open(name, "read")
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def put(storage: Storage, name: str, data: bytes) -> None:
    """Replace a file."""
    if name in storage.names():
        storage.remove(name)
    file = storage.open(name, "create")
    file.write(0, [data])
    file.close()


def numbers(storage: Storage, first_lsn: int, last_lsn: int) -> list[int]:
    """Read a range of LSNs; the number in each value."""
    with walkit.open(storage=storage, mode="r") as reader:
        return [int((r.value or b"")[:6]) for r in reader.read(first_lsn, last_lsn)]


def entries_in(storage: Storage, segment: int) -> tuple[IndexIdentity, list[IndexEntry]]:
    """The entries of a segment's index."""
    manifest = view_of(storage)[0].manifest
    record = manifest.sealed[segment]
    index = read_index(storage, manifest.log_id, record)
    assert index is not None
    identity = IndexIdentity.of(manifest.log_id, record)
    return identity, [index.entry(at) for at in range(len(index.positions))]


def remove(storage: Storage, name: str) -> None:
    storage.remove(name)


def flip(storage: Storage, name: str) -> None:
    put(storage, name, flipped(contents(storage, name), 8 * 200))


def cut(storage: Storage, name: str) -> None:
    put(storage, name, contents(storage, name)[:-8])


def empty(storage: Storage, name: str) -> None:
    put(storage, name, b"")


def huge(storage: Storage, name: str) -> None:
    put(storage, name, bytes(1 << 20))


def other_segments(storage: Storage, name: str) -> None:
    """The index of the other segment of this log."""
    put(storage, name, contents(storage, next(n for n in indexes(storage) if n != name)))


def foreign(storage: Storage, name: str) -> None:
    """The index of the same segment of a log that was made alike."""
    put(storage, name, contents(made(), name))


def lying(change: Callable[[IndexEntry], IndexEntry]) -> Callable[[Storage, str], None]:
    """An index of the very segment, with a right checksum, whose entries say something else."""

    def write(storage: Storage, name: str) -> None:
        segment = indexes(storage).index(name)
        identity, entries = entries_in(storage, segment)
        put(storage, name, encode_index(identity, [entries[0], *map(change, entries[1:])]))

    return write


DAMAGE: dict[str, Callable[[Storage, str], None]] = {
    "absent": remove,
    "a bit flipped": flip,
    "cut short": cut,
    "empty": empty,
    "huge": huge,
    "of another segment": other_segments,
    "of another log": foreign,
    "positions between frames": lying(lambda e: e._replace(position=e.position + 64)),
    "LSNs of other frames": lying(lambda e: e._replace(first_lsn=e.first_lsn + 4)),
    "LSNs too low": lying(lambda e: e._replace(first_lsn=e.first_lsn - 3)),
}


def test_sealed_segments_have_an_index_of_their_frames() -> None:
    """F-10.2: each sealed segment has one; its entries are frames 64 KiB apart, with their LSNs and counts."""
    storage = made()
    view = view_of(storage)[0]
    sealed = view.manifest.sealed
    assert indexes(storage) == [index_name(record.name) for record in sealed]
    assert len(sealed) == 2
    headers = {h.position: h for h, _, _ in view.frames(1, body=False)}
    for segment in range(2):
        _, entries = entries_in(storage, segment)
        assert len(entries) > 5
        for entry, following in zip(entries, [*entries[1:], None], strict=True):
            assert headers[entry.position].first_lsn == entry.first_lsn
            before = [h for p, h in headers.items() if entries[0].position <= p < entry.position]
            assert entry.records == sum(h.records for h in before)
            if following is not None:
                assert (1 << 16) <= following.position - entry.position < (1 << 16) + (1 << 13)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_no_index_changes_what_is_read(damage: Callable[[Storage, str], None]) -> None:
    """F-10.1, F-10.3: with each kind of index, reads from every 97th LSN give the same as of the log without."""
    storage = made()
    for name in indexes(storage):
        damage(storage, name)
    for first in range(1, RECORDS + 1, 97):
        last = min(first + 9, RECORDS)
        assert numbers(storage, first, last) == list(range(first - 1, last))
    assert numbers(storage, 1, RECORDS) == list(range(RECORDS))
    assert walkit.verify(storage).ok
    with walkit.open(storage=storage, options=LARGE) as log:
        assert log.append(b"%06d" % RECORDS).last_lsn == RECORDS + 1


@pytest.mark.parametrize("parts", [None, 2, 5, 40])
def test_ranges_from_indexes_hold_every_record_once(parts: int | None) -> None:
    """The ranges planned from indexes, and those without, hold each record once and know their number."""
    storage = made()
    planned = plan_ranges(storage, parts=parts)
    for name in indexes(storage):
        storage.remove(name)
    walked = plan_ranges(storage, parts=parts)
    for ranges in (planned, walked):
        read = [lsn for r in ranges for b in read_range(storage, r) for lsn in b.column("lsn").to_pylist()]
        assert read == list(range(1, RECORDS + 1))
        assert sum(r.records for r in ranges) == RECORDS
        assert [r.last_lsn - r.first_lsn + 1 for r in ranges] == [r.records for r in ranges]
    assert abs(len(planned) - len(walked)) <= len(walked) // 3 + 1


def bytes_read(storage: FaultyMemory, first_lsn: int, last_lsn: int) -> tuple[list[int], int]:
    """A reader's LSNs, and the bytes it read of segments and indexes."""
    view = view_of(storage)[0]
    before = len(storage.trace)
    found = [r.lsn for r in view.records(first_lsn, last_lsn)]
    done = storage.trace[before:]
    return found, sum(o.size for o in done if o.name == "read")


def test_a_read_in_the_middle_reads_few_bytes() -> None:
    """Counted on the storage: one record from a segment's middle costs an index and 200 KiB, and without half of it."""
    storage = FaultyMemory()
    made(storage)
    middle = RECORDS // 3
    with_index = bytes_read(storage, middle, middle)
    for name in indexes(storage):
        storage.remove(name)
    without = bytes_read(storage, middle, middle)
    assert with_index[0] == without[0] == [middle]
    assert with_index[1] < 200 << 10 < without[1] // 2


def test_damage_before_the_entry_meets_its_reader() -> None:
    """A damaged frame at a segment's start refuses the read that wants it, and verify, but not one after it."""
    storage = made()
    name = indexes(storage)[0].removesuffix(".index")
    data = bytearray(contents(storage, name))
    data[4096 + 50] ^= 1
    put(storage, name, bytes(data))
    assert numbers(storage, 500, 510) == list(range(499, 510))
    with pytest.raises(CorruptionError):
        numbers(storage, 1, 510)
    assert not walkit.verify(storage).ok


def test_an_index_goes_with_its_segment_and_orphans_at_opening() -> None:
    """F-10.4: trimming removes both; an index whose segment is gone is removed by the next opening, others stay."""
    storage = made()
    first, second = indexes(storage)
    with walkit.open(storage=storage, options=LARGE) as log:
        log.trim(RECORDS // 2 + RECORDS // 4)
        assert indexes(storage) == [second]
    put(storage, first, b"left")
    put(storage, "mine.index", b"of somebody else")
    walkit.open(storage=storage, options=LARGE).close()
    assert indexes(storage) == [second, "mine.index"]


def test_a_crash_between_seal_and_index_leaves_a_log_without() -> None:
    """F-10.4: at a crash as each index file is made or written, the log opens clean and every record is read."""
    for operation in ("create", "write"):
        storage = FaultyMemory()
        storage.fail(operation, "*.index", times=None)
        made(storage)
        image = storage.inner.crash()
        assert numbers(image, 1, RECORDS) == list(range(RECORDS))
        with walkit.open(storage=image, options=LARGE) as log:
            assert log.recovery is not None and log.recovery.verdict == "clean"


def test_an_index_is_made_of_a_segment_that_has_none() -> None:
    """index_segment makes from a sealed segment's headers, byte for byte, its writer's index."""
    storage = made()
    manifest = view_of(storage)[0].manifest
    for record in manifest.sealed:
        name = index_name(record.name)
        written = contents(storage, name)
        storage.remove(name)
        index_segment(storage, manifest, record)
        assert contents(storage, name) == written


@pytest.mark.parametrize("damage", [remove, flip, cut])
def test_an_absent_or_damaged_index_is_rebuilt(damage: Callable[[Storage, str], None]) -> None:
    """Damage one index, append after reopening: beside the appends the same bytes come back; a reader writes none."""
    storage = made()
    name = indexes(storage)[0]
    whole = contents(storage, name)
    damage(storage, name)
    assert numbers(storage, 700, 701) == [699, 700]
    with walkit.open(storage=storage, options=LARGE):
        assert name not in storage.names() or contents(storage, name) != whole
    with walkit.open(storage=storage, options=LARGE) as log:
        log.append(b"more")
        maintenance = log.parts.segments.maintenance
        assert maintenance._news.wait_for(
            lambda: name in storage.names() and contents(storage, name) == whole, timeout=60
        )
        log.trim(10)  # which waits for the thread's earlier work


def test_a_segment_that_recovery_sealed_gets_an_index() -> None:
    """Kill a writer in a large segment: the next one seals it without an index, and then makes that of its frames."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=LARGE)
    for start in range(0, 700, 4):
        log.append_many([b"%06d" % i + PUT for i in range(start, start + 4)])
    killed = storage.process_kill()
    log.close()
    with walkit.open(storage=killed, options=LARGE):
        assert indexes(killed) == []
    with walkit.open(storage=killed, options=LARGE) as log:
        manifest = log.parts.manifest_store.current
        for _ in reindex(killed, lambda: manifest):
            pass
    assert indexes(killed) == indexes(storage) != []
    assert entries_in(killed, 0)[1] == entries_in(storage, 0)[1]


def test_a_segment_with_a_lost_range_has_an_index() -> None:
    """Damage a frame and salvage: the index is rebuilt over the loss, reads and ranges pass over it."""
    storage = FaultyMemory()
    made(storage)
    name = indexes(storage)[0].removesuffix(".index")
    data = bytearray(contents(storage, name))
    data[4096 + 300_000] ^= 1
    put(storage, name, bytes(data))
    with walkit.open(storage=storage, options=replace(LARGE, recovery="salvage")) as log:
        (lost,) = log.recovery.lost
        manifest = log.parts.manifest_store.current
    left = [lsn for lsn in range(1, RECORDS + 1) if not lost.first_lsn <= lsn <= lost.last_lsn]
    assert read_index(storage, manifest.log_id, manifest.sealed[0]) is None, "it counts records that are lost"
    walked = plan_ranges(storage, parts=5)
    for _ in reindex(storage, lambda: manifest):
        pass
    assert read_index(storage, manifest.log_id, manifest.sealed[0]) is not None
    assert plan_ranges(storage, parts=5)[:2] == walked[:2], "and cut at the loss"
    read = [lsn for r in walked for b in read_range(storage, r) for lsn in b.column("lsn").to_pylist()]
    assert read == left
    for first in (*range(1, RECORDS, 97), *range(lost.first_lsn - 9, lost.last_lsn + 9)):
        assert numbers(storage, first, first + 9) == [n - 1 for n in left if first <= n <= first + 9]
    assert bytes_read(storage, lost.last_lsn + 300, lost.last_lsn + 300)[1] < 200 << 10


def test_segments_with_holes_have_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every subset of frames in flight, index each: every read is the same; only a hole in front leaves none."""
    monkeypatch.setattr("walkit.format.index.INDEX_SEGMENT_BYTES_MIN", 64)
    for module in ("format.index", "segments.index_file"):
        monkeypatch.setattr(f"walkit.{module}.INDEX_STEP_BYTES", 64)
    indexed = 0
    for second, count in product((None, 3), range(1, 4)):
        for landed in combinations(range(2, 5), count):
            flight = Flight(second=second)
            image = flight.landed(landed)
            with walkit.open(storage=image, options=replace(SMALL, recovery="holes")) as log:
                manifest = log.parts.manifest_store.current
                wanted = [(r.lsn, r.value) for r in log.read()]
            assert wanted == flight.rows({0, 1, *landed})
            for _ in reindex(image, lambda found=manifest: found):  # type: ignore[misc]
                pass
            for record in manifest.sealed:
                in_front = any(h.start_position == record.start_position for h in manifest.holes)
                index = read_index(image, manifest.log_id, record)
                assert (index is None) is in_front
                if index is not None:
                    assert len(index.positions) == record.frames
                    indexed += bool(manifest.gaps_of(record))
            with walkit.open(storage=image, mode="r") as reader:
                for first in range(1, wanted[-1][0] + 1):
                    assert [(r.lsn, r.value) for r in reader.read(first)] == [
                        w for w in wanted if w[0] >= first
                    ]
    assert indexed > 2


def test_a_segment_that_goes_while_it_is_indexed_leaves_no_index() -> None:
    """Take a segment out of the manifest between the steps that read it: nothing is written for it."""
    storage = made()
    for name in indexes(storage):
        storage.remove(name)
    manifest = view_of(storage)[0].manifest
    manifests = [manifest]
    steps = reindex(storage, lambda: manifests[-1])
    next(steps)
    manifests.append(manifest.next(segments=manifest.segments[:-1]))
    assert [*steps] != []
    assert indexes(storage) == [index_name(manifest.sealed[0].name)]


def test_a_compacted_segment_has_an_index() -> None:
    """After a compaction the new segment has one, the old ones' are gone, and reads in its middle agree."""
    storage = CrashingStorage()
    with walkit.Store.open(storage=storage, options=LARGE) as store:
        for start in range(0, 2 * RECORDS, 6):
            with store.transaction() as tx:
                for i in range(start, start + 6):
                    tx.put(b"%d" % i if i % 2 else b"over and over", b"%06d" % i + PUT)
        store.compact()
        sealed = store.log.parts.manifest_store.current.sealed
        compacted = [s for s in sealed if s.flags]
        assert compacted
        large = [s for s in sealed if s.size_bytes >= 256 << 10]
        assert indexes(storage) == sorted(index_name(s.name) for s in large)
        whole = {r.lsn: r.value for r in store.log.read()}
        for first in range(1, RECORDS, 89):
            part = {r.lsn: r.value for r in store.log.read(first, first + 20)}
            assert part == {lsn: v for lsn, v in whole.items() if first <= lsn <= first + 20}


def test_ranges_of_a_view_with_bounds_agree() -> None:
    """Bounds inside of segments: the ranges of a view with indexes cover the same LSNs as those without."""
    storage = made()
    view, newest = view_of(storage)
    found = []
    for _ in range(2):
        ranges = ranges_of(view, newest, parts=5, first_lsn=333, last_lsn=RECORDS - 333)
        read = [
            lsn
            for r in ranges
            for b in read_range(storage, r, first_lsn=333, last_lsn=RECORDS - 333)
            for lsn in b.column("lsn").to_pylist()
        ]
        found.append(read)
        for name in indexes(storage):
            storage.remove(name)
    assert found[0] == found[1] == list(range(333, RECORDS - 332))
