"""The subscriber's core: it connects, sends what it has, verifies what comes, and asks again for what does not follow.

Without I/O: events go in by method calls, steps come out. Times are milliseconds of the shell's clock, randomness is
given. The shell reports the result of a step (import, connect) by the next event.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from walkit.errors import DivergenceError, FormatVersionError, GapError, OptionsError, WalkitError
from walkit.format.frame import FrameFault, FrameIdentity
from walkit.format.layout import FRAME_BYTES_LIMIT
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.replication.actions import Adopt, Connect, Disconnect, Fail, Import, Keep, Say, SubscriberStep
from walkit.replication.backoff import Backoff
from walkit.replication.codecs import Traffic, unpack
from walkit.replication.content import check_content, plain_text
from walkit.replication.failures import IdentityError, ProtocolError
from walkit.replication.frame_batch import FrameLimits, FrameRun, check_run
from walkit.replication.identity import Identity, proof_of
from walkit.replication.messages import (
    BATCH_BYTES_MAX,
    LASTING,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    REASONS,
    Ack,
    Batch,
    Challenge,
    FromPublisher,
    Heartbeat,
    Hello,
    Nack,
    Proof,
    Refusal,
    Welcome,
)
from walkit.replication.publisher import HISTORY_CHARS, HISTORY_EVENTS, SILENCE_MS

RENACK_MS = 1_000.0
"""After this time without progress the same range is asked for once more."""
DAMAGED_MAX = 3
"""So many times one range may arrive damaged before the connection is given up."""
NEWS_MAX = 1024

State = Literal["detached", "connecting", "greeting", "streaming", "failed"]


class Subscriber:
    """Follows one publisher. Not thread-safe.

    `start`, then `connected`, `lost`, `receive`, `imported` and `tick` as things happen. `fail` and `state == "failed"`
    are final: a divergence, a gap or an unknown version ends as a typed error, and nothing is merged. What the
    publisher says is tried a second time first: only where nothing was imported between two such answers it counts.
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
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.name, self.codecs, self.versions = name, codecs, versions
        self.log_id, self.lineage = log_id, lineage
        self.identity = identity
        """None before the first contact: then the publisher mints one."""
        self.end = end or LogEnd()
        """Where the replica's log ends; all before it is on its stable storage."""
        self.next = self.end
        """The end of the frames that were verified and given out to be imported: what the next batch must follow."""
        self.state: State = "detached"
        self.error: WalkitError | None = None
        self.welcomed = False
        """Whether a publisher has ever said where its log ends."""
        self.trouble = self.reason = ""
        """Why the last connection ended: in words, and as one of `messages.REASONS` or "connection", "silence",
        "frames" (they came damaged) or "failure"."""
        self.heard_ms: float | None = None
        """When the publisher said something on this connection; None where there is no contact."""
        self.since_ms: float | None = None
        """Since when there is no contact, or no frame was imported; None before `start`."""
        self.source_lsn = self.source_position = 0
        self.connections = self.duplicates = self.gaps = self.damaged = 0
        self.traffic = Traffic()
        """What was taken in of frames, since this object was made."""
        self.history: deque[str] = deque(maxlen=HISTORY_EVENTS)
        self.wake_at_ms: float | None = None
        self._backoff = backoff or Backoff()
        self._silence_ms = silence_ms
        self._nacked: tuple[int, float] | None = None
        self.damaged_here = 0
        self._refused_for = ""
        self._hello: Hello | None = None
        self._news: deque[tuple[int, float]] = deque()

    # -- events of the shell

    def start(self, now_ms: float) -> list[SubscriberStep]:
        """Begin."""
        self.since_ms = now_ms
        return self._connect("start", now_ms)

    def connected(self, now_ms: float) -> list[SubscriberStep]:
        """There is a connection."""
        if self.state != "connecting":
            return []
        self.state = "greeting"
        self.connections += 1
        self._heard(now_ms)
        low, high = self.versions
        self._hello = Hello(
            name=self.name,
            version_min=low,
            version_max=high,
            log_id=self.log_id,
            lineage=self.lineage,
            end=self.end,
            codecs=self.codecs,
            frame_bytes_max=self.frame_bytes_max,
            id=b"" if self.identity is None else self.identity.id,
        )
        return self._note("connected", [Say(self._hello)], now_ms)

    def lost(self, why: str, now_ms: float, reason: str = "connection") -> list[SubscriberStep]:
        """The connection is gone, or there was none to be had."""
        if self.state in ("detached", "failed"):
            return []
        self._lose_contact(now_ms)
        self.state, self.trouble, self.reason = "detached", plain_text(why), reason
        self._nacked, self.damaged_here = None, 0
        self.next = self.end
        self.wake_at_ms = now_ms + self._backoff.next_ms()
        return self._note(f"lost: {why}", [Disconnect(why)], now_ms)

    def receive(self, message: FromPublisher, now_ms: float) -> list[SubscriberStep]:
        """The publisher has said something on this connection."""
        if self.state not in ("greeting", "streaming"):
            return []
        if isinstance(message, Refusal):
            return self._refused(message, now_ms)
        try:
            check_content(message)
        except ProtocolError as error:
            return self.refused(error.code, error, now_ms)
        if isinstance(message, Challenge):
            return self._note(message, self._challenged(message, now_ms), now_ms)
        if isinstance(message, Welcome):
            return self._note(message, self._welcome(message, now_ms), now_ms)
        if self.state != "streaming":
            return []
        self._heard(now_ms)
        self._source_at(message.source_lsn, message.source_position, now_ms)
        if isinstance(message, Heartbeat):
            steps: list[SubscriberStep] = [Say(Ack(end=self.end))]
            if message.sent_position > self.next.position:
                steps += self._ask_again(now_ms)
            return self._note(message, steps, now_ms)
        return self._note(message, self._batch(message, now_ms), now_ms)

    def imported(self, end: LogEnd, now_ms: float) -> list[SubscriberStep]:
        """Frames that were given out are on stable storage; `end` is where the log ends now."""
        self.end, self.since_ms = end, now_ms
        if self.next.position < end.position:
            self.next = end
        self.damaged_here = 0
        self._refused_for = ""
        self._backoff.reset()
        while self._news and self._news[0][0] <= end.last_lsn:
            self._news.popleft()
        return self._note(f"imported to {end.position}", [Say(Ack(end=end))], now_ms)

    def refused(self, reason: str, error: WalkitError, now_ms: float) -> list[SubscriberStep]:
        """The publisher has said what ends replication for good. The first time it is asked once more."""
        if self._refused_for != reason:
            self._refused_for = reason
            return self.lost(str(error), now_ms, reason if reason in REASONS else "connection")
        return self.fail(error, now_ms)

    def fail(self, error: WalkitError, now_ms: float) -> list[SubscriberStep]:
        """Something that trying again does not mend; also for the shell, when its own disk fails."""
        self.error, self.state, self.reason = error, "failed", "failure"
        self.wake_at_ms = None
        self._lose_contact(now_ms)
        self.trouble = str(error)
        return self._note(error, [Disconnect(str(error)), Fail(error)], now_ms)

    def tick(self, now_ms: float) -> list[SubscriberStep]:
        """Time has passed; to be called at `wake_at_ms` at the latest."""
        if self.wake_at_ms is None or now_ms < self.wake_at_ms:
            return []
        if self.state == "detached":
            return self._connect("tick", now_ms)
        return self.lost("the publisher has been silent for too long", now_ms, "silence")

    def lag_ms(self, now_ms: float) -> float:
        """For how long the source has been known to be ahead of the replica; 0 where it is not."""
        return max(now_ms - self._news[0][1], 0.0) if self._news else 0.0

    # -- what comes of it

    def _connect(self, event: str, now_ms: float) -> list[SubscriberStep]:
        self.state = "connecting"
        self._heard(now_ms)
        return self._note(event, [Connect()], now_ms)

    def _heard(self, now_ms: float) -> None:
        self.wake_at_ms = now_ms + self._silence_ms
        if self.state == "streaming":
            self.heard_ms = now_ms

    def _lose_contact(self, now_ms: float) -> None:
        """There is no contact from now on; where there was none before, nothing changes."""
        if self.heard_ms is not None or self.since_ms is None:
            self.heard_ms, self.since_ms = None, now_ms

    def _source_at(self, lsn: int, position: int, now_ms: float) -> None:
        if lsn > max(self.source_lsn, self.end.last_lsn):
            if len(self._news) == NEWS_MAX:
                self._news.pop()  # the oldest gives the lag; the newest comes again
            self._news.append((lsn, now_ms))
        self.source_lsn = max(self.source_lsn, lsn)
        self.source_position = max(self.source_position, position)

    def _challenged(self, challenge: Challenge, now_ms: float) -> list[SubscriberStep]:
        """Prove the identity, once for each hello."""
        hello, self._hello = self._hello, None
        if hello is None or self.identity is None:
            return self.lost("the publisher sent a challenge that nothing asked for", now_ms, "protocol")
        self._heard(now_ms)
        return [Say(Proof(mac=proof_of(self.identity, challenge.nonce, hello)))]

    def _welcome(self, welcome: Welcome, now_ms: float) -> list[SubscriberStep]:
        if self.log_id not in (0, welcome.log_id):
            text = f"the replica is of log {self.log_id:016x}, the publisher welcomed it to {welcome.log_id:016x}"
            return self.refused("divergence", DivergenceError(text, first_lsn=1), now_ms)
        low, high = self.versions
        if not low <= welcome.version <= high:
            return self.refused("version", self._unknown_version(welcome.version, welcome.version), now_ms)
        first = self.state != "streaming"
        if first:
            self.state, self.since_ms, self.welcomed = "streaming", now_ms, True
        self._heard(now_ms)
        self._source_at(welcome.source_lsn, welcome.source_position, now_ms)
        steps: list[SubscriberStep] = []
        if welcome.id and first:
            self.identity = Identity(welcome.id, welcome.secret)
            steps.append(Keep(self.identity))
        if not self.log_id:
            self.log_id = welcome.log_id
            steps.append(Adopt(welcome))
        return steps

    def _refused(self, refusal: Refusal, now_ms: float) -> list[SubscriberStep]:
        if refusal.reason not in LASTING:
            reason = refusal.reason if refusal.reason in REASONS else "protocol"
            return self.lost(refusal.message, now_ms, reason)
        error: WalkitError
        said = plain_text(refusal.message)
        if refusal.reason == "divergence":
            text = f"{said}. The first difference is LSN {refusal.lsn:,}; nothing was merged"
            error = DivergenceError(text, first_lsn=refusal.lsn)
        elif refusal.reason in ("identity", "rewound"):
            text = f"the primary refused this replica: {said}. With new_identity=True (walkit follow --new-identity) "
            error = IdentityError(
                f"{text}it follows as another one, with the data it has", reason=refusal.reason
            )
        elif refusal.reason == "gap":
            error = GapError(refusal.lsn, refusal.other_lsn)
        elif refusal.reason != "version":
            option = {"frame": "frame_bytes_max"}.get(refusal.reason, refusal.reason)
            error = OptionsError(f"the primary refused this replica: {said}", option=option)
        else:
            error = self._unknown_version(refusal.version_min, refusal.version_max)
        return self.refused(refusal.reason, error, now_ms)

    def _unknown_version(self, low: int, high: int) -> FormatVersionError:
        ours = f"{self.versions[0]} to {self.versions[1]}"
        return FormatVersionError(
            "the publisher's replication protocol", found=f"{low} to {high}", supported=ours
        )

    def _batch(self, batch: Batch, now_ms: float) -> list[SubscriberStep]:
        if batch.end_position <= self.next.position:
            self.duplicates += 1
            return [Say(Ack(end=self.end))]
        if batch.after_position > self.next.position:
            self.gaps += 1
            return self._ask_again(now_ms)
        lineage = batch.lineage or self.lineage
        if self.lineage != lineage[: len(self.lineage)] and lineage != self.lineage[: len(lineage)]:
            text = "the publisher's epochs are not those that this replica has followed"
            first_lsn = _first_difference(self.lineage, lineage)
            return self.refused("divergence", DivergenceError(text, first_lsn=first_lsn), now_ms)
        begun = next((e for e in lineage if (e.number, e.id) == (batch.epoch, batch.epoch_id)), None)
        if begun is None:
            return self._ask_again(now_ms)
        run, fault = self._checked(batch)
        if run is None:
            return self._spoiled(fault, now_ms)
        self.traffic.count(batch.codec, batch.end_position - batch.start_position, len(batch.data))
        self._nacked = None
        self.next = run.end
        if len(lineage) > len(self.lineage):
            self.lineage = lineage
        return [Import(run, tuple(e for e in self.lineage if e.number <= batch.epoch))]

    def _checked(self, batch: Batch) -> tuple[FrameRun | None, FrameFault | None]:
        """Unpack and verify what follows the end of the log; what it has already is cut off."""
        size = batch.end_position - batch.start_position
        limit = max(min(batch.frame_bytes_max, self.frame_bytes_max), BATCH_BYTES_MAX)
        data = unpack(batch.data, batch.codec, size) if size <= limit else None
        if data is None or not batch.after_position <= batch.start_position:
            return None, FrameFault.SHORT
        start, at = batch.start_position, self.next.position
        if at > start:
            data, start = data[at - start :], at
        elif at != batch.after_position:
            return None, FrameFault.POSITION
        identity = FrameIdentity(self.log_id, batch.epoch, batch.epoch_id)
        limits = FrameLimits(batch.alignment, batch.frame_bytes_max)
        try:
            run, fault, _ = check_run(data, identity, limits, self.next, start)
        except FormatVersionError:
            return None, FrameFault.HEADER
        return run, fault

    def _spoiled(self, fault: FrameFault | None, now_ms: float) -> list[SubscriberStep]:
        """Frames that follow by their positions are damaged, or are of another history."""
        if fault in (FrameFault.CHAIN, FrameFault.LSN, FrameFault.EPOCH, FrameFault.FOREIGN):
            lsn = self.next.last_lsn + 1
            text = f"intact frames came from the publisher that do not follow LSN {lsn - 1:,}: {fault.value}"
            error = DivergenceError(f"{text}. Nothing was merged", first_lsn=lsn)
            return self.refused("divergence", error, now_ms)
        self.damaged += 1
        self.damaged_here += 1
        if self.damaged_here >= DAMAGED_MAX:
            return self.lost(f"frames came damaged {DAMAGED_MAX} times: {fault}", now_ms, "frames")
        self._nacked = None
        return self._ask_again(now_ms)

    def _ask_again(self, now_ms: float) -> list[SubscriberStep]:
        """Ask for all after the end of the log; once for each gap, and again after a while without progress."""
        at = self.next.position
        if self._nacked is not None and self._nacked[0] == at and now_ms - self._nacked[1] < RENACK_MS:
            return []
        self._nacked = (at, now_ms)
        return [Say(Nack(end=self.next))]

    def _check(self) -> None:
        """Assert what holds after every event; in constant time."""
        assert self.end.position <= self.next.position and self.end.last_lsn <= self.next.last_lsn
        assert (self.error is not None) == (self.state == "failed")
        assert (self.wake_at_ms is None) == (self.state == "failed" or self.since_ms is None)
        assert self.heard_ms is None or self.state == "streaming", "contact without a welcome"
        assert len(self._news) <= NEWS_MAX and 0 <= self.damaged_here <= self.damaged

    def _note(self, event: object, steps: list[SubscriberStep], now_ms: float) -> list[SubscriberStep]:
        self._check()
        self.history.append(f"{now_ms:.1f} {event!r} -> {steps!r}"[:HISTORY_CHARS])
        return steps


def _first_difference(ours: tuple[EpochRecord, ...], theirs: tuple[EpochRecord, ...]) -> int:
    for mine, other in zip(ours, theirs, strict=False):
        if mine != other:
            return min(mine.first_lsn, other.first_lsn)
    return 1
