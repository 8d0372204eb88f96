"""`walkit.copy`: whole and equal beside a writer that trims and compacts, or nothing; killed, it continues."""

from __future__ import annotations

import errno
import math
import os
import random
import shutil
import signal
import time
from contextlib import closing, suppress
from itertools import chain, combinations
from pathlib import Path

import pytest

import walkit
from tests.support.in_flight_logs import Flight
from tests.support.logs import SEGMENTS, Child, lsns, memory_log, tiny
from tests.support.stores import SMALL
from walkit.config import Retention
from walkit.copier import log_copy
from walkit.copier.gathering import Gathering
from walkit.copier.log_copy import copy_into
from walkit.errors import (
    CorruptionError,
    GapError,
    LogLockedError,
    LogNotFoundError,
    NotALogError,
    OptionsError,
    StorageError,
)
from walkit.events import EventSink
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import OperationName
from walkit.read.reader import ReaderView, reader_view_of
from walkit.read.view import LogView
from walkit.recovery.log_scan import read_durable_slot
from walkit.replication.logs.plan_check import gather_plan
from walkit.replication.logs.source import source_of
from walkit.replication.primary.bootstrap_plan import BootstrapFiles, SnapshotChecks
from walkit.segments.consumer_files import drop_claim
from walkit.segments.manifest_store import load_manifest
from walkit.storage import Storage
from walkit.storage.file import FileStorage
from walkit.store import Store


def filled(place: Path, count: int = 60) -> walkit.WriteAheadLog:
    """Return an open log of some segments."""
    log = walkit.open(place, options=tiny())
    log.append_many([bytes(3000)] * count)
    return log


def check(place: Path, first_lsn: int, last_lsn: int) -> None:
    """A copy is in order, has these records, and can be written to."""
    report = walkit.verify(place)
    assert report.ok, report.problems
    with walkit.open(place, "r") as reader:
        assert lsns(reader.read()) == list(range(first_lsn, last_lsn + 1))
        assert reader.durable_lsn == last_lsn
    with walkit.open(place, options=tiny()) as log:
        assert log.append(b"more").last_lsn == last_lsn + 1
    assert walkit.verify(place).ok


def test_an_open_a_closed_and_an_empty_log_are_copied(tmp_path: Path) -> None:
    """Copy a log when it is new, written, trimmed, closed and opened again: equal each time, id and lineage too."""
    with walkit.open(tmp_path / "log", options=tiny()) as log:
        assert walkit.copy(tmp_path / "log", tmp_path / "new").records == 0
        check(tmp_path / "new", 1, 0)
        log.append_many([bytes(3000)] * 60)
        report = walkit.copy(tmp_path / "log", tmp_path / "open")
        assert (report.first_lsn, report.last_lsn, report.records) == (1, 60, 60)
        trimmed = log.trim(40)
        assert trimmed > 1
        walkit.copy(tmp_path / "log", tmp_path / "trimmed")
        assert log.claims() == []
    walkit.copy(tmp_path / "log", tmp_path / "closed")
    with walkit.open(tmp_path / "log", options=tiny()) as log:
        walkit.copy(tmp_path / "log", tmp_path / "idle")
        log.append(b"x")
        walkit.copy(tmp_path / "log", tmp_path / "again")
        manifest = load_manifest(FileStorage(tmp_path / "log"))
    copied = load_manifest(FileStorage(tmp_path / "again"))
    assert (copied.log_id, copied.lineage) == (manifest.log_id, manifest.lineage)
    check(tmp_path / "open", 1, 60)
    for name in ("trimmed", "closed", "idle"):
        check(tmp_path / name, int(trimmed) + 1, 60)
    assert {"durable", "claims.lock"} <= {path.name for path in (tmp_path / "again").iterdir()}
    check(tmp_path / "again", int(trimmed) + 1, 61)
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("ack_order", ["append", "completion"])
def test_a_log_whose_writer_died_is_copied(ack_order: str) -> None:
    """Kill the process, or cut the power, with frames after the last seal: the copy equals the opened log."""
    source = CrashingStorage()
    log = walkit.open(storage=source, options=tiny(ack_order=ack_order))
    log.append_many([bytes(3000)] * 30)
    for image in (source.process_kill(), source.crash(keep="none"), source.crash(keep="random", seed=3)):
        target = CrashingStorage()
        assert copy_into(image, target, None, "copy").last_lsn == 30
        with walkit.open(storage=target.crash(keep="none"), options=tiny()) as copied:
            assert lsns(copied.read()) == list(range(1, 31))
    log.close()


@pytest.mark.parametrize("order", ["append", "completion"])
def test_a_log_with_holes_is_copied(order: str) -> None:
    """Land every subset of three frames in flight, in one segment and in two: copied, and planned, as it is kept."""
    for flight in (
        Flight(order=order),
        Flight(order=order, second=3),
        Flight(order=order, second=2, marks=(3,)),
    ):
        for landed in chain.from_iterable(combinations(range(2, 5), size) for size in range(4)):
            source, target = flight.landed(landed), CrashingStorage()
            copy_into(source, target, None, "copy")
            image = target.crash(keep="none")
            assert walkit.verify(image).ok, (flight, landed)
            found, own = contents(image), load_manifest(image)
            with closing(BootstrapFiles(source_of(image), SnapshotChecks(image, EventSink()))) as planned:
                gathering = Gathering(CrashingStorage())
                assert gather_plan(gathering, planned.plan, own.log_id, own.lineage), (flight, landed)
            with (
                walkit.open(storage=source, options=tiny()) as log,
                walkit.open(storage=image, options=tiny()) as copied,
            ):
                assert lsns(copied.read()) == lsns(log.read()) == found, (flight, landed)
                assert copied.append(b"new")[:4] == log.append(b"new")[:4]  # each in an epoch of its own
            assert walkit.verify(image).ok, (flight, landed)


WRITER = """
import sys
import walkit
from walkit.store import Store
options = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=0,
    retention=walkit.Retention(records_max=20_000))
store = Store.open(sys.argv[1], options=options)
for i in range(10**9):
    store.put(b"%d" % (i % 50), b"%d " % i + bytes(900))
    if i % 200 == 100:
        store.compact()
    if i % 500 == 300:
        store.checkpoint()
    if i % 20 == 0:
        print(i + 1, flush=True)
"""


def test_copies_beside_a_writer_that_trims_and_compacts(tmp_path: Path) -> None:
    """Copy a Store of another process four times while it rotates, checkpoints and compacts: the state at the end."""
    with Child(WRITER, tmp_path / "log") as writer:
        seen = 0
        for n in range(4):
            while seen < 150 * (n + 1):
                seen = writer.read()
            report = walkit.copy(tmp_path / "log", tmp_path / f"copy-{n}")
            assert report.last_lsn >= seen
            assert walkit.verify(tmp_path / f"copy-{n}").ok
            with Store.open(tmp_path / f"copy-{n}", options=SMALL) as store:
                assert store.log.durable_lsn == report.last_lsn
                wanted = {b"%d" % (i % 50): b"%d" % i for i in range(report.last_lsn)}
                assert {key: (value or b"").split()[0] for key, value in store.items()} == wanted
        assert not [
            claim for claim in walkit.open(tmp_path / "log", "r").claims() if claim.name[:5] == "copy-"
        ]


COPIER = """
import json, os, sys
import walkit
walkit.copy  # loaded before the fork
print(0, flush=True)
while target := json.loads(sys.stdin.readline() or '""'):
    pid = os.fork()
    if not pid:
        walkit.copy(sys.argv[1], target)
        os._exit(0)
    print(pid, flush=True)
    sys.stdin.readline()
    print(os.waitpid(pid, 0)[1], flush=True)
"""


def test_a_copier_that_is_killed_leaves_no_log_and_continues(tmp_path: Path) -> None:
    """SIGKILL a copier at eight moments, a writer beside it: no copy or a whole one, and the next run ends."""
    generator, ends = random.Random(11), []
    with filled(tmp_path / "log", 200) as log, Child(COPIER, tmp_path / "log") as copier:
        copier.read()
        for n in range(8):
            target = tmp_path / f"copy-{n // 2}"
            partial = target.with_name(f"{target.name}.partial")
            copier.send(str(target))
            pid = copier.read()
            time.sleep(generator.uniform(0, 0.06))
            os.kill(pid, signal.SIGKILL)  # it is waited for only after the next line
            copier.send("wait")
            ends.append(copier.read())
            last_lsn = log.append(bytes(3000)).last_lsn
            if not target.exists():
                if (partial / "manifest").exists():
                    assert walkit.verify(partial).ok
                elif partial.exists():
                    with pytest.raises((CorruptionError, LogNotFoundError, NotALogError)):
                        walkit.open(partial, "r")
                if n % 2 == 0:
                    continue
                assert walkit.copy(tmp_path / "log", target).last_lsn == last_lsn
            assert walkit.verify(target).ok and not partial.exists()
            shutil.rmtree(target)
        assert signal.SIGKILL in ends
        assert len(log.claims()) <= 6  # of those that were killed, until their leases are over


def test_a_copy_continues_with_whole_files(tmp_path: Path) -> None:
    """End a copy after its third segment, damage one that is whole: the others are kept, and the end is right."""

    def until(done: int, total: int) -> None:
        if done >= 3 * 64 * 1024:
            raise InterruptedError

    with filled(tmp_path / "log"), pytest.raises(InterruptedError):
        walkit.copy(tmp_path / "log", tmp_path / "copy", until)
    whole = sorted((tmp_path / "copy.partial").glob("*.part"))
    assert len(whole) == 3 and not (tmp_path / "copy").exists()
    sizes = [path.stat().st_size for path in whole]
    data = bytearray(whole[0].read_bytes())
    data[9000] ^= 1
    whole[0].write_bytes(data)
    report = walkit.copy(tmp_path / "log", tmp_path / "copy")
    assert report.bytes_kept == sizes[1] + sizes[2]
    check(tmp_path / "copy", 1, 60)


def contents(storage: Storage) -> list[int] | None:
    """Return the LSNs of a log, or None without one."""
    try:
        with walkit.open(storage=storage, mode="r") as reader:
            return lsns(reader.read())
    except (LogNotFoundError, NotALogError, CorruptionError):
        assert "manifest" not in storage.names()
        return None


FAULTS: tuple[tuple[OperationName, int], ...] = (
    ("create", errno.EIO),
    ("write", errno.EIO),
    ("write", errno.ENOSPC),
    ("sync", errno.EIO),
    ("replace", errno.EIO),
    ("remove", errno.EIO),
    ("sync_directory", errno.EIO),
)


@pytest.mark.parametrize(("operation", "number"), FAULTS)
def test_each_operation_of_the_target_fails(operation: OperationName, number: int) -> None:
    """Fail each call in turn: the error comes, nothing but a whole log can be opened, and a second run ends."""
    with memory_log() as log:
        log.append_many([bytes(3000)] * 60)
        source = log.parts.storage
        for nth in range(1, 100):
            target = FaultyStorage(CrashingStorage())
            fault = target.fail(
                operation, nth=nth, errno=number, short_bytes=10 if operation == "write" else None
            )
            failed = None
            try:
                copy_into(source, target, None, "copy")
            except StorageError as error:
                failed = error
            if failed is not None:
                assert failed.errno == number
                assert contents(target) in (None, list(range(1, 61)))
                copy_into(source, target, None, "copy")
            assert contents(target) == list(range(1, 61))
            assert log.claims() == []
            if not fault.hits:
                break
        assert operation == "remove" or nth > 2


def test_a_source_that_cannot_be_read(tmp_path: Path) -> None:
    """Fail the reading of a segment: EIO, no copy, and the claim is given back."""
    source = FaultyStorage(CrashingStorage())
    with walkit.open(storage=source, options=tiny()) as log:
        log.append_many([bytes(3000)] * 60)
        fault = source.fail("read", SEGMENTS, nth=4)
        with pytest.raises(StorageError) as caught:
            walkit.copy(source, tmp_path / "copy")
        assert caught.value.errno == errno.EIO and fault.hits == 1
        assert log.claims() == [] and not (tmp_path / "copy").exists()
        walkit.copy(source, tmp_path / "copy")
    check(tmp_path / "copy", 1, 60)


def test_what_is_copied_is_kept_meanwhile(tmp_path: Path) -> None:
    """Trim during a copy: nothing goes. Drop its claim, as a hard cap does, and trim: GapError, no copy."""
    with filled(tmp_path / "log") as log:

        def trim(*_: int) -> None:
            log.trim(50)

        walkit.copy(tmp_path / "log", tmp_path / "one", trim)
        check(tmp_path / "one", 1, 60)

        def force(*_: int) -> None:
            for claim in log.claims():
                drop_claim(log.parts.storage, claim.name)
            log.trim(50)

        with pytest.raises(GapError):
            walkit.copy(tmp_path / "log", tmp_path / "two", force)
        assert not (tmp_path / "two").exists()
        report = walkit.copy(tmp_path / "log", tmp_path / "two")
    check(tmp_path / "two", report.first_lsn, 60)


def test_a_segment_that_is_rewritten_under_the_copier_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewrite the oldest segment between the copier's look and its opening: nothing is gone, the copy is whole."""
    with filled(tmp_path / "log", 200) as log:
        log.wait_idle()
        assert log.trim(30, waste_ratio=1.0) == 30
        sights, saved = [], []

        def sight(source: Storage) -> ReaderView[LogView]:
            sights.append(reader_view_of(source))
            if len(sights) == 1:
                saved.append(log.trim(30, waste_ratio=0.01).rewritten.bytes_after)
            return sights[-1]

        monkeypatch.setattr(log_copy, "reader_view_of", sight)
        report = walkit.copy(tmp_path / "log", tmp_path / "copy")
        assert len(sights) == 2 and saved[0] > 0
        assert report.bytes_copied + report.bytes_kept < 200 * 3200
    check(tmp_path / "copy", 31, 200)


def test_the_claim_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each look renew the claim: its lease starts again with each chunk, and it is gone at the end."""
    monkeypatch.setattr("walkit.read.claim.RENEWALS", math.inf)
    leases: list[int] = []
    with filled(tmp_path / "log") as log:

        def look(*_: int) -> None:
            leases.extend(claim.lease_until_us or 0 for claim in log.claims())

        walkit.copy(tmp_path / "log", tmp_path / "copy", look)
        assert log.claims() == []
    assert len(set(leases)) == len(leases) > 3 and leases == sorted(leases)


def test_a_store_with_snapshots_is_copied(tmp_path: Path) -> None:
    """Copy a compacted Store with two snapshots and a damaged one: equal state, and the damaged one is left out."""
    with Store.open(tmp_path / "log", options=SMALL) as store:
        for i in range(120):
            store.put(b"%d" % (i % 30), bytes(3000))
            if i in (40, 80, 100):
                store.snapshot()
        store.compact()
        names = sorted((tmp_path / "log").glob("snapshot-*"))
        data = bytearray(names[-1].read_bytes())
        data[-100] ^= 1
        names[-1].write_bytes(data)
        report = walkit.copy(tmp_path / "log", tmp_path / "copy")
        items = store.items()
    assert (len(report.snapshots), report.snapshots_left) == (len(names) - 1, (101,))
    assert walkit.verify(tmp_path / "copy").ok
    with Store.open(tmp_path / "copy", options=SMALL) as copied:
        assert copied.items() == items
    assert "snapshots left out" in report._repr_html_() and report.to_dict()["snapshots_left"] == [101]


def test_damage_is_not_copied(tmp_path: Path) -> None:
    """Flip a byte of a sealed frame: CorruptionError that names the segment, and no copy."""
    filled(tmp_path / "log").close()
    segment = sorted((tmp_path / "log").glob(SEGMENTS))[1]
    data = bytearray(segment.read_bytes())
    data[9000] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        walkit.copy(tmp_path / "log", tmp_path / "copy")
    assert caught.value.segment == segment.name and not (tmp_path / "copy").exists()


def test_targets_that_are_refused(tmp_path: Path) -> None:
    """A target that is there, in the log, no folder, of others, or being copied to: refused, nothing is changed."""
    filled(tmp_path / "log").close()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "file", tmp_path / "folder", tmp_path / "log" / "copy", "memory://copy", 3):
        with pytest.raises(OptionsError):
            walkit.copy(tmp_path / "log", target)  # type: ignore[arg-type]
    with pytest.raises(LogNotFoundError):
        walkit.copy(tmp_path / "none", tmp_path / "copy")
    assert not list(tmp_path.rglob("*.partial")) and not (tmp_path / "none").exists()
    walkit.open(tmp_path / "copy.partial").close()
    with pytest.raises(OptionsError, match="is another log"):
        walkit.copy(tmp_path / "log", tmp_path / "copy")
    (tmp_path / "copy.partial" / "mine").write_bytes(b"")
    with pytest.raises(OptionsError, match="no copy leaves"):
        walkit.copy(tmp_path / "log", tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy.partial")

    def twice(*_: int) -> None:
        with pytest.raises(LogLockedError):
            walkit.copy(tmp_path / "log", tmp_path / "copy")

    def take_the_place(*_: int) -> None:
        (tmp_path / "copy").mkdir(exist_ok=True)

    with pytest.raises(OptionsError, match="is there already"):
        walkit.copy(tmp_path / "log", tmp_path / "copy", take_the_place)
    (tmp_path / "copy").rmdir()
    walkit.copy(tmp_path / "log", tmp_path / "copy", twice)
    check(tmp_path / "copy", 1, 60)


def test_a_log_under_the_name_of_an_unfinished_copy_is_left_alone(tmp_path: Path) -> None:
    """Copy a log that is at the copy's place, or while another log is there: refused, both can still be opened."""
    for name in ("log", "other"):
        filled(tmp_path / name).close()
    # As a copier that was killed before its end leaves it.
    walkit.copy(tmp_path / "log", tmp_path / "one.partial")
    with pytest.raises(OptionsError, match="is the log itself"):
        walkit.copy(tmp_path / "one.partial", tmp_path / "one")
    (tmp_path / "two.partial").symlink_to(tmp_path / "one.partial")
    with pytest.raises(OptionsError, match="is the log itself"):
        walkit.copy(tmp_path / "one.partial", tmp_path / "two")
    with pytest.raises(OptionsError, match="is another log"):
        walkit.copy(tmp_path / "other", tmp_path / "one")
    assert walkit.verify(tmp_path / "one.partial").ok
    assert walkit.copy(tmp_path / "log", tmp_path / "one").bytes_kept > 0
    check(tmp_path / "one", 1, 60)


@pytest.mark.parametrize("durability", ["sync", "none"])
@pytest.mark.parametrize("records", [0, 1])
def test_an_unfinished_copy_that_was_written_to_is_left_alone(
    tmp_path: Path, durability: str, records: int
) -> None:
    """Open a killed copier's folder for writing, and copy there again: refused if it has a record of its own."""
    filled(tmp_path / "log").close()
    walkit.copy(tmp_path / "log", tmp_path / "copy.partial")
    with walkit.open(tmp_path / "copy.partial", options=tiny(durability=durability)) as log:
        for _ in range(records):
            log.append(b"own")
    if records:
        with pytest.raises(OptionsError, match="was written to"):
            walkit.copy(tmp_path / "log", tmp_path / "copy")
    else:
        with suppress(OptionsError):
            walkit.copy(tmp_path / "log", tmp_path / "copy")
    place = tmp_path / ("copy" if (tmp_path / "copy").exists() else "copy.partial")
    check(place, 1, 60 + records)


def test_a_copy_has_the_permissions_of_its_log(tmp_path: Path) -> None:
    """Close the log's folder to others, and copy it: they are kept out of the copy, too."""
    filled(tmp_path / "log").close()
    for mode in (0o700, 0o750, 0o777):
        (tmp_path / "log").chmod(mode)
        target = tmp_path / f"copy-{mode:o}"
        walkit.copy(tmp_path / "log", target)
        assert target.stat().st_mode & 0o777 & ~(mode | 0o700) == 0
        assert target.stat().st_mode & 0o700 == 0o700


def test_retention_continues_after_a_copy(tmp_path: Path) -> None:
    """A log with a limit of bytes is copied and written to: it drops the records that the claim kept."""
    options = tiny(retention=Retention(bytes_max=6 * 64 * 1024))
    with walkit.open(tmp_path / "log", options=options) as log:
        for n in range(3):
            log.append_many([bytes(3000)] * 100)
            report = walkit.copy(tmp_path / "log", tmp_path / f"copy-{n}")
            log.append_many([bytes(3000)] * 100)
            log.wait_idle()
            assert log.first_lsn > report.first_lsn
            check(tmp_path / f"copy-{n}", report.first_lsn, report.last_lsn)


def test_a_copier_leaves_the_claim_of_another_in_a_folder_of_that_name(tmp_path: Path) -> None:
    """Move DIR.partial away beneath a copier and copy to DIR again: the first one's claim stays until its own end."""
    claims: list[int] = []
    with walkit.open(tmp_path / "log", options=tiny()) as log:
        log.append_many([bytes(1000)] * 300)

        def move(done: int, total: int) -> None:
            if not claims:
                claims.append(len(log.claims()))
                (tmp_path / "copy.partial").rename(tmp_path / "moved")
                walkit.copy(tmp_path / "log", tmp_path / "copy", lambda *_: claims.append(len(log.claims())))

        with pytest.raises((OptionsError, StorageError)):
            walkit.copy(tmp_path / "log", tmp_path / "copy", move)
        assert claims[0] == 1 and set(claims[1:]) == {2} and log.claims() == []
    assert walkit.verify(tmp_path / "copy").ok


def test_a_copier_touches_nothing_in_a_folder_that_took_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exchange DIR.partial for a person's folder once its segments are whole: an error, and nothing is removed."""
    partial = tmp_path / "copy.partial"
    with walkit.open(tmp_path / "log", options=tiny()) as log:
        log.append_many([bytes(1000)] * 300)

    def exchange(record: object) -> bool:
        if not (tmp_path / "moved").exists():
            partial.rename(tmp_path / "moved")
            partial.mkdir()
            (partial / "precious").write_bytes(b"precious")
        return False

    monkeypatch.setattr(log_copy, "has_index", exchange)
    with pytest.raises(StorageError):
        walkit.copy(tmp_path / "log", tmp_path / "copy")
    assert os.listdir(partial) == ["precious"] and not (tmp_path / "copy").exists()


def test_a_copy_beside_checkpoints_promises_no_more_than_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put and checkpoint between each reading of the durable slot and the manifest: the copy opens, and is intact."""
    looks = list[int]()
    with walkit.Store.open(tmp_path / "log") as store:

        def slot_then_checkpoint(storage: Storage) -> object:
            slot = read_durable_slot(storage)
            looks.append(store.put(b"k", b"%d" % len(looks)).last_lsn)
            store.checkpoint()
            return slot

        store.put(b"k", b"")
        store.checkpoint()
        monkeypatch.setattr("walkit.read.reader.read_durable_slot", slot_then_checkpoint)
        copied = walkit.copy(tmp_path / "log", tmp_path / "copy")
        monkeypatch.undo()
    assert looks and copied.last_lsn < looks[-1]
    assert walkit.verify(tmp_path / "copy").ok is True
    with walkit.Store.open(tmp_path / "copy") as store:
        assert store.log.acked_lsn == copied.last_lsn and list(store) == [b"k"]
