"""What Iggy and Quiver test of opening, tail repair, readers and many files: each with the test that shows it here.

The scenarios are those of Iggy's journal, superblock and recovery and of Quiver's WAL, as far as they are about what
stands on the disk after a crash; suspected defects are those of Quiver's positions, of Kevo's recovery, and of the
public issues #4024 and #4137. `WHERE` is the table, in words, of what other tests show; what none did is tested here.

Without a meaning here: the ring index, drain, poison and gate of the journal (`test_iggy_journal.py`); unsealed entries
(every frame has its checksums); a superblock's future and payload (the durable slot is two stores to memory); the state
of view changes and the client table; what follows a gap in a cluster (no cluster refills a log); snapshots and
checkpoints (tests/state, tests/test_store_recovery.py); Quiver's slots, buffers and bundles; reopening with another
configuration (a log has no hash of it); a cap on rotated files; a table of error texts, where walkit has types.
"""

from __future__ import annotations

import pytest

import walkit
from tests.log.damaged_logs import (
    OPTIONS,
    contents,
    flip,
    frames_of,
    gone,
    in_frame,
    opened,
    patch,
    read,
    rows_of,
    rows_without,
    shorten,
    value_of,
    wreck,
)
from tests.log.logs import lsns, reopened, tiny, values
from walkit.errors import (
    CorruptionError,
    FormatVersionError,
    RecordTooLargeError,
    SegmentMissingError,
    StorageError,
)
from walkit.format.checksum import crc32c
from walkit.format.layout import DURABLE_SLOTS_BYTES
from walkit.format.segment import segment_name
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import OperationName
from walkit.recovery.log_scan import read_durable_slot
from walkit.segments.manifest_store import DURABLE_NAME, load_manifest

HERE = "conformance/test_iggy_quiver_recovery"

WHERE: dict[str, tuple[str, ...]] = {
    # -- Iggy's journal, superblock and recovery
    "an empty log": ("log/test_tools::test_an_empty_log_is_in_order",),
    "read what was appended": ("log/test_append::test_what_goes_in_comes_out",),
    "reopening goes on behind what is there": (
        "log/test_crash::test_what_follows_a_recovery_survives_the_next_crash",
    ),
    "a cut tail": ("log/test_every_bit::test_a_cut_anywhere_is_refused_by_name",),
    "damage with intact frames behind it": (
        "log/test_recovery::test_a_flip_below_a_promise_is_corruption_of_acknowledged_data",
    ),
    "a damaged last frame": (
        "log/test_recovery::test_a_flip_in_the_last_frame_is_a_torn_tail_only_while_nothing_promises_it",
    ),
    "every frame is verified": ("log/test_every_bit::test_a_flip_of_a_sample_of_bits_is_told",),
    "slots alternate": ("format/test_durable::test_slots_alternate",),
    "a damaged slot": ("log/test_every_bit::test_a_flip_in_the_durable_slots_is_harmless",),
    "what may be replayed": ("log/test_readers::test_a_reader_sees_what_is_durable_and_nothing_more",),
    "foreign identity": (
        f"{HERE}::test_a_broken_chain_between_segments_never_reads_clean",
        "log/test_salvage::test_segments_under_each_others_names_are_refused_and_not_lost",
    ),
    # -- Quiver's WAL
    "round trip": ("log/test_append::test_what_goes_in_comes_out",),
    "flush policies": (
        "log/test_durability::test_the_timer_syncs_an_idle_tail",
        "log/test_durability::test_closing_makes_durable_at_every_level",
    ),
    "truncation, then append": ("log/test_crash::test_what_follows_a_recovery_survives_the_next_crash",),
    "numbers go on after a restart": ("log/test_hold_trim::test_lsns_go_on_after_trim_and_reopening",),
    "restart after everything was purged": (
        "log/test_hold_trim::test_trimming_everything_leaves_a_log_that_goes_on",
    ),
    "header codec": ("format/test_segment::test_round_trip",),
    "structure under right checksums": ("format/test_body::test_malformed_bodies",),
    # -- defects of Kevo's recovery
    "one damaged byte loses the rest in silence": (
        "log/test_every_bit::test_a_flip_of_a_sample_of_bits_is_told",
        "log/test_salvage::test_every_harm_leaves_the_intact_frames_and_names_the_rest",
    ),
    "rotation restarts the sequence": (
        f"{HERE}::test_4024_segment_numbers_do_not_restart_when_every_segment_is_gone",
    ),
}


def killed(**changes: bool) -> CrashingStorage:
    """Return a log whose writer was killed, without its cell: only frames promise."""
    return wreck(closed=False, without_cell=True, **changes)


def test_a_flipped_magic_of_the_last_entry_is_cut() -> None:
    """Flip the first byte of the last frame: the log ends before it, and the next record takes its LSN."""
    image = killed()
    in_frame(4, 1, 0)(image)
    with opened(image) as log:
        assert rows_of(log) == rows_without(8) and log.append(b"again").first_lsn == 8


def test_a_torn_tail_of_junk_does_not_come_back() -> None:
    """Write junk behind the last frame, open, cut the power at once: the tail is gone for good, and its bytes kept."""
    image = killed()
    offset, header = frames_of(image, segment_name(4))[-1]
    patch(image, segment_name(4), offset + header.footprint, b"\xa5" * 999)
    log = opened(image)
    after = image.crash(keep="none")
    log.close()
    with opened(after) as log:
        assert rows_of(log) == rows_without() and not log.recovery.cuts
    assert any(data == b"\xa5" * 999 for data in contents(after).values())


def test_a_damaged_header_before_much_else_is_refused_and_nothing_shortened() -> None:
    """Damage the first frame of the open segment, with another behind it: refused, and nothing is changed."""
    image = killed()
    in_frame(4, 0, 60)(image)
    before = contents(image)
    with pytest.raises(CorruptionError) as refused:
        opened(image)
    assert (refused.value.segment, refused.value.first_lost_lsn) == (segment_name(4), 7)
    assert contents(image) == before


def test_what_is_over_the_limit_is_refused_before_a_byte_is_written() -> None:
    """Append more than a frame may hold: a typed error, and no byte of any segment is another than before."""
    image = wreck(closed=True)
    with opened(image) as log:
        before = contents(image)
        with pytest.raises(RecordTooLargeError):
            log.append(bytes(OPTIONS.frame_bytes_max))
        assert contents(image) == before


def test_a_broken_chain_at_the_tail_is_cut() -> None:
    """Give the last frame another predecessor under right checksums: it is of another history, and cut."""
    image = killed()
    offset, _ = frames_of(image, segment_name(4))[-1]
    head = bytearray(read(image, segment_name(4))[offset : offset + 96])
    head[88] ^= 1
    head[92:] = crc32c(bytes(head[:92])).to_bytes(4, "little")
    patch(image, segment_name(4), offset, bytes(head))
    with opened(image) as log:
        assert rows_of(log) == rows_without(8)
        assert "chain" in log.recovery.cuts[0].reason or "follow" in log.recovery.cuts[0].reason


def test_an_unknown_version_is_reported_beside_whole_records() -> None:
    """Say in the manifest, under its right checksum, that it is of version 9: refused by version, also by repair."""
    image = wreck(closed=True)
    data = bytearray(read(image, "manifest"))
    data[8] = 9
    data[24:28] = crc32c(bytes(data[28:]), crc32c(bytes(data[:24]))).to_bytes(4, "little")
    patch(image, "manifest", 0, bytes(data))
    for look in (opened, walkit.verify, walkit.repair):
        with pytest.raises(FormatVersionError) as refused:
            look(image)
        assert (refused.value.found, refused.value.supported) == (9, 0)


def test_a_log_with_a_damaged_slot_is_written_on() -> None:
    """Damage both slots of a closed log's cell, append, kill: the new slots are true, and every record is there."""
    image = wreck(closed=True)
    cell = image.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=True)
    assert cell is not None
    cell.write(0, b"\xff" * DURABLE_SLOTS_BYTES)
    cell.close()
    with opened(image) as log:
        log.append(b"more")
        after = image.process_kill()
    assert read_durable_slot(after).lsn == 9
    assert lsns(reopened(after, OPTIONS)) == list(range(1, 10))


def test_an_empty_folder_becomes_a_log() -> None:
    """Open a folder with nothing in it: a new log whose first record is LSN 1."""
    storage = CrashingStorage()
    storage.create()
    with opened(storage) as log:
        assert log.recovery.verdict == "created" and log.append(b"x").first_lsn == 1


def test_a_gap_stops_recovery_and_is_named() -> None:
    """Take a segment out of the middle: no record behind the gap is read as if it followed, and the gap is named."""
    image = wreck(closed=True)
    gone(2)(image)
    with pytest.raises(SegmentMissingError) as refused:
        opened(image)
    assert (refused.value.segment, refused.value.first_lost_lsn, refused.value.found) == (
        segment_name(2),
        3,
        None,
    )


def test_a_broken_chain_between_segments_never_reads_clean() -> None:
    """Put an equal segment of another history in place: same LSNs and positions, other chain; refused and told."""
    image, other = wreck(closed=True), CrashingStorage()
    with walkit.open(storage=other, options=OPTIONS) as log:
        for lsn in range(1, 9):
            log.append(value_of(lsn))
    patch(image, segment_name(2), 0, read(other, segment_name(2)))
    assert not walkit.verify(image).ok
    with pytest.raises(CorruptionError):
        opened(image)


def test_a_cell_that_is_gone_changes_nothing() -> None:
    """Remove the durable file of a closed log: it opens clean with every record."""
    image = wreck(closed=True, without_cell=True)
    with opened(image) as log:
        assert rows_of(log) == rows_without() and log.recovery.verdict == "clean"


@pytest.mark.parametrize("size", [0, 1, 100, 4095])
def test_a_file_shorter_than_its_header_is_refused(size: int) -> None:
    """Cut a sealed segment within its header: refused, with the segment, what was expected and what was found."""
    image = wreck(closed=True)
    shorten(image, segment_name(2), size)
    with pytest.raises(SegmentMissingError) as refused:
        opened(image)
    error = refused.value
    assert (error.segment, error.found, error.first_lost_lsn) == (segment_name(2), size, 3)
    assert isinstance(error.expected, int) and error.expected > size


def test_a_header_of_another_version_is_refused_by_version() -> None:
    """Give a segment header version 9 and its right checksum: FormatVersionError, by salvage too, and no change."""
    image = wreck(closed=True)
    block = bytearray(read(image, segment_name(2))[:4092])
    block[8] = 9
    patch(image, segment_name(2), 0, bytes(block) + crc32c(bytes(block)).to_bytes(4, "little"))
    before = contents(image)
    for policy in ("prefix", "salvage"):
        with pytest.raises(FormatVersionError):
            opened(image, policy)
    assert contents(image) == before


def test_reading_begins_where_it_is_told() -> None:
    """Read from each LSN, from one beyond the end, and twice: the records from there on, none, and the same again."""
    image = wreck(closed=True)
    with walkit.open(None, mode="r", storage=image) as reader:
        for first in range(1, 9):
            assert lsns(reader.read(first)) == list(range(first, 9)) == lsns(reader.read(first))
        assert lsns(reader.read(9)) == []


PARTS = {"header": 20, "first length": 97, "body": 300, "checksum": 93, "padding": -1}


@pytest.mark.parametrize("part", PARTS)
def test_a_reader_that_meets_damage_says_where(part: str) -> None:
    """Damage one part of a sealed frame: a reader yields what is before it, then names segment, position and LSN."""
    image = wreck(closed=True)
    in_frame(3, 1, PARTS[part])(image)
    with walkit.open(None, mode="r", storage=image) as reader:
        found: list[int] = []
        with pytest.raises(CorruptionError) as damage:
            found.extend(r.lsn for r in reader.read())
        assert found == [1, 2, 3, 4, 5] and damage.value.first_lost_lsn == 6
    position = frames_of(wreck(closed=True), segment_name(3))[1][1].position
    assert (damage.value.segment, damage.value.position) == (segment_name(3), position)


def test_a_failing_read_is_a_storage_error_that_names_the_file() -> None:
    """Fail each read of an opening in turn: StorageError with a name, and the next opening has all."""
    named: list[str | None] = []
    for nth in range(1, 40):
        faulty = FaultyStorage(wreck(closed=False))
        fault = faulty.fail("read", nth=nth, times=1)
        try:
            opened(faulty).close()
        except StorageError as error:
            named.append(error.name)
        with opened(faulty.inner) as log:
            assert rows_of(log) == rows_without()
        if not fault.hits:
            break
    assert len(named) > 5 and all(named)


def test_many_files_are_one_log_whatever_their_numbers() -> None:
    """Trim, compact and reopen until file numbers leave gaps and disagree with positions: records come in LSN order."""
    storage = CrashingStorage()
    with walkit.Store.open(storage, options=OPTIONS) as store:
        for i in range(8):
            store[b"key %d" % (i % 3)] = value_of(i)
        store.log.wait_idle()
        store.compact()
    for i in range(2):
        with walkit.open(storage=storage, options=OPTIONS) as log:
            log.append(b"epoch %d" % i)
    numbers = [s.number for s in load_manifest(storage).sealed]
    assert numbers != sorted(numbers) and numbers[0] > 1
    with walkit.open(None, mode="r", storage=storage) as reader:
        found = lsns(reader.read())
        assert found == sorted(found) and found[-1] == 10
        assert lsns(reader.read(9)) == [9, 10] and lsns(reader.read(11)) == []


def test_no_segments_without_a_manifest_are_guessed() -> None:
    """Take the manifest away: not a new log and not an empty one, but an error that names it; repair finds all."""
    image = wreck(closed=True)
    image.remove("manifest")
    image.sync_directory()
    with pytest.raises(CorruptionError) as refused:
        opened(image)
    assert refused.value.segment == "manifest"
    assert walkit.repair(image).last_lsn == 8


def test_an_unopenable_file_is_named_and_never_skipped() -> None:
    """Let one segment not open: prefix refuses with its name, where Quiver logs an event and skips its entries."""
    faulty = FaultyStorage(wreck(closed=True))
    faulty.fail("open", segment_name(2), times=None, errno=13)
    with pytest.raises(StorageError) as refused:
        opened(faulty)
    assert (refused.value.errno, refused.value.name) == (13, segment_name(2))


def test_positions_come_from_headers_and_not_from_what_is_left() -> None:
    """Trim the oldest segments, reopen, append: positions go on where they were, not where the files add up to."""
    image = wreck(closed=True)
    end = load_manifest(image).end.position
    with opened(image) as log:
        log.trim(6)
        assert log.first_lsn == 7
    with opened(image) as log:
        assert log.append(b"next").position == end


def test_a_crash_while_a_segment_is_begun_leaves_no_segment_at_position_0() -> None:
    """Crash at each operation around a rotation: the next opening has every acknowledged record, in order."""
    hits = 0
    operations: tuple[OperationName, ...] = (
        "create",
        "allocate",
        "write",
        "synced_write",
        "sync_directory",
        "replace",
    )
    for name in operations:
        for nth in range(1, 5):
            inner = wreck(closed=True)
            faulty = FaultyStorage(inner)
            log = walkit.open(
                storage=faulty, options=tiny(segment_bytes=64 * 1024, frame_bytes_max=32 * 1024)
            )
            fault = faulty.fail(name, nth=nth, times=1)
            acked = 8
            try:
                for lsn in range(9, 14):
                    acked = log.append(value_of(lsn)).last_lsn
            except walkit.WalkitError:
                pass
            image = inner.crash(keep="random", seed=nth)
            faulty.clear()  # of a fault that the upkeep's thread has not met yet: the image has nothing of it
            log.close()
            with opened(image) as log:
                assert values(log.read())[:acked] == [value_of(n) for n in range(1, acked + 1)]
            hits += fault.hits
    assert hits > 8


def torn(image: CrashingStorage, kept: int) -> CrashingStorage:
    """Tear the last frame after so many of its bytes: the rest of the reserved space is zeros, as a crash leaves it."""
    offset, _ = frames_of(image, segment_name(4))[1]
    size = len(read(image, segment_name(4)))
    patch(image, segment_name(4), offset + kept, bytes(size - offset - kept))
    return image


def test_records_appended_behind_a_torn_tail_are_read_next_time() -> None:
    """Tear the tail, reopen, append five, reopen: all five are there, where Kevo writes them behind the garbage."""
    image = torn(killed(), 200)
    with opened(image) as log:
        for i in range(5):
            log.append(b"new %d" % i)
    assert values(reopened(image, OPTIONS))[-5:] == [b"new %d" % i for i in range(5)]


def test_three_bytes_torn_off_the_end_cost_one_record() -> None:
    """Tear three bytes off the last frame's body: all records but that one are there, where Kevo loses every one."""
    _, header = frames_of(killed(), segment_name(4))[1]
    image = torn(killed(), 96 + header.body_stored_bytes - 3)
    assert lsns(reopened(image, OPTIONS)) == [1, 2, 3, 4, 5, 6, 7]


def test_a_file_that_is_three_bytes_shorter_is_refused_and_salvaged() -> None:
    """Cut the file itself, which no crash does: refused by name; salvage keeps all records but the last."""
    image = killed()
    offset, header = frames_of(image, segment_name(4))[1]
    shorten(image, segment_name(4), offset + 96 + header.body_stored_bytes - 3)
    with pytest.raises(SegmentMissingError, match="cut short"):
        opened(image)
    with opened(image, "salvage") as log:
        assert lsns(log.read()) == [1, 2, 3, 4, 5, 6, 7]


def test_4024_segment_numbers_do_not_restart_when_every_segment_is_gone() -> None:
    """Trim everything and restart: the next segment has a number, and the next record an LSN, that none had before."""
    image = wreck(closed=True)
    with opened(image) as log:
        log.trim(8)
    assert not load_manifest(image).segments
    with opened(image) as log:
        assert log.append(b"x").first_lsn == 9
        assert min(s.number for s in log.parts.segments.open_segments) > 4


def test_4137_a_removed_segment_that_comes_back_is_not_read_again() -> None:
    """Undo the removal of trimmed files, as an unlink that was not synced: their records stay gone, the files go."""
    image = wreck(closed=True)
    before = image.process_kill()
    with opened(image) as log:
        log.trim(4)
    for number in (1, 2):
        file = image.open(segment_name(number), "create")
        file.write(0, [read(before, segment_name(number))], sync=True)
        file.close()
    with opened(image) as log:
        assert lsns(log.read()) == [5, 6, 7, 8]
    assert segment_name(1) not in image.names() and segment_name(2) not in image.names()


def test_reading_a_damaged_log_repairs_nothing() -> None:
    """Scan, verify, read and dry-run a damaged log: not a byte of it is another than before."""
    image = killed()
    in_frame(4, 1, 300)(image)
    flip(image, segment_name(2), 50)
    before = contents(image)
    walkit.scan(image)
    walkit.verify(image)
    walkit.repair(image, policy="salvage", dry_run=True)
    with pytest.raises(CorruptionError), walkit.open(None, mode="r", storage=image) as reader:
        list(reader.read())
    assert contents(image) == before
