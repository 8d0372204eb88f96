"""What `walkit bench write` measured, as rows, text, JSON and HTML."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from walkit._html import join, red_lines, table, tag
from walkit._text import aligned
from walkit.measure import MachineFacts

RAW = ("raw", "raw frames")
"""The rows of the bare device."""
SIMULATED_PER_S = 10_000
"""Records a second at which the speed of virtual time is told."""


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
    times_raw_bytes: float | None = None
    """Of calls with many records: their bytes a second, in those of a raw loop that writes a call's bytes at a time."""
    frame_bytes: float | None = None
    """Mean bytes of a frame of this way, padding included."""
    times_raw_frames: float | None = None
    """Bytes of frames a second, in those of raw parallel writes of equal frames, as many at a time as are in flight."""
    all_times_raw_frames: tuple[float, ...] = ()
    """That ratio in every run, each within its own run; `times_raw_frames` is then their median."""
    times_peers: dict[str, float] = field(default_factory=dict)
    """Records per second in those of peers, by name: of as many callers, within the same run (medians of the runs)."""
    durability: str = "sync"
    """What an acknowledgement promises in this row."""
    record_bytes: int = 0
    in_flight: int | None = None
    """Frames written at the same time; None for what has no frames."""
    ack_order: str | None = None
    policy: str | None = None
    """When frames were sealed, by its name; None for what has no frames."""
    all_per_s: tuple[float, ...] = ()
    """Records per second of every run of this measurement; the row is the run of the median."""
    cpu_s: float | None = None
    """Processor seconds that virtual time took for it; None where time was real."""

    @property
    def times_real(self) -> float | None:
        """How much faster than real time virtual time went, by processor time; None where time was real."""
        return self.seconds / self.cpu_s if self.cpu_s else None

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
            "times_raw_bytes": _rounded(self.times_raw_bytes, 3),
            "frame_bytes": _rounded(self.frame_bytes, 1),
            "times_raw_frames": _rounded(self.times_raw_frames, 3),
            "all_times_raw_frames": [_rounded(times, 3) for times in self.all_times_raw_frames],
            "times_peers": {name: _rounded(times, 3) for name, times in self.times_peers.items()},
            "durability": self.durability,
            "record_bytes": self.record_bytes,
            "in_flight": self.in_flight,
            "ack_order": self.ack_order,
            "policy": self.policy,
            "all_per_s": [_rounded(rate, 1) for rate in self.all_per_s],
            "cpu_s": _rounded(self.cpu_s, 4),
            "times_real": _rounded(self.times_real, 2),
        }


def _told(value: int | str | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value


def _framed(row: BenchRow) -> tuple[str, str]:
    """Return what the columns "frame bytes" and "x raw frames" say."""
    size, times = row.frame_bytes, row.times_raw_frames
    return "" if size is None else f"{size:,.0f}", "" if times is None else f"{times:,.2f}"


def _rounded(value: float | None, digits: int) -> float | None:
    """Round, with None for what is not known: JSON has no nan."""
    return None if value is None or value != value else round(value, digits)


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """What one `walkit bench write` measured; `raw` rows are the bare device, before, between and after."""

    record_bytes: tuple[int, ...]
    durability: str
    location: str
    raw_block_bytes: int
    """Bytes of one raw write: those of a frame with one record, of the first size."""
    machine: MachineFacts
    rows: tuple[BenchRow, ...] = field(default_factory=tuple)
    runs: int = 1
    """How often everything was measured; each row is the run of its median."""
    model: str | None = None
    """The modelled device, where all of it is virtual time."""

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
        if self.model is not None:
            where = f"the modelled device {self.model}, in virtual time"
        sizes = ", ".join(f"{size:,}" for size in self.record_bytes)
        medians = "" if self.runs == 1 else f"; medians of {self.runs} runs, gone through one after the other"
        several = " (of the first size; a frame of one record for each)" if len(self.record_bytes) > 1 else ""
        notes = [
            f"values of {sizes} bytes, durability {self.durability}, on {where}{medians}",
            f"raw: pwrite of {self.raw_block_bytes:,} bytes{several}, O_DSYNC, on zeroed space"
            if self.model is None
            else f"raw: one writer, blocks of {self.raw_block_bytes:,} bytes, one frame in flight",
        ]
        if self.model is not None and (cpu_s := sum(row.cpu_s or 0 for row in self.rows)):
            pace = sum(row.records for row in self.rows) / cpu_s
            notes.append(
                f"virtual time: {pace:,.0f} records a second of one processor, "
                f"{pace / SIMULATED_PER_S:,.1f} times real time at {SIMULATED_PER_S:,} records a second"
            )
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
            "record_bytes": self.record_bytes[0] if len(self.record_bytes) == 1 else list(self.record_bytes),
            "durability": self.durability,
            "model": self.model,
            "runs": self.runs,
            "file_system": None if system is None else system.type,
            "tmpfs": bool(system is not None and system.tmpfs),
            "raw_per_s": _rounded(self.raw_per_s, 1),
            "raw_block_bytes": self.raw_block_bytes,
            "rows": [row.to_dict() for row in self.rows],
        }

    def _cells(self) -> list[tuple[str, ...]]:
        """Return the head and a line for each row; what is the same in all rows but the raw ones has no column."""
        own = [row for row in self.rows if row.way not in RAW]
        shown = [
            name
            for name in ("record_bytes", "durability", "in_flight", "ack_order", "policy")
            if name == "durability" or len({getattr(row, name) for row in own} - {None}) > 1
        ]
        head = ("way in", "callers", *(name.replace("_", " ") for name in shown), "records/s", "x raw")
        pace = ("x real time",) if self.model is not None else ()
        framed = any(row.times_raw_frames is not None for row in own)
        frames = ("frame bytes", "x raw frames") if framed else ()
        peers = tuple(dict.fromkeys(name for row in own for name in row.times_peers))
        beside = tuple(f"x {name}" for name in peers)
        return [
            (*head, *beside, "x raw bytes", "p50 us", "p99 us", "frames", "records/frame", *frames, *pace),
            *(
                (
                    row.way,
                    f"{row.callers:,}",
                    *(_told(getattr(row, name)) for name in shown),
                    f"{row.records_per_s:,.0f}",
                    "" if row.way in RAW else f"{row.times_raw:,.2f}",
                    *(f"{row.times_peers[name]:,.2f}" if name in row.times_peers else "" for name in peers),
                    "" if row.times_raw_bytes is None else f"{row.times_raw_bytes:,.2f}",
                    f"{row.p50_us:,.1f}",
                    f"{row.p99_us:,.1f}",
                    _told(row.frames),
                    "" if row.records_per_frame is None else f"{row.records_per_frame:,.1f}",
                    *_framed(row)[: len(frames)],
                    *("" if row.times_real is None else f"{row.times_real:,.1f}" for _ in pace),
                )
                for row in self.rows
            ),
        ]

    def text(self) -> str:
        """Return the table as aligned text, with what it was taken on above and what the latencies are of below."""
        head, *rows = self._cells()
        lines = aligned(head, rows, right=range(1, len(head)))
        of = {row.way: row.latency_of for row in self.rows}
        return "\n".join([*self.notes, *lines, *(f"p50, p99 of {way}: {what}" for way, what in of.items())])

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        plain = 2 if self.model is None else 3
        notes = [tag("div", note) for note in self.notes[:plain]]
        return join(
            [
                *notes,
                red_lines(self.notes[plain:]),
                table(
                    rows,
                    head,
                    right=range(1, len(head)),
                    titles=[f"latencies: {row.latency_of}" for row in self.rows],
                ),
            ]
        )
