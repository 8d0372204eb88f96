"""A TCP proxy between replica and primary, which does to the bytes what a network can do to them."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class TcpProxy:
    """Passes bytes on in both directions. `trouble` sets their fate from now on.

    "": nothing; "flip": one bit of each piece, with some chance, is turned over; "hole": they disappear, and the
    connection stays.
    """

    def __init__(
        self, target: str, *, trouble: str = "", seed: int = 0, cut_each_after: int | None = None
    ) -> None:
        self._random = random.Random(seed)
        self.lead_to(target)
        self.trouble = trouble
        self.connections = self.flipped = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.answers_flow = threading.Event()
        """Cleared: what the target sends is held back, and passed on once it is set again."""
        self.answers_flow.set()
        self.hold_after = b""
        """Where a request holds these bytes, the answers are held back from then on."""
        self._cut_each_after = cut_each_after
        """So many bytes are answered in each connection, then it ends; None for no end."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, target: str) -> None:
        """Connect to this address from now on; connections that there are stay."""
        host, _, port = target.rpartition(":")
        self._target = host, int(port)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                with self._lock:
                    self.connections += 1
                    self._open |= {near, far}
                for source, sink, flow in ((near, far, None), (far, near, self.answers_flow)):
                    threading.Thread(target=self._pass_on, args=(source, sink, flow), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, flow: threading.Event | None) -> None:
        left = self._cut_each_after
        with suppress(OSError):
            while data := source.recv(4096):
                if flow is not None:
                    flow.wait()
                elif self.hold_after and self.hold_after in data:
                    self.answers_flow.clear()
                if flow is not None and left is not None:
                    left -= len(data)
                    if left < 0:
                        break
                if self.trouble == "hole":
                    continue
                sink.sendall(self._spoiled(data) if self.trouble == "flip" else data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _spoiled(self, data: bytes) -> bytes:
        with self._lock:
            if self._random.randrange(4):
                return data
            self.flipped += 1
            at, bit = self._random.randrange(len(data)), self._random.randrange(8)
        return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]

    def cut(self) -> None:
        """End all connections; new ones are taken."""
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        """End all connections, and take no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.answers_flow.set()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
