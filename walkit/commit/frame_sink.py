"""What the commit path asks of the place where frames go: the log's segments."""

from __future__ import annotations

from typing import Any, Protocol

from walkit.commit.core import OrderingCore
from walkit.commit.frame import SealedFrame


class FrameSink(Protocol):
    """Where frames go.

    `begin_segment` and `assign` are called by one thread at a time, in the order of the frames; the others from any.
    `publish` alone is called under the commit lock, so it calls no device.
    """

    def begin_segment(self, *, position: int, first_lsn: int, chain: int) -> int:
        """Make a new segment ready for frames from `position` on; return the position where it ends.

        Blocks until a segment is there. LogFullError if disk or process has no room for one (`BACK_PRESSURE`),
        LogExhaustedError if no segment number is left: nothing has changed then.
        """

    def assign(self, frame: SealedFrame) -> None:
        """A frame was sealed, and is about to be written: note where it goes. May wait for a zeroing under way."""

    def write(self, frame: SealedFrame, *, sync: bool) -> None:
        """Write an assigned frame at its position; durable on return with `sync`. StorageError poisons the log."""

    def passed(self, position: int) -> None:
        """All frames below this position are written: segments that end there can be sealed."""

    def sync(self) -> None:
        """Put all frames written before this call on stable storage, in every segment."""

    def publish(self, position: int, lsn: int) -> None:
        """Tell other processes how far the log is on stable storage."""


def publish_locked(core: OrderingCore[Any], frame_sink: FrameSink) -> BaseException | None:
    """Tell other processes how far the log is durable, before anything is acknowledged by it.

    Returns what went wrong instead of raising it: it fails the log, but for what is durable already.
    """
    try:
        frame_sink.publish(core.durable_position, core.durable_lsn)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the tickets must be completed
        return error
    return None
