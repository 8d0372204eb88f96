"""The LSN marks of an open log, for what reads, trims or checkpoints it: of a log that appends, or imports."""

from __future__ import annotations

from typing import Protocol


class LogMarks(Protocol):
    """How far an open log has come. Safe from any thread; each value only grows while the log is open."""

    @property
    def acked_lsn(self) -> int:
        """The last LSN acknowledged, with everything before it."""

    @property
    def durable_lsn(self) -> int:
        """The last LSN on stable storage, with everything before it."""

    @property
    def written_position(self) -> int:
        """Where the frames end that can be read."""

    @property
    def durable_position(self) -> int:
        """Where the frames end that are on stable storage."""
