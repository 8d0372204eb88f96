"""Logs with several frames in flight: nothing acknowledged is lost, over rotations, crashes, hangs and both orders."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import walkit
from tests.support.held_writes import Gates, Held
from tests.support.logs import SEGMENTS, FaultyMemory, headers, lsns, reopened, segment_set, tiny, values
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.commit.policy import Adaptive, CappedFrames, Linger, OneRecordPerFrame
from walkit.errors import (
    AppendTimeoutError,
    CommitFailedError,
    CommitTimeoutError,
    LogFullError,
    LogPoisonedError,
    OptionsError,
    StorageError,
)
from walkit.format.layout import SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.segment import SegmentHeader
from walkit.models import CrashingStorage
from walkit.segments.segment_set import SegmentSet

ORDERS = ["append", "completion"]
POLICIES: dict[str, Any] = {
    "take all": None,
    "one record": OneRecordPerFrame(),
    "capped": CappedFrames(records=3),
    "linger": Linger(wait_us=300, size_bytes=2000),
    "adaptive": Adaptive(),
}


def stands_at_the_window(log: walkit.WriteAheadLog) -> bool:
    """Whether one frame is being written, those after it have landed, and no leader remains."""
    core = log.parts.core
    return (
        len(core.in_flight) > 1
        and core.landed == len(core.in_flight) - 1
        and log.parts.driver.election.leaders == 1
    )


def one_per_frame(**options: Any) -> walkit.LogOptions:
    """Return options of a log whose records are frames of their own, eight of them in flight."""
    return tiny(**({"in_flight": 8, "policy": OneRecordPerFrame()} | options))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("durability", ["sync", "interval", "none"])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_every_way_of_appending_works_with_frames_in_flight(policy: Any, durability: str, order: str) -> None:
    """Append by every way from six threads over several segments: results find their records, after reopening too."""
    storage = CrashingStorage()
    options = tiny(in_flight=4, policy=policy, durability=durability, ack_order=order)
    told: dict[int, bytes] = {}

    def work(log: walkit.WriteAheadLog, who: int) -> None:
        for n in range(12):
            value = b"%d:%d" % (who, n) + bytes(1500)
            if n % 4 == 0:
                told[log.append(value).first_lsn] = value
            elif n % 4 == 1:
                told[log.submit(value).result(GUARD_S).first_lsn] = value
            elif n % 4 == 2:
                with log.transaction() as tx:
                    tx.append(value)
                    tx.append(b"second")
                assert tx.result is not None
                told[tx.result.first_lsn] = value
                told[tx.result.last_lsn] = b"second"
            else:
                result = log.append_many([value, b"of many"])
                told[result.first_lsn] = value

    with walkit.open(storage=storage, options=options) as log:
        for task in [Task(work, log, who) for who in range(6)]:
            task.result()
        log.sync()
        assert log.acked_lsn == log.durable_lsn == log.appended_lsn == 6 * 18
        assert log.statistics().rotations > 1
        found = {r.lsn: r.value for r in log.read()}
        assert all(found[lsn] == value for lsn, value in told.items())
        assert log.statistics().poisoned == 0
    assert {r.lsn: r.value for r in reopened(storage, options)} == found


@pytest.mark.parametrize("order", ORDERS)
def test_a_rotation_with_frames_in_flight_seals_when_they_have_landed(order: str) -> None:
    """Hold a frame of the first segment and go on into the next two: no seal until it lands; a cut keeps the prefix."""
    storage = CrashingStorage()
    options = one_per_frame(ack_order=order, in_flight=4)
    log = walkit.open(storage=storage, options=replace(options, reorder_window_bytes=1 << 20))
    gates = Gates(3)
    Held(log, gates)
    tickets = [log.submit(bytes(7000)) for _ in range(20)]
    wait_until(lambda: 20 in gates.entered, "the last frame")
    wait_until(lambda: log.parts.core.landed == 17, "all but one to land")
    segments: SegmentSet = segment_set(log)
    log.wait_idle()
    assert len(segments.open_segments) == 3
    assert log.parts.manifest_store.current.sealed == ()
    assert (log.acked_lsn, log.durable_lsn) == (2, 2)
    assert [t.done() for t in tickets] == [n < 2 or (n > 2 and order == "completion") for n in range(20)]
    assert values(log.read()) == [bytes(7000)] * 2
    image = storage.crash(keep="none")
    assert lsns(reopened(image, tiny()))[:2] == [1, 2]
    gates.let(3)
    assert [t.result(GUARD_S).first_lsn for t in tickets] == list(range(1, 21))
    wait_until(lambda: log.acked_lsn == 20)
    wait_until(lambda: len(log.parts.manifest_store.current.sealed) == 2, "the seals")
    log.close()
    assert len(reopened(storage, tiny())) == 20


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_a_sync_covers_only_the_contiguous_prefix_that_was_written(durability: str) -> None:
    """Hold the second of four unsynced frames, sync, and cut the power: durable is the first alone, and truly is."""
    storage = CrashingStorage()
    late: dict[str, Any] = {"interval_ms": 86_400_000} if durability == "interval" else {}
    log = walkit.open(storage=storage, options=one_per_frame(durability=durability, **late))
    gates = Gates(2)
    Held(log, gates)
    tickets = [log.submit(b"%d" % n) for n in range(4)]
    wait_until(lambda: log.parts.core.landed == 2, "the two after it")
    log.parts.driver.sync()
    assert (log.acked_lsn, log.durable_lsn) == (1, 1)
    assert lsns(reopened(storage.crash(keep="none")))[:1] == [1]
    syncing = Task(log.sync)
    gates.let(2)
    assert syncing.result() == 4
    assert [t.result(GUARD_S).first_lsn for t in tickets] == [1, 2, 3, 4]
    assert lsns(reopened(storage.crash(keep="none"))) == [1, 2, 3, 4]
    log.append(b"acknowledged, durable by the close")
    log.close()
    assert log.durable_lsn == 5


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_hung_write_fails_everybody_and_is_never_seen_when_it_lands(in_flight: int) -> None:
    """Hang a write: callers and close return with the cause; the next opening does not see late writes."""
    storage = FaultyMemory()
    log = walkit.open(storage=storage, options=one_per_frame(in_flight=in_flight, write_timeout_ms=20))
    log.append(b"acknowledged")
    hang = storage.hang("synced_write", SEGMENTS)
    tickets = [log.submit(b"%d" % n) for n in range(6)]
    for n, ticket in enumerate(tickets):
        with pytest.raises((CommitFailedError, LogPoisonedError)) as told:
            ticket.result(GUARD_S)
        assert isinstance(told.value, CommitFailedError) or n >= in_flight
        cause = told.value.__cause__
        assert isinstance(cause, StorageError)
        assert "write_timeout_ms" in str(cause)
    with pytest.raises(LogPoisonedError, match="write_timeout_ms"):
        log.append(b"refused")
    Task(log.close).result()
    with walkit.open(storage=storage.inner, options=tiny()) as again:
        assert values(again.read()) == [b"acknowledged"]
        again.append(b"of the next epoch")
        hang.release()
        wait_until(
            lambda: not any(t.name.startswith("walkit-commit") for t in threading.enumerate()), "the writers"
        )
    assert values(reopened(storage.inner)) == [b"acknowledged", b"of the next epoch"]
    assert log.acked_lsn == 1


@pytest.mark.parametrize("order", ORDERS)
def test_a_slow_write_is_not_a_hang(order: str) -> None:
    """Hold a write for less than the limit: nothing fails, and the watch finds nothing when all is quiet again."""
    with walkit.open(
        storage=CrashingStorage(), options=one_per_frame(ack_order=order, write_timeout_ms=60_000)
    ) as log:
        gates = Gates(1)
        Held(log, gates)
        tickets = [log.submit(b"x") for _ in range(5)]
        wait_until(lambda: log.parts.core.landed == 4)
        assert log.parts.driver.watch.hanging() == []
        gates.let(1)
        assert [t.result(GUARD_S).first_lsn for t in tickets] == [1, 2, 3, 4, 5]
        assert len(log.parts.driver.watch) == 0


@pytest.mark.parametrize("in_flight", [1, 3])
def test_errors_of_timed_appends_have_the_outcome(in_flight: int) -> None:
    """Let the time of appends end in flight, in the queue, and before it: three errors, two of them TimeoutErrors."""
    storage = FaultyMemory()
    log = walkit.open(storage=storage, options=one_per_frame(in_flight=in_flight, queue_bytes_max=8192))
    log.append(b"first")
    hang = storage.hang("synced_write", SEGMENTS, times=in_flight)
    for _ in range(in_flight):
        with pytest.raises(CommitTimeoutError) as under_way:
            log.append(b"in flight", timeout=0.05)
        assert under_way.value.outcome == "unknown"
    for timeout in (0.05, 0, -1):
        with pytest.raises(AppendTimeoutError, match="nothing of it was written"):
            log.append(b"queued", timeout=timeout)
    assert (log.statistics().queue_records, log.statistics().queue_bytes) == (0, 0)
    full = log.submit(bytes(8000))
    with pytest.raises(LogFullError) as no_room:
        log.append(bytes(400), timeout=0.05)
    assert no_room.value.reason == "queue"
    hang.release()
    assert full.result(GUARD_S).first_lsn == in_flight + 2
    log.close()
    assert values(reopened(storage.inner)) == [b"first", *[b"in flight"] * in_flight, bytes(8000)]


@pytest.mark.parametrize("order", ORDERS)
def test_the_window_is_stored_before_it_matters_and_is_kept(order: str) -> None:
    """Hold a frame under a small window, then reopen with a larger one: never more after it than the header allows."""
    storage = CrashingStorage()
    for round_, window in enumerate((16 * 1024, 32 * 1024)):
        options = one_per_frame(ack_order=order, reorder_window_bytes=window)
        with walkit.open(storage=storage, options=options) as log:
            begun = log.append(b"before").next_position
            held = log.acked_lsn + 1
            gates = Gates(held)
            Held(log, gates)
            tickets = [log.submit(bytes(3000)) for _ in range(30)]
            core = log.parts.core
            wait_until(partial(stands_at_the_window, log), "the others to stop at the window")
            assert begun < core.position <= begun + window
            assert core.position + core.frame_bytes_max > begun + window, "the window was not used"
            segment = segment_set(log).current
            assert segment is not None
            header = SegmentHeader.decode(segment.file.read(0, SEGMENT_HEADER_BYTES), segment.file.name)
            assert header is not None
            assert header.reorder_window_bytes == window
            assert bool(header.flags & SegmentFlag.COMPLETION_ORDER) == (order == "completion")
            gates.let(held)
            for ticket in tickets:
                ticket.result(GUARD_S)
        assert len(reopened(storage, replace(options, reorder_window_bytes=None))) == 31 * (round_ + 1)


def test_one_frame_in_flight_stamps_no_window() -> None:
    """Write a log as ever: the header says neither window nor order."""
    with walkit.open(storage=CrashingStorage(), options=tiny()) as log:
        log.append(b"x")
        segment = segment_set(log).current
        assert segment is not None
        assert segment.header is not None
        assert (segment.header.reorder_window_bytes, segment.header.flags) == (0, SegmentFlag(0))


def test_a_full_disk_refuses_unsealed_records() -> None:
    """Fail the preparing of a segment under parallel submits: LogFullError from there on, then appends go on, dense."""
    storage = FaultyMemory()
    with walkit.open(storage=storage, options=one_per_frame(in_flight=4)) as log:
        log.append(bytes(7000))
        no_room = storage.fail("allocate", SEGMENTS, errno=28, times=None)
        told: list[bool] = []
        for _ in range(40):
            ticket = log.submit(bytes(7000))
            told.append(ticket.exception(GUARD_S) is None)
            if not told[-1]:
                with pytest.raises(LogFullError):
                    ticket.result(0)
        assert told == sorted(told, reverse=True)
        assert True in told and False in told
        no_room.cancel()
        assert log.append(b"room again").first_lsn == 2 + sum(told)
        assert log.statistics().poisoned == 0
    assert len(reopened(storage.inner)) == 2 + sum(told)


def test_a_store_refuses_completion_order() -> None:
    """Open a store on a log of completion order: OptionsError with the reason, and the lock is free."""
    storage = CrashingStorage()
    for _ in range(2):
        with pytest.raises(OptionsError, match="LSN order") as refused:
            walkit.Store.open(storage=storage, options=tiny(ack_order="completion"))
        assert refused.value.option == "ack_order"
    with walkit.open(storage=storage) as log:
        assert log.append(b"still a log").first_lsn == 1


@pytest.mark.parametrize("order", ORDERS)
def test_frames_of_one_submitter_keep_their_order(order: str) -> None:
    """Submit 300 records from one thread, many frames in flight: their LSNs are in the order of the calls."""
    options = tiny(in_flight=8, ack_order=order, policy=CappedFrames(records=2), codec="zstd")
    with walkit.open(storage=CrashingStorage(), options=options) as log:
        chance = random.Random(7)
        Held(log, lambda _: threading.Event().wait(chance.random() * 0.001))
        tickets = [log.submit(bytes(chance.randrange(2000))) for _ in range(300)]
        assert [t.result(GUARD_S).first_lsn for t in tickets] == list(range(1, 301))
        wait_until(lambda: log.acked_lsn == 300)
        chains = headers(log)
        assert [h.chain for h in chains[1:]] == [h.header_crc for h in chains[:-1]]
