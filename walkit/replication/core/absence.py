"""Which errors mean that a storage is away for now, on every side of replication. Pure."""

from __future__ import annotations

import math

from walkit.errors import CorruptionError, LogNotFoundError, NotALogError, StorageError

AFTER_ABSENT_MS = 60_000.0
"""For this time after an absence, damage may mean that the storage is half there."""
PAUSE_MOST_MS = 30_000.0


def is_absent(error: BaseException | None) -> bool:
    """Return whether an error means that a storage is away: not there, or the system refuses it."""
    refused = isinstance(error, StorageError) and error.errno is not None
    return refused or isinstance(error, LogNotFoundError | NotALogError)


class Absence:
    """Remembers when a storage was absent last. Times are milliseconds of the caller's clock. Used by one thread."""

    def __init__(self) -> None:
        self._last_ms = -math.inf

    def covers(self, error: BaseException | None, now_ms: float) -> bool:
        """Return whether to retry without an end: after an absence, or damage within a minute after one."""
        if is_absent(error):
            self._last_ms = now_ms
            return True
        return isinstance(error, CorruptionError) and now_ms - self._last_ms < AFTER_ABSENT_MS
