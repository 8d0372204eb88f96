"""A disk that another program keeps full: making room needs none, live and after a kill, by bytes and by inodes."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import walkit
from tests.support.logs import segment_set
from tests.support.mounts import mounted
from tests.support.threads import Task, wait_until
from walkit.errors import LogFullError, SnapshotError
from walkit.format.manifest import MANIFEST_NAME
from walkit.format.segment import segment_name
from walkit.models import CrashingStorage, FaultyStorage

OPTIONS = walkit.LogOptions(segment_bytes=64 << 10)
RECORD = bytes(33 << 10)
"""Two of them do not fit into one segment."""
SIZES = {"bytes": "size=3m,nr_inodes=400", "inodes": "size=16m,nr_inodes=40"}

NEIGHBOUR = """
import itertools, os, sys, time
told = False
for number in itertools.count():
    try:
        file = os.open(f"{sys.argv[1]}/{number}", os.O_CREAT | os.O_WRONLY)
        while True:
            os.write(file, bytes(4096) if sys.argv[2] == "bytes" else b"")
            if sys.argv[2] != "bytes":
                break
    except OSError:
        if not told:
            told = print("full", flush=True) is None
        time.sleep(0.0002)
    finally:
        os.close(file)
"""
"""Takes every block, or every inode, that is free, and again as soon as one is."""

WRITER = """
import sys, walkit
from tests.log.test_full_disk import OPTIONS, RECORD
log = walkit.open(sys.argv[1], options=OPTIONS)
for _ in range(16):
    log.append(RECORD)
log.wait_idle()
print("written", flush=True)
sys.stdin.read()
"""


@contextmanager
def neighbour(folder: Path, takes: str) -> Iterator[None]:
    """Let another program take all that is free, until the block ends."""
    (folder / "other").mkdir()
    command = [sys.executable, "-c", NEIGHBOUR, str(folder / "other"), takes]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "full\n"
            yield
        finally:
            child.kill()
    shutil.rmtree(folder / "other")


def until_full(log: walkit.WriteAheadLog, values: list[bytes]) -> LogFullError:
    """Append these records over and over; return the refusal."""
    while True:
        try:
            log.append_many(values)
        except LogFullError as error:
            return error


@pytest.mark.parametrize(
    ("takes", "killed"),
    # Slow: two processes for each. The two others have each size, and each end of the writer.
    [
        ("bytes", True),
        ("inodes", False),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("bytes", False), ("inodes", True))),
    ],
)
def test_a_full_disk_can_be_left(tmp_path: Path, takes: str, killed: bool) -> None:
    """Let another program take each freed block or inode: trims, retention, closing and opening work, appends wait."""
    with mounted(tmp_path, "-t", "tmpfs", "-o", SIZES[takes], "tmpfs") as folder:
        place = folder / "log"
        command = [sys.executable, "-c", WRITER, str(place)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
            assert child.stdout is not None and child.stdout.readline() == "written\n"
            if killed:
                child.kill()
            else:
                child.communicate("")
        with neighbour(folder, takes):
            with walkit.open(place, options=OPTIONS) as log:
                assert until_full(log, [RECORD]).reason == "disk"
                last = log.acked_lsn
                report = log.trim(5)
                assert (report.segments, report.limit, log.first_lsn) == (5, "", 6)
                report = log.trim(6)
                assert report.low_watermark == 6
                dropped = log.enforce_retention(walkit.Retention(records_max=6))
                assert dropped.segments > 0 and log.acked_lsn == last
            with walkit.open(place, options=OPTIONS) as log:
                assert [r.lsn for r in log.read()] == list(range(log.first_lsn, last + 1))
                assert log.trim(log.first_lsn).segments == 1
        with walkit.open(place, options=OPTIONS) as log:
            log.append(RECORD)
            assert log.acked_lsn == last + 1
        assert walkit.verify(place).ok


def test_the_reserve_is_for_trims_and_seals() -> None:
    """Use up the manifest's space on a full disk: rotations stop, trims of whole segments go on, then all goes on."""
    disk = CrashingStorage()
    storage = FaultyStorage(disk)
    with walkit.open(storage=storage, options=OPTIONS) as log:
        full = storage.fail("create", "manifest.new", times=None, errno=errno.ENOSPC)
        until_full(log, [bytes(1 << 10)] * 28)
        log.wait_idle()
        kept, last = log.first_lsn, log.durable_lsn
        assert log.parts.manifest_store.is_scarce
        reports = [log.trim(lsn) for lsn in range(kept, 50)]
        assert {r.segments for r in reports} == {0} and reports[-1].limit == "room"
        assert log.first_lsn == reports[-1] + 1 < 50
        for segment in log.parts.manifest_store.current.sealed[1:-1]:
            report = log.trim(segment.first_lsn, waste_ratio=0)
            assert (report.segments, report.low_watermark) == (1, segment.first_lsn)
            assert "the disk is full" in (report.rewritten.failure or "")
        until_full(log, [bytes(1 << 10)] * 28)
    again = FaultyStorage(disk.crash())
    again.fail("create", "manifest.new", times=None, errno=errno.ENOSPC)
    with walkit.open(storage=again, options=OPTIONS) as log:  # its reserve is not used up
        assert log.acked_lsn >= last and log.trim(log.durable_lsn).segments > 0
        again.clear()
        log.append(RECORD)
        log.append(RECORD)
    assert full.hits > 0 and walkit.verify(again).ok


def test_a_tail_without_room_stays_in_its_file() -> None:
    """Open with a torn tail on a full disk: the log is there and the tail stays; an opening with room sets it aside."""
    disk = CrashingStorage()
    with walkit.open(storage=disk, options=OPTIONS) as log:
        log.append(b"acknowledged")
        killed = disk.process_kill()
        (segment,) = segment_set(log).open_segments
        assert segment.header is not None
        offset, name = segment.header.offset_of(segment.end_position), segment_name(segment.number)
    file = killed.open(name, "write")
    file.write(offset, [b"torn"], sync=True)
    file.close()
    for has_room in (False, True):
        faulty = FaultyStorage(killed)
        if not has_room:
            faulty.fail("create", "*", times=None, errno=errno.ENOSPC)
        with walkit.open(storage=faulty, options=OPTIONS) as log:
            assert [r.value for r in log.read()] == [b"acknowledged"]
            file = killed.open(name, "read")
            assert file.read(offset, 4) == (b"" if has_room else b"torn")
            file.close()
        assert walkit.verify(killed).ok
        assert any(n.endswith(".tail") for n in killed.names("lost+found")) is has_room


def test_a_checkpoint_error_has_the_needed_bytes() -> None:
    """Take a checkpoint on a full disk: SnapshotError with the bytes of the snapshot that one with room has."""
    storage = FaultyStorage(CrashingStorage())
    with walkit.Store.open(storage=storage, options=OPTIONS) as store:
        for number in range(100):
            store.put(b"%d" % number, bytes(3000))
        storage.fail("write", "snapshot.new", nth=2, times=None, errno=errno.ENOSPC)
        with pytest.raises(SnapshotError) as full:
            store.checkpoint()
        assert full.value.retry_stage == "write" and store.log.first_lsn == 1
        assert "snapshot.new" not in storage.names()
        storage.clear()
        assert store.checkpoint().snapshot_bytes == full.value.needed_bytes > 300_000


def test_two_threads_remove_one_file_that_is_left() -> None:
    """Let a leader and the maintenance thread find the same file of a failed creation: one of them removes it."""
    storage = FaultyStorage(CrashingStorage())
    with walkit.open(storage=storage, options=OPTIONS) as log:
        segments = segment_set(log)
        log.append(RECORD)
        log.wait_idle()
        storage.inner.open(segment_name(900), "create").close()
        segments.left.append(900)
        hang = storage.hang("open", MANIFEST_NAME, times=2)
        removals = [Task(segments.remove_left) for _ in range(2)]
        wait_until(lambda: hang.hits == 2, "both to look into the manifest")
        hang.release()
        for removal in removals:
            removal.result()
        assert not segments.left and segment_name(900) not in storage.names()
