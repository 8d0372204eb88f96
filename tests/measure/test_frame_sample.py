"""Samples of single frames: around the slowest one, with a lane for each slot, there and back through a JSON line."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import walkit
from walkit.commit.frame import SealedFrame
from walkit.measure import FrameSample, FrameSampler
from walkit.measure.frame_sample import FRAMES_KEPT_MAX, SAMPLE_FRAMES_MAX, lanes_of


def frame(number: int, *, records: int = 1) -> SealedFrame:
    return SealedFrame((), number + 1, records, 256 * number, 256, 0, [], 0, None)


def equal(one: FrameSample, other: FrameSample) -> bool:
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("slowest", [0, 3, 50, 98, 99])
def test_the_slowest_frame_is_among_those_told(slowest: int) -> None:
    """A hundred frames, one slow: so many as asked for, consecutive, with the slow one where `slowest` says."""
    sampler = FrameSampler(in_order=False)
    for number in range(100):
        began = 1_000_000 + number * 1_000
        sampler.wrote(frame(number), began, began + (900_000 if number == slowest else 500))
    found = sampler.take(10)
    assert found is not None
    assert len(found.position) == 10 and found.seen == 100
    assert found.first_lsn[found.slowest] == slowest + 1
    assert np.diff(found.first_lsn).tolist() == [1] * 9
    assert sampler.take() is None


def test_append_order_acknowledges_with_the_last_before_it() -> None:
    """Frames that end out of order: in append order each waits for those before it, in completion order none."""
    spans = [(0, 90), (1, 20), (2, 95), (3, 30)]
    for in_order, expected in ((True, [90, 90, 95, 95]), (False, [90, 20, 95, 30])):
        sampler = FrameSampler(in_order=in_order)
        for number in (1, 3, 0, 2):  # as they end
            sampler.wrote(frame(number), *spans[number])
        found = sampler.take()
        assert found is not None
        assert found.acked_ns.tolist() == expected
        assert found.lane.tolist() == [0, 1, 2, 3]
        assert found.synced_ns.tolist() == found.written_ns.tolist()


def test_a_frame_is_durable_with_the_first_sync_that_begins_after_it() -> None:
    """Syncs apart from writes: one that began before a write had ended does not count; without one it is -1."""
    sampler = FrameSampler(synced=False)
    for number, ended in enumerate((10, 20, 40)):
        sampler.wrote(frame(number), ended - 5, ended)
    sampler.synced(15, 30)
    sampler.synced(25, 60)
    found = sampler.take()
    assert found is not None
    assert found.synced_ns.tolist() == [30, 60, -1]


def test_memory_is_bounded_and_marks_are_left_out() -> None:
    """More frames than are kept: the newest stay; a frame without records is left out."""
    sampler = FrameSampler()
    for number in range(FRAMES_KEPT_MAX + 10):
        sampler.wrote(frame(number), number, number + 1)
    sampler.wrote(frame(FRAMES_KEPT_MAX + 10, records=0), 0, 10**9)
    found = sampler.take()
    assert found is not None
    assert found.seen == FRAMES_KEPT_MAX - 1
    assert len(found.position) == SAMPLE_FRAMES_MAX


@pytest.mark.parametrize(
    ("spans", "lanes"),
    [
        ([], []),
        ([(0, 1), (1, 2), (2, 3)], [0, 0, 0]),
        ([(0, 5), (1, 2), (2, 3), (3, 9)], [0, 1, 1, 1]),
        ([(5, 6), (0, 9), (1, 3)], [1, 0, 1]),
    ],
)
def test_lanes_are_as_many_as_overlap(spans: list[tuple[int, int]], lanes: list[int]) -> None:
    """Each span takes the lowest lane that is free when it begins."""
    table = np.array(spans, np.int64).reshape(-1, 2)
    assert lanes_of(table[:, 0], table[:, 1]).tolist() == lanes


def test_a_log_is_sampled_and_told_in_a_line() -> None:
    """A real log: times rise from sealing to acknowledgement, positions follow; the line is small, and comes back."""
    with walkit.open("memory://frame-sample") as log:
        sampler = FrameSampler()
        log.observe_writes(sampler)
        for number in range(100):
            log.append(b"%d" % number)
        found = sampler.take()
    assert found is not None and found.seen == 100
    assert (found.sealed_ns <= found.began_ns).all() and (found.began_ns <= found.written_ns).all()
    assert (found.written_ns <= found.acked_ns).all()
    assert np.array_equal(np.diff(found.position), found.frame_bytes[:-1])
    line = json.dumps(found.as_plain())
    assert len(line) < 6_000
    assert equal(FrameSample.of_plain(json.loads(line)), found)
    unsynced: Any = found._replace(synced_ns=np.full(len(found.position), -1))
    assert equal(FrameSample.of_plain(unsynced.as_plain()), unsynced)
