"""The subscriber's core: it connects, sends its end, verifies frames, and requests those again that do not follow.

Without I/O: events go in by method calls, steps come out. Times are milliseconds of the shell's clock, randomness is
given. The shell reports the result of a step (import, connect) by the next event.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from walkit.copier.plan import MissingRange
from walkit.errors import DivergenceError, WalkitError
from walkit.format.frame import FrameFault
from walkit.format.layout import FRAME_BYTES_LIMIT
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.replication.core.actions import (
    Adopt,
    Connect,
    Disconnect,
    Fail,
    Import,
    Keep,
    Prepare,
    Publish,
    SendToPublisher,
    StorePart,
    SubscriberStep,
)
from walkit.replication.core.backoff import Backoff
from walkit.replication.core.bootstrap import Transfer
from walkit.replication.core.lag import Lag
from walkit.replication.core.publisher import HISTORY_CHARS, HISTORY_EVENTS, SILENCE_MS
from walkit.replication.core.states import StateTracker
from walkit.replication.protocol import checks
from walkit.replication.protocol.codecs import Traffic
from walkit.replication.protocol.failures import ProtocolError
from walkit.replication.protocol.identity import Identity
from walkit.replication.protocol.messages import (
    CHUNK_BYTES_MAX,
    LASTING,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    REASONS,
    Ack,
    Batch,
    Chunk,
    FromPublisher,
    Heartbeat,
    Hello,
    Nack,
    Plan,
    Refusal,
    Welcome,
)

RENACK_MS = 1_000.0
"""After this time without progress the same range is requested once more."""
DAMAGED_MAX = 3
"""Number of damaged arrivals of one range before the connection is given up."""

State = Literal["detached", "connecting", "greeting", "streaming", "bootstrapping", "failed"]


class Subscriber:
    """Follows one publisher. Not thread-safe.

    `start`, then `connected`, `lost`, `receive`, `imported` and `tick` as things happen. `fail` and `state == "failed"`
    are final: a divergence, a gap or an unknown version ends as a typed error, and nothing is merged. A publisher's
    refusal is final only at the second time, if nothing was imported in between.
    """

    def __init__(
        self,
        name: str,
        *,
        log_id: int = 0,
        lineage: tuple[EpochRecord, ...] = (),
        end: LogEnd | None = None,
        codecs: tuple[str, ...] = ("zstd",),
        versions: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX),
        backoff: Backoff | None = None,
        silence_ms: float = SILENCE_MS,
        frame_bytes_max: int = FRAME_BYTES_LIMIT,
        identity: Identity | None = None,
        keeps: bool = False,
        bootstraps: bool = False,
    ) -> None:
        self.bootstraps = bootstraps
        """Whether it fetches the whole log if its own cannot be continued."""
        self.transfer: Transfer | None = None
        """The transfer of a plan's files; None if none is running."""
        self._chunk_bytes = CHUNK_BYTES_MAX
        """The size of the first ranges that the next transfer requests."""
        self.name, self.codecs, self.versions, self.frame_bytes_max = name, codecs, versions, frame_bytes_max
        self.log_id, self.lineage = log_id, lineage
        self.identity = identity
        """Proves the replica; a publisher refuses a hello without it."""
        self.keeps = keeps
        """Whether the identity is in the folder, to be found by a restart."""
        self.end = end or LogEnd()
        """Where the replica's log ends; all before it is on its stable storage."""
        self.next = self.end
        """The end of the frames that were verified and given out to be imported: the next batch must follow it."""
        self.state: State = "detached"
        """Decides how a message is handled; `states` shows the same, and separates streaming from catching up."""
        self.states = StateTracker("replica", "new")
        self.error: WalkitError | None = None
        self.welcomed = False
        """Whether a publisher has ever reported its log's end."""
        self.trouble = self.reason = ""
        """Why the last connection ended: in words, and as one of `messages.REASONS` or "connection", "silence",
        "frames" (they came damaged) or "failure"."""
        self.heard_ms: float | None = None
        """Time of the publisher's last message on this connection; None without contact."""
        self.since_ms: float | None = None
        """Time of the last contact, or of the last imported frame; None before `start`."""
        self.lag = Lag()
        self.connections = self.duplicates = self.gaps = self.damaged = 0
        self.traffic = Traffic()
        """Frames received since this object was made."""
        self.history: deque[str] = deque(maxlen=HISTORY_EVENTS)
        self.wake_at_ms: float | None = None
        self._backoff, self._silence_ms = backoff or Backoff(), silence_ms
        self._nacked: tuple[int, float] | None = None
        self.damaged_here, self._refused_for = 0, ""

    def continue_as(self, before: Subscriber) -> None:
        """Take over the name and the counts of a core whose log was opened again. Before `start`."""
        self.name, self.traffic, self.history = before.name, before.traffic, before.history
        self.connections, self.duplicates = before.connections, before.duplicates
        self.gaps, self.damaged, self.states = before.gaps, before.damaged, before.states

    # -- events of the shell

    def start(self, now_ms: float) -> list[SubscriberStep]:
        """Begin."""
        self.since_ms = now_ms
        return self._connect("start", now_ms)

    def connected(self, now_ms: float) -> list[SubscriberStep]:
        """There is a connection."""
        if self.state != "connecting":
            return []
        self._enter("greeting", now_ms)
        self.connections += 1
        self._note_contact(now_ms)
        hello = Hello(
            name=self.name,
            version_min=self.versions[0],
            version_max=self.versions[1],
            log_id=self.log_id,
            lineage=self.lineage,
            end=self.end,
            codecs=self.codecs,
            frame_bytes_max=self.frame_bytes_max,
            id=b"" if self.identity is None else self.identity.id,
            bootstrap=self.bootstraps,
        )
        return self._note("connected", [SendToPublisher(hello)], now_ms)

    def lost(self, detail: str, now_ms: float, reason: str = "connection") -> list[SubscriberStep]:
        """The connection is gone, or could not be made."""
        if self.state in ("detached", "failed"):
            return []
        self._lose_contact(now_ms)
        self.trouble, self.reason = checks.plain_text(detail), reason
        self._enter("detached", now_ms, self.trouble)
        if self.transfer is not None:
            self._chunk_bytes = self.transfer.next_chunk_bytes
        self._nacked, self.damaged_here, self.transfer, self.next = None, 0, None, self.end
        self.wake_at_ms = now_ms + self._backoff.next_ms()
        return self._note(f"lost: {detail}", [Disconnect(detail)], now_ms)

    def receive(self, message: FromPublisher, now_ms: float) -> list[SubscriberStep]:
        """The publisher has said something on this connection."""
        if self.state not in ("greeting", "streaming", "bootstrapping"):
            return []
        if isinstance(message, Refusal):
            return self._take_refusal(message, now_ms)
        try:
            checks.check_content(message)
        except ProtocolError as error:
            return self.refused(error.code, error, now_ms)
        if isinstance(message, Welcome):
            return self._note(message, self._welcome(message, now_ms), now_ms)
        if isinstance(message, Plan | Chunk) or self.state == "bootstrapping":
            return self._note(message, self._bootstrap(message, now_ms), now_ms)
        if self.state != "streaming":
            return []
        self._note_contact(now_ms)
        assert isinstance(message, Batch | Heartbeat)
        self.lag.source_at(message.source_lsn, message.source_position, self.end.last_lsn, now_ms)
        if isinstance(message, Heartbeat):
            steps: list[SubscriberStep] = [SendToPublisher(Ack(end=self.end))]
            if message.sent_position > self.next.position:
                steps += self._nack(now_ms)
            return self._note(message, steps, now_ms)
        return self._note(message, self._batch(message, now_ms), now_ms)

    def imported(self, end: LogEnd, now_ms: float) -> list[SubscriberStep]:
        """Frames that were given out are on stable storage; `end` is where the log ends now."""
        self.end, self.since_ms = end, now_ms
        if self.next.position < end.position:
            self.next = end
        self.damaged_here, self._refused_for = 0, ""
        self._backoff.reset()
        self.lag.reached(end.last_lsn)
        return self._note(f"imported to {end.position}", [SendToPublisher(Ack(end=end))], now_ms)

    def prepared(self, missing: tuple[MissingRange, ...], now_ms: float) -> list[SubscriberStep]:
        """The answer to `Prepare`: the missing parts of the plan's files."""
        if self.state != "bootstrapping":
            return []
        self.transfer = Transfer(missing, self._chunk_bytes)
        return self._note("prepared", self._fetch(), now_ms)

    def published(self, end: LogEnd, lineage: tuple[EpochRecord, ...], now_ms: float) -> list[SubscriberStep]:
        """The answer to `Publish`: the log is another one now, and ends there. It is continued by a new connection."""
        if self.state != "bootstrapping":
            return []
        self._lose_contact(now_ms)
        self.replaced(end, lineage, now_ms)
        return self._connect(f"published to {end.position}", now_ms)

    def replaced(self, end: LogEnd, lineage: tuple[EpochRecord, ...], now_ms: float) -> None:
        """The log is another one now, and ends there; called without a connection."""
        self.end = self.next = end
        self.lineage, self.since_ms, self._refused_for, self.transfer = lineage, now_ms, "", None
        self._chunk_bytes = CHUNK_BYTES_MAX
        self.lag.reached(end.last_lsn)
        self._backoff.reset()

    def refused(self, reason: str, error: WalkitError, now_ms: float) -> list[SubscriberStep]:
        """The publisher has sent a lasting refusal. After the first one it is asked once more."""
        if self._refused_for != reason:
            self._refused_for = reason
            return self.lost(str(error), now_ms, reason if reason in REASONS else "connection")
        return self.fail(error, now_ms)

    def fail(self, error: WalkitError, now_ms: float) -> list[SubscriberStep]:
        """End with an error that a retry does not fix; also for the shell, when its own disk fails."""
        self.error, self.reason, self.trouble, self.transfer = error, "failure", str(error), None
        self._enter("failed", now_ms, self.trouble)
        self.wake_at_ms = None
        self._lose_contact(now_ms)
        return self._note(error, [Disconnect(str(error)), Fail(error)], now_ms)

    def tick(self, now_ms: float) -> list[SubscriberStep]:
        """Time has passed; to be called at `wake_at_ms` at the latest."""
        if self.wake_at_ms is None or now_ms < self.wake_at_ms:
            return []
        if self.state == "detached":
            return self._connect("tick", now_ms)
        return self.lost("the publisher has been silent for too long", now_ms, "silence")

    # -- outcomes

    def _enter(self, state: State, now_ms: float, detail: str = "") -> None:
        """Change the state, as the table of states allows it."""
        self.state = state
        self.states.move(self.lag.begin(self.end.last_lsn) if state == "streaming" else state, now_ms, detail)

    def _connect(self, event: str, now_ms: float) -> list[SubscriberStep]:
        self._enter("connecting", now_ms)
        self._note_contact(now_ms)
        return self._note(event, [Connect()], now_ms)

    def _note_contact(self, now_ms: float) -> None:
        self.wake_at_ms = now_ms + self._silence_ms
        if self.state in ("streaming", "bootstrapping"):
            self.heard_ms = now_ms

    def _lose_contact(self, now_ms: float) -> None:
        """Note the loss of contact; a second call changes nothing."""
        if self.heard_ms is not None or self.since_ms is None:
            self.heard_ms, self.since_ms = None, now_ms

    def _welcome(self, welcome: Welcome, now_ms: float) -> list[SubscriberStep]:
        if self.log_id not in (0, welcome.log_id):
            text = f"the replica is of log {self.log_id:016x}, the publisher welcomed it to {welcome.log_id:016x}"
            return self.refused("divergence", DivergenceError(text, first_lsn=1), now_ms)
        if not self.versions[0] <= welcome.version <= self.versions[1]:
            return self.refused(
                "version", checks.unknown_version(welcome.version, welcome.version, self.versions), now_ms
            )
        first = self.state == "greeting"
        self.lag.source_at(welcome.source_lsn, welcome.source_position, self.end.last_lsn, now_ms)
        if first:
            self.since_ms, self.welcomed = now_ms, True
            self._enter("streaming", now_ms)
        self._note_contact(now_ms)
        steps: list[SubscriberStep] = []
        if self.identity is not None and not self.keeps:
            self.keeps = True
            steps.append(Keep(self.identity))
        if not self.log_id:
            self.log_id = welcome.log_id
            steps.append(Adopt(welcome))
        return steps

    def _take_refusal(self, refusal: Refusal, now_ms: float) -> list[SubscriberStep]:
        if refusal.reason not in LASTING:
            reason = refusal.reason if refusal.reason in REASONS else "protocol"
            return self.lost(refusal.message, now_ms, reason)
        return self.refused(refusal.reason, checks.lasting_error(refusal, self.versions), now_ms)

    def _bootstrap(self, message: FromPublisher, now_ms: float) -> list[SubscriberStep]:
        """Take a plan, or a part of its files."""
        self._note_contact(now_ms)
        if isinstance(message, Plan) and self.state == "streaming" and self.bootstraps:
            self._enter("bootstrapping", now_ms)
            return [Prepare(message)]
        if isinstance(message, Heartbeat):
            return [SendToPublisher(Ack(end=self.end))]
        transfer = self.transfer
        if not isinstance(message, Chunk) or transfer is None:
            return self.lost(f"the publisher sent a {type(message).__name__} out of turn", now_ms, "protocol")
        wrong = transfer.take(message)
        if wrong:
            return self.lost(wrong, now_ms, "protocol")
        self.traffic.count("", len(message.data), len(message.data))
        return [StorePart(message), *self._fetch()]

    def _fetch(self) -> list[SubscriberStep]:
        """Fetch the missing bytes; with all of them here the connection is no longer needed."""
        assert self.transfer is not None
        if self.transfer.is_done:
            return [Disconnect("all of the plan is there"), Publish()]
        return [SendToPublisher(fetch) for fetch in self.transfer.next_requests()]

    def _batch(self, batch: Batch, now_ms: float) -> list[SubscriberStep]:
        if batch.end_position <= self.next.position:
            self.duplicates += 1
            return [SendToPublisher(Ack(end=self.end))]
        if batch.after_position > self.next.position:
            self.gaps += 1
            return self._nack(now_ms)
        lineage = batch.lineage or self.lineage
        if self.lineage != lineage[: len(self.lineage)] and lineage != self.lineage[: len(lineage)]:
            text = "the publisher's epochs are not those that this replica has followed"
            first_lsn = checks.first_difference(self.lineage, lineage)
            return self.refused("divergence", DivergenceError(text, first_lsn=first_lsn), now_ms)
        begun = next((e for e in lineage if (e.number, e.id) == (batch.epoch, batch.epoch_id)), None)
        if begun is None:
            return self._nack(now_ms)
        run, fault = checks.checked_run(batch, self.log_id, self.next, self.frame_bytes_max)
        if run is None:
            return self._take_damaged(fault, now_ms)
        self.traffic.count(batch.codec, batch.end_position - batch.start_position, len(batch.data))
        self._nacked = None
        self.next = run.end
        if len(lineage) > len(self.lineage):
            self.lineage = lineage
        return [Import(run, tuple(e for e in self.lineage if e.number <= batch.epoch))]

    def _take_damaged(self, fault: FrameFault | None, now_ms: float) -> list[SubscriberStep]:
        """Frames that follow by their positions are damaged, or belong to another history."""
        if fault in (FrameFault.CHAIN, FrameFault.LSN, FrameFault.EPOCH, FrameFault.FOREIGN):
            lsn = self.next.last_lsn + 1
            text = f"intact frames came that do not follow LSN {lsn - 1:,}: {fault.value}. Nothing was merged"
            return self.refused("divergence", DivergenceError(text, first_lsn=lsn), now_ms)
        self.damaged += 1
        self.damaged_here += 1
        if self.damaged_here >= DAMAGED_MAX:
            return self.lost(f"frames came damaged {DAMAGED_MAX} times: {fault}", now_ms, "frames")
        self._nacked = None
        return self._nack(now_ms)

    def _nack(self, now_ms: float) -> list[SubscriberStep]:
        """Ask for all after the end of the log; once for each gap, and again after a while without progress."""
        at = self.next.position
        if self._nacked is not None and self._nacked[0] == at and now_ms - self._nacked[1] < RENACK_MS:
            return []
        self._nacked = (at, now_ms)
        return [SendToPublisher(Nack(end=self.next))]

    def _check(self) -> None:
        """Assert the invariants after every event; in constant time."""
        assert self.end.position <= self.next.position and self.end.last_lsn <= self.next.last_lsn
        assert (self.error is not None) == (self.state == "failed")
        assert (self.wake_at_ms is None) == (self.state == "failed" or self.since_ms is None)
        assert self.heard_ms is None or self.state in ("streaming", "bootstrapping"), (
            "contact without a welcome"
        )
        assert 0 <= self.damaged_here <= self.damaged
        self.lag.check()

    def _note(self, event: object, steps: list[SubscriberStep], now_ms: float) -> list[SubscriberStep]:
        if self.state == "streaming":
            self.states.move(self.lag.next_state(self.states.state, self.end.last_lsn, now_ms), now_ms)
        self._check()
        self.history.append(f"{now_ms:.1f} {event!r} -> {steps!r}"[:HISTORY_CHARS])
        return steps
