"""Policies: when the next frame is sealed, and how much it takes. Pure objects that the ordering core asks.

A policy is any object with `decide(queue) -> Take | Wait`. The core asks it whenever something waits and a frame may be
in flight: after submissions, after each frame that has landed, and when the time of a `Wait` is over. It asks under
the driver's lock, so a policy is fast, takes no lock, reads no clock (`queue.now_us` is the time, real or virtual) and
keeps no count of the questions. The core measures how long a write takes (`queue.write_us`), so most policies need no
state of their own:

    class Even:
        def decide(self, queue):
            return Take() if queue.records % 2 == 0 else Wait(500)

A policy cannot split a submission (a transaction never leaves its frame), pass the limits of a frame or of `in_flight`,
let a caller wait forever (a `Wait()` without a time, with no frame in flight, counts as `Take()`, and so does any after
WAIT_US_MAX), or hold back records that `sync` and `close` wait for. One that raises is dropped for `TakeAll`, with the
event `walkit.policy.fail`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class QueueState(NamedTuple):
    """The input of a policy. Times are microseconds on the core's own clock."""

    now_us: int
    records: int
    """Records that wait."""
    size_bytes: int
    """Upper bound of their bytes in a frame's body."""
    oldest_us: int
    """When the one that waits longest was submitted."""
    in_flight: int
    """Frames that are being written."""
    in_flight_max: int
    taken_us: int
    """When the last frame was taken; 0 before the first."""
    write_us: int
    """How long a write takes, from sealing to landing: smoothed over the last frames; 0 before the first."""

    @property
    def waited_us(self) -> int:
        """How long the oldest has waited."""
        return self.now_us - self.oldest_us


class Take(NamedTuple):
    """Seal a frame now, of whole submissions, oldest first: at least one, at most so much. None: the frame's limit."""

    records: int | None = None
    size_bytes: int | None = None


class Wait(NamedTuple):
    """Seal nothing yet. Ask again after `us` at the latest; None: when a submission comes or a frame has landed."""

    us: int | None = None


TAKE_ALL = Take()
WAIT_US_MAX = 60_000_000
"""The longest that a policy can hold back a submission."""


class Policy(Protocol):
    """Decides when to seal. See the module's docstring for a policy's limits."""

    def decide(self, queue: QueueState) -> Take | Wait:
        """Decide about the waiting records. Called with at least one record waiting and room for one more frame."""


@dataclass(frozen=True, slots=True)
class TakeAll:
    """Seal all that waits as soon as a frame may be in flight: group commit. As `policy=None`, and slower."""

    def decide(self, queue: QueueState) -> Take | Wait:
        """See Policy."""
        return TAKE_ALL


@dataclass(frozen=True, slots=True)
class Linger:
    """Wait until the oldest record is `wait_us` old or `size_bytes` have come together, then take all of it.

    The timer and the soft limit of AutoMQ's WAL (and Kafka's linger.ms with batch.size): fewer and larger frames, for
    `wait_us` more latency where there is little to write.
    """

    wait_us: int
    size_bytes: int

    def decide(self, queue: QueueState) -> Take | Wait:
        """See Policy."""
        if queue.size_bytes >= self.size_bytes or queue.waited_us >= self.wait_us:
            return TAKE_ALL
        return Wait(self.wait_us - queue.waited_us)


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Spread the frames evenly over the time that a write takes: one begins each `write_us / in_flight_max`.

    With nothing in flight it seals at once, so that a lone writer never waits. Under load each frame gathers what comes
    in that share of a write, so that `in_flight` frames of equal size overlap instead of one large and many tiny ones.
    `wait_us` bounds the wait if the device has become slow.
    """

    wait_us: int = 10_000

    def decide(self, queue: QueueState) -> Take | Wait:
        """See Policy."""
        if not queue.in_flight:
            return TAKE_ALL
        share = min(queue.write_us // queue.in_flight_max, self.wait_us)
        due_us = queue.taken_us + share
        return TAKE_ALL if queue.now_us >= due_us else Wait(due_us - queue.now_us)


@dataclass(frozen=True, slots=True)
class CappedFrames:
    """Seal as soon as a frame may be in flight, and take at most so much: the rest goes into frames of its own.

    For experiments: take-all puts all writers of a closed loop into one frame, and leaves nothing in flight to order.
    """

    records: int | None = None
    size_bytes: int | None = None

    def decide(self, queue: QueueState) -> Take | Wait:
        """See Policy."""
        return Take(self.records, self.size_bytes)


@dataclass(frozen=True, slots=True)
class OneRecordPerFrame:
    """Seal every submission as a frame of its own: the commit path without any batching."""

    def decide(self, queue: QueueState) -> Take | Wait:
        """See Policy."""
        return Take(1)
