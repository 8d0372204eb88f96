"""The tests of Iggy's metadata journal (PR #2916 and after), and its users' findings: each with the test that holds it.

The scenarios are those of its journal, its superblock, and its recovery with snapshot and checkpoint, and the public
issues about them. `WHERE` is the table, in words; test_tables walks it. Its journal is a Store with `journal_slots`,
its superblock the manifest with the durable slot. Without a meaning here:

- A corrupt header before more than 64 MiB: how much may be cut is not a question of size here. Promises decide, and
  what is cut is kept in lost+found.
- A buffer longer than its header says: callers give records, and the log makes frames of them.
- `truncate_from`: a suffix cannot be taken back. LSNs that were acknowledged are never given again, and what recovery
  cuts was not.
- Unsealed entries: every frame has a checksum.
- A second decoder: there is one. A dropped write future: writes are calls.
- The client table: a store has no sessions.
- Pairing over bytes or over re-encoded state: a snapshot's checksum is over its bytes, in its own header.
- The entry at the commit point stays: that is for a view change to decide. One writer has none.
- A dropped driver of acknowledgements: the leader of a frame releases all its callers, or the log has failed.
- A transferred snapshot is installed: replicas do not take snapshots yet; a gap is an error.
"""

from __future__ import annotations

import threading

from tests.state.test_journal import journalled
from walkit.models import CrashingStorage, FaultyStorage

HERE = "conformance/test_iggy_journal"
JOURNAL = "state/test_journal"

WHERE: dict[str, tuple[str, ...]] = {
    # -- the journal
    "open an empty log": ("recovery/test_tools::test_an_empty_log_is_in_order",),
    "two sizes, and an absent record": (f"{JOURNAL}::test_records_are_looked_up_and_slots_taken_again",),
    "reopening rebuilds the index": (f"{JOURNAL}::test_reopening_finds_what_was_not_saved",),
    "reopening restores the write cursor": (f"{JOURNAL}::test_reopening_finds_what_was_not_saved",),
    "the last entry's header is flipped": (
        "recovery/test_recovery::test_a_flip_in_the_last_frame_is_a_torn_tail_only_while_nothing_promises_it",
    ),
    "cut short": (
        "recovery/test_every_bit::test_zeros_from_every_byte_of_the_frames_on_keep_exactly_the_frames_before_them",
    ),
    "junk at the tail, and the cut is durable": ("crashlab/test_explore::test_no_state_breaks_a_rule",),
    "damage with intact entries after it": (
        "recovery/test_recovery::test_a_flip_below_a_promise_is_corruption_of_acknowledged_data",
    ),
    "from LSN N, sorted, with gaps": ("compaction/test_compaction::test_every_reader_reads_a_compacted_log",),
    "the one before": (f"{JOURNAL}::test_records_are_looked_up_and_slots_taken_again",),
    "a saved resident is overwritten": (f"{JOURNAL}::test_records_are_looked_up_and_slots_taken_again",),
    "an unsaved one is not, and no byte is written": (
        f"{JOURNAL}::test_a_full_journal_refuses_every_way_in_before_a_byte_is_written",
    ),
    "a drain shrinks the log, live entries stay": (
        "state/test_checkpoint::test_a_checkpoint_saves_the_state_and_drops_the_log",
    ),
    "#3692 two drains at once": (
        "state/test_machine_recovery::test_checkpoints_of_one_log_wait_for_each_other_and_closing_waits_for_them",
    ),
    "a poisoned journal": (
        f"{JOURNAL}::test_a_poisoned_log_reports_the_failure_before_a_full_journal",
        "commit/test_poison::test_a_failed_write_fails_all_callers_and_reopening_recovers",
    ),
    "it still answers look-ups": (
        f"{JOURNAL}::test_a_poisoned_log_reports_the_failure_before_a_full_journal",
    ),
    "a whole log opens clean": (
        "recovery/test_recovery::test_a_clean_opening_reads_no_frame_and_the_report_shows_its_phases",
    ),
    "header, chain or body wrong at the tail": (
        "format/test_walk::test_every_bit_flip_ends_the_walk_there",
        "format/test_walk::test_misplaced_frames",
    ),
    "waiters are woken, and one that goes wedges no other": (
        f"{JOURNAL}::test_appends_wait_for_the_checkpoint_that_makes_room",
        f"{JOURNAL}::test_closing_ends_the_wait_for_room",
    ),
    # -- the superblock
    "slots alternate, the newest wins": ("format/test_durable::test_slots_alternate",),
    "a corrupt slot beside a valid one": ("format/test_durable::test_every_bit_flip_shows_the_other_slot",),
    "unreadable is not empty, and nothing is written": (
        "recovery/test_recovery::test_a_damaged_or_missing_manifest_refuses",
    ),
    "a newer version": (
        "conformance/test_iggy_quiver_recovery::test_a_header_of_another_version_is_refused_by_version",
        "state/test_snapshot::test_newer_formats_are_known_by_version",
    ),
    "overlapping writes": ("segments/test_manifest_store::test_a_number_is_given_once",),
    "a payload over the limit": ("format/test_manifest::test_a_manifest_over_the_limit",),
    "a file over the limit is not read": ("format/test_manifest::test_absurd_lengths_allocate_nothing",),
    "offsets are pinned": ("format/test_golden::test_golden_manifest_and_cell",),
    # -- recovery, snapshot, checkpoint
    "an empty folder": ("recovery/test_tools::test_an_empty_log_is_in_order",),
    "a snapshot alone": ("state/test_checkpoint::test_a_checkpoint_saves_the_state_and_drops_the_log",),
    "a journal alone": (f"{JOURNAL}::test_reopening_finds_what_was_not_saved",),
    "a snapshot and later records": ("test_store_recovery::test_the_state_is_that_of_a_dict",),
    "a gap": (
        "format/test_walk::test_lost_repeated_and_swapped_frames",
        "conformance/test_iggy_quiver_recovery::test_a_gap_stops_recovery_and_is_named",
    ),
    "a broken chain never replays clean": (
        "format/test_walk::test_misplaced_frames",
        "state/test_replay::test_damage_ends_the_replay",
    ),
    "only committed entries are applied": (
        "test_store_recovery::test_a_poisoned_store_shows_what_was_acknowledged",
        "crashlab/test_explore::test_no_state_breaks_a_rule",
    ),
    "a snapshot comes back": ("state/test_snapshot::test_a_snapshot_comes_back",),
    "the superblock is damaged": ("recovery/test_recovery::test_a_damaged_or_missing_manifest_refuses",),
    "a log without a superblock is not a new one": (
        "log/test_open::test_segments_without_a_manifest_are_corruption_not_a_new_log",
    ),
    "a foreign identity": (
        "state/test_snapshot::test_foreign_snapshots_are_distinguished",
        "test_store_recovery::test_a_snapshot_of_another_log_is_passed_over",
    ),
    "the pairing matrix": ("test_store_recovery::test_a_log_that_does_not_reach_back_needs_its_snapshot",),
    "the layout is pinned, equal state is equal bytes": (
        "state/test_snapshot::test_a_header_with_false_facts_is_damage",
        "state/test_snapshot::test_bytes_depend_on_the_state_alone",
    ),
    "two appends cross the boundary of a checkpoint": (
        f"{JOURNAL}::test_a_checkpoint_is_forced_before_the_journal_is_full",
        "crashlab/test_explore::test_no_state_breaks_a_rule",
    ),
    "a failed append gives its number back": (
        f"{JOURNAL}::test_what_was_refused_for_another_reason_leaves_its_slots",
    ),
    # -- issues
    "#4009 fewer slots": (f"{JOURNAL}::test_fewer_slots_than_live_records_are_refused",),
    "#3692 a failed checkpoint drops the append": (f"{JOURNAL}::test_a_failed_checkpoint_drops_no_append",),
    "#2916 the watermark moves before the rewrite": ("crashlab/test_explore::test_no_state_breaks_a_rule",),
    "#2916 stages of a snapshot": ("state/test_snapshot_stages::test_each_stage_fails_by_its_name",),
    "#3767 a snapshot blocks the appends": (f"{HERE}::test_appends_go_on_while_a_snapshot_is_written",),
}


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
