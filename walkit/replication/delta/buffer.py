"""The newest frames of a log in memory: one contiguous range of records, bounded in bytes, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from walkit.replication.delta.messages import DeltaEnd

DELTA_BYTES_MAX = 32 * 1024
"""More than this is better read from the storage in one piece, as AutoMQ's readers do."""


class EncodedFrames(Protocol):
    """Frames of the records first_lsn to last_lsn, at the positions [position, next_position)."""

    @property
    def first_lsn(self) -> int:
        """LSN of the first record."""

    @property
    def last_lsn(self) -> int:
        """LSN of the last record."""

    @property
    def position(self) -> int:
        """Where the first frame begins."""

    @property
    def next_position(self) -> int:
        """Where the last frame ends."""

    @property
    def data(self) -> bytes:
        """The frames' bytes as they are in the log."""


class DeltaBuffer:
    """Keeps the frames of all records after `first` up to `end`, at most `bytes_max` bytes. Not thread-safe.

    A frame that does not follow, or would make it too large, empties it: nothing is kept from then on.
    """

    def __init__(self, bytes_max: int = DELTA_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.first = self.end = DeltaEnd()
        self._parts: list[bytes] = []

    def begin(self, at: DeltaEnd) -> None:
        """Forget everything; the next frame has to follow `at`."""
        self._parts, self.size_bytes = [], 0
        self.first = self.end = at
        self._check()

    def append(self, frames: EncodedFrames) -> bool:
        """Keep frames; False, and nothing is kept, if they do not follow or do not fit."""
        size = frames.next_position - frames.position
        follows = frames.first_lsn == self.end.lsn + 1 and frames.position >= self.end.position
        if not follows or self.size_bytes + size > self.bytes_max:
            self.begin(self.first)
            return False
        self._parts.append(frames.data)
        self.size_bytes += size
        self.end = DeltaEnd(frames.last_lsn, frames.next_position)
        return True

    def take(self) -> bytes:
        """Return all bytes, and continue empty from the end: b"" if nothing came since the last call."""
        data = join(self._parts)
        self.begin(self.end)
        return data

    def _check(self) -> None:
        """Assert that the bytes are those between both ends, within the bound; in constant time."""
        assert 0 <= self.size_bytes <= self.bytes_max
        assert bool(self._parts) == bool(self.size_bytes)
        assert self.first.lsn <= self.end.lsn and self.first.position <= self.end.position
        assert self._parts or self.first == self.end


def join(parts: Sequence[bytes]) -> bytes:
    """Return the parts as one; a single part is not copied."""
    return parts[0] if len(parts) == 1 else b"".join(parts)
