"""One call of a primary: the shell around one publisher core."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

from walkit._internal.threads import WakeEvent
from walkit.errors import ClaimError, GapError, LogClosedError, OptionsError, StorageError, WalkitError
from walkit.events import EventSink
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.replication.core.actions import (
    Admit,
    End,
    MakePlan,
    MoveClaim,
    PublisherStep,
    Read,
    ReadPart,
    Send,
)
from walkit.replication.core.publisher import Publisher
from walkit.replication.core.states import report_moves
from walkit.replication.logs.source import Source, primary_state_of
from walkit.replication.primary.bootstrap_plan import BootstrapFiles, KeptPlans, SnapshotChecks
from walkit.replication.primary.claims import ReplicaClaims, acked_before, replicas_with_claims
from walkit.replication.primary.frame_reader import FrameReader
from walkit.replication.primary.range_service import refusal_of
from walkit.replication.primary.replica_acks import ReplicaAcks
from walkit.replication.primary.shared_runs import SharedRuns
from walkit.replication.protocol.frame_run import FrameRun
from walkit.replication.protocol.identity import key_of
from walkit.replication.protocol.messages import Batch, FromPublisher, Hello, Refusal
from walkit.replication.protocol.wire import (
    REPLY_BYTES_MAX,
    DamagedMessageError,
    WireError,
    decode_from_subscriber,
    encode_from_publisher,
)
from walkit.replication.transport.calls import CallTable
from walkit.replication.transport.grpc_common import grpc
from walkit.replication.transport.threads import ByteBudget, now_ms
from walkit.segments.history import identity_at

COALESCE_MS = 6.0
"""A batch waits this long after the last one if all was sent: few large batches cost less than many."""
INBOX_BYTES = 64 << 10
"""The session stops reading from its replica while so many received bytes wait."""
PEER_FAULTS = ("protocol", "name", "damaged", "rewound", "full")
"""Reasons to refuse that the primary shows in its status, with the address of the peer."""


class Session:
    """Runs one publisher core: one thread receives the replica's messages, another does everything else."""

    def __init__(
        self,
        source: Source,
        core: Publisher,
        calls: CallTable,
        context: Any,
        *,
        claims: ReplicaClaims,
        unpacking: threading.Lock,
        on_trouble: Callable[[str], None],
        events: EventSink,
        shared: SharedRuns,
        checks: SnapshotChecks,
        plans: KeptPlans,
        acks: ReplicaAcks | None = None,
    ) -> None:
        self.core = core
        self._shared, self._checks, self._plans, self._acks = shared, checks, plans, acks
        self._source, self._calls, self._context = source, calls, context
        self._claims = claims
        self._unpacking, self._on_trouble, self._events = unpacking, on_trouble, events
        self._reader = FrameReader(source)
        self._inbox: deque[bytes] = deque()
        self._inbox_budget = ByteBudget(INBOX_BYTES)
        self._wake = WakeEvent()
        self._ending = WakeEvent()
        self._gone = False
        self._stopping = False
        self._sending_ms: float | None = None
        self._claim_lost: WalkitError | None = None
        self._planned: BootstrapFiles | None = None
        self._has_fetched = False
        self._batch_ms = 0.0
        self._unwatch = source.watch(self._wake.set)
        shared.enter()  # last: leave nothing behind if the watch gets no thread

    # -- other threads

    def listen(self, requests: Iterator[bytes]) -> None:
        """Receive the replica's messages until the call ends; wait while too many of them are not handled."""
        try:
            for data in requests:
                self._inbox_budget.take(len(data))
                self._inbox.append(data)
                self._wake.set()
                del data  # it may be large, and the next one may be long in coming
                self._inbox_budget.wait()
        except grpc.RpcError:
            pass  # the call is over; `on_disconnect` notes it
        self.on_disconnect()

    def on_disconnect(self) -> None:
        """The call is over."""
        self._gone = True
        self._inbox_budget.close()
        self._wake.set()
        self._ending.set()

    def stop(self) -> None:
        """The primary stops serving."""
        self._stopping = True
        self._wake.set()
        self._ending.set()

    def cancel(self) -> None:
        """See Call."""
        self._context.cancel()
        self.on_disconnect()

    def is_stalled(self, now_ms: float) -> bool:
        """See Call: the session's own thread is sending then, and cannot check the time."""
        since = self._sending_ms
        served = self.core.state in ("streaming", "bootstrapping")
        limit_ms = self.core.silence_ms if served else self.core.hello_ms
        return since is not None and now_ms - since > limit_ms

    # -- the session's own thread

    def run(self) -> Iterator[bytes]:
        """Yield messages to the replica until the session is over."""
        self.core.began(now_ms())
        steps: deque[PublisherStep] = deque()
        while not self._gone:
            self._await_more()
            self._wake.clear()
            while self._inbox and not steps:
                steps.extend(self._receive_next())
            if self._stopping:
                steps.extend(self._refuse("closed", "the primary stops"))
            if self._claim_lost is not None:
                steps.extend(self._without_claim(self._claim_lost))
            if not steps:
                steps.extend(self._poll_source())
            self._report()
            # The clear may have taken the wake of the end.
            if not steps and not self._gone:
                self._wake.wait(self._pause_s())
            while steps and not self._gone:
                step = steps.popleft()
                if isinstance(step, Send):
                    out = [self._encoded(step.message)]
                    del step  # a large frame is in memory once while gRPC sends it, not as a message and as its parts
                    self._sending_ms = now_ms()
                    yield out.pop()
                    self._sending_ms = None
                elif isinstance(step, End):
                    return
                else:
                    steps.extend(self._perform(step))

    def _report(self) -> None:
        """Emit the edges that were taken."""
        if self.core.states.moves:
            report_moves(self.core.states, self._events, name=self.core.name, id=self.core.key)

    def _encoded(self, message: FromPublisher) -> bytes:
        """Return the bytes of a message that is about to be sent."""
        if isinstance(message, Refusal) and message.reason in PEER_FAULTS:
            self._on_trouble(f"{self._context.peer()}: {message.message}")
        if isinstance(message, Batch):
            self._batch_ms = now_ms()
        return encode_from_publisher(message)

    def _await_more(self) -> None:
        """Wait a while if a batch was just sent, so that the next one is larger.

        With `ack_replicas` callers wait for the answer, so it does not.
        """
        left_ms = self._batch_ms + COALESCE_MS - now_ms()
        if left_ms > 0 and self.core.has_sent_all and self._acks is None:
            self._ending.wait(left_ms / 1000)

    def _pause_s(self) -> float:
        wake_at_ms = self.core.wake_at_ms
        return 0 if wake_at_ms is None else max(wake_at_ms - now_ms(), 0) / 1000

    def _receive_next(self) -> list[PublisherStep]:
        """Take one message of the replica."""
        data = self._inbox.popleft()
        self._inbox_budget.release(len(data))
        try:
            if self.core.state == "waiting":
                return self._on_hello(data)
            if len(data) > REPLY_BYTES_MAX:
                raise WireError(f"a message of {len(data):,} bytes after the hello")
            return self.core.receive(decode_from_subscriber(data), now_ms())
        except DamagedMessageError as error:
            return self._refuse("damaged", str(error))
        except WireError as error:
            return self._refuse("protocol", f"replica {self.core.name!r} sent {error}")
        except WalkitError as error:
            return self._failed(error)

    def _on_hello(self, data: bytes) -> list[PublisherStep]:
        """Look at the first message, which must be a hello.

        It is unpacked for one caller at a time, as a lineage may be long.
        """
        epochs = len(self._source.manifest().lineage) + 1
        with self._unpacking:
            hello = decode_from_subscriber(data, epochs)
        if not isinstance(hello, Hello):
            return self._refuse("protocol", "the first message is not a hello")
        return self.core.greeted(hello, now_ms())

    def _admit(self, hello: Hello) -> list[PublisherStep]:
        """Find a place for a subscriber, and compare the histories."""
        detail = self._source.ended()
        if detail:  # "nothing is missing" would not be true for long
            raise LogClosedError(detail)
        key = key_of(hello.id)
        refusal = self._calls.seat(self, key, hello.name, replicas_with_claims(self._source.storage))
        if refusal is not None:
            return self.core.refuse(refusal, now_ms())
        primary = primary_state_of(self._source, hello)
        acked = acked_before(self._source.storage, key, primary.log_id)
        steps = self.core.admitted(hello, primary, now_ms(), acked)
        if self.core.state == "streaming" and (kept := self._plans.plans.pop(key, None)) is not None:
            kept.close()  # the log that it was made for is there
        return steps

    def _poll_source(self) -> list[PublisherStep]:
        """Return the steps that are due if the source has moved, or time has passed."""
        if self.core.state != "streaming":
            return self.core.tick(now_ms())
        detail = self._source.ended()  # before the end is read, which is the last one then
        try:
            lsn, position = self._source.durable()
            if detail and self.core.sent.position >= position:
                raise LogClosedError(detail)
        except WalkitError as error:
            return self._failed(error)
        if position < self.core.sent.position:  # the next hello finds out whether the histories part
            return self._refuse(
                "closed",
                f"the log ends at position {position:,} now, and it was sent up to {self.core.sent.position:,}: it was "
                "cut back, or put back from a copy",
            )
        at = now_ms()
        return self.core.source_moved(lsn, position, at) or self.core.tick(at)

    def _perform(self, step: PublisherStep) -> list[PublisherStep]:
        try:
            if isinstance(step, Read):
                return self.core.frames(*self._read(step), now_ms())
            if isinstance(step, Admit):
                return self._admit(step.hello)
            if isinstance(step, MakePlan):
                return self._plan()
            if isinstance(step, ReadPart):
                if self._planned is None:  # it was refused meanwhile
                    return []
                if not self._has_fetched:  # not with the hello: a session that fetches nothing keeps nothing
                    self._claims.take_all(self.core.key, self.core.name, self._lose_claim)
                    self._has_fetched = True
                fetch = step.fetch
                data = self._planned.read(fetch.file, fetch.offset, fetch.size)
                return self.core.part(fetch, data, now_ms())
            if isinstance(step, MoveClaim):
                if self._acks is not None:
                    self._acks.acknowledged(self, self.core.key, step.acked.last_lsn)
                self._move_claim(step.acked)
        except WalkitError as error:
            return self._failed(error)
        return []

    def _read(self, step: Read) -> tuple[FrameRun | None, tuple[EpochRecord, ...]]:
        """Return the next frames and the lineage of the source: those that another session has read, or from it."""
        kept = self._shared.get(self.core.log_id, step.after, step.limit_bytes)
        if kept is not None:
            return kept
        run, lineage = self._reader.read(step.after, step.limit_bytes), self._reader.lineage()
        if run is not None:
            self._shared.put(run, lineage)
        return run, lineage

    def _plan(self) -> list[PublisherStep]:
        """Plan the log of the replica: as before, while its claim counts."""
        self._planned = self._plans.plans.pop(self.core.key, None) or BootstrapFiles(
            self._source, self._checks
        )
        return self.core.planned(self._planned.plan, now_ms())

    def _move_claim(self, acked: LogEnd) -> None:
        manifest = self._source.manifest()
        if acked.last_lsn < manifest.low_watermark:
            return  # a trim has left frames there, which nothing keeps until the replica has passed them
        epoch = identity_at(manifest, acked.last_lsn)
        self._claims.keep(self.core.key, self.core.name, acked, epoch.epoch_id, self._lose_claim)

    def _lose_claim(self, error: WalkitError) -> None:
        """Note, on the thread of the claims, that this replica has lost its claim."""
        self._claim_lost = error
        self._wake.set()

    def _without_claim(self, error: WalkitError) -> list[PublisherStep]:
        """End the session: its replica's records are gone, or another session has its claim."""
        self._claim_lost = None
        if isinstance(error, OptionsError):
            return self._refuse("protocol", f"an acknowledgement below the claim of the replica: {error}")
        return self._failed(error)

    def _refuse(self, reason: str, message: str) -> list[PublisherStep]:
        return self.core.refuse(Refusal(reason=reason, message=message), now_ms())

    def _failed(self, error: WalkitError) -> list[PublisherStep]:
        planned, self._planned = self._planned, None
        if planned is not None:
            planned.close()
        if isinstance(error, ClaimError):
            taken = "busy", "another session has the claim"
            reason, detail = taken if error.reason == "taken" else ("full", "the log has no room for a claim")
            return self._refuse(reason, f"{detail} of replica {self.core.name!r}: {error}")
        if isinstance(error, GapError) and self.core.state in ("planning", "bootstrapping"):
            return self._refuse("closed", f"the records being sent were dropped: {error}")
        return self.core.refuse(refusal_of(error, self._source), now_ms())

    def close(self) -> None:
        """Release files and observer; the claim remains until its lease is over."""
        with ExitStack() as rest:  # a failure here must not keep the claim, or the source's observer
            rest.callback(self._shared.leave)
            if self._acks is not None:
                rest.callback(self._acks.leave, self)
            if self._planned is not None:
                rest.callback(self._plans.leave, self.core.key, self._planned, fetched=self._has_fetched)
            rest.callback(self._close_reader)
            rest.callback(self._unwatch)
            if self.core.key:
                rest.callback(self._claims.leave, self.core.key)
            self.core.gone(now_ms(), "the call is over")
            self._report()
            self._inbox_budget.close()

    def _close_reader(self) -> None:
        with suppress(StorageError):  # it has only read
            self._reader.close()
