"""Access to the dashboard: the decision as a table, and the real sockets that it uses."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from walkit.views.page import (
    DESCRIPTORS,
    Sockets,
    is_loopback,
    listens_elsewhere,
    sockets_of_this_process,
    why_refused,
)

EVERYWHERE, HERE = ("0.0.0.0", "::"), ("127.0.0.1", "::1")
PLAIN, NAMED = ["panel", "serve", "app.py"], ["panel", "serve", "--address", "0.0.0.0", "app.py"]
NEAR, FAR = ("127.0.0.1",), ("127.0.0.1", "192.0.2.7")


@pytest.mark.parametrize(
    ("address", "near"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.7", False),
        ("::ffff:192.0.2.7", False),
        ("fe80::1%eth0", False),
        ("", False),
        ("localhost.example.org", False),
    ],
)
def test_what_reaches_this_machine_alone(address: str, near: bool) -> None:
    """Addresses of both families, mapped ones, and other text."""
    assert is_loopback(address) is near


@pytest.mark.parametrize(
    ("command", "elsewhere"),
    [
        (PLAIN, False),
        (NAMED, True),
        (["panel", "serve", "--address=192.0.2.7", "app.py"], True),
        (["panel", "serve", "--address", "localhost"], False),
        (["panel", "serve", "--address=127.0.0.1"], False),
        (["panel", "serve", "--address"], True),
    ],
)
def test_an_address_on_the_command_line(command: list[str], elsewhere: bool) -> None:
    """Both forms of the option, none, and one without a value."""
    assert listens_elsewhere(command) is elsewhere


@pytest.mark.parametrize(
    ("listening", "peers", "command", "user", "detail"),
    [
        (HERE, NEAR, PLAIN, None, None),
        ((), (), PLAIN, None, None),
        (EVERYWHERE, NEAR, PLAIN, None, None),
        (EVERYWHERE, FAR, PLAIN, None, "192.0.2.7 is connected"),
        (EVERYWHERE, ("",), PLAIN, None, "an address that is not known is connected"),
        (EVERYWHERE, NEAR, NAMED, None, "listens on 0.0.0.0"),
        (EVERYWHERE, FAR, NAMED, None, "listens on 0.0.0.0"),
        (EVERYWHERE, FAR, NAMED, "guest", "listens on 0.0.0.0"),
        (EVERYWHERE, FAR, NAMED, "", "listens on 0.0.0.0"),
        (EVERYWHERE, FAR, NAMED, "ann", None),
        (EVERYWHERE, FAR, PLAIN, "ann", None),
    ],
)
def test_who_is_refused(
    listening: tuple[str, ...],
    peers: tuple[str, ...],
    command: list[str],
    user: str | None,
    detail: str | None,
) -> None:
    """Where it listens, who is connected, what the command named, and whether a password was given."""
    said = why_refused(Sockets(listening, peers), command, user)
    assert said is None if detail is None else said is not None and detail in said


def test_sockets_are_found_and_left_as_they_are() -> None:
    """A listener and a connection to it, made here: both are told, and both still work afterwards."""
    before = sockets_of_this_process()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert "127.0.0.1" in sockets_of_this_process().listening
        with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as taken:
            found = sockets_of_this_process()
            assert found.peers.count("127.0.0.1") == before.peers.count("127.0.0.1") + 1
            client.sendall(b"still there")
            assert taken.recv(20) == b"still there"
    assert sockets_of_this_process() == before


def test_asking_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """Files, a pipe and a socket are open: after each of five questions as many descriptors are open as before."""
    ends = os.pipe()
    try:
        with (tmp_path / "file").open("wb"), socket.create_server(("127.0.0.1", 0)):
            before = len(os.listdir(DESCRIPTORS))
            for _ in range(5):
                sockets_of_this_process()
                assert len(os.listdir(DESCRIPTORS)) == before
    finally:
        for end in ends:
            os.close(end)
