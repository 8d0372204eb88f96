"""Serving a log to replicas over gRPC: the shell around one publisher core for each replica."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from walkit.errors import GapError, LogClosedError, OptionsError, WalkitError
from walkit.log.holds import Hold
from walkit.log.logreader import LogReader
from walkit.log.opening import Place
from walkit.log.report import report_html
from walkit.log.wal import WriteAheadLog
from walkit.replication.messages import FromSubscriber, Hello, Refusal
from walkit.replication.publisher import SILENCE_MS, Publisher
from walkit.replication.source import FrameReader, source_of, standing_of
from walkit.replication.steps import End, MoveHold, PublisherStep, Read, Send
from walkit.replication.transport import (
    SERVER_OPTIONS,
    DaemonExecutor,
    check_token,
    grpc,
    refuse_tls,
    same_token,
)
from walkit.replication.wire import METHOD, WireError, decode_from_subscriber, encode_from_publisher
from walkit.store import Store
from walkit.threads import Bell

POLL_S = 0.005
"""How often a session looks whether more is durable, where nobody tells it."""
REPLICAS_MAX = 32
HOLD_PREFIX = "replica "


def now_ms() -> float:
    """Return the milliseconds of the monotonic clock."""
    return time.monotonic() * 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowerStatus:
    """One replica as its primary sees it. LSNs; bytes that were sent and not acknowledged."""

    name: str
    acked_lsn: int
    in_flight_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PrimaryStatus:
    """What a primary serves, and to whom. `durable_lsn` is how far replicas can come now."""

    address: str
    durable_lsn: int
    durable_position: int
    followers: tuple[FollowerStatus, ...]

    def _repr_html_(self) -> str:
        rows = [("durable LSN", f"{self.durable_lsn:,}"), ("replicas", f"{len(self.followers):,}")]
        rows += [
            (f.name, f"acknowledged LSN {f.acked_lsn:,}, {f.in_flight_bytes:,} bytes in flight")
            for f in self.followers
        ]
        return report_html(f"primary at {self.address or 'no address yet'}", rows)


class Primary:
    """Serves the durable frames of a log to any number of replicas. A context manager. Safe from any thread.

    `source` is an open log or Store, or a LogReader, path or storage: then the durable prefix of a log that another
    process may be writing. An open log gets a hold for each replica, so that trimming does not outrun it; when a
    replica goes away, its hold stands until its lease is over. With `token` only replicas that send the same
    one are served (in the clear: over a network it needs a tunnel).

    OptionsError for `tls` (not there yet), for a log of durability "none", and for an address that cannot be had.
    """

    def __init__(
        self,
        source: WriteAheadLog | Store | LogReader | Place,
        listen: str = "127.0.0.1:0",
        tls: Any = None,
        token: str | None = None,
        *,
        publisher: Callable[[], Publisher] = Publisher,
    ) -> None:
        refuse_tls(tls)
        self.source = source_of(source)
        self._listen = listen
        self._token = check_token(token)
        self._publisher = publisher
        self._server: Any = None
        self._address = ""
        self._sessions: set[_Session] = set()
        self._lock = threading.Lock()

    def start(self) -> Self:
        """Begin to serve; returns this primary. Starting twice is an OptionsError."""
        if self._server is not None:
            raise OptionsError(f"this primary serves at {self._address} already", option="listen")
        server = grpc.server(DaemonExecutor(), options=SERVER_OPTIONS, maximum_concurrent_rpcs=REPLICAS_MAX)
        _, service, method = METHOD.split("/")
        follow = grpc.stream_stream_rpc_method_handler(self._follow)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: follow}),))
        try:
            port = server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise OptionsError(
                f"cannot listen at {self._listen}: {error}", option="listen", wanted=self._listen
            ) from error
        server.start()
        self._server = server
        self._address = f"{self._listen.rpartition(':')[0]}:{port}"
        return self

    @property
    def address(self) -> str:
        """HOST:PORT that replicas connect to; "" before `start`."""
        return self._address

    def status(self) -> PrimaryStatus:
        """Return what is served, and how far each connected replica is."""
        lsn, position = self.source.durable()
        with self._lock:
            cores = [s.core for s in self._sessions]
        return PrimaryStatus(
            address=self._address,
            durable_lsn=lsn,
            durable_position=position,
            followers=tuple(
                FollowerStatus(name=c.name, acked_lsn=c.acked.last_lsn, in_flight_bytes=c.in_flight_bytes)
                for c in cores
                if c.state == "streaming"
            ),
        )

    def stop(self) -> None:
        """End every session and free the address. The log stays open. Stopping twice does nothing."""
        server, self._server = self._server, None
        if server is None:
            return
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.stop()
        server.stop(grace=1.0).wait()

    def __enter__(self) -> Self:
        return self if self._server is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Primary {self._address or 'not started'}: {len(self._sessions)} sessions>"

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    def _follow(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """One call: one session with one replica."""
        if self._token is not None and not same_token(self._token, context.invocation_metadata()):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is missing, or another one")
        session = _Session(self, self._publisher())
        with self._lock:
            self._sessions.add(session)
        try:
            context.add_callback(session.hang_up)
            threading.Thread(
                target=session.listen, args=(requests,), name="walkit-publisher-ear", daemon=True
            ).start()
            yield from session.run()
        finally:
            session.close()
            with self._lock:
                self._sessions.discard(session)


class _Session:
    """Runs one publisher core: what the replica says comes by one thread, everything else happens on another."""

    def __init__(self, primary: Primary, core: Publisher) -> None:
        self.core = core
        self._source = primary.source
        self._reader = FrameReader(primary.source)
        self._inbox: deque[FromSubscriber | WireError] = deque()
        self._wake = Bell()
        self._gone = False
        self._stopping = False
        self._hold: Hold | None = None
        self._unwatch = primary.source.watch(self._wake.set)

    # -- other threads

    def listen(self, requests: Iterator[bytes]) -> None:
        """Take in what the replica says, until the call ends."""
        try:
            for data in requests:
                try:
                    self._inbox.append(decode_from_subscriber(data))
                except WireError as error:
                    self._inbox.append(error)
                self._wake.set()
        except grpc.RpcError:
            pass  # the call is over; `hang_up` says so
        self.hang_up()

    def hang_up(self) -> None:
        """The call is over."""
        self._gone = True
        self._wake.set()

    def stop(self) -> None:
        """The primary stops serving."""
        self._stopping = True
        self._wake.set()

    # -- the session's own thread

    def run(self) -> Iterator[bytes]:
        """Yield messages to the replica until the session is over."""
        began_ms = now_ms()
        steps: deque[PublisherStep] = deque()
        while not self._gone:
            self._wake.clear()
            while self._inbox and not steps:
                steps.extend(self._heard(self._inbox.popleft()))
            if self._stopping:
                steps.extend(
                    self.core.refuse(Refusal(reason="closed", message="the primary stops"), now_ms())
                )
            if not steps:
                steps.extend(self._look())
            if not steps and self.core.state == "waiting" and now_ms() - began_ms > SILENCE_MS:
                return
            if not steps:
                self._wake.wait(POLL_S)
            while steps:
                step = steps.popleft()
                if isinstance(step, Send):
                    yield encode_from_publisher(step.message)
                elif isinstance(step, End):
                    return
                else:
                    steps.extend(self._do(step))

    def _heard(self, message: FromSubscriber | WireError) -> list[PublisherStep]:
        if isinstance(message, WireError):
            return self.core.refuse(Refusal(reason="protocol", message=str(message)), now_ms())
        if not isinstance(message, Hello) or self.core.state != "waiting":
            return self.core.receive(message, now_ms())
        try:
            return self.core.hello(message, standing_of(self._source, message), now_ms())
        except WalkitError as error:
            return self._failed(error)

    def _look(self) -> list[PublisherStep]:
        """Nothing is to be done: has the source moved, or has time passed?"""
        try:
            lsn, position = self._source.durable()
        except WalkitError as error:
            return self._failed(error)
        at = now_ms()
        return self.core.source_moved(lsn, position, at) or self.core.tick(at)

    def _do(self, step: PublisherStep) -> list[PublisherStep]:
        try:
            if isinstance(step, Read):
                run = self._reader.read(step.after, step.limit_bytes)
                return self.core.frames(run, self._reader.lineage(), now_ms())
            if isinstance(step, MoveHold):
                self._move_hold(step.first_lsn)
        except WalkitError as error:
            return self._failed(error)
        return []

    def _move_hold(self, first_lsn: int) -> None:
        log = self._source.log
        if log is None or log.closed:
            return
        if self._hold is None:
            self._hold = log.hold(HOLD_PREFIX + self.core.name, first_lsn)
        else:
            self._hold.move(first_lsn)

    def _failed(self, error: WalkitError) -> list[PublisherStep]:
        if isinstance(error, GapError):
            refusal = Refusal(reason="gap", message=str(error), lsn=error.wanted, other_lsn=error.oldest)
        else:
            reason = "closed" if isinstance(error, LogClosedError) else "damage"
            refusal = Refusal(reason=reason, message=f"{type(error).__name__}: {error}")
        return self.core.refuse(refusal, now_ms())

    def close(self) -> None:
        """Let go of files and observer; the hold stands until its lease is over."""
        self._unwatch()
        self._reader.close()
        if self._hold is not None:
            with suppress(
                WalkitError
            ):  # the log is closing, or its disk is gone: the claim stands as it was saved
                self._hold.leave()
