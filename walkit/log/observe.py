"""What observers see: frames that are acknowledged, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from walkit.commit.frame import SealedFrame
from walkit.record import Record

if TYPE_CHECKING:
    from walkit.log.engine import LogEngine


class DurableFrames:
    """Frames of the positions [position, next_position), holding the records first_lsn to last_lsn.

    Acknowledged, so on stable storage where the log's durability is "sync". `data` is the frames' bytes as they stand
    in the log; read back from it where the observer is far behind.
    """

    __slots__ = ("_data", "_engine", "first_lsn", "last_lsn", "next_position", "position")

    def __init__(self, frame: SealedFrame, engine: LogEngine) -> None:
        self.first_lsn = frame.first_lsn
        self.last_lsn = frame.last_lsn
        self.position = frame.position
        self.next_position = frame.next_position
        self._data: list[bytes] | bytes = frame.buffers
        self._engine = engine

    @property
    def data(self) -> bytes:
        """The frames' bytes, headers and padding included."""
        if not isinstance(self._data, bytes):
            frames = self._data or [
                bytes(frame) for _, frame, _ in self._engine.view().frames(self.first_lsn, self.last_lsn)
            ]
            self._data = b"".join(frames)
        return self._data

    def records(self) -> list[Record]:
        """Return the records of the frames."""
        return list(self._engine.view().records(self.first_lsn, self.last_lsn))

    def __repr__(self) -> str:
        return f"DurableFrames(first_lsn={self.first_lsn}, last_lsn={self.last_lsn}, position={self.position})"


class Observation:
    """A registered observer; `close()` ends it. After close returns no new call begins."""

    def __init__(self, engine: LogEngine, callback: Callable[[DurableFrames], object]) -> None:
        self._engine = engine
        self._callback = callback
        delivery = engine.driver.delivery
        delivery.observers = (*delivery.observers, self._see)

    def _see(self, frame: SealedFrame) -> None:
        self._callback(DurableFrames(frame, self._engine))

    def close(self) -> None:
        """Stop observing."""
        delivery = self._engine.driver.delivery
        delivery.observers = tuple(o for o in delivery.observers if o != self._see)
