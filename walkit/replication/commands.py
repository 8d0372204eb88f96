"""`walkit serve` and `walkit follow`: handlers that run until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from walkit._internal.threads import Bell
from walkit.replication.delta.reader import DeltaReader
from walkit.replication.primary.server import Primary
from walkit.replication.replica.follower import Replica
from walkit.replication.transport.tls import ClientTLS, ServerTLS
from walkit.storage.address import Place

REPORT_S = 1.0
REMIND_S = 30.0
"""A replica that does not advance is reported again after this time."""
FINE, FAILED = 0, 3


def serve(
    log: Place,
    listen: str,
    *,
    token: str | None = None,
    tls: ServerTLS | None = None,
    insecure: bool = False,
) -> int:
    """Serve the durable prefix of a log that another process may be writing; says `serving LOG at HOST:PORT`."""
    with (
        _until_told() as over,
        Primary(log, listen, tls, token, insecure=insecure) as primary,
    ):
        _say(f"serving {log} at {primary.address}")
        shown = ("serving", "")
        while not over.wait(REPORT_S):
            status = primary.status()
            if (status.state, status.why) != shown:
                shown = (status.state, status.why)
                _say(f"{status.state}: {status.why}" if status.why else status.state)
    return FINE


def follow(
    address: str,
    directory: Place,
    *,
    token: str | None = None,
    tls: ClientTLS | None = None,
    codec: str | None = "zstd",
    new_identity: bool = False,
    checkpoint_every: int | None = None,
    rewind: bool = False,
    force_rewind: bool = False,
    insecure: bool = False,
) -> int:
    """Follow a primary into a folder, printing its status when that changes. 3 where replication has failed.

    A line says the state, how far the replica is and, where it does not advance, why and since when.
    """
    with (
        _until_told() as over,
        Replica(
            directory,
            address,
            codec,
            tls=tls,
            token=token,
            new_identity=new_identity,
            checkpoint_every=checkpoint_every,
            rewind=rewind or force_rewind,
            force_rewind=force_rewind,
            insecure=insecure,
        ) as replica,
    ):
        _say(f"following {address} into {directory}")
        shown: object = None
        shown_at = 0.0
        while True:
            ending = over.wait(0 if shown is None else REPORT_S)
            status = replica.status()
            current = (status.state, status.lsn, status.reason, bool(status.why))
            if current != shown or (status.why and time.monotonic() - shown_at >= REMIND_S):
                shown, shown_at = current, time.monotonic()
                _say(status.line())
            if status.state == "failed":
                print(f"walkit follow: {status.error}", file=sys.stderr)
                return FAILED
            if ending:
                return FINE


def follow_delta(
    log: Place,
    address: str,
    directory: Place,
    *,
    token: str | None = None,
    tls: ClientTLS | None = None,
    insecure: bool = False,
) -> int:
    """Follow a log of this machine by delta poll, with checkpoints in a folder, printing the status when it changes.

    3 where the reader has failed.
    """
    with (
        _until_told() as over,
        DeltaReader(log, address, checkpoint=directory, token=token, tls=tls, insecure=insecure) as reader,
    ):
        _say(f"following {log} by polls of {address}, checkpoints in {directory}")
        shown: object = None
        while True:
            ending = over.wait(0 if shown is None else REPORT_S)
            status = reader.status()
            current = (status.state, status.applied_lsn, status.error)
            if current != shown:
                shown = current
                _say(status.line())
            if status.error is not None:
                print(f"walkit follow: {status.error}", file=sys.stderr)
                return FAILED
            if ending:
                return FINE


def _say(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"  # of a name of a folder it may not have each character
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


@contextmanager
def _until_told() -> Iterator[Bell]:
    """Yield a bell that Ctrl-C or SIGTERM sets; handlers are put back at the end. An ignored signal stays ignored.

    The handler runs in the midst of the waiting: an Event, whose lock the thread may hold then, would wait for itself.
    """
    over = Bell()

    def end(number: int, frame: Any) -> None:
        over.set()

    on_main = threading.current_thread() is threading.main_thread()
    wanted = [s for s in (signal.SIGINT, signal.SIGTERM) if on_main and signal.getsignal(s) != signal.SIG_IGN]
    before = {s: signal.signal(s, end) for s in wanted}
    try:
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
