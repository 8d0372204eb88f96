"""The description of a log's copy, in a form to read, print and test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from walkit._internal.report import report_html
from walkit._internal.text import bounds, counted


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyReport:
    """The result of one `walkit.copy`. Sizes and positions are bytes."""

    source: str
    location: str
    """Where the copy is."""
    log_id: int
    first_lsn: int
    """The oldest LSN of the copy; one more than the last if it is empty."""
    last_lsn: int
    end_position: int
    records: int
    """Records in the copy; fewer than its LSNs if compaction has dropped some."""
    segments: int
    snapshots: tuple[int, ...]
    """LSNs of the snapshots that were copied."""
    snapshots_left: tuple[int, ...]
    """LSNs of those that were left out: damaged, or of another history of the log."""
    bytes_copied: int
    bytes_kept: int
    """Bytes of segments that an earlier copy to this target had made whole."""
    duration_s: float
    payload_logs: Mapping[int, str] = field(default_factory=dict)
    """Places of the payload logs that the copy still needs, by their ids: they were not copied."""
    payload_copies: Mapping[int, str] = field(default_factory=dict)
    """Places of the payload logs that were copied, by their ids."""

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        return [f"{self.location} is a copy of {self.source}", *(f"  {k}: {v}" for k, v in self._facts())]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self) | {
            "snapshots": list(self.snapshots),
            "snapshots_left": list(self.snapshots_left),
            **{
                name: {f"{log_id:016x}": place for log_id, place in getattr(self, name).items()}
                for name in ("payload_logs", "payload_copies")
            },
        }

    def _facts(self) -> list[tuple[str, str]]:
        kept = f", and {counted(self.bytes_kept, 'byte')} of an earlier attempt" if self.bytes_kept else ""
        unusable = [("snapshots left out", self._lsns(self.snapshots_left))] if self.snapshots_left else []
        return [
            ("log id", f"{self.log_id:016x}"),
            ("LSN", bounds(self.first_lsn, self.last_lsn) if self.records else "no records"),
            ("records", f"{self.records:,} in {counted(self.segments, 'segment')}"),
            ("snapshots", self._lsns(self.snapshots)),
            *unusable,
            *(
                (said, f"{log_id:016x} at {place}")
                for said, places in (
                    ("needs payload log", self.payload_logs),
                    ("payload log copied", self.payload_copies),
                )
                for log_id, place in places.items()
            ),
            ("copied", f"{counted(self.bytes_copied, 'byte')}{kept}"),
            ("time", f"{self.duration_s:,.2f} s"),
        ]

    @staticmethod
    def _lsns(lsns: tuple[int, ...]) -> str:
        return ", ".join(f"LSN {lsn:,}" for lsn in lsns) or "none"

    def _repr_html_(self) -> str:
        return report_html(f"Copy of {self.source}", [("copy", self.location), *self._facts()])
