"""How a replica stands, as a frozen value."""

from __future__ import annotations

from dataclasses import dataclass

from walkit.log.report import report_html
from walkit.text import counted


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaStatus:
    """One moment of a replica.

    `state`: "new", "connecting", "catching up", "streaming" (nothing behind what it knows of), "failed" (for good:
    `error` says why), "stopped".
    """

    state: str
    source: str
    """Address of the primary."""
    name: str
    lsn: int
    """Last LSN on this replica's stable storage."""
    applied_lsn: int
    """Last LSN applied to the replica's store."""
    source_lsn: int
    """Last LSN that the primary has said is on its stable storage."""
    lag_records: int
    lag_bytes: int
    """Bytes of frames, padding included."""
    lag_ms: float
    """For how long the replica has known of a record that it does not have yet."""
    reconnects: int
    duplicates: int
    gaps: int
    error: str | None
    trouble: str
    """Why the last connection ended; "" where none did."""

    def _repr_html_(self) -> str:
        facts = [
            ("state", self.state),
            ("primary", self.source),
            ("LSN", f"{self.lsn:,} of {self.source_lsn:,}"),
            ("applied LSN", f"{self.applied_lsn:,}"),
            (
                "lag",
                f"{counted(self.lag_records, 'record')}, {counted(self.lag_bytes, 'byte')}, {self.lag_ms:,.1f} ms",
            ),
            ("reconnects", f"{self.reconnects:,}"),
        ]
        if self.trouble:
            facts.append(("last trouble", self.trouble))
        if self.error:
            facts.append(("error", self.error))
        return report_html(f"replica {self.name}", facts)
