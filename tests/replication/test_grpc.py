"""Primary and replica over real gRPC on the loopback address, in one process."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, quick, until
from tests.support.crashes import SMALL, Script
from tests.support.imports import bytes_of
from tests.support.interrupts import Strike, interrupt_in
from tests.support.threads import Task
from walkit.errors import (
    LogClosedError,
    LogLockedError,
    OptionsError,
)
from walkit.models import CrashingStorage, FaultyStorage
from walkit.replication import DeltaReader, Primary, Replica, Tokens
from walkit.segments.manifest_store import DURABLE_NAME, LOCK_NAME, load_manifest
from walkit.storage import FileStorage


def equal_frames(a: Path, b: Path) -> bool:
    """Whether two closed logs have the same frames."""
    return bytes_of(FileStorage(str(a))) == bytes_of(FileStorage(str(b)))


def test_an_interrupt_of_who_waits_for_a_replica_stops_no_other() -> None:
    """Strike a wait for a record of the replica's store at each point: others are told, and it stops."""
    for number in count(1):
        replica = Replica(CrashingStorage(), "127.0.0.1:1")
        strike = Strike(number)
        with suppress(KeyboardInterrupt):
            strike.run(lambda replica=replica: replica.store.wait_for(1, 0.001))  # type: ignore[misc]
        Task(replica.store.wake).result()
        Task(replica.stop).result()
        if not strike.where:
            break
    assert number > 5


def test_an_interrupted_stop_is_done_again_and_closes_nothing_before(stack: ExitStack) -> None:
    """Interrupt stopping twice while a frame is being imported: the log stays open; the last one seals it."""
    log = stack.enter_context(walkit.open(storage=CrashingStorage(), options=SMALL))
    primary = stack.enter_context(Primary(log))
    storage = FaultyStorage(CrashingStorage())
    replica = stack.enter_context(Replica(storage, primary.address, backoff=quick()))
    log.append(b"first")
    replica.wait_for(1, WAIT_S)
    hang = storage.hang("synced_write", "*.segment")
    log.append(b"second")
    assert hang.entered.wait(WAIT_S)
    for _ in range(2):
        shooter = interrupt_in("stop", "join")
        with pytest.raises(KeyboardInterrupt):
            replica.stop()
        shooter.result()
        assert storage.is_locked(LOCK_NAME) and not replica.log.closed
    hang.release()
    replica.stop()
    with walkit.open(storage=storage, mode="r") as reader:
        assert [record.value for record in reader.read()] == [b"first", b"second"]
    assert not storage.is_locked(LOCK_NAME)


def test_a_replica_follows_and_ends_equal(stack: ExitStack, tmp_path: Path) -> None:
    """Write before and while a replica follows: same records, store and frames; verified by the tools of any log."""
    store = stack.enter_context(walkit.Store.open(tmp_path / "primary", options=SMALL))
    Script().run(store.log, lambda: None, 30)
    primary = stack.enter_context(Primary(store))
    replica = stack.enter_context(Replica(tmp_path / "replica", primary.address))
    Script().run(store.log, lambda: None, 60)
    lsn = store.log.acked_lsn
    assert replica.wait_for(lsn, WAIT_S) >= lsn
    assert replica.store.items() == store.items()
    assert replica.store.checksum() == store.checksum()
    assert list(replica.log.read()) == list(store.log.read())
    status = replica.status()
    assert (status.state, status.lag_records, status.reconnects, status.error) == ("streaming", 0, 0, None)
    assert "streaming" in status._repr_html_()
    assert primary.address in repr(replica)
    until(lambda: [f.acked_lsn for f in primary.status().followers] == [lsn], "the last acknowledgement")
    assert replica.name in primary._repr_html_()
    with walkit.open(tmp_path / "replica", mode="r") as reader:
        assert reader.durable_lsn == lsn
    store.close()
    until(
        lambda: (
            replica.log.end.position == load_manifest(FileStorage(str(tmp_path / "primary"))).end.position
        ),
        "marks",
    )
    replica.stop()
    assert replica.status().state == "stopped"
    assert equal_frames(tmp_path / "primary", tmp_path / "replica")
    assert walkit.verify(tmp_path / "replica").ok


@pytest.mark.parametrize("codec", [None, "zstd", "snappy"])
def test_the_codec_of_the_way_changes_nothing_that_is_stored(
    stack: ExitStack, tmp_path: Path, codec: str | None
) -> None:
    """Send compressible records with and without a codec: fewer bytes travel, and the frames are the primary's."""
    with walkit.open(tmp_path / "primary") as log:
        log.append_many([b"again and again " * 40] * 3000)
    with (
        Primary(tmp_path / "primary") as primary,
        Replica(tmp_path / "replica", primary.address, codec) as replica,
    ):
        replica.wait_for(3000, WAIT_S)
        until(lambda: replica.status().lag_bytes == 0, "the last frame")
        sent, taken = primary.statistics(), replica.statistics()
    by_codec = {None: sent.plain_bytes, "zstd": sent.zstd_bytes, "snappy": sent.snappy_bytes}
    if codec is None:
        assert sent.travelled_bytes == sent.frame_bytes == sent.plain_bytes
    else:
        assert 0 < by_codec[codec] < sent.frame_bytes / 3
        assert sent.travelled_bytes - sent.plain_bytes == by_codec[codec]
    assert taken == sent
    assert "travelled" in sent._repr_html_()
    assert equal_frames(tmp_path / "primary", tmp_path / "replica")


def test_only_durable_frames_leave(tmp_path: Path) -> None:
    """Interval durability with a long interval: what is acknowledged and not synced stays, until sync() makes it go."""
    slow = walkit.LogOptions(durability="interval", interval_ms=60_000)
    with (
        walkit.open(tmp_path / "p", options=slow) as log,
        Primary(log) as primary,
        Replica(tmp_path / "r", primary.address) as replica,
    ):
        log.append(b"not durable yet")
        until(lambda: bool(primary.status().followers), "the replica")
        with pytest.raises(TimeoutError, match="did not come in time"):
            replica.wait_for(1, 0.2)
        log.sync()
        assert replica.wait_for(1, WAIT_S) == 1


def test_a_replica_ahead_of_a_dead_primary_waits_for_its_opening(tmp_path: Path) -> None:
    """Cut the primary's power and lose its cell: its tail is not served, without a divergence; opened, it continues."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=SMALL)
    log.append_many([b"before"] * 20)
    with Primary(log) as primary, Replica(tmp_path / "r", primary.address) as replica:
        replica.wait_for(20, WAIT_S)
    image = storage.crash(keep="all")
    log.close()
    image.remove(DURABLE_NAME)
    with Primary(image) as primary:
        assert primary.source.durable() == (0, 0)
        with Replica(tmp_path / "empty", primary.address, backoff=quick()) as nothing:
            until(lambda: nothing.status().state == "streaming", "the new replica")
            assert nothing.status().lsn == 0
        with Replica(tmp_path / "r", primary.address, backoff=quick()) as replica:
            until(lambda: replica.status().state == "streaming", "the replica that has it")
            with walkit.open(storage=image, options=SMALL) as again:
                again.append(b"after")
                replica.wait_for(21, WAIT_S)
    assert bytes_of(FileStorage(str(tmp_path / "r")))[:2] == bytes_of(image)[:2]


def test_bad_arguments_are_named_before_anything_is_made(tmp_path: Path) -> None:
    """TLS, a codec, an address and a listen address that cannot be: OptionsError, and no folder."""
    with walkit.open(tmp_path / "p") as log:
        for option, make in (
            ("tls", lambda: Primary(log, tls=object())),  # type: ignore[arg-type]
            ("tls", lambda: Replica(tmp_path / "r", "127.0.0.1:1", tls=object())),  # type: ignore[arg-type]
            ("codec", lambda: Replica(tmp_path / "r", "127.0.0.1:1", "lzma")),
            ("source", lambda: Replica(tmp_path / "r", "nowhere")),
            ("token", lambda: Replica(tmp_path / "r", "127.0.0.1:1", token="")),
            ("token", lambda: Primary(log, token="x" * 5000)),
            ("tokens", lambda: Primary(log, tokens=Tokens())),
            ("tokens", lambda: Primary(log, tokens=Tokens(read="one"))),
            ("tokens", lambda: Primary(log, tokens=Tokens(read=["x"] * 65))),
            ("tokens", lambda: Primary(log, token="x", tokens=Tokens(read=["y"]))),
            ("listen", lambda: Primary(log, "999.1.1.1:x").start()),
        ):
            with pytest.raises(OptionsError) as refused:
                make()
            assert refused.value.option == option
        assert not (tmp_path / "r").exists()
        with Primary(log) as primary, pytest.raises(OptionsError, match="cannot listen"):
            Primary(log, primary.address).start()


def test_a_replica_without_its_primary_waits_and_can_be_read(tmp_path: Path) -> None:
    """Start a replica before its primary: connecting, then caught up; the folder has one writer; stopped is told."""
    with walkit.open(tmp_path / "p") as log:
        log.append(b"v", key=b"k")
        with Primary(log) as primary:
            address = primary.address
        replica = Replica(tmp_path / "r", address, backoff=quick()).start()
        until(lambda: replica.status().trouble != "", "the first refusal")
        assert replica.status().state == "connecting"
        assert list(replica.log.read()) == []
        with pytest.raises(LogLockedError):
            Replica(tmp_path / "r", address)
        with Primary(log, address):
            replica.wait_for(1, WAIT_S)
        assert replica.store[b"k"] == b"v"
        replica.stop()
        with pytest.raises(LogClosedError):
            replica.wait_for(2)
        with pytest.raises(LogClosedError):
            replica.start()
        with pytest.raises(LogClosedError):
            len(replica.store)
    with Replica(tmp_path / "r", address) as again:
        assert again.store[b"k"] == b"v"


def test_follow_yields_what_is_imported(tmp_path: Path) -> None:
    """Tail the replica's log while records come: every one once, in order; the iterator ends with the replica."""
    with walkit.open(tmp_path / "p") as log, Primary(log) as primary:
        with Replica(tmp_path / "r", primary.address) as replica:
            seen = []
            tail = replica.log.follow(1)
            for number in range(20):
                log.append(b"%d" % number)
                seen.append(next(tail).value)
            assert seen == [b"%d" % number for number in range(20)]
        assert list(tail) == []


STARTS_OTHERS = """
import os, signal, subprocess
from concurrent.futures import ThreadPoolExecutor
from walkit.replication.transport.grpc_common import grpc

server = grpc.server(ThreadPoolExecutor(2))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
grpc.channel_ready_future(channel).result(30)
assert os.environ["GRPC_ENABLE_FORK_SUPPORT"] == "0"
for _ in range(20):
    subprocess.run(["true"], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN), check=True)
channel.close()
server.stop(None).wait()
"""


def test_a_process_with_grpc_starts_others() -> None:
    """Start programs by fork, as PySpark starts Java, beside a server and a channel: gRPC lets each of them run."""
    ended = subprocess.run([sys.executable, "-c", STARTS_OTHERS], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_waiting_for_an_unstarted_replica_is_an_error(tmp_path: Path) -> None:
    """Wait for a record at a replica and a delta reader that were not started: the error names the cause."""
    with walkit.open(tmp_path / "p") as log, Primary(log) as primary:
        log.append(b"1")
        for waiting in (
            Replica(tmp_path / "r", primary.address),
            DeltaReader(tmp_path / "p", primary.address),
        ):
            with pytest.raises(TimeoutError, match=r"start\(\) was not called"):
                waiting.wait_for(1, 0)
            waiting.stop()
