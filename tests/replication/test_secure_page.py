"""The page "Secure replication": its commands are run as they are there, except for the port."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

import walkit
from tests.conftest import Checkout
from tests.replication.processes import free_address
from walkit.replication.logs.source import StoredSource
from walkit.storage import FileStorage

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
