"""Chooses the bytes of a plan that a subscriber fetches, and checks each answer against its request; no I/O.

A replica whose log cannot be continued fetches the files of another one. A bounded number of ranges is requested at a
time, in order; each answer has to be the one to the oldest question.
"""

from __future__ import annotations

from collections import deque

from walkit.copier.plan import MissingRange
from walkit.format.layout import POSITION_MAX
from walkit.replication.protocol.messages import CHUNK_BYTES_MAX, Chunk, Fetch

FETCHES_MAX = 8
"""The most ranges requested and not answered: their bytes stay below a replica's inbox."""
CHUNK_BYTES_MIN = 16 << 10
"""The smallest range of a request: it has a segment's header, without which a part is not continued."""


class Transfer:
    """The files of one plan on their way. Not thread-safe.

    `next_requests` returns the next requests, `take` checks an answer; `is_done` once nothing is missing.
    """

    def __init__(self, missing: tuple[MissingRange, ...], chunk_bytes: int = CHUNK_BYTES_MAX) -> None:
        assert all(0 <= part.offset <= part.size for part in missing)
        self.missing_bytes = self.bytes_at_first = sum(part.size - part.offset for part in missing)
        """Bytes still missing, now and at the beginning."""
        self._missing = deque(part for part in missing if part.offset < part.size)
        self._requested: deque[Fetch] = deque()
        self._chunk_bytes = self._first_bytes = chunk_bytes

    @property
    def next_chunk_bytes(self) -> int:
        """With ranges of which size to begin after this connection: smaller ones if it broke before the first came."""
        if self.missing_bytes < self.bytes_at_first:
            return self._first_bytes
        return max(self._first_bytes // 4, CHUNK_BYTES_MIN)

    @property
    def is_done(self) -> bool:
        """Whether all has come."""
        return not self._missing and not self._requested

    def next_requests(self) -> list[Fetch]:
        """Return the ranges to request now."""
        new = []
        while self._missing and len(self._requested) < FETCHES_MAX:
            part = self._missing.popleft()
            size = min(self._chunk_bytes, part.size - part.offset)
            fetch = Fetch(file=part.file, offset=part.offset, size=size)
            if part.offset + size < part.size:
                self._missing.appendleft(MissingRange(part.file, part.offset + size, part.size))
            self._requested.append(fetch)
            new.append(fetch)
        self._check()
        return new

    def take(self, chunk: Chunk) -> str:
        """Take an answer; return its fault in words, or ""."""
        if not self._requested:
            return "a chunk came that nothing asked for"
        fetch = self._requested[0]
        if (chunk.file, chunk.offset, len(chunk.data)) != (fetch.file, fetch.offset, fetch.size):
            return (
                f"{len(chunk.data):,} bytes at {chunk.offset:,} of file {chunk.file} came, and {fetch.size:,} at "
                f"{fetch.offset:,} of file {fetch.file} were asked for"
            )
        self._requested.popleft()
        self.missing_bytes -= fetch.size
        self._chunk_bytes = min(2 * self._chunk_bytes, CHUNK_BYTES_MAX)
        self._check()
        return ""

    def _check(self) -> None:
        """Assert the invariants after every event."""
        assert len(self._requested) <= FETCHES_MAX
        assert (self.missing_bytes == 0) == self.is_done


def wrong_fetch(fetch: Fetch, sizes: tuple[int, ...]) -> str:
    """Return why a fetch is outside the plan; "" if it is inside."""
    what = f"fetches {fetch.size:,} bytes at {fetch.offset:,} of file {fetch.file}"
    if fetch.file >= len(sizes):
        return f"{what}, and its plan has {len(sizes):,} files"
    if not 1 <= fetch.size <= CHUNK_BYTES_MAX or fetch.offset + fetch.size > min(
        sizes[fetch.file], POSITION_MAX
    ):
        return f"{what}, which has {sizes[fetch.file]:,} bytes; at most {CHUNK_BYTES_MAX:,} are sent at once"
    return ""
