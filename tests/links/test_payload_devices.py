"""Payload logs whose device hangs, or whose place another one takes, and refusals before a log is made."""

from __future__ import annotations

import errno
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.links.made import Watched, linked, value_of
from tests.support.logs import FaultyMemory, tiny, values
from tests.support.threads import wait_until
from walkit.errors import LogFencedError, LogOwnedError, PayloadUnreachableError, StorageError
from walkit.models import CrashingStorage
from walkit.models.faults import Operation
from walkit.storage import MemoryObjectStore

QUIET: Any = {"events": lambda *_: None}


def floor_of(log: walkit.WriteAheadLog) -> int:
    """Return the floor of the payload log, once it is freed as far as it can be."""
    assert log.wait_idle(30)
    usage = log.payload_usage()
    assert usage is not None
    return usage.floor_lsn


def contents(folder: Path) -> dict[str, bytes]:
    """Return the objects of a store in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "="}


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize(("operation", "file"), [("remove", "*.segment"), ("synced_write", "manifest*")])
def test_hanging_payload_device_holds_no_work_of_the_log(operation: Any, file: str) -> None:
    """Goal: a payload log that cannot be freed holds up nothing but the closing, for its time. Method: hang a trim."""
    storage, payloads = CrashingStorage(), FaultyMemory()
    options = linked(payloads, write_timeout_ms=1000)
    store = walkit.Store.open(storage=storage, options=options, **QUIET)
    for number in range(12):  # three of them fill a segment of the payload log
        store.put(b"k", value_of(number, 18_000))
    hang = payloads.hang(operation, file, times=None)
    store.checkpoint()
    assert hang.entered.wait(30)
    for number in range(3):
        store.put(b"small", b"%d" % number)
        store.snapshot()
        store.checkpoint()
        store.compact()
        store.log.trim(store.log.acked_lsn)
        store.log.enforce_retention(walkit.Retention(records_max=1))
    usage = store.log.payload_usage()
    assert usage is not None and usage.live == 1
    assert not store.log.wait_idle(0.1)
    began = time.monotonic()
    with pytest.raises(StorageError, match="write_timeout_ms") as caught:
        store.close()
    assert caught.value.errno == errno.ETIMEDOUT and payloads.location in str(caught.value)
    assert time.monotonic() - began < 8
    payloads.clear()
    wait_until(lambda: not payloads.is_locked("lock"), "the payload log is given up")
    with walkit.Store.open(storage=storage, options=options, **QUIET) as store:
        assert store[b"k"] == value_of(11, 18_000) and store[b"small"] == b"2"
        store.checkpoint()
        assert floor_of(store.log) == 11


@pytest.mark.parametrize("operation", ["read", "sync_directory"])
def test_log_that_hangs_under_a_freeing_closes_in_its_time(operation: Any) -> None:
    """Goal: a search for live links delays no closing for good. Method: hang the log under a trim's freeing."""
    storage, payloads = FaultyMemory(), CrashingStorage()
    options = linked(payloads, write_timeout_ms=500)
    log = walkit.open(storage=storage, options=options, **QUIET)
    log.append_many([value_of(number) for number in range(10)])
    hang = storage.hang(operation, times=1)
    log.trim(5)
    assert hang.entered.wait(30)
    began = time.monotonic()
    log.close()
    assert time.monotonic() - began < 8
    with walkit.open(storage=storage, options=options, **QUIET) as log:
        log.append(value_of(10))
        hang.cancel()
        assert floor_of(log) == 0, "the earlier opening frees nothing"
        log.trim(6)
        assert floor_of(log) == 6 and values(log) == [value_of(number) for number in range(6, 11)]


def test_count_of_payloads_holds_up_nothing() -> None:
    """Goal: `payload_usage` delays no trim, checkpoint or closing, and ends with the log. Method: hang its reading."""
    storage, payloads = FaultyMemory(), CrashingStorage()
    store = walkit.Store.open(storage=storage, options=linked(payloads), **QUIET)
    for number in range(3):
        store.put(b"k", value_of(number))
    hang = storage.hang("read", "*.segment", times=1)
    with ThreadPoolExecutor(1) as pool:
        usage = pool.submit(store.log.payload_usage)
        assert hang.entered.wait(30)
        store.checkpoint()
        store.log.trim(2)
        store.close()
        assert not usage.done()
        hang.cancel()
        assert isinstance(usage.exception(30), walkit.LogClosedError)
    with pytest.raises(walkit.LogClosedError):
        store.log.payload_usage()


def test_what_can_be_freed_is_freed_before_a_log_closes() -> None:
    """Goal: a trim just before the closing frees payloads. Method: trim, close, and look at the payload log."""
    payloads = CrashingStorage()
    with walkit.open(storage=CrashingStorage(), options=linked(payloads)) as log:
        log.append_many([value_of(number) for number in range(10)])
        log.trim(4)
    with walkit.open(storage=payloads, mode="r") as reader:
        assert reader.first_lsn == 5


def test_object_store_that_takes_the_place_of_a_payload_log_is_noticed(tmp_path: Path) -> None:
    """Goal: no log reads or writes in another's payload log. Method: two with equal tags change places, and back."""
    places = [tmp_path / f"payloads-{side}" for side in "ab"]
    logs = [
        walkit.open(
            tmp_path / f"log-{side}", options=linked(f"objects:{place}", write_timeout_ms=1000), **QUIET
        )
        for side, place in zip("ab", places, strict=True)
    ]
    for log in logs:
        log.append(value_of(1))
    ids = [next(log.read(resolve="link")).link.log_id for log in logs]  # type: ignore[union-attr]
    before = [contents(place) for place in places]
    assert before[0].keys() == before[1].keys()
    tags = [{name: data[:16] for name, data in found.items()} for found in before]
    assert tags[0] == tags[1], "no condition of a put tells them apart"

    def exchange() -> None:
        places[0].rename(tmp_path / "aside")
        places[1].rename(places[0])
        (tmp_path / "aside").rename(places[1])

    exchange()
    for side, log in enumerate(logs):
        with pytest.raises(PayloadUnreachableError) as caught:
            log.append(value_of(2))
        owner = logs[1 - side].parts.manifest_store.current.log_id
        assert isinstance(caught.value.__cause__, LogOwnedError)
        assert f"{owner:016x}" in str(caught.value) and f"{ids[side]:016x}" in str(caught.value)
        with (
            walkit.open(tmp_path / f"log-{'ab'[side]}", mode="r") as reader,
            pytest.raises(PayloadUnreachableError, match=f"{ids[side]:016x}") as caught,
        ):
            values(reader)
        assert f"{ids[1 - side]:016x}" in str(caught.value)
    assert [contents(place) for place in places] == before[::-1], "neither was changed"
    exchange()
    for log in logs:
        log.append(value_of(3))
        assert values(log) == [value_of(1), value_of(3)]
        log.close()


def test_snapshot_that_went_is_gone_for_good_before_its_payloads_are_freed() -> None:
    """Goal: a power cut brings no snapshot back whose values are freed. Method: the order of changes in both logs."""
    order = list[str]()
    storage, payloads = Watched(), Watched()

    def of_log(operation: Operation) -> None:
        if operation.name == "sync_directory" or (operation.name, operation.file[:8]) == (
            "remove",
            "snapshot",
        ):
            order.append(operation.name)

    def of_payloads(operation: Operation) -> None:
        if operation.name in ("write", "synced_write", "replace") and operation.file.startswith("manifest"):
            order.append("free")

    with walkit.Store.open(storage=storage, options=linked(payloads)) as store:
        for number in range(4):
            store.put(b"k", value_of(number))
            store.checkpoint()
            assert floor_of(store.log) == number
            store.put(b"small", b"%d" % number)
            storage.seen, payloads.seen = of_log, of_payloads
    frees = [at for at, what in enumerate(order) if what == "free"]
    removals = [at for at, what in enumerate(order) if what == "remove"]
    assert frees and removals
    for free in frees:
        earlier = [at for at in removals if at < free]
        assert not earlier or "sync_directory" in order[earlier[-1] : free], order


@pytest.mark.parametrize("same_payload_log", [True, False])
def test_fenced_writer_frees_nothing(same_payload_log: bool) -> None:
    """Goal: the payload log is the newer writer's. Method: another one opens the log before a freeing."""
    store, payloads = MemoryObjectStore(name="log"), MemoryObjectStore(name="payloads")
    options = walkit.LogOptions(link_over=100, payload_log=payloads, write_timeout_ms=1500)
    failed = list[str]()
    old = walkit.open(store, options=options, events=lambda name, facts: failed.append(str(facts)))
    old.append_many([value_of(number) for number in range(1, 11)])
    with old.parts.trimmer.state_lock:  # as while a snapshot is written
        old.trim(5)
        new = walkit.open(store, options=options if same_payload_log else None)
    wait_until(lambda: any("another writer" in each for each in failed), "the freeing fails")
    with pytest.raises(LogFencedError):
        old.trim(6)
    with pytest.raises(walkit.WalkitError):
        old.append(value_of(11))
    old.close()
    with walkit.open(payloads, mode="r") as reader:
        assert reader.first_lsn == 1
    if same_payload_log:
        assert values(new) == [value_of(number) for number in range(6, 11)]
        new.append(value_of(12))
        new.trim(6)
        assert floor_of(new) == 6
    new.close()


@pytest.mark.parametrize("prefix", ["", "objects:"])
def test_change_of_the_current_folder_moves_no_payload_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """Goal: a relative place means one folder for good. Method: chdir between each opening and its use."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with walkit.open("log", options=linked(f"{prefix}payloads", write_timeout_ms=700), **QUIET) as log:
        monkeypatch.chdir(tmp_path / "there")
        log.append(value_of(1))
        (tmp_path / "here" / "payloads").rename(tmp_path / "here" / "moved")
        with suppress(PayloadUnreachableError):  # that it is away is noticed on object storage alone
            log.append(value_of(2))
        shutil.rmtree(tmp_path / "here" / "payloads", ignore_errors=True)
        (tmp_path / "here" / "moved").rename(tmp_path / "here" / "payloads")
        log.append(value_of(3))
        found = values(log)
        assert found[-1] == value_of(3)
    (tmp_path / "here" / "payloads").rename(tmp_path / "here" / "moved")
    monkeypatch.chdir(tmp_path / "here")
    with walkit.open("log", mode="r", payload_log=f"{prefix}moved") as reader:
        monkeypatch.chdir(tmp_path / "there")
        assert values(reader) == found
    assert not list((tmp_path / "there").iterdir())


def test_refused_payload_logs_leave_no_log(tmp_path: Path) -> None:
    """Goal: no folder is made for a log that is refused. Method: payload logs of another log, ordinary, or a file."""
    with walkit.open(tmp_path / "log", options=linked(tmp_path / "payloads")) as log:
        log.append(value_of(1))
        busy = {path.name for path in tmp_path.iterdir()}
        (tmp_path / "file").write_bytes(b"x")
        walkit.open(tmp_path / "plain", options=tiny()).close()
        walkit.open(f"objects:{tmp_path}/objects").close()
        there = busy | {"file", "plain", "objects"}
        for prefix in ("", "objects:"):
            for place in ("payloads", "plain", "file", f"objects:{tmp_path}/objects"):
                given = place if place.startswith("objects:") else str(tmp_path / place)
                for mode in ("a", "x"):
                    with pytest.raises(walkit.WalkitError):
                        walkit.open(f"{prefix}{tmp_path}/new", mode, options=linked(given))
                    assert {path.name for path in tmp_path.iterdir()} == there, (prefix, place)
        for own in (f"objects:{tmp_path}/new", str(tmp_path / "new")):
            for path in (f"objects:{tmp_path}/new", str(tmp_path / "new")):
                with pytest.raises(walkit.OptionsError, match="own"):
                    walkit.open(path, options=linked(own))
        assert {path.name for path in tmp_path.iterdir()} == there


@pytest.mark.parametrize("away", ["old", "own"])
def test_errors_name_the_payload_log_that_is_away(tmp_path: Path, away: str) -> None:
    """Goal: of two payload logs the one that is away is named. Method: a promoted log; read one by one and in bulk."""
    with walkit.open(tmp_path / "log", options=linked(tmp_path / "old")) as log:
        log.append_many([value_of(number) for number in range(1, 7)])
    with walkit.open(tmp_path / "log", options=linked(tmp_path / "own")) as log:
        log.append_many([value_of(number) for number in range(7, 13)])
        links = {record.lsn: record.link for record in log.read(resolve="link")}
    (tmp_path / away).rename(tmp_path / "away")
    lost = range(1, 7) if away == "old" else range(7, 13)
    with walkit.open(tmp_path / "log", mode="r") as reader:
        for record in reader:
            if record.lsn not in lost:
                assert record.value == value_of(record.lsn)
                continue
            with pytest.raises(PayloadUnreachableError) as caught:
                _ = record.value
            assert (caught.value.lsn, caught.value.link) == (record.lsn, tuple(links[record.lsn]))  # type: ignore[arg-type]
        with pytest.raises(PayloadUnreachableError) as caught:
            reader.to_arrow()
        assert (caught.value.lsn, caught.value.link) == (lost[0], tuple(links[lost[0]]))  # type: ignore[arg-type]
    report = walkit.verify(tmp_path / "log", payloads=True)
    (problem,) = report.problems
    assert report.payloads_checked == 6 and isinstance(problem.error, PayloadUnreachableError)
    link = links[lost[0]]
    assert link is not None and problem.error.lsn == lost[0]
    assert f"6 values of payload log {link.log_id:016x}" in str(report.notes)
