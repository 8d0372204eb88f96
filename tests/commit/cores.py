"""Ordering cores for tests: pieces to submit, groups made into frames, and a wrong core for each rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from walkit.commit.core import NO_LIMIT, OrderingCore
from walkit.commit.frame import SealedFrame, SyncPoint
from walkit.format.body import COLUMN_BYTES_PER_RECORD, Columns
from walkit.format.frame import FrameHeader, FrameIdentity, PreparedBody, prepare_body
from walkit.format.layout import ALIGNMENT_BUFFERED, HAS_VALUE

IDENTITY = FrameIdentity(log_id=7, epoch=3, epoch_id=11)
FIRST_CHAIN = 0xC0FFEE
SEGMENT_BYTES = 1 << 14


class Piece:
    """One submission: `count` records of `value_bytes` each."""

    def __init__(self, count: int = 1, value_bytes: int = 8) -> None:
        self.count = count
        self.value_bytes = value_bytes
        self.size_bytes = count * (value_bytes + COLUMN_BYTES_PER_RECORD)
        self.submitted_us = 0
        self.first_lsn = 0
        self.frame: SealedFrame | None = None
        self.latch: Any = None
        self.callbacks: list[Any] | None = None

    def __repr__(self) -> str:
        return f"Piece({self.count}x{self.value_bytes}, first_lsn={self.first_lsn})"


def make_core(kind: type[OrderingCore[Piece]] = OrderingCore, **options: Any) -> OrderingCore[Piece]:
    """Return a core that begins after LSN 100 at position 640, so that no zero hides a mistake."""
    defaults: dict[str, Any] = {
        "last_lsn": 100,
        "position": 640,
        "chain": FIRST_CHAIN,
        "alignment": ALIGNMENT_BUFFERED,
        "frame_bytes_max": 4096,
    }
    return kind(IDENTITY, **(defaults | options))


def body_of(group: Sequence[Piece]) -> PreparedBody:
    """Return the encoded body of a group."""
    values = [bytes(piece.value_bytes) for piece in group for _ in range(piece.count)]
    return prepare_body(Columns(len(values), 1 | HAS_VALUE, None, values))


def make_room(core: OrderingCore[Piece], footprint: int) -> None:
    """Begin a segment if the next frame needs one."""
    if core.needs_segment(footprint):
        core.segment_ready(core.position + SEGMENT_BYTES)


def seal_group(core: OrderingCore[Piece], group: Sequence[Piece], now_us: int = 0) -> SealedFrame:
    """Seal a group that was taken."""
    body = body_of(group)
    make_room(core, body.footprint(core.alignment))
    return core.seal(group, body, now_us)


def seal_next(core: OrderingCore[Piece], *pieces: Piece, now_us: int = 0) -> SealedFrame:
    """Submit, take and seal."""
    for piece in pieces or (Piece(),):
        core.submit(piece)
    return seal_group(core, core.take(), now_us)


def header_of(frame: SealedFrame) -> FrameHeader:
    """Return the facts in the frame's own bytes."""
    return FrameHeader.parse(frame.buffers[0])


class CreditsLaterWrites(OrderingCore[Piece]):
    """Wrong (B15): a sync is credited with frames that were written after it began."""

    def synced(self, point: SyncPoint) -> None:
        super().synced(self.sync_begin())


class SyncsFromInFlight(OrderingCore[Piece]):
    """Wrong: a sync that begins is taken to cover frames that are only sealed by now."""

    def sync_begin(self) -> SyncPoint:
        return SyncPoint(self.position, self.appended_lsn)


class AcknowledgesAhead(OrderingCore[Piece]):
    """Wrong: a written frame is acknowledged although an earlier one is not written."""

    def written(self, frame: SealedFrame, *, durable: bool, now_us: int = 0) -> list[SealedFrame]:
        if self.failure is None and not self.completion_order and self.in_flight[0] is not frame:
            frame.state = "acked"
            return [frame]
        return super().written(frame, durable=durable, now_us=now_us)


class PromisesTooMuch(OrderingCore[Piece]):
    """Wrong: a frame promises written frames instead of frames on stable storage."""

    def seal(self, *arguments: Any, **named: Any) -> SealedFrame:
        true, self.durable_position = self.durable_position, self.written_position
        try:
            return super().seal(*arguments, **named)
        finally:
            self.durable_position = true


class AcknowledgesAfterFailure(OrderingCore[Piece]):
    """Wrong: a frame whose write returns after it has failed is acknowledged."""

    def written(self, frame: SealedFrame, *, durable: bool, now_us: int = 0) -> list[SealedFrame]:
        if frame.state == "failed":
            frame.state = "acked"
            self.acked_lsn = frame.last_lsn
            return [frame]
        return super().written(frame, durable=durable, now_us=now_us)


class ForgetsWhatIsBefore(OrderingCore[Piece]):
    """Wrong: the failure of one frame fails those before it, which may land yet."""

    def fail(
        self, cause: BaseException, frame: SealedFrame | None = None, *, unsealed: bool = False
    ) -> tuple[list[SealedFrame], list[Piece]]:
        return super().fail(cause)


class LeavesTheSuffix(OrderingCore[Piece]):
    """Wrong (AutoMQ's head-of-line fault): a failed frame fails alone, and those after it wait forever."""

    def fail(
        self, cause: BaseException, frame: SealedFrame | None = None, *, unsealed: bool = False
    ) -> tuple[list[SealedFrame], list[Piece]]:
        self.failure = cause
        if frame is None:
            return super().fail(cause)
        self.in_flight.remove(frame)
        frame.state, frame.error = "failed", cause
        return [frame], self.refuse()


class HoldsTheLanded(OrderingCore[Piece]):
    """Wrong: under completion order a frame that has landed waits for the ones before it."""

    def written(self, frame: SealedFrame, *, durable: bool, now_us: int = 0) -> list[SealedFrame]:
        told = super().written(frame, durable=durable, now_us=now_us)
        return told if self.written_lsn >= frame.last_lsn else []


class LosesItsPlace(OrderingCore[Piece]):
    """Wrong: the queue is taken newest first."""

    def take(self, now_us: int = 0) -> Sequence[Piece]:
        return list(reversed(super().take(now_us)))


class NeverStopsAsking(OrderingCore[Piece]):
    """Wrong: an unneeded mark is requested again and again."""

    @property
    def needs_marker(self) -> bool:
        return self.record_end_position <= self.durable_position


class ForgetsTheTail(OrderingCore[Piece]):
    """Wrong: an idle log is never asked to promise its tail."""

    @property
    def needs_marker(self) -> bool:
        return False


class IgnoresTheLimit(OrderingCore[Piece]):
    """Wrong: records durable here are acknowledged, whether replicas have it or not."""

    def acknowledge(self, acknowledged: list[SealedFrame] | None = None) -> list[SealedFrame]:
        limit, self.ack_limit_lsn = self.ack_limit_lsn, NO_LIMIT
        try:
            return super().acknowledge(acknowledged)
        finally:
            self.ack_limit_lsn = limit


class DropsTheLate(OrderingCore[Piece]):
    """Wrong: a late frame is acknowledged at once, and observers do not see it."""

    def fail_unacked(self, error: BaseException, until_us: int | None = None) -> list[SealedFrame]:
        late = super().fail_unacked(error, until_us)
        for _ in range(self.timed_out):
            self.acked_lsn = self.unacked.popleft().last_lsn
        self.timed_out = 0
        return late


WRONG_CORES: tuple[type[OrderingCore[Piece]], ...] = (
    CreditsLaterWrites,
    SyncsFromInFlight,
    AcknowledgesAhead,
    PromisesTooMuch,
    AcknowledgesAfterFailure,
    ForgetsWhatIsBefore,
    LeavesTheSuffix,
    HoldsTheLanded,
    LosesItsPlace,
    NeverStopsAsking,
    ForgetsTheTail,
    IgnoresTheLimit,
    DropsTheLate,
)
