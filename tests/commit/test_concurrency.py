"""Many threads at once: every record once, in order, over hundreds of segments, until the end."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

import walkit
from tests.support.logs import (
    faulty_log,
    headers,
    lsns,
    memory_log,
    reopened,
    tiny,
    values,
    view_of,
)
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.errors import LogClosedError, LogFullError
from walkit.models import CrashingStorage
from walkit.segments.frame_walk import FrameWalk
from walkit.storage import FileStorage


def has_acked(log: walkit.WriteAheadLog, lsn: int) -> bool:
    """Whether so much is acknowledged."""
    return log.acked_lsn >= lsn


def has_marks(log: walkit.WriteAheadLog, count: int) -> bool:
    """Whether so many marks were written."""
    return log.statistics().marker_frames == count


def check_whole(records: list[walkit.Record], told: dict[int, bytes]) -> None:
    """Assert that the log holds exactly the acknowledged records, each at its LSN."""
    assert lsns(records) == list(range(1, len(records) + 1))
    assert {r.lsn: r.value for r in records} == told


@pytest.mark.parametrize("threads", [8, 64])
@pytest.mark.parametrize("durability", ["sync", "none"])
def test_every_record_once_and_each_threads_order_kept(threads: int, durability: str) -> None:
    """Append from many threads: results match the records read, LSNs of a thread grow, several share a frame."""
    each = 640 // threads
    with memory_log(tiny(durability=durability)) as log:
        start = threading.Barrier(threads)

        def work(who: int) -> dict[int, bytes]:
            start.wait(GUARD_S)
            mine = {}
            for n in range(each):
                value = b"%d.%d" % (who, n)
                mine[log.append(value).first_lsn] = value
            assert list(mine) == sorted(mine)
            return mine

        told: dict[int, bytes] = {}
        for task in [Task(work, who) for who in range(threads)]:
            told |= task.result()
        check_whole(list(log.read()), told)
        assert log.acked_lsn == log.appended_lsn == 640


def test_every_way_in_at_the_same_time() -> None:
    """Mix append, submit, append_many, transactions, deletes and tasks of two loops: each record once."""
    storage = CrashingStorage()
    told: dict[int, bytes] = {}
    guard = threading.Lock()

    def tell(first: int, *said: bytes) -> None:
        with guard:
            for n, value in enumerate(said):
                assert first + n not in told
                told[first + n] = value

    with walkit.open(storage=storage, options=tiny(queue_bytes_max=20_000)) as log:

        def plain(who: bytes) -> None:
            for n in range(60):
                value = b"%s:%d" % (who, n)
                tell(log.append(value, timeout=GUARD_S if n % 3 else None).first_lsn, value)

        def submits(who: bytes) -> None:
            pending = []
            for n in range(60):
                value = b"%s:%d" % (who, n) + bytes(100)
                pending.append((log.submit(value), value))
            for ticket, value in pending:
                tell(ticket.result(GUARD_S).first_lsn, value)

        def many(who: bytes) -> None:
            for n in range(6):
                block = [b"%s:%d:%d" % (who, n, i) for i in range(20)]
                tell(log.append_many(block).first_lsn, *block)

        def transacts(who: bytes) -> None:
            for n in range(20):
                block = [b"%s:%d:%d" % (who, n, i) for i in range(3)]
                with log.transaction() as tx:
                    for value in block:
                        tx.append(value)
                assert tx.result is not None
                tell(tx.result.first_lsn, *block)

        def loops(who: bytes) -> None:
            async def one(n: int) -> None:
                value = b"%s:%d" % (who, n)
                tell((await log.append_async(value)).first_lsn, value)

            async def main() -> None:
                await asyncio.gather(*(one(n) for n in range(60)))

            asyncio.run(main())

        ways = [plain, submits, many, transacts, loops]
        for task in [Task(way, b"%s%d" % (way.__name__.encode(), copy)) for way in ways for copy in range(2)]:
            task.result()
        check_whole(list(log.read()), told)
        assert log.statistics().queue_bytes == 0
    check_whole(reopened(storage), told)


@pytest.mark.parametrize("on", ["memory", "files"])
def test_hundreds_of_segments_under_load(on: str, tmp_path: Path) -> None:
    """Rotate over hundreds of segments from eight threads: no frame crosses a segment, ends meet beginnings."""
    storage = CrashingStorage() if on == "memory" else FileStorage(tmp_path / "log")
    rounds = 200 if on == "memory" else 30
    with walkit.open(storage=storage, options=tiny(durability="sync" if on == "memory" else "none")) as log:

        def work(who: int) -> None:
            for n in range(rounds):
                log.append(b"%d.%d." % (who, n) + bytes(7000))

        for task in [Task(work, who) for who in range(8)]:
            task.result()
        assert log.statistics().rotations >= rounds  # eight records of 7 KB fill a segment
        assert len(list(log.read())) == rounds * 8
    with walkit.open(storage=storage, options=tiny()) as log:
        assert log.recovery.verdict == "clean"
        sealed = log.parts.manifest_store.current.sealed
        assert len(sealed) >= rounds
        ends = [(s.end_position, s.last_lsn + 1, s.end_chain) for s in sealed]
        begins = [(s.start_position, s.first_lsn, s.start_chain) for s in sealed]
        assert begins == [(0, 1, 0), *ends[:-1]]
        for span in view_of(log).spans:
            file = storage.open(span.record.name, "read")
            segment = walkit.format.segment.SegmentHeader.decode(file.read(0, 4096), span.record.name)
            assert segment is not None
            walk = FrameWalk(file, segment, position=segment.start_position, end_position=span.end_position)
            frames = [header for header, _ in walk]
            assert walk.fault is None and len(frames) == span.record.frames
            assert file.size() == segment.offset_of(span.end_position)
            file.close()
        assert Counter(v[:6] for v in values(log.read()) if v is not None).total() == rounds * 8
        assert not [n for n in storage.names() if n.startswith("lost+found")]


def test_close_while_threads_append() -> None:
    """Close during appends: each call has a result or LogClosedError, and every result is there afterwards."""
    for round_ in range(5):
        storage = CrashingStorage()
        log = walkit.open(storage=storage, options=tiny())
        told: dict[int, bytes] = {}

        def work(who: int, log: walkit.WriteAheadLog = log, told: dict[int, bytes] = told) -> None:
            n = 0
            while True:
                value = b"%d.%d" % (who, n)
                try:
                    result = log.append(value) if n % 2 else log.submit(value).result(GUARD_S)
                except LogClosedError:
                    return
                told[result.first_lsn] = value
                n += 1

        tasks = [Task(work, who) for who in range(8)]
        wait_until(partial(has_acked, log, 20 * (round_ + 1)))
        log.close()
        for task in tasks:
            task.result()
        check_whole(reopened(storage), told)


def test_closing_from_many_threads_and_from_a_callback() -> None:
    """Close on four threads and in a callback at once: it is closed once, no thread waits forever."""
    events: list[str] = []
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny(), events=lambda name, _: events.append(name))
    go_on, entered = threading.Event(), threading.Event()

    def close_here(_: object) -> None:
        entered.set()
        assert go_on.wait(GUARD_S)
        log.close()

    log.submit(b"1").add_done_callback(close_here)
    assert entered.wait(GUARD_S)
    tasks = [Task(log.close) for _ in range(4)]
    wait_until(lambda: log.closed)
    go_on.set()
    for task in tasks:
        task.result()
    assert events.count("walkit.log.close") == 1
    log.close()
    assert values(reopened(storage)) == [b"1"]


def test_closing_in_a_callback_alone() -> None:
    """Close in a callback and nowhere else: the lock is free afterwards, the log whole."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny())
    ended = threading.Event()

    def close_here(_: object) -> None:
        log.close()
        ended.set()

    log.submit(b"1").add_done_callback(close_here)
    assert ended.wait(GUARD_S)
    assert values(reopened(storage)) == [b"1"]


def test_close_delivers_what_is_queued() -> None:
    """Close right after submitting with callbacks: all of them have been called when close returns."""
    log = memory_log()
    called: list[int] = []
    for _ in range(50):
        log.submit(b"x").add_done_callback(lambda t: called.append(t.first_lsn))
    log.close()
    assert called == list(range(1, 51))


def test_after_close_everything_is_refused_and_the_marks_stay() -> None:
    """Use every method of a closed log: LogClosedError, or the last known answer."""
    log = memory_log()
    log.append(b"1")
    hold = log.hold("h", 1)
    log.close()
    log.close()
    for attempt in (
        lambda: log.append(b"x"),
        lambda: log.append(b"x", timeout=1),
        lambda: log.submit(b"x"),
        lambda: log.delete(b"k"),
        log.sync,
        log.read,
        log.read_batches,
        log.to_arrow,
        lambda: log.follow(1),
        lambda: log.observe(print),
        lambda: log.hold("other", 1),
        lambda: log.trim(1),
        lambda: hold.advance(2),
        hold.release,
        lambda: asyncio.run(log.append_async(b"x")),
    ):
        with pytest.raises(LogClosedError):
            attempt()
    assert log.closed and log not in walkit.open_logs()
    assert (log.first_lsn, log.acked_lsn, log.durable_lsn) == (1, 1, 1)
    assert log.statistics().records_acked == 1
    assert "closed" in repr(log) and "closed" in log._repr_html_()


def test_a_block_that_raises_closes_too() -> None:
    """Leave the `with` block by an exception: the log is closed, acknowledged records are there."""
    storage = CrashingStorage()

    def fails() -> None:
        with walkit.open(storage=storage, options=tiny()) as log:
            log.append(b"1")
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert values(reopened(storage)) == [b"1"]


def test_trimming_reading_following_and_appending_at_once() -> None:
    """Trim after a follower while others append and read: it misses nothing, readers see whole ranges or GapError."""
    with memory_log() as log:
        log.append(b"0")
        hold = log.hold("follower", 1)
        stop = threading.Event()

        def append() -> None:
            for n in range(150):
                log.append(b"%d" % n + bytes(2000))

        def read() -> int:
            rounds = 0
            while not stop.is_set():
                try:
                    got = lsns(log.read())
                except walkit.GapError:
                    continue
                assert got == list(range(got[0], got[0] + len(got)))
                rounds += 1
            return rounds

        def follow() -> list[int]:
            seen = []
            for record in log.follow(1):
                seen.append(record.lsn)
                if record.lsn % 10 == 0:
                    hold.advance(record.lsn + 1)
                    log.trim(record.lsn)
                if record.lsn == 301:
                    return seen
            return seen

        reading, following = Task(read), Task(follow)
        for task in [Task(append) for _ in range(2)]:
            task.result()
        assert following.result() == list(range(1, 302))
        stop.set()
        assert reading.result() > 0
        assert log.first_lsn == 301 and log.statistics().segments < 10


def test_an_error_of_one_caller_reaches_no_other() -> None:
    """Refuse some callers (type, size, full queue) among others that append: only they get an error."""
    storage, log = faulty_log(queue_bytes_max=8100, on_full="raise")
    told: list[str] = []

    def work(who: int) -> None:
        for n in range(40):
            try:
                log.append((b"fine", "text", bytes(100_000), bytes(7000))[n % 4])
                told.append("fine")
            except (TypeError, ValueError, LogFullError) as error:
                told.append(type(error).__name__)

    for task in [Task(work, who) for who in range(8)]:
        task.result()
    outcomes = Counter(told)
    assert outcomes["RecordTypeError"] == outcomes["RecordTooLargeError"] == 80
    assert outcomes["fine"] + outcomes["LogFullError"] == 160
    assert log.acked_lsn == outcomes["fine"] + 1
    log.close()
    assert len(reopened(storage.inner)) == outcomes["fine"] + 1


def test_idle_marks_are_written_when_needed_and_only_then(tmp_path: Path) -> None:
    """Let a log with a short idle time rest: one mark after records, none after a mark, none for an opening."""
    options = tiny(idle_marker_ms=5)
    with walkit.open(tmp_path / "log", options=options) as log:
        timer = log.parts.driver.timer
        assert timer is not None
        for expected in (1, 2):
            log.append(b"x")
            wait_until(partial(has_marks, log, expected), "the mark")
            wait_until(lambda: timer.parked, "the timer to park")
        assert log.statistics().marker_frames == 2
        assert [h.records for h in headers(log)] == [1, 1]
        assert log.append(b"y").position == headers(log)[1].end_position + 128
    with walkit.open(tmp_path / "log", options=options) as log:
        assert log.recovery.verdict == "clean" and values(log.read()) == [b"x", b"x", b"y"]
        assert log.parts.driver.timer is not None and log.parts.driver.timer._thread is None
