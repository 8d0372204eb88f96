"""A link that is cut, slowed down and healed does so to real connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.threads import wait_until
from walkit.models.tcp_link import CONNECTIONS_MAX, TcpLink

WAIT_S = 20.0


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(one: socket.socket) -> None:
        with one:
            while data := one.recv(65536):
                one.sendall(data)

    def accept() -> None:
        try:
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
        except OSError:
            return

    threading.Thread(target=accept, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.close()


def connected(link: TcpLink) -> socket.socket:
    """A new connection by the link."""
    host, _, port = link.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def ended(one: socket.socket) -> bool:
    """Whether the connection is over."""
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True
    finally:
        one.close()


def test_what_is_sent_comes_back_until_the_link_is_cut(echo: str) -> None:
    """Open: bytes pass; cut: the connection and a new one end; healed: a new one passes bytes again."""
    link = TcpLink(echo)
    first = connected(link)
    first.sendall(b"hello")
    assert first.recv(5) == b"hello"
    wait_until(lambda: link.passed_bytes >= 5, "the count, which comes after the bytes")
    link.set("cut")
    assert ended(first) and ended(connected(link))
    link.set("open")
    with connected(link) as again:
        again.sendall(b"back")
        assert again.recv(4) == b"back"
    link.close()
    link.close()
    with pytest.raises(OSError, match="refused"):
        connected(link)


def test_a_slow_link_takes_its_time_and_hurries_when_healed(echo: str) -> None:
    """Send 24 kB at 16 kB a second each way: not there within half a second, and all of it after it is healed."""
    link = TcpLink(echo, slow_bytes_per_s=16_000)
    link.set("slow")
    with connected(link) as one:
        began = time.monotonic()
        sender = threading.Thread(target=one.sendall, args=(bytes(24_000),), daemon=True)
        sender.start()
        got = 0
        while time.monotonic() - began < 0.5:
            got += len(one.recv(24_000))
        assert 0 < got < 24_000
        link.set("open")
        while got < 24_000:
            got += len(one.recv(24_000))
        sender.join()
    link.close()


def test_a_link_connects_to_its_target_up_to_its_limit(echo: str) -> None:
    """A target without a server: the connection ends; another target: it passes; over the limit: it ends."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        nowhere = f"127.0.0.1:{unused.getsockname()[1]}"
    link = TcpLink(nowhere)
    assert ended(connected(link))
    link.retarget(echo)
    many = [connected(link) for _ in range(CONNECTIONS_MAX)]
    for one in many:
        one.sendall(b"x")
        assert one.recv(1) == b"x"
    assert ended(connected(link))
    link.close()
    assert all(ended(one) for one in many)
