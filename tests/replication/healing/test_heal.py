"""Healing a damaged log from a peer over real gRPC: what fits is taken, what does not leaves the log as it was."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, until
from tests.replication.certificates import Authority
from tests.replication.forged_messages import serving
from tests.replication.proxy import TcpProxy
from tests.support.crash_recorder import Filmed
from walkit._internal.threads import WakeEvent
from walkit.format.file_names import HEAL_NEW_NAME
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import LogEnd
from walkit.format.segment import SegmentHeader
from walkit.models import CrashingStorage, FaultyStorage
from walkit.replication import PeerError, Primary, Replica, Tokens, heal
from walkit.replication.core.answers import batch_of
from walkit.replication.core.lag import Lag
from walkit.replication.healing import link as range_link
from walkit.replication.healing.link import SILENCE_S, RangeLink
from walkit.replication.logs.source import StoredSource
from walkit.replication.primary import range_service
from walkit.replication.primary.frame_reader import FrameReader
from walkit.replication.primary.range_service import FRAMES_METHOD
from walkit.replication.protocol.messages import Hello
from walkit.replication.protocol.wire import decode_from_subscriber, encode_from_publisher
from walkit.replication.transport.connection import Destination
from walkit.replication.transport.grpc_common import grpc
from walkit.segments.manifest_store import LOCK_NAME, load_manifest
from walkit.segments.orphan_files import KEPT_NEW_NAME
from walkit.storage import FileStorage

OPTIONS = walkit.LogOptions(segment_bytes=64 * 1024, durability="interval", interval_ms=60_000)
"""Records are synced once, at the end of the fill: only then do they count."""
RECORDS = 600
FLIPPED = b"\xa5" * 7


def fill(log: walkit.WriteAheadLog, records: int = RECORDS) -> None:
    """Append this many records of some 300 bytes, each in a frame of its own; they are durable on return."""
    for number in range(records):
        log.append(b"%d" % number * 70, key=b"key %d" % (number % 50))
    log.sync()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of several sealed segments, and never changed."""
    path = tmp_path_factory.mktemp("kept") / "log"
    with walkit.open(path, options=OPTIONS) as log:
        fill(log)
    assert len(segments(path)) >= 4
    return path


@pytest.fixture
def log(kept: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(kept, tmp_path / "log"))


@pytest.fixture(scope="module")
def peer(kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Primary]:
    """A primary of a replica of that log, whose segments have other ends."""
    folder = tmp_path_factory.mktemp("peer") / "replica"
    larger = walkit.LogOptions(segment_bytes=96 * 1024)
    with Primary(kept) as primary, Replica(folder, primary.address, options=larger) as replica:
        replica.wait_for(RECORDS, WAIT_S)
    with Primary(folder) as primary:
        yield primary


def segments(path: Path) -> list[Path]:
    """The segment files of a log, in order."""
    return sorted(path.glob("*.segment"))


def contents(path: Path) -> dict[str, bytes]:
    """All files of a log's folder, lost+found too, except its lock."""
    files = (file for file in path.rglob("*") if file.is_file() and file.name != "lock")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def write(path: Path, offset: int, data: bytes) -> int:
    """Overwrite bytes of a file; an offset below zero counts from its end."""
    with path.open("r+b") as file:
        file.seek(offset, 2 if offset < 0 else 0)
        return file.write(data)


def assert_as(log: Path, kept: Path) -> None:
    """The log is undamaged, and its segments have the frames that they had."""
    assert walkit.verify(log).ok
    healed, before = ([path.read_bytes()[SEGMENT_HEADER_BYTES:] for path in segments(p)] for p in (log, kept))
    assert healed == before


DAMAGE: dict[str, Callable[[list[Path]], object]] = {
    "a bit of a body": lambda s: write(s[1], 9_000, FLIPPED),
    "the first frame": lambda s: write(s[1], SEGMENT_HEADER_BYTES, FLIPPED),
    "the last frame": lambda s: write(s[1], -40, FLIPPED),
    "two places": lambda s: [write(s[1], offset, FLIPPED) for offset in (9_000, 30_000)],
    "zeros over many frames": lambda s: write(s[2], 10_000, bytes(20_000)),
    "a header": lambda s: write(s[1], 16, FLIPPED),
    "the first header": lambda s: write(s[0], 16, FLIPPED),
    "a missing file": lambda s: s[1].unlink(),
    "the first file missing": lambda s: s[0].unlink(),
    "the last file missing": lambda s: s[-1].unlink(),
    "a short file": lambda s: write_short(s[1], 20_000),
    "an empty file": lambda s: write_short(s[2], 0),
    "another segment's bytes": lambda s: s[1].write_bytes(s[2].read_bytes()),
    "every segment": lambda s: [write(path, 12_345, FLIPPED) for path in s],
}


def write_short(path: Path, size: int) -> None:
    """Cut a file short."""
    with path.open("r+b") as file:
        file.truncate(size)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_segment_gets_the_frames_of_a_peer(
    log: Path, kept: Path, peer: Primary, damage: str
) -> None:
    """Damage a log in one way, heal it from a replica of it: byte for byte what it was, with the damage kept."""
    DAMAGE[damage](segments(log))
    assert not walkit.verify(log).ok
    before = contents(log)
    tried = heal(log, peer.address, dry_run=True)
    assert tried.ok and tried.changed and tried.dry_run
    assert contents(log) == before, "a dry run changes nothing"
    report = heal(log, peer.address)
    assert report.ok and [replace(s, kept_as="") for s in report.segments] == list(tried.segments)
    assert_as(log, kept)
    for segment in report.segments:
        assert (
            (log / segment.kept_as).read_bytes() == before[segment.segment]
            if segment.kept_as
            else (segment.segment not in before)
        )
    again = heal(log, peer.address)
    assert again.ok and not again.changed and not again.segments
    assert "no damage" in again.text() and report.segments[0].segment in report._repr_html_()
    with walkit.open(log) as opened:
        assert opened.append(b"next").first_lsn == RECORDS + 1


def test_a_peer_with_another_log_is_refused(log: Path, tmp_path: Path) -> None:
    """Heal from another log of the same shape: DivergenceError, and nothing changes."""
    with walkit.open(tmp_path / "other", options=OPTIONS) as other:
        fill(other)
    write(segments(log)[1], 9_000, FLIPPED)
    before = contents(log)
    with Primary(tmp_path / "other") as primary, pytest.raises(walkit.DivergenceError):
        heal(log, primary.address)
    assert contents(log) == before


def test_a_peer_that_went_another_way_is_refused(tmp_path: Path) -> None:
    """Continue two copies apart, damage one in its own epoch and heal it from the other: DivergenceError."""
    with walkit.open(tmp_path / "a", options=OPTIONS) as log:
        fill(log, 50)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in ("a", "b"):
        with walkit.open(tmp_path / name, options=OPTIONS) as log:
            fill(log, 300)
    write(segments(tmp_path / "a")[2], 9_000, FLIPPED)
    before = contents(tmp_path / "a")
    with Primary(tmp_path / "b") as primary, pytest.raises(walkit.DivergenceError):
        heal(tmp_path / "a", primary.address)
    assert contents(tmp_path / "a") == before


@pytest.mark.parametrize("peer_is", ["trimmed", "early", "damaged"])
def test_ranges_that_a_peer_lacks_are_reported_and_left(
    log: Path, kept: Path, tmp_path: Path, peer_is: str
) -> None:
    """Heal from a peer that was trimmed, ends early or is damaged there: the reason is told, the rest is healed."""
    other, detail = Path(shutil.copytree(kept, tmp_path / "other")), "damage of its own"
    if peer_is == "trimmed":
        detail = "oldest"
        with walkit.open(other) as opened:
            opened.trim(300)
    elif peer_is == "early":
        log, other, detail = tmp_path / "grown", tmp_path / "early", "the peer's frames end"
        with walkit.open(log, options=OPTIONS) as grown:
            fill(grown, 400)
            with Primary(grown) as primary, Replica(other, primary.address, options=OPTIONS) as replica:
                replica.wait_for(400, WAIT_S)
            fill(grown, 400)
    else:
        write(segments(other)[3], 9_000, FLIPPED)
    has, lacks = {"trimmed": (-1, 0), "early": (1, -2), "damaged": (1, 3)}[peer_is]
    healed, lacking = segments(log)[has], segments(log)[lacks]
    for path in (healed, lacking):
        write(path, 9_000, FLIPPED)
    damaged = lacking.read_bytes()
    with Primary(other) as primary:
        report = heal(log, primary.address)
    assert not report.ok and report.changed
    assert [s.segment for s in report.segments if s.healed] == [healed.name]
    (left,) = [s for s in report.segments if not s.healed]
    assert detail in left.reason and left.reason in report.text()
    assert lacking.read_bytes() == damaged and not walkit.verify(log).ok


def test_a_log_of_large_blocks_in_completion_order_is_healed(tmp_path: Path) -> None:
    """Heal a compressed log of direct I/O in completion order from its copy: byte for byte what it was."""
    options = replace(OPTIONS, direct_io=True, codec="zstd", ack_order="completion", in_flight=4)
    with walkit.open(tmp_path / "log", options=options) as log:
        fill(log, 60)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    write(segments(tmp_path / "log")[1], SEGMENT_HEADER_BYTES + 8, FLIPPED)
    with Primary(tmp_path / "copy") as primary:
        assert heal(tmp_path / "log", primary.address).ok
    assert_as(tmp_path / "log", tmp_path / "copy")


def test_a_frame_that_cannot_fit_is_not_taken_in(tmp_path: Path) -> None:
    """Ask for small frames, and get a large one: refused by its size, before it is read."""
    options = walkit.LogOptions(segment_bytes=32 << 20, frame_bytes_max=16 << 20)
    with walkit.open(tmp_path / "p", options=options) as log, Primary(log) as primary:
        log.append(bytes(8 << 20))
        manifest = load_manifest(FileStorage(str(tmp_path / "p")))
        with (
            RangeLink(Destination(primary.address), 1 << 16) as link,
            pytest.raises(PeerError, match="larger"),
        ):
            next(link.runs(manifest.log_id, manifest.lineage, LogEnd()))


def test_a_compacted_segment_is_left(tmp_path: Path) -> None:
    """Damage a compacted segment: it is named and left, as a peer has other frames there."""
    with walkit.Store.open(tmp_path / "p", options=OPTIONS) as store:
        for number in range(RECORDS):
            store.put(b"key %d" % (number % 20), b"%d" % number * 70)
        store.log.sync()
        with Primary(store) as primary, Replica(tmp_path / "r", primary.address, options=OPTIONS) as replica:
            replica.wait_for(store.log.acked_lsn, WAIT_S)
        assert store.compact().segments_rewritten
        compacted = (
            tmp_path / "p" / next(s.name for s in store.inventory().segments if s.state == "compacted")
        )
    write(compacted, SEGMENT_HEADER_BYTES + 100, FLIPPED)
    before = contents(tmp_path / "p")
    with Primary(tmp_path / "r") as primary:
        report = heal(tmp_path / "p", primary.address)
    assert not report.ok and not report.changed
    assert "compacted" in report.segments[0].reason
    assert contents(tmp_path / "p") == before


def test_a_log_with_a_living_writer_is_refused(log: Path, peer: Primary) -> None:
    """Heal a log that is open: LogLockedError, of a dry run too, which says that this process has it."""
    with walkit.open(log):
        for dry_run in (False, True):
            with pytest.raises(walkit.LogLockedError, match="this process"):
                heal(log, peer.address, dry_run=dry_run)


def test_a_peer_that_cannot_be_reached_is_a_typed_error(log: Path) -> None:
    """Heal from a port without a server: PeerError with the address, and no file is changed."""
    with Primary(log) as primary:
        address = primary.address
    write(segments(log)[1], 9_000, FLIPPED)
    before = contents(log)
    with pytest.raises(PeerError) as caught:
        heal(log, address)
    assert caught.value.address == address
    assert contents(log) == before


def assert_healed_by_the_next(image: CrashingStorage, peer: Primary, moment: str) -> None:
    """Heal an image that a heal has left: the same call makes it whole, with all records."""
    assert heal(image, peer.address).ok, moment
    assert walkit.verify(image).ok, moment
    with walkit.open(image, "r") as reader:
        assert sum(1 for _ in reader.read()) == RECORDS, moment


def test_a_failure_at_any_operation_leaves_what_was_or_what_is_healed(kept: Path, peer: Primary) -> None:
    """Fail each operation on the storage in turn, then cut the power: the same call heals what is left."""
    damaged = damaged_copy(kept)
    for operation in ("create", "write", "sync", "drop_cached", "replace", "sync_directory", "read", "open"):
        for nth in range(1, 400, 11 if operation == "read" else 1):
            crashing = damaged.process_kill()
            storage = FaultyStorage(crashing)
            fault = storage.fail(operation, nth=nth)
            with suppress(walkit.StorageError):
                heal(storage, peer.address)
            if not fault.hits:
                break
            assert_healed_by_the_next(crashing.crash(keep="none"), peer, f"{operation} {nth}")
        assert nth > 1, f"{operation} was never met"


def test_a_power_cut_or_a_kill_at_any_change_is_healed_by_the_next(kept: Path, peer: Primary) -> None:
    """Take what each change of a heal leaves, with none, some or all unsynced writes: each image heals to the whole."""
    film = Filmed(damaged_copy(kept))
    film.running = True
    assert heal(film, peer.address).ok
    assert len(film.images) > 12
    for moment, image in film.images:
        assert_healed_by_the_next(image, peer, moment)


def damaged_copy(kept: Path) -> CrashingStorage:
    """A copy of a log in another storage, durable, with a damaged segment and one that is missing."""
    storage = CrashingStorage()
    storage.create()
    third = segments(kept)[2].name
    for path in sorted(kept.iterdir()):
        if path.is_dir() or path.name.startswith("claim") or path.name in (third, "lock"):
            continue
        file = storage.open(path.name, "create")
        data = bytearray(path.read_bytes())
        if path == segments(kept)[1]:
            data[9_000:9_007] = FLIPPED
        file.write(0, [bytes(data)])
        file.sync()
        file.close()
    storage.sync_directory()
    return storage


def test_tls_and_the_rights_of_tokens(log: Path, kept: Path, tmp_path: Path) -> None:
    """Heal over TLS: refused with another authority, without TLS, and by a token to append; done with one to read."""
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    write(segments(log)[1], 9_000, FLIPPED)
    before = contents(log)
    with Primary(kept, tls=ours.server(), tokens=Tokens(read=["read"], append=["append"])) as primary:
        for token, tls in (
            ("read", theirs.client()),
            ("read", None),
            ("append", ours.client()),
            (None, ours.client()),
        ):
            with pytest.raises(walkit.OptionsError):
                heal(log, primary.address, token=token, tls=tls)
            assert contents(log) == before
        assert heal(log, primary.address, token="read", tls=ours.client()).ok
    assert_as(log, kept)


def test_a_peer_that_falls_silent_is_given_up(
    log: Path, kept: Path, peer: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hold back all answers: PeerError after the time of silence, nothing changed, the lock free; then it is healed."""
    monkeypatch.setattr(range_link, "SILENCE_S", 0.4)
    write(segments(log)[1], 9_000, FLIPPED)
    before = contents(log)
    with TcpProxy(peer.address) as proxy:
        proxy.answers_flow.clear()
        with pytest.raises(PeerError, match="sent nothing"):
            heal(log, proxy.address)
        assert contents(log) == before
        proxy.answers_flow.set()
        monkeypatch.undo()
        assert heal(log, proxy.address).ok
    assert_as(log, kept)
    until(lambda: not any(t.name == "walkit-range-watch" for t in threading.enumerate()), "the watches' end")


def test_callers_that_read_nothing_lose_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take all places with calls that read one message and no more: after the time of a stall another is served."""
    with walkit.open(tmp_path / "p") as log, Primary(log) as primary:
        for _ in range(40):
            log.append(bytes(1 << 20))
        log_id, lineage = (
            (manifest := load_manifest(FileStorage(str(tmp_path / "p")))).log_id,
            manifest.lineage,
        )
        links = [RangeLink(Destination(primary.address), 1 << 24) for _ in range(range_service.CALLS_MAX)]
        try:
            calls = [link.runs(log_id, lineage, LogEnd()) for link in links]
            for call in calls:
                assert next(call).headers
            with (
                RangeLink(Destination(primary.address), 1 << 24) as late,
                pytest.raises(PeerError, match="served already"),
            ):
                next(late.runs(log_id, lineage, LogEnd()))
            monkeypatch.setattr(
                range_service, "STALL_S", 0.5
            )  # only now: on a busy machine the first ones stall before

            def served() -> bool:
                with RangeLink(Destination(primary.address), 1 << 24) as link, suppress(PeerError):
                    return sum(len(run.data) for run in link.runs(log_id, lineage, LogEnd())) > 40 << 20
                return False

            until(served, "a place")
        finally:
            for link in links:
                link.close()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a log whose writer died among 300 durable records: sealed segments, and one that is not."""
    place = tmp_path_factory.mktemp("killed")
    with walkit.open(place / "log", options=replace(OPTIONS, idle_marker_ms=0)) as log:
        fill(log, 300)
        log.wait_idle()
        return Path(shutil.copytree(place / "log", place / "killed"))


def in_use(folder: Path) -> list[Path]:
    """The unsealed segments with frames of a log."""
    unsealed = [folder / record.name for record in load_manifest(FileStorage(str(folder))).unsealed]
    return [p for p in unsealed if any(p.read_bytes()[:SEGMENT_HEADER_BYTES])]


UNSEALED: dict[str, Callable[[Path], object]] = {
    "a frame": lambda path: write(path, 9_000, FLIPPED),
    "the header": lambda path: write(path, 16, FLIPPED),
    "the header and all frames": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "the end of the file": lambda path: write_short(path, 9_000),
    "the file": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", UNSEALED)
@pytest.mark.parametrize("of_a_replica", [False, True])
def test_an_unsealed_segment_is_refused_in_words(
    killed: Path, tmp_path: Path, damage: str, of_a_replica: bool
) -> None:
    """Damage the segment in use and a sealed one: that one is healed, the other names promotion, then salvage."""
    log = Path(shutil.copytree(killed, tmp_path / "log"))
    if of_a_replica:
        with Primary(killed) as primary, Replica(tmp_path / "r", primary.address, options=OPTIONS) as replica:
            replica.wait_for(300, WAIT_S)
            until(lambda: len(in_use(tmp_path / "r")) == 1, "the seal of all others")
            shutil.rmtree(log)
            shutil.copytree(tmp_path / "r", log)
    sealed, (unsealed,) = segments(log)[0], in_use(log)
    write(sealed, 9_000, FLIPPED)
    UNSEALED[damage](unsealed)
    left = unsealed.read_bytes() if unsealed.exists() else None
    with Primary(killed) as primary:
        report = heal(log, primary.address)
    assert not report.ok and report.changed
    assert [(s.segment, s.healed) for s in report.segments] == [(sealed.name, True), (unsealed.name, False)]
    detail = report.segments[1].reason
    if of_a_replica:
        assert "empty folder" in detail
    else:
        assert 0 < detail.index("walkit promote") < detail.index("--policy salvage")
    assert left == (unsealed.read_bytes() if unsealed.exists() else None)
    with pytest.raises(walkit.CorruptionError):
        walkit.open(log)


def test_a_segment_with_a_recorded_loss_is_left(log: Path, peer: Primary) -> None:
    """Damage a segment whose lost range a salvage recorded: it is named and left, and nothing of it changes."""
    write(segments(log)[1], 9_000, FLIPPED)
    assert walkit.repair(log, policy="salvage").lost
    write(segments(log)[1], 30_000, FLIPPED)
    before = contents(log)
    report = heal(log, peer.address)
    assert not report.ok and not report.changed and "lost range" in report.segments[0].reason
    assert contents(log) == before


def test_a_header_made_again_takes_no_limit_from_the_peer(log: Path, kept: Path, tmp_path: Path) -> None:
    """Heal a missing segment from a peer whose own header says 1 GiB a frame: the limit is what its frames need."""
    path, other = segments(log)[1], Path(shutil.copytree(kept, tmp_path / "other"))
    for each in segments(other):
        header = SegmentHeader.decode(each.read_bytes()[:SEGMENT_HEADER_BYTES], each.name)
        assert header is not None
        write(each, 0, replace(header, frame_bytes_max=1 << 30).encode())
    path.unlink()
    with Primary(other) as primary:
        assert heal(log, primary.address).ok
    made = SegmentHeader.decode(path.read_bytes()[:SEGMENT_HEADER_BYTES], path.name)
    assert made is not None and 200 < made.frame_bytes_max <= OPTIONS.frame_bytes_max
    assert_as(log, kept)


@pytest.mark.parametrize("file", [HEAL_NEW_NAME, KEPT_NEW_NAME])
def test_a_heal_on_a_full_disk_leaves_nothing_beside_the_log(log: Path, peer: Primary, file: str) -> None:
    """Refuse room for the new file, or for the damaged one's copy: StorageError, and no part of a file is left."""
    write(segments(log)[1], 9_000, FLIPPED)
    before = contents(log)
    storage = FaultyStorage(FileStorage(str(log)))
    storage.fail("write", file, errno=errno.ENOSPC)
    with pytest.raises(walkit.StorageError, match="ENOSPC"):
        heal(storage, peer.address)
    assert contents(log) == before
    assert heal(storage, peer.address).ok


@pytest.mark.parametrize("answering", [False, True])
def test_ctrl_c_ends_a_heal_whose_peer_takes_its_time(log: Path, kept: Path, answering: bool) -> None:
    """Interrupt a heal from a peer that says nothing, or one frame at a time: it ends at once, and nothing is left."""
    write(segments(log)[1], SEGMENT_HEADER_BYTES + 64, bytes(9_000))
    before = contents(log)
    over = WakeEvent()

    def answers(data: bytes, context: Any) -> Iterator[bytes]:
        hello = decode_from_subscriber(data)
        assert isinstance(hello, Hello)
        reader, end = FrameReader(StoredSource(FileStorage(str(kept)))), hello.end
        os.kill(os.getpid(), signal.SIGINT)
        while context.is_active() and not over.wait(0.4):
            if answering and (run := reader.read(end, 1)) is not None:
                end = run.end
                yield encode_from_publisher(batch_of(run, (), "", run.data, Lag()))
        reader.close()

    with serving(FRAMES_METHOD, grpc.unary_stream_rpc_method_handler(answers)) as address:
        with pytest.raises(KeyboardInterrupt):
            heal(log, address)
        deadline = time.monotonic() + SILENCE_S / 4
        while FileStorage(str(log)).is_locked(LOCK_NAME):
            assert time.monotonic() < deadline, "the heal goes on"
            time.sleep(0.01)
        over.set()
    assert contents(log) == before
