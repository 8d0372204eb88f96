"""The call `Poll` of a primary: how many may poll at a time and how often; the answers are the feed's."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from walkit._internal.arguments import refuse
from walkit._internal.locks import once
from walkit._internal.threads import Latch
from walkit.errors import WalkitError
from walkit.log.wal import WriteAheadLog
from walkit.metrics import DeltaServedStatistics
from walkit.replication.delta.messages import PollAnswer, PollRefusal, PollRequest
from walkit.replication.delta.poll_server import DeltaOptions, SessionStatus
from walkit.replication.delta.server_feed import DeltaFeed, PollCall
from walkit.replication.delta.wire import decode_poll, encode_reply
from walkit.replication.logs.source import Source, require_newest
from walkit.replication.protocol.failures import ProtocolError
from walkit.replication.protocol.wire import WireError
from walkit.replication.transport.grpc_common import grpc
from walkit.replication.transport.threads import now_ms

DELTA_BYTES_SENT_MAX = 32 << 20
"""The most that a delta reader takes in one answer."""
CALLERS_SPARE = 32
"""The most polls, beyond the most sessions, that wait at a time; one more is refused at once."""


class PollPace:
    """Says how long a reply has to wait, so that each session gets at most one in an interval. Safe from any thread.

    The core spaces new answers; this spaces repeats of one answer and refusals, too. All refusals share the place 0.
    """

    def __init__(self, interval_ms: float, sessions_max: int, most_ms: float = 1_000.0) -> None:
        self._interval_ms, self._most_ms, self._entries_max = interval_ms, most_ms, 4 * sessions_max
        self._next_ms: dict[int, float] = {}
        self._lock = threading.RLock()

    def delay_ms(self, session_id: int, now_ms: float) -> float | None:
        """Return how long the next reply of this session waits; None if too many wait already."""
        with once(self._lock), self._lock:
            if session_id not in self._next_ms and len(self._next_ms) >= self._entries_max:
                self._next_ms = {key: at for key, at in self._next_ms.items() if at > now_ms}
                if len(self._next_ms) >= self._entries_max:
                    session_id = 0
            at_ms = max(self._next_ms.get(session_id, 0.0), now_ms)
            if at_ms - now_ms > self._most_ms:
                return None
            self._next_ms[session_id] = at_ms + self._interval_ms
        return at_ms - now_ms


class DeltaService:
    """Serves the polls of delta readers of a log. Safe from any thread."""

    def __init__(self, log: WriteAheadLog | Source, options: DeltaOptions | None = None) -> None:
        self.options = options or DeltaOptions()
        if not isinstance(self.options, DeltaOptions) or self.options.buffer_bytes > DELTA_BYTES_SENT_MAX:
            refuse("delta", options, f"DeltaOptions with a buffer of at most {DELTA_BYTES_SENT_MAX:,} bytes")
        self.callers_max = self.options.sessions_max + CALLERS_SPARE
        self._log = log
        self._feed: DeltaFeed | None = None
        self._lock = threading.RLock()
        self._places = deque(range(self.callers_max))
        self._pace = PollPace(self.options.interval_ms, self.options.sessions_max)
        self._stopped = Latch()
        self._refused = 0

    def poll(self, data: bytes, context: Any) -> Iterator[bytes]:
        """Yield the answer to one call, on its own thread: waits for news as long as the poll says."""
        try:
            request = decode_poll(data)
        except WireError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        try:
            place = self._places.pop()
        except IndexError:
            yield self._refuse("busy", f"{self.callers_max:,} polls wait already")
            return
        try:
            reply = encode_reply(self._answer(request, context))
        except ProtocolError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self._places.append(place)
        yield reply

    def tick(self) -> None:
        """End sessions that expired: to be called now and then, as nothing else does while the log is idle."""
        feed = self._feed
        if feed is not None:
            feed.tick()

    def described(self) -> tuple[SessionStatus, ...]:
        """Return the sessions of this moment."""
        feed = self._feed
        return () if feed is None else feed.described()

    def statistics(self) -> DeltaServedStatistics:
        """Return the counts of answers to delta readers since this primary was made."""
        feed = self._feed
        if feed is None:
            return DeltaServedStatistics(refused=self._refused)
        counts, sessions = feed.counts, feed.described()
        return DeltaServedStatistics(
            deltas=counts.deltas,
            ends=counts.ends,
            nothing=counts.nothing,
            repeated=counts.repeated,
            refused=self._refused,
            delta_bytes=counts.delta_bytes,
            sessions_opened=counts.sessions_opened,
            sessions_closed=counts.sessions_closed,
            sessions=len(sessions),
            sessions_syncing=sum(session.state == "syncing" for session in sessions),
            held_bytes=sum(session.held_bytes for session in sessions),
        )

    def start(self) -> None:
        """Serve; again, too, after a stop."""
        with once(self._lock), self._lock:
            self._feed = None
            self._stopped = Latch()

    def stop(self) -> None:
        """Refuse the polls that wait, and all later ones. Stopping twice does nothing."""
        self._stopped.set()
        with once(self._lock), self._lock:
            if self._feed is not None:
                self._feed.stop()

    def _answer(self, request: PollRequest, context: Any) -> PollAnswer | PollRefusal:
        try:
            feed = self._open_feed()
            if isinstance(self._log, WriteAheadLog) and request.applied.lsn > self._log.durable_lsn:
                # On object storage another writer may have the log, with the records that the reader has applied.
                require_newest(self._log.parts.storage)
        except WalkitError as error:
            return PollRefusal(reason="failed", message=f"{type(error).__name__}: {error}")
        if feed is None:
            return PollRefusal(reason="closed", message="this primary was stopped")
        call = feed.begin(request)
        if not context.add_callback(_disconnect(feed, call)):
            feed.on_disconnect(call)
        answer = feed.wait(call)
        if answer is None:  # the caller is gone
            return PollRefusal(reason="busy", message="the caller is gone")
        if isinstance(answer, PollRefusal):
            self._count_refusal()
        place = answer.session_id if isinstance(answer, PollAnswer) else 0
        wait_ms = self._pace.delay_ms(place, now_ms())
        if wait_ms is None:
            return PollRefusal(reason="busy", message="polls of this session come faster than answers may")
        if wait_ms:
            self._stopped.wait(wait_ms / 1000)
        return answer

    def _open_feed(self) -> DeltaFeed | None:
        """Return the feed, made at the first poll; None once stopped."""
        with once(self._lock), self._lock:
            if self._feed is None and not self._stopped.is_set():
                self._feed = DeltaFeed(self._log, self.options)
            return None if self._stopped.is_set() else self._feed

    def _count_refusal(self) -> None:
        with once(self._lock), self._lock:
            self._refused += 1

    def _refuse(self, reason: str, message: str) -> bytes:
        self._count_refusal()
        return encode_reply(PollRefusal(reason=reason, message=message))


def _disconnect(feed: DeltaFeed, call: PollCall) -> Callable[[], None]:
    return lambda: feed.on_disconnect(call)
