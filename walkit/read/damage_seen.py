"""Damage that a reading passed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from walkit._internal.text import counted


class DamageSeen(NamedTuple):
    """Damage that a reading passed, and how much of it could be given. Positions are half-open."""

    segment: str
    position: int
    end_position: int
    first_lsn: int | None
    records: int
    """How many unverified records were given."""
    reason: str
    """Why no more were; empty if each record of the frame was given."""

    def __str__(self) -> str:
        reason = f"; {self.reason}" if self.reason else ""
        return (
            f"{self.segment}: positions {self.position:,} to {self.end_position:,}: "
            f"{counted(self.records, 'unverified record')}{reason}"
        )


Seen = Callable[[DamageSeen], object]
"""Called with each damage before the records of it are given out."""
