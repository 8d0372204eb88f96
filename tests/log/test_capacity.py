"""A log that refuses at its capacity: at its edges, over a reopening, and with room made again."""

from __future__ import annotations

from typing import Any

import pytest

import walkit
from tests.support.logs import SMALL_SEGMENT, lsns, memory_log, tiny
from tests.support.threads import GUARD_S, wait_until
from walkit.config import Retention
from walkit.errors import LogFullError, OptionsError
from walkit.models import CrashingStorage
from walkit.storage.interface import Storage

Events = list[tuple[str, dict[str, Any]]]
VALUE = bytes(7000)
"""Eight of them, each in a frame of its own, fill a segment; a ninth does not fit."""


def refusing(segments: int = 3, spare_bytes: int = 0, **limits: Any) -> Retention:
    """A capacity of so many whole segments."""
    size = segments * SMALL_SEGMENT + spare_bytes
    return Retention(bytes_max=size, at_capacity="refuse", **limits)


def opened(storage: Storage, events: Events | None = None, **limits: Any) -> walkit.WriteAheadLog:
    """Open a log of small segments that refuses."""
    options = tiny(retention=refusing(**limits))
    return walkit.open(
        storage=storage,
        options=options,
        events=None if events is None else lambda n, a: events.append((n, a)),
    )


def fill(log: walkit.WriteAheadLog) -> LogFullError:
    """Append until the log refuses; returns how."""
    for _ in range(1000):
        try:
            log.append(VALUE)
        except LogFullError as full:
            return full
    raise AssertionError("the log never refuses")


@pytest.mark.parametrize("segments", [2, 3, 5])
def test_the_edge_leaves_no_room_for_a_further_segment(segments: int) -> None:
    """Fill logs of some capacities: each holds as many whole segments, its files never more, and nothing is dropped."""
    with opened(CrashingStorage(), segments=segments) as log:
        full = fill(log)
        assert (full.reason, full.limit_bytes) == ("retention", segments * SMALL_SEGMENT)
        assert log.acked_lsn == 8 * segments and log.first_lsn == 1
        assert log.parts.contents.used_bytes() <= segments * SMALL_SEGMENT
        assert lsns(log.read()) == list(range(1, 8 * segments + 1))
        assert log.append(b"fits the segment in use").first_lsn == 8 * segments + 1
        assert log.statistics().poisoned == 0


def test_one_byte_less_is_a_segment_less() -> None:
    """Set the capacity a byte below three full segments and at their size: two segments of records, and three."""
    with opened(CrashingStorage()) as log:
        fill(log)
        log.wait_idle()
        used = log.parts.contents.used_bytes()
    for spare, records in ((0, 24), (-1, 24), (used - 3 * SMALL_SEGMENT, 16)):
        with opened(CrashingStorage(), spare_bytes=spare) as log:
            fill(log)
            assert log.acked_lsn == records


@pytest.mark.parametrize("in_flight", [1, 8])
def test_every_way_of_appending_is_refused_until_a_trim(in_flight: int) -> None:
    """Refuse append, delete, transaction, submit and many at once: typed, nothing written; a trim lets all through."""
    options = tiny(retention=refusing(), in_flight=in_flight)
    with walkit.open(storage=CrashingStorage(), options=options) as log:
        fill(log)
        acked = log.acked_lsn

        def transact() -> None:
            with log.transaction() as tx:
                tx.put(b"k", VALUE)

        ways = (
            lambda: log.append(VALUE),
            lambda: log.append(VALUE, timeout=GUARD_S),
            lambda: log.delete(VALUE),
            lambda: log.submit(VALUE).result(GUARD_S),
            lambda: log.submit_many([VALUE]).result(GUARD_S),
            lambda: log.append_many([VALUE] * 5),
            transact,
        )
        for way in ways:
            with pytest.raises(LogFullError) as full:
                way()
            assert full.value.reason == "retention"
        assert log.acked_lsn == log.durable_lsn == acked
        assert log.trim(acked) == acked
        for way in ways:
            way()
        assert lsns(log.read()) == list(range(acked + 1, acked + 12))


def test_what_a_hold_keeps_stays_and_reading_it_up_makes_room() -> None:
    """Hold the oldest of a full log: a trim frees nothing; drain it after the hold is gone: the next append fits."""
    with opened(CrashingStorage()) as log:
        hold = log.hold("consumer", 1)
        fill(log)
        assert log.trim(log.acked_lsn) == 0
        assert fill(log).reason == "retention"
        hold.release()
        taken = [record.lsn for record in log.drain(16)]
        assert taken == list(range(1, 17))
        assert log.append(VALUE).first_lsn == 25
        assert log.first_lsn == 17


def test_a_consumer_that_moves_on_makes_room_by_itself() -> None:
    """Let retention follow the slowest hold: full, refused, the hold moves, and appends go on without a trim."""
    with opened(CrashingStorage(), below_claims=True) as log:
        hold = log.hold("consumer", 1)
        fill(log)
        hold.advance(17)

        def appended() -> bool:
            try:
                log.append(VALUE)
            except LogFullError:
                return False
            return True

        wait_until(appended, "room")
        assert log.first_lsn == 17


def test_a_full_log_opens_is_read_and_works_after_a_trim() -> None:
    """Reopen a full log, with the same and a smaller capacity: it opens, refuses the first append, and a trim helps."""
    storage = CrashingStorage()
    events: Events = []
    with opened(storage) as log:
        fill(log)
    for segments in (3, 2):
        with opened(storage, events, segments=segments) as log:
            assert lsns(log.read()) == list(range(1, 25))
            assert fill(log).reason == "retention"
            assert fill(log).reason == "retention"
            assert log.acked_lsn == 24
    assert [n for n, _ in events].count("walkit.retention.refuse") == 2, "told once an opening"
    with opened(storage, segments=2) as log:
        assert log.trim(8) == 8
        assert fill(log).reason == "retention"
        assert log.trim(24) == 24
        fill(log)
        assert log.acked_lsn == 24 + 16
    with walkit.open(storage=storage, options=tiny()) as log:
        log.append_many([VALUE] * 100)
        assert log.first_lsn == 25, "without the option the capacity is unlimited"


def put_many(store: walkit.Store) -> None:
    """Put more than fits any log here, on five keys."""
    for n in range(1000):
        store[b"%d" % (n % 5)] = b"%d " % n + VALUE


def test_a_store_is_full_and_a_checkpoint_makes_room() -> None:
    """Fill a Store on such a log: puts are refused, its state stays; a checkpoint trims, and puts go on."""
    options = tiny(retention=refusing())
    with walkit.Store.open(storage=CrashingStorage(), options=options) as store:
        with pytest.raises(LogFullError) as full:
            put_many(store)
        assert full.value.reason == "retention"
        state = dict(store.items())
        store.checkpoint()
        store[b"new"] = VALUE
        assert dict(store.items()) == {**state, b"new": VALUE}


def test_dropping_is_as_it_was_and_refusing_drops_nothing_for_its_bytes() -> None:
    """Enforce the same limit in both ways: one drops the oldest segments, the other none, whatever it has of bytes."""
    with memory_log() as log:
        log.append_many([VALUE] * 80)
        assert log.parts.retention.enforce(refusing()).segments == 0
        assert log.parts.retention.enforce(Retention(bytes_max=3 * SMALL_SEGMENT)).reasons == ("bytes",)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"at_capacity": "refuse"}, "at_capacity"),
        ({"at_capacity": "block", "bytes_max": 1 << 30}, "at_capacity"),
        ({"at_capacity": None}, "at_capacity"),
        ({"at_capacity": "refuse", "bytes_max": 1 << 30, "hard_bytes_max": 1 << 31}, "at_capacity"),
        ({"at_capacity": "refuse", "bytes_max": 2 * SMALL_SEGMENT - 1}, "bytes_max"),
    ],
    ids=str,
)
def test_a_capacity_that_cannot_be_is_refused(given: dict[str, Any], option: str) -> None:
    """Refuse without a limit, with a limit that drops, or with no room for two segments: OptionsError names it."""
    with pytest.raises(OptionsError) as refused:
        tiny(retention=Retention(**given))
    assert refused.value.option == option
