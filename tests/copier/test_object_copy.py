"""`walkit.copy` between folders and object stores: the same frames, at the same positions, or nothing."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Event

import pytest

import walkit
from tests.objects.made_log import MadeLog
from tests.support.logs import Child, tiny
from tests.support.threads import Task
from walkit.copier import log_copy
from walkit.errors import (
    CorruptionError,
    DivergenceError,
    LogNotFoundError,
    OptionsError,
    SegmentMissingError,
    WalkitError,
)
from walkit.format.checksum import crc32c
from walkit.objects.layout import START, object_key
from walkit.objects.view import ObjectEnd
from walkit.record import to_datetime
from walkit.spark.object_log import lsn_at
from walkit.storage.object_memory import MemoryObjectStore, ObjectRequest

DIRECTIONS = [("objects:log", "copy"), ("log", "objects:copy"), ("objects:log", "objects:copy")]
Frames = list[tuple[int, int, int, int]]
NOTHING: Frames = []


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of some frames, so that a small segment has several."""
    monkeypatch.setattr(log_copy, "CHUNK_BYTES", 10_000)


def options_for(place: str | MemoryObjectStore | Path) -> walkit.LogOptions:
    """Segments of some frames, where each place can have them."""
    is_folder = isinstance(place, Path) or (isinstance(place, str) and ":" not in place)
    return tiny() if is_folder else walkit.LogOptions(segment_bytes=1 << 16)


def fill(place: str | MemoryObjectStore | Path, epochs: int = 3, frames: int = 10) -> None:
    """Write a log of some openings, one of which writes nothing."""
    for epoch in range(epochs):
        with walkit.open(place, options=options_for(place)) as log:
            for at in range(frames if epoch != 1 else 0):
                log.append_many([bytes([at]) * 300] * 7, [b"k%d" % at] * 7)


def frames_of(place: str | MemoryObjectStore | Path) -> Frames:
    """Return position, first LSN, chain and checksum of each frame with records; none without a log."""
    try:
        reader = walkit.open(place, "r")
    except LogNotFoundError:
        return NOTHING
    with reader:
        frames = reader.source.now().view.frames(1)
        return [(h.position, h.first_lsn, h.chain, crc32c(bytes(f))) for h, f, _ in frames]


def lineage_of(place: str | Path) -> tuple[object, ...]:
    with walkit.open(place, "r") as reader:
        manifest = reader.source.now().view.manifest
        return manifest.log_id, manifest.lineage, manifest.end


@pytest.mark.parametrize(("source", "target"), DIRECTIONS)
def test_a_copy_has_the_frames_of_its_log(
    source: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copy a log in each direction: equal frames, positions, chain and lineage, no damage; both go on, and part."""
    monkeypatch.chdir(tmp_path)
    fill(source)
    seen: list[tuple[int, int]] = []
    report = walkit.copy(source, target, lambda done, total: seen.append((done, total)))
    assert frames_of(target) == frames_of(source) != NOTHING
    assert lineage_of(target) == lineage_of(source)
    assert (report.first_lsn, report.last_lsn, report.records) == (1, 140, 140) and report.segments > 1
    assert seen[-1][0] == seen[-1][1] > 0
    checked = walkit.verify(target)
    assert checked.ok and (checked.frames_checked, checked.records_checked) == (20, 140)
    for place in (source, target):
        with walkit.open(place) as log:
            assert log.append(b"more").last_lsn == 141
        assert walkit.verify(place).ok
    with pytest.raises(OptionsError):
        walkit.copy(source, target)


def test_new_and_empty_logs_are_copied(tmp_path: Path) -> None:
    """Copy a log without records, in each direction: the copy is written at LSN 1."""
    pairs = (("objects:{}/a", "{}/b"), ("{}/c", "objects:{}/d"), ("objects:{}/a", "objects:{}/e"))
    for source, target in (tuple(place.format(tmp_path) for place in pair) for pair in pairs):
        fill(source, frames=0)
        assert walkit.copy(source, target).records == 0
        with walkit.open(target) as log:
            assert log.append(b"first").last_lsn == 1


# -- refused


def holed(place: Path) -> None:
    with walkit.open(place, options=tiny(ack_order="completion", in_flight=2)) as log:
        log.append(b"value")


def trimmed(place: Path) -> None:
    with walkit.open(place, options=tiny()) as log:
        log.append_many([bytes(3000)] * 60)
        log.trim(40)


def compacted(place: Path) -> None:
    with walkit.Store.open(place, options=tiny()) as store:
        for at in range(60):
            store[b"key"] = bytes([at]) * 3000
        store.compact()


@pytest.mark.parametrize("make", [holed, trimmed, compacted])
def test_logs_that_no_object_store_can_have(make: Callable[[Path], None], tmp_path: Path) -> None:
    """Copy a log with another order, of which a part is gone or compacted: OptionsError, and no object is there."""
    make(tmp_path / "log")
    store = MemoryObjectStore()
    with pytest.raises(OptionsError, match="no object store can have this log"):
        walkit.copy(tmp_path / "log", store)
    assert not store.objects.held


def test_places_that_have_something_are_left_alone(tmp_path: Path) -> None:
    """Copy to a log, to objects without a manifest, to another's unfinished copy; options that nothing takes."""
    fill(tmp_path / "log")
    other, lost = MadeLog(), MadeLog()
    lost.store.delete("manifest")
    begun = MemoryObjectStore()
    fill(tmp_path / "other")
    with pytest.raises(InterruptedError):
        walkit.copy(tmp_path / "other", begun.client(stop_at(4)))
    for store in (other.store, lost.store, begun):
        before = dict(store.objects.held)
        with pytest.raises(OptionsError, match="Nothing was changed"):
            walkit.copy(tmp_path / "log", store)
        assert store.objects.held == before
    with pytest.raises(OptionsError):
        walkit.copy(tmp_path / "log", tmp_path / "copy", storage_options={"region": "x"})
    with pytest.raises(LogNotFoundError):
        walkit.copy(MemoryObjectStore(), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


# -- ended early


def stop_at(number: int) -> Callable[[ObjectRequest], None]:
    """Return the plan of a process that dies before its request of this number."""

    def plan(request: ObjectRequest) -> None:
        if request.number >= number:
            raise InterruptedError

    return plan


def test_a_copier_that_dies_before_any_request_is_continued(tmp_path: Path) -> None:
    """End a copy into an object store before each of its requests: no log is there, and the next copy has all."""
    fill(tmp_path / "log")
    wanted = frames_of(tmp_path / "log")
    for number in count():
        store = MemoryObjectStore()
        client = store.client(stop_at(number))
        try:
            walkit.copy(tmp_path / "log", client)
            break
        except InterruptedError:
            pass
        for mode in ("r", "a") if store.objects.held else ():
            with pytest.raises((LogNotFoundError, CorruptionError)):
                walkit.open(store, mode)
        puts = client.counts()["put_if_absent"]
        report = walkit.copy(tmp_path / "log", store)
        assert frames_of(store) == wanted and report.records == 140
        assert store.counts()["put_if_absent"] + puts <= client.counts()["put_if_absent"] + 14
    assert number > 12


COPIER = """
    import json, os, sys, walkit
    print(0, flush=True)
    for line in sys.stdin:
        source, target = json.loads(line)
        pid = os.fork()
        if not pid:
            walkit.copy(source, target)
            os._exit(0)
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)
"""


# Slow: between two object stores. Each way of reading and of writing is killed in the other directions.
@pytest.mark.parametrize(
    ("source", "target"), [*DIRECTIONS[:2], pytest.param(*DIRECTIONS[2], marks=pytest.mark.slow)]
)
def test_a_copier_that_is_killed_leaves_no_log(
    source: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL a copier at several moments in each direction: no log or a whole one, and the next copy ends."""
    monkeypatch.chdir(tmp_path)
    fill(source, frames=60)
    wanted, generator, ends = frames_of(source), random.Random(3), []
    with Child(COPIER) as copier:
        copier.read()
        for n in range(4):
            place = f"{target}-{n}"
            copier.send([source, place])
            time.sleep(generator.uniform(0, 0.1))
            os.kill(copier.read(), signal.SIGKILL)
            ends.append(copier.read())
            found = frames_of(place)
            assert found in (NOTHING, wanted)
            if not found:
                walkit.copy(source, place)
            assert frames_of(place) == wanted and walkit.verify(place).ok
    assert signal.SIGKILL in ends


@pytest.mark.parametrize(("source", "target"), DIRECTIONS)
def test_copies_beside_a_writer_at_full_speed(
    source: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copy a log three times while a thread appends to it: each is a prefix that has all from before the call."""
    monkeypatch.chdir(tmp_path)
    over = Event()
    with walkit.open(source, options=options_for(source)) as log:

        def append() -> int:
            while not over.is_set():
                log.append_many([bytes(500)] * 20)
            return log.acked_lsn

        log.append(b"first")
        writer = Task(append)
        try:
            for n in range(3):
                before = log.acked_lsn
                report = walkit.copy(source, f"{target}-{n}")
                assert report.last_lsn >= before and walkit.verify(f"{target}-{n}").ok
        finally:
            over.set()
        assert writer.result() >= report.last_lsn >= before > 0
        wanted = frames_of(source)
    for n in range(3):
        found = frames_of(f"{target}-{n}")
        assert found == wanted[: len(found)]


# -- a damaged source


def flipped(log: MadeLog, number: int) -> None:
    data = bytearray(log.store.get(object_key(number)).data)
    data[200] ^= 1
    log.put(object_key(number), bytes(data))


def foreign(log: MadeLog, number: int) -> None:
    other = MadeLog(log_id=0x99)
    while other.place.number < number:
        other.append([b"other"])
    log.put(object_key(number), other.store.get(object_key(number)).data)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (flipped, CorruptionError),
        (lambda log, number: log.store.delete(object_key(number)), SegmentMissingError),
        (foreign, DivergenceError),
    ],
)
def test_damage_of_a_source_is_not_copied(
    damage: Callable[[MadeLog, int], None], error: type[WalkitError], tmp_path: Path
) -> None:
    """Flip a bit of a bulk, delete it, or put another log's in its place: a typed error that names it, and no copy."""
    log = MadeLog()
    for at in range(9):
        log.append([bytes([at]) * 100] * 3)
    log.save()
    assert log.claims.floor == START
    damage(log, 6)
    for target in (tmp_path / "copy", MemoryObjectStore()):
        with pytest.raises(error, match=object_key(6)):
            walkit.copy(log.store, target)
        assert frames_of(target) == NOTHING


def test_a_compacted_log_of_object_storage_is_copied(tmp_path: Path) -> None:
    """Compact a Store on object storage and copy it into a folder: the same state, and the records that are left."""
    url = f"objects:{tmp_path}/log"
    with walkit.Store.open(url, options=walkit.LogOptions(segment_bytes=1 << 16)) as store:
        for at in range(120):
            store[b"%d" % (at % 5)] = bytes([at]) * 3000
        assert store.compact().records_after < 120
        report = walkit.copy(url, tmp_path / "copy")
        wanted = dict(store.items())
    assert report.records < 120 and walkit.verify(tmp_path / "copy").ok
    with walkit.Store.open(tmp_path / "copy") as copied:
        assert dict(copied.items()) == wanted


def test_a_copy_in_an_object_store_has_the_times_of_its_log(tmp_path: Path) -> None:
    """Copy a log of several openings: each time finds the LSN that it finds in the source, and no record is old."""
    source, target = MemoryObjectStore(), MemoryObjectStore()
    fill(source, frames=6)
    walkit.copy(source, target.client())
    walkit.copy(source, tmp_path / "copy")
    sealed_us = [frame.sealed_us for frame, _, _ in ObjectEnd(source).now().view.frames(1)]
    for at_us in (sealed_us[0] - 1, *sealed_us, sealed_us[-1] + 1):
        at = to_datetime(at_us)
        assert at is not None
        found = [lsn_at(ObjectEnd(store).now().view, at) for store in (source, target)]
        assert found[0] == found[1] == walkit.lsn_at(tmp_path / "copy", at)
    with walkit.open(target) as log:
        log.append(b"own")
        assert log.enforce_retention(walkit.Retention(age_s=3600)).records == 0 and log.first_lsn == 1


def test_a_copy_beside_checkpoints_is_whole(tmp_path: Path) -> None:
    """Take three checkpoints before each third request of a copy: a snapshot goes, and the copy is whole."""
    number, gone = 0, 0
    while True:
        store, begun = MemoryObjectStore(), list[int]()
        with walkit.Store.open(store.client(), options=tiny()) as state:
            for key in range(6):
                state.put(b"%d" % key, bytes(900))
            state.checkpoint(trim=False)

            def between(
                request: ObjectRequest,
                number: int = number,
                state: walkit.Store = state,
                begun: list[int] = begun,
            ) -> None:
                if request.number == number and not begun:
                    begun.append(number)

                    def checkpoints() -> None:
                        for key in range(3):
                            state.put(b"new-%d" % key, b"v")
                            state.checkpoint(trim=False)

                    Task(checkpoints).result()

            report = walkit.copy(store.client(between), tmp_path / f"copy-{number}")
            gone += 6 not in report.snapshots
        with walkit.Store.open(tmp_path / f"copy-{number}") as copied:
            assert len(copied) == 6 + (3 if report.last_lsn == 9 else 0)
        if not begun:
            break
        number += 3
    assert number > 12 and gone > 1
