"""Replication between folders and object stores: a log of either kind is followed into a place of the other."""

from __future__ import annotations

import signal
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.replication.blocking_callers import quick, until
from tests.replication.processes import Command
from tests.support.imports import bytes_of, import_all, log_of_epochs, replica_on
from tests.support.logs import lsns, tiny
from tests.support.threads import wait_until
from walkit.copier.gathering import Gathering
from walkit.copier.object_target import ObjectTarget
from walkit.errors import (
    DivergenceError,
    LogFencedError,
    ObjectDeniedError,
    ObjectUnsupportedError,
    OptionsError,
)
from walkit.events import EventSink
from walkit.objects.entrance import log_at
from walkit.objects.layout import BULK_HEADER_BYTES, BulkHeader, object_key
from walkit.objects.segments_folder import segments_folder
from walkit.objects.view import ObjectEnd
from walkit.replication import DeltaReader, IdentityError, Primary, Replica, promote
from walkit.replication.delta import reader_loop as delta_loop
from walkit.replication.logs.imported_log import ImportedLog
from walkit.replication.logs.plan_check import gather_plan
from walkit.replication.logs.source import source_of
from walkit.replication.primary.bootstrap_plan import BootstrapFiles, SnapshotChecks
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import Storage
from walkit.storage.object_memory import MemoryObjectStore, ObjectFault, Plan

S = 30.0


def fill(place: str) -> None:
    """Write a log of two openings."""
    for at in range(2):
        with walkit.open(place) as log:
            for n in range(5):
                log.append_many([b"%d" % n] * 4, [b"%d-%d" % (at, n)] * 4)


def shown(place: Any) -> Storage:
    """Return the segments of a log, wherever it is."""
    found = log_at(place)
    return segments_folder(lambda: found.now().view) if isinstance(found, ObjectEnd) else found


def frames_at(place: Any) -> object:
    """Return the frames with records, and the lineage, of a log wherever it is."""
    return [f for f in bytes_of(shown(place)) if f[0].records], load_manifest(shown(place)).lineage


@pytest.mark.parametrize(
    ("kind", "copied", "served"),
    [
        ("objects:{}/log", "{}/copy", "stored"),
        ("{}/log", "objects:{}/copy", "open"),
    ],
)
def test_a_copy_follows_its_log_and_is_promoted(kind: str, copied: str, served: str, tmp_path: Path) -> None:
    """Copy a log, follow it from the copy, promote that: equal frames before, and another history after."""
    place, target = kind.format(tmp_path), copied.format(tmp_path)
    fill(place)
    walkit.copy(place, target)
    with walkit.open(place) as log:
        log.append(b"since", key=b"new")
        with (
            Primary(log if served == "open" else place) as primary,
            Replica(target, primary.address) as replica,
        ):
            replica.wait_for(log.append(b"last", key=b"new"), S)
            assert replica.store[b"new"] == b"last" and len(replica.store) == 11
            assert not replica.status().error
    assert frames_at(target) == frames_at(place)
    assert walkit.verify(target).ok
    report = promote(target)
    assert (report.epoch, report.first_lsn) == (4, 43) and promote(target).already
    with walkit.open(target) as own, walkit.open(place) as log:
        own.append(b"own")
        log.append(b"other")
        with Primary(own) as primary, Replica(place.replace("log", "new"), primary.address) as follower:
            follower.wait_for(own.append(b"own"), S)
            assert lsns(follower.log.read()) == list(range(1, 45))
        with (
            Primary(log) as primary,
            Replica(place.replace("log", "new"), primary.address) as follower,
            pytest.raises(DivergenceError),
        ):
            follower.wait_for(45, S)


def test_a_replica_on_object_storage_continues_and_serves_others(tmp_path: Path) -> None:
    """Stop a replica, open it again: the same identity and frames; a replica follows it; a copy of it is refused."""
    url = f"objects:{tmp_path}/replica"
    with walkit.open(tmp_path / "log", options=tiny()) as log, Primary(log) as primary:
        with Replica(url, primary.address, name="far") as replica:
            replica.wait_for(log.append_many([bytes(3000)] * 40), S)
            before = replica.status().id
        log.append_many([bytes(3000)] * 40)
        with Replica(url, primary.address) as replica:
            replica.wait_for(log.acked_lsn, S)
            assert (replica.status().id, replica.status().name) == (before, "far")
            with Primary(replica) as middle, Replica(tmp_path / "third", middle.address) as third:
                third.wait_for(log.append(b"on"), S)
                assert lsns(third.log.read()) == list(range(1, 82))
            for refused in (
                replica.checkpoint,
                lambda: replica.log.trim(1),
                lambda: replica.log.hold("a", 1),
            ):
                with pytest.raises(ObjectUnsupportedError):
                    refused()
        (tmp_path / "replica").rename(tmp_path / "moved")
        with pytest.raises(IdentityError, match="copy of a replica"):
            Replica(f"objects:{tmp_path}/moved", primary.address)
        with Replica(f"objects:{tmp_path}/moved", primary.address, new_identity=True) as replica:
            replica.wait_for(log.acked_lsn, S)
            assert replica.status().id != before
    assert walkit.verify(f"objects:{tmp_path}/moved").ok


def test_what_a_replica_on_object_storage_cannot_do_is_refused(tmp_path: Path) -> None:
    """Give options for a folder alone; follow a log of completion order; promote a plain log: nothing is put."""
    store = MemoryObjectStore()
    for option in ({"rewind": True}, {"checkpoint_every": 5}):
        with pytest.raises(OptionsError):
            Replica(store, "127.0.0.1:1", **option)
    assert not store.objects.held
    with walkit.open(tmp_path / "log", options=tiny(ack_order="completion", in_flight=2)) as log:
        log.append(b"value")
        with (
            Primary(log) as primary,
            Replica(store, primary.address) as replica,
            pytest.raises(ObjectUnsupportedError, match="completion order"),
        ):
            replica.wait_for(1, S)
    assert not store.objects.held
    fill(f"objects:{tmp_path}/plain")
    with pytest.raises(OptionsError):
        promote(f"objects:{tmp_path}/plain")


# -- who else puts there


def test_two_replicas_in_one_place_collide() -> None:
    """Import into one place by two: the later put of a number fails for good, and all frames are those of the log."""
    log, store = log_of_epochs(6, 6), MemoryObjectStore()
    manifest = load_manifest(log)
    first = replica_on(store, manifest)
    second = ImportedLog(store.client())
    import_all(second, log, 2)
    with pytest.raises(LogFencedError):
        import_all(first, log, 3)
    first.close()
    second.close()
    assert bytes_of(shown(store)) == bytes_of(log)


def test_a_writer_ends_a_replica() -> None:
    """Open a replica's log for writing while it runs: its next put fails, and the log has all that it had taken."""
    log, store = log_of_epochs(6, 6), MemoryObjectStore()
    replica = replica_on(store, load_manifest(log))
    with suppress(StopIteration):
        import_all(replica, log, 3)
    taken = replica.end.last_lsn
    with walkit.open(store.client()) as writer:
        assert writer.acked_lsn == taken > 0
        with walkit.open(storage=log) as longer:
            longer.append(b"more")
        with pytest.raises(LogFencedError):
            import_all(replica, log, 3)
        replica.close()
        assert writer.append(b"own").last_lsn == taken + 1


def test_a_fenced_primary_refuses_for_now_who_has_more_than_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Follow the newer of two writers, then the older, by replica and delta reader: refused, tried again, not ended."""
    monkeypatch.setattr(delta_loop, "CHECK_MS", 50.0)
    url, place = f"objects:{tmp_path}/log", tmp_path / "replica"
    with walkit.open(url) as older, Primary(older) as fenced:
        older.append(b"1", key=b"k")
        with walkit.open(url) as newer, Primary(newer) as primary:
            with Replica(place, primary.address) as replica:
                replica.wait_for(newer.append(b"2", key=b"k"), S)
            with (
                Replica(place, fenced.address, backoff=quick()) as replica,
                DeltaReader(url, fenced.address, backoff=quick()) as reader,
            ):
                reader.wait_for(newer.append(b"3", key=b"k"), S)
                wait_until(lambda: replica.status().reconnects > 3, "four refusals of the replica")
                wait_until(lambda: reader.status().statistics.refusals > 3, "four refusals of the reader")
                for status in (replica.status(), reader.status()):
                    assert "another writer has opened" in status.trouble and not status.error
            with Replica(place, primary.address) as replica:
                replica.wait_for(newer.append(b"4", key=b"k"), S)
                assert lsns(replica.log.read()) == [1, 2, 3, 4]


# -- ended early


def test_an_import_that_dies_before_any_request_goes_on() -> None:
    """End an import before each of its requests: what is there is a prefix of the log, and the next import has all."""
    log = log_of_epochs(5, 4)
    wanted, manifest = bytes_of(log), load_manifest(log)
    is_over, number = False, 0
    while not is_over:
        store, number = MemoryObjectStore(), number + 1
        acked, client = 0, store.client(dead_after(number))
        with suppress(ObjectDeniedError), closing(ImportedLog(client)) as replica:
            try:
                replica.adopt(manifest.log_id, created_us=1, ack_order="append", extra={})
                import_all(replica, log, 2)
            finally:
                acked = replica.end.position
        is_over = len(client.requests) <= number
        again = replica_on(store.client(), manifest)
        assert bytes_of(again.storage) == wanted[: len(bytes_of(again.storage))]
        assert again.end.position >= acked
        import_all(again, log, 2)
        again.close()
        assert bytes_of(shown(store)) == wanted
        assert load_manifest(shown(store)).lineage == manifest.lineage
        with walkit.open(store.client()) as own:  # what a failover does, needs every object of a log
            assert own.append(b"own").first_lsn == max(header.last_lsn for header, _ in wanted) + 1
    assert number > 15, number


def test_a_primary_that_died_with_puts_under_way_becomes_a_replica(tmp_path: Path) -> None:
    """Leave bulks after a missing number, and follow a promoted copy there, twice: they are replaced."""
    store = MemoryObjectStore()
    with walkit.open(store.client()) as log:
        for n in range(5):
            log.append(b"%d" % n)
    walkit.copy(store.client(), tmp_path / "copy")
    last = BulkHeader.decode(store.get(object_key(6)).data, 6)
    for ahead in (2, 3, 4):  # its writer acknowledged none of them: the one before is missing
        body = store.get(object_key(6)).data[BULK_HEADER_BYTES:]
        store.put_if_absent(object_key(6 + ahead), last._replace(number=6 + ahead).encode() + body)
    with walkit.open(tmp_path / "copy", options=tiny(in_flight=1)) as log, Primary(log) as primary:
        for _ in range(2):
            with Replica(store.client(), primary.address) as replica:
                for n in range(4):
                    replica.wait_for(log.append(b"new-%d" % n), S)
                assert not replica.status().error
    assert frames_at(store) == frames_at(tmp_path / "copy") and walkit.verify(store).ok


def dead_after(number: int) -> Plan:
    """Return the plan of a process none of whose later requests is made."""
    return lambda request: ObjectFault(before=ObjectDeniedError) if request.number >= number else None


# -- bootstrap


def gathered(source: Any, target: Gathering | ObjectTarget) -> None:
    """Carry out the plan of a bootstrap."""
    checks = SnapshotChecks(source.storage, EventSink())
    files = BootstrapFiles(source, checks)
    for part in gather_plan(target, files.plan, source.manifest().log_id, ()):
        for offset in range(part.offset, part.size, 5000):
            target.store(part.file, offset, files.read(part.file, offset, min(5000, part.size - offset)))
    target.finish()
    files.close()


def test_a_bootstrap_from_and_into_object_storage(tmp_path: Path) -> None:
    """Gather the plan of an object log into a folder and into an empty replica's place: the log is there, once."""
    url = f"objects:{tmp_path}/log"
    fill(url)
    source = source_of(url)
    with Primary(url) as primary:
        Replica(tmp_path / "replica", primary.address).stop()
    manifest = source.manifest()
    folder = replica_on(walkit.storage.FileStorage(tmp_path / "folder"), manifest)
    gathered(source, folder.gathering())
    folder.reopen()
    store = MemoryObjectStore()
    objects = replica_on(store, manifest)
    gathered(source, objects.gathering())
    objects.reopen()
    for log in (folder, objects):
        assert bytes_of(log.storage) == bytes_of(shown(url)) and log.manifest.lineage == manifest.lineage
        log.close()
    again = ImportedLog(store)
    with pytest.raises(OptionsError, match="Nothing was changed"):
        gathered(source, again.gathering())
    again.close()


def test_the_commands_take_urls(tmp_path: Path) -> None:
    """Serve an object log and follow it into another by the commands: the frames are the same."""
    url, target = f"objects:{tmp_path}/log", f"objects:{tmp_path}/replica"
    fill(url)
    server = Command("serve", url, "--listen", "127.0.0.1:0")
    follower = Command("follow", server.first.split()[-1], target)
    until(
        lambda: any("LSN 40 of 40" in line for line in (follower.first, *follower.lines)), "the last record"
    )
    assert (follower.end(signal.SIGINT), server.end(signal.SIGINT)) == (0, 0)
    assert frames_at(target) == frames_at(url)
