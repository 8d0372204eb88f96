"""AutoMQ's tests of delta replay, their gaps and its risks: each with the test for it here.

The scenarios are those of its delta of confirmed data, of its sessions and their long poll; the hazards were found in
its source. `WHERE` is the table, in words; test_tables walks it, so that it cannot name a test that is not there.

Without a meaning here, and why: a commit that a poll asks for, and snapshots of partitions that wait for a replay (the
reader has one state, and announces an LSN with it); link records into another node's channel (left out, by the issue).
"""

from __future__ import annotations

WHERE: dict[str, tuple[str, ...]] = {
    # -- the delta of confirmed data
    "handle, version 1: an end, and no delta": (
        "replication/delta/test_poll::PollMachine",
        "replication/delta/test_poll::test_older_reader_gets_no_frames",
    ),
    "handle, version 2: an end first, then 64 rounds of exactly three records": (
        "replication/delta/test_poll::PollMachine",
        "replication/delta/test_grpc::test_sixty_four_rounds_of_deltas_and_each_repeat_is_byte_for_byte",
    ),
    "buffer exceeded, and synchronised again by the next answer": (
        "replication/delta/test_poll::PollMachine",
        "replication/delta/test_poll::test_a_frame_above_the_bound_overflows_by_itself",
    ),
    "one record above the bound": (
        "replication/delta/test_poll::test_a_frame_above_the_bound_overflows_by_itself",
    ),
    # -- the long poll
    "an idle poll ends with nothing new": (
        "replication/delta/test_poll::test_an_idle_poll_waits_and_then_says_that_nothing_is_new",
    ),
    "a request that is to be answered at once": (
        "replication/delta/test_poll::test_a_poll_that_wants_no_waiting_is_answered_at_once",
    ),
    "an opening or a closing ends the waiting": (
        "replication/delta/test_poll::test_the_closing_of_the_log_ends_the_waiting",
        "replication/delta/test_poll::test_the_closing_of_the_log_ends_the_waiting",
    ),
    "an append ends the waiting: an end first, a delta next": (
        "replication/delta/test_poll::test_older_reader_gets_no_frames",
    ),
    "frames that could not be taken: an answer all the same": ("replication/delta/test_poll::PollMachine",),
    "retries at once, and while an answer is made, share it": (
        "replication/delta/test_poll::PollMachine",
        "replication/delta/test_poll::test_one_poll_too_many_replaces_the_oldest",
    ),
    "a timeout loses nothing that is under way": ("replication/delta/test_poll::PollMachine",),
    "a stale notice ends the waiting, too": (
        "replication/delta/test_poll::test_a_repeated_notice_ends_a_wait",
    ),
    "many appends are one notice": (
        "replication/delta/test_poll::test_appends_in_one_interval_are_one_answer",
    ),
    "a session expires": ("replication/delta/test_poll::test_a_session_expires_and_keeps_nothing",),
    # -- peers of other versions
    "a new reader of an old server": (
        "replication/delta/test_poll::test_older_reader_gets_no_frames",
        "replication/delta/test_replay::test_a_load_that_is_full_leaves_the_rest_to_the_next",
    ),
    "an old reader of a new server": (
        "replication/delta/test_poll::test_older_reader_gets_no_frames",
        "replication/delta/test_reader::test_an_older_reader_reads_the_log_up_to_the_answered_end",
    ),
    # -- never tested there
    "an answer that was lost, or came twice": (
        "replication/delta/test_poll::PollMachine",
        "replication/delta/test_replay::test_one_request_is_under_way_and_a_lost_answer_is_asked_for_again",
        "replication/delta/test_feed::test_every_changed_bit_of_a_delta_is_noticed",
        "replication/test_chaos::test_a_cluster_under_faults_loses_nothing_and_ends_equal",
    ),
    "an answer that comes late": (
        "replication/delta/test_malicious_primary::test_a_late_answer_is_not_a_cut_history",
    ),
    "a number that does not match": (
        "replication/delta/test_poll::test_a_request_that_does_not_fit_opens_a_new_session",
        "replication/delta/test_poll::test_a_mismatch_while_another_poll_waits_refuses_that_one",
    ),
    "close": (
        "replication/delta/test_poll::test_a_closed_session_keeps_and_answers_nothing_new",
        "replication/delta/test_feed::test_there_is_an_observer_only_while_there_is_a_session",
    ),
    "the replayer": (
        "replication/delta/test_replay::ReplayMachine",
        "replication/test_chaos::test_a_cluster_under_faults_loses_nothing_and_ends_equal",
    ),
    "the cache of snapshot reads: no answer has a gap in it (here the log is read)": (
        "replication/delta/test_reader::test_records_of_a_key_are_the_logs",
    ),
    # -- hazards
    "a mismatch leaves its listener registered": (
        "replication/delta/test_poll::test_a_mismatch_leaves_nothing_that_takes_frames",
    ),
    "taking an answer empties the buffer: a lost answer loses it": (
        "replication/delta/test_poll::test_the_next_number_releases_the_answer_before",
        "replication/delta/test_poll::PollMachine",
    ),
    "a failed load counts as progress": (
        "replication/delta/test_replay::test_an_error_that_may_pass_is_tried_again_without_progress",
        "replication/delta/test_replay::test_an_error_that_does_not_pass_ends_the_replay",
    ),
    "what is loaded side by side is inserted in no order": ("replication/delta/test_replay::ReplayMachine",),
    "a delta has no range and no checksum": (
        "replication/delta/test_feed::test_every_changed_bit_of_a_delta_is_noticed",
        "replication/delta/test_feed::test_a_delta_that_does_not_cover_its_range_is_refused",
    ),
    "a reset is overtaken by an answer from before it": (
        "replication/delta/test_replay::test_a_new_session_is_taken_and_an_answer_that_does_not_fit_is_not",
        "replication/delta/test_malicious_primary::test_no_frame_of_an_opening_is_applied_before_its_history_is_known",
    ),
    "what the server says is taken as it is": (
        "replication/delta/test_malicious_primary::test_a_lie_costs_time_alone",
        "replication/delta/test_malicious_primary::test_a_lie_about_which_log_it_is_ends_the_reader",
        "replication/delta/test_malicious_primary::test_the_primary_of_a_copy_is_not_followed",
        "replication/delta/test_malicious_primary::test_a_backup_written_beside_the_log_is_not_followed",
    ),
    "a range that failed in part is a hole": (
        "replication/delta/test_malicious_primary::test_no_frame_is_applied_after_a_hole",
        "replication/delta/test_malicious_primary::test_a_state_that_has_a_part_of_a_range_is_never_saved",
    ),
    "an overloaded reader drops what waits": ("replication/delta/test_replay::ReplayMachine",),
}
