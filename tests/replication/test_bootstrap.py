"""Bootstrap: a replica whose log cannot be continued gets the primary's snapshot and segments, and then the tail."""

from __future__ import annotations

import errno
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, quick, until
from tests.replication.frame_history import whole
from tests.replication.processes import shared_processes
from tests.replication.proxy import TcpProxy
from tests.replication.test_replica_checkpoint import put
from tests.support.crash_recorder import Filmed
from tests.support.in_flight_logs import Flight
from tests.support.logs import lsns
from tests.support.stores import SMALL
from tests.support.threads import Task
from walkit.copier.plan import MissingRange
from walkit.format.file_names import BOOTSTRAP_PREFIX, BOOTSTRAP_READY_NAME, lsn_of_name, snapshot_name
from walkit.format.segment import segment_name
from walkit.models import CrashingStorage, FaultyStorage
from walkit.replication import Primary, Replica
from walkit.replication.core.actions import MakePlan, ReadPart
from walkit.replication.core.bootstrap import FETCHES_MAX, Transfer
from walkit.replication.core.publisher import Publisher
from walkit.replication.logs.imported_log import ImportedLog
from walkit.replication.protocol.messages import Chunk, Fetch, Hello, Plan
from walkit.replication.replica.store import ReplicaStore
from walkit.segments.consumer_files import drop_claim
from walkit.segments.manifest_store import load_manifest
from walkit.state.table import KeyedTable
from walkit.storage.file import FileStorage
from walkit.store import Store


def follower(folder: Path, primary: Primary, **more: Any) -> Replica:
    """A replica of this primary that tries again at once."""
    return Replica(folder, primary.address, options=SMALL, backoff=quick(), **more)


def gathered(folder: Path) -> list[str]:
    """The files that a bootstrap has left in a folder."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(BOOTSTRAP_PREFIX))


def drop_claims(log: walkit.WriteAheadLog) -> None:
    """Drop all claims on a log, as an operator does."""
    for fact in log.claims():
        drop_claim(log.parts.storage, fact.name)


@pytest.mark.parametrize("change", ["checkpoint", "compact"])
def test_an_empty_replica_of_a_checkpointed_or_compacted_store(tmp_path: Path, change: str) -> None:
    """Checkpoint or compact a store, append more, follow with nothing: the state is the primary's, opened again too."""
    with Store.open(tmp_path / "p", options=SMALL) as store, Primary(store) as primary:
        put(store, 120)
        if change == "checkpoint":
            assert store.checkpoint().low_watermark == 120
        else:
            store.compact()
            assert store.log.complete_from_lsn > 1
        last = put(store, 20, 15)
        with follower(tmp_path / "r", primary) as replica:
            replica.wait_for(last, WAIT_S)
            assert replica.store.items() == store.items()
            replica.wait_for(put(store, 3), WAIT_S)
            assert replica.store.items() == store.items()
            until(lambda: bool(store.log.claims()), "a claim")
        with follower(tmp_path / "r", primary) as replica:
            assert replica.store.items() == store.items()
    assert walkit.verify(tmp_path / "r").ok
    assert gathered(tmp_path / "r") == []


def test_a_replica_that_is_too_far_behind(tmp_path: Path) -> None:
    """Follow, go away, lose the claim, checkpoint past it, come back: the old files are gone, the state is equal."""
    with Store.open(tmp_path / "p", options=SMALL) as store, Primary(store) as primary:
        with follower(tmp_path / "r", primary) as replica:
            replica.wait_for(put(store, 30), WAIT_S)
            until(lambda: len(store.log.claims()) == 1, "the claim")
        drop_claims(store.log)
        put(store, 120)
        assert store.checkpoint().low_watermark == 150
        last = put(store, 7)
        events: list[str] = []
        with follower(tmp_path / "r", primary, events=lambda name, _: events.append(name)) as replica:
            replica.wait_for(last, WAIT_S)
            assert replica.store.items() == store.items()
            assert replica.log.first_lsn > 100
            until(lambda: "walkit.replica.replace" in events, "the event, which another thread sends")
            assert events.count("walkit.replica.replace") == 1
            manifest = replica.log.manifest
        names = {path.name for path in (tmp_path / "r").iterdir() if path.name.endswith(".segment")}
        assert names == {record.name for record in load_manifest(FileStorage(str(tmp_path / "r"))).sealed}
        assert manifest.low_watermark == 150
    assert walkit.verify(tmp_path / "r").ok


@pytest.mark.parametrize("put_back", [False, True])
def test_a_snapshot_of_the_log_that_was_replaced_goes_with_it(tmp_path: Path, put_back: bool) -> None:
    """Checkpoint a replica, trim its primary past that, come back: it follows and opens, also with the old file."""
    snapshot = snapshot_name(30)
    with walkit.open(tmp_path / "p", options=SMALL) as log, Primary(log) as primary:
        for n in range(30):
            log.append(bytes(3000), key=b"old%d" % n)
        with follower(tmp_path / "r", primary) as replica:
            replica.wait_for(30, WAIT_S)
            replica.checkpoint(trim=False)
            until(lambda: len(log.claims()) == 1, "the claim")
        old = (tmp_path / "r" / snapshot).read_bytes()
        drop_claims(log)
        for n in range(100):
            log.append(bytes(3000), key=b"new%d" % n)
        log.trim(90)
        with follower(tmp_path / "r", primary) as replica:
            replica.wait_for(log.append(b"more", key=b"last").last_lsn, WAIT_S)
            assert (begins := replica.store.begins_lsn) > 30
            assert not (tmp_path / "r" / snapshot).exists()
        if put_back:
            (tmp_path / "r" / snapshot).write_bytes(old)
        with follower(tmp_path / "r", primary) as replica:
            assert replica.store.begins_lsn == begins
            assert replica.store[b"last"] == b"more"
            assert b"old1" not in replica.store
    assert walkit.verify(tmp_path / "r").ok


@pytest.fixture(scope="module")
def between() -> list[tuple[str, CrashingStorage]]:
    """Images of power cuts after the first rename of a bootstrap of a replica with 30 records, before its manifest."""
    base = CrashingStorage()
    film = Filmed(base, every_way=True)
    with Store.open(storage=CrashingStorage(), options=SMALL) as store, Primary(store) as primary:
        with Replica(film, primary.address, options=SMALL, backoff=quick()) as replica:
            replica.wait_for(put(store, 30), WAIT_S)
            until(lambda: len(store.log.claims()) == 1, "the claim")
        drop_claims(store.log)
        put(store, 100)
        store.checkpoint()
        last = put(store, 30)
        film.running = True
        with Replica(film, primary.address, options=SMALL, backoff=quick()) as replica:
            replica.wait_for(last, WAIT_S)
            film.running = False
    found = []
    for moment, image in film.images:
        number = segment_name(load_manifest(image).next_segment)
        if BOOTSTRAP_READY_NAME in image.names() and number in image.names():
            found.append((moment, image))
    assert len(found) > 10 and any(lsn_of_name(name) == 130 for _, image in found for name in image.names())
    return found


def test_between_the_renames_and_the_manifest_the_log_is_as_before(
    between: list[tuple[str, CrashingStorage]],
) -> None:
    """Read, verify, recover and repair each image: the 30 records of before; a replica puts the new log there."""
    for moment, image in between:
        with walkit.open(image.process_kill(), "r") as reader:
            assert lsns(reader.read()) == list(range(1, 31)), moment
            walkit.recover(reader, table := KeyedTable())
            assert table.applied_lsn == 30, moment
        assert walkit.verify(image.process_kill()).ok, moment
        with Store.open(storage=image.process_kill(), options=SMALL) as store:
            assert store.applied_lsn == 30, moment
        repaired = image.process_kill()
        walkit.repair(repaired)
        for folder, ends in ((image, {160}), (repaired, {30, 160})):
            log = ImportedLog(folder, SMALL)
            try:
                assert log.durable_lsn in ends, moment
                assert ReplicaStore(log).applied_lsn == log.durable_lsn, moment
            finally:
                log.close()
            assert walkit.verify(folder).ok, moment
            assert [n for n in folder.names() if n.startswith(BOOTSTRAP_PREFIX)] == [], moment


@pytest.mark.parametrize("all_of_them", [False, True])
def test_a_damaged_snapshot_is_not_given_to_replicas(tmp_path: Path, all_of_them: bool) -> None:
    """Flip a byte of the newest snapshot, or of both: a replica gets the older one or none, and reports why."""
    events: list[str] = []
    with Store.open(tmp_path / "p", options=SMALL, events=lambda name, _: events.append(name)) as store:
        put(store, 60)
        store.checkpoint(trim=False)
        put(store, 60)
        store.checkpoint(trim=False)
        last = put(store, 10)
        store.log.trim(60)
        for lsn in (60, 120) if all_of_them else (120,):
            path = tmp_path / "p" / snapshot_name(lsn)
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        with Primary(store) as primary, follower(tmp_path / "r", primary) as replica:
            if all_of_them:
                until(lambda: "snapshot" in replica.status().detail, "the reason at the replica")
                assert "LSN 60" in primary.status().trouble or "LSN 120" in primary.status().trouble
                assert not replica.log.durable_lsn
                return
            replica.wait_for(last, WAIT_S)
            assert replica.store.items() == store.items()
            assert replica.store.snapshot_lsn == 60
            assert "the snapshot at LSN 120" in primary.status().trouble
            until(lambda: "walkit.snapshot.skip" in events, "the event, which another thread sends")
            assert events.count("walkit.snapshot.skip") == 1


def trimmed(
    folder: Path, records: int = 200, options: walkit.LogOptions = SMALL, to: int = 40
) -> walkit.WriteAheadLog:
    """A log of this many records of 12 kB, of which the first forty, or up to another, were trimmed."""
    log = walkit.open(folder, options=options)
    noise = random.Random(3)
    for _ in range(records):
        log.append(noise.randbytes(12_000))
    log.trim(to)
    return log


def assert_equal(log: walkit.WriteAheadLog, replica: Replica) -> None:
    """The replica has the primary's records, with the same frames at the same positions."""
    first = log.first_lsn
    assert replica.log.first_lsn == first
    assert [r.value for r in replica.log.read(first)] == [r.value for r in log.read(first)]
    until(lambda: replica.log.end.position == log.parts.core.durable_position, "the marker frames")


KILLS = [
    ("write", "bootstrap-*.part", 9),
    ("write", "bootstrap-*.part", 9),
    ("replace", "bootstrap-ready", 1),
    ("replace", "*.segment", 3),
    ("replace", "manifest", 1),
]


def killed(folder: Path, primary: Primary, lsn: int, kill: tuple[str, str, int]) -> bool:
    """Follow in a process that is killed by SIGKILL before the nth such change; say whether it came to that."""
    operation, pattern, nth = kill
    started = shared_processes()
    pid = started.start("follow until", str(folder), nth, primary.address, lsn, operation, pattern)
    status = started.wait(pid)
    assert status in (0, signal.SIGKILL)
    return status != 0


def test_a_killed_replica_resumes_its_bootstrap(tmp_path: Path) -> None:
    """Kill a bootstrap at parts, renames and the manifest, one after the other: it resumes, little is sent twice."""
    with trimmed(tmp_path / "p") as log, Primary(log) as primary:
        for kill in KILLS:
            assert killed(tmp_path / "r", primary, log.acked_lsn, kill), kill
        with follower(tmp_path / "r", primary) as replica:
            replica.wait_for(log.append(b"the last").last_lsn, WAIT_S)
            assert_equal(log, replica)
        needed = log.parts.core.durable_position - log.parts.manifest_store.current.sealed[0].start_position
        in_flight = FETCHES_MAX * (SMALL.segment_bytes + 4096)
        assert primary.statistics().frame_bytes < needed + 3 * in_flight
    assert walkit.verify(tmp_path / "r").ok
    assert gathered(tmp_path / "r") == []


def test_a_part_that_was_damaged_is_fetched_again(tmp_path: Path) -> None:
    """Kill a bootstrap, flip a byte of a part, go on: the check finds it, that part alone comes again, all is equal."""
    with trimmed(tmp_path / "p") as log, Primary(log) as primary:
        assert killed(tmp_path / "r", primary, log.acked_lsn, ("write", "bootstrap-*.part", 20))
        part, *others = [tmp_path / "r" / name for name in gathered(tmp_path / "r") if name.endswith(".part")]
        data, kept = bytearray(part.read_bytes()), sum(path.stat().st_size for path in others)
        data[9000] ^= 4
        part.write_bytes(data)
        missing: list[int] = []
        with follower(
            tmp_path / "r", primary, events=lambda _, facts: missing.append(facts.get("missing_bytes", 0))
        ) as replica:
            replica.wait_for(log.acked_lsn, WAIT_S)
            needed = sum(path.stat().st_size for path in (tmp_path / "r").glob("*.segment"))
            replica.wait_for(log.append(b"the last").last_lsn, WAIT_S)
            assert_equal(log, replica)
        until(lambda: any(missing), "the event, which another thread sends")
        assert sum(missing) == needed - kept


@pytest.mark.parametrize(
    ("operation", "number"),
    [("synced_write", errno.ENOSPC), ("synced_write", errno.ESTALE), ("create", errno.EIO)],
)
def test_a_storage_that_fails_under_a_streaming_replica_is_tried_again(
    tmp_path: Path, operation: Any, number: int
) -> None:
    """Fail the replica's writes in the middle of a stream: the status names it, and once they succeed all comes."""
    storage = FaultyStorage(FileStorage(str(tmp_path / "r")))
    with (
        walkit.open(tmp_path / "p", options=SMALL) as log,
        Primary(log) as primary,
        Replica(storage, primary.address, options=SMALL) as replica,
    ):
        replica.wait_for(log.append(b"first", key=b"k").last_lsn, WAIT_S)
        full = storage.fail(operation, "*.segment", times=None, errno=number)
        for n in range(200):
            last = log.append(bytes(1000), key=b"%d" % n).last_lsn
        until(lambda: errno.errorcode[number] in replica.status().trouble, "the failed storage")
        until(lambda: full.hits > 1, "the second try")
        assert replica.error is None
        is_away = number != errno.ENOSPC
        until(lambda: (replica.status().state == "absent") == is_away, "the state")
        until(lambda: replica.status().lag_records is None, "the pause before the next try")
        waiting = Task(lambda: replica.wait_for(last, WAIT_S))
        full.cancel()
        assert waiting.result() == last
        assert_equal(log, replica)
    assert walkit.verify(tmp_path / "r").ok


SWITCH = [
    ("synced_write", "bootstrap-*.part"),
    ("replace", "*.segment"),
    ("create", "manifest.new"),
    ("write", "manifest.new"),
    ("replace", "manifest"),
    ("remove", "bootstrap-ready"),
]


@pytest.mark.parametrize("operation", SWITCH, ids=str)
def test_a_full_disk_within_the_switch_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: tuple[Any, str]
) -> None:
    """Fail a change of the switch with ENOSPC: the status shows it, a waiting thread waits; with room it continues."""
    storage = FaultyStorage(FileStorage(str(tmp_path / "r")))
    faults: list[Any] = []
    taking = ImportedLog.reopen

    def reopen(self: ImportedLog) -> None:
        if not faults:
            faults.append(storage.fail(*operation, times=None, errno=errno.ENOSPC))
        taking(self)

    monkeypatch.setattr(ImportedLog, "reopen", reopen)
    with (
        trimmed(tmp_path / "p", 60) as log,
        Primary(log) as primary,
        Replica(storage, primary.address, options=SMALL, backoff=quick()) as replica,
    ):
        until(lambda: bool(faults) and faults[0].hits > 2, "the full disk")
        until(lambda: "ENOSPC" in replica.status().detail, "the reason")
        status = replica.status()
        assert status.state == "connecting" and status.error is None
        waiting = Task(lambda: replica.wait_for(60, WAIT_S))
        faults[0].cancel()
        assert waiting.result() >= 60
        replica.wait_for(log.append(b"the last").last_lsn, WAIT_S)
        assert_equal(log, replica)
    assert walkit.verify(tmp_path / "r").ok
    assert gathered(tmp_path / "r") == []


def test_a_link_that_breaks_within_the_first_piece_brings_a_bootstrap_to_its_end(tmp_path: Path) -> None:
    """Cut each connection after 100 kB, with pieces of 1 MiB at first: smaller ones come, and the log is whole."""
    large = walkit.LogOptions(segment_bytes=2 << 20)
    with (
        trimmed(tmp_path / "p", 300, large, 180) as log,
        Primary(log) as primary,
        TcpProxy(primary.address, cut_each_after=100_000) as proxy,
        Replica(tmp_path / "r", proxy.address, options=large, backoff=quick()) as replica,
    ):
        assert log.first_lsn > 1
        replica.wait_for(log.acked_lsn, WAIT_S)
        assert_equal(log, replica)
        assert proxy.connections > 8


def test_a_primary_that_moved_on_sends_what_changed(tmp_path: Path) -> None:
    """Kill a bootstrap, append and restart the primary: the segment that grew is continued, the others are kept."""
    with trimmed(tmp_path / "p") as log, Primary(log) as primary:
        assert killed(tmp_path / "r", primary, log.acked_lsn, ("write", "bootstrap-*.part", 20))
        there = {name: (tmp_path / "r" / name).stat().st_ino for name in gathered(tmp_path / "r")}
        assert len(there) > 10
    with walkit.open(tmp_path / "p", options=SMALL) as log, Primary(log) as primary:
        for _ in range(10):
            log.append(bytes(3000))
        with follower(tmp_path / "r", primary) as replica:
            replica.wait_for(log.acked_lsn, WAIT_S)
            assert_equal(log, replica)
        needed = log.parts.core.durable_position - log.parts.manifest_store.current.sealed[0].start_position
        assert primary.statistics().frame_bytes < needed * 0.9


def test_a_damaged_word_that_a_log_is_ready_leaves_the_replica_as_it_was(tmp_path: Path) -> None:
    """Kill the switch before its manifest, damage `bootstrap-ready`: what was placed is kept aside, and comes again."""
    folder = tmp_path / "r"
    with Store.open(tmp_path / "p", options=SMALL) as store, Primary(store) as primary:
        with follower(folder, primary) as replica:
            replica.wait_for(put(store, 30), WAIT_S)
            until(lambda: len(store.log.claims()) == 1, "the claim")
        drop_claims(store.log)
        put(store, 120)
        store.checkpoint()
        last = put(store, 30)
        assert killed(folder, primary, last, ("replace", "manifest", 1))
        named = {record.name for record in load_manifest(FileStorage(str(folder))).segments}
        placed = {path.name for path in folder.glob("*.segment")} - named
        assert placed
        data = bytearray((folder / BOOTSTRAP_READY_NAME).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / BOOTSTRAP_READY_NAME).write_bytes(data)
        log = ImportedLog(FileStorage(str(folder)), SMALL)
        assert log.durable_lsn == 30
        log.close()
        assert placed <= {path.name for path in (folder / "lost+found").iterdir()}
        with follower(folder, primary) as replica:
            replica.wait_for(last, WAIT_S)
            assert replica.store.items() == store.items()
    assert walkit.verify(folder).ok
    assert gathered(folder) == []


def test_a_transfer_asks_in_order_and_takes_what_it_asked_for() -> None:
    """Ask for files of several sizes, some there in part: bounded, in order; each wrong answer is said."""
    transfer = Transfer(
        (MissingRange(0, 0, 25), MissingRange(1, 7, 7), MissingRange(2, 5, 8)), chunk_bytes=10
    )
    asked = [(f.file, f.offset, f.size) for f in transfer.next_requests()]
    assert asked == [(0, 0, 10), (0, 10, 10), (0, 20, 5), (2, 5, 3)]
    for wrong in (Chunk(file=0, offset=10, data=bytes(10)), Chunk(file=0, offset=0, data=bytes(9))):
        assert "were asked for" in transfer.take(wrong)
    for file, offset, size in asked:
        assert not transfer.is_done
        assert transfer.take(Chunk(file=file, offset=offset, data=bytes(size))) == ""
    assert transfer.is_done and transfer.missing_bytes == 0 and transfer.next_requests() == []
    assert "nothing asked for" in transfer.take(Chunk(file=0, offset=0, data=b"x"))
    assert len(Transfer((MissingRange(0, 0, 1 << 40),)).next_requests()) == FETCHES_MAX
    assert Transfer(()).is_done


@pytest.mark.parametrize(
    ("fetch", "wrong"),
    [
        (Fetch(file=0, offset=0, size=10), False),
        (Fetch(file=1, offset=1 << 20, size=1 << 20), False),
        (Fetch(file=0, offset=1, size=10), True),
        (Fetch(file=0, offset=0, size=0), True),
        (Fetch(file=2, offset=0, size=1), True),
        (Fetch(file=1, offset=0, size=(1 << 20) + 1), True),
        (Fetch(file=1, offset=(1 << 64) - 1, size=1), True),
    ],
)
def test_a_publisher_sends_only_the_bytes_of_its_plan(fetch: Fetch, wrong: bool) -> None:
    """Fetch within and beyond the files of a plan of 10 bytes and 2 MiB: only bytes within are read."""
    history, publisher, hello = whole(), Publisher(), Hello(name="r", bootstrap=True)
    publisher.began(0)
    trimmed_state = replace(history.primary_state(hello), oldest_lsn=8, oldest_position=64)
    assert any(isinstance(step, MakePlan) for step in publisher.admitted(hello, trimmed_state, 0))
    publisher.planned(Plan(manifest=b"", sizes=(10, 2 << 20)), 0)
    read = [step.fetch for step in publisher.receive(fetch, 0) if isinstance(step, ReadPart)]
    assert (read, publisher.state) == (([], "ended") if wrong else ([fetch], "bootstrapping"))


def test_a_replica_at_a_hole(tmp_path: Path) -> None:
    """Recover a log with a hole between its frames, follow with nothing: it has what is after the hole, too."""
    image = Flight(order="completion", base=4, flying=4).landed((4, 6, 7))
    with (
        walkit.open(storage=image, options=walkit.LogOptions(recovery="holes")) as log,
        Primary(log) as primary,
    ):
        assert log.parts.manifest_store.current.holes
        last = log.append(b"after").last_lsn
        with Replica(tmp_path / "r", primary.address, backoff=quick()) as replica:
            replica.wait_for(last, WAIT_S)
            assert [(r.lsn, r.value) for r in replica.log.read(1)] == [(r.lsn, r.value) for r in log.read(1)]
    assert walkit.verify(tmp_path / "r").ok
