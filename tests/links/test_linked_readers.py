"""Readers of a log with a payload log, with and without access to it: replicas, delta readers and copies."""

from __future__ import annotations

import shutil
import signal
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.links.made import linked, value_of
from tests.replication.blocking_callers import WAIT_S, quick
from tests.support.logs import Child
from walkit.errors import LogOwnedError, PayloadUnreachableError
from walkit.replication import DeltaReader, Primary, Replica, promote
from walkit.segments.manifest_store import PAYLOAD_KEY
from walkit.storage import MemoryObjectStore
from walkit.store import Store

MIB = 1 << 20
N = 20
WANTED = {b"%d" % n: value_of(n) if n % 2 else b"small" for n in range(N)}


def put_all(store: Store) -> walkit.AppendResult:
    """Put keys with large and small values in turns; return the last result."""
    for key, value in WANTED.items():
        last = store.put(key, value)
    return last


def refused(read: Callable[[], object], log_id: int) -> None:
    """Assert that a read of record 2 fails and names the payload log."""
    with pytest.raises(PayloadUnreachableError) as caught:
        read()
    assert caught.value.lsn == 2 and caught.value.link is not None and caught.value.link[0] == log_id
    assert f"{log_id:016x}" in str(caught.value)


def id_of(place: Any) -> int:
    """Return the log id of a payload log."""
    with walkit.open(place, mode="r") as log:
        return log.source.now().view.manifest.log_id


@pytest.mark.parametrize("has_access", [True, False])
def test_replica_reads_values_in_the_payload_log(tmp_path: Path, has_access: bool) -> None:
    """Goal: a replica resolves links, or fails by name. Method: all ways, promoted too."""
    payloads, own = tmp_path / "payloads", tmp_path / "replica"
    more: dict[str, Any] = {"payload_log": payloads} if has_access else {}
    with (
        Store.open(tmp_path / "log", options=linked(payloads)) as store,
        Primary(store) as primary,
        Replica(own, primary.address, backoff=quick(), **more) as replica,
    ):
        replica.wait_for(put_all(store), WAIT_S)
        log_id = id_of(payloads)
        assert [r.link is None for r in replica.log.read(resolve="link")] == [True, False] * (N // 2)
        assert replica.store[b"0"] == b"small" and PAYLOAD_KEY not in replica.log.manifest.extra
        reads: list[Callable[[], object]] = [
            lambda: replica.store[b"1"],
            lambda: [r.value for r in replica.log.follow(1, timeout=0)],
            lambda: [r.value for r in replica.log],
        ]
        if has_access:
            assert replica.store.items() == sorted(WANTED.items())
            assert [read() for read in reads] == [value_of(1), [*WANTED.values()], [*WANTED.values()]]
        else:
            for read in reads:
                refused(read, log_id)
    with walkit.open(own, mode="r", payload_log=payloads) as log:
        assert [r.value for r in log] == [*WANTED.values()], "a reader may bring the place itself"
    promote(own)
    if not has_access:
        return
    with Store.open(own) as promoted:
        assert promoted.items() == sorted(WANTED.items())
    with pytest.raises(LogOwnedError):
        walkit.open(own, options=linked(payloads))
    with walkit.open(own, options=linked(tmp_path / "payloads of its own")) as log:
        log.append(value_of(99))
        assert [r.value for r in log.read()][-2:] == [value_of(19), value_of(99)]


@pytest.mark.parametrize("prefix", ["", "objects:"])
def test_existing_replica_names_its_payload_log(tmp_path: Path, prefix: str) -> None:
    """Goal: a replica that began without a payload log names it later. Method: restart it, away too, and promote it."""
    payloads, own = tmp_path / "payloads", f"{prefix}{tmp_path / 'replica'}"
    with Store.open(tmp_path / "log", options=linked(payloads)) as store, Primary(store) as primary:
        for more in ({}, {"payload_log": payloads}):
            with Replica(own, primary.address, backoff=quick(), **more) as replica:  # type: ignore[arg-type]
                replica.wait_for(put_all(store), WAIT_S)
        payloads.rename(tmp_path / "away")
        with Replica(own, primary.address, backoff=quick(), payload_log=payloads) as replica:
            assert replica.status().state != "failed", "what is named already is not opened"
        (tmp_path / "away").rename(payloads)
    promote(own)
    with walkit.open(own, mode="r") as log:
        assert [r.value for r in log.read(N + 1)] == [*WANTED.values()]


@pytest.mark.parametrize("place", ["named", "given", "gone"])
def test_delta_reader_reads_values_in_the_payload_log(tmp_path: Path, place: str) -> None:
    """Goal: a delta reader's state and records have the values, or say that they cannot. Method: move the payloads."""
    payloads, moved = tmp_path / "payloads", tmp_path / "moved"
    more: dict[str, Any] = {"payload_log": moved} if place == "given" else {}
    with Store.open(tmp_path / "log", options=linked(payloads)) as store, Primary(store) as primary:
        reader = DeltaReader(tmp_path / "log", primary.address, backoff=quick(), **more)
        with reader:
            reader.wait_for(put_all(store), WAIT_S)
            log_id = id_of(payloads)
            if place != "named":
                shutil.copytree(payloads, moved)
                payloads.rename(tmp_path / "away")
            reads: list[Callable[[], object]] = [
                lambda: reader.state[b"1"],
                lambda: reader.records_of(b"1", 1)[0].value,
                lambda: dict(reader.state.items())[b"1"],
            ]
            assert reader.state[b"0"] == b"small"
            if place == "gone":
                for read in reads:
                    refused(read, log_id)
            else:
                assert [read() for read in reads] == [value_of(1)] * 3
                assert reader.state.items() == sorted(WANTED.items())
            (tmp_path / "away").rename(payloads) if place != "named" else None
    assert reader.state[b"1"] == value_of(1), "values are read after the stop too"


@pytest.mark.parametrize("target", ["elsewhere/deep/copy", "objects:"])
def test_copy_reads_the_payload_log_of_its_source(tmp_path: Path, target: str) -> None:
    """Goal: a copy names the payload log that it needs, wherever it is. Method: copy, copy the copy, read, write."""
    payloads = tmp_path / "payloads"
    with Store.open(tmp_path / "log", options=linked(payloads)) as store:
        put_all(store)
    where = f"objects:{tmp_path}/copy" if target == "objects:" else str(tmp_path / target)
    if target != "objects:":
        Path(where).parent.mkdir(parents=True)
    report = walkit.copy(tmp_path / "log", where)
    log_id = id_of(payloads)
    assert report.payload_logs == {log_id: str(payloads)}
    assert report.to_dict()["payload_logs"] == {f"{log_id:016x}": str(payloads)}
    assert f"needs payload log: {log_id:016x} at {payloads}" in str(report)
    again = walkit.copy(where, tmp_path / "again")
    assert again.payload_logs == report.payload_logs
    for place in (where, tmp_path / "again"):
        with walkit.open(place, mode="r") as log:
            assert [r.value for r in log] == [*WANTED.values()]
            assert PAYLOAD_KEY not in log.source.now().view.manifest.extra
    with pytest.raises(LogOwnedError):
        walkit.open(tmp_path / "again", options=linked(payloads))
    payloads.rename(tmp_path / "away")
    with walkit.open(where, mode="r") as log:
        refused(lambda: [r.value for r in log], log_id)


@pytest.mark.parametrize(
    ("target", "payloads"), [("copy", True), ("objects:", True), ("copy", "objects:"), ("copy", "named")]
)
def test_copy_takes_the_payload_log_along(tmp_path: Path, target: str, payloads: Any) -> None:
    """Goal: a copy with payloads is whole by itself. Method: free values before they are copied, lose the source."""
    where = f"objects:{tmp_path}/copy" if target == "objects:" else str(tmp_path / target)
    to: Any = {"objects:": f"objects:{tmp_path}/named", "named": tmp_path / "named"}.get(payloads, True)
    source, values = tmp_path / "all/log", f"objects:{tmp_path}/all/payloads"
    (tmp_path / "all").mkdir()
    with Store.open(source, options=linked(values)) as store:
        last = put_all(store).last_lsn

        def late(done: int, total: int) -> None:
            """Supersede all values and drop them, once the log is copied and its values are not."""
            if done == total and store[b"1"] != b"new":
                for key in WANTED:
                    store.put(key, b"new")
                store.checkpoint()
                store.log.trim(store.log.acked_lsn)

        report = walkit.copy(source, where, late, payloads=to)
        assert store[b"1"] == b"new"
        assert not report.payload_logs and report.last_lsn == last
        ((log_id, place),) = report.payload_copies.items()
        assert log_id == id_of(values) and f"payload log copied: {log_id:016x} at {place}" in str(report)
        assert report.to_dict()["payload_copies"] == {f"{log_id:016x}": place}
        store.checkpoint()
        assert store.log.wait_idle(WAIT_S)
        usage = store.log.payload_usage()
        assert usage is not None and usage.live == 0 and usage.floor_lsn == 10, "the copy's claims are gone"
        with pytest.raises(walkit.OptionsError):
            walkit.copy(source, where, payloads=to)
    (tmp_path / "all").rename(tmp_path / "away")
    if not where.startswith("objects:") and to is True:  # a copy and its payload log may move together
        (tmp_path / "moved").mkdir()
        for name in (where, place):
            Path(name).rename(tmp_path / "moved" / Path(name).name)
        where = str(tmp_path / "moved/copy")
    assert walkit.verify(where, payloads=True).payloads_checked == N // 2
    with Store.open(where) as copied:
        assert copied.items() == sorted(WANTED.items())


def test_copy_refuses_places_that_cannot_have_payload_logs(tmp_path: Path) -> None:
    """Goal: bad places are refused before anything is written. Method: wrong types, and a target without a name."""
    with walkit.open(tmp_path / "log", options=linked(tmp_path / "payloads")) as log:
        log.append(value_of(1))
    for target, payloads in ((tmp_path / "copy", 7), (MemoryObjectStore(), True)):
        with pytest.raises(walkit.OptionsError):
            walkit.copy(tmp_path / "log", target, payloads=payloads)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "payloads"]


LARGE = 48
"""So many values of a mebibyte are read where only a few of them may be in memory."""


def peak_of(work: Callable[[], object]) -> int:
    """Return the most bytes of Python's memory that were in use at a time, after those before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["replica", "delta"])
def test_reader_of_links_to_large_values_is_bounded(tmp_path: Path, kind: str) -> None:
    """Goal: who follows links holds a few values at most. Method: follow 48 MiB, read all, and look at the peak."""
    options = walkit.LogOptions(link_over=4096, payload_log=tmp_path / "payloads", queue_bytes_max=8 * MIB)
    with Store.open(tmp_path / "log", options=options) as store, Primary(store) as primary:
        for number in range(LARGE):
            last = store.put(b"%02d" % number, bytes([number]) * MIB)
        follower: Any

        def follow() -> None:
            follower.__enter__()
            follower.wait_for(last, WAIT_S)

        def read() -> None:
            for number in range(LARGE):
                assert state[b"%02d" % number] == bytes([number]) * MIB
            if kind == "replica":
                assert sum(len(record.value or b"") for record in follower.log) == LARGE * MIB
                assert sum(batch.num_rows for batch in follower.log.read_batches()) == LARGE
            else:
                assert all(follower.records_of(b"%02d" % number, 1)[0].value for number in range(LARGE))

        if kind == "replica":
            follower = Replica(
                tmp_path / "replica", primary.address, backoff=quick(), payload_log=tmp_path / "payloads"
            )
        else:
            follower = DeltaReader(tmp_path / "log", primary.address, backoff=quick())
        try:
            followed = peak_of(follow)
            state = follower.store if kind == "replica" else follower.state
            assert followed < 8 * MIB and peak_of(read) < 40 * MIB, f"{followed / MIB:.0f} MiB"
        finally:
            follower.__exit__(None, None, None)


COPIER = """
    import sys, os, signal, walkit
    path, target, moment = sys.argv[1:]
    calls = 0
    def progress(done, total):
        global calls
        calls += 1
        if str(calls) == moment:
            os.kill(os.getpid(), signal.SIGKILL)
    def renamed(event, how):
        if event == "os.rename" and moment == "last" and how[1] == target:
            os.kill(os.getpid(), signal.SIGKILL)  # the payload log's copy is whole, and the log's is not
    sys.addaudithook(renamed)
    walkit.copy(path, target, progress, payloads=True)
"""


def test_killed_copy_with_payloads_is_continued(tmp_path: Path) -> None:
    """Goal: the same call ends what a killed one began. Method: kill it at moments of both logs, and write on."""
    path, target = tmp_path / "log", tmp_path / "copy"
    with walkit.open(path, options=linked(tmp_path / "payloads")) as log:
        log.append_many([value_of(number, 6000) for number in range(40)])
        for moment in ("1", "last"):
            with Child(COPIER, path, target, moment) as child:
                assert child.process.wait(60) == -signal.SIGKILL
            assert not target.exists()
            last_lsn = log.append(value_of(log.appended_lsn, 6000)).last_lsn
        report = walkit.copy(path, target, payloads=True)
        assert report.last_lsn == last_lsn and not report.payload_logs
        (tmp_path / "payloads").rename(tmp_path / "away")
        assert walkit.verify(target, payloads=True).payloads_checked == last_lsn
        assert not [path.name for path in tmp_path.iterdir() if "partial" in path.name]
        (tmp_path / "away").rename(tmp_path / "payloads")


def test_whole_copy_of_payloads_that_has_more_is_left_alone(tmp_path: Path) -> None:
    """Goal: no value of an earlier copy goes. Method: trim the payload log, write on, and copy to the same place."""
    path, place = tmp_path / "log", tmp_path / "copied"
    with walkit.open(path, options=linked(tmp_path / "payloads")) as log:
        log.append_many([value_of(number) for number in range(10)])
        walkit.copy(path, tmp_path / "first", payloads=place)
        log.trim(5)
        log.append(value_of(10))
        assert log.wait_idle(WAIT_S)
        with pytest.raises(walkit.OptionsError):
            walkit.copy(path, tmp_path / "second", payloads=place)
    assert walkit.verify(tmp_path / "first", payloads=True).payloads_checked == 10
