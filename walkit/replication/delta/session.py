"""The last answer to one delta reader, and the frames that have become durable since: a state machine without I/O.

A delta covers exactly the range between two ends that the reader was given; otherwise no delta is sent. LSNs are dense,
so whether a frame is new, follows or leaves a gap is seen on the frame itself: no order of events makes a wrong range.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from walkit.replication.delta.buffer import DELTA_BYTES_MAX, DeltaBuffer, EncodedFrames
from walkit.replication.delta.messages import DeltaEnd


class DeltaState(Enum):
    """NOT_SYNC: no frame is kept. SYNCING: all since the last answer are. CLOSED: the session is over."""

    NOT_SYNC = "not sync"
    SYNCING = "syncing"
    CLOSED = "closed"


class DeltaEvent(Enum):
    """Events that move a session from one state to another."""

    ANSWER = "an end was answered after which every frame will come"
    ANSWER_END = "an end was answered alone"
    OVERFLOW = "a frame did not fit, or did not follow"
    CLOSE = "the session is over"


_NOT_SYNC, _SYNCING, _CLOSED = DeltaState.NOT_SYNC, DeltaState.SYNCING, DeltaState.CLOSED
EDGES: dict[tuple[DeltaState, DeltaEvent], DeltaState] = {
    (_NOT_SYNC, DeltaEvent.ANSWER): _SYNCING,
    (_NOT_SYNC, DeltaEvent.ANSWER_END): _NOT_SYNC,
    (_NOT_SYNC, DeltaEvent.CLOSE): _CLOSED,
    (_SYNCING, DeltaEvent.ANSWER): _SYNCING,
    (_SYNCING, DeltaEvent.ANSWER_END): _NOT_SYNC,
    (_SYNCING, DeltaEvent.OVERFLOW): _NOT_SYNC,
    (_SYNCING, DeltaEvent.CLOSE): _CLOSED,
    (_CLOSED, DeltaEvent.CLOSE): _CLOSED,
}
"""Every edge that there is: the state after an event. A frame that fits or is not new moves no state."""


class Collected(NamedTuple):
    """The next answer's range: all records after `first` up to `end`; `delta` is their frames, None if not kept."""

    first: DeltaEnd
    end: DeltaEnd
    delta: bytes | None


class DeltaSession:
    """Follows one reader of a log. Not thread-safe.

    `append` every durable frame with records after `seen_after_lsn`, in order; `durable` the durable end when it is
    known; `collect` the next answer.
    """

    def __init__(self, end: DeltaEnd, *, seen_after_lsn: int = 0, bytes_max: int = DELTA_BYTES_MAX) -> None:
        """Begin at the durable end. Frames of records up to `seen_after_lsn` may never be appended."""
        self.state = DeltaState.NOT_SYNC
        self.answered = end
        """The end that the last answer had."""
        self.newest = end
        """The newest durable end that is known."""
        self._seen_after_lsn = seen_after_lsn
        self._buffer = DeltaBuffer(bytes_max)

    @property
    def has_news(self) -> bool:
        """Whether records have become durable since the last answer."""
        return self.newest.lsn > self.answered.lsn

    @property
    def buffered_bytes(self) -> int:
        """Bytes of frames that are kept."""
        return self._buffer.size_bytes

    def append(self, frames: EncodedFrames) -> None:
        """Take frames that have become durable. Those that an answered or a known end covers change nothing."""
        if self.state is DeltaState.CLOSED or frames.last_lsn <= self.newest.lsn:
            return
        self.newest = DeltaEnd(frames.last_lsn, frames.next_position)
        if self.state is DeltaState.SYNCING and not self._buffer.append(frames):
            self._move(DeltaEvent.OVERFLOW)
        self._check()

    def durable(self, end: DeltaEnd) -> None:
        """The log is durable up to here. While frames are kept their own end counts: they are on their way."""
        if self.state is DeltaState.NOT_SYNC and end.lsn > self.newest.lsn:
            self.newest = end
        self._check()

    def collect(self, *, with_delta: bool) -> Collected:
        """Return the next answer; with `with_delta` off, for an older reader, that is an end alone, and none is kept.

        After a close it is the last end again.
        """
        first, delta = self.answered, None
        if self.state is DeltaState.CLOSED:
            return Collected(first, first, None)
        if with_delta and self.state is DeltaState.SYNCING:
            delta = self._buffer.take()
        else:
            self._buffer.begin(self.newest)
        if not with_delta or self.newest.lsn < self._seen_after_lsn:
            self._move(DeltaEvent.ANSWER_END)
        else:
            self._move(DeltaEvent.ANSWER)
        self.answered = self.newest
        self._check()
        return Collected(first, self.answered, delta)

    def close(self) -> None:
        """Drop all frames and keep no more. Closing twice does nothing."""
        self._buffer.begin(self.newest)
        self._move(DeltaEvent.CLOSE)
        self._check()

    def _move(self, event: DeltaEvent) -> None:
        self.state = EDGES[self.state, event]

    def _check(self) -> None:
        """Assert the invariants after every event; in constant time."""
        buffer = self._buffer
        assert self.answered.lsn <= self.newest.lsn
        buffer._check()
        if self.state is DeltaState.SYNCING:
            assert (buffer.first, buffer.end) == (self.answered, self.newest)
        else:
            assert not buffer.size_bytes
