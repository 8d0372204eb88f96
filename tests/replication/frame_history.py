"""Shared by the replication tests: frames of a real log as a source without I/O."""

from __future__ import annotations

from collections import deque

from tests.support.imports import frames_of, log_of_epochs
from walkit.format.frame import FrameHeader, FrameIdentity
from walkit.format.manifest import EpochRecord, LogEnd, Manifest
from walkit.format.segment import SegmentHeader
from walkit.replication.core.actions import PublisherStep, Read, Send
from walkit.replication.core.publisher import Publisher
from walkit.replication.protocol.frame_run import FrameLimits, FrameRun
from walkit.replication.protocol.lineage import PrimaryState
from walkit.replication.protocol.messages import Batch, FromPublisher, Hello
from walkit.segments.manifest_store import load_manifest

Frame = tuple[SegmentHeader, FrameHeader, bytes]


class History:
    """The frames of one log, of which a prefix is durable."""

    def __init__(self, frames: list[Frame], manifest: Manifest) -> None:
        self.frames, self.manifest = frames, manifest
        self.durable = len(frames)
        """So many frames are durable: all of them, until a test says otherwise."""

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


def whole() -> History:
    """A history of three epochs, all of it durable."""
    return history_of(9, 7, 8)


def messages_of(
    publisher: Publisher, history: History, steps: list[PublisherStep], now_ms: float = 0.0
) -> list[FromPublisher]:
    """The messages that a publisher of this history sends, from these steps on."""
    sent, left = list[FromPublisher](), deque(steps)
    while left:
        step = left.popleft()
        if isinstance(step, Send):
            sent.append(step.message)
        elif isinstance(step, Read):
            run = history.read(step.after, step.limit_bytes)
            left.extend(publisher.frames(run, history.lineage(), now_ms))
    return sent


def batches_of(history: History, batch_bytes: int = 2048) -> list[Batch]:
    """The batches in which a publisher sends a whole history."""
    publisher, hello = Publisher(window_bytes=1 << 30, batch_bytes=batch_bytes), Hello(name="r")
    steps = publisher.admitted(hello, history.primary_state(hello), 0)
    return [m for m in messages_of(publisher, history, steps) if isinstance(m, Batch)]
