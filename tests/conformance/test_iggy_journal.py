"""What Iggy's metadata journal tests (PR #2916 and after), and what its users found: each with the test that holds it.

The scenarios are those of its journal, its superblock, and its recovery with snapshot and checkpoint, and the public
issues about them. `WHERE` is the table, in words; test_tables walks it. Its journal is a Store with `journal_slots`,
its superblock the manifest with the durable slot. What has no meaning here:

- A corrupt header before more than 64 MiB: how much may be cut is not a question of size here. Promises decide, and
  what is cut is kept in lost+found.
- A buffer longer than its header says: callers give records, and the log makes frames of them.
- `truncate_from`: a suffix cannot be taken back. LSNs that were acknowledged are never given again, and what recovery
  cuts was not.
- Unsealed entries: there is no frame without a checksum.
- A second decoder: there is one. A dropped write future: writes are calls.
- The client table: a store has no sessions.
- Pairing over bytes or over re-encoded state: a snapshot's checksum is over its bytes, in its own header.
- The entry at the commit point stays: that is for a view change to decide. One writer has none.
- A dropped driver of acknowledgements: the leader of a frame releases all its callers, or the log has failed.
- A transferred snapshot is installed: replicas do not take snapshots yet; a gap is an error.
"""

from __future__ import annotations

import threading

import pytest

import walkit
from tests.state.test_journal import files_of, journalled
from tests.stores import SMALL, copy, memory_store, run_threads
from walkit.config import StoreOptions
from walkit.errors import HistoryTrimmedError, JournalFullError, LogPoisonedError, SnapshotError
from walkit.models import CrashingStorage, FaultyStorage
from walkit.segments.manifest_store import load_manifest
from walkit.state.snapshot import snapshot_lsns, snapshot_name
from walkit.store import Store

HERE = "conformance/test_iggy_journal"
JOURNAL = "state/test_journal"

WHERE: dict[str, tuple[str, ...]] = {
    # -- the journal
    "open an empty log": (f"{HERE}::test_an_empty_journal",),
    "two sizes, and an absent record": (f"{HERE}::test_records_of_two_sizes_and_one_that_is_not_there",),
    "reopening rebuilds the index": (f"{JOURNAL}::test_reopening_finds_what_was_not_saved",),
    "reopening restores the write cursor": (f"{HERE}::test_the_next_append_lands_behind_what_was_recovered",),
    "the last entry's header is flipped": (
        "log/test_recovery::test_a_flip_in_the_last_frame_is_a_torn_tail_only_while_nothing_promises_it",
    ),
    "cut short": ("log/test_recovery::test_a_cut_at_every_byte_of_the_tail_recovers_the_exact_prefix",),
    "junk at the tail, and the cut is durable": (
        "log/test_crash::test_recovery_twice_is_the_same_as_once_and_so_is_a_crash_within_it",
    ),
    "damage with intact entries behind it": (
        "log/test_recovery::test_a_flip_below_a_promise_is_corruption_of_acknowledged_data",
    ),
    "from LSN N, sorted, with gaps": (f"{HERE}::test_reading_from_an_lsn_is_sorted_and_ends_at_the_head",),
    "the one before": (f"{HERE}::test_the_record_before",),
    "a saved resident is overwritten": (f"{JOURNAL}::test_records_are_looked_up_and_slots_taken_again",),
    "an unsaved one is not, and no byte is written": (
        f"{JOURNAL}::test_a_full_journal_refuses_every_way_in_before_a_byte_is_written",
        f"{HERE}::test_after_a_refusal_the_log_opens_clean",
    ),
    "a drain shrinks the log, live entries stay": (f"{HERE}::test_a_checkpoint_shrinks_the_log",),
    "#3692 two drains at once": (f"{HERE}::test_two_checkpoints_at_once",),
    "a poisoned journal": (
        f"{JOURNAL}::test_a_poisoned_log_says_so_and_not_that_it_is_full",
        "log/test_poison::test_a_failed_write_tells_everybody_and_reopening_is_right",
    ),
    "it still answers look-ups": (f"{HERE}::test_a_poisoned_journal_answers_look_ups",),
    "a whole log opens clean": (
        "log/test_recovery::test_a_clean_opening_reads_no_frame_and_the_report_shows_its_phases",
    ),
    "header, chain or body wrong at the tail": (
        "format/test_walk::test_every_bit_flip_ends_the_walk_there",
        "format/test_walk::test_misplaced_frames",
    ),
    "waiters are woken, and one that goes wedges nobody": (
        f"{JOURNAL}::test_appends_wait_for_the_checkpoint_that_makes_room",
        f"{JOURNAL}::test_closing_lets_go_of_who_waits_for_room",
    ),
    # -- the superblock
    "slots alternate, the newest wins": ("format/test_durable::test_slots_alternate",),
    "a corrupt slot beside a valid one": ("format/test_durable::test_every_bit_flip_shows_the_other_slot",),
    "unreadable is not empty, and nothing is written": (
        "log/test_recovery::test_a_damaged_manifest_refuses_and_a_missing_one_is_said",
    ),
    "a newer version": (
        "conformance/test_iggy_quiver_recovery::test_a_header_of_another_version_is_refused_by_version",
        "state/test_snapshot::test_newer_formats_are_told_by_version",
    ),
    "overlapping writes": ("log/test_manifest_store::test_rotation_and_compaction_never_share_a_number",),
    "a payload over the limit": ("format/test_manifest::test_a_manifest_over_the_limit",),
    "a file over the limit is not read": ("format/test_manifest::test_absurd_lengths_allocate_nothing",),
    "offsets are pinned": ("format/test_golden::test_golden_manifest_and_cell",),
    # -- recovery, snapshot, checkpoint
    "an empty folder": (f"{HERE}::test_an_empty_journal",),
    "a snapshot alone": (f"{HERE}::test_a_snapshot_alone",),
    "a journal alone": (f"{HERE}::test_a_journal_alone",),
    "a snapshot and what is above it": ("test_store_recovery::test_snapshot_and_tail_equal_the_full_replay",),
    "a gap": (
        "format/test_walk::test_lost_repeated_and_swapped_frames",
        "conformance/test_iggy_quiver_recovery::test_a_gap_stops_recovery_and_is_named",
    ),
    "a broken chain never replays clean": (
        "format/test_walk::test_misplaced_frames",
        "state/test_replay::test_damage_is_told",
    ),
    "only what is committed is applied": (
        "test_store_recovery::test_a_poisoned_store_shows_what_was_acknowledged",
        "test_store_recovery::test_every_acknowledged_put_survives_a_power_cut",
    ),
    "a snapshot comes back": ("state/test_snapshot::test_a_snapshot_comes_back",),
    "the superblock is damaged": (
        "log/test_recovery::test_a_damaged_manifest_refuses_and_a_missing_one_is_said",
    ),
    "a log without a superblock is no new one": (
        "log/test_open::test_segments_without_a_manifest_are_corruption_not_a_new_log",
    ),
    "a foreign identity": (
        "state/test_snapshot::test_foreign_snapshots_are_told_apart",
        "test_store_recovery::test_a_snapshot_of_another_log_is_passed_over",
    ),
    "the pairing matrix": (f"{HERE}::test_the_pairing_of_checkpoint_and_snapshot",),
    "the layout is pinned, equal state is equal bytes": (
        "state/test_snapshot::test_a_header_with_false_facts_is_damage",
        "state/test_snapshot::test_bytes_depend_on_the_state_alone",
    ),
    "two appends cross the boundary of a checkpoint": (f"{HERE}::test_appends_that_cross_a_checkpoint",),
    "a failed append gives its number back": (
        f"{JOURNAL}::test_what_was_refused_for_another_reason_leaves_its_slots",
    ),
    # -- issues
    "#4009 fewer slots": (f"{JOURNAL}::test_fewer_slots_than_live_records_are_refused",),
    "#3692 a failed checkpoint drops the append": (f"{JOURNAL}::test_a_failed_checkpoint_drops_no_append",),
    "#2916 the watermark moves before the rewrite": (
        "state/test_checkpoint::test_a_power_cut_between_any_two_operations",
    ),
    "#2916 stages of a snapshot": ("state/test_snapshot_stages::test_each_stage_fails_by_its_name",),
    "#3767 a snapshot blocks the appends": (f"{HERE}::test_appends_go_on_while_a_snapshot_is_written",),
}


def test_an_empty_journal() -> None:
    """Open, and open again, where nothing was ever appended: no record, no state, all slots free."""
    storage = CrashingStorage()
    for _ in range(2):
        with journalled(storage, 8) as store:
            assert store.journal is not None
            assert (store.log.acked_lsn, len(store), store.remaining_capacity) == (0, 0, 8)
            assert store.journal.lookup(0) is None and store.journal.lookup(1) is None


def test_records_of_two_sizes_and_one_that_is_not_there() -> None:
    """Append a small and a large record: each is read back by its LSN alone; the next LSN is nothing."""
    with journalled(CrashingStorage(), 8) as store:
        store.put(b"small", b"v")
        store.put(b"large", b"w" * 9000)
        journal = store.journal
        assert journal is not None
        assert [r.value for n in (1, 2) if (r := journal.record(n))] == [b"v", b"w" * 9000]
        assert journal.record(3) is None


def test_the_next_append_lands_behind_what_was_recovered() -> None:
    """Open after a kill and append: LSN and position go on, and nothing of before is overwritten."""
    storage = CrashingStorage()
    with journalled(storage, 8) as store:
        before = [store.put(b"%d" % i, b"v" * 500) for i in range(3)]
        image = storage.process_kill()
    with journalled(image, 8) as store:
        result = store.put(b"next", b"v")
        assert (result.first_lsn, result.position >= before[-1].next_position) == (4, True)
        assert [record.key for record in store.log.read()] == [b"0", b"1", b"2", b"next"]


def test_reading_from_an_lsn_is_sorted_and_ends_at_the_head() -> None:
    """Read from an LSN with numbers missing below it after a compaction: in order; beyond the head nothing."""
    with memory_store() as store:
        for i in range(60):
            store.put(b"%d" % (i % 3), b"v" * 3000)
        store.compact()
        lsns = [record.lsn for record in store.log.read()]
        assert lsns == sorted(lsns) and len(lsns) < 60 and lsns[-1] == 60
        assert [record.lsn for record in store.log.read(59)] == [59, 60]
        assert list(store.log.read(61)) == []


def test_the_record_before() -> None:
    """Step back from the head by LSN: each record has one before it, the first has none."""
    with journalled(CrashingStorage(), 8) as store:
        store.put_many([b"a", b"b", b"c"], [b"v"] * 3)
        journal = store.journal
        assert journal is not None
        lsn, keys = 3, []
        while (record := journal.record(lsn)) is not None:
            keys.append(record.key)
            lsn -= 1
        assert (keys, lsn) == ([b"c", b"b", b"a"], 0)


def test_after_a_refusal_the_log_opens_clean() -> None:
    """Be refused by a full journal, crash, open: no trace of the record, and a checkpoint makes room."""
    storage = CrashingStorage()
    with journalled(storage, 2) as store:
        store.put_many([b"a", b"b"], [b"v"] * 2)
        with pytest.raises(JournalFullError):
            store.put(b"c", b"v")
        images = [storage.crash(), storage.process_kill()]
    for image in images:
        with journalled(image, 2) as again:
            assert sorted(again) == [b"a", b"b"] and not again.recovery.cuts
            again.checkpoint()
            assert again.put(b"c", b"v").last_lsn == 3


def test_a_checkpoint_shrinks_the_log() -> None:
    """Checkpoint in mid-stream: the files are smaller, what came later is readable now and after opening."""
    storage = CrashingStorage()
    with journalled(storage, 100) as store:
        for i in range(80):
            store.put(b"%d" % (i % 4), b"v" * 4000)
        before = sum(map(len, files_of(storage).values()))
        report = store.checkpoint()
        assert report.bytes_trimmed > 0
        store.put(b"live", b"v")
        items = store.items()
        store.log.sync()
        assert sum(map(len, files_of(storage).values())) < before / 2
        assert [record.lsn for record in store.log.read()] == [81]
    with journalled(storage, 100) as store:
        assert store.items() == items and [record.lsn for record in store.log.read()] == [81]


def test_two_checkpoints_at_once() -> None:
    """Hold one checkpoint in its snapshot, begin another: they share no file, and both end well."""
    storage = FaultyStorage(CrashingStorage())
    with journalled(storage, 16) as store:
        store.put(b"a", b"1")
        hang = storage.hang("sync", "snapshot.new")
        reports: list[object] = []
        threads = [threading.Thread(target=lambda: reports.append(store.checkpoint())) for _ in range(2)]
        threads[0].start()
        assert hang.entered.wait(30)
        threads[1].start()
        store.put(b"b", b"2")
        hang.release()
        for thread in threads:
            thread.join(30)
        assert len(reports) == 2 and store.remaining_capacity == 16
        assert store.put(b"c", b"3").last_lsn == 3
        assert snapshot_lsns(storage)[-1] == 2


def test_a_poisoned_journal_answers_look_ups() -> None:
    """Fail a write: appends are refused with the cause, records that were acknowledged are found and read."""
    storage = FaultyStorage(CrashingStorage())
    store = journalled(storage, 8)
    store.put(b"k", b"v")
    storage.fail("synced_write", "*.segment", times=None)
    for error in (walkit.CommitFailedError, LogPoisonedError):
        with pytest.raises(error):
            store.put(b"k", b"w")
    journal = store.journal
    assert journal is not None
    assert (record := journal.record(1)) is not None and record.value == b"v"
    assert journal.lookup(2) is None
    store.close()


def test_a_snapshot_alone() -> None:
    """Save everything, drop the whole log, open: the state is there, and its LSN goes on."""
    storage = CrashingStorage()
    with journalled(storage, 8) as store:
        store.put_many([b"a", b"b"], [b"1", b"2"])
        store.checkpoint()
    with journalled(storage, 8) as store:
        assert list(store.log.read()) == [] and store.items() == [(b"a", b"1"), (b"b", b"2")]
        assert store.remaining_capacity == 8 and store.put(b"c", b"3").last_lsn == 3


def test_a_journal_alone() -> None:
    """Open without any snapshot: the state is made of the records alone, and none of their slots is free."""
    storage = CrashingStorage()
    with journalled(storage, 8) as store:
        store.put_many([b"a", b"b", b"a"], [b"1", b"2", b"3"])
    with journalled(storage, 8) as store:
        assert not snapshot_lsns(storage)
        assert (store.items(), store.remaining_capacity) == ([(b"a", b"3"), (b"b", b"2")], 5)


PAIRS = ("none", "exact", "lagging", "ahead, the log is whole", "ahead, the log was trimmed", "another one")


@pytest.mark.parametrize("pair", PAIRS)
def test_the_pairing_of_checkpoint_and_snapshot(pair: str) -> None:
    """What the manifest says of a checkpoint against what stands: a state that is right, or a refusal."""
    storage = CrashingStorage()
    with memory_store(storage) as store:
        store.put_many([b"a", b"b"], [b"1", b"2"])
        if pair == "lagging":  # a crash between the snapshot and the manifest
            store.snapshot()
        elif pair != "none":
            store.checkpoint(trim=pair != "ahead, the log is whole")
        store.put(b"c", b"3")
        items = store.items()
    assert load_manifest(storage).checkpoint_lsn == (0 if pair in ("none", "lagging") else 2)
    if pair.startswith("ahead"):
        storage.remove(snapshot_name(2))
    if pair == "another one":
        other = CrashingStorage()
        with memory_store(other) as store:
            store.put_many([b"a", b"b"], [b"x", b"y"])
            store.checkpoint()
        copy(other, storage, snapshot_name(2))
        with pytest.raises(SnapshotError, match="another log") as foreign:
            memory_store(storage)
        assert foreign.value.stage == "identity"
        return
    if pair == "ahead, the log was trimmed":
        with pytest.raises(HistoryTrimmedError):
            memory_store(storage)
        return
    with memory_store(storage) as store:
        assert store.items() == items


def test_appends_that_cross_a_checkpoint() -> None:
    """1,024 slots filled up to 960, a margin of 64: writers that come at once lose nothing, also in a crash."""
    storage = CrashingStorage()
    options = StoreOptions(journal_slots=1024, checkpoint_margin=64)
    with Store.open(storage=storage, options=SMALL, store_options=options) as store:
        store.put_many([b"old-%d" % i for i in range(959)], [b"v"] * 959)
        results: list[int] = []
        run_threads(4, lambda n: results.append(store.put(b"new-%d" % n, b"w").last_lsn))
        assert sorted(results) == [960, 961, 962, 963]
        items = store.items()
        for image in (storage.crash(), storage.process_kill()):
            with Store.open(storage=image, options=SMALL, store_options=options) as again:
                assert again.items() == items and len(items) == 963


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
