"""Space is zeroed ahead of the writer, before the writer gets there."""

from __future__ import annotations

import walkit
from tests.commit.places import until
from tests.log.logs import memory_log, tiny, values
from walkit.log.opensegment import ZERO_STEP_BYTES, OpenSegment


def test_space_is_zeroed_ahead_of_a_writer_that_is_not_in_a_hurry() -> None:
    """Write a third of the first step: the upkeep thread zeroes the next ones, and later frames find zeroed space."""
    with memory_log(tiny(segment_bytes=4 << 20, frame_bytes_max=1 << 20)) as log:
        segment = filled(log, ZERO_STEP_BYTES // 3)
        assert segment is not None and not segment.overtaken
        until(lambda: segment.zeroed == segment.size, "the zeroing")
        filled(log, 2 * ZERO_STEP_BYTES)
        assert not segment.overtaken
        assert len(values(log.read())) == log.acked_lsn


def filled(log: walkit.WriteAheadLog, size_bytes: int) -> OpenSegment | None:
    """Append until the log has so many bytes; return its segment."""
    while log.statistics().log_bytes < size_bytes:
        log.append(bytes(10_000))
    return log._engine.segments.current
