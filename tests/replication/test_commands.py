"""`walkit serve` and `walkit follow` as processes of their own, beside a writer in a third one."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import pytest

import walkit
import walkit.cli
from tests.conftest import Checkout
from tests.replication.blocking_callers import until
from tests.replication.certificates import Authority
from tests.replication.processes import Command
from tests.support.interrupts import Strike, interrupt_in
from tests.support.ports import free_address, free_port
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.bench.delta import bench_delta
from walkit.bench.replication import _append, bench_replication
from walkit.bench.sampling import sampled_lsns
from walkit.errors import OptionsError
from walkit.models import CrashingStorage
from walkit.models.remote_storage import REMOTE
from walkit.replication import Primary, Replica
from walkit.replication.commands import _until_stopped, follow, serve
from walkit.replication.logs.source import StoredSource
from walkit.state.snapshot import snapshot_lsns
from walkit.storage import FileStorage


def test_serve_and_follow_report_their_work_and_end_on_a_signal(tmp_path: Path) -> None:
    """Serve a log that this process writes, follow it elsewhere, interrupt both: exit 0, and the folder is a log."""
    with walkit.open(tmp_path / "p") as log:
        log.append(b"v", key=b"k")
        port = free_port()
        metrics = ("--metrics-port", str(port))
        server = Command("serve", str(tmp_path / "p"), "--listen", "127.0.0.1:0", *metrics)
        address = server.first.split()[-1]
        assert server.first == f"serving {tmp_path / 'p'} at {address}\n"
        follower = Command("follow", address, str(tmp_path / "r"), "--json")
        until((tmp_path / "r" / "manifest").exists, "the first contact")
        log.append(b"w", key=b"k")
        until(lambda: walkit.open(tmp_path / "r", mode="r").durable_lsn == 2, "the second record")
        until(lambda: json.loads(follower.lines[-1])["lsn"] == 2 if follower.lines else False, "the line")
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"walkit_peer_lsn{" in (text := answer.read()) and b"walkit_traffic_batches_total" in text
        with pytest.raises(walkit.OptionsError, match="metrics_port"):
            serve(tmp_path / "p", "127.0.0.1:0", metrics_port=port)
        assert (follower.end(signal.SIGINT), server.end()) == (0, 0)
        lines = [json.loads(line) for line in (follower.first, *follower.lines)]
        assert {line["schema"] for line in lines} == {"walkit.follow/1"} and lines[-1]["lag_records"] == 0
    with Replica(tmp_path / "r", address) as replica:
        assert replica.store[b"k"] == b"w"


def test_serve_leaves_loopback_only_with_insecure(tmp_path: Path) -> None:
    """Serve at 0.0.0.0 without and with --insecure: refused before anything is served; then a replica follows."""
    with walkit.open(tmp_path / "p") as log:
        log.append(b"v")
    with pytest.raises(walkit.OptionsError, match="--insecure"):
        serve(tmp_path / "p", "0.0.0.0:0")
    server = Command("serve", str(tmp_path / "p"), "--listen", "0.0.0.0:0", "--insecure")
    address = server.first.split()[-1]
    assert address.startswith("0.0.0.0:")
    with Replica(tmp_path / "r", address.replace("0.0.0.0", "127.0.0.1")) as replica:
        assert replica.wait_for(1, 30) == 1
    assert server.end() == 0


def test_serve_and_follow_with_tls_and_a_new_identity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Serve with a certificate, follow with its authority into a copied folder: exit 3 in a sentence, then followed."""
    authority = Authority(tmp_path / "certificates")
    certificate, key = authority.issue()
    with walkit.open(tmp_path / "p") as log:
        log.append(b"v")
    with (
        walkit.replication.Primary(tmp_path / "p") as primary,
        Replica(tmp_path / "r", primary.address) as replica,
    ):
        replica.wait_for(1, 30)
    shutil.copytree(tmp_path / "r", tmp_path / "copy")
    files = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    server = Command("serve", str(tmp_path / "p"), "--listen", "127.0.0.1:0", *files)
    address = server.first.split()[-1]
    command = ("follow", address, str(tmp_path / "copy"), "--tls-ca", str(authority.ca))
    assert walkit.cli.main(command) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "is a copy of a replica's folder" in line and "--new-identity" in line
    with walkit.open(tmp_path / "p") as log:
        log.append(b"w")
    follower = Command(*command, "--new-identity", "--codec", "snappy")
    until(lambda: walkit.open(tmp_path / "copy", mode="r").durable_lsn == 2, "the second record")
    assert (follower.end(), server.end()) == (0, 0)


def test_serve_waits_for_a_log_and_ends_on_damage(tmp_path: Path) -> None:
    """Serve a log before it is made, put it away, put it back, damage it: a line says each, and damage is exit 1."""
    path, away = tmp_path / "p", tmp_path / "away"
    server = Command("serve", str(path))
    assert server.first.startswith(f"absent: no log at {path}") and server.first.endswith(
        f"waiting for {path}\n"
    )
    with walkit.open(path) as log:
        log.append(b"v")
    until(lambda: any(line.startswith(f"serving {path}") for line in server.lines), "the log")
    path.rename(away)
    until(lambda: server.lines[-1].startswith("absent: "), "the absence")
    away.rename(path)
    until(lambda: server.lines[-1] == "serving\n", "the way back")
    assert server.end() == 0
    server = Command("serve", str(path))
    manifest = path / "manifest"
    manifest.write_bytes(manifest.read_bytes()[:40])
    assert server.wait() == 1


def test_arguments_are_refused_in_words(tmp_path: Path) -> None:
    """A folder of something else, and an invalid address: typed errors, nothing is made."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(walkit.NotALogError):
        serve(tmp_path / "other", "127.0.0.1:0")
    with pytest.raises(walkit.OptionsError):
        follow("nowhere", tmp_path / "r")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_signal_during_the_wait_ends_it() -> None:
    """Call the handler at each point of a wait where a signal may come: it returns, and the next wait ends at once."""
    for number in count(1):
        strike = Strike(number)
        with _until_stopped() as over:
            early = Task(strike.run, lambda over=over: over.wait(0.001)).result()
            assert not strike.where or early or over.wait(0)
        if not strike.where:
            break
    assert number > 2


# -- the page of secure replication


PAGE = "docs/how-to/secure-replication.md"
WAIT_S = 60.0


def blocks(checkout: Checkout) -> list[str]:
    """The shell blocks of the page, in order."""
    return re.findall(r"```sh\n(.*?)```", (checkout.root / PAGE).read_text(), re.DOTALL)


def started(line: str, folder: Path, root: Path) -> subprocess.Popen[str]:
    """A command of walkit, as a process."""
    words = shlex.split(line)
    assert words[0] == "walkit"
    return subprocess.Popen(
        [sys.executable, "-m", "walkit", *words[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_the_commands_of_the_page_secure_a_replica(checkout: Checkout, tmp_path: Path) -> None:
    """Make the certificates and the token, serve and follow; then with mutual TLS; each missing part is refused."""
    with walkit.open(tmp_path / "orders") as log:
        log.append(b"paid", key=b"order-7")
    made, token, plain, client, mutual = blocks(checkout)
    for block in (made, token, client):
        subprocess.run(["sh", "-e"], cwd=tmp_path, input=block, text=True, check=True, capture_output=True)
    for block in (plain, mutual):
        address = free_address()
        serve, follow = block.replace("127.0.0.1:7443", address).splitlines()
        server = started(serve, tmp_path, checkout.root)
        assert server.stdout is not None and "serving" in server.stdout.readline()
        replica = started(follow, tmp_path, checkout.root)
        try:
            deadline = time.monotonic() + WAIT_S
            while (
                not (tmp_path / "orders-replica" / "manifest").exists()
                or not StoredSource(FileStorage(str(tmp_path / "orders-replica"))).durable()[0]
            ):
                assert time.monotonic() < deadline and replica.poll() is None
                time.sleep(0.05)
            without = [" --token-file token", " --tls-ca authority.pem"]
            if block is mutual:
                without = [" --tls-certificate replica.pem --tls-key replica.key"]
            for part in without:
                assert part in follow
                left = follow.replace(part, "").replace("orders-replica", "refused")
                refused = started(left, tmp_path, checkout.root)
                assert refused.wait(WAIT_S) == 3, part
                assert refused.stdout is not None
                assert "walkit follow:" in refused.stdout.read()
                refused.stdout.close()
        finally:
            for process in (replica, server):
                process.terminate()
                assert process.wait(WAIT_S) == 0
                assert process.stdout is not None
                process.stdout.close()
        with walkit.open(tmp_path / "orders-replica", mode="r") as reader:
            assert [record.value for record in reader.read()] == [b"paid"]


# -- follow and measure by delta


def test_follow_keeps_the_state_of_a_log_by_delta_and_ends_on_a_signal(tmp_path: Path) -> None:
    """Follow a log with the command and end it: it reports its work, and its checkpoint is at the log's end."""
    log, own = tmp_path / "log", tmp_path / "own"
    with walkit.open(log) as opened, Primary(opened) as primary:
        opened.append(b"1", key=b"k")
        child = Command("follow", primary.address, str(own), "--delta", str(log))
        assert child.first == f"following {log} by polls of {primary.address}, checkpoints in {own}\n"
        until(lambda: bool(primary.status().delta_readers), "a session")
        lsn = opened.append(b"2", key=b"k").last_lsn
        until(lambda: any(r.applied_lsn >= lsn for r in primary.status().delta_readers), "the record")
        assert child.end(signal.SIGINT) == 0
    assert snapshot_lsns(FileStorage(str(own))) == [lsn]


@pytest.mark.slow
def test_a_short_run_measures_both_paths(tmp_path: Path) -> None:
    """Measure for a moment: the log alone has no hits, a large buffer has them, and remote reading lags by its wait."""
    progress: list[str] = []
    report = bench_delta(
        mb_per_s=2, seconds=0.15, rounds=2, buffers=[1 << 20], path=tmp_path, progress=progress.append
    )
    assert len(progress) == 16 and len(report.rows) == 10
    for load in ("light", "steady"):
        for storage in ("folder", REMOTE.name):
            alone, delta = report.row(load, storage, 0), report.row(load, storage, 1 << 20)
            assert alone.hit_rate == 0 < alone.loads
            assert alone.answer_p50_ms is None and delta.lag_p50_ms >= 0 == alone.answers < delta.answers
            for row in (alone, delta):
                assert row.rounds == 2 and row.lags > 0
                assert row.lag_p50_low_ms <= row.lag_p50_ms <= row.lag_p50_high_ms
    assert report.row("light", REMOTE.name, 0).lag_p50_ms > 10  # the first byte takes no less
    assert "the log alone" in report.text() and "buffer 1,048,576 B" in report._repr_html_()
    assert json.loads(json.dumps(report.to_dict()))["bench"] == "delta"
    assert (
        "least to most" in report.text()
        and f"light, {REMOTE.name}, buffer 1,048,576 B: by delta" in report.text()
    )
    with pytest.raises(KeyError):
        report.row("light", "nowhere", 0)
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_cannot_be_measured_with_are_refused(tmp_path: Path) -> None:
    """No rate, records beyond a frame, a buffer of nothing: OptionsError before a folder is made."""
    for arguments in (
        {"mb_per_s": 0.0},
        {"record_bytes": 1 << 20},
        {"buffers": [0]},
        {"seconds": 0.0},
        {"rounds": 0},
    ):
        with pytest.raises(OptionsError):
            bench_delta(path=tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == []


# -- the measurement of replication


def test_a_short_run_measures_both_sides_and_the_lag(tmp_path: Path) -> None:
    """Two writers for a fifth of a second: rates, ratio and lag fit each other, nothing is left behind."""
    progress: list[str] = []
    report = bench_replication(
        writers=2, record_bytes=64, seconds=0.2, path=tmp_path, progress=progress.append
    )
    assert report.ratio == pytest.approx(report.with_replica_per_s / report.alone_per_s)
    assert report.alone_slices_per_s[0] <= report.alone_per_s <= report.alone_slices_per_s[1]
    assert min(report.replica_per_s, report.catch_up_per_s, report.drain_ms) > 0
    assert 0 <= report.lag_p50_ms <= report.lag_p99_ms <= report.lag_max_ms
    assert report.catch_up_records > 1
    assert report.catch_up_ratio == pytest.approx(report.catch_up_per_s / report.read_per_s)
    assert json.loads(json.dumps(report.to_dict()))["writers"] == 2
    for said in ("append with a replica", "with a replica / alone", "catching up / reading"):
        assert said in report.text()
    assert "records/s" in report._repr_html_()
    assert len(progress) == 2
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_cannot_be_measured_are_refused(tmp_path: Path) -> None:
    """No writers, huge records, no time: OptionsError before a folder is made."""
    for arguments in ({"writers": 0}, {"record_bytes": 2 << 20}, {"seconds": 0.0}):
        with pytest.raises(OptionsError):
            bench_replication(path=tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_measurement_leaves_no_thread_at_work() -> None:
    """Interrupt the appending threads, and the work beside a sampler: KeyboardInterrupt, and each thread ends."""
    with walkit.open(storage=CrashingStorage()) as log:
        shooter = interrupt_in("_append", "wait")
        with pytest.raises(KeyboardInterrupt):
            _append(log, 2, 10, GUARD_S)
        shooter.result()
        wait_until(lambda: not any(thread.name.startswith("bench-") for thread in threading.enumerate()))
        with pytest.raises(KeyboardInterrupt), sampled_lsns(lambda: (log.durable_lsn, 0), 0.005):
            raise KeyboardInterrupt
        assert not any(thread.name.startswith("bench-") for thread in threading.enumerate())
