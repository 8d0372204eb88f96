"""The publisher's core: one session with one subscriber, without I/O.

Events go in by method calls, steps come out; nothing here has a thread, a socket, a file or a clock. Times are
milliseconds of the shell's clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Literal

from walkit.format.manifest import EpochRecord, LogEnd
from walkit.replication.actions import Admit, End, MoveHold, PublisherStep, Read, Send
from walkit.replication.codecs import Traffic, chosen, pack
from walkit.replication.frame_batch import FrameRun
from walkit.replication.identity import Identity, KnownReplica, proves
from walkit.replication.lineage import Standing, judge, judge_alone, too_many_epochs
from walkit.replication.messages import (
    BATCH_BYTES_MAX,
    LINEAGE_EPOCHS_MAX,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Ack,
    Batch,
    Challenge,
    FromSubscriber,
    Heartbeat,
    Hello,
    Nack,
    Proof,
    Refusal,
    Welcome,
)

BATCH_BYTES = 256 * 1024
WINDOW_BYTES = 8 << 20
"""Bytes that may be sent and not acknowledged yet."""
BATCHES_MAX = 4096
"""Batches that may be sent and not acknowledged yet: so many ends are kept to compare acknowledgements with."""
HELLO_MS = 2_000.0
"""A subscriber says hello within this time, and has as long again for its proof."""
HEARTBEAT_MS = 500.0
SILENCE_MS = 15_000.0
HISTORY_EVENTS = 64
HISTORY_CHARS = 2048


class Publisher:
    """Sends the frames of a source to one subscriber, as fast as it acknowledges them. Not thread-safe.

    Nothing that the subscriber says is believed: an end that was not sent to it in this session ends the session.

    `began`, `greeted`, `hello` as the answer to an `Admit`, then `source_moved`, `receive`, `frames`, `refuse` and
    `tick` as things happen; each returns the steps to take, in order. A `Read` is answered by `frames` before another
    one is asked for.
    """

    def __init__(
        self,
        *,
        versions: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX),
        batch_bytes: int = BATCH_BYTES,
        window_bytes: int = WINDOW_BYTES,
        heartbeat_ms: float = HEARTBEAT_MS,
        silence_ms: float = SILENCE_MS,
        hello_ms: float = HELLO_MS,
    ) -> None:
        self.versions, self.window_bytes = versions, window_bytes
        self.batch_bytes = min(batch_bytes, BATCH_BYTES_MAX)
        self.heartbeat_ms, self.silence_ms, self.hello_ms = heartbeat_ms, silence_ms, hello_ms
        self.state: Literal["waiting", "challenged", "streaming", "ended"] = "waiting"
        self.name = ""
        self.key = ""
        """The subscriber's id as hexadecimal digits, once it is welcome."""
        self.codec = ""
        self.traffic = Traffic()
        """What was sent of frames in this session."""
        self.sent = LogEnd()
        """Where what was sent ends; moves back when the subscriber asks for it again."""
        self.acked = LogEnd()
        self.history: deque[str] = deque(maxlen=HISTORY_EVENTS)
        """The last events and what came of them, to be read when something went wrong."""
        self._ends = [LogEnd()]
        """Ends of what was sent, in order of position, from the acknowledged one on."""
        self._began_at = self._furthest = 0
        """Positions of the end that the subscriber came with, and of the furthest that was ever sent."""
        self._asked = self._held = False
        self._frame_bytes_max = 0
        self._source_lsn = self._source_position = 0
        self._lineage_sent = False
        self._epoch: tuple[int, int] | None = None
        self._reading = False
        self._hello: Hello | None = None
        self._known: KnownReplica | None = None
        self._nonce = b""
        self._sent_ms = self._heard_ms = 0.0

    @property
    def in_flight_bytes(self) -> int:
        """Bytes sent and not acknowledged."""
        return self.sent.position - self.acked.position

    @property
    def wake_at_ms(self) -> float | None:
        """When to call `tick` at the latest."""
        if self.state == "ended":
            return None
        if self.state in ("waiting", "challenged"):
            return self._heard_ms + self.hello_ms
        return min(self._sent_ms + self.heartbeat_ms, self._heard_ms + self.silence_ms)

    def began(self, now_ms: float) -> None:
        """The call has begun: the subscriber has `hello_ms` to say hello."""
        self._sent_ms = self._heard_ms = now_ms

    def greeted(
        self, hello: Hello, known: KnownReplica | None, nonce: bytes, now_ms: float
    ) -> list[PublisherStep]:
        """The subscriber has sent its hello; `known` is what is kept of its id, `nonce` what no one else was sent."""
        self._sent_ms = self._heard_ms = now_ms
        if self.state != "waiting":
            return self.refuse(Refusal(reason="protocol", message="a second hello"), now_ms)
        refusal = judge_alone(hello, self.versions)
        if refusal is not None:
            return self.refuse(refusal, now_ms)
        self.name = hello.name
        if known is None:
            return self._note(hello, [Admit(hello, proved=False)], now_ms)
        assert known.identity.id == hello.id
        self.state = "challenged"
        self._hello, self._known, self._nonce = hello, known, nonce
        return self._note(hello, [Send(Challenge(nonce=nonce))], now_ms)

    def _proved(self, message: FromSubscriber, now_ms: float) -> list[PublisherStep]:
        """The subscriber has answered the challenge; no answer is good for another one."""
        hello, known, nonce = self._hello, self._known, self._nonce
        assert hello is not None and known is not None
        self._hello, self._nonce = None, b""
        self.state = "waiting"
        if not isinstance(message, Proof):
            text = f"replica {self.name!r} answers a challenge with {type(message).__name__}"
            return self.refuse(Refusal(reason="protocol", message=text), now_ms)
        if not proves(message.mac, known.identity, nonce, hello):
            text = f"replica {self.name!r} has not proved that it is {known.identity.key}"
            return self.refuse(Refusal(reason="identity", message=text), now_ms)
        return self._note("proof", [Admit(hello, proved=True)], now_ms)

    def hello(
        self, hello: Hello, standing: Standing, now_ms: float, minted: Identity | None = None
    ) -> list[PublisherStep]:
        """The subscriber is admitted; `standing` is what the source has, `minted` an identity for a new one."""
        self._sent_ms = self._heard_ms = now_ms
        if self.state != "waiting":
            return self.refuse(Refusal(reason="protocol", message="a second hello"), now_ms)
        refusal = judge(hello, standing, self.versions) or self._rewound(hello)
        if refusal is not None:
            return self.refuse(refusal, now_ms)
        self.state, self.name = "streaming", hello.name
        self.key = hello.id.hex() if minted is None else minted.key
        self.codec = chosen(hello.codecs)
        self.sent = self.acked = hello.end
        self._ends = [hello.end]
        self._began_at = self._furthest = hello.end.position
        self._frame_bytes_max = hello.frame_bytes_max
        self._source_lsn, self._source_position = standing.durable_lsn, standing.durable_position
        welcome = Welcome(
            version=min(self.versions[1], hello.version_max),
            log_id=standing.log_id,
            created_us=standing.created_us,
            ack_order=standing.ack_order,
            source_lsn=standing.durable_lsn,
            source_position=standing.durable_position,
            id=b"" if minted is None else minted.id,
            secret=b"" if minted is None else minted.secret,
        )
        return self._note("admitted", [Send(welcome), *self._pump()], now_ms)

    def _rewound(self, hello: Hello) -> Refusal | None:
        """Return the refusal of a replica that ends below what it has acknowledged before: it was put back."""
        acked = LogEnd() if self._known is None else self._known.acked
        if hello.end.position >= acked.position:
            return None
        text = (
            f"replica {hello.name!r} has acknowledged LSN {acked.last_lsn:,} before and ends at {hello.end.last_lsn:,} "
            "now: its folder was put back to an earlier state"
        )
        return Refusal(reason="rewound", message=text, lsn=hello.end.last_lsn, other_lsn=acked.last_lsn)

    def source_moved(self, lsn: int, position: int, now_ms: float) -> list[PublisherStep]:
        """The source is on stable storage up to here."""
        if self.state != "streaming" or position <= self._source_position:
            return []
        self._source_lsn, self._source_position = lsn, position
        return self._note(f"source at {position}", self._pump(), now_ms)

    def receive(self, message: FromSubscriber, now_ms: float) -> list[PublisherStep]:
        """The subscriber has said something after its hello."""
        if self.state == "challenged":
            return self._proved(message, now_ms)
        if self.state != "streaming":
            return []
        self._heard_ms = now_ms
        wrong = self._wrong(message)
        if wrong or isinstance(message, Hello | Proof):
            return self.refuse(Refusal(reason="protocol", message=f"replica {self.name!r} {wrong}"), now_ms)
        end = message.end
        steps: list[PublisherStep] = []
        if isinstance(message, Ack):
            steps += self._acknowledged(end)
        else:
            self.sent = end
            self._lineage_sent = False
            # The subscriber drops what was sent after it, and gets that before what is sent again.
            del self._ends[self._index(end) + 1 :]
        return self._note(message, [*steps, *self._pump()], now_ms)

    def _wrong(self, message: FromSubscriber) -> str:
        """Return what is wrong with a message after the hello, in words; "" where it fits what was sent."""
        if isinstance(message, Hello):
            return "says hello a second time"
        if isinstance(message, Proof):
            return "proves what it was not asked"
        end, nack = message.end, isinstance(message, Nack)
        what = f"{'asks again from' if nack else 'acknowledges'} LSN {end.last_lsn:,} at position {end.position:,}"
        index = self._index(end)
        if end.position < self.acked.position:
            return f"{what}, and it has acknowledged position {self.acked.position:,} before"
        if index == len(self._ends) or self._ends[index] != end:
            return f"{what}, which was never sent to it: the last was {self._ends[-1]}"
        if nack and end.position == self._furthest:
            return f"{what}, after which nothing was ever sent to it"
        return ""

    def _index(self, end: LogEnd) -> int:
        """Return the index among the ends of one at this position, or where it would be inserted."""
        return bisect_left(self._ends, end.position, key=lambda sent: sent.position)

    def _acknowledged(self, end: LogEnd) -> list[PublisherStep]:
        """Take a checked acknowledgement. The hold begins with the first one that answers something sent."""
        moved = end.position > self.acked.position
        self.acked = end
        del self._ends[: self._index(end)]
        answers = end.position > self._began_at or (self._asked and end.position > 0)
        if not (moved or not self._held) or not answers:
            return []
        self._held = True
        return [MoveHold(end.last_lsn + 1)]

    def frames(
        self, run: FrameRun | None, lineage: tuple[EpochRecord, ...], now_ms: float
    ) -> list[PublisherStep]:
        """The answer to `Read`; None where there is nothing yet. `lineage` is the source's."""
        self._reading = False
        if self.state != "streaming" or run is None:
            return []
        if run.after != self.sent:
            return self._pump()
        limit = self._frame_bytes_max
        if len(run.data) > limit and (size := max(h.footprint for h in run.headers)) > limit:
            text = (
                f"the log has a frame of {size:,} bytes after LSN {run.after.last_lsn:,}, and the replica takes "
                f"{limit:,}: give it options=LogOptions(frame_bytes_max=...) of at least that"
            )
            return self.refuse(Refusal(reason="frame", message=text, lsn=run.first_lsn), now_ms)
        epoch = (run.identity.epoch, run.identity.epoch_id)
        known = self._lineage_sent and epoch == self._epoch
        lineage = () if known else tuple(e for e in lineage if e.number <= epoch[0])
        if len(lineage) > LINEAGE_EPOCHS_MAX:
            return self.refuse(too_many_epochs(len(lineage)), now_ms)
        codec, data = pack(run.data, self.codec)
        self.traffic.count(codec, len(run.data), len(data))
        batch = Batch(
            after_position=run.after.position,
            start_position=run.start_position,
            end_position=run.end.position,
            epoch=run.identity.epoch,
            epoch_id=run.identity.epoch_id,
            alignment=run.limits.alignment,
            frame_bytes_max=run.limits.frame_bytes_max,
            source_lsn=self._source_lsn,
            source_position=self._source_position,
            lineage=lineage,
            codec=codec,
            data=data,
        )
        self._lineage_sent, self._epoch = True, epoch
        self.sent = run.end
        self._ends.append(run.end)
        self._furthest = max(self._furthest, run.end.position)
        self._sent_ms = now_ms
        return self._note(run, [Send(batch), *self._pump()], now_ms)

    def refuse(self, refusal: Refusal, now_ms: float) -> list[PublisherStep]:
        """Send the subscriber the reason, and end."""
        if self.state == "ended":
            return []
        self.state, self._nonce = "ended", b""
        return self._note(refusal, [Send(refusal), End(refusal.message)], now_ms)

    def tick(self, now_ms: float) -> list[PublisherStep]:
        """Time has passed."""
        if self.state in ("waiting", "challenged") and now_ms - self._heard_ms >= self.hello_ms:
            what = "hello" if self.state == "waiting" else "its proof"
            text = f"the subscriber has not said {what} within {self.hello_ms:,.0f} ms"
            return self.refuse(Refusal(reason="protocol", message=text), now_ms)
        if self.state != "streaming":
            return []
        if now_ms - self._heard_ms >= self.silence_ms:
            self.state = "ended"
            return self._note("tick", [End("the subscriber has been silent for too long")], now_ms)
        if now_ms - self._sent_ms < self.heartbeat_ms:
            return []
        self._sent_ms = now_ms
        self._asked = True
        beat = Heartbeat(
            sent_position=self.sent.position,
            source_lsn=self._source_lsn,
            source_position=self._source_position,
        )
        return [Send(beat), *self._pump()]

    def _pump(self) -> list[PublisherStep]:
        """Ask for more frames where there are some and the window has room."""
        if (
            self._reading
            or self.sent.position >= self._source_position
            or self.in_flight_bytes >= self.window_bytes
            or len(self._ends) > BATCHES_MAX
        ):
            return []
        self._reading = True
        return [Read(self.sent, self.batch_bytes)]

    def _check(self) -> None:
        """Assert what holds after every event; in constant time."""
        assert self._ends[0] == self.acked and self._ends[-1] == self.sent
        assert self._began_at <= self.acked.position <= self.sent.position <= self._furthest
        assert self.acked.last_lsn <= self.sent.last_lsn
        assert len(self._ends) <= BATCHES_MAX + 1
        assert not self._reading or self.state in ("streaming", "ended"), "it reads before anybody is welcome"
        assert bool(self._nonce) == (self.state == "challenged")

    def _note(self, event: object, steps: list[PublisherStep], now_ms: float) -> list[PublisherStep]:
        self._check()
        self.history.append(f"{now_ms:.1f} {event!r} -> {steps!r}"[:HISTORY_CHARS])
        return steps
