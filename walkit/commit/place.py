"""What the commit path asks of the place where frames go."""

from __future__ import annotations

from typing import Protocol

from walkit.commit.frame import SealedFrame


class FramePlace(Protocol):
    """Where frames go: the log's segments. Called by the leader only, but for `sync`."""

    def begin_segment(self, *, position: int, first_lsn: int, chain: int) -> int:
        """Make a new segment ready for frames from `position` on; return the position where it ends.

        Blocks until a segment is there. LogFullError where the disk is full: nothing has changed then.
        """

    def write(self, frame: SealedFrame, *, sync: bool) -> None:
        """Write a frame at its position; on stable storage on return, with `sync`. StorageError poisons the log."""

    def sync(self) -> None:
        """Put all frames written before this call on stable storage, in every segment."""

    def publish(self, position: int, lsn: int) -> None:
        """Tell other processes how far the log is on stable storage."""
