"""`walkit serve` and `walkit follow` at the command line: addresses, tokens, and standard error."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import walkit
from tests.support.ports import free_address
from walkit.errors import OptionsError
from walkit.replication.transport.address import Address, parse_address

if TYPE_CHECKING:
    from tests.cli.conftest import Run

ROOT = Path(walkit.__file__).parent.parent
WAIT_S = 60

ADDRESSES = {
    "127.0.0.1:0": Address("127.0.0.1", 0),
    "localhost:65535": Address("localhost", 65535),
    "db-1.example.com.:7070": Address("db-1.example.com.", 7070),
    "[::1]:7070": Address("::1", 7070),
    "[fe80::1%eth0]:1": Address("fe80::1%eth0", 1),
}
NO_ADDRESSES = (
    *(
        "",
        ":",
        "7070",
        ":7070",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:http",
        "127.0.0.1:-1",
        "127.0.0.1:65536",
    ),
    *("127.0.0.1:99999", "127.0.0.1:" + "9" * 5000, "127.0.0.1:7 ", "127.0.0.1:\u0667", "127.0.0.1:1_0"),
    *("1.2.3:1", "1.2.3.256:1", "::1:7070", "[::1:7070", "[::1]7070", "[::g]:1", "[127.0.0.1]:1", "[]:1"),
    *(
        "unix:/tmp/socket:1",
        "dns:///host:1",
        "a b:1",
        "-a:1",
        "a..b:1",
        "*:1",
        "a" * 64 + ":1",
        "a/b:1",
        "\x00:1",
    ),
)


@pytest.mark.parametrize("text", ADDRESSES)
def test_an_address_is_a_host_and_a_port(text: str) -> None:
    """Take addresses apart, and put them together again: the same text, an IPv6 host without its brackets."""
    address = parse_address(text, "listen", listening=True)
    assert address == ADDRESSES[text]
    assert str(address) == text


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_an_invalid_address_is_refused_in_words(text: str) -> None:
    """Give texts that gRPC takes for addresses of its own, or cuts into them: OptionsError, listening or not."""
    for option, listening in (("listen", True), ("source", False)):
        with pytest.raises(OptionsError) as refused:
            parse_address(text, option, listening=listening)
        assert (refused.value.option, refused.value.wanted) == (option, text)
    with pytest.raises(OptionsError, match="a port is from 1 to 65535"):
        parse_address("127.0.0.1:0", "source")
    with pytest.raises(OptionsError, match="a port is from 0 to 65535"):
        parse_address("127.0.0.1:99999", "listen", listening=True)
    with pytest.raises(OptionsError):
        parse_address(7070, "listen")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A closed log of one record."""
    with walkit.open(tmp_path / "p") as log:
        log.append(b"v", key=b"k")
    return tmp_path / "p"


@pytest.fixture
def taken() -> Iterator[str]:
    """An address at which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


HOST = """
import os, sys
before = dict(os.environ)
{use}
os.environ.pop("GRPC_ENABLE_FORK_SUPPORT", None)
before.pop("GRPC_ENABLE_FORK_SUPPORT", None)
assert dict(os.environ) == before
"""
SERVE = "from walkit.cli import main; assert main(['serve', sys.argv[1], '--listen', sys.argv[2]]) == 2"
LIBRARY = """
import walkit
try:
    walkit.replication.Primary(sys.argv[1], sys.argv[2]).start()
except walkit.OptionsError:
    pass
"""


def test_a_folder_that_standard_output_cannot_spell_is_followed_all_the_same(tmp_path: Path) -> None:
    """Follow into a folder whose name is neither ASCII nor UTF-8, with output in ASCII: lines with escapes, exit 0."""
    folder = tmp_path / os.fsdecode("dü".encode() + b"\xff")
    process = subprocess.Popen(
        [sys.executable, "-m", "walkit", "follow", "127.0.0.1:1", folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    process.terminate()
    _, complaint = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0 and not complaint
    assert first.isascii() and first.startswith(b"following 127.0.0.1:1 into ")
    assert b"\\xfc" in first and b"\\udcff" in first


def test_a_replica_asks_no_proxy_of_the_environment(log: Path, tmp_path: Path) -> None:
    """Follow with an http_proxy in the environment that does not answer: the replica has all, by its own way."""
    with walkit.replication.Primary(log) as primary, socket.create_server(("127.0.0.1", 0)) as proxy:
        proxied = {**os.environ, "http_proxy": f"http://127.0.0.1:{proxy.getsockname()[1]}"}
        proxied["grpc_proxy"] = proxied["https_proxy"] = proxied["http_proxy"]
        program = (
            "import sys, walkit\n"
            "with walkit.replication.Replica(sys.argv[1], sys.argv[2]) as replica: print(replica.wait_for(1, 20))"
        )
        command = [sys.executable, "-c", program, str(tmp_path / "r"), primary.address]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, cwd=ROOT, env=proxied)
    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr


CROWDED = """
import resource, sys, walkit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
options = walkit.LogOptions(segment_bytes=1 << 20)
with walkit.open(sys.argv[1], options=options) as log, walkit.replication.Primary(log, token="t") as primary:
    print(primary.address, flush=True)
    sys.stdin.readline()
    for _ in range(8):
        log.append(bytes(1 << 19))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of descriptors that a process can set itself")
def test_who_only_connects_takes_no_descriptors_from_the_log(tmp_path: Path) -> None:
    """Connect more often than a process has descriptors, and say nothing: its log goes on to new segments."""
    command = [sys.executable, "-c", CROWDED, str(tmp_path / "p")]
    with ExitStack() as stack:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        host, _, port = process.stdout.readline().strip().rpartition(":")
        for _ in range(200):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_S))
        _, complaint = process.communicate("go on\n", timeout=WAIT_S)
        assert process.returncode == 0 and "EMFILE" not in complaint, complaint


def test_a_host_programs_environment_stays_as_it_is(log: Path, taken: str) -> None:
    """Fail to listen in a host's process, by command and as a library: its environment stays; a command says a line."""
    for use, is_command in ((SERVE, True), (LIBRARY, False)):
        program = HOST.format(use=use)
        command = [sys.executable, "-c", program, str(log), taken]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, cwd=ROOT)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == ""
        assert ("add_port" in ended.stderr) != is_command
        if is_command:
            (line,) = ended.stderr.splitlines()
            assert line.startswith("walkit serve: ") and "Address already in use" in line and taken in line


@pytest.mark.parametrize("arguments", [["--token", "s3cret"], ["--token=s3cret"], ["--token"]], ids=" ".join)
def test_a_token_on_the_command_line_is_refused(arguments: list[str], log: Path, run: Run) -> None:
    """Give a token as an argument: exit 2, the sentence names file and variable, and does not repeat the token."""
    for command in (["serve", log.parent / "none"], ["follow", "nowhere", log.parent / "r"]):
        ran = run(*command, *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert "--token-file FILE" in ran.err and "WALKIT_TOKEN" in ran.err
        assert "s3cret" not in ran.err
    assert not (log.parent / "r").exists()


@pytest.mark.parametrize(
    ("content", "variable"),
    [
        (None, ""),
        (b"", None),
        (b"\n\n", None),
        (b"two\nlines\n", None),
        ("gr\u00fcn".encode(), None),
        (b"x" * 5000, None),
    ],
)
def test_a_place_without_a_token_is_refused(
    content: bytes | None, variable: str | None, log: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give an empty variable, and files that are missing or hold no single line of ASCII: exit 2, nothing is served."""
    monkeypatch.delenv("WALKIT_TOKEN", raising=False)
    arguments: list[object] = []
    if variable is not None:
        monkeypatch.setenv("WALKIT_TOKEN", variable)
    else:
        arguments = ["--token-file", log.parent / "token"]
    if content is not None:
        (log.parent / "token").write_bytes(content)
    absent = log.parent / "none"  # nothing is served by mistake
    ran = run("serve", absent, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ("WALKIT_TOKEN" if variable is not None else "token") in ran.err and "Traceback" not in ran.err
    if content is not None:
        assert run("serve", absent, "--token-file", log.parent / "absent").code == 2


def test_a_token_comes_from_a_file_or_the_environment(log: Path, tmp_path: Path, run: Run) -> None:
    """Serve with a file, follow with the variable and with another token: in, and exit 3; no command line shows it."""
    (tmp_path / "token").write_text("s3cret \n")
    (tmp_path / "wrong").write_text("other")
    with ExitStack() as stack:

        def started(*arguments: object, **environment: str) -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "walkit", *map(str, arguments)],
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                    env={**os.environ, **environment},
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            assert b"s3cret" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
            return process

        address = free_address()
        started(
            "serve", log, "--listen", address, "--token-file", tmp_path / "token", WALKIT_TOKEN="not this"
        )
        follower = started("follow", address, tmp_path / "right", WALKIT_TOKEN="s3cret")
        deadline = threading.Timer(WAIT_S, follower.kill)  # reading its lines has none
        deadline.start()
        stack.callback(deadline.cancel)
        assert follower.stdout is not None
        assert any("LSN 1 of 1" in line for line in iter(follower.stdout.readline, ""))
        follower.send_signal(signal.SIGINT)
        assert follower.wait(WAIT_S) == 0
        refused = run("follow", address, tmp_path / "r", "--token-file", tmp_path / "wrong")
        assert refused.code == 3 and "the token is missing, or another one" in refused.err


def test_follow_rejoins_once_that_is_agreed_to(log: Path, tmp_path: Path, run: Run) -> None:
    """Follow with a log that parted: only --yes changes it; with another log: exit 3, and the folder stays."""
    walkit.copy(log, tmp_path / "parted")
    for name in ("parted", "another"):
        with walkit.open(tmp_path / name) as other:
            other.append(b"of another history")
    with walkit.replication.Primary(log) as primary:
        ran = run("follow", primary.address, tmp_path / "parted", "--rejoin")
        assert ran.code == 2 and "is rewound to LSN 1" in ran.err and "--yes" in ran.err
        assert walkit.open(tmp_path / "parted", mode="r").durable_lsn == 2
        ran = run("follow", primary.address, tmp_path / "another", "--rejoin", "--yes")
        assert ran.code == 3 and "has another log" in ran.err
        assert walkit.open(tmp_path / "another", mode="r").durable_lsn == 1
        command = ["-m", "walkit", "follow", primary.address, str(tmp_path / "parted"), "--rejoin", "--yes"]
        follower = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        deadline = threading.Timer(WAIT_S, follower.kill)
        deadline.start()
        assert follower.stdout is not None
        assert any("LSN 1 of 1" in line for line in iter(follower.stdout.readline, ""))
        deadline.cancel()
        follower.terminate()
        follower.communicate(timeout=WAIT_S)
        assert follower.returncode == 0
    with walkit.open(tmp_path / "parted", mode="r") as reader:
        assert [record.value for record in reader.read()] == [b"v"]
