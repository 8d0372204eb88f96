"""Serving a log to replicas over gRPC: the shell around one publisher core for each replica."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from walkit._internal.arguments import check_whole, refuse
from walkit._internal.locks import once
from walkit._internal.text import counted
from walkit._internal.threads import LogThread, WakeEvent
from walkit.errors import WalkitError
from walkit.events import EventCallback, EventSink
from walkit.format.layout import CLAIMS_MAX
from walkit.log.wal import WriteAheadLog
from walkit.metrics import DeltaServedStatistics, TrafficStatistics
from walkit.read.claim import LEASE_S_DEFAULT
from walkit.read.reader import LogReader
from walkit.replication.core.absence import Absence
from walkit.replication.core.publisher import Publisher
from walkit.replication.delta.poll_server import DeltaOptions
from walkit.replication.delta.service import DeltaService
from walkit.replication.delta.wire import POLL_METHOD
from walkit.replication.logs.imported_log import ImportedLog
from walkit.replication.logs.source import ImportingReplica, StoredSource, source_of
from walkit.replication.primary.bootstrap_plan import KeptPlans, SnapshotChecks
from walkit.replication.primary.claims import ReplicaClaims, check_lease
from walkit.replication.primary.range_service import CALLS_MAX, FRAMES_METHOD, RangeService
from walkit.replication.primary.replica_acks import ACK_TIMEOUT_MS, OnAckTimeout, replica_acks_of
from walkit.replication.primary.session import Session
from walkit.replication.primary.shared_runs import SharedRuns
from walkit.replication.primary.status import PrimaryStatus, follower_status
from walkit.replication.primary.status_call import STATUS_METHOD, encode_status, with_claims
from walkit.replication.protocol.codecs import Traffic
from walkit.replication.protocol.wire import METHOD
from walkit.replication.transport.access import Authenticator, Serve, Tokens, tokens_of
from walkit.replication.transport.address import listen_address
from walkit.replication.transport.calls import WAITING_MAX, CallTable, SingleRequestCalls
from walkit.replication.transport.grpc_common import grpc, server_options
from walkit.replication.transport.threads import DaemonExecutor, now_ms
from walkit.replication.transport.tls import ServerTLS, server_credentials
from walkit.storage.address import AnyPlace
from walkit.store import Store

PLACES = 32
PLACES_MAX = 1024
HOLDS = 48
"""So many replicas may have a claim on the log: the other claims are for backups, delta readers and Spark."""
HOLDS_MAX = CLAIMS_MAX
ENDING_MAX = 16
"""Calls that have been given up and have not ended yet do not count against those that come."""
STALL_CHECK_S = 0.5


class Primary:
    """Serves the durable frames of a log to replicas. A context manager. Safe from any thread.

    `source` is an open log or Store; a Replica, or its log of now; or a LogReader, path or storage: then the
    durable prefix of a log that another process may be writing. Each log that a Replica has is served in turn.
    Either way each replica has a claim on the log from its first acknowledgement on, so that trimming does not
    outrun it; when a replica goes away, its claim remains for `lease_s` seconds. `places` replicas are served at a
    time, one session for each, and `holds` have a claim; one more is refused, and tries again. In a read-only folder
    replicas have no claims, and `status` shows that.

    With `ack_replicas` the log acknowledges an append when it is durable here and on so many replicas, from `start` on
    until `stop`; `source` is the log or Store itself. After `ack_timeout_ms` the append raises CommitFailedError, with
    the outcome unknown: the record stays, and counts as acknowledged once they have it. With
    `on_ack_timeout="continue"` it is acknowledged then, as all that follows, until so many have caught up.

    With `token`, or one of `tokens.read`, only replicas that send it are served; with `tls` nothing goes in the clear.
    Another address than loopback needs both, or `insecure=True`. Delta readers that share the log's
    storage are served too, as `delta` says: of a log that another process writes it reads the frames once for all.

    The states of sessions are events, sent to `events`, or without that callback to the log's own.

    OptionsError for files of `tls` that cannot be used, for a log of durability "none", for `ack_replicas` of another
    source or a log of `ack_order="completion"`, for an address off loopback without TLS and token, and for one that
    cannot be had.
    """

    def __init__(
        self,
        source: WriteAheadLog | Store | ImportedLog | ImportingReplica | LogReader | AnyPlace,
        listen: str = "127.0.0.1:0",
        tls: ServerTLS | None = None,
        token: str | None = None,
        *,
        tokens: Tokens | None = None,
        insecure: bool = False,
        lease_s: float = LEASE_S_DEFAULT,
        places: int = PLACES,
        holds: int = HOLDS,
        delta: DeltaOptions | None = None,
        events: EventCallback | None = None,
        publisher: Callable[[], Publisher] = Publisher,
        ack_replicas: int | None = None,
        ack_timeout_ms: int = ACK_TIMEOUT_MS,
        on_ack_timeout: OnAckTimeout = "fail",
    ) -> None:
        server_credentials(tls)
        self._tls, self._authenticator = tls, Authenticator(tokens_of(token, tokens))
        self._listen = listen_address(
            listen, insecure, tls=tls is not None, token=self._authenticator.needs_token
        )
        check_whole(places, "places", 1, PLACES_MAX)
        check_whole(holds, "holds", 1, HOLDS_MAX)
        self.source = source_of(source)
        self._calls, self._executor = CallTable(places, holds), DaemonExecutor()
        self._events = EventSink(events) if events is not None else self.source.events
        self._claims = ReplicaClaims(self.source.storage, self.source.events, check_lease(lease_s))
        self._publisher = publisher
        self._acks = replica_acks_of(
            source, ack_replicas, ack_timeout_ms, on_ack_timeout, places, self._events
        )
        written = source.log if isinstance(source, Store) else source
        self._delta = DeltaService(written if isinstance(written, WriteAheadLog) else self.source, delta)
        self._single_calls = SingleRequestCalls()
        self._ranges = RangeService(self.source)
        self._shared = SharedRuns()
        self._plans = KeptPlans(self._claims.lease_s)
        self._checks = SnapshotChecks(self.source.storage, self._events, self._note_trouble)
        self._server: Any = None
        self._address = ""
        self._durable = (0, 0)
        self._trouble = ""
        self.error: WalkitError | None = None
        """Why the log could not be read when `status` last looked; None also while its storage is absent."""
        self._absence = Absence()
        self._traffic = Traffic()
        """Of the sessions that have ended."""
        self._sessions: set[Session] = set()
        self._lock = threading.RLock()
        self._unpacking = threading.Lock()
        self._stopped = WakeEvent()

    def start(self) -> Self:
        """Begin to serve; returns this primary. Starting twice is an OptionsError.

        So is starting a second primary of a log with `ack_replicas`.

        RuntimeError if the system has no thread left: then nothing is served, and the next call tries again.
        """
        if self._server is not None:
            refuse("listen", self._address, "this primary already serves there")
        # Callers of `Follow` wait to say hello, those of the others with their request.
        callers_max = self._calls.places + self._delta.callers_max + CALLS_MAX
        calls_max = callers_max + 2 * WAITING_MAX + 2 * ENDING_MAX
        server = grpc.server(self._executor, options=server_options(), maximum_concurrent_rpcs=calls_max)
        _, service, method = METHOD.split("/")
        served: dict[str, Serve] = {
            method: self._follow,
            POLL_METHOD.rpartition("/")[2]: self._single_calls.handler(self._delta.poll),
            FRAMES_METHOD.rpartition("/")[2]: self._single_calls.handler(self._ranges.frames),
            STATUS_METHOD.rpartition("/")[2]: self._single_calls.handler(self._answer_status),
        }
        calls = {
            name: grpc.stream_stream_rpc_method_handler(self._authenticator.guarded("read", serve))
            for name, serve in served.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, calls),))
        address = self._listen.bind(server, server_credentials(self._tls))
        self._delta.start()
        server.start()
        self._server, self._address, self._stopped = server, address, WakeEvent()
        try:
            if self._acks is not None:
                self._acks.start()
            self._claims.start()
            LogThread(
                target=self._watch, args=(self._stopped,), name="walkit-publisher-watch", daemon=True
            ).start()
        except BaseException:  # the system has no thread to give, or an interrupt
            self.stop()
            raise
        return self

    def statistics(self) -> TrafficStatistics:
        """Return the frames that this primary has sent since it was made, in all and by codec."""
        total = Traffic()
        with once(self._lock), self._lock:
            for traffic in (self._traffic, *(s.core.traffic for s in self._sessions)):
                total.add(traffic)
        return total.statistics()

    def delta_statistics(self) -> DeltaServedStatistics:
        """Return the counts of answers to delta readers since this primary was made."""
        return self._delta.statistics()

    @property
    def address(self) -> str:
        """HOST:PORT that replicas connect to; "" before `start`."""
        return self._address

    def status(self) -> PrimaryStatus:
        """Return the primary's state and that of each connected replica; the last known status after an error."""
        detail = self.source.ended()
        state = "new" if not self._address else "stopped" if self._server is None else "serving"
        try:
            self._durable = self.source.durable()
            self.error = None
        except WalkitError as error:
            absent = self._absence.covers(error, now_ms())
            state, detail = "absent" if absent else "failed", f"{type(error).__name__}: {error}"
            self.error = None if absent else error
        if state == "serving" and detail:
            state = "closed"
        lsn, position = self._durable
        with once(self._lock), self._lock:
            cores = [s.core for s in self._sessions]
            trouble = self._trouble or self._claims.trouble
        return PrimaryStatus(
            address=self._address,
            state=state,
            detail=detail,
            durable_lsn=lsn,
            durable_position=position,
            followers=tuple(
                follower_status(c, self._durable, now_ms(), self._claims.held_from(c.key))
                for c in cores
                if c.state in ("streaming", "planning", "bootstrapping")
            ),
            trouble=trouble,
            delta_readers=self._delta.described(),
            acks=None if self._acks is None else self._acks.status(),
        )

    def stop(self) -> None:
        """End every session and free the address. The log stays open. Stopping twice does nothing."""
        server = self._server
        if server is None:
            return
        self._stopped.set()
        try:
            with once(self._lock), self._lock:
                sessions = list(self._sessions)
            for session in sessions:
                session.stop()
            self._delta.stop()
            server.stop(grace=1.0).wait()
        finally:  # an interrupt of the wait leaves no thread
            if self._acks is not None:
                self._acks.stop()
            self._claims.stop()
            if isinstance(self.source, StoredSource):
                self.source.close()
            self._plans.drop(float("inf"))
        self._server = None  # last: work that found no memory is done by the next call

    def __enter__(self) -> Self:
        return self if self._server is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Primary {self._address or 'not started'}: {counted(len(self._sessions), 'session')}>"

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    def _follow(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """One call: one session with one replica."""
        session = Session(
            self.source,
            self._publisher(),
            self._calls,
            context,
            claims=self._claims,
            unpacking=self._unpacking,
            on_trouble=self._note_trouble,
            events=self._events,
            shared=self._shared,
            checks=self._checks,
            acks=self._acks,
            plans=self._plans,
        )
        with once(self._lock), self._lock:
            self._sessions.add(session)
        try:
            self._calls.enter(session)
            if not context.add_callback(session.on_disconnect):
                return  # the call has ended already
            LogThread(
                target=session.listen, args=(requests,), name="walkit-publisher-receiver", daemon=True
            ).start()
            yield from session.run()
        finally:
            try:
                session.close()
            finally:  # else its place would be taken for good
                self._calls.leave(session)
                with once(self._lock), self._lock:
                    self._sessions.discard(session)
                    self._traffic.add(session.core.traffic)

    def _answer_status(self, data: bytes, context: Any) -> Iterator[bytes]:
        yield encode_status(with_claims(self.status(), self.source))

    def _watch(self, stopped: WakeEvent) -> None:
        """Check the time for calls that cannot: sessions whose peers read nothing, delta readers that are gone.

        And for calls that wait for a thread, once the system has one to give.
        """
        while not stopped.wait(STALL_CHECK_S):
            self._calls.cancel_stalled(now_ms())
            self._executor.start_waiting()
            self._plans.drop(time.monotonic())
            self._delta.tick()
            self._ranges.tick()

    def _note_trouble(self, text: str) -> None:
        with once(self._lock), self._lock:
            self._trouble = text
