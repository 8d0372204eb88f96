"""`walkit serve` and `walkit follow`: handlers that run until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TextIO, TypeAlias

from walkit._internal.arguments import refuse
from walkit._internal.threads import LogThread, WakeEvent
from walkit.errors import CorruptionError, LogNotFoundError
from walkit.metrics import prometheus_text
from walkit.replication.core.backoff import Backoff
from walkit.replication.delta.reader import DeltaReader
from walkit.replication.delta.status import DeltaReaderStatus
from walkit.replication.primary.server import Primary
from walkit.replication.replica.follower import Replica
from walkit.replication.replica.status import ReplicaStatus
from walkit.replication.transport.tls import ClientTLS, ServerTLS
from walkit.storage.address import AnyPlace, Place

REPORT_S = 1.0
REMIND_S = 30.0
"""A replica that does not advance is reported again after this time."""
FINE, FAILED = 0, 3
Show: TypeAlias = Callable[[ReplicaStatus | DeltaReaderStatus], str]
"""Makes one line of a status."""


def serve(
    log: Place,
    listen: str,
    *,
    token: str | None = None,
    tls: ServerTLS | None = None,
    insecure: bool = False,
    metrics_port: int | None = None,
) -> int:
    """Serve the durable prefix of a log that another process may be writing; says `serving LOG at HOST:PORT`.

    If the log is not there yet, or its storage goes away later, it prints that and waits. Damage ends it. With
    `metrics_port` this machine also gets its metrics there, as Prometheus reads them.
    """
    with _until_stopped() as over, ExitStack() as stack:
        primary = _awaited(log, lambda: Primary(log, listen, tls, token, insecure=insecure), over)
        if primary is None:
            return FINE
        stack.enter_context(primary)
        stack.enter_context(_metrics_served(primary, metrics_port))
        _print_line(f"serving {log} at {primary.address}")
        shown = ("serving", "")
        while not over.wait(REPORT_S):
            status = primary.status()
            if (status.state, status.detail) != shown:
                shown = (status.state, status.detail)
                _print_line(f"{status.state}: {status.detail}" if status.detail else status.state)
            if isinstance(primary.error, CorruptionError):
                raise primary.error
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
    payload_log: AnyPlace | None = None,
    show: Show | None = None,
) -> int:
    """Follow a primary into a folder, and print the status when it changes. Return 3 if replication has failed.

    A line has the state, the LSN reached and, if the replica does not advance, why and since when. With `show`, it is
    the text of `show`, and text for people goes to standard error.
    """
    with (
        _until_stopped() as over,
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
            payload_log=payload_log,
        ) as replica,
    ):
        return _report(over, replica, f"following {address} into {directory}", show)


def follow_delta(
    log: Place,
    address: str,
    directory: Place,
    *,
    token: str | None = None,
    tls: ClientTLS | None = None,
    insecure: bool = False,
    show: Show | None = None,
) -> int:
    """Follow a log of this machine by delta poll, with checkpoints in a folder, printing the status when it changes.

    3 if the reader has failed. `show` is as for `follow`.
    """
    with (
        _until_stopped() as over,
        DeltaReader(log, address, checkpoint=directory, token=token, tls=tls, insecure=insecure) as reader,
    ):
        return _report(
            over, reader, f"following {log} by polls of {address}, checkpoints in {directory}", show
        )


def _awaited(log: Place, opened: Callable[[], Primary], over: WakeEvent) -> Primary | None:
    """Return the primary of a log as soon as there is one; None if a signal came first."""
    pauses = Backoff()
    while True:
        try:
            return opened()
        except LogNotFoundError as error:
            if not pauses.failures:
                _print_line(f"absent: {error}; waiting for {log}")
        if over.wait(pauses.next_ms() / 1000):
            return None


def _report(over: WakeEvent, peer: Replica | DeltaReader, title: str, show: Show | None) -> int:
    """Print a peer's status, until a signal ends it or it fails."""
    _print_line(title, sys.stdout if show is None else sys.stderr)
    shown: object = None
    shown_at = 0.0
    while True:
        ending = over.wait(0 if shown is None else REPORT_S)
        status = peer.status()
        stuck = ""
        current: tuple[object, ...] = (status.state, status.applied_lsn, status.error)
        if isinstance(status, ReplicaStatus):
            stuck, current = status.detail, (status.state, status.lsn, status.reason, bool(status.detail))
        if current != shown or (stuck and time.monotonic() - shown_at >= REMIND_S):
            shown, shown_at = current, time.monotonic()
            _print_line(status.line() if show is None else show(status))
        if status.state == "failed":
            print(f"walkit follow: {status.error}", file=sys.stderr)
            return FAILED
        if ending:
            return FINE


@contextmanager
def _metrics_served(primary: Primary, port: int | None) -> Iterator[None]:
    """Serve a primary's metrics to this machine at `port`, if it is given. OptionsError for one that is taken."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = prometheus_text([({}, primary.statistics()), *primary.status().metrics()]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing on standard error."""

    if port is None:
        yield
        return
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        refuse("metrics_port", port, error.strerror or str(error))
    LogThread(target=server.serve_forever, name="walkit-metrics", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _print_line(text: str, where: TextIO | None = None) -> None:
    where = where or sys.stdout
    encoding = where.encoding or "utf-8"  # of a name of a folder it may not have each character
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=where, flush=True)


@contextmanager
def _until_stopped() -> Iterator[WakeEvent]:
    """Yield an event that Ctrl-C or SIGTERM sets; handlers are put back at the end. An ignored signal stays ignored.

    The handler runs during the wait: an Event, whose lock the thread may then hold, would deadlock.
    """
    over = WakeEvent()

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
