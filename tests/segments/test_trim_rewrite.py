"""A trim and the segment that straddles the low watermark: copied as it is, above a waste ratio."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import walkit
from tests.support.crash_recorder import Filmed
from tests.support.damaged_logs import flip, rows_by_ranges
from tests.support.in_flight_logs import Flight, torn
from tests.support.logs import headers, lsns, memory_log, tiny, values
from tests.support.threads import Task, wait_until
from walkit.errors import GapError, OptionsError
from walkit.format.index import index_name
from walkit.format.manifest import SegmentRecord
from walkit.format.segment import segment_name
from walkit.models import CrashingStorage, FaultyStorage
from walkit.read.ranges import plan_ranges, read_range

RECORDS = 40
"""Eight a segment, one a frame: five segments, of which the last is open."""


def value(lsn: int) -> bytes:
    """Return the value of a record."""
    return b"%07d" % lsn * 1000


def filled(storage: CrashingStorage | FaultyStorage | None = None, **options: Any) -> walkit.WriteAheadLog:
    """Return a log of `RECORDS` records, its full segments sealed."""
    log = walkit.open(storage=storage or CrashingStorage(), options=tiny(**options))
    for lsn in range(1, RECORDS + 1):
        log.append(value(lsn))
    log.wait_idle()
    return log


def oldest(log: walkit.WriteAheadLog) -> SegmentRecord:
    """Return the oldest sealed segment."""
    return log.parts.manifest_store.current.sealed[0]


def check(log: walkit.WriteAheadLog | walkit.LogReader, low: int) -> None:
    """Every record above the low watermark is there, and every report of the log agrees."""
    assert log.first_lsn == low + 1
    assert [(r.lsn, r.value) for r in log.read()] == [(n, value(n)) for n in range(low + 1, RECORDS + 1)]
    assert lsns(log.follow(low + 1, timeout=0)) == list(range(low + 1, RECORDS + 1))
    stock = log.inventory()
    assert (stock.first_lsn, stock.complete_from_lsn, stock.low_watermark) == (low + 1, low + 1, low)
    with pytest.raises(GapError) as gap:
        log.read(low)
    assert gap.value.oldest == low + 1


@pytest.mark.parametrize(
    ("ratio", "low", "begins"),
    [
        (0.5, 8, 9),  # a whole segment: nothing straddles
        (0.5, 9, 9),
        (0.5, 11, 9),
        (0.5, 12, 13),  # just half
        (0.5, 15, 16),  # one frame is left
        (0.0, 9, 10),
        (0.51, 12, 9),
        (1, 15, 9),
    ],
)
def test_above_the_waste_ratio_the_segment_is_rewritten(ratio: float, low: int, begins: int) -> None:
    """Trim to places in the second segment: it is rewritten if its waste reaches the ratio, and reads alike."""
    storage = CrashingStorage()
    with filled(storage) as log:
        before, end = headers(log), log.parts.manifest_store.current.sealed[1]
        report = log.trim(low, waste_ratio=ratio)
        first = oldest(log)
        assert (report, first.first_lsn) == (low, begins)
        assert (first.end_position, first.last_lsn, first.end_chain) == (
            end.end_position,
            end.last_lsn,
            end.end_chain,
        )
        assert first.records == first.frames == first.last_lsn - begins + 1
        assert headers(log) == [h for h in before if h.first_lsn >= begins], (
            "the same frames, at the same places"
        )
        check(log, low)
        frame = before[0].footprint
        assert report.rewritten.bytes_written == (0 if begins == 9 else 4096 + frame * (17 - begins))
        assert report.bytes_saved == 4096 + 8 * frame + (begins - 9) * frame
        assert report.rewritten.waste == (low - 8) / 8 or ratio == 1
        check(walkit.open(mode="r", storage=storage), low)
    assert walkit.verify(storage).ok
    assert rows_by_ranges(storage) == [(n, value(n)) for n in range(low + 1, RECORDS + 1)]
    with walkit.open(storage=storage, options=tiny(recovery="absolute")) as log:
        check(log, low)
        assert log.append(b"next").first_lsn == RECORDS + 1
    assert "lost+found/" not in storage.names()


def test_a_report_is_the_low_watermark_and_shows_itself() -> None:
    """Trim twice, and look at the report, its event and its table: bytes of both kinds, and none the second time."""
    told: list[tuple[str, dict[str, Any]]] = []
    with walkit.open(
        storage=CrashingStorage(), options=tiny(), events=lambda name, facts: told.append((name, facts))
    ) as log:
        for lsn in range(1, RECORDS + 1):
            log.append(value(lsn))
        log.wait_idle()
        report = log.trim(13)
        done = report.rewritten
        assert (report.low_watermark, report.segments, done.waste, done.failure) == (13, 1, 5 / 8, None)
        rewritten = [facts for name, facts in told if name == "walkit.segment.rewrite"]
        assert rewritten == [
            {
                "number": oldest(log).number,
                "bytes_before": done.bytes_before,
                "bytes_after": done.bytes_after,
                "waste": done.waste,
            }
        ]
        assert "62% waste" in report._repr_html_() and f"{report.bytes_saved:,}" in report._repr_html_()
        again = log.trim(13)
        assert (again, again.bytes_saved, again.rewritten.bytes_written) == (13, 0, 0)
        assert "none" in again._repr_html_()
        for wrong in (-0.1, 1.1, "half", True):
            with pytest.raises(OptionsError) as refused:
                log.trim(14, waste_ratio=wrong)  # type: ignore[arg-type]
            assert refused.value.option == "waste_ratio"
        assert log.first_lsn == 14


def test_a_segment_is_rewritten_again_and_again() -> None:
    """Trim record by record with ratio 0: each copy is made from the one before, and every reader sees the same log."""
    storage = CrashingStorage()
    with filled(storage) as log:
        for low in range(1, 24):
            assert log.trim(low, waste_ratio=0) == low
            assert oldest(log).first_lsn == low + 1
            assert walkit.verify(storage).ok
        check(log, 23)
        names = {n for n in storage.names() if n.endswith(".segment")}
        assert names == {s.name for s in log.parts.manifest_store.current.segments}


def test_a_frame_that_straddles_is_kept_whole() -> None:
    """Trim into the midst of a frame, and of a segment of one frame: it stays, and nothing below it is read."""
    with memory_log() as log:
        for first in range(0, 40, 4):
            log.append_many([value(first)[:1600]] * 4)
        for _ in range(20):
            log.append(bytes(7000))
        log.wait_idle()
        assert log.trim(18, waste_ratio=0) == 18 and oldest(log).first_lsn == 17
        assert log.trim(19, waste_ratio=0) == 19 and log.trim(19, waste_ratio=0).rewritten.bytes_written == 0
        assert lsns(log.read())[0] == 20 and log.first_lsn == 20


def test_the_newest_sealed_segment_stays_as_it_was_written() -> None:
    """Trim into the only sealed segment, into an open one, and into a closed log's last: none is rewritten."""
    storage = CrashingStorage()
    with filled(storage) as log:
        sealed = log.parts.manifest_store.current.sealed
        low = sealed[-1].last_lsn - 1
        assert log.trim(low, waste_ratio=0).rewritten.bytes_before == 0
        assert oldest(log) == sealed[-1]
        assert log.trim(RECORDS - 1, waste_ratio=0).rewritten.bytes_before == 0
    with walkit.open(storage=storage, options=tiny()) as log:
        before = oldest(log)
        log.trim(RECORDS - 1, waste_ratio=0)
        assert oldest(log) == before
        check(log, RECORDS - 1)


def test_a_hold_bounds_what_is_rewritten() -> None:
    """Hold a record in the middle of a segment and trim everything: the copy starts with that record."""
    with filled() as log:
        hold = log.hold("replica", 14)
        assert log.trim(RECORDS) == 13 and oldest(log).first_lsn == 14
        assert lsns(log.read(14))[0] == 14
        hold.advance(16)
        assert log.trim(RECORDS, waste_ratio=0.6) == 15 and oldest(log).first_lsn == 16


def test_readers_with_an_older_view_go_on_in_the_copy() -> None:
    """Take views, plan ranges and begin to read, then trim: remaining records are read in place, the rest is a gap."""
    storage = CrashingStorage()
    with filled(storage) as log:
        other = walkit.open(mode="r", storage=storage)
        ranges = [r for r in plan_ranges(storage, parts=RECORDS) if r.segment == 1]
        begun, late, gone = log.read(1), other.read(6), other.read(4)
        assert next(begun).lsn == 1
        log.trim(5)
        assert oldest(log).first_lsn == 6
        assert lsns(late) == list(range(6, RECORDS + 1))
        assert lsns(begun) == list(range(2, RECORDS + 1)), (
            "the file that it has open is there until it is closed"
        )
        with pytest.raises(GapError) as gap:
            list(gone)
        assert (gap.value.wanted, gap.value.oldest) == (4, 6)
        for part in ranges:
            if part.first_lsn > 5:
                assert [b.column("lsn").to_pylist() for b in read_range(storage, part)] == [
                    list(range(part.first_lsn, part.last_lsn + 1))
                ]
            else:
                with pytest.raises(GapError) as gap:
                    list(read_range(storage, part))
                assert gap.value.oldest == 6


def test_an_index_of_the_copy_is_made_and_that_of_the_segment_goes() -> None:
    """Rewrite a segment that has an index: the copy has one, the old one is gone, and a seek in it reads the same."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=tiny(segment_bytes=1 << 20)) as log:
        for lsn in range(1, 401):
            log.append(value(lsn))
        log.wait_idle()
        old = oldest(log)
        assert index_name(old.name) in storage.names()
        assert log.trim(old.last_lsn // 3, waste_ratio=0.2).rewritten.bytes_written > 0
        assert index_name(old.name) not in storage.names() and index_name(oldest(log).name) in storage.names()
        wanted = old.last_lsn // 2
        assert values(log.read(wanted, wanted)) == [value(wanted)]


@cache
def made() -> CrashingStorage:
    """A closed log of five segments."""
    storage = CrashingStorage()
    filled(storage).close()
    return storage


def test_closing_ends_a_rewriting_and_waits_for_it() -> None:
    """Close a log while a trim copies, at several moments: the trim ends, nothing is left, all records are there."""
    for operation, file in (
        ("create", "trim.new"),
        ("write", "trim.new"),
        ("sync", "trim.new"),
        ("replace", "*.segment"),
    ):
        storage = made().process_kill()
        faulty = FaultyStorage(storage)
        log = walkit.open(storage=faulty, options=tiny())
        hang = faulty.hang(operation, file)  # type: ignore[arg-type]
        trim = Task(lambda log=log: log.trim(13))
        assert hang.entered.wait(30)
        close = Task(log.close)
        wait_until(lambda log=log: log.parts.trimmer._ended, "the log begins to close")  # type: ignore[misc]
        assert storage.is_locked("lock")
        hang.release()
        assert trim.result() == 13
        close.result()
        with walkit.open(storage=storage, options=tiny()) as again:
            check(again, 13)
        assert not {"lost+found/", "trim.new"} & set(storage.names())


def test_a_callback_may_trim_again_and_close() -> None:
    """Trim and close in the callback of a rewriting's own event: nothing waits for itself."""
    storage = made().process_kill()
    logs: list[walkit.WriteAheadLog] = []
    lows: list[int] = []

    def heard(name: str, _: dict[str, Any]) -> None:
        if name == "walkit.segment.rewrite" and not lows:
            lows.append(0)
            lows.append(logs[0].trim(14, waste_ratio=0))
            logs[0].close()

    logs.append(walkit.open(storage=storage, options=tiny(), events=heard))
    assert logs[0].trim(13) == 13 and lows == [0, 14]
    wait_until(lambda: not storage.is_locked("lock"), "the log is closed")
    with walkit.open(storage=storage, options=tiny()) as log:
        check(log, 14)


def test_damage_above_the_low_watermark_leaves_the_segment_as_it_is() -> None:
    """Damage a frame that would be copied: the trim succeeds and reports why it kept the segment, still damaged."""
    storage = CrashingStorage()
    told: list[str] = []
    log = walkit.open(storage=storage, options=tiny(), events=lambda name, _: told.append(name))
    with log:
        for lsn in range(1, RECORDS + 1):
            log.append(value(lsn))
        log.wait_idle()
        first = oldest(log)
        flip(storage, first.name, 4096 + first.size_bytes - 3000, 1)
        report = log.trim(5)
        assert report == 5 and told.count("walkit.maintenance.fail") == 1
        assert report.rewritten.failure is not None and report.bytes_saved == 0
        assert oldest(log) == first and "trim.new" not in storage.names()
        with pytest.raises(walkit.CorruptionError):
            list(log.read())


def test_a_manifest_rebuilt_beside_both_is_the_same_log() -> None:
    """Lose the manifest while the segment and its copy stand side by side: the rebuilt log holds every record."""
    film = Filmed(made().process_kill())
    with walkit.open(storage=film, options=tiny()) as log:
        film.running = True
        log.trim(13)
        film.running = False
    both = 0
    for what, image in film.images:
        image.remove("manifest")
        numbers = [n for n in image.names() if n.endswith(".segment")]
        both += {segment_name(2), segment_name(7)} <= set(numbers)
        walkit.repair(image)
        with walkit.open(mode="r", storage=image) as reader:
            assert values(reader.read(14)) == [value(n) for n in range(14, RECORDS + 1)], what
    assert both > 0


@pytest.mark.parametrize("low", [2, 4, 6, 8, 9])
def test_a_hole_within_the_segment_is_passed_in_the_copy(low: int) -> None:
    """Rewrite a segment with a hole behind, at, or over the low watermark: the rest reads as it did, to everyone."""
    flight = Flight()
    image = flight.landed((4,), torn)
    with walkit.open(storage=image, options=tiny(recovery="holes")) as log:
        (hole,) = log.recovery.holes
        assert (hole.first_lsn, hole.last_lsn) == (5, 8)
        for lsn in range(11, 31):
            log.append(value(lsn))
        log.wait_idle()
        before = [(r.lsn, r.value) for r in log.read()]
        assert log.trim(low, waste_ratio=0).rewritten.bytes_written > 0
        assert oldest(log).first_lsn == min(low, 4) + 1
        assert [(r.lsn, r.value) for r in log.read()] == [row for row in before if row[0] > low]
        assert lsns(log.follow(low + 1, timeout=0)) == [row[0] for row in before if row[0] > low]
        assert log.parts.manifest_store.current.holes == (hole,)
    assert walkit.verify(image).ok
    with walkit.open(storage=image, options=tiny(recovery="absolute")) as log:
        assert [(r.lsn, r.value) for r in log.read()] == [row for row in before if row[0] > low]
