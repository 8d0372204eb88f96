"""The space of a payload log: its owner, freeing, and crashes over both logs."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.links.made import OVER, linked, value_of
from tests.support.logs import Child, tiny, values
from walkit.commit.ticket import SingleTicket
from walkit.log.validate import make_ticket
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import Operation
from walkit.read.read_api import ReadApi
from walkit.replication import promote, rewind

CHANGES = ("write", "synced_write", "sync", "create", "replace", "remove", "sync_directory", "shorten")


def floor_of(log: walkit.WriteAheadLog) -> int:
    """Return the floor of the payload log, once it is freed as far as it can be."""
    assert log.wait_idle(30)
    usage = log.payload_usage()
    assert usage is not None
    return usage.floor_lsn


def fill(log: walkit.WriteAheadLog, first: int, count: int) -> None:
    for number in range(first, first + count):
        log.append(value_of(number, 6000), key=b"%d" % (number % 4))


def test_only_the_owner_writes_to_a_payload_log(tmp_path: Path) -> None:
    """Goal: a payload log has one owner for life. Method: every other way to open it, and another log as one."""
    place, path = tmp_path / "payloads", tmp_path / "log"
    with walkit.open(path, options=linked(place)) as log:
        log.append(value_of(1))
        owner = log.parts.manifest_store.current.log_id
    for options in (tiny(), linked(tmp_path / "third")):
        with pytest.raises(walkit.LogOwnedError) as caught:
            walkit.open(place, options=options)
        assert caught.value.owner == owner
    with pytest.raises(walkit.LogOwnedError):
        walkit.open(tmp_path / "thief", options=linked(place))
    walkit.open(tmp_path / "plain").close()
    with pytest.raises(walkit.LogOwnedError) as caught:
        walkit.open(path, options=linked(tmp_path / "plain"))
    assert caught.value.owner is None
    assert not walkit.open_logs(), "a refused opening leaves no log open"
    with walkit.open(path, options=linked(place)) as log:
        assert values(log) == [value_of(1)]
    # On object storage the owner is refused before the thief fences it.
    url = f"objects:{tmp_path}/objects"
    with walkit.open(tmp_path / "other", options=linked(url)) as log:
        log.append(value_of(2))
        with pytest.raises(walkit.LogOwnedError):
            walkit.open(url)
        log.append(value_of(3))


def test_a_copy_of_the_log_reads_the_payload_log_and_frees_nothing(tmp_path: Path) -> None:
    """Goal: a copy cannot take the payload log. Method: copy the log, trim it, open it with that payload log."""
    place, path, copied = tmp_path / "payloads", tmp_path / "log", tmp_path / "copy"
    with walkit.open(path, options=linked(place)) as log:
        fill(log, 0, 40)
        log.sync()
        walkit.copy(path, copied)
    with walkit.open(copied, options=tiny()) as copy:
        assert [r.value for r in copy] == [value_of(n, 6000) for n in range(40)]
        copy.trim(30)
    with pytest.raises(walkit.LogOwnedError):
        walkit.open(copied, options=linked(place))
    with walkit.open(copied, options=linked(tmp_path / "own")) as copy:
        copy.append(value_of(40))
        copy.trim(35)
        assert values(copy)[-1] == value_of(40) and values(copy)[0] == value_of(35, 6000)
    with walkit.open(path, options=linked(place)) as log:
        assert floor_of(log) == 0 and len(values(log)) == 40


def rebuilt(folder: Path) -> None:
    (folder / "manifest").unlink()
    walkit.repair(folder, policy="salvage")


def damaged(folder: Path) -> Path:
    segment = max(folder.glob("*.segment"))
    data = bytearray(segment.read_bytes())
    data[-1:] = b"\1"
    segment.write_bytes(data)
    return folder


AFTERWARDS: dict[str, tuple[bool, Callable[[Path, Path], object]]] = {
    "repair": (True, lambda log, place: walkit.repair(log)),
    "salvage": (True, lambda log, place: walkit.repair(damaged(log), policy="salvage")),
    "rewind": (True, lambda log, place: rewind(log, 18)),
    "promotion after a rewind": (True, lambda log, place: (rewind(log, 18), promote(log))),
    "manifest rebuilt": (False, lambda log, place: rebuilt(log)),
    "payload manifest rebuilt": (False, lambda log, place: rebuilt(place)),
    "objects salvaged": (False, lambda log, place: walkit.salvage(f"objects:{log}", log.with_name("new"))),
}


@pytest.mark.parametrize("event", AFTERWARDS)
def test_owner_after_an_event_frees_and_every_other_log_frees_nothing(tmp_path: Path, event: str) -> None:
    """Goal: the table of owners in docs/link-records.md. Method: each event, then read, open as owner, and trim."""
    is_owner, happen = AFTERWARDS[event]
    place, path = tmp_path / "payloads", tmp_path / "log"
    with walkit.open(
        f"objects:{path}" if event.startswith("objects") else path, options=linked(place)
    ) as log:
        fill(log, 0, 20)
    happen(path, place)
    path = tmp_path / "new" if event.startswith("objects") else path
    with walkit.open(path, mode="r", payload_log=place) as reader:
        found = values(reader)
        assert found == [value_of(n, 6000) for n in range(len(found))] and len(found) >= 17
    options = linked(place if is_owner else tmp_path / "of its own")
    for other in ([] if is_owner else [path]) + [tmp_path / "new log"]:
        with pytest.raises(walkit.LogOwnedError):
            walkit.open(other, options=linked(place))
    with walkit.open(path, options=options) as log:
        log.append(value_of(50))
        log.trim(10)
        assert list(log)[-1].value == value_of(50)
    with walkit.open(place, mode="r") as payloads:
        assert payloads.first_lsn == (11 if is_owner else 1)


def test_trim_and_retention_free_payloads_up_to_the_oldest_live_link() -> None:
    """Goal: the floor follows the log's. Method: trims and retention, with a claim in between, and a reopening."""
    storage, payloads = CrashingStorage(), CrashingStorage()
    with walkit.open(storage=storage, options=linked(payloads)) as log:
        fill(log, 0, 20)
        log.append(b"small")
        fill(log, 20, 20)
        log.trim(10)
        assert floor_of(log) == 10
        hold = log.hold("reader", 15)
        log.trim(30)
        assert floor_of(log) == 14 and len(values(log)) == 27
        hold.release()
        log.trim(21)
        assert floor_of(log) == 20
        log.enforce_retention(walkit.Retention(records_max=1))
    with walkit.open(storage=storage, options=linked(payloads)) as log:
        fill(log, 40, 1)
        log.trim(41)
        assert floor_of(log) == 40 and values(log) == [value_of(40, 6000)]
        log.trim(42)
        assert floor_of(log) == 41 and log.payload_usage() == (41, 0, 0, 0, 0)
        with walkit.open(storage=payloads, mode="r") as reader:
            assert reader.first_lsn == 42


def test_payloads_of_withdrawn_records_are_dead_and_go_with_the_others() -> None:
    """Goal: a payload without a record is counted and freed. Method: withdraw one while its payload is written."""
    payloads = FaultyStorage(CrashingStorage())
    with walkit.open(storage=CrashingStorage(), options=linked(payloads)) as log:
        log.append(value_of(1))
        hang = payloads.hang("synced_write", "*.segment")
        with pytest.raises(walkit.AppendTimeoutError):
            log.append(value_of(2), timeout=0.2)
        hang.cancel()
        log.append(value_of(3))
        assert log.statistics().payload_dead_bytes == 0, "nothing was counted by now"
        usage = log.payload_usage()
        assert usage is not None and usage[1:4] == (2, 600, 1) and 300 <= usage.dead_bytes < 1000
        assert log.statistics().payload_dead_bytes == usage.dead_bytes
        log.trim(1)
        assert floor_of(log) == 2


def test_records_with_links_are_forgotten_once_they_are_written() -> None:
    """Goal: a log that is never trimmed keeps nothing of its records in memory. Method: count tickets."""

    def tickets() -> int:
        gc.collect()
        return sum(type(each) is SingleTicket for each in gc.get_objects())

    before = tickets()  # of other tests in this process
    with walkit.open(storage=CrashingStorage(), options=linked(CrashingStorage())) as log:
        for number in range(50):
            log.append(value_of(number))
        assert tickets() - before < 10


def test_values_after_a_payload_log_went_back_stay(tmp_path: Path) -> None:
    """Goal: links to lost payloads are not live, and later ones are. Method: put an older copy of the payloads back."""
    place, path, copy = tmp_path / "payloads", tmp_path / "log", tmp_path / "copy"
    for number in range(3):
        with walkit.open(path, options=linked(place)) as log:
            fill(log, 10 * number, 10)
        if not number:
            shutil.copytree(place, copy)
        if number == 1:
            shutil.rmtree(place)
            copy.rename(place)
    with walkit.open(path, options=linked(place)) as log:
        log.trim(15)
        assert floor_of(log) == 10 and log.payload_usage()[1:4] == (10, 60_000, 0)  # type: ignore[index]
        assert [r.value for r in log.read(21)] == [value_of(n, 6000) for n in range(20, 30)]


def test_withdrawn_and_forged_records_do_not_stop_freeing() -> None:
    """Goal: a record withdrawn after its payload was written, or of kind 4 without a link, keeps nothing."""
    storage, payloads = FaultyStorage(CrashingStorage()), CrashingStorage()
    with walkit.open(storage=storage, options=linked(payloads)) as log:
        log.append(b"first")
        hang = storage.hang("synced_write", "*.segment")
        waiting = log.submit(b"hangs")
        assert hang.entered.wait(30)
        with pytest.raises(walkit.AppendTimeoutError):
            log.append(value_of(1), timeout=0.5)
        hang.cancel()
        waiting.result(30)
        driver = log.parts.driver
        assert driver.enqueue(make_ticket(driver, 1000, int(walkit.Kind.LINK), b"k", b"no link", None))
        fill(log, 2, 2)
        log.trim(3)
        assert floor_of(log) == 1 and log.payload_usage()[1:4] == (2, 12_000, 0)  # type: ignore[index]


def test_payload_of_a_record_after_a_hole_is_live() -> None:
    """Goal: an acknowledged link that no view has by now keeps its payload. Method: completion order, a hung frame."""
    storage, payloads = FaultyStorage(CrashingStorage()), CrashingStorage()
    options = linked(payloads, in_flight=2, ack_order="completion")
    with walkit.open(storage=storage, options=options) as log:
        log.append(b"first")
        hang = storage.hang("synced_write", "*.segment")
        small = log.submit(b"small")
        assert hang.entered.wait(30)
        assert log.append(value_of(3)).first_lsn == 3 and log.acked_lsn == 1
        log.trim(1)
        hang.cancel()
        assert small.result(30).first_lsn == 2 and values(log) == [b"small", value_of(3)]
        log.trim(2)
        assert floor_of(log) == 0 and values(log) == [value_of(3)]


def test_snapshots_keep_their_payloads() -> None:
    """Goal: a link in a kept snapshot is live. Method: a Store whose log is trimmed below the record of a key."""
    storage, payloads = CrashingStorage(), CrashingStorage()
    with walkit.Store.open(storage=storage, options=linked(payloads)) as store:
        store.put(b"old", value_of(1, 6000))
        for number in range(2, 60):
            store.put(b"%d" % (number % 3), value_of(number, 6000))
        store.checkpoint()
        assert store.log.first_lsn > 1 and floor_of(store.log) == 0 and store[b"old"] == value_of(1, 6000)
        before = store.state_at(59)
        store.put(b"old", value_of(99))
        store.compact()
        assert floor_of(store.log) == 0, "the snapshot has the link that the log has no longer"
        dead = store.statistics().payload_dead_bytes
        assert 6000 * 20 < dead == store.log.payload_usage().dead_bytes  # type: ignore[union-attr]
        store.checkpoint()
        assert floor_of(store.log) == 56 and store.statistics().payload_dead_bytes == 0
        assert before.lsn_of(b"old") == 1, (
            "its value may be read as long as the file is there, and is gone then"
        )
        wanted = dict(store.items())
        store.compact()
    with walkit.Store.open(storage=storage, options=linked(payloads)) as store:
        assert dict(store.items()) == wanted and store[b"old"] == value_of(99)


def test_states_treat_a_link_as_the_kind_it_stands_for() -> None:
    """Goal: a Store with links is the same dict. Method: one history with links, with others, and without."""
    chance = random.Random(3)
    stores = [
        walkit.Store.open(storage=CrashingStorage(), options=linked(CrashingStorage())),
        walkit.Store.open(storage=CrashingStorage(), options=linked(CrashingStorage())),
        walkit.Store.open(storage=CrashingStorage(), options=tiny()),
    ]
    stores[1].log.append(value_of(0))  # its payloads have other LSNs
    expected: dict[bytes, bytes] = {}
    for number in range(120):
        key, size = b"%d" % chance.randrange(20), chance.choice((0, 6, OVER - 4, 600, 3000))
        if chance.random() < 0.2:
            expected.pop(key, None)
        else:
            expected[key] = value_of(number, size)
        for store in stores:
            store.put(key, expected[key]) if key in expected else store.delete(key)
        if number == 60:
            stores[0].checkpoint()
    for store in stores:
        assert dict(store.items()) == expected == {key: store.get(key) for key in expected}
        table = store.to_arrow()
        assert dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == expected
        machine = Values()
        walkit.replay(stores[1].log, machine)  # type: ignore[arg-type]
        assert machine.values == expected, "another machine gets values"
    assert stores[0].checksum() == stores[1].checksum()
    for left in stores:
        for right in stores:
            assert not walkit.diff(left, right).num_rows
            assert not walkit.diff(left.log, (right.log, right.log.acked_lsn)).num_rows
    key = next(key for key, value in expected.items() if len(value) == 3000)
    stores[1].put(key, b"x" * 3000)
    stores[1].put(b"more", value_of(500))
    found = walkit.diff(stores[0], stores[1]).to_pydict()
    assert found["change"] == ["C", "I"] and found["right_value"] == [b"x" * 3000, value_of(500)]
    assert found["left_value"] == [expected[key], None]
    stores[0].apply_patch(walkit.diff(stores[0], stores[1]))
    assert dict(stores[0].items()) == dict(stores[1].items())
    for store in stores:
        store.close()


class Values:
    """A machine of puts and deletes, which knows nothing of links."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.applied_lsn = 0

    def apply(self, batch: walkit.Batch) -> None:
        for record in batch:
            assert record.kind is not walkit.Kind.LINK
            if record.kind is walkit.Kind.DELETE:
                self.values.pop(record.key or b"", None)
            elif record.key is not None:
                self.values[record.key] = record.value or b""
        self.applied_lsn = batch.last_lsn


class Film:
    """Takes images of two places at every change of either, with the acknowledged LSN of that moment."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.acked = 0
        self.trimmed = 0
        self.images: list[tuple[str, CrashingStorage, CrashingStorage, int, int]] = []
        self.log, self.payloads = Filmed(self), Filmed(self)

    def take(self, moment: str) -> None:
        keep: Any = ("none", "random", "all")[len(self.images) % 3]
        seed = len(self.images)
        log, payloads = self.log.inner, self.payloads.inner
        assert isinstance(log, CrashingStorage) and isinstance(payloads, CrashingStorage)
        images = log.crash(keep=keep, seed=seed), payloads.crash(keep=keep, seed=seed + 1)
        self.images.append((f"{keep}, before {moment}", *images, self.acked, self.trimmed))


class Filmed(FaultyStorage):
    def __init__(self, film: Film) -> None:
        super().__init__(CrashingStorage())
        self.film = film

    def perform(self, operation: Operation, *how: Any, **else_: Any) -> Any:
        if operation.name not in CHANGES:
            return super().perform(operation, *how, **else_)
        with self.film.lock:  # one change at a time: both images show one moment
            self.film.take(f"{operation.name} of {operation.file}")
            return super().perform(operation, *how, **else_)


def check_links(log: ReadApi, acked: int, trimmed: int, moment: str) -> int:
    """Every acknowledged record that was not trimmed is there, and each link that can be read has its value."""
    found = {record.lsn: record.value for record in log.read()}
    for lsn in range(max(trimmed, 0) + 1, acked + 1):
        assert lsn in found, f"{moment}: record {lsn} of {acked} is lost"
    assert all(value == value_of(lsn, 6000) for lsn, value in found.items()), moment
    return len(found)


def test_no_power_cut_over_both_logs_loses_a_value_or_frees_one_under_a_live_link() -> None:
    """Goal: a power cut at each change of either log leaves every link with its value. Method: film both."""
    film = Film()
    with walkit.open(storage=film.log, options=linked(film.payloads), events=lambda *_: None) as log:
        for number in range(1, 41):
            log.append(value_of(number, 6000))
            film.acked = number
            if number % 10 == 0:
                film.trimmed = number - 4
                log.trim(number - 4)
    looked = read = 0
    for moment, image, payloads, acked, trimmed in film.images[::2]:
        try:
            with walkit.open(storage=image, mode="r", payload_log=payloads) as reader:
                read += check_links(reader, acked, trimmed, moment)
        except walkit.LogNotFoundError:
            assert not acked
            continue
        looked += 1
        if looked % 5 == 0:
            with walkit.open(storage=image, options=linked(payloads), events=lambda *_: None) as log:
                check_links(log, acked, trimmed, moment)
                log.append(value_of(log.appended_lsn + 1, 6000))
                log.trim(log.appended_lsn - 2)
                check_links(log, log.appended_lsn, log.appended_lsn - 2, moment)
    assert looked > 50 and read > 250 and film.images[-1][4] == 36


def test_no_power_cut_over_a_store_and_its_payload_log_frees_a_live_value() -> None:
    """Goal: the same with snapshots and compaction. Method: film a Store; state, log and floor of images."""
    film, looked = Film(), 0
    quiet: Any = {"events": lambda *_: None}
    with walkit.Store.open(storage=film.log, options=linked(film.payloads), **quiet) as store:
        for number in range(1, 41):
            store.put(b"%d" % (number % 4 if number > 1 else 9), value_of(number, 6000))
            film.acked = number
            if number % 8 == 0:
                store.checkpoint()
                store.compact()
        assert floor_of(store.log) == 0, "key 9 is live"
        store.delete(b"9")
        store.checkpoint()
        store.checkpoint()
    for moment, image, payloads, acked, _ in film.images[::5]:  # not each third, which are all of one kind
        if not acked:
            continue
        with walkit.open(storage=image, mode="r") as log, walkit.open(storage=payloads, mode="r") as kept:
            linked_to = [r.link.lsn for r in log.read(resolve="link") if r.link]
            assert min(linked_to, default=1 << 60) >= kept.first_lsn, moment
        with walkit.Store.open(storage=image, options=linked(payloads), **quiet) as opened:
            state = dict(opened.items())
        for key, value in state.items():
            newest = [n for n in range(2, acked + 2) if n % 4 == int(key)] if key != b"9" else [1]
            assert value in [value_of(n, 6000) for n in newest[-2:]], moment
        looked += 1
    assert looked > 25


@pytest.mark.parametrize("prefix", ["", "objects:"])
def test_killed_writers_lose_no_acknowledged_value(tmp_path: Path, prefix: str) -> None:
    """Goal: kill -9 leaves each acknowledged link with its value. Method: a process that appends and trims."""
    script = """
        import json, os, sys, walkit
        from tests.links.made import linked, value_of
        def write():
            log = walkit.open(sys.argv[1], options=linked(sys.argv[2]))
            for number in range(log.appended_lsn + 1, 100_000):
                log.append(value_of(number, 6000))
                trimmed = int(log.trim(number - 8)) if number % 16 == 0 else log.first_lsn - 1
                print(json.dumps([os.getpid(), number, trimmed]), flush=True)
        for _ in sys.stdin:
            if not os.fork():
                write()
            os.wait()
            print("null", flush=True)
    """
    path, place = tmp_path / "log", f"{prefix}{tmp_path / 'payloads'}"
    chance, read = random.Random(5), 0
    with Child(script, path, place) as child:
        for _ in range(3):
            child.send("write")
            for _ in range(chance.randrange(5, 30)):
                pid, acked, trimmed = child.read()
            os.kill(pid, signal.SIGKILL)
            while later := child.read():
                _, acked, trimmed = later
            with walkit.open(path, mode="r") as reader:
                read += check_links(reader, acked, max(trimmed, reader.first_lsn - 1), "killed")
            with walkit.open(path, options=linked(place)) as log:
                check_links(log, acked, log.first_lsn - 1, "reopened")
    assert read > 20


@pytest.mark.parametrize("megabytes", [192, pytest.param(5 * 1024, marks=pytest.mark.slow)])
def test_values_of_a_megabyte_need_bounded_memory(tmp_path: Path, megabytes: int) -> None:
    """Goal: memory does not grow with the values written or read. Method: a process that reports its peak."""
    script = """
        import json, resource, sys, walkit
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        count = int(sys.argv[2])
        options = walkit.LogOptions(link_over=4096, payload_log=sys.argv[1] + "/p", queue_bytes_max=16 << 20)
        with walkit.open(sys.argv[1] + "/log", options=options) as log:
            log.append(bytes(1 << 20)); len(next(log.read()).value); list(log.read_batches())
            before = peak()
            for number in range(count):
                log.submit(number.to_bytes(4, "big") * (1 << 18))
            log.sync()
            written = peak()
            total = sum(len(record.value) for record in log)
            for batch in log.read_batches():
                total += batch.column("value").nbytes
        print(json.dumps([before, written, peak(), total]))
    """
    with Child(script, tmp_path, str(megabytes)) as child:
        before, written, read, total = child.read()
    assert total >= 2 * megabytes << 20
    assert written - before < 120 and read - before < 200, (before, written, read)
