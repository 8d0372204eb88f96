"""Space is zeroed ahead of the writer, before the writer gets there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import walkit
from tests.support.logs import memory_log, segment_set, tiny, values
from tests.support.threads import wait_until
from walkit.segments.active_segment import ZERO_STEP_BYTES, OpenSegment


# Slow: thousands of frames of the smallest size.
@pytest.mark.parametrize("record_bytes", [pytest.param(0, marks=pytest.mark.slow), 1000, 10_000])
def test_space_is_zeroed_ahead_of_a_writer_that_is_not_in_a_hurry(record_bytes: int) -> None:
    """Write a third of the first step: the maintenance thread zeroes the next, and later frames find zeroed space."""
    with memory_log(tiny(segment_bytes=4 << 20, frame_bytes_max=1 << 20)) as log:
        segment = filled(log, ZERO_STEP_BYTES // 3, record_bytes)
        assert segment is not None and not segment.overtaken
        wait_until(lambda: segment.zeroed == segment.size, "the zeroing")
        filled(log, 2 * ZERO_STEP_BYTES, record_bytes)
        assert not segment.overtaken
        assert len(values(log.read())) == log.acked_lsn


def test_nothing_is_zeroed_ahead_of_large_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write frames of 20,000 bytes, which pass the first step: no zeroing was asked for, and none ever is."""
    asked: list[str] = []
    with memory_log(tiny(segment_bytes=4 << 20, frame_bytes_max=1 << 20)) as log:
        maintenance = log.parts.segments.maintenance
        submit = maintenance.submit

        def noted(kind: str, job: Callable[[], None]) -> None:
            asked.append(kind)
            submit(kind, job)

        monkeypatch.setattr(maintenance, "submit", noted)
        segment = filled(log, 3 * ZERO_STEP_BYTES, 20_000)
        assert segment is not None and segment.overtaken
        assert asked == ["prepare"]
        assert len(values(log.read())) == log.acked_lsn


def filled(log: walkit.WriteAheadLog, size_bytes: int, record_bytes: int) -> OpenSegment | None:
    """Append until the log has so many bytes; return its segment."""
    while log.statistics().log_bytes < size_bytes:
        log.append(bytes(record_bytes))
    return segment_set(log).current
