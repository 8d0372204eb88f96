"""The space of a payload log: its owner, freeing, and crashes over both logs."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.links.made import OVER, linked, value_of
from tests.support.logs import Child, tiny, values
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import Operation
from walkit.read.read_api import ReadApi

CHANGES = ("write", "synced_write", "sync", "create", "replace", "remove", "sync_directory", "shorten")


def floor_of(log: walkit.WriteAheadLog) -> int:
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
        usage = log.payload_usage()
        assert usage is not None and usage[1:] == (2, 600, 1, 300)
        log.trim(1)
        assert floor_of(log) == 2


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
        store.checkpoint()
        assert floor_of(store.log) == 56
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
        for number in range(1, 61):
            log.append(value_of(number, 6000))
            film.acked = number
            if number % 10 == 0:
                film.trimmed = number - 4
                log.trim(number - 4)
    looked = read = 0
    for moment, image, payloads, acked, trimmed in film.images:
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
    assert looked > 150 and read > 1000 and film.images[-1][4] == 56


def test_killed_writers_lose_no_acknowledged_value(tmp_path: Path) -> None:
    """Goal: kill -9 leaves each acknowledged link with its value. Method: a process that appends and trims."""
    script = """
        import json, sys, walkit
        from tests.links.made import linked, value_of
        log = walkit.open(sys.argv[1], options=linked(sys.argv[2]))
        for number in range(log.appended_lsn + 1, 100_000):
            log.append(value_of(number, 6000))
            trimmed = int(log.trim(number - 8)) if number % 16 == 0 else log.first_lsn - 1
            print(json.dumps([number, trimmed]), flush=True)
    """
    path, place = tmp_path / "log", tmp_path / "payloads"
    chance, read = random.Random(5), 0
    for _ in range(3):
        with Child(script, path, place) as child:
            for _ in range(chance.randrange(5, 30)):
                acked, trimmed = child.read()
            os.kill(child.process.pid, signal.SIGKILL)
            child.process.wait()
        with walkit.open(path, mode="r") as reader:
            read += check_links(reader, acked, max(trimmed, reader.first_lsn - 1), "killed")
        with walkit.open(path, options=linked(place)) as log:
            check_links(log, acked, log.first_lsn - 1, "reopened")
    assert read > 20


@pytest.mark.parametrize("megabytes", [256, pytest.param(5 * 1024, marks=pytest.mark.slow)])
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
