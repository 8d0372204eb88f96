"""The publisher's core: one session with one subscriber, without I/O.

Events go in by method calls, steps come out; nothing here has a thread, a socket, a file or a clock. Times are
milliseconds of the shell's clock.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

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
    in_brief,
)
from walkit.replication.core.answers import batch_of, frame_too_large, index_of, welcome_of, wrong_after_hello
from walkit.replication.core.bootstrap import wrong_fetch
from walkit.replication.core.lag import Lag
from walkit.replication.core.states import StateTracker
from walkit.replication.protocol.codecs import Traffic, chosen, pack
from walkit.replication.protocol.frame_run import FrameRun
from walkit.replication.protocol.identity import key_of
from walkit.replication.protocol.lineage import (
    PrimaryState,
    rewound,
    too_many_epochs,
    why_refused,
    why_unservable,
)
from walkit.replication.protocol.messages import (
    BATCH_BYTES_MAX,
    LINEAGE_EPOCHS_MAX,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Ack,
    Chunk,
    Fetch,
    FromSubscriber,
    Heartbeat,
    Hello,
    Plan,
    Refusal,
)

BATCH_BYTES = 256 * 1024
WINDOW_BYTES = 8 << 20
"""Bytes that may be sent and not acknowledged yet."""
BATCHES_MAX = 4096
"""The most batches sent and not acknowledged: their ends are kept to compare acknowledgements with."""
HELLO_MS = 2_000.0
"""A subscriber says hello within this time."""
HEARTBEAT_MS = 2_000.0
CONTACT_MS = 3 * HEARTBEAT_MS
"""A primary with nothing to send sends a heartbeat every `HEARTBEAT_MS`; after this time its end is unknown."""
SILENCE_MS = 15_000.0
HISTORY_EVENTS = 64
HISTORY_CHARS = 2048

CoreState = Literal["waiting", "streaming", "planning", "bootstrapping", "ended"]


class Publisher:
    """Sends the frames of a source to one subscriber, as fast as it acknowledges them. Not thread-safe.

    Nothing that the subscriber says is believed: an end that was not sent to it in this session ends the session.

    `began`, `greeted`, `admitted` as the answer to an `Admit`, then `source_moved`, `receive`, `frames`, `refuse` and
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
        self.state: CoreState = "waiting"
        """Decides how a message is handled; `states` shows the same, and separates streaming from catching up."""
        self.states = StateTracker("session", "waiting")
        self.lag = Lag()
        self.name = ""
        self.key = ""
        """The key of the subscriber's id, once it is welcome."""
        self.codec = ""
        self.log_id = 0
        """The log that the subscriber is welcome to."""
        """How frames are compressed; the shell may set one that several sessions share."""
        self.traffic = Traffic()
        """Frames sent in this session."""
        self.sent = LogEnd()
        """End of the frames sent; moves back when the subscriber asks for them again."""
        self.acked = LogEnd()
        self.history: deque[str] = deque(maxlen=HISTORY_EVENTS)
        """The last events and their outcomes, for diagnosis."""
        self._ends = [LogEnd()]
        """Ends of the batches sent, in order of position, from the acknowledged one on."""
        self._began_at = self._furthest = 0
        """Positions of the end that the subscriber came with, and of the furthest that was ever sent."""
        self._again: LogEnd | None = None
        """Where the newest frame begins, which is sent again to a subscriber that has all."""
        self._answers = self._claimed = False
        """Whether an acknowledgement of the end that the subscriber came with answers a frame that was sent to it."""
        self._frame_bytes_max = 0
        self._lineage_sent = False
        self._epoch: tuple[int, int] | None = None
        self._reading = False
        self._sizes: tuple[int, ...] = ()
        """Sizes of the files of the plan sent to the subscriber."""
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
        if self.state == "waiting":
            return self._heard_ms + self.hello_ms
        return min(self._sent_ms + self.heartbeat_ms, self._heard_ms + self.silence_ms)

    def began(self, now_ms: float) -> None:
        """The call was opened: the subscriber has `hello_ms` to send its hello."""
        self._sent_ms = self._heard_ms = now_ms
        self.states.begin(now_ms)

    def greeted(self, hello: Hello, now_ms: float) -> list[PublisherStep]:
        """The subscriber has sent its hello."""
        self._sent_ms = self._heard_ms = now_ms
        if self.state != "waiting":
            return self.refuse(Refusal(reason="protocol", message="a second hello"), now_ms)
        refusal = why_unservable(hello, self.versions)
        if refusal is None and not hello.id:
            refusal = Refusal(reason="protocol", message="a replica without an id")
        if refusal is not None:
            return self.refuse(refusal, now_ms)
        self.name = hello.name
        return self._note(hello, [Admit(hello)], now_ms)

    def admitted(
        self,
        hello: Hello,
        primary: PrimaryState,
        now_ms: float,
        acked: LogEnd = LogEnd(),  # noqa: B008 - it is frozen
    ) -> list[PublisherStep]:
        """The subscriber is admitted; `primary` is the state of the source.

        `acked` is how far the subscriber has acknowledged before, as its claim says.
        """
        self._sent_ms = self._heard_ms = now_ms
        if self.state != "waiting":
            return self.refuse(Refusal(reason="protocol", message="a second hello"), now_ms)
        refusal = why_refused(hello, primary, self.versions)
        bootstraps = hello.bootstrap and refusal is not None and refusal.reason == "gap"
        refusal = None if bootstraps else refusal or rewound(hello, acked)
        if refusal is not None:
            return self.refuse(refusal, now_ms)
        self.name, self.key = hello.name, key_of(hello.id)
        self.codec, self.log_id = chosen(hello.codecs), primary.log_id
        self.sent = self.acked = hello.end
        self._ends = [hello.end]
        self._began_at = self._furthest = hello.end.position
        self._frame_bytes_max, self._again = hello.frame_bytes_max, primary.before_newest
        self.lag.source_at(primary.durable_lsn, primary.durable_position, hello.end.last_lsn, now_ms)
        self._enter("planning" if bootstraps else "streaming", now_ms)
        welcome = welcome_of(primary, min(self.versions[1], hello.version_max))
        return self._note(
            "admitted", [Send(welcome), *([MakePlan()] if bootstraps else self._pump())], now_ms
        )

    def planned(self, plan: Plan, now_ms: float) -> list[PublisherStep]:
        """The answer to `MakePlan`: the records that the subscriber needs are claimed for it."""
        if self.state != "planning":
            return []
        self._sizes = plan.sizes
        self._enter("bootstrapping", now_ms)
        self._sent_ms = self._heard_ms = now_ms
        return self._note("planned", [Send(plan)], now_ms)

    def part(self, fetch: Fetch, data: bytes, now_ms: float) -> list[PublisherStep]:
        """The answer to `ReadPart`."""
        if self.state != "bootstrapping":
            return []
        self._sent_ms = now_ms
        self.traffic.count("", len(data), len(data))
        return [Send(Chunk(file=fetch.file, offset=fetch.offset, data=data))]

    def source_moved(self, lsn: int, position: int, now_ms: float) -> list[PublisherStep]:
        """The source is on stable storage up to here."""
        if self.state != "streaming" or position <= self.lag.source_position:
            return []
        self.lag.source_at(lsn, position, self.acked.last_lsn, now_ms)
        return self._note(f"source at {position}", self._pump(), now_ms)

    def receive(self, message: FromSubscriber, now_ms: float) -> list[PublisherStep]:
        """The subscriber has said something after its hello."""
        if self.state == "bootstrapping":
            return self._on_plan_request(message, now_ms)
        if self.state != "streaming":
            return []
        self._heard_ms = now_ms
        wrong = wrong_after_hello(message, self._ends, self.acked, self._furthest)
        if wrong or isinstance(message, Hello | Fetch):
            return self.refuse(Refusal(reason="protocol", message=f"replica {self.name!r} {wrong}"), now_ms)
        end = message.end
        steps: list[PublisherStep] = []
        if isinstance(message, Ack):
            steps += self._acknowledged(end)
        else:
            self.sent = end
            self._lineage_sent = False
            # The subscriber drops the frames sent after it, which come before those sent again.
            del self._ends[index_of(self._ends, end) + 1 :]
        return self._note(message, [*steps, *self._pump()], now_ms)

    def _on_plan_request(self, message: FromSubscriber, now_ms: float) -> list[PublisherStep]:
        """Handle a message of a subscriber that has a plan; an answer to a heartbeat shows only that it lives."""
        self._heard_ms = now_ms
        if isinstance(message, Ack):
            return []
        wrong = wrong_fetch(message, self._sizes) if isinstance(message, Fetch) else "sends what fits no plan"
        if wrong or not isinstance(message, Fetch):
            return self.refuse(Refusal(reason="protocol", message=f"replica {self.name!r} {wrong}"), now_ms)
        return [ReadPart(message)]

    def _acknowledged(self, end: LogEnd) -> list[PublisherStep]:
        """Take a checked acknowledgement. Only one that answers a frame of this session moves the claim."""
        moved = end.position > self.acked.position
        self.acked = end
        self.lag.reached(end.last_lsn)
        del self._ends[: index_of(self._ends, end)]
        self._answers |= end.position > self._began_at
        if not self._answers or (self._claimed and not moved):
            return []
        self._claimed = True
        return [MoveClaim(end)]

    def frames(
        self, run: FrameRun | None, lineage: tuple[EpochRecord, ...], now_ms: float
    ) -> list[PublisherStep]:
        """The answer to `Read`; None if there is nothing yet. `lineage` is the source's."""
        self._reading = False
        again, self._again = self._again, None
        if self.state != "streaming" or (run is None and again is None):
            return []
        if run is None or run.after not in (self.sent, again):
            return self._pump()
        refusal = frame_too_large(run, self._frame_bytes_max)
        if refusal is not None:
            return self.refuse(refusal, now_ms)
        epoch = (run.identity.epoch, run.identity.epoch_id)
        known = self._lineage_sent and epoch == self._epoch
        lineage = () if known else tuple(e for e in lineage if e.number <= epoch[0])
        if len(lineage) > LINEAGE_EPOCHS_MAX:
            return self.refuse(too_many_epochs(len(lineage)), now_ms)
        codec, data = pack(run.data, self.codec)
        self.traffic.count(codec, len(run.data), len(data))
        batch = batch_of(run, lineage, codec, data, self.lag)
        self._lineage_sent, self._epoch = True, epoch
        self._answers |= again is not None
        if run.end.position > self.sent.position:
            self.sent = run.end
            self._ends.append(run.end)
        self._furthest = max(self._furthest, run.end.position)
        self._sent_ms = now_ms
        return self._note(run, [Send(batch), *self._pump()], now_ms)

    def refuse(self, refusal: Refusal, now_ms: float) -> list[PublisherStep]:
        """Send the subscriber the reason, and end."""
        if self.state == "ended":
            return []
        self._enter("ended", now_ms, refusal.message)
        return self._note(refusal, [Send(refusal), End(refusal.message)], now_ms)

    def tick(self, now_ms: float) -> list[PublisherStep]:
        """Time has passed."""
        if self.state == "waiting" and now_ms >= self._heard_ms + self.hello_ms:
            text = f"the subscriber has not said hello within {self.hello_ms:,.0f} ms"
            return self.refuse(Refusal(reason="protocol", message=text), now_ms)
        if self.state not in ("streaming", "bootstrapping"):
            return []
        if now_ms >= self._heard_ms + self.silence_ms:
            detail = "the subscriber has been silent for too long"
            self._enter("ended", now_ms, detail)
            return self._note("tick", [End(detail)], now_ms)
        self._update_states(now_ms)
        if now_ms < self._sent_ms + self.heartbeat_ms:
            return []
        self._sent_ms = now_ms
        beat = Heartbeat(
            sent_position=self.sent.position,
            source_lsn=self.lag.source_lsn,
            source_position=self.lag.source_position,
        )
        return [Send(beat), *self._pump()]

    @property
    def has_sent_all(self) -> bool:
        """Whether all frames that the source is known to have were sent."""
        return self.sent.position >= self.lag.source_position

    def gone(self, now_ms: float, detail: str) -> None:
        """The call is over, for whatever reason. Where the core has ended before, that one stays."""
        if self.state != "ended":
            self._enter("ended", now_ms, detail)

    def heard_ago_ms(self, now_ms: float) -> float:
        """Return how long ago the subscriber has said something."""
        return max(now_ms - self._heard_ms, 0.0)

    def _enter(self, state: CoreState, now_ms: float, detail: str = "") -> None:
        """Change the state, as the table of states allows it."""
        self.state = state
        self.states.move(
            self.lag.begin(self.acked.last_lsn) if state == "streaming" else state, now_ms, detail
        )

    def _update_states(self, now_ms: float) -> None:
        """Return whether the subscriber catches up or has all but the last moment's frames."""
        if self.state == "streaming":
            self.states.move(self.lag.next_state(self.states.state, self.acked.last_lsn, now_ms), now_ms)

    def _pump(self) -> list[PublisherStep]:
        """Read more frames if the source has some and the window has room; first the frames to be sent again."""
        if self._again is not None and self.state == "streaming" and not self._reading:
            self._reading = True
            return [Read(self._again, self.batch_bytes)]
        if (
            self._reading
            or self.state != "streaming"
            or self.sent.position >= self.lag.source_position
            or self.in_flight_bytes >= self.window_bytes
            or len(self._ends) > BATCHES_MAX
        ):
            return []
        self._reading = True
        return [Read(self.sent, self.batch_bytes)]

    def _check(self) -> None:
        """Assert the invariants after every event; in constant time."""
        assert self._ends[0] == self.acked and self._ends[-1] == self.sent
        assert self._began_at <= self.acked.position <= self.sent.position <= self._furthest
        assert self.acked.last_lsn <= self.sent.last_lsn
        assert len(self._ends) <= BATCHES_MAX + 1
        assert not self._reading or self.state in ("streaming", "ended"), "it reads before anybody is welcome"

    def _note(self, event: object, steps: list[PublisherStep], now_ms: float) -> list[PublisherStep]:
        self._update_states(now_ms)
        self._check()
        steps_text = ", ".join(map(in_brief, steps))
        self.history.append(f"{now_ms:.1f} {in_brief(event)} -> [{steps_text}]"[:HISTORY_CHARS])
        return steps
