"""A TCP link between replica and primary that also does to the bytes what a network can do to them."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from typing import Self

from walkit.models.tcp_link import TcpLink


class TcpProxy(TcpLink):
    """Passes bytes on in both directions. `trouble` sets their fate from now on.

    "": nothing; "flip": one bit of each piece, with some chance, is turned over; "hole": they disappear, and the
    connection stays.
    """

    def __init__(
        self, target: str, *, trouble: str = "", seed: int = 0, cut_each_after: int | None = None
    ) -> None:
        self._random, self.trouble = random.Random(seed), trouble
        self.connections = self.flipped = 0
        self.answers_flow = threading.Event()
        """Cleared: what the target sends is held back, and passed on once it is set again."""
        self.answers_flow.set()
        self.hold_after = b""
        """Where a request holds these bytes, the answers are held back from then on."""
        self._cut_each_after = cut_each_after
        """So many bytes are answered in each connection, then it ends; None for no end."""
        super().__init__(target)

    def _connected(self, near: socket.socket) -> bool:
        self.connections += 1
        return super()._connected(near)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        left = self._cut_each_after
        with suppress(OSError):
            answers = source.getsockname()[1] != int(self.address.rpartition(":")[2])
            while data := source.recv(4096):
                if answers:
                    self.answers_flow.wait()
                elif self.hold_after and self.hold_after in data:
                    self.answers_flow.clear()
                if answers and left is not None:
                    left -= len(data)
                    if left < 0:
                        break
                if self.trouble != "hole":
                    sink.sendall(self._spoiled(data) if self.trouble == "flip" else data)
        self._end(source, sink)

    def _spoiled(self, data: bytes) -> bytes:
        with self._lock:
            if self._random.randrange(4):
                return data
            self.flipped += 1
            at, bit = self._random.randrange(len(data)), self._random.randrange(8)
        return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]

    def cut(self) -> None:
        """End all connections; new ones are taken."""
        self._disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.answers_flow.set()
        self.close()
