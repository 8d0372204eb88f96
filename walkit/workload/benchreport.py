"""What `walkit bench write` measured, as rows, text, JSON and HTML."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from walkit.html import join, red_lines, table, tag
from walkit.measure import MachineFacts


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One way in, measured. Latencies are in microseconds, of what `latency_of` says."""

    way: str
    callers: int
    records: int
    """Acknowledged within `seconds`. 0 where the device stalled for so long: then there are no percentiles."""
    seconds: float
    p50_us: float
    p99_us: float
    latency_of: str
    frames: int | None = None
    """Frames written within `seconds`; None for the raw device."""
    records_per_frame: float | None = None
    """Mean number of records in a frame of this way."""
    raw_per_s: float = float("nan")
    """Writes per second of the raw device, just before and just after: their mean."""

    @property
    def records_per_s(self) -> float:
        """Records acknowledged per second."""
        return self.records / self.seconds if self.seconds else float("nan")

    @property
    def times_raw(self) -> float:
        """Records per second, in raw writes per second."""
        return self.records_per_s / self.raw_per_s

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "way": self.way,
            "callers": self.callers,
            "records": self.records,
            "seconds": round(self.seconds, 4),
            "records_per_s": _rounded(self.records_per_s, 1),
            "raw_per_s": _rounded(self.raw_per_s, 1),
            "times_raw": _rounded(self.times_raw, 3),
            "p50_us": _rounded(self.p50_us, 1),
            "p99_us": _rounded(self.p99_us, 1),
            "latency_of": self.latency_of,
            "frames": self.frames,
            "records_per_frame": _rounded(self.records_per_frame, 2),
        }


def _rounded(value: float | None, digits: int) -> float | None:
    """Round, with None for what is not known: JSON has no nan."""
    return None if value is None or value != value else round(value, digits)


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """What one `walkit bench write` measured; `raw` rows are the bare device, before, between and after."""

    record_bytes: int
    durability: str
    location: str
    raw_block_bytes: int
    """Bytes of one raw write: those of a frame with one record."""
    machine: MachineFacts
    rows: tuple[BenchRow, ...] = field(default_factory=tuple)

    @property
    def raw_per_s(self) -> float:
        """Median of all raw loops, writes per second."""
        raw = [r.records_per_s for r in self.rows if r.way == "raw"]
        return statistics.median(raw) if raw else float("nan")

    @property
    def notes(self) -> list[str]:
        """What the numbers were taken on, and what makes them mean less."""
        system = self.machine.file_system
        where = "an unknown file system" if system is None else f"{system.type} ({system.mount_point})"
        notes = [
            f"values of {self.record_bytes:,} bytes, durability {self.durability}, on {where}",
            f"raw: pwrite of {self.raw_block_bytes:,} bytes, O_DSYNC, on zeroed space",
        ]
        if system is not None and system.tmpfs:
            notes.append("tmpfs: sync means nothing here")
        if self.durability != "sync":
            notes.append(
                f"durability {self.durability}: no sync is waited for, and x raw compares unlike things"
            )
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        system = self.machine.file_system
        return {
            "bench": "write",
            "record_bytes": self.record_bytes,
            "durability": self.durability,
            "file_system": None if system is None else system.type,
            "tmpfs": bool(system is not None and system.tmpfs),
            "raw_per_s": _rounded(self.raw_per_s, 1),
            "raw_block_bytes": self.raw_block_bytes,
            "rows": [row.to_dict() for row in self.rows],
        }

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            ("way in", "callers", "records/s", "x raw", "p50 us", "p99 us", "frames", "records/frame"),
            *(
                (
                    row.way,
                    f"{row.callers:,}",
                    f"{row.records_per_s:,.0f}",
                    "" if row.way == "raw" else f"{row.times_raw:,.2f}",
                    f"{row.p50_us:,.1f}",
                    f"{row.p99_us:,.1f}",
                    "" if row.frames is None else f"{row.frames:,}",
                    "" if row.records_per_frame is None else f"{row.records_per_frame:,.1f}",
                )
                for row in self.rows
            ),
        ]

    def text(self) -> str:
        """Return the table as aligned text, with what it was taken on above and what the latencies are of below."""
        lines = [f"{c[0]:<14}" + "".join(f"{cell:>14}" for cell in c[1:]) for c in self._cells()]
        of = {row.way: row.latency_of for row in self.rows}
        return "\n".join([*self.notes, *lines, *(f"p50, p99 of {way}: {what}" for way, what in of.items())])

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        notes = [tag("div", note) for note in self.notes[:2]]
        return join(
            [
                *notes,
                red_lines(self.notes[2:]),
                table(
                    rows,
                    head,
                    right=range(1, len(head)),
                    titles=[f"latencies: {row.latency_of}" for row in self.rows],
                ),
            ]
        )
