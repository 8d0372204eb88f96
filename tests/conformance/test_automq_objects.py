"""Scenarios and hazards of AutoMQ's WAL on objects, each with the test that holds an object log to it.

`WHERE` is the table; test_tables walks it, so that it cannot name a test that is not there.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import walkit
from walkit.errors import LogClosedError
from walkit.objects.bulks import AHEAD_BYTES, PARALLEL, Bulks
from walkit.objects.layout import object_key
from walkit.objects.open import open_object_writer
from walkit.storage.object_memory import MemoryObjectStore, ObjectRequest

HERE = "conformance/test_automq_objects"

WHERE: dict[str, tuple[str, ...]] = {
    # -- its writer
    "offsets, ten threads, each record byte for byte; closing puts what is queued; closing twice": (
        f"{HERE}::test_ten_threads_append_and_closing_puts_what_is_queued",
    ),
    "a huge record": ("storage/test_object_store::test_a_large_object_is_one_put",),
    "strict and other limits of a batch; here a frame never splits": (
        "commit/test_core_table::test_one_large_submission_goes_alone",
    ),
    "an upload without a full batch": (
        "commit/test_policy::test_flushing_and_idleness_are_stronger_than_waiting",
    ),
    "reset across epochs and nodes: an opening is a new epoch": (
        "objects/test_opening::test_a_log_is_made_and_opened_again",
        "objects/test_object_follow::test_a_follower_sees_each_record_of_killed_writers_once",
    ),
    "sequential completion of three uploads": (
        "objects/test_sink::test_bulks_are_acknowledged_in_append_order_whatever_lands_first",
    ),
    # -- the service
    "a store of its own is closed, another one is not": (
        "objects/test_entrance::test_an_object_store_of_ones_own_is_not_closed_and_not_probed",
    ),
    "each record of three epochs, alone": ("objects/test_object_reader::test_a_reader_sees_every_record",),
    "windows of records across epochs": (
        "objects/test_object_reader::test_a_place_is_found_with_few_requests",
    ),
    "reading passes its false records: here fences": (
        "objects/test_object_reader::test_following_continues_over_a_new_epoch",
    ),
    "trims at, below and within objects, then a restart": (
        "objects/test_object_reader::test_a_trim_moves_the_beginning",
        "objects/test_object_reader::test_a_follower_that_a_trim_passes_gets_a_gap",
        "objects/test_floor::test_a_killed_trimmer_leaves_a_log_that_opens",
    ),
    "recovery over epochs with a moving trim": (
        "objects/test_floor::test_a_trimmer_that_sleeps_breaks_no_later_writer",
        "objects/test_entrance::test_an_opener_that_slept_through_writes_an_opening_and_a_trim_is_fenced",
    ),
    "a missing object: here refused, and salvaged by request": (
        "objects/test_opening::test_what_is_lost_or_wrong_is_refused_and_no_bulk_is_changed",
        "objects/test_salvage::test_what_is_intact_is_salvaged_and_every_loss_is_reported",
    ),
    "older and newer formats": ("objects/test_layout::test_a_newer_bulk_is_a_version_error",),
    "eight vectors of continuous objects": ("objects/test_layout::test_which_bulk_follows_a_place",),
    "the reservation is right for one writer alone": (
        "objects/test_opening::test_a_log_is_made_and_opened_again",
        "objects/test_races::test_a_writer_that_sleeps_before_any_request_acknowledges_nothing_that_is_lost",
    ),
    # -- hazards
    "a header without a checksum": ("objects/test_layout::test_every_flipped_bit_of_a_bulk_is_damage",),
    "an offset is compared without its epoch": ("objects/test_layout::test_which_bulk_follows_a_place",),
    "a range at the end of an object is an error": (
        "storage/test_object_store::TestMemory",
        "objects/test_object_reader::test_a_cut_answer_is_requested_again",
    ),
    "what was never uploaded is acknowledged by what follows": (
        "objects/test_sink::test_a_bulk_that_fails_takes_all_after_it_along_and_none_before",
        "conformance/test_automq_commit::test_what_cannot_be_prepared_fails_all_that_follows",
    ),
    "a free slot starts one of the waiting uploads": (
        "objects/test_sink::test_no_bulk_is_put_further_ahead_than_the_window",
    ),
    "each acknowledgement costs a look at the reservation": (
        "objects/test_opening::test_ten_thousand_appends_are_one_request_each_and_an_idle_writer_makes_none",
    ),
    "what a fenced writer puts later is taken for the log's": (
        "objects/test_races::test_a_put_that_lands_late_stays_out_of_another_history",
        "objects/test_opening::test_stale_bulks_are_replaced_by_their_tag",
    ),
    "a lost answer fences the writer itself": (
        "objects/test_races::test_one_fault_of_any_request_changes_nothing",
    ),
    "a trim deletes under its followers, 30 s later": (
        "objects/test_floor::test_a_reader_that_sleeps_keeps_what_it_has_claimed",
    ),
    "a put that is repeated brings a trimmed object back": (
        "objects/test_floor::test_a_killed_trimmer_leaves_a_log_that_opens",
        "objects/test_races::test_a_put_that_lands_late_stays_out_of_another_history",
    ),
    "trimming all objects begins the numbers again": (
        "objects/test_floor::test_a_trimmer_that_sleeps_breaks_no_later_writer",
        "objects/test_entrance::test_an_opener_that_slept_through_writes_an_opening_and_a_trim_is_fenced",
    ),
    "a reset swallows the next record": ("objects/test_opening::test_a_log_is_made_and_opened_again",),
    "a reader believes a record by its magic": (
        "objects/test_object_reader::test_each_damage_has_its_error",
    ),
    "a listing decides": (
        "objects/test_opening::test_an_opening_after_a_kill_takes_few_requests_whatever_the_length",
        "storage/test_object_store::test_lists_lag_hide_and_are_missing",
    ),
    "recovery drops what is after a gap, and says it in a log file": (
        "objects/test_object_reader::test_a_lost_bulk_below_the_vouched_end_is_an_error",
    ),
    "objects are read ahead by their number, not their bytes": (
        f"{HERE}::test_bulks_are_read_ahead_within_a_bound_of_bytes",
    ),
    "no test compares offsets after a recovery": (
        "objects/test_entrance::test_a_killed_writer_loses_nothing_that_it_acknowledged",
    ),
    "a pool of callback threads reorders": (
        "commit/test_delivery::test_callbacks_come_in_lsn_order_on_one_thread",
    ),
    "a follower reads an old object in a cache": (
        "objects/test_object_reader::test_a_stale_bulk_is_the_end_until_it_is_replaced",
    ),
    "a test double that keeps another contract": (
        "storage/test_object_store::TestMemory",
        "storage/test_object_store::TestFiles",
        "storage/test_object_store::TestS3",
    ),
}


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
