"""A replica's log: frames of another log, imported verbatim, crashed at every moment, recovered and gone on with."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.crash_recorder import Filmed
from tests.support.crashes import SMALL, rows_of
from tests.support.imports import bytes_of, frames_of, import_all, log_of_epochs, replica_on, runs_after
from tests.support.interrupts import Strike, interrupt_in
from tests.support.threads import GUARD_S, Task
from walkit import _main_thread
from walkit.errors import CorruptionError, LogLockedError, LogPoisonedError, StorageError
from walkit.events import EventSink
from walkit.format.body import Columns
from walkit.format.file_names import CLAIMS_LOCK_NAME
from walkit.format.frame import FrameFault, prepare_body, seal_frame
from walkit.format.layout import HAS_VALUE, SegmentFlag
from walkit.format.manifest import LogEnd
from walkit.models import CrashingStorage, FaultyStorage
from walkit.replication.logs.imported_log import ImportedLog
from walkit.replication.protocol.frame_run import FrameRun, check_run
from walkit.replication.replica.rewind import RewindReport, rewind_storage
from walkit.segments.manifest_store import DURABLE_NAME, LOCK_NAME, load_manifest
from walkit.storage.file import FileStorage


@pytest.fixture(scope="module")
def primary() -> CrashingStorage:
    """A log of three epochs and several segments, with marks; closed."""
    return log_of_epochs(23, 17, 31)


@pytest.mark.parametrize("frames_max", [1, 3, 1000])
def test_imported_frames_are_the_primarys_frame_by_frame(primary: CrashingStorage, frames_max: int) -> None:
    """Import in runs of 1, 3 and all frames: equal frames and lineage, IMPORTED segments, every reader agrees."""
    storage = CrashingStorage()
    log = replica_on(storage, load_manifest(primary))
    import_all(log, primary, frames_max)
    with walkit.open(storage=primary, mode="r") as original:
        records = list(original.read())
    assert list(log.read()) == records
    assert walkit.open(storage=storage, mode="r").to_arrow().num_rows == len(records)
    live = walkit.scan(storage)
    assert live.ok, live.problems
    log.close()
    assert bytes_of(storage) == bytes_of(primary)
    manifest = load_manifest(storage)
    assert manifest.lineage == load_manifest(primary).lineage
    assert len(manifest.sealed) > 3
    assert all(s.flags == SegmentFlag.IMPORTED for s in manifest.segments)
    assert walkit.verify(storage).ok


class Moments(Filmed):
    """Names each image by the end that the replica knew as durable."""

    durable = 0

    def take(self, moment: str) -> None:
        """See Filmed."""
        super().take(str(self.durable))


def test_a_crash_at_any_moment_of_import_leaves_a_prefix_and_import_goes_on(primary: CrashingStorage) -> None:
    """Take an image before each third change that an import makes: each recovers a prefix, goes on, and ends equal."""
    whole = bytes_of(primary)
    manifest = load_manifest(primary)
    moments = Moments(CrashingStorage())
    moments.running = True
    log = replica_on(moments, manifest)
    for run in runs_after(primary, log.end, 3):
        moments.durable = log.import_run(run, manifest.lineage[: run.identity.epoch]).position
    log.close()
    assert bytes_of(moments) == whole
    assert len(moments.images) > 60
    ends = set()
    for known, image in moments.images[::3]:
        recovered = replica_on(image, manifest)
        assert recovered.end.position >= int(known.rpartition(" ")[2])
        ends.add(recovered.end.position)
        import_all(recovered, primary, 7)
        recovered.close()
        assert bytes_of(image) == whole
        assert walkit.verify(image).ok
    assert len(ends) > 10


def test_the_primarys_promises_are_not_the_replicas(primary: CrashingStorage) -> None:
    """Damage a frame that later frames promise: without a cell the replica cuts there and imports it again."""
    storage = CrashingStorage()
    log = replica_on(storage, load_manifest(primary))
    import_all(log, primary)
    image = storage.crash(keep="all")
    log.close()
    manifest = load_manifest(image)
    # Which segments the maintenance thread had sealed by then differs: of the unsealed, the one of most frames.
    of_unsealed = [f for f in frames_of(image) if f[0].number in {r.number for r in manifest.unsealed}]
    begun = max(of_unsealed, key=lambda found: sum(f[0].number == found[0].number for f in of_unsealed))
    record = begun[0]
    offset = begun[0].offset_of(begun[1].end_position)
    file = image.open(record.name, "write")
    file.write(offset + 8, [b"damage"], sync=True)
    with pytest.raises(CorruptionError):
        replica_on(image.process_kill(), manifest)
    without_cell = image.crash(keep="all")
    without_cell.remove(DURABLE_NAME)
    recovered = replica_on(without_cell, manifest)
    assert recovered.end.position == begun[1].end_position
    assert recovered.recovery is not None and recovered.recovery.cuts
    import_all(recovered, primary)
    recovered.close()
    assert bytes_of(without_cell) == bytes_of(primary)


def test_a_failed_write_poisons_and_opening_again_goes_on(primary: CrashingStorage) -> None:
    """Fail one synced write of frames: that import raises, the next is refused, a new opening imports the rest."""
    inner = CrashingStorage()
    faulty = FaultyStorage(inner)
    manifest = load_manifest(primary)
    log = replica_on(faulty, manifest)
    runs = list(runs_after(primary, log.end, 5))
    log.import_run(runs[0], manifest.lineage[:1])
    faulty.fail("synced_write", "*.segment")
    with pytest.raises(StorageError):
        log.import_run(runs[1], manifest.lineage[:1])
    with pytest.raises(LogPoisonedError):
        log.import_run(runs[1], manifest.lineage[:1])
    log.close()
    again = replica_on(inner.crash(keep="none"), manifest)
    assert again.end == runs[0].end
    import_all(again, primary)
    assert again.end == runs[-1].end
    again.close()


def test_one_writer_and_a_frame_larger_than_a_segment() -> None:
    """A second opening is refused; a frame that no segment has room for gets one of its own."""
    source = CrashingStorage()
    large = walkit.LogOptions(segment_bytes=1 << 20, frame_bytes_max=512 * 1024, idle_marker_ms=0)
    with walkit.open(storage=source, options=large) as log:
        log.append(b"small")
        log.append(b"x" * 300_000)
        log.append(b"small again")
    storage = CrashingStorage()
    replica = replica_on(storage, load_manifest(source))
    with pytest.raises(LogLockedError):
        ImportedLog(storage)
    import_all(replica, source)
    replica.close()
    assert bytes_of(storage) == bytes_of(source)
    assert len(load_manifest(storage).sealed) == 3
    with walkit.open(storage=storage) as opened:
        assert len(rows_of(opened)) == 3


def moved(run: FrameRun, after: LogEnd, position: int) -> FrameRun:
    """The same frames sealed again at another position."""
    data = b""
    chain, at = after.chain, position
    for header, frame in run.frames():
        body = prepare_body(Columns(1, 1 | HAS_VALUE, None, [b"moved %d" % header.first_lsn]))
        buffers, footprint, chain = seal_frame(
            body, run.identity, position=at, first_lsn=header.first_lsn, durable_position=at, chain=chain,
            sealed_us=1, alignment=run.limits.alignment,
        )  # fmt: skip
        assert len(frame) == footprint
        data += b"".join(buffers)
        at += footprint
    checked, fault, _ = check_run(data, run.identity, run.limits, after, position)
    assert checked is not None, fault
    return checked


def test_positions_may_jump_before_a_segment() -> None:
    """Import frames that begin above where the log ends: a segment begins there, and a crash recovers over the gap."""
    source = CrashingStorage()
    with walkit.open(storage=source, options=SMALL) as log:
        for number in range(4):
            log.append(b"small %d" % number)
    manifest = load_manifest(source)
    first, second, *_ = runs_after(source, LogEnd(), 2)
    start = second.start_position + 64
    _, fault, _ = check_run(second.data, second.identity, second.limits, first.end, start)
    assert fault is FrameFault.POSITION
    storage = CrashingStorage()
    replica = replica_on(storage, manifest)
    replica.import_run(first, manifest.lineage)
    jumped = moved(second, first.end, first.end.position + 4096)
    replica.import_run(jumped, manifest.lineage)
    image = storage.crash(keep="none")
    with walkit.open(storage=storage, mode="r") as live:
        assert [r.lsn for r in live.read()] == [1, 2, 3, 4]
    replica.close()
    again = replica_on(image, manifest)
    assert again.end == jumped.end
    assert [r.value for r in again.read()] == [b"small 0", b"small 1", b"moved 3", b"moved 4"]
    again.close()


def test_an_interrupt_of_who_waits_for_an_lsn_stops_no_import() -> None:
    """Strike a wait for an LSN at each point where a signal may come: the next import arrives, and closing ends."""
    source = log_of_epochs(3)
    for number in count(1):
        replica = replica_on(CrashingStorage(), load_manifest(source))
        strike = Strike(number)
        with suppress(KeyboardInterrupt):
            strike.run(lambda replica=replica: replica.wait_for(10**6, timeout=0.001))  # type: ignore[misc]
        Task(import_all, replica, source).result()
        Task(replica.close).result()
        if not strike.where:
            break
    assert number > 5


def test_an_interrupted_close_is_done_again_and_frees_nothing_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt closing twice while a maintenance job runs: the lock stays, the log is open, the last close ends it."""
    source = log_of_epochs(3)
    storage = CrashingStorage()
    replica = replica_on(storage, load_manifest(source))
    import_all(replica, source)
    entered, go_on = threading.Event(), threading.Event()

    def job() -> None:
        entered.set()
        go_on.wait(GUARD_S)

    replica.segments.maintenance.submit("zero", job)
    assert entered.wait(GUARD_S)
    monkeypatch.setattr(_main_thread, "GRACE_S", 0.02)
    for _ in range(2):
        shooter = interrupt_in("close", "join")
        with pytest.raises(KeyboardInterrupt):
            replica.close()
        shooter.result()
        assert storage.is_locked(LOCK_NAME) and not replica.closed
    go_on.set()
    replica.close()
    assert not storage.is_locked(LOCK_NAME) and bytes_of(storage) == bytes_of(source)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_replica_recovers_by_the_policy_it_is_given(primary: CrashingStorage, sealed: bool) -> None:
    """Damage a promised frame of a replica: "salvage" gives it up, with events, and keeps every other record."""
    storage = CrashingStorage()
    log = replica_on(storage, load_manifest(primary))
    import_all(log, primary)
    log.segments.maintenance.drain()  # what is full is sealed
    image = storage.process_kill()
    log.close()
    manifest = load_manifest(image)
    chosen = (manifest.sealed if sealed else manifest.unsealed)[0]
    header, frame, _ = [f for f in frames_of(image) if f[0].number == chosen.number and f[1].records][1]
    file = image.open(header.name, "write")
    file.write(header.offset_of(frame.position) + 8, [b"damage"], sync=True)
    file.close()
    if not sealed:
        with pytest.raises(CorruptionError):
            ImportedLog(image.process_kill(), SMALL)
    seen: list[tuple[str, dict[str, Any]]] = []
    events = EventSink(lambda *event: seen.append(event))
    log = ImportedLog(image, replace(SMALL, recovery="salvage"), events)
    assert log.recovery is not None and log.recovery.policy == "salvage"
    (lost,) = log.recovery.lost
    assert (lost.first_lsn, lost.last_lsn) == (frame.first_lsn, frame.last_lsn)
    with walkit.open(storage=primary, mode="r") as original:
        kept = [r for r in original.read() if not frame.first_lsn <= r.lsn <= frame.last_lsn]
    assert list(log.read()) == kept
    assert dict(seen)["walkit.recovery.lost"]["first_lsn"] == frame.first_lsn
    assert dict(seen)["walkit.recovery.finish"]["policy"] == "salvage"
    log.close()


def test_a_replica_reports_its_recovery_as_an_open_log_does(primary: CrashingStorage) -> None:
    """Open one image with a torn tail as a log and as a replica: the same recovery events with the same facts."""
    storage = CrashingStorage()
    log = replica_on(storage, load_manifest(primary))
    import_all(log, primary)
    image = storage.process_kill()
    log.close()
    header, frame, _ = frames_of(image)[-1]
    file = image.open(header.name, "write")
    file.write(header.offset_of(frame.end_position), [b"torn"], sync=True)
    file.close()
    recoveries = []
    for opening in (
        lambda place, events: walkit.open(storage=place, options=SMALL, events=events),
        lambda place, events: ImportedLog(place, SMALL, EventSink(events)),
    ):
        seen: list[tuple[str, dict[str, Any]]] = []
        opening(image.process_kill(), lambda *event, seen=seen: seen.append(event)).close()
        own = {"duration_s": 0, "location": ""}
        recoveries.append([(name, {**facts, **own}) for name, facts in seen if "recovery" in name])
    assert recoveries[0] == recoveries[1]
    assert [name for name, _ in recoveries[0]] == ["walkit.recovery.cut", "walkit.recovery.finish"]


def test_files_that_a_full_disk_must_not_refuse_come_before_the_manifest() -> None:
    """Fail the first manifest of an import: the durable slot and the claims' lock have their files already."""
    storage = FaultyStorage(CrashingStorage())
    log = ImportedLog(storage, SMALL)
    storage.fail("replace", "manifest*")
    with pytest.raises(StorageError):
        log.adopt(7, created_us=1, ack_order="append", extra={})
    log.close()
    assert {CLAIMS_LOCK_NAME, DURABLE_NAME} < {*storage.names()}


def test_who_closes_second_returns_when_the_lock_is_free(primary: CrashingStorage) -> None:
    """Hang the first of two closings in its seal: the second one does not return before the log is sealed and free."""
    storage = FaultyStorage(CrashingStorage())
    log = ImportedLog(storage, SMALL)
    manifest = load_manifest(primary)
    log.adopt(manifest.log_id, created_us=manifest.created_us, ack_order=manifest.ack_order, extra={})
    import_all(log, primary)
    log.segments.maintenance.drain()
    hang = storage.hang("synced_write", "manifest")
    first = Task(log.close)
    assert hang.entered.wait(GUARD_S)
    assert log.closed
    began = threading.Event()

    def close_too() -> bool:
        began.set()
        log.close()
        return storage.is_locked(LOCK_NAME)

    second = Task(close_too)
    assert began.wait(GUARD_S)
    hang.release()
    first.result()
    assert second.result() is False


def test_a_log_is_opened_again_in_its_own_folder_alone(tmp_path: Path, primary: CrashingStorage) -> None:
    """Reopen, and rewind, a log whose folder was renamed, with another log at its path: refused, both are unharmed."""
    place, moved = tmp_path / "replica", tmp_path / "moved"
    log = replica_on(FileStorage(str(place)), load_manifest(primary))
    import_all(log, primary)
    rows = list(log.read())

    def rewind() -> RewindReport:
        again, events = log.folder, EventSink()
        return rewind_storage(
            log.storage, 9, force=False, records=True, options=SMALL, events=events, again=again
        )

    for act in (log.reopen, log.close, rewind):
        os.rename(place, moved)
        with walkit.open(place) as other:
            other.append(b"another log")
        files = {path.name: path.read_bytes() for path in place.iterdir()}
        if act == log.close:
            log.close()
        else:
            with pytest.raises(StorageError) as caught:
                act()
            assert caught.value.errno == errno.ESTALE
        assert {path.name: path.read_bytes() for path in place.iterdir()} == files
        shutil.rmtree(place)
        os.rename(moved, place)
        if act == log.reopen:
            log.reopen()
            assert list(log.read()) == rows
    assert walkit.verify(place).ok and rewind().end_lsn < 9
