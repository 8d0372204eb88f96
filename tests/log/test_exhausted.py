"""The last numbers that the format holds: records beyond are refused before they are written, the log stays intact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import walkit
from tests.support.logs import lsns, reopened, tiny
from tests.support.threads import wait_until
from walkit.errors import LogExhaustedError
from walkit.format.layout import EPOCH_MAX, LSN_LAST, POSITION_MAX, SEGMENT_NUMBER_MAX
from walkit.format.manifest import MANIFEST_NAME, EpochRecord, LogEnd, Manifest, encode_base
from walkit.models import CrashingStorage
from walkit.segments.manifest_store import NEW_NAME
from walkit.storage.bulk import write_whole

LEFT = 6
Way = Callable[[walkit.WriteAheadLog], object]


def near_the_end(**facts: Any) -> CrashingStorage:
    """Return a log without records whose manifest has these numbers."""
    storage = CrashingStorage()
    storage.create()
    end = LogEnd(last_lsn=facts.pop("last_lsn", 10), position=facts.pop("position", 640), chain=7)
    manifest = Manifest(
        log_id=5, end=end, low_watermark=end.last_lsn, exact_from_lsn=end.last_lsn + 1, **facts
    )
    write_whole(storage, MANIFEST_NAME, NEW_NAME, encode_base(manifest))
    return storage


async def _three_tasks(log: walkit.WriteAheadLog) -> None:
    await asyncio.gather(*(log.append_async(b"task") for _ in range(3)))


def _three_in_one(log: walkit.WriteAheadLog) -> None:
    with log.transaction() as tx:
        for _ in range(3):
            tx.append(b"of one")


def _three_tickets(log: walkit.WriteAheadLog) -> None:
    tickets = [log.submit(b"ticket") for _ in range(3)]
    for ticket in tickets:
        ticket.result()


WAYS: dict[str, Way] = {
    "append": lambda log: [log.append(b"one") for _ in range(3)],
    "with a key and a time": lambda log: [log.append(b"one", b"key", timestamp=5) for _ in range(3)],
    "delete": lambda log: [log.delete(b"key") for _ in range(3)],
    "submit": _three_tickets,
    "tasks": lambda log: asyncio.run(_three_tasks(log)),
    "transaction": _three_in_one,
    "append_many": lambda log: log.append_many([b"of many"] * 3),
    "submit_many": lambda log: log.submit_many([b"of many"] * 3).result(),
    "append_arrow": lambda log: log.append_arrow(
        walkit._internal.arrow.pa.table({"value": [b"a", b"b", b"c"]})
    ),
}


@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_last_lsn_is_given_and_none_after_it(
    way: Callable[[walkit.WriteAheadLog], object], in_flight: int
) -> None:
    """Append three at a time until six LSNs are gone, each way: then a typed error, and every acknowledged record."""
    storage = near_the_end(last_lsn=LSN_LAST - LEFT)
    options = tiny(in_flight=in_flight, idle_marker_ms=5)
    with walkit.open(storage=storage, options=options) as log:
        for _ in range(LEFT // 3):
            way(log)
        assert log.acked_lsn == LSN_LAST
        wait_until(lambda: log.statistics().marker_frames, "a mark, which takes no LSN")
        for _ in range(2):
            with pytest.raises(LogExhaustedError) as refused:
                way(log)
            assert (refused.value.what, refused.value.last) == ("LSN", LSN_LAST)
            assert refused.value.wanted > LSN_LAST
        assert log.sync() == LSN_LAST and not log.statistics().poisoned
        everything = list(range(LSN_LAST - LEFT + 1, LSN_LAST + 1))
        assert lsns(log.read()) == everything and log.to_arrow()["lsn"].to_pylist() == everything
    for image in (storage, storage.crash(keep="none")):
        assert lsns(reopened(image, options)) == everything
        with walkit.open(storage=image, options=options) as log, pytest.raises(LogExhaustedError):
            log.append(b"none is left")
        assert walkit.verify(image).ok


def test_what_still_fits_is_taken_beside_what_does_not() -> None:
    """Leave two LSNs and give three records at once, then one and one: the three are refused whole, the two written."""
    storage = near_the_end(last_lsn=LSN_LAST - 2)
    with walkit.open(storage=storage, options=tiny()) as log:
        with pytest.raises(LogExhaustedError) as refused:
            log.append_many([b"of three"] * 3)
        assert refused.value.acknowledged_prefix == 0
        log.append(b"last but one")
        log.append(b"last")
    assert [r.value for r in reopened(storage)] == [b"last but one", b"last"]


def test_append_many_reports_the_prefix_written_before_the_end() -> None:
    """Append records of several frames over the last LSN: the error counts those that were, and they are there."""
    storage = near_the_end(last_lsn=LSN_LAST - 4)
    with walkit.open(storage=storage, options=tiny()) as log:
        with pytest.raises(LogExhaustedError) as refused:
            log.append_many([bytes(5000)] * 7)
        assert refused.value.acknowledged_prefix == 4 == len(list(log.read()))
    assert len(reopened(storage)) == 4


@pytest.mark.parametrize("durability", ["sync", "none"])
@pytest.mark.parametrize("in_flight", [1, 8])
def test_the_last_position_is_used_and_none_after_it(in_flight: int, durability: str) -> None:
    """Append until the space of positions is full: a typed error before a segment is made for it, the log opens."""
    storage = near_the_end(position=(POSITION_MAX & -64) - 100 * 1024)
    options = tiny(in_flight=in_flight, durability=durability, idle_marker_ms=5)
    with walkit.open(storage=storage, options=options) as log:
        log.append(b"first")
        written = [log.append(b"mark comes").next_position]
        wait_until(lambda: durability == "none" or log.statistics().marker_frames, "a mark")
        with pytest.raises(LogExhaustedError) as refused:
            append_on(log, written)
        assert (refused.value.what, refused.value.last) == ("position", POSITION_MAX)
        assert POSITION_MAX - 4096 < max(written) <= POSITION_MAX
        wait_until(lambda: log.parts.segments.maintenance._thread is not None)
        log.wait_idle()
        names = storage.names()
        with pytest.raises(LogExhaustedError):
            log.append_many([bytes(6000)] * 3)
        assert storage.names() == names and not log.statistics().poisoned
        log.sync()
        last = log.acked_lsn
    found = lsns(reopened(storage.crash(keep="none"), options))
    assert found == list(range(11, last + 1))
    assert lsns(reopened(storage, options)) == found and walkit.verify(storage).ok


def append_on(log: walkit.WriteAheadLog, written: list[int]) -> None:
    """Append until an error, and note where each record ends."""
    for _ in range(200):
        written.append(log.append(bytes(3000)).next_position)


def test_a_log_whose_positions_are_all_given_makes_no_segment() -> None:
    """Leave no position at all: the first append is refused, no file is made, and the log closes and opens again."""
    storage = near_the_end(position=(POSITION_MAX & -64))
    for _ in range(2):
        with walkit.open(storage=storage, options=tiny()) as log, pytest.raises(LogExhaustedError):
            log.append(b"none")
        assert not [n for n in storage.names() if n.endswith(".segment")]


def test_the_last_epoch_begins_and_none_after_it() -> None:
    """Open for writing in the last epoch, then again: a typed error that changes nothing; reading continues."""
    before = EpochRecord(number=EPOCH_MAX - 1, id=9, first_lsn=1, position=0, chain=0)
    storage = near_the_end(lineage=(before,))
    with walkit.open(storage=storage, options=tiny()) as log:
        log.append(b"of the last epoch")
    image = storage.process_kill()
    file = image.open(MANIFEST_NAME, "read")
    manifest = file.read(0, file.size())
    for _ in range(2):
        with pytest.raises(LogExhaustedError) as refused:
            walkit.open(storage=image, options=tiny())
        assert (refused.value.what, refused.value.wanted) == ("epoch", EPOCH_MAX + 1)
        assert file.read(0, file.size()) == manifest and not image.is_locked("lock")
    assert storage.names() == image.names()
    with walkit.open(None, mode="r", storage=image) as reader:
        assert [r.value for r in reader.read()] == [b"of the last epoch"]


def test_the_last_segment_number_is_given_and_none_after_it() -> None:
    """Leave one segment number and write more than it takes: a typed error, no poison, every acknowledged record."""
    storage = near_the_end(next_segment=SEGMENT_NUMBER_MAX)
    with walkit.open(storage=storage, options=tiny()) as log:
        with pytest.raises(LogExhaustedError) as refused:
            append_on(log, [])
        assert refused.value.what == "segment" and not log.statistics().poisoned
        last = log.acked_lsn
        assert last > 20
    assert lsns(reopened(storage)) == list(range(11, last + 1))
