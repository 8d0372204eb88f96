"""Kevo's tests of its WAL, replication and compaction, and their gaps: each with the test for it here.

`WHERE` is the table, in words; test_tables walks it, so that it cannot name a test that is not there. The scenarios
that needed a test of their own follow it, on the cores without I/O, and over gRPC where two processes would talk.

Without a meaning here, and why: the choice of tables of a level, their overlaps and the manager of it (the log is not
cut into levels); the topology that a client learns, and helpers of roles (a client names its primary); a switch of the
applier to writing and back (a replica has no append); merge operators (a record is a put, a deletion or an event);
fragments of a record (a record never leaves its frame); rotation by a call (a segment ends where the next frame does
not fit).
"""

from __future__ import annotations

import pytest

from tests.replication.frame_history import batches_of, whole
from walkit.replication.protocol.codecs import pack, unpack

HERE = "conformance/test_kevo_replication"

WHERE: dict[str, tuple[str, ...]] = {
    # -- the WAL
    "write and replay": ("log/test_append::test_what_goes_in_comes_out",),
    "delete, then put again": ("test_store_recovery::test_the_state_is_that_of_a_dict",),
    "a large single record, and one that needed fragments": (
        "log/test_append::test_the_limit_of_a_record_is_exact",
    ),
    "a batch": ("log/test_transaction::test_its_operations_are_one_frame_with_one_result",),
    "recovery over two files": ("test_store_recovery::test_a_killed_process_loses_nothing_acknowledged",),
    "three modes of syncing": (
        "log/test_durability::test_sync_means_durable_when_acknowledged",
        "log/test_durability::test_the_other_levels_acknowledge_before_they_sync",
        "log/test_durability::test_the_timer_syncs_an_idle_tail",
    ),
    "errors after close, and a missing file": (
        "commit/test_concurrency::test_after_close_everything_is_refused_and_the_marks_stay",
        "read/test_readers::test_a_closed_reader_refuses_and_a_missing_log_is_named",
    ),
    "appending with a given sequence: only what follows, and only to a replica": (
        "replication/test_imported::test_imported_frames_are_the_primarys_frame_by_frame",
        "replication/test_cores::test_intact_frames_of_another_history_fail_for_good",
    ),
    "observers: single, batch, sync, several, unregistered": (
        "log/test_observe::test_observers_see_the_frames_as_in_the_files",
        "commit/test_delivery::test_observers_that_come_and_go_at_once_are_not_lost",
    ),
    "numbers beyond 32 bits": (
        "conformance/test_automq_commit::test_positions_and_lsns_cross_what_32_bits_hold",
    ),
    "entries from a sequence: start, middle, end, beyond, over files, closed, empty, missing": (
        "log/test_append::test_bounds_of_reading_are_inclusive",
        "replication/test_source::test_ends_within_a_compacted_segment_are_gaps",
    ),
    "retention by count, age, sequence, of one file, combined": (
        "log/test_retention::test_every_limit_alone_and_together",
        "log/test_retention::test_plan_below_the_slowest_claim",
        "log/test_retention::test_the_newest_segment_with_a_record_stays",
    ),
    "retention of a closed log": ("log/test_retention::test_by_call_with_progress_and_report",),
    "recovery of the state: simple, over several tables, with batches": (
        "test_store_recovery::test_the_state_is_that_of_a_dict",
        "test_store::test_transactions_are_seen_whole",
    ),
    "rotation under writers, a hundred times": (
        "commit/test_concurrency::test_hundreds_of_segments_under_load",
        "replication/test_kill::test_killed_at_random_moments_the_replica_is_a_prefix_and_ends_equal",
    ),
    "newer versions win over a flush, and tombstones survive it": (
        "test_store_recovery::test_the_state_is_that_of_a_dict",
    ),
    # -- not tested there
    "a torn tail": (
        "recovery/test_every_bit::test_zeros_from_every_byte_of_the_frames_on_keep_exactly_the_frames_before_them",
    ),
    "a flipped byte in the middle": (
        "recovery/test_recovery::test_a_flip_below_a_promise_is_corruption_of_acknowledged_data",
    ),
    "a torn batch": ("log/test_transaction::test_every_transaction_comes_back_whole",),
    "a crash": ("crashlab/test_explore::test_no_state_breaks_a_rule",),
    "appending after a torn tail": ("crashlab/test_explore::test_no_state_breaks_a_rule",),
    "the sequence over rotation and reopening": ("log/test_trim::test_lsns_go_on_after_trim_and_reopening",),
    "replication over rotation": (
        "replication/test_kill::test_killed_at_random_moments_the_replica_is_a_prefix_and_ends_equal",
    ),
    "a batch with a member that is too large leaves nothing": (
        "log/test_transaction::test_over_the_limit_is_refused_whole",
    ),
    "only durable frames are sent": ("replication/test_grpc::test_only_durable_frames_leave",),
    "a key of a batch and a later put of the same key": (
        "test_store_recovery::test_the_state_is_that_of_a_dict",
    ),
    # -- replication
    "the batcher: size limit, boundaries of transactions, reset": (
        f"{HERE}::test_batches_are_whole_frames_up_to_their_size_and_none_is_left_out",
    ),
    "the applier: in order, gap, error, reset": (
        "replication/test_cores::test_a_gap_is_asked_for_once_and_again_only_after_a_while",
        "replication/test_failures::test_any_error_of_the_replicas_thread_is_a_state",
    ),
    "serialisation of entries and messages, and the type of the error": (
        "replication/test_messages::test_every_flipped_bit_and_every_cut_is_seen",
        "replication/test_failures::test_content_that_cannot_be_ends_in_a_state_with_its_error",
    ),
    "codecs: round trip, invalid data, levels": (
        f"{HERE}::test_codecs_give_back_what_they_took_or_nothing",
        "replication/test_grpc::test_the_codec_of_the_way_changes_nothing_that_is_stored",
    ),
    "heartbeats: sent, answered, missed": (
        "replication/test_cores::test_silence_is_filled_by_heartbeats_and_ends_both_sides",
    ),
    "TLS and tokens": (
        "replication/test_authentication::test_a_token_has_rights",
        "replication/test_chaos::test_a_cluster_under_faults_loses_nothing_and_ends_equal",
    ),
    "a primary is made, and its sessions are counted": (
        "replication/test_status::test_a_lag_is_known_only_with_contact",
        "replication/test_identity::test_client_with_token_and_all_that_is_shown_moves_no_claim",
    ),
    "sessions come and go, and an acknowledgement is its own session's": (
        "replication/test_identity::test_client_with_token_and_all_that_is_shown_moves_no_claim",
    ),
    "a replica takes ten entries": ("replication/test_states::test_each_edge_is_taken_and_emits_its_event",),
    "error and recovery": (
        "replication/test_grpc::test_both_sides_restart_and_go_on_where_the_replica_stands",
    ),
    "states, their names and how long they last": (
        "replication/test_states::test_each_edge_is_taken_and_emits_its_event",
        "replication/test_status::test_silence_and_missing_frames_are_told_with_their_time",
    ),
    "what was applied is known after a restart": (
        "replication/test_grpc::test_both_sides_restart_and_go_on_where_the_replica_stands",
    ),
    "the status of a manager": ("replication/test_status::test_a_lag_is_known_only_with_contact",),
    "the applier's kinds: put, delete, events": (
        "replication/test_grpc::test_a_replica_follows_and_ends_equal",
    ),
    # -- compaction
    "precedence in a merge": (
        "compaction/test_compaction::test_the_state_of_a_compacted_log_is_the_state_before",
    ),
    "tombstones": (
        "compaction/test_compaction::test_tombstones_stay_until_every_snapshot_is_newer",
        "compaction/test_compaction::test_a_tombstone_stays_while_what_it_suppresses_does",
    ),
}


# -- the WAL


# -- replication, on the cores


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


# -- replication, over gRPC
