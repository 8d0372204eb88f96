"""A client and a primary as processes, with a proxy between them that flips bits of their HTTP/2.

gRPC's core ends the process of a client that gets a GOAWAY with an error code that it does not know ("UNREACHABLE CODE"
in http2_status.h, grpcio 1.85.1), and flipped bits make such frames. So neither end is in the process of the test: an
abort is counted, the end is started again, and what is on the disk has to be right all the same.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.replication.blocking_callers import WAIT_S, until
from tests.replication.processes import Processes, free_address, is_open, processes
from tests.replication.proxy import TcpProxy
from walkit.errors import CorruptionError, GapError, LogNotFoundError, StorageError
from walkit.replication.logs.source import StoredSource
from walkit.storage import FileStorage


class Flipping:
    """A primary of a log in a process of its own, and the proxy before it."""

    def __init__(self, started: Processes, log: Path, seed: int) -> None:
        self.processes, self._log = started, log
        self._address = free_address()
        self._server = self._serve()
        self.proxy = TcpProxy(self._address, seed=seed)
        self.aborts = 0
        """How often gRPC has ended one of the processes."""

    def _serve(self) -> int:
        pid = self.processes.start("serve", str(self._log), self._address)
        until(lambda: is_open(self._address), "the primary")
        return pid

    def keep_up(self) -> None:
        """Start the primary again where gRPC has ended it."""
        if self.processes.has_ended(self._server, signal.SIGABRT):
            self.aborts += 1
            self._server = self._serve()

    @contextmanager
    def client(self, role: str, *how: object) -> Iterator[Callable[[Callable[[], bool], str], None]]:
        """A client that lasts, at the proxy; gives what waits until something holds. At the end it ends in order."""
        pid = self.processes.start(role, *how)

        def lasts_until(holds: Callable[[], bool], what: str) -> None:
            nonlocal pid
            deadline = time.monotonic() + WAIT_S
            while not holds():
                assert time.monotonic() < deadline, f"waited {WAIT_S} s for: {what}"
                self.keep_up()
                if self.processes.has_ended(pid, signal.SIGABRT):
                    self.aborts += 1
                    pid = self.processes.start(role, *how)
                time.sleep(0.005)

        yield lasts_until
        self.processes.end(pid)


@contextmanager
def flipping(log: Path, seed: int) -> Iterator[Flipping]:
    """Serve a log from a process, behind a proxy in this one whose `trouble` a test sets."""
    with processes() as started:
        between = Flipping(started, log, seed)
        with between.proxy:
            yield between


def durable_lsn(folder: Path) -> int:
    """The last LSN that a replica has published; 0 where it has nothing yet, or its log is being replaced."""
    try:
        return StoredSource(FileStorage(str(folder))).durable()[0]
    except (CorruptionError, GapError, LogNotFoundError, StorageError):
        return 0
