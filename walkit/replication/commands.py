"""`walkit serve` and `walkit follow`: handlers that run until they are interrupted or told to end by SIGTERM."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from walkit.log.opening import Place
from walkit.replication.primary import Primary
from walkit.replication.replica import Replica
from walkit.threads import Bell

REPORT_S = 1.0
FINE, FAILED = 0, 3


def serve(log: Place, listen: str, *, token: str | None = None) -> int:
    """Serve the durable prefix of a log that another process may be writing; says `serving LOG at HOST:PORT`."""
    with _until_told() as over, Primary(log, listen, token=token) as primary:
        _say(f"serving {log} at {primary.address}")
        over.wait()
    return FINE


def follow(address: str, directory: Place, *, token: str | None = None) -> int:
    """Follow a primary into a folder, saying how it stands when that changes. 3 where replication has failed."""
    with _until_told() as over, Replica(directory, address, token=token) as replica:
        _say(f"following {address} into {directory}")
        told: object = None
        while True:
            status = replica.status()
            if (status.state, status.lsn) != told:
                told = status.state, status.lsn
                _say(
                    f"{status.state}: LSN {status.lsn:,} of {status.source_lsn:,}, lag {status.lag_ms:,.0f} ms"
                )
            if status.state == "failed":
                print(f"walkit follow: {status.error}", file=sys.stderr)
                return FAILED
            if over.wait(REPORT_S):
                return FINE


def _say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def _until_told() -> Iterator[Bell]:
    """Yield a bell that Ctrl-C or SIGTERM sets; handlers are put back at the end.

    The handler runs in the midst of the waiting: an Event, whose lock the thread may hold then, would wait for itself.
    """
    over = Bell()

    def end(number: int, frame: Any) -> None:
        over.set()

    on_main = threading.current_thread() is threading.main_thread()
    before = {s: signal.signal(s, end) for s in (signal.SIGINT, signal.SIGTERM)} if on_main else {}
    try:
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
