"""Measures lag to a moving end in records, bytes and milliseconds, and whether one side catches up. Pure."""

from __future__ import annotations

from collections import deque

from walkit._internal.text import counted

CATCH_UP_MS = 1_000.0
"""A side that lacks a frame for longer is not streaming, but catching up."""
NEWS_MAX = 1024


class Lag:
    """The known end of a source, since when it is known, and the LSN reached. Used by one thread."""

    def __init__(self) -> None:
        self.source_lsn = self.source_position = 0
        self._news: deque[tuple[int, float]] = deque()
        """(LSN, time it was learned) of each end not reached yet, oldest first."""
        self._target_lsn = 0

    def source_at(self, lsn: int, position: int, reached_lsn: int, now_ms: float) -> None:
        """The source is known to end here. Ends below those that were known change nothing."""
        if lsn > max(self.source_lsn, reached_lsn):
            if len(self._news) == NEWS_MAX:
                self._news.pop()  # the oldest gives the lag; the newest comes again
            self._news.append((lsn, now_ms))
        self.source_lsn = max(self.source_lsn, lsn)
        self.source_position = max(self.source_position, position)

    def reached(self, lsn: int) -> None:
        """All up to this LSN is on the other side's stable storage."""
        while self._news and self._news[0][0] <= lsn:
            self._news.popleft()

    def begin(self, lsn: int) -> str:
        """Contact begins at this LSN: return "catching up" or "streaming"."""
        self._target_lsn = self.source_lsn
        return "catching up" if lsn < self.source_lsn else "streaming"

    def next_state(self, state: str, lsn: int, now_ms: float) -> str:
        """Return which of the two states follows `state`, with all up to `lsn` reached.

        It has to reach the end known when it began to catch up, as the source may never rest. If more is missing for
        long by then, it continues to the newer end.
        """
        late = self.ms(now_ms) >= CATCH_UP_MS
        if state == "streaming" and late:
            self._target_lsn = self.source_lsn
            return "catching up"
        if state == "catching up" and lsn >= self._target_lsn:
            if not late:
                return "streaming"
            self._target_lsn = self.source_lsn
        return state

    def ms(self, now_ms: float) -> float:
        """Return for how long the source has been known to be ahead; 0 if it is not."""
        try:
            return max(now_ms - self._news[0][1], 0.0)
        except IndexError:  # also if another thread reads while the last one is taken
            return 0.0

    def check(self) -> None:
        """Assert that the kept entries are bounded."""
        assert len(self._news) <= NEWS_MAX


def lag_text(records: int | None, ms: float | None) -> str:
    """Return a lag in words; "unknown" where it is None."""
    return "unknown" if records is None or ms is None else f"{counted(records, 'record')}, {ms:,.0f} ms"
