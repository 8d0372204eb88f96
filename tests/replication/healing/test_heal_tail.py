"""Healing the end of a log whose writer died: its segment in use, its durable slot, and what only a peer knows of."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import walkit
from tests.log.imports import without_promise
from tests.replication.callers import WAIT_S, until
from tests.replication.healing.test_heal import contents, fill, segments, write, write_short
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import LogEnd
from walkit.format.segment import SegmentHeader
from walkit.recovery.log_scan import read_durable_slot
from walkit.replication import HealReport, PeerError, Primary, Replica, heal, promote, rewind
from walkit.replication.healing.link import RangeLink
from walkit.replication.healing.ranges import DamagedRange, DamagedSegment
from walkit.replication.healing.write import HealedFile
from walkit.replication.protocol.frame_run import FrameLimits
from walkit.replication.transport.connection import Destination
from walkit.segments.manifest_store import DURABLE_NAME, load_manifest
from walkit.storage import FileStorage

COUNT = 50
OPTIONS = walkit.LogOptions(segment_bytes=64 * 1024)
PLAIN = replace(OPTIONS, idle_marker_ms=0)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a log whose writer died among 50 durable records: nothing is sealed."""
    path = tmp_path_factory.mktemp("killed")
    with walkit.open(path / "log", options=PLAIN) as log:
        fill(log, COUNT)
        shutil.copytree(path / "log", path / "killed")
    return path / "killed"


@pytest.fixture(scope="module")
def peer(killed: Path) -> Iterator[Primary]:
    """A primary of a replica that has all 50 records."""
    replica = killed.parent / "replica"
    copy = shutil.copytree(killed, killed.parent / "copy")
    with Primary(copy) as primary, Replica(replica, primary.address, options=PLAIN) as following:
        following.wait_for(COUNT, WAIT_S)
    with Primary(replica) as primary:
        yield primary


@pytest.fixture
def log(killed: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(killed, tmp_path / "log"))


def in_use(folder: Path) -> Path:
    """The segment with frames of a log that has one."""
    (path,) = (p for p in segments(folder) if any(p.read_bytes()[:SEGMENT_HEADER_BYTES]))
    return path


def healed_twice(log: Path, peer: Primary) -> HealReport:
    """Heal dry and in earnest: both say the same, and the first changes nothing; once more finds no damage."""
    before = contents(log)
    tried = heal(log, peer.address, dry_run=True)
    assert contents(log) == before
    report = heal(log, peer.address)
    assert [replace(s, kept_as="") for s in report.segments] == list(tried.segments)
    if report.ok:
        again = heal(log, peer.address)
        assert again.ok and not again.segments
    return report


def lsns_of(log: Path) -> list[int]:
    """The LSNs of a log once it was opened for writing, which is undamaged then and not salvaged."""
    with walkit.open(log) as opened:
        assert not opened.recovery.lost
        found = [record.lsn for record in opened.read()]
    assert walkit.verify(log).ok
    return found


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: write_short(path, 0),
    "a header of zeros": lambda path: write(path, 0, bytes(SEGMENT_HEADER_BYTES)),
    "a damaged header": lambda path: write(path, 16, b"\xa5" * 7),
    "all zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "cut short after its frames": lambda path: write_short(path, 60_000),
    "cut short among its frames": lambda path: write_short(path, 9_000),
    "a tail of zeros": lambda path: write(path, 9_000, bytes(40_000)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_segment_in_use_is_healed(log: Path, killed: Path, peer: Primary, damage: str) -> None:
    """Spoil the segment in use of a killed writer: its frames and its header come back, with all 50 records."""
    path = in_use(log)
    whole = path.read_bytes()
    DAMAGE[damage](path)
    report = healed_twice(log, peer)
    assert report.ok and report.changed and [s.segment for s in report.segments] == [path.name]
    assert path.read_bytes()[SEGMENT_HEADER_BYTES:] == whole[SEGMENT_HEADER_BYTES:]
    assert lsns_of(log) == list(range(1, COUNT + 1))


@pytest.mark.parametrize(
    "damage", ["missing", "empty", "all zeros", "cut short among its frames", "a tail of zeros"]
)
def test_what_only_the_peer_knows_of_comes_back(log: Path, peer: Primary, damage: str) -> None:
    """Lose the durable slot with the tail: nothing here says that there was more, the peer does, and gives it."""
    path = in_use(log)
    DAMAGE[damage](path)
    (log / DURABLE_NAME).unlink()
    report = healed_twice(log, peer)
    (found,) = report.segments
    if damage in ("empty", "cut short among its frames"):
        assert not report.ok and "no durable slot" in found.why_not
        return
    assert report.ok and found.bytes_beyond == found.bytes_fetched > 0
    assert "this log knew of" in report.text()
    assert lsns_of(log) == list(range(1, COUNT + 1))


def test_a_damaged_header_without_a_slot_is_left(log: Path, peer: Primary) -> None:
    """Lose the durable slot, and damage the header before frames that a peer may lack: said, and nothing changes."""
    write(in_use(log), 16, b"\xa5" * 7)
    (log / DURABLE_NAME).unlink()
    before = contents(log)
    report = healed_twice(log, peer)
    assert not report.ok and not report.changed and "header" in report.segments[0].why_not
    assert contents(log) == before


def test_a_log_without_damage_asks_a_peer_and_is_left(log: Path, peer: Primary) -> None:
    """Heal a killed writer's log that has all: no damage, no change; without a peer it cannot be said."""
    before = contents(log)
    report = heal(log, peer.address)
    assert report.ok and not report.changed and "no damage" in report.text()
    assert contents(log) == before
    with Primary(log) as primary:
        gone = primary.address
    with pytest.raises(PeerError):
        heal(log, gone)


def test_a_peer_that_was_promoted_gives_back_no_more_than_there_was(
    log: Path, killed: Path, tmp_path: Path
) -> None:
    """Lose slot and tail, and heal from a replica that went on as a primary: this log's 50 records, and not its own."""
    other = Path(shutil.copytree(killed.parent / "replica", tmp_path / "other"))
    promote(other)
    with walkit.open(other, options=PLAIN) as promoted, Primary(promoted) as primary:
        fill(promoted, 20)
        write(in_use(log), 9_000, bytes(40_000))
        (log / DURABLE_NAME).unlink()
        report = healed_twice(log, primary)
        assert report.ok and report.segments[0].bytes_beyond
        assert lsns_of(log) == list(range(1, COUNT + 1))
        # With records of its own now, this log has a history that the promoted one does not have.
        with walkit.open(log) as opened:
            opened.append(b"own")
            opened.sync()
            copy = Path(shutil.copytree(log, tmp_path / "parted"))
        assert heal(copy, primary.address).ok


@pytest.mark.parametrize("sealed", [False, True])
def test_a_peer_that_lacks_a_marker_alone_gives_all_records(tmp_path: Path, sealed: bool) -> None:
    """Damage the last records and the marker after them, which the replica lacks: no record is given up for it."""
    with walkit.open(tmp_path / "log", options=replace(OPTIONS, idle_marker_ms=1)) as log:
        fill(log, COUNT)
        with (
            Primary(log) as primary,
            Replica(tmp_path / "replica", primary.address, options=PLAIN) as replica,
        ):
            replica.wait_for(COUNT, WAIT_S)
        until(lambda: not log.parts.core.needs_marker, "a marker")
        killed = Path(shutil.copytree(tmp_path / "log", tmp_path / "killed"))
    walkit.copy(tmp_path / "replica", tmp_path / "longer")
    rewind(tmp_path / "replica", COUNT + 1)  # which cuts markers after the last record
    position = load_manifest(FileStorage(str(tmp_path / "replica"))).end.position
    damaged = tmp_path / "log" if sealed else killed
    path = segments(damaged)[-1] if sealed else in_use(damaged)
    write(path, SEGMENT_HEADER_BYTES + position - 2_000, bytes(2_064))
    with pytest.raises(walkit.CorruptionError), walkit.open(damaged) as opened:
        list(opened.read())
    with Primary(tmp_path / "replica") as primary:
        report = healed_twice(damaged, primary)
    if sealed:
        assert not report.ok and "frames without records alone" in report.segments[0].why_not
        return
    assert report.ok and report.segments[0].markers_given_up and "without records" in report.text()
    slot = read_durable_slot(FileStorage(str(damaged)))
    assert (slot.lsn, slot.position) == (COUNT, position)
    assert lsns_of(damaged) == list(range(1, COUNT + 1))
    with (
        walkit.open(damaged, options=PLAIN) as opened,
        Primary(opened) as primary,
        Replica(tmp_path / "longer", primary.address, options=PLAIN) as replica,
    ):
        until(
            lambda: replica.status().state == "streaming", "a welcome"
        )  # though it has the marker, and no epoch began
        replica.wait_for(opened.append(b"next").last_lsn, WAIT_S)


@pytest.mark.parametrize("alone", [False, True])
def test_a_header_made_anew_takes_no_limit_from_the_peer(tmp_path: Path, alone: bool) -> None:
    """Heal a damaged header from a peer whose own says 1 GiB a frame: the limit is this epoch's, or its frames'."""
    with walkit.open(tmp_path / "log", options=PLAIN) as log:
        fill(log, 50 if alone else 300)
        log.wait_idle()
        copy = Path(shutil.copytree(tmp_path / "log", tmp_path / "peer"))
    walkit.open(copy).close()
    for path in segments(copy):
        header = SegmentHeader.decode(path.read_bytes()[:SEGMENT_HEADER_BYTES], path.name)
        assert header is not None
        write(path, 0, replace(header, frame_bytes_max=1 << 30).encode())
    path = segments(tmp_path / "log")[0]
    before = path.read_bytes()[:SEGMENT_HEADER_BYTES]
    write(path, 16, b"\xa5" * 7)
    with Primary(copy) as primary:
        assert heal(tmp_path / "log", primary.address).ok
    after = path.read_bytes()[:SEGMENT_HEADER_BYTES]
    if not alone:
        assert without_promise(after) == without_promise(before)
    made = SegmentHeader.decode(after, path.name)
    assert made is not None and 200 < made.frame_bytes_max <= OPTIONS.frame_bytes_max
    assert walkit.verify(tmp_path / "log").ok


def test_frames_of_another_alignment_are_not_taken(killed: Path, peer: Primary, tmp_path: Path) -> None:
    """Begin a segment with frames at multiples of 64 where those of the epoch are at 4,096: CorruptionError."""
    storage = FileStorage(str(killed))
    manifest = load_manifest(storage)
    with RangeLink(Destination(peer.address), 1 << 16) as link:
        run = next(link.runs(manifest.log_id, manifest.lineage, LogEnd()))
    record = manifest.unsealed[0]
    damaged = DamagedSegment(
        record,
        None,
        present=False,
        file_bytes=0,
        ranges=(DamagedRange(LogEnd(), run.end),),
        end_position=run.end.position,
        limits=FrameLimits(4_096, 1 << 20),
    )
    new = HealedFile(storage, manifest, damaged, dry_run=True)
    try:
        with pytest.raises(walkit.CorruptionError, match="multiples"):
            new.add(run)
    finally:
        new.close()
