"""The publisher's core: one session with one subscriber, without I/O.

Events go in by method calls, steps come out; nothing here has a thread, a socket, a file or a clock. Times are
milliseconds of whatever clock the shell has.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

import zstandard

from walkit.format.manifest import EpochRecord, LogEnd
from walkit.log.run import FrameRun
from walkit.replication.judge import Standing, judge
from walkit.replication.messages import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Ack,
    Batch,
    FromSubscriber,
    Heartbeat,
    Hello,
    Nack,
    Refusal,
    Welcome,
)
from walkit.replication.steps import End, MoveHold, PublisherStep, Read, Send

BATCH_BYTES = 256 * 1024
WINDOW_BYTES = 8 << 20
"""Bytes that may be sent and not acknowledged yet."""
HEARTBEAT_MS = 500.0
SILENCE_MS = 15_000.0
HISTORY_EVENTS = 64


class Publisher:
    """Sends the frames of a source to one subscriber, as fast as it acknowledges them. Not thread-safe.

    `hello`, then `source_moved`, `receive`, `frames`, `refuse` and `tick` as things happen; each returns the steps to
    take, in order. A `Read` is answered by `frames` before another one is asked for.
    """

    def __init__(
        self,
        *,
        versions: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX),
        batch_bytes: int = BATCH_BYTES,
        window_bytes: int = WINDOW_BYTES,
        heartbeat_ms: float = HEARTBEAT_MS,
        silence_ms: float = SILENCE_MS,
    ) -> None:
        self.versions, self.batch_bytes, self.window_bytes = versions, batch_bytes, window_bytes
        self.heartbeat_ms, self.silence_ms = heartbeat_ms, silence_ms
        self.state: Literal["waiting", "streaming", "ended"] = "waiting"
        self.name = ""
        self.codec = ""
        self.sent = LogEnd()
        """Where what was sent ends; moves back when the subscriber asks for it again."""
        self.acked = LogEnd()
        self.history: deque[str] = deque(maxlen=HISTORY_EVENTS)
        """The last events and what came of them, to be read when something went wrong."""
        self._furthest = 0
        self._source_lsn = self._source_position = 0
        self._lineage_sent = False
        self._epoch: tuple[int, int] | None = None
        self._reading = False
        self._sent_ms = self._heard_ms = 0.0

    @property
    def in_flight_bytes(self) -> int:
        """Bytes sent and not acknowledged."""
        return self.sent.position - self.acked.position

    @property
    def wake_at_ms(self) -> float | None:
        """When to call `tick` at the latest."""
        if self.state != "streaming":
            return None
        return min(self._sent_ms + self.heartbeat_ms, self._heard_ms + self.silence_ms)

    def hello(self, hello: Hello, standing: Standing, now_ms: float) -> list[PublisherStep]:
        """The subscriber has said who it is; `standing` is what the source has."""
        self._sent_ms = self._heard_ms = now_ms
        if self.state != "waiting":
            return self.refuse(Refusal(reason="protocol", message="a second hello"), now_ms)
        refusal = judge(hello, standing, self.versions)
        if refusal is not None:
            return self.refuse(refusal, now_ms)
        self.state, self.name = "streaming", hello.name
        self.codec = "zstd" if "zstd" in hello.codecs else ""
        self.sent = self.acked = hello.end
        self._furthest = hello.end.position
        self._source_lsn, self._source_position = standing.durable_lsn, standing.durable_position
        welcome = Welcome(
            version=min(self.versions[1], hello.version_max),
            log_id=standing.log_id,
            created_us=standing.created_us,
            ack_order=standing.ack_order,
            source_lsn=standing.durable_lsn,
            source_position=standing.durable_position,
        )
        steps: list[PublisherStep] = [MoveHold(hello.end.last_lsn + 1), Send(welcome), *self._pump()]
        return self._note(hello, steps, now_ms)

    def source_moved(self, lsn: int, position: int, now_ms: float) -> list[PublisherStep]:
        """The source is on stable storage up to here."""
        if self.state != "streaming" or position <= self._source_position:
            return []
        self._source_lsn, self._source_position = lsn, position
        return self._note(f"source at {position}", self._pump(), now_ms)

    def receive(self, message: FromSubscriber, now_ms: float) -> list[PublisherStep]:
        """The subscriber has said something after its hello."""
        if self.state != "streaming":
            return []
        self._heard_ms = now_ms
        if isinstance(message, Hello):
            return self.refuse(Refusal(reason="protocol", message="a second hello"), now_ms)
        end = message.end
        if end.position > self._furthest:
            text = f"position {end.position:,} was never sent: {self._furthest:,} is the furthest"
            return self.refuse(Refusal(reason="protocol", message=text), now_ms)
        steps: list[PublisherStep] = []
        if isinstance(message, Ack) and end.position > self.acked.position:
            self.acked = end
            steps.append(MoveHold(end.last_lsn + 1))
        if end.position > self.sent.position:
            self.sent = end  # it had come so far before it asked again for something older
        elif isinstance(message, Nack) and self.acked.position <= end.position < self.sent.position:
            self.sent = end
            self._lineage_sent = False
        return self._note(message, [*steps, *self._pump()], now_ms)

    def frames(
        self, run: FrameRun | None, lineage: tuple[EpochRecord, ...], now_ms: float
    ) -> list[PublisherStep]:
        """The answer to `Read`; None where there is nothing yet. `lineage` is the source's."""
        self._reading = False
        if self.state != "streaming" or run is None:
            return []
        if run.after != self.sent:
            return self._pump()
        epoch = (run.identity.epoch, run.identity.epoch_id)
        known = self._lineage_sent and epoch == self._epoch
        codec, data = pack(run.data, self.codec)
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
            lineage=() if known else tuple(e for e in lineage if e.number <= epoch[0]),
            codec=codec,
            data=data,
        )
        self._lineage_sent, self._epoch = True, epoch
        self.sent = run.end
        self._furthest = max(self._furthest, self.sent.position)
        self._sent_ms = now_ms
        return self._note(run, [Send(batch), *self._pump()], now_ms)

    def refuse(self, refusal: Refusal, now_ms: float) -> list[PublisherStep]:
        """Tell the subscriber why this is the end, and end."""
        if self.state == "ended":
            return []
        self.state = "ended"
        return self._note(refusal, [Send(refusal), End(refusal.message)], now_ms)

    def tick(self, now_ms: float) -> list[PublisherStep]:
        """Time has passed."""
        if self.state != "streaming":
            return []
        if now_ms - self._heard_ms >= self.silence_ms:
            self.state = "ended"
            return self._note("tick", [End("the subscriber has been silent for too long")], now_ms)
        if now_ms - self._sent_ms < self.heartbeat_ms:
            return []
        self._sent_ms = now_ms
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
        ):
            return []
        self._reading = True
        return [Read(self.sent, self.batch_bytes)]

    def _note(self, event: object, steps: list[PublisherStep], now_ms: float) -> list[PublisherStep]:
        self.history.append(f"{now_ms:.1f} {event!r} -> {steps!r}")
        return steps


def pack(data: bytes, codec: str) -> tuple[str, bytes]:
    """Return (codec, bytes) of what is sent: compressed where that is agreed and smaller."""
    if codec == "zstd":
        packed = zstandard.ZstdCompressor(level=1).compress(data)
        if len(packed) < len(data):
            return codec, packed
    return "", data
