"""The frames that a feed takes from the storage of a log that another process writes, or that a replica imports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from walkit.errors import DivergenceError, LogClosedError, WalkitError
from walkit.replication.delta.buffer import EncodedFrames
from walkit.replication.delta.loader import RangeLoader, Reached
from walkit.replication.delta.messages import DeltaEnd
from walkit.replication.logs.source import Source, shared_log
from walkit.segments.history import identity_at


class _Frames(NamedTuple):
    """See EncodedFrames."""

    first_lsn: int
    last_lsn: int
    position: int
    next_position: int
    data: bytes


class StoredFrames:
    """The newest durable frames of a source. Not thread-safe. It is read only between `watch` and `close`."""

    error: Exception | None = None

    def __init__(self, source: Source, bytes_max: int) -> None:
        """More than `bytes_max` at a time are not read: no session keeps so much."""
        self.source, self._log, self._bytes_max = source, shared_log(source.storage), bytes_max
        self._begin()

    def _begin(self) -> None:
        """Begin at the end that the log has now, of the opening that has written it."""
        self.end = DeltaEnd(*self.source.durable())
        found = identity_at(self.source.manifest(), self.end.lsn)
        self.ids = found.log_id, found.epoch_id

    def watch(self, notify: Callable[[], object]) -> Self:
        """Have `notify` called when there may be frames to `pull`."""
        self._loader = RangeLoader(self._log, self.ids[0], stop_at_bytes=self._bytes_max + 1)
        self._unwatch = self.source.watch(notify)
        return self

    def close(self) -> None:
        """End the watch."""
        self._unwatch()
        self._loader.close()

    def pull(self, *, wanted: bool) -> Sequence[EncodedFrames]:
        """Return the frames since the last call; () if they are not `wanted`, or belong to another opening.

        If they are more than may be kept it is one entry without bytes, which no session keeps. Raises what reading
        raises, and does not try the same again; LogClosedError once nothing more comes.
        """
        if detail := self.source.ended():
            raise LogClosedError(detail)
        first, end, ids = self.end, DeltaEnd(*self.source.durable()), self.ids
        if end.lsn == first.lsn:
            return ()
        if end.lsn < first.lsn:
            self._begin()
            text = f"the log ends with LSN {end.lsn:,} now, and it ended with {first.lsn:,} before"
            raise DivergenceError(text, first_lsn=end.lsn + 1)
        if not wanted or end.position - first.position > self._bytes_max:
            self._begin()
            skipped = _Frames(first.lsn + 1, self.end.lsn, first.position, self.end.position, b"")
            return [skipped] if wanted and ids == self.ids else ()
        try:
            loaded = self._loader.load(first.lsn + 1, end.lsn, end, Reached(first.lsn, ids[1]))
        except WalkitError:
            self._begin()
            raise
        if loaded.frames:
            self.end, self.ids = loaded.end, (ids[0], loaded.frames[-1][0].epoch_id)
        return [
            _Frames(header.first_lsn, header.last_lsn, header.position, header.end_position, bytes(frame))
            for header, frame in loaded.frames
            if header.epoch_id == self.ids[1] == ids[1]
        ]
