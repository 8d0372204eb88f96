"""Iggy's tests of repair, state transfer and a real cluster: each scenario in words, with the test for it here.

Without a meaning here, and why: elections, view changes and their messages, quorums and who may vote (one primary
writes, and a promotion is asked for); the client table and its sessions (a caller that was not answered has an unknown
outcome, and asks the log); several shards of one log; a commit point that runs after what is prepared (only durable
frames leave, and an acknowledgement promises what it says); a number of prepares for each round of a repair (a session
has a window in bytes).
"""

from __future__ import annotations

KILLED = "replication/test_kill::test_killed_at_random_moments_the_replica_is_a_prefix_and_ends_equal"
BOOTSTRAP, HEAL, CORES = (
    "replication/test_bootstrap",
    "replication/healing/test_heal",
    "replication/test_cores",
)

WHERE: dict[str, tuple[str, ...]] = {
    # -- repair and state transfer
    "a missing range is asked for once, and again only after a while": (
        f"{CORES}::test_a_gap_is_asked_for_once_and_again_only_after_a_while",
    ),
    "repaired frames come in order, and existing frames are not taken twice": (
        f"{CORES}::test_a_batch_that_overlaps_is_taken_from_where_the_log_ends",
    ),
    "a repair that stalls is given up and tried again": (
        f"{CORES}::test_silence_is_filled_by_heartbeats_and_ends_both_sides",
    ),
    "a range whose front is gone is named with the oldest that is left": (
        f"{CORES}::test_a_trimmed_range_is_a_typed_gap",
        f"{HEAL}::test_ranges_that_a_peer_lacks_are_reported_and_left",
    ),
    "such a range becomes a transfer of the state": (f"{BOOTSTRAP}::test_a_replica_that_is_too_far_behind",),
    "the transfer comes in chunks that were asked for, in order": (
        f"{BOOTSTRAP}::test_a_transfer_asks_in_order_and_takes_what_it_asked_for",
        f"{BOOTSTRAP}::test_a_publisher_sends_only_the_bytes_of_its_plan",
    ),
    "a transfer replaces the log in one step, whatever is killed": (
        f"{BOOTSTRAP}::test_between_the_renames_and_the_manifest_the_log_is_as_before",
        f"{BOOTSTRAP}::test_a_killed_replica_resumes_its_bootstrap",
    ),
    "a transfer that ends before the log does not take its place": (
        "replication/test_bootstrap_fuzz::test_thousands_of_bootstrap_messages_leave_the_replica_as_it_was",
    ),
    "a damaged snapshot is not installed": (
        f"{BOOTSTRAP}::test_a_damaged_snapshot_is_not_given_to_replicas",
    ),
    "a suffix that the primary does not have goes first, and only when asked": (
        "replication/test_rewind::test_the_old_primary_follows_the_new_one_after_a_rewind",
        "replication/test_rewind::test_without_being_asked_nothing_is_rewound",
    ),
    # -- a real cluster
    "a replica that gets SIGKILL has byte for byte what it acknowledged": (KILLED,),
    "a primary that gets SIGKILL during appends": (KILLED,),
    "all processes get SIGKILL at once: what was published is there": (KILLED,),
    "a consumer's saved position survives its SIGKILL": (
        "replication/test_chaos::test_a_cluster_under_faults_loses_nothing_and_ends_equal",
    ),
    "torn tails of segments": (
        "recovery/test_every_bit::test_zeros_from_every_byte_of_the_frames_on_keep_exactly_the_frames_before_them",
    ),
    "torn and damaged indexes": ("segments/test_sidecar::test_an_absent_or_damaged_index_is_rebuilt",),
    "a flip inside a log refuses, and a peer gives back the frames": (
        "recovery/test_every_bit::test_a_flip_of_sampled_bits_is_reported",
        f"{HEAL}::test_a_damaged_segment_gets_the_frames_of_a_peer",
    ),
    "or the replica starts again in an empty folder": (
        f"{BOOTSTRAP}::test_an_empty_replica_of_a_checkpointed_or_compacted_store",
    ),
    "a damaged slot of the superblock": (
        "recovery/test_every_bit::test_a_flip_in_the_durable_slots_is_harmless",
    ),
    # -- restarts around checkpoints
    "a restart exactly at a checkpoint replays nothing, and after it only the tail": (
        "replication/test_replica_checkpoint::test_a_replica_opens_with_its_snapshot_and_replays_only_the_tail",
    ),
    "a restart after several generations of checkpoints": (
        "replication/test_replica_checkpoint::test_checkpoints_are_taken_by_themselves",
    ),
    "a snapshot and the log after it, without a peer": (
        "test_store_recovery::test_the_state_is_that_of_a_dict",
    ),
    "a transfer to one replica twice": (
        f"{BOOTSTRAP}::test_a_snapshot_of_the_log_that_was_replaced_goes_with_it",
        KILLED,
    ),
    "the peer of a transfer dies meanwhile": (
        f"{BOOTSTRAP}::test_a_primary_that_moved_on_sends_what_changed",
        KILLED,
    ),
    "a replica that was away asks for frames, and gets a transfer": (
        f"{BOOTSTRAP}::test_a_replica_that_is_too_far_behind",
    ),
    "a new replica joins late": (f"{BOOTSTRAP}::test_an_empty_replica_of_a_checkpointed_or_compacted_store",),
    # -- positions that are saved have an epoch, so that another history is noticed
    "a cursor past another history": (
        "replication/test_rewind::test_readers_past_the_common_point_forbid_a_rewind",
    ),
    "a claim past another history": (
        "replication/test_rewind::test_readers_past_the_common_point_forbid_a_rewind",
    ),
}
