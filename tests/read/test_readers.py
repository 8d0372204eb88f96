"""Readers beside a living writer: exactly the durable prefix, over rotation, trim, close and death."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.damaged_logs import patch, read
from tests.support.logs import SEGMENTS, Child, faulty_log, lsns, tiny, values
from tests.support.threads import GUARD_S, Task
from walkit import GapError
from walkit.errors import CorruptionError, LogClosedError, LogNotFoundError
from walkit.models import CrashingStorage
from walkit.models.wrapper import PassingStorage
from walkit.read import reader as logreader
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import OpenMode, Storage, StorageFile


@pytest.fixture
def storage() -> CrashingStorage:
    """A place that writer and readers share, as processes share a folder."""
    return CrashingStorage()


def test_a_reader_sees_what_is_durable_and_nothing_more(storage: CrashingStorage) -> None:
    """Append below level sync with a reader beside it: it sees each sync's prefix, while the writer sees all."""
    with (
        walkit.open(storage=storage, options=tiny(durability="none")) as log,
        walkit.open(storage=storage, mode="r") as reader,
    ):
        assert (reader.first_lsn, reader.durable_lsn, list(reader.read())) == (1, 0, [])
        log.append_many([b"1", b"2"])
        assert list(reader.read()) == [] and reader.durable_lsn == 0
        log.sync()
        log.append(b"3")
        assert values(reader.read()) == [b"1", b"2"] and reader.durable_lsn == 2
        assert values(log.read()) == [b"1", b"2", b"3"]
    with walkit.open(storage=storage, mode="r") as reader:
        assert values(reader.read()) == [b"1", b"2", b"3"]


def test_the_writer_moves_on_between_manifest_and_mark(
    storage: CrashingStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rotate several times between a reader's two looks, at the manifest and at the durable slot: never damage."""
    log = walkit.open(storage=storage, options=tiny())
    log.append(b"1")

    def moving(look: Any) -> Any:
        def look_and_move(*arguments: Any) -> Any:
            found = look(*arguments)
            log.append_many([bytes(7000)] * 30)
            return found

        return look_and_move

    with walkit.open(storage=storage, mode="r") as reader:
        for name in ("read_durable_slot", "load_manifest"):
            with monkeypatch.context() as patch:
                patch.setattr(logreader, name, moving(getattr(logreader, name)))
                before = log.durable_lsn
                got = lsns(reader.read())
            assert got == list(range(1, len(got) + 1)) and before <= len(got) <= log.durable_lsn
    log.close()


def test_a_writer_that_begins_during_reading_is_not_damage(
    storage: CrashingStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open, append and rotate after a reader found no writer: it looks again instead of calling the log corrupt."""
    with walkit.open(storage=storage, options=tiny()) as log:
        log.append_many([bytes(7000)] * 20)
    reader = walkit.open(storage=storage, mode="r")
    writers: list[walkit.WriteAheadLog] = []

    def then_a_writer_begins(place: Any) -> Any:
        manifest = load_manifest(place)
        if not writers:
            writers.append(walkit.open(storage=storage, options=tiny()))
            writers[0].append_many([bytes(7000)] * 30)
            writers[0].trim(25)
        return manifest

    monkeypatch.setattr(logreader, "load_manifest", then_a_writer_begins)
    assert lsns(reader.read()) == list(range(26, 51))
    assert (reader.first_lsn, writers[0].durable_lsn) == (26, 50)
    writers[0].close()


class TrimmedMeanwhile(PassingStorage):
    """A killed log that another process opens, trims and closes before the `at`-th opening of a segment to read it."""

    def __init__(self, inner: CrashingStorage, at: int) -> None:
        super().__init__(inner)
        self.left = at

    def open(self, name: str, mode: OpenMode) -> StorageFile:
        """Open a file."""
        if name.endswith(".segment") and mode == "read":
            self.left -= 1
            if self.left == 0:
                with walkit.open(storage=self.inner, options=tiny()) as log:
                    log.append(b"new")
                    log.trim(log.acked_lsn - 1, waste_ratio=0)
        return super().open(name, mode)


READINGS: dict[str, Callable[[Storage, Path], object]] = {
    "read": lambda storage, _: lsns(walkit.open(storage=storage, mode="r").read()),
    "read damaged": lambda storage, _: lsns(
        walkit.open(storage=storage, mode="r").read(damaged="unverified")
    ),
    "scan": lambda storage, _: walkit.scan(storage).problems,
    "verify": lambda storage, _: walkit.verify(storage).problems,
    "copy": lambda storage, place: walkit.copy(storage, place).last_lsn,
}


@pytest.mark.parametrize("how", READINGS)
def test_a_trim_before_any_opening_of_a_file_is_read_past(how: str, tmp_path: Path) -> None:
    """Trim a log at each place where a reading opens a segment: it reads the old or the new segment, or has a gap."""
    killed = CrashingStorage()
    log = walkit.open(storage=killed, options=tiny())
    log.append_many([bytes(7000)] * 20)
    image = killed.process_kill()
    log.close()
    whole, at, ended = list(range(1, 21)), 0, False
    while not ended:
        at += 1
        storage = TrimmedMeanwhile(image.process_kill(), at)
        with suppress(GapError):
            found = READINGS[how](storage, tmp_path / f"{at}")
            assert found in ((), 20, 21, whole, [21]) or how == "read damaged", (at, found)
        ended = storage.left > 0
    assert at > 3


def test_a_reader_pausing_over_a_trim_has_a_gap_or_all(storage: CrashingStorage) -> None:
    """Trim while a reader is inside a long log: it gets all it was promised, or a GapError; never a part."""
    with (
        walkit.open(storage=storage, options=tiny()) as log,
        walkit.open(storage=storage, mode="r") as reader,
    ):
        log.append_many([bytes(7000)] * 100)
        reading = reader.read_batches()
        log.trim(90)
        with pytest.raises(GapError):
            reading.read_all()
        with pytest.raises(GapError) as gap:
            reader.read(1)
        assert gap.value.oldest == 91 == reader.first_lsn
        assert lsns(reader.read(91)) == list(range(91, 101))


def test_following_from_outside(storage: CrashingStorage) -> None:
    """Follow as a reader while the writer appends below level sync and syncs now and then: each durable record once."""
    with walkit.open(storage=storage, options=tiny(durability="none")) as log:
        reader = walkit.open(storage=storage, mode="r")
        following = Task(lambda: lsns(islice(reader.follow(1), 200)))
        for n in range(200):
            log.append(bytes(800))
            if n % 40 == 39:
                log.sync()
        assert following.result() == list(range(1, 201))
        assert list(reader.follow(201, timeout=0)) == []
        log.sync()
        log.trim(150)
        with pytest.raises(GapError):
            next(reader.follow(100))
        ends = Task(lambda: list(reader.follow(201)))
        reader.close()
        assert ends.result() == []


def test_a_closed_reader_refuses_and_a_missing_log_is_named(storage: CrashingStorage) -> None:
    """Use a reader after close, and open one without a log: typed errors."""
    with pytest.raises(LogNotFoundError):
        walkit.open(storage=storage, mode="r")
    with walkit.open(storage=storage, options=tiny()) as log:
        log.append(b"1")
    reader = walkit.open(storage=storage, mode="r")
    assert "1 segment," in reader._repr_html_() and reader.location == storage.location
    reader.close()
    reader.close()
    for attempt in (reader.read, lambda: reader.first_lsn, lambda: reader.durable_lsn):
        with pytest.raises(LogClosedError):
            attempt()
    assert list(reader.follow(1)) == []
    assert reader.closed and "closed" in repr(reader) and "closed" in reader._repr_html_()
    assert not hasattr(reader, "append")


def test_a_reader_changes_nothing(storage: CrashingStorage) -> None:
    """Read a log with a torn tail and a stray file: not a byte changes, and no lock is taken."""
    log = walkit.open(storage=storage, options=tiny())
    log.append_many([bytes(3000)] * 30)
    image = storage.process_kill()
    log.close()
    stray = image.open("00000000000000000099.segment", "create")
    stray.write(0, [b"stray"])
    stray.close()
    before = {n: image.open(n, "read").read(0, 1 << 20) for n in image.names()}
    with walkit.open(storage=image, mode="r") as reader:
        assert lsns(reader.read()) == list(range(1, 31))
        assert not image.is_locked("lock")
    assert {n: image.open(n, "read").read(0, 1 << 20) for n in image.names()} == before


def test_an_unpromised_tail_is_seen_after_death_as_recovery_would_keep_it() -> None:
    """Kill a writer of level none with a torn write: a reader sees the intact prefix, the next writer the same."""
    storage, log = faulty_log(durability="none")
    log.sync()
    log.append_many([b"a" * 500] * 3)
    storage.fail("write", SEGMENTS, short_bytes=150)
    with pytest.raises(walkit.CommitFailedError):
        log.append(b"torn" * 200)
    image = storage.inner.process_kill()
    log.close()
    with walkit.open(storage=image, mode="r") as reader:
        seen = list(reader.read())
    with walkit.open(storage=image, options=tiny()) as again:
        assert list(again.read()) == seen and lsns(seen) == [1, 2, 3, 4]


def test_damage_below_the_durable_mark_is_corruption_for_a_reader_too(storage: CrashingStorage) -> None:
    """Flip a byte of an acknowledged frame under a living writer: CorruptionError that names the record."""
    with (
        walkit.open(storage=storage, options=tiny()) as log,
        walkit.open(storage=storage, mode="r") as reader,
    ):
        results = [log.append(bytes(1000)) for _ in range(5)]
        file = storage.open("00000000000000000001.segment", "write")
        file.write(4096 + results[2].position + 300, [b"\xff"])
        file.close()
        with pytest.raises(CorruptionError) as damage:
            list(reader.read())
        assert damage.value.first_lost_lsn == 3 and damage.value.position == results[2].position
        assert lsns(reader.read(4)) == [4, 5]


WRITER = """
import json, sys, walkit
options = walkit.LogOptions(segment_bytes=65536, frame_bytes_max=8192, durability=sys.argv[2])
log = walkit.open(sys.argv[1], options=options)
for line in sys.stdin:
    command, count = json.loads(line)
    if command == "append":
        log.append_many([b"%d" % n + bytes(900) for n in range(count)])
    elif command == "sync":
        log.sync()
    elif command == "trim":
        log.trim(count)
    elif command == "close":
        log.close()
    print(json.dumps([log.acked_lsn, log.durable_lsn]), flush=True)
"""


def ask(child: Child, command: str, count: int = 0) -> tuple[int, int]:
    """Let the writer do something, and return its acknowledged and durable marks."""
    child.send([command, count])
    acked, durable = child.read()
    return acked, durable


@pytest.mark.parametrize(("level", "ending"), [("sync", "close"), ("none", "kill")])
def test_beside_a_writer_in_another_process(tmp_path: Path, level: str, ending: str) -> None:
    """Append, sync, rotate and trim there, read here: always exactly its durable prefix; after its end all it wrote."""
    path = tmp_path / "log"
    with Child(WRITER, path, level) as child:
        read_beside(child, path, level, ending)


def read_beside(child: Child, path: Path, level: str, ending: str) -> None:
    """Let a writer do its work, end it, and read beside it all the time."""
    assert ask(child, "append", 3)[0] == 3
    with walkit.open(path, mode="r") as reader:
        for count in (1, 40, 200, 1, 90):
            acked, durable = ask(child, "append", count)
            assert durable == (acked if level == "sync" else durable)
            assert lsns(reader.read()) == list(range(1, durable + 1)) and reader.durable_lsn == durable
        acked, durable = ask(child, "sync")
        assert acked == durable == 335 and lsns(reader.read()) == list(range(1, 336))
        assert ask(child, "trim", 200) == (335, 335)
        assert reader.first_lsn == 201 and lsns(reader.read()) == list(range(201, 336))
        acked, durable = ask(child, "append", 5)
        assert reader.durable_lsn == durable
        if ending == "close":
            assert ask(child, "close")[0] == 340
        else:
            child.kill()
        assert lsns(reader.read()) == list(range(201, 341)), (
            "a killed process loses nothing of the page cache"
        )
    with walkit.open(path) as log:
        assert lsns(log.read()) == list(range(201, 341))
        assert log.recovery.verdict == ("clean" if ending == "close" else "recovered")


def test_a_reader_never_sees_what_hangs_in_the_device() -> None:
    """Hang a synced write whose bytes are in the file already: readers do not see it until it is acknowledged."""
    storage, log = faulty_log()
    hang = storage.hang("synced_write", SEGMENTS)
    ticket = log.submit(b"hangs")
    assert hang.entered.wait(GUARD_S)
    with walkit.open(storage=storage, mode="r") as reader:
        assert lsns(reader.read()) == [1]
        hang.release()
        ticket.result(GUARD_S)
        assert lsns(reader.read()) == [1, 2]
    log.close()


def test_a_segment_that_is_named_keeps_its_file() -> None:
    """Let the manifest land and report a full disk: the new segment's file stays, and each record is read."""
    storage, log = faulty_log()
    full = storage.fail("replace", "manifest", errno=28, landed=True, times=None)

    def fill() -> None:
        while True:
            log.append(bytes(7000))

    with pytest.raises(walkit.LogFullError):
        fill()
    named = {s.name for s in load_manifest(storage).segments}
    assert named <= set(storage.names()), "no crash may leave a manifest that names an absent file"
    with walkit.open(storage=storage.inner.process_kill()) as again:
        assert lsns(again.read()) == list(range(1, log.acked_lsn + 1))
    with walkit.open(storage=storage, mode="r") as reader:
        assert lsns(reader.read()) == list(range(1, log.acked_lsn + 1))
        full.cancel()
        log.append(b"goes on")
        assert reader.durable_lsn == log.acked_lsn
    log.close()


def test_a_durable_segment_that_is_lost_under_a_living_writer_is_corruption(storage: CrashingStorage) -> None:
    """Remove the segment that the writer writes to: a reader gets an error, instead of a shorter log."""
    log = walkit.open(storage=storage, options=tiny(idle_marker_ms=0))
    log.append(b"1")
    with walkit.open(storage=storage, mode="r") as reader:
        assert lsns(reader.read()) == [1]
        storage.remove("00000000000000000001.segment")
        with pytest.raises(CorruptionError):
            reader.read()
    log.parts.driver.core.fail(OSError("the test took its file"))
    log.close()


def killed_below_sync(*, synced: int, more: int, slot: bool = True, marks: bool = False) -> CrashingStorage:
    """A killed log of level none: `synced` records on stable storage, and `more` that only the page cache has."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny(durability="none"))
    log.append_many([b"%d" % n + bytes(700) for n in range(synced)])
    log.sync()
    for n in range(more):
        log.append(b"more %d" % n + bytes(700 * marks))
    image = storage.process_kill()
    log.close()
    if not slot:
        image.remove("durable")
    return image


@pytest.mark.parametrize(("synced", "more"), [(0, 3), (3, 2), (120, 300)])
@pytest.mark.parametrize("slot", [True, False])
def test_what_a_dead_writer_left_in_the_page_cache_is_not_durable(synced: int, more: int, slot: bool) -> None:
    """Kill a log of level none and cut the power afterwards: all is read, only synced records are called durable."""
    image = killed_below_sync(synced=synced, more=more, slot=slot)
    with walkit.open(storage=image, mode="r") as reader:
        assert synced + more == len(list(reader.read())) == reader.to_arrow().num_rows
        durable = reader.durable_lsn
        # Without the cell the promises of the frames behind say it; a segment that was sealed meanwhile says more.
        assert durable == synced or (more == 300 and synced < durable < synced + more)
        assert reader.last_lsn == synced + more
        assert lsns(reader.follow(1, timeout=0)) == list(range(1, durable + 1))
        cursor = reader.cursor("c")
        assert lsns(cursor.read()) == list(range(1, durable + 1))
        for wanted in range(durable + 1, synced + more + 1):
            with pytest.raises(walkit.CursorError) as refused:
                cursor.advance(wanted)
            assert (refused.value.reason, refused.value.found) == ("undurable", durable)
        with pytest.raises(walkit.CursorError):
            reader.cursor("new", start_lsn=synced + more + 1)
        assert cursor.lsn == 0 and not reader.cursors()
        if durable:
            cursor.advance(durable)
    left = image.crash(keep="none")
    assert [f.lsn for f in walkit.open(storage=left, mode="r").cursors()] == [durable] * bool(durable)
    with walkit.open(storage=left, options=tiny()) as log:
        assert log.acked_lsn >= durable and log.cursor("c").lsn == durable


def test_the_next_opening_makes_what_is_left_durable(storage: CrashingStorage) -> None:
    """Open a killed log of level none for writing: a reader beside it goes on to the end, and its cursor may follow."""
    image = killed_below_sync(synced=2, more=3)
    with walkit.open(storage=image, mode="r") as reader:
        cursor = reader.cursor("c")
        assert reader.durable_lsn == 2
        with walkit.open(storage=image, options=tiny(durability="none")) as log:
            assert reader.durable_lsn == reader.last_lsn == log.durable_lsn == 5
            cursor.advance(5)
        assert lsns(reader.follow(1, timeout=0)) == [1, 2, 3, 4, 5]
    with walkit.open(storage=image.crash(keep="none"), options=tiny()) as log:
        assert log.cursor("c").lsn == log.acked_lsn == 5


def test_of_a_killed_log_of_level_sync_all_that_was_acknowledged_is_durable(storage: CrashingStorage) -> None:
    """Kill a writer of level sync over many segments: a reader follows, and a cursor saves, all it acknowledged."""
    log = walkit.open(storage=storage, options=tiny())
    for n in range(40):
        log.append(b"%d" % n + bytes(5000))
    image = storage.process_kill()
    log.close()
    with walkit.open(storage=image, mode="r") as reader:
        assert reader.durable_lsn == 40
        assert lsns(reader.follow(1, timeout=0)) == list(range(1, 41))
        reader.cursor("c").advance(40)


def test_a_segment_of_another_log_is_not_read() -> None:
    """Put a segment of another log under an open one: refused by its name, though each frame of it is right."""
    storages = [CrashingStorage(), CrashingStorage()]
    with (
        walkit.open(storage=storages[0], options=tiny()) as log,
        walkit.open(storage=storages[1], options=tiny()) as other,
    ):
        for n in range(40):
            log.append(b"%d" % n * 1000)
            other.append(b"%d" % n * 1000)
        log.wait_idle()
        other.wait_idle()
        name = min(name for name in storages[0].names() if name.endswith(".segment"))
        assert lsns(log.read()) == list(range(1, 41))
        patch(storages[0], name, 0, read(storages[1], name))
        with pytest.raises(CorruptionError, match=f"{name} is not the one that the manifest names"):
            lsns(log.read())
