"""What observers see: frames that are acknowledged, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from walkit.commit.frame import SealedFrame
from walkit.errors import OptionsError
from walkit.format.frame import FrameHeader
from walkit.log.reader import frames_to_batches
from walkit.record import Batch, Buffer, Record

if TYPE_CHECKING:
    from walkit.log.engine import LogEngine


class DurableFrames:
    """Frames of the positions [position, next_position), holding the records first_lsn to last_lsn.

    Acknowledged, so on stable storage where the log's durability is "sync". `data` is the frames' bytes as they stand
    in the log.
    """

    __slots__ = ("_data", "first_lsn", "last_lsn", "next_position", "position")

    def __init__(self, frame: SealedFrame) -> None:
        self.first_lsn = frame.first_lsn
        self.last_lsn = frame.last_lsn
        self.position = frame.position
        self.next_position = frame.next_position
        self._data: list[Buffer] | bytes = frame.buffers

    @property
    def data(self) -> bytes:
        """The frames' bytes, headers and padding included."""
        if not isinstance(self._data, bytes):
            self._data = b"".join(self._data)
        return self._data

    def records(self) -> list[Record]:
        """Return the records of the frames; from `data`, so also when they have been trimmed meanwhile."""
        header = FrameHeader.parse(self.data)
        frames = iter([(header, memoryview(self.data))])
        return [
            r for batch in frames_to_batches(frames, self.first_lsn, None) for r in Batch.from_arrow(batch)
        ]

    def __repr__(self) -> str:
        return (
            f"DurableFrames(first_lsn={self.first_lsn}, last_lsn={self.last_lsn}, position={self.position})"
        )


class Observation:
    """A registered observer; `close()` ends it. After close returns no new call begins.

    Frames wait in memory while a callback blocks, without a bound (`statistics().deliveries_waiting` counts them). Who
    may fall behind uses `follow`, which reads from the segments.
    """

    def __init__(self, engine: LogEngine, callback: Callable[[DurableFrames], object]) -> None:
        if not callable(callback):
            raise OptionsError(
                f"callback={callback!r}: a callable that takes DurableFrames",
                option="callback",
                wanted=callback,
            )
        self._engine = engine
        self._callback = callback
        engine.driver.delivery.observe(self._see)

    def _see(self, frame: SealedFrame) -> None:
        self._callback(DurableFrames(frame))

    def close(self) -> None:
        """Stop observing."""
        self._engine.driver.delivery.leave(self._see)
