"""The ordering core by tables: the work that time makes due, the content of a frame, the effect of each mark."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.commit.cores import Piece, body_of, header_of, make_core, make_room, seal_group, seal_next
from walkit.commit.core import NEXT_LATE_US, OrderingCore
from walkit.commit.frame import SyncPoint, Tick
from walkit.format.body import Columns
from walkit.format.frame import MARKER_BODY, prepare_body
from walkit.format.layout import HAS_VALUE, RECORDS_PER_FRAME_MAX

Core = OrderingCore[Piece]
IDLE, INTERVAL, LATE = 500, 300, 5000
QUIET = Tick(marker=False, sync=False, wake_in_us=None)


def write_at(core: Core, at: int) -> None:
    """Seal one frame at a time and write it at once."""
    core.written(seal_next(core, now_us=at), durable=core.ack_when_durable)


def write_mark(core: Core, at: int) -> None:
    """Seal a mark and write it."""
    make_room(core, MARKER_BODY.footprint(core.alignment))
    core.written(core.seal_marker(at), durable=core.ack_when_durable)


def sync_all(core: Core) -> None:
    """Sync everything that is written."""
    core.synced(core.sync_begin())


def nothing(core: Core) -> None:
    """Leave a fresh core alone."""


def written(core: Core) -> None:
    write_at(core, 1000)


def written_twice(core: Core) -> None:
    write_at(core, 1000)
    write_at(core, 1200)


def under_way(core: Core) -> None:
    write_at(core, 1000)
    seal_next(core, now_us=1000)


def queued(core: Core) -> None:
    write_at(core, 1000)
    core.submit(Piece())


def marked(core: Core) -> None:
    write_at(core, 1000)
    write_mark(core, 1500)


def failed(core: Core) -> None:
    write_at(core, 1000)
    core.fail(OSError())


def written_and_synced(core: Core) -> None:
    write_at(core, 1000)
    sync_all(core)


def synced_then_written(core: Core) -> None:
    write_at(core, 1000)
    sync_all(core)
    write_at(core, 1250)


def marked_and_synced(core: Core) -> None:
    write_at(core, 1000)
    sync_all(core)
    write_mark(core, 1500)
    sync_all(core)


def unacked(core: Core) -> None:
    core.ack_limit_lsn, core.ack_timeout_us, core.unacked_bytes_max = 100, LATE, 1 << 30
    written_twice(core)


def unacked_and_failed(core: Core) -> None:
    unacked(core)
    core.fail(OSError())


def timed_out(core: Core) -> None:
    unacked(core)
    assert [f.sealed_us for f in core.fail_unacked(OSError(), 1000)] == [1000]


SYNC_LEVEL = {"idle_marker_us": IDLE}
INTERVAL_LEVEL = {"idle_marker_us": IDLE, "interval_us": INTERVAL, "ack_when_durable": False}
NONE_LEVEL = {"idle_marker_us": IDLE, "ack_when_durable": False}
NO_MARKS = {"idle_marker_us": 0}


@pytest.mark.parametrize(
    ("options", "before", "at", "expected"),
    [
        (SYNC_LEVEL, nothing, 9999, QUIET),
        (SYNC_LEVEL, written, 1000, Tick(False, False, IDLE)),
        (SYNC_LEVEL, written, 1499, Tick(False, False, 1)),
        (SYNC_LEVEL, written, 1500, Tick(True, False, IDLE)),
        (SYNC_LEVEL, written_twice, 1500, Tick(False, False, 200)),
        (SYNC_LEVEL, under_way, 1600, Tick(False, False, IDLE)),
        (SYNC_LEVEL, queued, 1600, Tick(False, False, IDLE)),
        (SYNC_LEVEL, marked, 9999, QUIET),
        (SYNC_LEVEL, failed, 9999, QUIET),
        (NO_MARKS, written, 9999, QUIET),
        (NO_MARKS, unacked, 5999, Tick(False, False, 1)),
        (NO_MARKS, unacked, 6000, Tick(False, False, NEXT_LATE_US, late=True)),
        (NO_MARKS, timed_out, 6000, Tick(False, False, 200)),
        (NO_MARKS, unacked_and_failed, 6000, Tick(False, False, NEXT_LATE_US, late=True)),
        (SYNC_LEVEL, unacked, 1500, Tick(False, False, 200)),
        (INTERVAL_LEVEL, written, 1000, Tick(False, False, INTERVAL)),
        (INTERVAL_LEVEL, written, 1299, Tick(False, False, 1)),
        (INTERVAL_LEVEL, written, 1300, Tick(False, True, INTERVAL)),
        (INTERVAL_LEVEL, written_twice, 1299, Tick(False, False, 1)),
        (INTERVAL_LEVEL, written_and_synced, 1300, Tick(False, False, 200)),
        (INTERVAL_LEVEL, written_and_synced, 1500, Tick(True, False, INTERVAL)),
        (INTERVAL_LEVEL | {"idle_marker_us": 9999}, written_and_synced, 1300, Tick(False, False, INTERVAL)),
        (INTERVAL_LEVEL, synced_then_written, 1300, Tick(False, False, 250)),
        (INTERVAL_LEVEL, synced_then_written, 1550, Tick(False, True, INTERVAL)),
        (INTERVAL_LEVEL, marked_and_synced, 9999, QUIET),
        (INTERVAL_LEVEL, failed, 9999, QUIET),
        (NONE_LEVEL, written, 9999, QUIET),
        (NONE_LEVEL, written_and_synced, 1500, Tick(True, False, IDLE)),
        (NONE_LEVEL, marked, 9999, QUIET),
    ],
)
def test_ticks_of_the_core(
    options: dict[str, Any], before: Callable[[Core], None], at: int, expected: Tick
) -> None:
    """Bring a core into each state and ask at a moment: mark, sync and the next question are as the table says."""
    core = make_core(OrderingCore, **options)
    before(core)
    assert core.tick(at) == expected


def test_a_busy_log_syncs_once_per_interval() -> None:
    """Write every 10 us for ten intervals and obey: the oldest unsynced frame never waits longer than one interval."""
    core = make_core(interval_us=INTERVAL, ack_when_durable=False)
    syncs = []
    for now in range(0, 10 * INTERVAL, 10):
        write_at(core, now)
        if core.tick(now).sync:
            syncs.append(now)
            sync_all(core)
    assert 9 <= len(syncs) <= 11
    assert all(later - sooner <= INTERVAL + 10 for sooner, later in pairwise(syncs))


def test_one_large_submission_goes_alone() -> None:
    """Submit a piece as large as a frame allows between two small ones: three frames, in their order."""
    core = make_core()
    pieces = [Piece(), Piece(1, core.body_bytes_max - 21), Piece()]
    for piece in pieces:
        core.submit(piece)
    assert pieces[1].size_bytes == core.body_bytes_max
    for piece in pieces:
        group = list(core.take())
        assert group == [piece]
        frame = seal_group(core, group)
        assert frame.footprint <= 4096
        core.written(frame, durable=True)
    assert list(core.take()) == []
    assert core.pending_bytes == core.pending_records == 0


def test_a_frame_takes_no_more_records_than_it_may_hold() -> None:
    """Submit empty records beyond the limit of one frame: it is cut by the count of records, not only by bytes."""
    core = make_core(frame_bytes_max=1 << 26)
    half = RECORDS_PER_FRAME_MAX // 2
    for _ in range(3):
        core.submit(Piece(half, 0))
    assert [p.count for p in core.take()] == [half, half]
    assert core.taken_records == 2 * half
    assert core.queued_lsn == 100 + 3 * half


def test_frames_never_leave_their_segment() -> None:
    """Seal until a segment is full: reported before, sealing across is refused, a new one continues."""
    core = make_core()
    core.segment_ready(core.position + 4096)
    ends = []
    while True:
        core.submit(Piece(1, 500))
        body = body_of(group := list(core.take()))
        if core.needs_segment(body.footprint(core.alignment)):
            break
        ends.append(core.seal(group, body, 0).next_position)
        core.written(core.in_flight[0], durable=True)
    assert ends[-1] <= core.segment_end < ends[-1] + body.footprint(core.alignment)
    with pytest.raises(AssertionError, match="never leaves its segment"):
        core.seal(group, body, 0)
    core.segment_ready(core.position + 4096)
    assert core.seal(group, body, 0).position == ends[-1]


def test_a_mark_moves_no_lsn_and_promises_what_is_durable() -> None:
    """Seal a mark: position and chain move, LSNs do not, and its promise is the durable position of then."""
    core = make_core()
    write_at(core, 0)
    before = (core.appended_lsn, core.acked_lsn, core.durable_lsn)
    end = core.durable_position
    make_room(core, MARKER_BODY.footprint(core.alignment))
    mark = core.seal_marker(7)
    assert core.written(mark, durable=True) == [mark]
    assert (core.appended_lsn, core.acked_lsn, core.durable_lsn) == before
    assert (mark.first_lsn, mark.last_lsn, mark.count) == (102, 101, 0)
    assert header_of(mark).durable_position == end == mark.position
    assert not core.needs_marker
    assert core.chain == mark.header_crc


def test_a_sync_makes_durable_what_was_written_before_it_began() -> None:
    """Write a frame while a sync is under way: the sync's end makes the frame before it durable, and not that one."""
    core = make_core(ack_when_durable=False)
    write_at(core, 0)
    begun = core.sync_begin()
    write_at(core, 0)
    core.synced(begun)
    assert (core.durable_lsn, core.durable_position) == (101, begun.position)


def test_an_older_sync_that_ends_late_moves_nothing_back() -> None:
    """End two syncs in the wrong order: the marks stay where the later one put them."""
    core = make_core(ack_when_durable=False)
    write_at(core, 0)
    first = core.sync_begin()
    write_at(core, 0)
    second = core.sync_begin()
    core.synced(second)
    after = (core.durable_lsn, core.durable_position)
    core.synced(first)
    assert (core.durable_lsn, core.durable_position) == after == (102, second.position)
    assert first == SyncPoint(first.position, 101)


def test_a_failure_fails_all_frames_and_refuses_all_that_waits() -> None:
    """Fail with three frames in flight, one of them written: all three unknown, the queue was never written."""
    core = make_core(in_flight_max=3)
    frames = [seal_next(core) for _ in range(3)]
    core.written(frames[1], durable=True)
    waiting = [Piece(), Piece()]
    for piece in waiting:
        core.submit(piece)
    cause = OSError("gone")
    assert core.fail(cause) == (frames, waiting)
    assert [f.state for f in frames] == ["failed"] * 3
    assert all(f.error is cause for f in frames)
    assert core.fail(OSError("again")) == ([], [])
    assert core.failure is cause
    assert core.written(frames[0], durable=True) == []
    core.submit(Piece())
    assert list(core.take()) == []
    assert core.acked_lsn == 100


def test_a_frame_sealed_after_a_failure_is_failed_the_next_time() -> None:
    """Fail between take and seal, as a sync on another thread may: the frame is not acknowledged, and not forgotten."""
    core = make_core(ack_when_durable=False)
    core.submit(Piece())
    group = core.take()
    core.fail(OSError("first"))
    frame = seal_group(core, group)
    assert core.written(frame, durable=False) == []
    assert frame.state == "sealed"
    assert core.fail(OSError("second")) == ([frame], [])
    assert str(frame.error) == "second" and str(core.failure) == "first"


def test_the_sink_sees_frames_in_order_before_they_count_as_acknowledged() -> None:
    """An acknowledgement sink gets each frame with records, in order, while it is still sealed; no marks."""
    seen: list[tuple[int, str]] = []
    core = make_core(in_flight_max=3, ack_sink=lambda frame: seen.append((frame.first_lsn, frame.state)))
    first, second = seal_next(core), seal_next(core)
    core.written(second, durable=True)
    assert seen == []
    core.written(first, durable=True)
    write_mark(core, 0)
    assert seen == [(101, "sealed"), (102, "sealed")]


def test_summed_sizes_bound_the_body() -> None:
    """Encode columns of every shape: the sum of sizes bounds the body, so that a group always fits its frame."""
    core = make_core()
    for values in ([b""], [b"x" * 100], [b"", b"y" * 50], [b"z"] * 64):
        for stamps in (None, [0] * len(values), list(range(len(values)))):
            kinds = [1 | HAS_VALUE | (0x40 if stamps else 0)] * len(values)
            body = prepare_body(Columns(len(values), kinds, [b"k"] * len(values), values, stamps))
            bound = sum(1 + len(v) + 21 for v in values)
            assert body.stored_bytes <= bound
            assert body.footprint(core.alignment) <= bound + 96 + core.alignment
