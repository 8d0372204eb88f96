"""The status of a delta reader, as a frozen value: how far it is, by which path, and why it does not advance."""

from __future__ import annotations

from dataclasses import dataclass

from walkit._internal.report import fields_html
from walkit._internal.text import counted
from walkit.metrics import DeltaReaderStatistics


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaReaderStatus:
    """One moment of a delta reader.

    `state`: "new", "connecting" (neither the primary nor the log has said how far the log is), "following" (polls are
    answered), "reading the log" (no poll is answered, and the reader looks at the log itself), "absent" (the storage is
    away; it is tried again until it is back), "failed" (for good: `error` has the cause), "stopped".
    """

    state: str
    location: str
    """Where the log is."""
    source: str
    """Address of the primary."""
    applied_lsn: int
    known_lsn: int
    """Up to here the log is known to be durable."""
    lag_records: int | None
    """Records that are durable, as far as is known, and not applied yet. None without contact: neither the primary
    nor the log has said a short time ago how far the log is."""
    lag_bytes: int | None
    """Bytes of their frames, as positions count them; None as for records."""
    hit_rate: float
    """The part of the bytes that came by delta, from 0 to 1; 0.0 before the first byte."""
    delta_bytes: int
    loaded_bytes: int
    """Bytes of frames that were read from the log."""
    claim: str
    """The records that the reader keeps from being dropped, in words."""
    checkpoint_lsn: int
    """LSN of the reader's own checkpoint; 0 without one."""
    trouble: str
    """The last failure; "" after the next success."""
    error: str | None
    statistics: DeltaReaderStatistics

    def line(self) -> str:
        """Return one line: the state, how far it is, and by which path."""
        lag = "unknown" if self.lag_records is None else counted(self.lag_records, "record")
        text = (
            f"{self.state}: LSN {self.applied_lsn:,} of {self.known_lsn:,}, lag {lag}, "
            f"{self.hit_rate:.0%} of the bytes by delta"
        )
        return f"{text}; {self.error or self.trouble}" if self.error or self.trouble else text

    def _repr_html_(self) -> str:
        return fields_html("delta reader", self)
