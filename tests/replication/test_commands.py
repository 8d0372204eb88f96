"""`walkit serve` and `walkit follow` as processes of their own, beside a writer in a third one."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import pytest

import walkit.cli
from tests.replication.blocking_callers import until
from tests.replication.certificates import Authority
from tests.replication.processes import free_address
from tests.replication.test_kill import ROOT, Process
from tests.support.interrupts import Strike
from tests.support.threads import Task
from walkit.replication import Replica
from walkit.replication.commands import _until_told, follow, serve


def test_serve_and_follow_report_their_work_and_end_on_a_signal(tmp_path: Path) -> None:
    """Serve a log that this process writes, follow it elsewhere, interrupt both: exit 0, and the folder is a log."""
    with walkit.open(tmp_path / "p") as log:
        log.append(b"v", key=b"k")
        port = int(free_address().rpartition(":")[2])
        metrics = ("--metrics-port", str(port))
        server = Process("-m", "walkit", "serve", str(tmp_path / "p"), "--listen", "127.0.0.1:0", *metrics)
        address = server.first.split()[-1]
        assert server.first == f"serving {tmp_path / 'p'} at {address}\n"
        follower = Process("-m", "walkit", "follow", address, str(tmp_path / "r"), "--json")
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
    server = Process("-m", "walkit", "serve", str(tmp_path / "p"), "--listen", "0.0.0.0:0", "--insecure")
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
    server = Process("-m", "walkit", "serve", str(tmp_path / "p"), "--listen", "127.0.0.1:0", *files)
    address = server.first.split()[-1]
    command = ("follow", address, str(tmp_path / "copy"), "--tls-ca", str(authority.ca))
    assert walkit.cli.main(command) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "is a copy of a replica's folder" in line and "--new-identity" in line
    with walkit.open(tmp_path / "p") as log:
        log.append(b"w")
    follower = Process("-m", "walkit", *command, "--new-identity", "--codec", "snappy")
    until(lambda: walkit.open(tmp_path / "copy", mode="r").durable_lsn == 2, "the second record")
    assert (follower.end(), server.end()) == (0, 0)


def test_serve_waits_for_a_log_and_ends_on_damage(tmp_path: Path) -> None:
    """Serve a log before it is made, put it away, put it back, damage it: a line says each, and damage is exit 1."""
    path, away = tmp_path / "p", tmp_path / "away"
    server = Process("-m", "walkit", "serve", str(path))
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
    server = Process("-m", "walkit", "serve", str(path))
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


FORGETFUL = """
import sys
import walkit
from walkit.replication import Primary, Replica

log = walkit.open(sys.argv[1] + "/p")
log.append(b"x")
primary = Primary(log).start()
replica = Replica(sys.argv[1] + "/r", primary.address).start()
replica.wait_for(1, 30)
"""


def test_a_process_that_forgets_to_stop_ends_all_the_same(tmp_path: Path) -> None:
    """End a script with a primary and a replica at work: the process ends, and both folders open again."""
    subprocess.run([sys.executable, "-c", FORGETFUL, str(tmp_path)], check=True, timeout=60, cwd=ROOT)
    with (
        walkit.open(tmp_path / "p") as log,
        walkit.replication.Primary(log) as primary,
        Replica(tmp_path / "r", primary.address) as replica,
    ):
        replica.wait_for(log.append(b"y").last_lsn, 30)
        assert [r.value for r in replica.log.read()] == [b"x", b"y"]


def test_a_signal_during_the_wait_ends_it() -> None:
    """Call the handler at each point of a wait where a signal may come: it returns, and the next wait ends at once."""
    for number in count(1):
        strike = Strike(number)
        with _until_told() as over:
            early = Task(strike.run, lambda over=over: over.wait(0.001)).result()
            assert not strike.where or early or over.wait(0)
        if not strike.where:
            break
    assert number > 2
