"""Healing a damaged log from a peer over real gRPC: what fits is taken, what does not leaves the log as it was."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import walkit
from tests.log.imports import without_promise
from tests.replication.callers import WAIT_S, until
from tests.replication.certificates import Authority
from tests.replication.flips import flipping
from tests.replication.kill_rounds import run_heal_round
from tests.replication.processes import TYPED, UNHEALED
from tests.replication.proxy import TcpProxy
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import LogEnd
from walkit.models import CrashingStorage, FaultyStorage
from walkit.replication import PeerError, Primary, Replica, Tokens, heal
from walkit.replication.healing import link as range_link
from walkit.replication.healing.link import RangeLink
from walkit.replication.primary import range_service
from walkit.replication.transport.connection import Destination
from walkit.segments.manifest_store import load_manifest
from walkit.storage import FileStorage, Storage

OPTIONS = walkit.LogOptions(segment_bytes=64 * 1024, durability="interval", interval_ms=60_000)
"""What is filled is synced once, at its end: only then does any of it count."""
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
    """All files of a log's folder, lost+found too, but for what is told of its lock."""
    files = (file for file in path.rglob("*") if file.is_file() and file.name != "lock")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def write(path: Path, offset: int, data: bytes) -> int:
    """Overwrite bytes of a file; an offset below zero counts from its end."""
    with path.open("r+b") as file:
        file.seek(offset, 2 if offset < 0 else 0)
        return file.write(data)


def assert_as(log: Path, kept: Path) -> None:
    """The log is undamaged, and its segments are the bytes that they were, without promises of the manifest."""
    assert walkit.verify(log).ok
    healed, before = ([without_promise(path.read_bytes()) for path in segments(p)] for p in (log, kept))
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


@pytest.mark.parametrize("place", ["within", "to the end"])
def test_an_unsealed_segment_is_healed_as_far_as_it_was_promised(tmp_path: Path, place: str) -> None:
    """Crash a writer, damage its segment in use among its frames or up to their end: all records are there again."""
    crashing = CrashingStorage()
    # Without markers: a frame that comes after the replica has left would be promised, and be at no peer.
    log = walkit.open(crashing, options=walkit.LogOptions(segment_bytes=1 << 20, idle_marker_ms=0))
    fill(log, 200)
    log.sync()
    with Primary(log) as primary, Replica(tmp_path / "replica", primary.address) as replica:
        replica.wait_for(200, WAIT_S)
    position = log.parts.core.durable_position
    storage = crashing.crash(keep="all")
    name = max(each for each in storage.names() if each.endswith(".segment") and _has_frames(storage, each))
    file = storage.open(name, "write")
    start = SEGMENT_HEADER_BYTES + 20_000
    size = 500 if place == "within" else SEGMENT_HEADER_BYTES + position - start
    file.write(start, [bytes(size)])
    file.sync()
    file.close()
    with pytest.raises(walkit.CorruptionError):
        walkit.open(storage)
    with Primary(tmp_path / "replica") as primary:
        report = heal(storage, primary.address)
    assert report.ok and report.changed
    with walkit.open(storage) as opened:
        assert [r.lsn for r in opened.read()] == list(range(1, 201))
        assert not opened.recovery.lost
    log.close()


def _has_frames(storage: Storage, name: str) -> bool:
    file = storage.open(name, "read")
    try:
        return any(file.read(SEGMENT_HEADER_BYTES, 64))
    finally:
        file.close()


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


def test_what_a_peer_lacks_is_said_and_left(log: Path, kept: Path, tmp_path: Path) -> None:
    """Heal from a peer that was trimmed and one that ends early: the report says why, and the rest is healed."""
    trimmed = Path(shutil.copytree(kept, tmp_path / "trimmed"))
    with walkit.open(trimmed) as other:
        other.trim(300)
    first, *_, last = segments(log)
    write(first, 9_000, FLIPPED)
    write(last, 9_000, FLIPPED)
    damaged = first.read_bytes()
    with Primary(trimmed) as primary:
        report = heal(log, primary.address)
    assert not report.ok and report.changed
    assert [s.healed for s in report.segments] == [False, True]
    assert "oldest" in report.segments[0].why_not and report.segments[0].why_not in report.text()
    assert first.read_bytes() == damaged and not walkit.verify(log).ok


def test_a_peer_that_ends_early_or_is_damaged_itself_gives_what_it_has(
    log: Path, kept: Path, tmp_path: Path
) -> None:
    """Heal two segments from a peer that lacks one, and from one that is damaged there: why, and the rest is healed."""
    ends_early = tmp_path / "early"
    with walkit.open(ends_early.with_name("grown"), options=OPTIONS) as grown:
        fill(grown, 400)
        with Primary(grown) as primary, Replica(ends_early, primary.address, options=OPTIONS) as replica:
            replica.wait_for(400, WAIT_S)
        fill(grown, 400)
    damaged = Path(shutil.copytree(kept, tmp_path / "damaged"))
    write(segments(damaged)[3], 9_000, FLIPPED)
    for mine, peer, why in (
        (ends_early.with_name("grown"), ends_early, "the peer's frames end"),
        (log, damaged, "damage of its own"),
    ):
        first, other = segments(mine)[1], segments(mine)[-2 if mine != log else 3]
        for path in (first, other):
            write(path, 9_000, FLIPPED)
        with Primary(peer) as primary:
            report = heal(mine, primary.address)
        assert [s.segment for s in report.segments if s.healed] == [first.name]
        assert why in report.segments[1].why_not and not report.ok


def test_a_torn_tail_does_not_keep_what_was_promised_from_being_healed(tmp_path: Path) -> None:
    """Damage a promised frame, and one that nothing promised: the first is healed, and the log is cut at the second."""
    crashing = CrashingStorage()
    options = replace(OPTIONS, segment_bytes=1 << 20, idle_marker_ms=0)
    log = walkit.open(crashing, options=options)
    fill(log, 100)
    with Primary(log) as primary, Replica(tmp_path / "replica", primary.address) as replica:
        replica.wait_for(100, WAIT_S)
    promised = log.parts.core.durable_position
    for _ in range(100):  # and no sync
        log.append(bytes(300))
    storage = crashing.crash(keep="all")
    (name,) = (each for each in storage.names() if each.endswith(".segment") and _has_frames(storage, each))
    file = storage.open(name, "write")
    for position in (10_000, promised + 10_000):
        file.write(SEGMENT_HEADER_BYTES + position, [bytes(500)])
    file.sync()
    tail = file.read(SEGMENT_HEADER_BYTES + promised, 20_000)
    file.close()
    with Primary(tmp_path / "replica") as primary:
        assert heal(storage, primary.address).ok
    file = storage.open(name, "read")
    assert file.read(SEGMENT_HEADER_BYTES + promised, 20_000) == tail, "what nothing promised stays as it was"
    file.close()
    with walkit.open(storage) as opened:
        assert 100 < opened.acked_lsn < 200
        assert [r.lsn for r in opened.read()] == list(range(1, opened.acked_lsn + 1))
    log.close()


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
    assert "compacted" in report.segments[0].why_not
    assert contents(tmp_path / "p") == before


def test_a_log_with_a_living_writer_is_refused(log: Path, peer: Primary) -> None:
    """Heal a log that is open: LogLockedError, of a dry run too, which says that this process has it."""
    with walkit.open(log):
        for dry_run in (False, True):
            with pytest.raises(walkit.LogLockedError, match="this process"):
                heal(log, peer.address, dry_run=dry_run)


def test_a_peer_that_cannot_be_reached_is_a_typed_error(log: Path) -> None:
    """Heal from a port where nothing listens: PeerError with the address, and no file is changed."""
    with Primary(log) as primary:
        address = primary.address
    write(segments(log)[1], 9_000, FLIPPED)
    before = contents(log)
    with pytest.raises(PeerError) as caught:
        heal(log, address)
    assert caught.value.address == address
    assert contents(log) == before


def test_a_failure_at_any_operation_leaves_what_was_or_what_is_healed(kept: Path, peer: Primary) -> None:
    """Fail each operation on the storage in turn, then cut the power: the same call heals what is left."""
    for operation in ("create", "write", "sync", "drop_cached", "replace", "sync_directory"):
        for nth in range(1, 100):
            crashing = CrashingStorage()
            _copy_into(kept, crashing)
            storage = FaultyStorage(crashing)
            fault = storage.fail(operation, nth=nth)
            with suppress(walkit.StorageError):
                heal(storage, peer.address)
            after = crashing.crash(keep="none")
            assert heal(after, peer.address).ok, f"{operation} {nth}"
            assert walkit.verify(after).ok, f"{operation} {nth}"
            with walkit.open(after, "r") as reader:
                assert sum(1 for _ in reader.read()) == RECORDS
            if not fault.hits:
                break
        assert nth > 1, f"{operation} was never met"


def _copy_into(kept: Path, storage: CrashingStorage) -> None:
    """A copy of a log in another storage, durable, with a damaged segment and one that is missing."""
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


def test_a_network_that_cuts_and_flips_changes_nothing(log: Path, kept: Path) -> None:
    """Heal through a proxy that flips bits, and one that cuts: a typed error and nothing changed, or it is healed."""
    write(segments(log)[1], 9_000, FLIPPED)
    before = contents(log)
    with flipping(kept, seed=3) as between:
        between.proxy.trouble = "flip"
        for _ in range(4):
            status = between.processes.wait(
                between.processes.start("heal", between.proxy.address, str(log), 0)
            )
            exit_code = os.WEXITSTATUS(status)  # what came damaged is a reason why it was not healed
            assert os.WTERMSIG(status) == signal.SIGABRT or exit_code in (0, TYPED, UNHEALED)
            between.keep_up()
            if status == 0:
                break
            assert contents(log) == before
        assert between.proxy.flipped
        between.proxy.trouble = ""
        between.proxy.cut()
        status = between.processes.wait(between.processes.start("heal", between.proxy.address, str(log), 0))
        assert status == 0
    assert_as(log, kept)


def test_a_heal_that_is_killed_is_done_by_the_next(tmp_path: Path) -> None:
    """SIGKILL heals before random changes and at random moments: as it was or healed, and the next one ends it."""
    tally = run_heal_round(tmp_path, seed=1, kills=6)
    assert tally.healing


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
