"""Shows observers the frames that are acknowledged, or on stable storage, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from walkit._internal.arguments import refuse
from walkit._internal.text import counted
from walkit.commit.delivery import Delivery
from walkit.commit.frame import SealedFrame
from walkit.errors import GapError
from walkit.format.frame import FrameHeader
from walkit.log.live_log import Contents
from walkit.read.view import frames_to_batches
from walkit.record import Batch, Buffer, Record


class ObservedFrames:
    """Frames of the positions [position, next_position), holding the records first_lsn to last_lsn.

    Acknowledged, so on stable storage if the log's durability is "sync" or the observer asked for that. `data` is
    the frames' bytes as in the log.
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


class DurableGate:
    """Holds frames back until they are on stable storage; then shows them in order. Used by the delivery thread alone.

    Frames of up to `bytes_max` bytes wait in memory, and one if that is larger; of those beyond only the LSNs are
    kept, and `reread` reads them when they are durable.
    """

    def __init__(
        self,
        show: Callable[[ObservedFrames], object],
        durable_lsn: Callable[[], int],
        reread: Callable[[int, int], Iterator[SealedFrame]] | None,
        bytes_max: int | None,
    ) -> None:
        self.waiting_bytes = 0
        self.shown_lsn = 0
        """The last LSN that was shown."""
        self._show, self._durable_lsn = show, durable_lsn
        self._reread, self._bytes_max = reread, bytes_max
        self._frames: deque[ObservedFrames] = deque()
        self._beyond: tuple[int, int] | None = None
        """First and last LSN of the frames that wait and are not kept."""

    def take(self, frame: SealedFrame) -> None:
        """Take the next acknowledged frame, and show the durable ones. Raises the errors of `reread`."""
        room = self._bytes_max is None or self.waiting_bytes + frame.footprint <= self._bytes_max
        if self._reread is not None and (self._beyond is not None or (self._frames and not room)):
            first_lsn = frame.first_lsn if self._beyond is None else self._beyond[0]
            self._beyond = first_lsn, frame.last_lsn
        else:
            self._frames.append(ObservedFrames(frame))
            self.waiting_bytes += frame.footprint
        self.release()

    def release(self) -> None:
        """Show the frames that have become durable. Raises the errors of `reread`."""
        durable_lsn = self._durable_lsn()
        while self._frames and self._frames[0].last_lsn <= durable_lsn:
            frames = self._frames.popleft()
            self.waiting_bytes -= frames.next_position - frames.position
            self.shown_lsn = frames.last_lsn
            self._show(frames)
        if self._frames or self._beyond is None or self._reread is None:
            return
        first_lsn, last_lsn = self._beyond
        if first_lsn > durable_lsn:
            return
        self._beyond = None if last_lsn <= durable_lsn else (durable_lsn + 1, last_lsn)
        for frame in self._reread(first_lsn, min(durable_lsn, last_lsn)):
            self.shown_lsn = frame.last_lsn
            self._show(ObservedFrames(frame))


class Observation:
    """A registered observer; `close()` ends it. After close returns no new call begins.

    While a callback is slow, frames of up to `queue_bytes_max` bytes wait for it in memory; those beyond are read from
    the log when their turn comes. So it is with frames that wait to become durable. An observer is ended if its next
    frames were trimmed or compacted, or cannot be read: `error` has the reason (a GapError, mostly), the event
    `walkit.observer.lose` the last LSN. It sees no gap.

    A callback that raises is called for the next frames all the same. Its first error is the event
    `walkit.callback.fail`, which names it; `errors` counts all of them.
    """

    def __init__(
        self,
        delivery: Delivery,
        callback: Callable[[ObservedFrames], object],
        *,
        durable_lsn: Callable[[], int] | None = None,
    ) -> None:
        """Begin. With `durable_lsn`, which returns the last durable LSN, frames are shown when they are durable."""
        if not callable(callback):
            refuse("callback", callback, "a callable that takes ObservedFrames")
        self.error: Exception | None = None
        self._delivery = delivery
        self._callback = callback
        self._closed = False
        self._gate: DurableGate | None = None
        if durable_lsn is not None:
            self._gate = DurableGate(self._show, durable_lsn, delivery.reread, delivery.bytes_max)
            delivery.add_durable_listener(self._look)
        self._raised = delivery.add_observer(self._see, self._lose, callback=callback)

    def __repr__(self) -> str:
        state = "lost" if self.error is not None else "closed" if self._closed else "open"
        name = getattr(self._callback, "__qualname__", None) or type(self._callback).__qualname__
        return f"<Observation by {name} {state}: {counted(self.errors, 'error')}>"

    @property
    def errors(self) -> int:
        """How many times the callback has raised."""
        return self._raised.count

    def _see(self, frame: SealedFrame) -> None:
        if self._gate is None:
            self._callback(ObservedFrames(frame))
            return
        try:
            self._gate.take(frame)
        except Exception as error:  # noqa: BLE001 - whatever it is, the observer gets the error, and sees no gap
            self._delivery.drop_observer(self._see, self._gate.shown_lsn, error)

    def _look(self, _: int) -> None:
        """More is durable."""
        assert self._gate is not None
        try:
            if not self._closed:
                self._gate.release()
        except Exception as error:  # noqa: BLE001 - as above
            self._delivery.drop_observer(self._see, self._gate.shown_lsn, error)

    def _show(self, frames: ObservedFrames) -> None:
        """Call back with frames that are durable; the next ones follow also where that raises."""
        if self._closed:
            return
        try:
            self._callback(frames)
        except BaseException as error:  # noqa: BLE001 - user code, and the next frame may please it
            self._delivery.errors += 1
            self._raised(error)

    def _lose(self, error: Exception) -> None:
        self.error = error
        self.close()

    def close(self) -> None:
        """Stop observing."""
        self._closed = True
        self._delivery.remove_observer(self._see)
        self._delivery.remove_durable_listener(self._look)


def acknowledged_frames(contents: Contents, first_lsn: int, last_lsn: int) -> Iterator[SealedFrame]:
    """Read the acknowledged frames that hold these LSNs; GapError if they are no longer as written."""
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
