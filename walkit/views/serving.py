"""Serving the dashboard from this process, wherever walkit is installed."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket as socketlib
from collections.abc import Callable, Iterable
from errno import EADDRINUSE

from panel.io.server import Server, get_server
from tornado.ioloop import IOLoop

from walkit.errors import StorageError
from walkit.views.base import pn
from walkit.views.opened_paths import given
from walkit.views.page import app

LOOPBACK = "127.0.0.1"
TRIES = 5
"""Ports that are tried where a free one is wanted and another program is faster."""


def serve(
    paths: Iterable[str] = (),
    *,
    port: int = 0,
    socket: str | None = None,
    ready: Callable[[str], object] = print,
) -> None:
    """Serve the dashboard on these logs and saved Runs until Ctrl-C or SIGTERM; blocks the main thread.

    On loopback, at `port` (0: a free one); or, with `socket`, on a Unix socket at that path for a proxy, which has to
    decide who may come in and from which pages: every process that can open it is served. `ready` is called once with
    the address, when the server listens. Each browser window has a session of its own; all are closed at the end.

    Raises the errors of `given`, before anything is served, and StorageError if the port or the path is taken.
    """
    chosen = tuple(what.path for what in given(paths))
    if socket is None:
        _free_port(port)
    asyncio.set_event_loop(asyncio.new_event_loop())
    # It warns of the origins that the proxy has checked.
    logging.getLogger("bokeh.server.util").setLevel(logging.ERROR)
    server = _listening(lambda: app(chosen), port, socket)
    server.start()
    ready(f"http://{LOOPBACK}:{server.port}/" if socket is None else socket)
    server.run_until_shutdown()


def _listening(page: Callable[[], pn.Template], port: int, socket: str | None) -> Server:
    tries = TRIES if port == 0 and socket is None else 1
    interrupt = signal.getsignal(signal.SIGINT)
    for left in reversed(range(tries)):
        chosen = _free_port(port) if socket is None else 0
        try:
            return get_server(
                page,
                port=chosen,
                title="walkit",
                loop=IOLoop.current(),
                address=LOOPBACK if socket is None else None,
                # The pages whose websockets are taken. A proxy has checked that already, and knows its own address.
                websocket_origin=["*"]
                if socket is not None
                else [f"{h}:{chosen}" for h in (LOOPBACK, "localhost")],
                unix_socket=socket,
            )
        except OSError as error:
            if left and error.errno == EADDRINUSE:
                continue
            raise _unserved(socket or f"{LOOPBACK}:{chosen}", error) from error
        finally:
            if interrupt == signal.SIG_IGN:  # Panel has set a handler
                signal.signal(signal.SIGINT, interrupt)
    raise AssertionError("there is at least one try")


def _free_port(port: int) -> int:
    """Return a port that is free just now, `port` unless that is 0: the origins name it before the server listens.

    StorageError if `port` is taken.
    """
    with socketlib.socket() as found:
        found.setsockopt(socketlib.SOL_SOCKET, socketlib.SO_REUSEADDR, 1)  # as the server does
        try:
            found.bind((LOOPBACK, port))
        except OSError as error:
            raise _unserved(f"{LOOPBACK}:{port}", error) from error
        return int(found.getsockname()[1])


def _unserved(where: str, error: OSError) -> StorageError:
    return StorageError(f"nothing can be served at {where}: {error.strerror or error}", errno=error.errno)
