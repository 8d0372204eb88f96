"""AutoMQ's tests of its WAL, their gaps and its risks: each with the test that holds walkit to it.

The scenarios are those of its block WAL, of blocks, headers and channels, of unordered acknowledgements and of
sequential completion; the hazards were found in its source, and some of them reproduced. `WHERE` is the table, in
words; test_tables walks it, so that it cannot name a test that is not there.
"""

from __future__ import annotations

from typing import Any

import pytest

import walkit
from tests.support.fake_segments import DriverHarness, GatedSink
from tests.support.logs import lsns, tiny
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.commit.frame_writer import prepare
from walkit.commit.policy import OneRecordPerFrame
from walkit.errors import LogClosedError, LogPoisonedError
from walkit.format.manifest import MANIFEST_NAME, LogEnd, Manifest, encode_base
from walkit.models import CrashingStorage
from walkit.segments.manifest_store import NEW_NAME
from walkit.storage.bulk import write_whole

HERE = "conformance/test_automq_commit"

WHERE: dict[str, tuple[str, ...]] = {
    # -- the block WAL
    "single thread, merged and one record a block": (
        "commit/test_in_flight::test_every_way_of_appending_works_with_frames_in_flight",
    ),
    "over capacity, trim and try again": (
        "commit/test_backpressure::test_a_full_disk_does_not_poison",
        "commit/test_in_flight::test_a_full_disk_refuses_unsealed_records",
    ),
    "eight threads": ("crashlab/test_explore::test_no_state_breaks_a_rule",),
    "recover after append, graceful and crashed": ("crashlab/test_explore::test_no_state_breaks_a_rule",),
    "the same, asynchronous": ("commit/test_async::test_many_tasks_append_at_once",),
    "append after recovery: offsets go on": ("crashlab/test_explore::test_no_state_breaks_a_rule",),
    "recover after reset: an opening is a new epoch": (
        "log/test_trim::test_lsns_go_on_after_trim_and_reopening",
    ),
    "trim beyond what is flushed": ("log/test_trim::test_only_durable_records_are_trimmed",),
    "a window above the capacity": (
        "log/test_options::test_options_that_are_wrong_contradict_or_are_not_there_yet",
    ),
    "another node's log: read, not written": ("read/test_readers::test_a_reader_changes_nothing",),
    "capacity mismatch: limits bind new segments only": (
        "log/test_options::test_limits_bind_only_new_segments",
    ),
    "no file": ("read/test_readers::test_a_closed_reader_refuses_and_a_missing_log_is_named",),
    "no header": ("log/test_open::test_segments_without_a_manifest_are_corruption_not_a_new_log",),
    "trimming everything": ("log/test_trim::test_a_log_continues_after_trimming_everything",),
    "a gap ends the log": ("recovery/test_holes::test_every_subset_of_frames_that_landed",),
    "28 vectors of recovery: which blocks landed, what was trimmed, how far the window reaches": (
        "recovery/test_holes::test_every_subset_of_frames_that_landed",
        "recovery/test_holes::test_the_window_bounds_the_kept_frames",
        "segments/test_trim_rewrite::test_a_hole_within_the_segment_is_passed_in_the_copy",
        "format/test_walk::test_a_stale_frame_of_a_cut_history",
    ),
    "a newer format": ("recovery/test_tools::test_a_place_without_a_log_raises",),
    # -- never tested there
    "callback order under shuffled completions": (
        "commit/test_orders::test_the_core_acknowledges_by_the_rule_in_every_order",
        "commit/test_orders::test_the_driver_acknowledges_by_the_rule_in_every_order",
        "commit/test_core_machine::TestCore",
    ),
    "out-of-order write completion": (
        "commit/test_orders::test_the_core_acknowledges_by_the_rule_in_every_order",
    ),
    "I/O failure and timeout": (
        "commit/test_orders::test_a_failed_frame_fails_its_suffix_at_once_on_threads",
        "commit/test_in_flight::test_a_hung_write_fails_everybody_and_is_never_seen_when_it_lands",
        "commit/test_in_flight::test_errors_of_timed_appends_have_the_outcome",
    ),
    "torn writes": ("crashlab/test_explore::test_no_failure_loses_what_was_promised",),
    "header slot corruption": ("format/test_durable::test_a_store_torn_at_every_byte",),
    "window scaling": ("commit/test_in_flight::test_the_window_is_stored_before_it_matters_and_is_kept",),
    "capacity above 2 GiB": (f"{HERE}::test_positions_and_lsns_cross_what_32_bits_hold",),
    "concurrent trim": ("commit/test_concurrency::test_trimming_reading_following_and_appending_at_once",),
    # -- blocks, headers, channels
    "a block's limits; a lone record may exceed the soft one": (
        "commit/test_core_table::test_one_large_submission_goes_alone",
    ),
    "header round trips": ("format/test_segment::test_round_trip", "format/test_durable::test_round_trip"),
    "channels": ("storage/test_memory::TestMemoryStorage", "storage/test_file::TestFileStorage"),
    # -- unordered acknowledgements, sequential completion
    "the confirm calculator, landing 3 1 2 0": (
        "commit/test_orders::test_the_core_acknowledges_by_the_rule_in_every_order",
    ),
    "sequential completion of three uploads": (
        "commit/test_orders::test_the_core_acknowledges_by_the_rule_in_every_order",
    ),
    "the second is prepared after the first": (
        f"{HERE}::test_frames_are_sealed_in_the_order_they_were_taken",
    ),
    "recovery is continuous, a gap drops the rest": (
        "recovery/test_holes::test_every_subset_of_frames_that_landed",
    ),
    # -- hazards in its source; those of torn and stale records were reproduced
    "the newer header slot by a clock that restarts": ("format/test_durable::test_slots_alternate",),
    "a failed head leaves the rest waiting": (
        "commit/test_orders::test_a_failed_frame_fails_its_suffix_at_once_on_threads",
        "commit/test_orders::test_the_core_fails_by_the_rule_in_every_order",
    ),
    "callbacks on an I/O thread under a lock": (
        "commit/test_delivery::test_a_callback_that_blocks_delays_no_append",
    ),
    "positions cut to 32 bits": (f"{HERE}::test_positions_and_lsns_cross_what_32_bits_hold",),
    "what is pending at shutdown is failed": (
        "commit/test_backpressure::test_room_is_waited_for_until_the_log_is_closed",
    ),
    "a torn record looks like the end of its block": (
        "recovery/test_holes::test_every_subset_of_frames_that_landed",
        "recovery/test_every_bit::test_zeros_from_every_byte_of_the_frames_on_keep_exactly_the_frames_before_them",
    ),
    "a stale or forged padding header is believed": (
        "format/test_walk::test_a_stale_frame_of_a_cut_history",
        "format/test_walk::test_absurd_lengths_read_nothing",
    ),
    "the confirmed offset passes what is not confirmed": (
        "commit/test_core_machine::TestCore",
        "commit/test_concurrency::test_trimming_reading_following_and_appending_at_once",
    ),
    "a missing first record is only logged": (
        "conformance/test_iggy_quiver_recovery::test_a_gap_stops_recovery_and_is_named",
    ),
    "what could not be built is acknowledged by what follows": (
        f"{HERE}::test_what_cannot_be_prepared_fails_all_that_follows",
    ),
    "what a fenced writer left is taken for the log's": (
        "commit/test_in_flight::test_a_hung_write_fails_everybody_and_is_never_seen_when_it_lands",
        "format/test_walk::test_a_stale_frame_of_a_cut_history",
    ),
    "a reader believes a record by its magic": (
        "read/test_readers::test_damage_below_the_durable_mark_is_corruption_for_a_reader_too",
    ),
    "a pool of callback threads reorders": (
        "commit/test_delivery::test_callbacks_come_in_lsn_order_on_one_thread",
    ),
    "a test double that keeps another contract": ("storage/test_memory::TestMemoryStorage",),
}


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
