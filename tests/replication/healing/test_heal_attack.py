"""Attacks on healing: an old slot, a peer that lags, markers before a gap, a power cut, what is left beside the log."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest

import walkit
from tests.replication.callers import WAIT_S, until
from tests.replication.healing.test_heal import contents, fill, segments, write, write_short
from tests.replication.healing.test_heal_tail import PLAIN, in_use, lsns_of
from walkit._threads import Bell
from walkit.format.layout import MANIFEST_SLOTS_OFFSET, SEGMENT_HEADER_BYTES
from walkit.format.manifest import MANIFEST_NAME
from walkit.format.names import HEAL_NEW_NAME
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import OperationName
from walkit.recovery.log_scan import read_durable_slot
from walkit.replication import Primary, Replica, heal
from walkit.replication.core.answers import batch_of
from walkit.replication.core.lag import Lag
from walkit.replication.healing.link import SILENCE_S
from walkit.replication.logs.source import StoredSource
from walkit.replication.primary.frame_reader import FrameReader
from walkit.replication.primary.range_service import FRAMES_METHOD
from walkit.replication.protocol.messages import Hello
from walkit.replication.protocol.wire import decode_from_subscriber, encode_from_publisher
from walkit.replication.transport.grpc_common import grpc
from walkit.replication.transport.threads import DaemonExecutor
from walkit.segments.leftovers import KEPT_NEW_NAME
from walkit.segments.manifest_store import DURABLE_NAME, LOCK_NAME, load_manifest
from walkit.storage import FileStorage

FEW, ALL = 20, 50


@dataclass(frozen=True)
class Killed:
    """A killed writer's folder with 50 durable records, and a copy of it of when there were 20."""

    log: Path
    earlier: Path

    @property
    def position(self) -> int:
        """Where the first 20 records end."""
        return read_durable_slot(FileStorage(str(self.earlier))).position


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """See Killed: in append order."""
    return _killed(tmp_path_factory.mktemp("killed"), PLAIN)


def _killed(place: Path, options: walkit.LogOptions) -> Killed:
    with walkit.open(place / "log", options=options) as log:
        fill(log, FEW)
        shutil.copytree(place / "log", place / "earlier")
        fill(log, ALL - FEW)
        shutil.copytree(place / "log", place / "killed")
    return Killed(place / "killed", place / "earlier")


@pytest.fixture
def log(killed: Killed, tmp_path: Path) -> Path:
    """A copy of the killed writer's folder, with the durable slot of when there were 20 records."""
    copy = Path(shutil.copytree(killed.log, tmp_path / "log"))
    shutil.copyfile(killed.earlier / DURABLE_NAME, copy / DURABLE_NAME)
    return copy


@pytest.fixture(scope="module")
def lagging(killed: Killed) -> Iterator[Primary]:
    """A peer with the first 20 records."""
    with Primary(killed.earlier) as primary:
        yield primary


@pytest.fixture(scope="module")
def whole(killed: Killed) -> Iterator[Primary]:
    """A peer with all 50."""
    with Primary(killed.log) as primary:
        yield primary


@pytest.mark.parametrize("damage", ["the header", "the header and the first frame", "the end of the file"])
def test_frames_after_an_old_slot_are_not_given_up(
    log: Path, whole: Primary, lagging: Primary, damage: str
) -> None:
    """Damage a segment whose slot is old: a peer that lags takes the place of no frame that stands there."""
    path = in_use(log)
    if damage == "the end of the file":
        write_short(path, SEGMENT_HEADER_BYTES + 9_000)
    else:
        write(path, 16, bytes(SEGMENT_HEADER_BYTES - 16 + (64 if "first" in damage else 0)))
    before = contents(log)
    for dry_run in (True, False):
        report = heal(log, lagging.address, dry_run=dry_run)
        assert not report.ok and not report.changed and report.segments[0].why_not
        assert contents(log) == before
    with pytest.raises(walkit.CorruptionError), walkit.open(log):
        pass
    if "header" in damage:
        assert heal(log, whole.address).ok
        assert lsns_of(log) == list(range(1, ALL + 1))


def test_what_an_imported_frame_promises_is_no_damage(
    killed: Killed, tmp_path: Path, lagging: Primary
) -> None:
    """Tear a frame of a replica after its slot: the frames after it promise nothing here, and it opens without it."""
    with Primary(killed.log) as primary, Replica(tmp_path / "r", primary.address, options=PLAIN) as replica:
        replica.wait_for(ALL, WAIT_S)
        torn = Path(shutil.copytree(tmp_path / "r", tmp_path / "torn"))
    shutil.copyfile(killed.earlier / DURABLE_NAME, torn / DURABLE_NAME)
    write(in_use(torn), SEGMENT_HEADER_BYTES + killed.position, bytes(64))
    report = heal(torn, lagging.address)
    assert report.ok and not report.changed
    with Replica(torn, lagging.address, new_identity=True, options=PLAIN) as replica:
        assert replica.wait_for(FEW, WAIT_S) == FEW == replica.log.durable_lsn


def test_a_missing_segment_in_completion_order_is_no_undamaged_log(tmp_path: Path) -> None:
    """Lose the segment in use and the slot of a log in completion order: the peer has more, and the report says so."""
    made = _killed(tmp_path, replace(PLAIN, ack_order="completion", in_flight=2))
    in_use(made.earlier).unlink()
    (made.earlier / DURABLE_NAME).unlink()
    with Primary(made.log) as primary:
        for dry_run in (True, False):
            report = heal(made.earlier, primary.address, dry_run=dry_run)
            assert not report.ok and "completion order" in report.segments[0].why_not
            assert "the peer has frames" in report.segments[0].why_not


def test_markers_before_a_lost_range_are_not_given_up(tmp_path: Path) -> None:
    """Damage a marker before a recorded loss in a sealed segment, which the peer lacks: nothing is changed."""
    place = tmp_path / "log"
    with walkit.open(place, options=replace(PLAIN, idle_marker_ms=200)) as log:
        fill(log, FEW)
        earlier = Path(shutil.copytree(place, tmp_path / "earlier"))
        position = read_durable_slot(FileStorage(str(earlier))).position
        lost_at = position + 128
        until(lambda: read_durable_slot(FileStorage(str(place))).position == lost_at, "a marker")
        fill(log, FEW)
    path = segments(place)[0]
    write(path, SEGMENT_HEADER_BYTES + lost_at, bytes(64))
    with walkit.open(place, options=replace(PLAIN, recovery="salvage")) as log:
        assert log.recovery.lost
    write(path, SEGMENT_HEADER_BYTES + position, bytes(64))
    before = contents(place)
    with Primary(earlier) as primary:
        report = heal(place, primary.address)
    assert not report.ok and not report.changed
    assert contents(place) == before


def test_a_frame_before_a_lost_range_comes_from_a_peer_with_the_same_loss(
    killed: Killed, tmp_path: Path
) -> None:
    """Damage the frame before a recorded loss: it comes back from a copy of the salvaged log, and the loss stays."""
    log = Path(shutil.copytree(killed.log, tmp_path / "log"))
    path = in_use(log)
    write(path, SEGMENT_HEADER_BYTES + killed.position, bytes(64))
    walkit.open(log, options=replace(PLAIN, recovery="salvage")).close()
    lost = load_manifest(FileStorage(str(log))).lost
    assert lost and lost[0].start_position == killed.position
    copy, whole = Path(shutil.copytree(log, tmp_path / "copy")), path.read_bytes()
    write(path, SEGMENT_HEADER_BYTES + killed.position - 192, bytes(192))
    with Primary(copy) as primary:
        report = heal(log, primary.address)
    assert report.ok and report.changed and path.read_bytes() == whole
    assert load_manifest(FileStorage(str(log))).lost == lost
    assert lsns_of(log) == [lsn for lsn in range(1, ALL + 1) if lsn != FEW + 1]


def test_a_slot_that_was_lowered_stays_so_after_a_power_cut() -> None:
    """Give up a marker that the peer lacks, and cut the power after the heal: every image opens with all records."""
    storage = CrashingStorage()
    storage.create()
    with walkit.open(storage, options=replace(PLAIN, idle_marker_ms=200)) as log:
        fill(log, FEW)
        earlier = storage.process_kill()
        position = read_durable_slot(earlier).position
        until(lambda: read_durable_slot(storage).position > position, "a marker")
        killed = storage.process_kill()
    (name,) = (n for n in killed.names() if n.endswith(".segment"))
    file = killed.open(name, "write")
    file.write(SEGMENT_HEADER_BYTES + position, [bytes(64)])
    file.sync()
    file.close()
    with Primary(earlier) as primary:
        report = heal(killed, primary.address)
    assert report.ok and report.segments[0].markers_given_up
    for seed in range(40):
        image = killed.crash(keep="random", seed=seed)
        with walkit.open(image) as opened:
            assert [r.lsn for r in opened.read()] == list(range(1, FEW + 1))


def test_a_heal_that_fails_leaves_nothing_beside_the_log(log: Path, lagging: Primary) -> None:
    """Damage an early and a late frame: a peer that has the early one alone heals nothing, and leaves no file."""
    path = in_use(log)
    size = SEGMENT_HEADER_BYTES
    write(path, size, bytes(64))
    write(path, size + 9_000, bytes(64))
    before = contents(log)
    assert not heal(log, lagging.address).ok
    assert contents(log) == before


@pytest.mark.parametrize("file", [HEAL_NEW_NAME, KEPT_NEW_NAME])
def test_a_heal_on_a_full_disk_leaves_nothing_beside_the_log(log: Path, whole: Primary, file: str) -> None:
    """Refuse room for the new file, or for the damaged one's copy: StorageError, and no part of a file is left."""
    write(in_use(log), SEGMENT_HEADER_BYTES, bytes(64))
    before = contents(log)
    storage = FaultyStorage(FileStorage(str(log)))
    storage.fail("write", file, errno=errno.ENOSPC)
    with pytest.raises(walkit.StorageError, match="ENOSPC"):
        heal(storage, whole.address)
    assert contents(log) == before
    assert heal(storage, whole.address).ok


@contextmanager
def _peer_that(answers: Callable[[bytes, Any], Iterator[bytes]]) -> Iterator[str]:
    """Serve the call Frames with these answers on the loopback address, and yield that."""
    server = grpc.server(DaemonExecutor())
    _, service, name = FRAMES_METHOD.split("/")
    handler = grpc.unary_stream_rpc_method_handler(answers)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("answering", [False, True])
def test_ctrl_c_ends_a_heal_whose_peer_takes_its_time(
    killed: Killed, tmp_path: Path, answering: bool
) -> None:
    """Interrupt a heal from a peer that says nothing, or one frame at a time: it ends at once, and nothing is left."""
    log = Path(shutil.copytree(killed.log, tmp_path / "log"))
    write(in_use(log), SEGMENT_HEADER_BYTES + 64, bytes(9_000))
    before = contents(log)
    over = Bell()

    def answers(data: bytes, context: Any) -> Iterator[bytes]:
        hello = decode_from_subscriber(data)
        assert isinstance(hello, Hello)
        reader, end = FrameReader(StoredSource(FileStorage(str(killed.log)))), hello.end
        os.kill(os.getpid(), signal.SIGINT)
        while context.is_active() and not over.wait(0.4):
            if answering and (run := reader.read(end, 1)) is not None:
                end = run.end
                yield encode_from_publisher(batch_of(run, (), "", run.data, Lag()))
        reader.close()

    with _peer_that(answers) as address:
        with pytest.raises(KeyboardInterrupt):
            heal(log, address)
        deadline = time.monotonic() + SILENCE_S / 4
        while FileStorage(str(log)).is_locked(LOCK_NAME):
            assert time.monotonic() < deadline, "the heal goes on"
            time.sleep(0.01)
        over.set()
    assert contents(log) == before


def test_frames_that_cannot_be_read_now_are_not_replaced_by_fewer(
    killed: Killed, tmp_path: Path, lagging: Primary
) -> None:
    """Fail each read of the segment in use of a log without a slot: a peer that lags takes the place of nothing."""
    log = Path(shutil.copytree(killed.log, tmp_path / "log"))
    (log / DURABLE_NAME).unlink()
    before = contents(log)
    storage = FaultyStorage(FileStorage(str(log)))
    storage.fail("read", in_use(log).name, times=None)
    report = heal(storage, lagging.address)
    assert not report.ok and not report.changed and "EIO" in report.segments[0].why_not
    assert contents(log) == before and lsns_of(log) == list(range(1, ALL + 1))


@pytest.mark.parametrize("ack_order", ["append", "completion"])
@pytest.mark.parametrize("failing", ["read", "open"])
def test_frames_of_a_segment_that_cannot_be_read_come_into_no_other(
    tmp_path: Path, failing: OperationName, ack_order: Literal["append", "completion"]
) -> None:
    """Fail to read the last of two segments in use, and damage the first: the first ends where the last begins."""
    place = tmp_path / "log"
    with walkit.open(place, options=replace(PLAIN, ack_order=ack_order)) as log:
        fill(log, 130)
        until(lambda: len(load_manifest(FileStorage(str(place))).unsealed) == 2, "a second segment")
        prepared = (place / MANIFEST_NAME).read_bytes()
        fill(log, 170)
        log.wait_idle(WAIT_S)
        whole = Path(shutil.copytree(place, tmp_path / "whole"))
        damaged = Path(shutil.copytree(place, tmp_path / "damaged"))
    (damaged / MANIFEST_NAME).write_bytes(prepared)
    write(damaged / DURABLE_NAME, MANIFEST_SLOTS_OFFSET, bytes(128))  # it promises a later manifest
    first, last = (p for p in segments(damaged) if any(p.read_bytes()[:SEGMENT_HEADER_BYTES]))
    write(first, 9_000, bytes(300))
    storage = FaultyStorage(FileStorage(str(damaged)))
    storage.fail(failing, last.name, times=None)
    with Primary(whole) as primary, suppress(walkit.StorageError):
        assert not heal(storage, primary.address).ok
    assert first.stat().st_size <= PLAIN.segment_bytes
    with Primary(whole) as primary:
        assert heal(damaged, primary.address).ok
    assert lsns_of(damaged) == list(range(1, 301))
