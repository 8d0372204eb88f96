"""A link between two processes that can be cut, healed and slowed down: a small TCP proxy on the loopback address."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Literal, TypeAlias

from walkit._internal.threads import EndingThread

LinkState: TypeAlias = Literal["open", "slow", "cut"]

PIECE_BYTES = 16 << 10
CONNECTIONS_MAX = 16
SLOW_BYTES_PER_S = 64 << 10
CONNECT_S = 2.0


class TcpLink:
    """Passes connections to `address` on to `target` ("HOST:PORT"), as its state allows. Safe from any thread.

    "open": at once; "slow": `slow_bytes_per_s` in each direction of each connection; "cut": connections are closed, and
    new ones too. It holds one piece of 16 KiB in each direction of at most 16 connections: who sends more waits.
    """

    def __init__(self, target: str, *, slow_bytes_per_s: int = SLOW_BYTES_PER_S) -> None:
        self.state: LinkState = "open"
        self.passed_bytes = 0
        """Bytes that were passed on, in both directions."""
        self._target, self._slow = target, slow_bytes_per_s
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._changed = threading.Event()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = EndingThread(target=self._accept, name="walkit-link", daemon=True)
        self._thread.start()

    @property
    def is_cut(self) -> bool:
        """Whether nothing passes now."""
        return self.state == "cut"

    def retarget(self, target: str) -> None:
        """Pass new connections to another address; those that are there stay."""
        self._target = target

    def set(self, state: LinkState) -> None:
        """Be in this state from now on."""
        self.state = state
        self._changed.set()  # a piece that waits on a slow link is passed on
        if state == "cut":
            self._disconnect()

    def close(self) -> None:
        """End all connections and free the address. Closing twice does nothing."""
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.set("cut")
        self._thread.join()

    def _disconnect(self) -> None:
        with self._lock:
            sockets, self._open = self._open, set()
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._closed:
                near, _ = self._listener.accept()
                if not self._connected(near):
                    near.close()

    def _connected(self, near: socket.socket) -> bool:
        """Join an accepted connection to a new one to the target; False if that cannot be, now."""
        if self.is_cut or len(self._open) >= 2 * CONNECTIONS_MAX:
            return False
        host, _, port = self._target.rpartition(":")
        try:
            far = socket.create_connection((host, int(port)), timeout=CONNECT_S)
        except OSError:
            return False
        far.settimeout(None)
        for one in (near, far):
            with suppress(OSError):  # a connection may be reset by now: its first read fails
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {near, far}
        for source, sink in ((near, far), (far, near)):
            threading.Thread(
                target=self._pass_on, args=(source, sink), name="walkit-link", daemon=True
            ).start()
        if self.is_cut:  # meanwhile
            self._disconnect()
        return True

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(PIECE_BYTES if self.state == "open" else self._slow // 16):
                if self.state == "slow":
                    self._changed.clear()
                    self._changed.wait(len(data) / self._slow)
                sink.sendall(data)
                self.passed_bytes += len(data)
        self._end(source, sink)

    def _end(self, *both: socket.socket) -> None:
        with self._lock:
            self._open.difference_update(both)
        for one in both:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
