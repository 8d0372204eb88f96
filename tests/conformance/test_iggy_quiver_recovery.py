"""Tests of Iggy and Quiver for opening, tail repair, readers and many files: each with the test that shows it here.

The scenarios are those of Iggy's journal, superblock and recovery and of Quiver's WAL, as far as they concern the disk
after a crash; suspected defects are those of Quiver's positions, of Kevo's recovery, and of the
public issues #4024 and #4137. `WHERE` is the table, in words, of what other tests show; what none did is tested here.

Without a meaning here: the ring index, drain, poison and gate of the journal (`test_iggy_journal.py`); unsealed entries
(every frame has its checksums); a superblock's future and payload (the durable slot is two stores to memory); the state
of view changes and the client table; what follows a gap in a cluster (no cluster refills a log); snapshots and
checkpoints (tests/state, tests/test_store_recovery.py); Quiver's slots, buffers and bundles; reopening with another
configuration (a log has no hash of it); a cap on rotated files; a table of error texts, where walkit has types.
"""

from __future__ import annotations

import pytest

from tests.support.damaged_logs import (
    OPTIONS,
    contents,
    crash_image,
    gone,
    opened,
    patch,
    read,
)
from tests.support.logs import lsns, reopened
from walkit.errors import (
    FormatVersionError,
    SegmentMissingError,
)
from walkit.format.checksum import crc32c
from walkit.format.layout import DURABLE_SLOTS_BYTES
from walkit.format.segment import segment_name
from walkit.recovery.log_scan import read_durable_slot
from walkit.segments.manifest_store import DURABLE_NAME

HERE = "conformance/test_iggy_quiver_recovery"

WHERE: dict[str, tuple[str, ...]] = {
    # -- Iggy's journal, superblock and recovery
    "an empty log": ("recovery/test_tools::test_an_empty_log_is_in_order",),
    "read what was appended": ("log/test_append::test_what_goes_in_comes_out",),
    "reopening continues after the last record": ("crashlab/test_explore::test_no_state_breaks_a_rule",),
    "a cut tail": ("recovery/test_every_bit::test_a_cut_anywhere_is_refused_by_name",),
    "damage with intact frames after it": (
        "recovery/test_recovery::test_a_flip_below_a_promise_is_corruption_of_acknowledged_data",
    ),
    "a damaged last frame": (
        "recovery/test_recovery::test_a_flip_in_the_last_frame_is_a_torn_tail_only_while_nothing_promises_it",
    ),
    "every frame is verified": ("recovery/test_every_bit::test_a_flip_of_sampled_bits_is_reported",),
    "slots alternate": ("format/test_durable::test_slots_alternate",),
    "a damaged slot": ("recovery/test_every_bit::test_a_flip_in_the_durable_slots_is_harmless",),
    "what may be replayed": ("read/test_readers::test_a_reader_sees_what_is_durable_and_nothing_more",),
    "foreign identity": ("recovery/test_salvage::test_segments_under_other_names_are_refused_and_not_lost",),
    # -- Quiver's WAL
    "round trip": ("log/test_append::test_what_goes_in_comes_out",),
    "flush policies": (
        "log/test_durability::test_the_timer_syncs_an_idle_tail",
        "log/test_durability::test_closing_makes_durable_at_every_level",
    ),
    "truncation, then append": ("crashlab/test_explore::test_no_state_breaks_a_rule",),
    "numbers go on after a restart": ("log/test_trim::test_lsns_go_on_after_trim_and_reopening",),
    "restart after everything was purged": ("log/test_trim::test_a_log_continues_after_trimming_everything",),
    "header codec": ("format/test_segment::test_round_trip",),
    "structure under right checksums": ("format/test_body::test_malformed_bodies",),
    # -- defects of Kevo's recovery
    "one damaged byte loses the rest in silence": (
        "recovery/test_every_bit::test_a_flip_of_sampled_bits_is_reported",
        "recovery/test_salvage::test_every_damage_leaves_the_intact_frames_and_names_the_rest",
    ),
    "rotation restarts the sequence": (
        "conformance/test_quiver_upkeep::test_numbers_are_never_given_again_after_everything_was_cleaned",
    ),
}


def test_a_log_with_a_damaged_slot_is_written_on() -> None:
    """Damage both slots of a closed log's cell, append, kill: the new slots are true, and every record is there."""
    image = crash_image(closed=True)
    cell = image.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=True)
    assert cell is not None
    cell.write(0, b"\xff" * DURABLE_SLOTS_BYTES)
    cell.close()
    with opened(image) as log:
        log.append(b"more")
        after = image.process_kill()
    assert read_durable_slot(after).lsn == 9
    assert lsns(reopened(after, OPTIONS)) == list(range(1, 10))


def test_a_gap_stops_recovery_and_is_named() -> None:
    """Take a segment out of the middle: no record after the gap is read as if it followed, and the gap is named."""
    image = crash_image(closed=True)
    gone(2)(image)
    with pytest.raises(SegmentMissingError) as refused:
        opened(image)
    assert (refused.value.segment, refused.value.first_lost_lsn, refused.value.found) == (
        segment_name(2),
        3,
        None,
    )


def test_a_header_of_another_version_is_refused_by_version() -> None:
    """Give a segment header version 9 and its right checksum: FormatVersionError, by salvage too, and no change."""
    image = crash_image(closed=True)
    block = bytearray(read(image, segment_name(2))[:4092])
    block[8] = 9
    patch(image, segment_name(2), 0, bytes(block) + crc32c(bytes(block)).to_bytes(4, "little"))
    before = contents(image)
    for policy in ("prefix", "salvage"):
        with pytest.raises(FormatVersionError):
            opened(image, policy)
    assert contents(image) == before
