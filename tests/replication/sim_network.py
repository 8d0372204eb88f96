"""Shared by the replication tests: frames of a real log as a source without I/O, and a link that does its worst."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from tests.support.imports import frames_of, log_of_epochs
from walkit.format.frame import FrameHeader, FrameIdentity
from walkit.format.manifest import EpochRecord, LogEnd, Manifest
from walkit.format.segment import SegmentHeader
from walkit.replication.core.actions import (
    Admit,
    Adopt,
    Connect,
    Disconnect,
    End,
    Fail,
    Import,
    Keep,
    MoveClaim,
    PublisherStep,
    Read,
    Send,
    SendToPublisher,
    SubscriberStep,
)
from walkit.replication.core.backoff import Backoff
from walkit.replication.core.publisher import Publisher
from walkit.replication.core.subscriber import Subscriber
from walkit.replication.protocol.frame_run import FrameLimits, FrameRun
from walkit.replication.protocol.identity import Identity, mint
from walkit.replication.protocol.lineage import PrimaryState
from walkit.replication.protocol.messages import Batch, FromPublisher, FromSubscriber, Hello, Refusal
from walkit.replication.protocol.wire import (
    decode_from_publisher,
    decode_from_subscriber,
    encode_from_publisher,
    encode_from_subscriber,
)
from walkit.segments.manifest_store import load_manifest

Frame = tuple[SegmentHeader, FrameHeader, bytes]


class History:
    """The frames of one log, of which a growing prefix is durable."""

    def __init__(self, frames: list[Frame], manifest: Manifest) -> None:
        self.frames, self.manifest = frames, manifest
        self.durable = 0
        """So many frames are durable."""

    def end(self, count: int | None = None) -> LogEnd:
        """Where the log ends behind so many frames."""
        count = self.durable if count is None else count
        if not count:
            return LogEnd()
        header = self.frames[count - 1][1]
        return LogEnd(last_lsn=header.last_lsn, position=header.end_position, chain=header.header_crc)

    def lineage(self) -> tuple[EpochRecord, ...]:
        """The epochs that have a durable frame."""
        epochs = {f[0].epoch for f in self.frames[: self.durable]}
        return tuple(e for e in self.manifest.lineage if e.number in epochs)

    def primary_state(self, hello: Hello) -> PrimaryState:
        """See `walkit.replication.source.primary_state_of`."""
        end = self.end()
        there = next(
            (e for e in map(self.end, range(self.durable + 1)) if e.position == hello.end.position), None
        )
        has_all = self.durable and hello.end == end
        return PrimaryState(
            before_newest=self.end(self.durable - 1) if has_all else None,
            log_id=self.manifest.log_id,
            created_us=self.manifest.created_us,
            ack_order="append",
            lineage=self.lineage(),
            durable_lsn=end.last_lsn,
            durable_position=end.position,
            oldest_lsn=1,
            oldest_position=0,
            there=there,
            visible_lsn=end.last_lsn,
        )

    def read(self, after: LogEnd, limit_bytes: int) -> FrameRun | None:
        """See `walkit.replication.source.FrameReader.read`."""
        rest = [f for f in self.frames[: self.durable] if f[1].position >= after.position]
        if not rest:
            return None
        segment, size = rest[0][0], 0
        group: list[Frame] = []
        for frame in rest:
            if frame[0].epoch != segment.epoch or (group and size + len(frame[2]) > limit_bytes):
                break
            group.append(frame)
            size += len(frame[2])
        return FrameRun(
            FrameIdentity(segment.log_id, segment.epoch, segment.epoch_id),
            FrameLimits(segment.alignment, segment.frame_bytes_max),
            after,
            group[0][1].position,
            tuple(f[1] for f in group),
            b"".join(f[2] for f in group),
        )


_frames: dict[tuple[int, ...], tuple[list[Frame], Manifest]] = {}


def history_of(*steps: int) -> History:
    """A history of so many epochs, each of so many steps; made once."""
    if steps not in _frames:
        storage = log_of_epochs(*steps)
        _frames[steps] = frames_of(storage), load_manifest(storage)
    return History(*_frames[steps])


class World:
    """One publisher and one subscriber core with a link between them; messages travel as the bytes of the wire."""

    def __init__(self, history: History, *, window_bytes: int = 8192, batch_bytes: int = 2048) -> None:
        self.history = history
        self.window_bytes, self.batch_bytes = window_bytes, batch_bytes
        self.now = 0.0
        self.to_publisher: deque[bytes] = deque()
        self.to_subscriber: deque[bytes] = deque()
        self.publisher: Publisher | None = None
        self.bytes = b""
        """The replica's bytes on stable storage."""
        self.end = LogEnd()
        self.lineage: tuple[EpochRecord, ...] = ()
        self.log_id = 0
        self.identity: Identity | None = None
        """Also on the replica's stable storage."""
        self.holds: list[int] = []
        self.waiting: deque[Import] = deque()
        self.failed: list[Exception] = []
        self.subscriber = self._subscriber()
        self.subscribed(self.subscriber.start(self.now))

    def _subscriber(self) -> Subscriber:
        backoff = Backoff(chance=lambda: 0.5)
        return Subscriber(
            "r",
            log_id=self.log_id,
            lineage=self.lineage,
            end=self.end,
            backoff=backoff,
            identity=self.identity or mint(),
            keeps=self.identity is not None,
        )

    # -- shells

    def published(self, steps: list[PublisherStep]) -> None:
        """Take the publisher's steps."""
        todo = deque(steps)
        while todo and self.publisher is not None:
            step = todo.popleft()
            if isinstance(step, Send):
                # This subscriber's answers always fit the messages sent to it, whatever the link did to those.
                assert not isinstance(step.message, Refusal) or "replica 'r'" not in step.message.message
                self.to_subscriber.append(encode_from_publisher(step.message))
            elif isinstance(step, Read):
                run = self.history.read(step.after, step.limit_bytes)
                todo.extend(self.publisher.frames(run, self.history.lineage(), self.now))
            elif isinstance(step, Admit):
                todo.extend(self._admitted(step))
            elif isinstance(step, End):
                self.publisher = None
            else:
                assert isinstance(step, MoveClaim)
                self.holds.append(step.acked.last_lsn + 1)
        if self.publisher is not None:
            assert self.publisher.in_flight_bytes <= self.window_bytes + 64 * 1024

    def _admitted(self, step: Admit) -> list[PublisherStep]:
        """Answer a hello, as a session does."""
        assert self.publisher is not None
        return self.publisher.admitted(step.hello, self.history.primary_state(step.hello), self.now)

    def subscribed(self, steps: list[SubscriberStep]) -> None:
        """Take the subscriber's steps; frames wait to be imported."""
        for step in steps:
            if isinstance(step, SendToPublisher):
                self.to_publisher.append(encode_from_subscriber(step.message))
            elif isinstance(step, Import):
                self.waiting.append(step)
            elif isinstance(step, Connect):
                self.disconnect()
                self.publisher = Publisher(window_bytes=self.window_bytes, batch_bytes=self.batch_bytes)
                self.publisher.began(self.now)
                self.subscribed(self.subscriber.connected(self.now))
            elif isinstance(step, Disconnect):
                self.disconnect()
            elif isinstance(step, Keep):
                self.identity = step.identity
            elif isinstance(step, Adopt):
                self.log_id = step.welcome.log_id
            elif isinstance(step, Fail):
                self.failed.append(step.error)

    def import_waiting(self) -> None:
        """Make all imports under way durable."""
        while self.waiting:
            step = self.waiting.popleft()
            assert step.run.after == self.end
            self.bytes += step.run.data
            self.end, self.lineage = step.run.end, step.lineage
            self.subscribed(self.subscriber.imported(self.end, self.now))

    def disconnect(self) -> None:
        """The connection is gone, with all that was on its way."""
        self.publisher = None
        self.to_publisher.clear()
        self.to_subscriber.clear()

    # -- what happens

    def deliver_to_publisher(self, data: bytes) -> None:
        """The publisher gets a message."""
        message: FromSubscriber = decode_from_subscriber(data)
        if self.publisher is None:
            return
        if isinstance(message, Hello) and self.publisher.state == "waiting":
            self.published(self.publisher.greeted(message, self.now))
        elif not isinstance(message, Hello):
            self.published(self.publisher.receive(message, self.now))

    def deliver_to_subscriber(self, data: bytes) -> None:
        """The subscriber gets a message."""
        message: FromPublisher = decode_from_publisher(data)
        if not isinstance(message, Batch):
            self.import_waiting()
        self.subscribed(self.subscriber.receive(message, self.now))

    def wait(self, ms: float) -> None:
        """Time passes."""
        self.import_waiting()
        self.now += ms
        if self.publisher is not None:
            self.published(self.publisher.tick(self.now))
        self.subscribed(self.subscriber.tick(self.now))

    def settle(self, rounds: int = 2000) -> None:
        """Let the link be perfect until both sides have nothing more to say."""
        for _ in range(rounds):
            while self.to_publisher or self.to_subscriber:
                if self.to_publisher:
                    self.deliver_to_publisher(self.to_publisher.popleft())
                if self.to_subscriber:
                    self.deliver_to_subscriber(self.to_subscriber.popleft())
                self.import_waiting()
            if self.failed or self.end == self.history.end():
                return
            self.wait(100)
        raise AssertionError(f"not equal after {rounds} rounds: {list(self.subscriber.history)[-5:]}")

    def check(self) -> None:
        """Assert that the replica is a prefix of the primary's stable storage, frame by frame."""
        whole = b"".join(f[2] for f in self.history.frames[: self.history.durable])
        assert whole[: len(self.bytes)] == self.bytes
        assert len(self.bytes) == self.end.position
        self.subscriber._check()
        if self.publisher is not None:
            self.publisher._check()
        assert self.lineage == self.history.lineage()[: len(self.lineage)]
        assert not self.failed, self.failed
        assert self.holds == sorted(self.holds) or self.subscriber.connections > 1
        assert not self.holds or self.holds[-1] <= self.end.last_lsn + 1


def corrupted(data: bytes, where: int) -> bytes:
    """A message with a flipped bit in its frames; any other message as it is."""
    message = decode_from_publisher(data)
    if not isinstance(message, Batch):
        return data
    at = where % len(message.data)
    spoiled = message.data[:at] + bytes([message.data[at] ^ 1 << (where % 8)]) + message.data[at + 1 :]
    return encode_from_publisher(replace(message, data=spoiled))
