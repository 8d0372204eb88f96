"""Cursors: saved progress. A missing or damaged one starts again, a wrong one is refused, nothing is skipped."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import walkit
from tests.support.logs import faulty_log, lsns, memory_log, run_python, tiny, values
from tests.support.stores import memory_store
from walkit.errors import CursorError, FormatVersionError, GapError, LogClosedError, StorageError
from walkit.format.checksum import crc32c
from walkit.format.consumer_file import decode_cursor, encode_cursor
from walkit.models import CrashingStorage

FILE = "cursor-c"


def stored(storage: Any, name: str = FILE) -> bytes:
    """The bytes of a cursor's file."""
    file = storage.open(name, "read")
    try:
        data: bytes = file.read(0, 4096)
    finally:
        file.close()
    return data


def put(storage: Any, data: bytes, name: str = FILE) -> None:
    """Replace a cursor's file by these bytes."""
    if name in storage.names():
        storage.remove(name)
    storage.open(name, "create").write(0, [data])


def ten(storage: CrashingStorage | None = None, **options: Any) -> walkit.WriteAheadLog:
    """A log with ten records more."""
    log = walkit.open(storage=storage or CrashingStorage(), options=tiny(**options))
    log.append_many([b"%d" % i for i in range(10)])
    return log


def test_progress_is_saved_and_taken_up_again() -> None:
    """Advance, close and open again, also read-only: the cursor keeps its LSN, and reading continues there."""
    storage = CrashingStorage()
    with ten(storage) as log:
        cursor = log.cursor("c")
        assert (cursor.lsn, lsns(cursor.read())) == (0, list(range(1, 11)))
        assert FILE not in storage.names()
        cursor.advance(4)
        cursor.advance(7)
        assert (cursor.lsn, lsns(cursor.read()), repr(cursor)) == (7, [8, 9, 10], "Cursor('c', lsn=7)")
        assert [r.lsn for r in cursor.follow(timeout=0)] == [8, 9, 10]
    with walkit.open(storage=storage, mode="r") as reader:
        assert lsns(reader.cursor("c").read()) == lsns(reader.cursor("c").follow(timeout=0)) == [8, 9, 10]
        reader.cursor("c").advance(8)
    with walkit.open(storage=storage, options=tiny()) as log:
        assert log.cursor("c").lsn == 8
        assert [(f.name, f.lsn, f.fault) for f in log.cursors()] == [("c", 8, None)]
        assert log.drop_cursor("c") and not log.drop_cursor("c")
        assert log.cursors() == [] and log.cursor("c").lsn == 0


def test_a_cursor_holds_nothing_back() -> None:
    """Trim past a cursor: it is a GapError with the oldest LSN, also for a consumer that begins; a hold prevents it."""
    with ten() as log:
        log.cursor("c").advance(3)
        assert log.trim(6) == 6
        for cursor in (log.cursor("c"), log.cursor("new")):
            with pytest.raises(GapError) as gap:
                cursor.read()
            assert (gap.value.wanted, gap.value.oldest) == (cursor.lsn + 1, 7)
            with pytest.raises(GapError):
                next(cursor.follow(timeout=0))
        held = log.cursor("held", start_lsn=log.first_lsn)
        hold = log.hold("held", held.lsn + 1)
        assert log.trim(10) == 6 and lsns(held.read()) == [7, 8, 9, 10]
        held.advance(9)
        hold.advance(held.lsn + 1)
        assert log.trim(10) == 9 and lsns(held.read()) == [10]


def test_where_a_new_consumer_begins() -> None:
    """Give start_lsn: a missing cursor starts there, durably; an existing one stays; impossible LSNs are refused."""
    storage = CrashingStorage()
    with ten(storage) as log:
        assert log.cursor("c", start_lsn=11).lsn == 10
        assert log.cursor("c", start_lsn=3).lsn == 10
        for wrong in (0, 12, -1, "3", True):
            with pytest.raises(ValueError, match="start_lsn"):
                log.cursor("other", start_lsn=wrong)  # type: ignore[arg-type]
        assert [f.name for f in log.cursors()] == ["c"]
    with walkit.open(storage=storage.crash(), options=tiny()) as log:
        assert log.cursor("c").lsn == 10


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "c.new", "ü", "x" * 65, None, 3])
def test_invalid_names(name: Any) -> None:
    """Ask for a cursor by an invalid name, or one too long: refused, nothing is written."""
    with memory_log() as log:
        with pytest.raises(ValueError, match="name"):
            log.cursor(name)
        assert log.cursors() == []


def test_a_cursor_never_moves_back_or_beyond_the_log() -> None:
    """Advance below its position, beyond the end, or to no number: refused, and the file is as it was."""
    storage = CrashingStorage()
    with ten(storage) as log:
        cursor = log.cursor("c")
        cursor.advance(5)
        before = stored(storage)
        for wrong in (4, 0, -1, 11, 1 << 70, "6", None, True):
            with pytest.raises(walkit.OptionsError, match=r"cursor|an LSN"):
                cursor.advance(wrong)  # type: ignore[arg-type]
        cursor.advance(5)
        assert stored(storage) == before and cursor.lsn == 5


def test_any_record_of_a_frame_is_a_place_to_stand() -> None:
    """Advance into the midst of a frame and of a transaction: the rest of it comes next, nothing else."""
    with memory_log() as log:
        log.append_many([b"1", b"2", b"3"])
        with log.transaction() as tx:
            tx.put(b"k", b"4")
            tx.put(b"k", b"5")
        for lsn in range(1, 6):
            log.cursor("c").advance(lsn)
            assert values(log.cursor("c").read()) == [b"%d" % n for n in range(lsn + 1, 6)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: b"",
        lambda d: d[:63],
        lambda d: d + b"\0",
        lambda d: bytes(64),
        lambda d: d[:50] + b"\xff" + d[51:],
    ],
    ids=["empty", "short", "long", "zeros", "flipped"],
)
def test_a_damaged_cursor_starts_again_with_an_event(damage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """F-17.3: damage a cursor: all is seen again, with a fault and an event, whatever start is given."""
    storage = CrashingStorage()
    with ten(storage) as log:
        log.cursor("c").advance(7)
    put(storage, damage(stored(storage)))
    with walkit.open(storage=storage, options=tiny()) as log:
        with caplog.at_level(logging.WARNING, logger="walkit"):
            cursor = log.cursor("c", start_lsn=9)
        assert "walkit.cursor.reset" in caplog.text
        assert cursor.lsn == 0 and cursor.fault is not None and lsns(cursor.read()) == list(range(1, 11))
        (fact,) = log.cursors()
        assert (fact.name, fact.lsn) == ("c", None) and fact.fault == cursor.fault
        assert any("'c' cannot be used" in note for note in walkit.verify(storage).notes)
        cursor.advance(2)
        assert log.cursor("c").lsn == 2 and log.cursor("c").fault is None
    assert walkit.verify(storage).ok


def test_a_newer_cursor_is_refused() -> None:
    """F-17.1: a cursor of a newer version: FormatVersionError, and neither reading nor advancing writes over it."""
    storage = CrashingStorage()
    with ten(storage) as log:
        cursor = log.cursor("c")
        cursor.advance(4)
        newer = bytearray(stored(storage))
        newer[8] = 9
        newer[60:] = crc32c(newer[:60]).to_bytes(4, "little")
        put(storage, bytes(newer) + b"more")
        with pytest.raises(FormatVersionError):
            log.cursor("c")
        with pytest.raises(FormatVersionError):
            cursor.advance(5)
        assert stored(storage) == bytes(newer) + b"more"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lsn": 11}, "beyond"),
        ({"log_id": 1}, "foreign"),
        ({"epoch_id": 1}, "identity"),
        ({"epoch": 0}, "identity"),
    ],
    ids=str,
)
def test_a_cursor_that_does_not_fit_is_refused(change: dict[str, int], reason: str) -> None:
    """F-17.4: a whole cursor beyond the end, of another log or epoch: refused by name, nothing is changed."""
    storage = CrashingStorage()
    with ten(storage) as log:
        log.cursor("c").advance(10)
    mark = decode_cursor(stored(storage), FILE)._replace(**change)
    put(storage, encode_cursor(mark))
    for mode in ("a", "r"):
        with walkit.open(storage, mode) as log:
            with pytest.raises(CursorError) as refused:
                log.cursor("c", start_lsn=1)
            assert (refused.value.name, refused.value.reason, refused.value.lsn) == ("c", reason, mark.lsn)
            assert stored(storage) == encode_cursor(mark)
    with walkit.open(storage=storage) as log:
        log.drop_cursor("c")
        assert lsns(log.cursor("c", start_lsn=9).read()) == [9, 10]


def test_a_reused_lsn_differs_from_the_first() -> None:
    """F-17.4: lose records on a device that lies, give their numbers again: the cursor knows that it saw others."""
    storage = CrashingStorage()
    with ten(storage):
        pass
    image = storage.process_kill()
    with walkit.open(storage=storage, options=tiny()) as log:
        log.append_many([b"seen"] * 3)
        log.cursor("c").advance(12)
    put(image, stored(storage))
    with walkit.open(storage=image, options=tiny()) as log:
        with pytest.raises(CursorError, match="the log ends at"):
            log.cursor("c")
        log.append_many([b"another"] * 5)
        with pytest.raises(CursorError) as refused:
            log.cursor("c")
        assert refused.value.reason == "identity"


def test_two_consumers_of_one_name_are_refused() -> None:
    """Advance, and drop, without a cursor's knowledge: its next step is refused; one that is opened again continues."""
    with ten() as log:
        one, two = log.cursor("c"), log.cursor("c")
        one.advance(3)
        with pytest.raises(CursorError) as moved:
            two.advance(2)
        assert (moved.value.reason, moved.value.expected, moved.value.found) == ("moved", 0, 3)
        log.drop_cursor("c")
        with pytest.raises(CursorError):
            one.advance(4)
        log.cursor("c").advance(5)


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_a_cursor_is_never_ahead_after_a_power_cut(durability: Any) -> None:
    """F-17.2: advance over records that are not durable yet: they are then; the power cut keeps both."""
    storage = CrashingStorage()
    with ten(storage, durability=durability, interval_ms=60_000 if durability == "interval" else None) as log:
        assert log.durable_lsn < 10
        log.cursor("c").advance(6)
        images = [storage.crash(keep="none")]
        log.append(b"11")
        assert log.durable_lsn < 11
        log.cursor("new", start_lsn=12)
        images.append(storage.crash(keep="none"))
    for image, done in zip(images, ({"c": 6}, {"c": 6, "new": 11}), strict=True):
        with walkit.open(storage=image, options=tiny()) as log:
            assert {f.name: f.lsn for f in log.cursors()} == done
            assert [log.cursor(name).lsn for name in done] == list(done.values())
            assert log.acked_lsn >= max(done.values())


def test_a_failure_at_every_step_of_an_advance() -> None:
    """Fail each operation of an advance: an error, the log goes on, and advancing again is right."""
    for operation, file in [
        *((n, "cursor-c.new") for n in ("create", "write", "sync")),
        ("replace", "cursor-c"),
        ("sync_directory", ""),
        ("open", "cursor-c"),
    ]:
        for landed in (False, True) if operation in ("replace", "sync") else (False,):
            storage, log = faulty_log()
            with log:
                log.append_many([b"x"] * 5)
                cursor = log.cursor("c", start_lsn=1)
                storage.fail(operation, file, landed=landed)  # type: ignore[arg-type]
                with pytest.raises(StorageError):
                    cursor.advance(3)
                log.append(b"goes on")
                assert cursor.lsn == 0
                cursor.advance(4)
                assert log.cursor("c").lsn == 4


def test_failures_one_after_the_other_that_stand_all_the_same() -> None:
    """Fail a save that landed, and then one that did not: the cursor knows its own save from another's."""
    storage, log = faulty_log()
    with log:
        log.append_many([b"x"] * 8)
        cursor = log.cursor("c", start_lsn=1)
        for operation, lsn in (("sync_directory", 3), ("sync", 4)):
            storage.fail(operation, "cursor-c.new" if operation == "sync" else "")  # type: ignore[arg-type]
            with pytest.raises(StorageError):
                cursor.advance(lsn)
        assert log.cursors()[0].lsn == 3
        cursor.advance(5)
        log.cursor("c").advance(6)
        with pytest.raises(CursorError):
            cursor.advance(7)


def test_closed_logs_refuse() -> None:
    """Use cursors of a closed log and a closed reader: LogClosedError each time."""
    storage = CrashingStorage()
    with ten(storage) as log, walkit.open(storage=storage, mode="r") as reader:
        kept = [log.cursor("c"), reader.cursor("c")]
    for cursor in kept:
        with pytest.raises(LogClosedError):
            cursor.advance(1)
        with pytest.raises(LogClosedError):
            cursor.read()
    for closed in (log, reader):
        for name, arguments in (("cursor", ("c",)), ("cursors", ()), ("drop_cursor", ("c",))):
            with pytest.raises(LogClosedError):
                getattr(closed, name)(*arguments)


def test_what_compaction_dropped_is_a_gap_and_no_skip() -> None:
    """Compact below a cursor: it is a GapError; one above the thinned records reads on."""
    with memory_store() as store:
        for i in range(60):
            store.put(b"%d" % (i % 3), b"%d" % i * 4000)
        low, high = store.log.cursor("low"), store.log.cursor("high")
        low.advance(5)
        assert store.compact().records_dropped > 0
        high.advance(store.log.complete_from_lsn - 1)
        with pytest.raises(GapError):
            low.read()
        assert lsns(high.read()) == list(range(high.lsn + 1, 61))


def test_a_cursor_moves_in_a_process_of_its_own(tmp_path: Any) -> None:
    """Write here and consume in another process: its saved LSN is found here."""
    with walkit.open(tmp_path / "log", options=tiny()) as log:
        log.append_many([b"%d" % i for i in range(10)])
        done = run_python(
            """
            import sys, walkit
            with walkit.open(sys.argv[1], mode="r") as reader:
                cursor = reader.cursor("child")
                for record in cursor.read():
                    if record.lsn == 6:
                        break
                    cursor.advance(record.lsn)
                print(cursor.lsn)
            """,
            tmp_path / "log",
        )
        assert done.stdout.strip() == "5" and log.cursor("child").lsn == 5


class Effects:
    """A consumer's own place: a list of its effects that a crash keeps, with an LSN if it is kept there."""

    def __init__(self) -> None:
        self.done: list[int] = []

    @property
    def lsn(self) -> int:
        return self.done[-1] if self.done else 0


class Crash(BaseException):
    """The consumer's process ends here."""


def consume(log: walkit.WriteAheadLog, effects: Effects, dies: tuple[str, int], *, exactly: bool) -> None:
    """Consume all, saving every third record; die at a moment of a record."""
    cursor = log.cursor("c")
    if exactly and cursor.lsn < effects.lsn:
        cursor.advance(effects.lsn)  # the LSN was kept with the effect: the cursor only follows it
    for record in cursor.read():
        if dies == ("before the effect", record.lsn):
            raise Crash
        effects.done.append(record.lsn)
        if dies == ("after the effect", record.lsn):
            raise Crash
        if record.lsn % 3 == 0:
            cursor.advance(record.lsn)


@pytest.mark.parametrize("moment", ["before the effect", "after the effect"])
@pytest.mark.parametrize("exactly", [False, True])
def test_at_least_once_and_exactly_once(moment: str, exactly: bool) -> None:
    """Kill a consumer at each record: the cursor alone misses none; the LSN kept in the effect shows none twice."""
    twice = 0
    for at in range(1, 11):
        with ten() as log:
            effects = Effects()
            with pytest.raises(Crash):
                consume(log, effects, (moment, at), exactly=exactly)
            consume(log, effects, ("", 0), exactly=exactly)
            assert sorted(set(effects.done)) == list(range(1, 11))
            twice += len(effects.done) - 10
    assert twice == 0 if exactly else twice > 0


def test_a_cursor_at_the_edge_of_a_log_with_a_rebuilt_manifest() -> None:
    """Trim up to a cursor, lose the manifest, repair: the epoch of its work is forgotten, and it remains."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=tiny()) as log:
        log.append_many([bytes(7000)] * 80)
        log.wait_idle()
        log.cursor("c").advance(32)
        assert log.trim(32) == 32
    storage.remove("manifest")
    walkit.repair(storage)
    with walkit.open(storage=storage, options=tiny()) as log:
        assert lsns(log.cursor("c").read()) == list(range(33, 81))
