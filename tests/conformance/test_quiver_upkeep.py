"""Quiver's tests of its WAL files, cursor, retention and start-up: each with the test that holds walkit to it.

The scenarios are those of its WAL, of its engine, and of its segments, store, subscribers and budget; then come the
defects that its public issues and its source show. `WHERE` is the table, in words; test_tables walks it, so that it
cannot name a test that is not there. If walkit answers otherwise on purpose, the entry explains it.

Without a meaning here, and why: slots, their ids and limits (a record has a key, and any Arrow batch is one record); a
buffer that decays (frames are joined once and not kept); a mode without a WAL and the closing of an open segment by
size, time or streams (the log is the data, nothing is copied out of it); item counts (a record is the unit); budgets in
replay (replay takes no space); chmod probes (modes are not used); writing and reading of Arrow segment files, their
dictionaries and accumulation (a bundle is an Arrow stream in a record); claims, rejects and the host's retries
(progress is one LSN, moved in order).
"""

from __future__ import annotations

from typing import Any

import walkit
from tests.support.logs import lsns, tiny, values
from tests.support.stores import memory_store
from walkit.config import Retention
from walkit.models import CrashingStorage

HERE = "conformance/test_quiver_upkeep"
RECOVERY = "conformance/test_iggy_quiver_recovery"

WHERE: dict[str, tuple[str, ...]] = {
    # -- the WAL
    "roundtrip": ("log/test_append::test_what_goes_in_comes_out",),
    "a timestamp that cannot be: before 1970 can": (
        "log/test_append::test_a_stamp_that_could_not_be_read_back_is_refused",
    ),
    "a file shorter than a header": ("format/test_segment::test_cut_at_every_byte",),
    "a reopening with another configuration": (
        "log/test_options::test_what_is_stored_in_the_log_wins_over_options",
    ),
    "a bad header version": (f"{RECOVERY}::test_a_header_of_another_version_is_refused_by_version",),
    "flush policies, idle tails too": (
        "log/test_durability::test_the_timer_syncs_an_idle_tail",
        "log/test_durability::test_a_busy_log_is_synced_by_the_timer_too",
        "log/test_durability::test_closing_makes_durable_at_every_level",
    ),
    "a cursor recorded without truncating": ("read/test_cursor::test_a_cursor_holds_nothing_back",),
    "a cursor on an entry's end: every record is one": (
        "read/test_cursor::test_any_record_of_a_frame_is_a_place_to_stand",
    ),
    "the sidecar persists": ("read/test_cursor::test_progress_is_saved_and_taken_up_again",),
    "regressions rejected": ("read/test_cursor::test_a_cursor_never_moves_back_or_beyond_the_log",),
    "a cursor inside a rotated file": ("read/test_cursor::test_any_record_of_a_frame_is_a_place_to_stand",),
    "rotation at target, reload, gaps in numbers": (
        "segments/test_manifest_store::test_a_file_that_somebody_put_there_is_never_overwritten",
    ),
    "caps purge, then admit": (
        "log/test_retention::test_a_log_keeps_itself_small",
        "commit/test_backpressure::test_a_full_disk_does_not_poison",
    ),
    "an invalid sidecar: starts again, and reports it": (
        "read/test_cursor::test_a_damaged_cursor_starts_again_with_an_event",
    ),
    "a stale sidecar: refused, not clamped": ("read/test_cursor::test_a_cursor_holds_nothing_back",),
    "a crash before the sidecar's rename": ("crashlab/test_explore::test_no_state_breaks_a_rule",),
    "the sequence continues after restart": ("log/test_trim::test_lsns_go_on_after_trim_and_reopening",),
    "a torn tail is cut, then append works": (
        "recovery/test_every_bit::test_zeros_from_every_byte_of_the_frames_on_keep_exactly_the_frames_before_them",
        "crashlab/test_explore::test_no_state_breaks_a_rule",
    ),
    "a reader from any offset": ("log/test_append::test_bounds_of_reading_are_inclusive",),
    "truncation at every field, wrong structure, failing reads": (
        "format/test_frame::test_cut_at_every_byte",
        "format/test_frame::test_forged_headers",
        "recovery/test_recovery::test_an_unreadable_segment_is_named",
    ),
    "large and empty payloads": ("log/test_arrow::test_a_bundle_comes_back_as_it_was",),
    "positions over rotation, purge, five cycles": (f"{HERE}::test_positions_over_five_cycles_of_purging",),
    "a restart after everything was purged": (
        "log/test_trim::test_lsns_go_on_after_trim_and_reopening",
        f"{HERE}::test_numbers_are_never_given_again_after_everything_was_cleaned",
    ),
    "counters of rotation and purge": ("log/test_retention::test_a_log_keeps_itself_small",),
    "errors of capacity carry data": ("commit/test_backpressure::test_a_full_disk_does_not_poison",),
    "a reader over many files, in the order of the log": (
        "read/test_cursor::test_any_record_of_a_frame_is_a_place_to_stand",
        f"{HERE}::test_segments_are_read_in_the_order_of_the_log",
        "recovery/test_tools::test_an_empty_log_is_in_order",
    ),
    "the header's codec": ("format/test_segment::test_round_trip",),
    "the sidecar's codec": (
        "format/test_cursor::test_round_trip",
        "format/test_cursor::test_every_flipped_bit_is_damage",
        "format/test_cursor::test_every_other_length_is_damage",
        "format/test_cursor::test_a_newer_version_differs_from_damage",
    ),
    "bundles that do not decode": ("log/test_arrow::test_a_bundle_that_cannot_be_decoded_names_its_record",),
    # -- the engine
    "end to end: content, then cursor": ("read/test_cursor::test_at_least_once_and_exactly_once",),
    "replay recovers what was not finished": ("read/test_cursor::test_at_least_once_and_exactly_once",),
    "what was finished is not replayed": ("read/test_cursor::test_at_least_once_and_exactly_once",),
    "an empty log": ("recovery/test_tools::test_an_empty_log_is_in_order",),
    "a missing file: named and refused": (f"{RECOVERY}::test_a_gap_stops_recovery_and_is_named",),
    "across rotated files": ("read/test_cursor::test_at_least_once_and_exactly_once",),
    "a tail cut: the exact prefix": (
        "recovery/test_every_bit::test_zeros_from_every_byte_of_the_frames_on_keep_exactly_the_frames_before_them",
    ),
    "bytes flipped: refused, nothing is silently less": (
        "recovery/test_recovery::test_a_flip_below_a_promise_is_corruption_of_acknowledged_data",
    ),
    "a cursor beyond the end: refused": ("read/test_cursor::test_a_cursor_that_does_not_fit_is_refused",),
    "a corrupt sidecar": ("read/test_cursor::test_a_damaged_cursor_starts_again_with_an_event",),
    "a missing sidecar": ("read/test_cursor::test_progress_is_saved_and_taken_up_again",),
    "expired entries": ("log/test_retention::test_age_is_checked_periodically",),
    "numbers are not reused, also after all expired": (
        f"{HERE}::test_numbers_are_never_given_again_after_everything_was_cleaned",
    ),
    "existing data is there, progress is honoured": (
        "read/test_cursor::test_progress_is_saved_and_taken_up_again",
    ),
    "the budget: reclaims, skips what is claimed, drops by force": (
        "log/test_capacity::test_every_way_of_appending_is_refused_until_a_trim",
        "log/test_capacity::test_a_consumer_that_moves_on_makes_room_by_itself",
        "log/test_retention::test_claims_and_the_hard_cap",
        "log/test_retention::test_a_slow_consumer_is_dropped_with_an_event_and_gets_a_gap",
    ),
    "max_age": (
        "log/test_retention::test_every_limit_alone_and_together",
        "log/test_retention::test_the_upkeep_thread_looks_at_age_by_itself",
    ),
    "waiting for the next": ("read/test_readers::test_following_from_outside",),
    "stress, every record counted": ("crashlab/test_explore::test_no_state_breaks_a_rule",),
    # -- segments, store, subscribers, budget
    "deletes that fail are made up for": (
        "log/test_retention::test_a_failure_at_every_step_of_retention",
        "log/test_retention::test_the_background_survives_a_failure",
        "log/test_trim::test_a_trim_that_crashes_before_its_files_are_gone_is_finished_by_the_next_opening",
    ),
    "a file time in the future": ("log/test_retention::test_ages_of_segments_that_a_wrong_clock_stamped",),
    "the progress file: old one kept when the new one fails": (
        "read/test_cursor::test_a_failure_at_every_step_of_an_advance",
    ),
    "consumers do not disturb each other": ("read/test_cursor::test_two_consumers_of_one_name_are_refused",),
    "the budget's caps": (
        "log/test_retention::test_every_limit_alone_and_together",
        "log/test_capacity::test_the_edge_leaves_no_room_for_a_further_segment",
        "log/test_capacity::test_one_byte_less_is_a_segment_less",
    ),
    # -- defects of its issues and its source
    "#4024 numbers start again, and saved progress skips new records": (
        f"{HERE}::test_numbers_are_never_given_again_after_everything_was_cleaned",
    ),
    "#4137 an unlink that was not synced brings data back": (
        f"{HERE}::test_what_was_dropped_does_not_come_back_after_a_power_cut",
    ),
    "#1980 replay, here compaction, makes old data young": (f"{HERE}::test_compaction_makes_nothing_young",),
    "positions summed from surviving files": (f"{HERE}::test_positions_over_five_cycles_of_purging",),
    "a crash between two files of a rotation": ("crashlab/test_explore::test_no_state_breaks_a_rule",),
    "a cursor ahead of its records": ("read/test_cursor::test_a_cursor_is_never_ahead_after_a_power_cut",),
}


def segments_log(storage: CrashingStorage | None = None, count: int = 40) -> walkit.WriteAheadLog:
    """A log of forty records, eight per segment; each value has its number."""
    log = walkit.open(storage=storage or CrashingStorage(), options=tiny())
    log.append_many([b"%07d" % (n + 1) * 1000 for n in range(count)])
    log.wait_idle()
    return log


def numbers(records: Any) -> list[int]:
    """Which records these are, by their values."""
    return [int(value[:7]) for value in values(records) if value is not None]


def test_positions_over_five_cycles_of_purging() -> None:
    """Append, trim all but the newest and restart, five times: positions and cursor never go back."""
    storage, end, seen = CrashingStorage(), 0, 0
    for cycle in range(5):
        with walkit.open(storage=storage, options=tiny()) as log:
            cursor = log.cursor("c")
            assert cursor.lsn == seen
            for n in range(20):
                result = log.append(b"%07d" % (cycle * 20 + n + 1) * 1000)
                assert result.position == end if end and n else result.position >= end
                end = result.next_position
            assert numbers(cursor.read()) == list(range(cycle * 20 + 1, cycle * 20 + 21))
            cursor.advance(log.acked_lsn)
            seen = log.acked_lsn
            log.trim(seen - 1)
    assert seen == 100


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
