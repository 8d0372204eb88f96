"""The input and output of the ordering core: submissions, sealed frames and ticks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from walkit.format.body import Columns
from walkit.record import Buffer


class Submission(Protocol):
    """One caller's records, which share a frame. The core knows no more of them than this."""

    @property
    def count(self) -> int:
        """Its records."""

    size_bytes: int
    """Upper bound of the records' bytes in a frame's body."""
    submitted_us: int
    """When it was queued, on the core's clock; set by the core."""
    first_lsn: int
    frame: SealedFrame | None
    latch: Any
    """A lock to release when the frame is done, or None."""
    callbacks: list[Any] | None


class SealedFrame:
    """A frame with its place: LSNs, position and chain are given, its bytes are ready to be written.

    `state` moves once from "sealed" to "acked" or "failed" (outcome unknown). A group that was never written gets a
    frame of state "refused", without LSNs. The constructor's fields do not change.
    """

    written = False
    durable = False
    notified = False
    """Whether its latches are opened, or each caller knows which one to open."""
    sealed_us = 0
    epoch_id = 0
    """The id of the opening that wrote it; set by the core."""
    target: Any = None
    """The segment that it is written to; set by `FrameSink.assign`."""

    def __init__(
        self,
        submissions: Sequence[Submission],
        first_lsn: int,
        count: int,
        position: int,
        footprint: int,
        header_crc: int,
        buffers: list[Buffer],
        user_bytes: int,
        columns: Columns | None,
    ) -> None:
        self.submissions = submissions
        self.first_lsn = first_lsn
        self.count = count
        self.position = position
        self.footprint = footprint
        self.header_crc = header_crc
        self.buffers = buffers
        self.user_bytes = user_bytes
        self.columns = columns
        self.state = "sealed"
        self.error: BaseException | None = None
        """Set here, so that a frame which fails needs no memory for it."""
        self.last_lsn = first_lsn + count - 1
        """LSN of the last record; first_lsn - 1 for a marker frame."""
        self.next_position = position + footprint
        """Position after the frame: valid for whatever comes next."""

    def forget(self) -> None:
        """Release bytes, submissions and target: all tickets are complete.

        A ticket that a caller keeps holds its frame, which must neither make a cycle nor keep a sealed segment's file.
        """
        self.buffers = []
        self.submissions = ()
        if self.state == "acked":  # one that failed may be under way to its target still
            self.target = None

    def without_callers(self) -> SealedFrame:
        """Return a copy without callers."""
        frame = copy.copy(self)
        frame.submissions = ()
        return frame

    @classmethod
    def refused(cls, submissions: Sequence[Submission], error: BaseException) -> SealedFrame:
        """Return the frame of a group of which nothing was written; every submission fails with `error`."""
        frame = cls(submissions, 0, 0, -1, 0, 0, [], 0, None)
        frame.error = error
        frame.state = "refused"
        for submission in submissions:
            submission.frame = frame
        return frame


class SyncPoint(NamedTuple):
    """How far the contiguous written prefix reached when a sync began."""

    position: int
    lsn: int


class Tick(NamedTuple):
    """The work that is due: a marker frame, a sync, and when to look again.

    `wake_in_us` counts from the `now_us` of the question; None: not before new frames. `seal`: a group that a policy
    held back is due, so `take` has to be asked again. `late`: the time of a frame that waits for replicas is over.
    """

    marker: bool
    sync: bool
    wake_in_us: int | None
    seal: bool = False
    late: bool = False
