"""Sessions that come and go leave nothing in the server: no descriptor, no thread, no folder, no memory."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from unittest.mock import create_autospec

import psutil
import pytest
from bokeh.server.connection import ServerConnection
from bokeh.server.session import ServerSession
from tornado.websocket import WebSocketClosedError, websocket_connect

from scripts.browsing import Server
from walkit.views.base import is_news

GUARD_S = 90.0


class Holds(NamedTuple):
    """The resources of a server without a session."""

    descriptors: int
    threads: int
    rss_mib: float


def visit(url: str) -> None:
    """Load the page, connect its websocket as a browser does, and close it."""
    with urllib.request.urlopen(url, timeout=GUARD_S) as answer:
        found = re.search(r'"token":"([^"]+)"', answer.read().decode())
    assert found is not None

    async def connect(token: str) -> None:
        socket = await websocket_connect(url.replace("http", "ws") + "/ws", subprotocols=["bokeh", token])
        assert "ACK" in str(await socket.read_message())
        socket.close()
        while await socket.read_message() is not None:
            pass  # until the server has closed its end too

    asyncio.run(connect(found[1]))


def held_by(server: Server) -> Holds:
    """The server's resources once its last session has ended."""
    deadline = time.monotonic() + GUARD_S
    process = psutil.Process(server.process.pid)
    while server.folders() or any(c.status == psutil.CONN_ESTABLISHED for c in process.net_connections()):
        assert time.monotonic() < deadline, f"sessions are left: {server.folders()}"
        time.sleep(0.1)
    return Holds(process.num_fds(), process.num_threads(), process.memory_info().rss / 2**20)


@pytest.mark.parametrize("sessions", [6, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_session_that_has_ended_leaves_nothing(server: Server, sessions: int) -> None:
    """Sessions, and as many again: descriptors and threads do not grow, and memory is flat."""
    held = []
    # On a thread: where a test before has used the browser, this one has an event loop of playwright's.
    with ThreadPoolExecutor(1) as another:
        for _ in range(2):  # after the first time what a server makes once has been made
            for _ in range(sessions):
                another.submit(visit, server.url).result(GUARD_S)
            held.append(held_by(server))
    before, after = held
    print(f"{sessions} sessions: {before}, as many again: {after}")
    assert after.descriptors <= before.descriptors
    assert after.threads <= before.threads
    assert after.rss_mib - before.rss_mib < 15


def test_a_closed_window_is_not_logged() -> None:
    """Records of a message to a closed window, and of one from it, are dropped from the server's log; others stay."""
    closed = ServerConnection(Any, Any, Any, create_autospec(ServerSession))  # type: ignore[arg-type]
    closed.detach_session()

    def record(error: Exception | None) -> logging.LogRecord:
        try:
            if isinstance(error, KeyError):
                _ = closed.session
            raise error or ValueError
        except Exception:
            told = sys.exc_info()
        return logging.LogRecord("asyncio", logging.ERROR, "", 0, "", None, told if error else None)

    assert not is_news(record(WebSocketClosedError()))
    assert not is_news(record(KeyError()))  # Bokeh raises its own error in its place
    assert is_news(record(AssertionError()))
    assert is_news(record(ValueError()))
    assert is_news(record(None))
