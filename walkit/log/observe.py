"""What observers see: frames that are acknowledged, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from walkit.commit.delivery import Delivery
from walkit.commit.frame import SealedFrame
from walkit.errors import GapError, OptionsError
from walkit.format.frame import FrameHeader
from walkit.log.contents import LogContents
from walkit.read.view import frames_to_batches
from walkit.record import Batch, Buffer, Record


class ObservedFrames:
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
            f"ObservedFrames(first_lsn={self.first_lsn}, last_lsn={self.last_lsn}, position={self.position})"
        )


class Observation:
    """A registered observer; `close()` ends it. After close returns no new call begins.

    While a callback is slow, frames of up to `queue_bytes_max` bytes wait for it in memory; those beyond are read from
    the log when their turn comes. An observer so far behind that they were trimmed or compacted, or cannot be read, is
    ended: `error` says why (a GapError, mostly), the event `walkit.observer.lose` after which LSN. It sees no gap.

    A callback that raises is called for the next frames all the same. Its first error is the event
    `walkit.callback.fail`, which names it; `errors` counts all of them.
    """

    def __init__(
        self, delivery: Delivery, callback: Callable[[ObservedFrames], object], *, news: bool = False
    ) -> None:
        """Begin. With `news` the callback only wants to know that there is something new: it may get less than that."""
        if not callable(callback):
            raise OptionsError(
                f"callback={callback!r}: a callable that takes ObservedFrames",
                option="callback",
                wanted=callback,
            )
        self.error: Exception | None = None
        self._delivery = delivery
        self._callback = callback
        self._raised = delivery.observe(self._see, self._lose, news=news, callback=callback)

    @property
    def errors(self) -> int:
        """How many times the callback has raised."""
        return self._raised.count

    def _see(self, frame: SealedFrame) -> None:
        self._callback(ObservedFrames(frame))

    def _lose(self, error: Exception) -> None:
        self.error = error

    def close(self) -> None:
        """Stop observing."""
        self._delivery.leave(self._see)


def acknowledged_frames(contents: LogContents, first_lsn: int, last_lsn: int) -> Iterator[SealedFrame]:
    """Read the acknowledged frames that hold these LSNs; GapError where they are not as they were written any more."""
    view = contents.view()
    if first_lsn < view.complete_from_lsn:
        raise GapError(first_lsn, view.complete_from_lsn)
    wanted = first_lsn
    for header, data, _ in view.frames(first_lsn, last_lsn):
        if header.first_lsn != wanted:
            break
        wanted = header.last_lsn + 1
        yield SealedFrame(
            (), header.first_lsn, header.records, header.position, len(data), 0, [bytes(data)], 0, None
        )
    if wanted <= last_lsn:
        raise GapError(wanted, contents.first_lsn)
