"""The report of `walkit bench write`, as rows, text, JSON and HTML."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from walkit._internal.html import Markup
from walkit._internal.report import Cells, TableReport, rounded
from walkit.bench.runner import plain_row
from walkit.measure import MachineFacts
from walkit.storage.address import is_object_url

RAW = ("raw", "raw frames", "plain puts")
"""The rows of the bare device or object store."""
DIGITS = {
    "seconds": 4,
    "records_per_s": 1,
    "raw_per_s": 1,
    "all_per_s": 1,
    "p50_us": 1,
    "p99_us": 1,
    "times_raw": 3,
    "times_raw_bytes": 3,
    "times_raw_frames": 3,
    "all_times_raw_frames": 3,
    "times_peers": 3,
    "records_per_frame": 2,
    "frame_bytes": 1,
    "cpu_s": 4,
    "cpu_us": 2,
    "puts_per_record": 6,
    "times_real": 2,
}
"""Digits of the numbers of a row in JSON."""
SIMULATED_PER_S = 10_000
"""Records per second at which the speed of virtual time is reported."""


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One way in, measured. Latencies are in microseconds, of the thing in `latency_of`."""

    way: str
    callers: int
    records: int
    """Acknowledged within `seconds`. 0, without percentiles, if the device stalled for so long."""
    seconds: float
    p50_us: float
    p99_us: float
    latency_of: str
    frames: int | None = None
    """Frames written within `seconds`; None for the raw device."""
    records_per_frame: float | None = None
    """Mean number of records in a frame of this way."""
    raw_per_s: float = float("nan")
    """Writes per second of the raw device, just before and just after: their mean. On object storage: plain PUTs."""
    times_raw_bytes: float | None = None
    """For calls with many records: their bytes per second, relative to a raw loop of equal writes."""
    frame_bytes: float | None = None
    """Mean bytes of a frame of this way, padding included."""
    times_raw_frames: float | None = None
    """Bytes of frames per second relative to raw parallel writes of equal frames, as many at a time as are in flight.

    On object storage: relative to plain PUTs of equal objects."""
    all_times_raw_frames: tuple[float, ...] = ()
    """That ratio in every run, each within its own run; `times_raw_frames` is then their median."""
    times_peers: dict[str, float] = field(default_factory=dict)
    """Records per second in those of peers, by name: of as many callers, within the same run (medians of the runs)."""
    durability: str = "sync"
    """The promise of an acknowledgement in this row."""
    record_bytes: int = 0
    in_flight: int | None = None
    """Frames in flight; None for a store without frames."""
    ack_order: str | None = None
    policy: str | None = None
    """The policy's name; None for a store without frames."""
    all_per_s: tuple[float, ...] = ()
    """Records per second of every run of this measurement; the row is the run of the median."""
    cpu_s: float | None = None
    """Processor seconds that virtual time took for it; None if time was real."""
    cpu_us: float | None = None
    """On object storage: processor time of this process for each record, or PUT, in microseconds."""
    puts_per_record: float | None = None
    """On object storage: requests that put an object, repeated ones too, for each record."""

    @property
    def times_real(self) -> float | None:
        """How much faster than real time virtual time went, by processor time; None if time was real."""
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
        return plain_row(self, DIGITS)


def _cell(value: int | str | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value


def _framed(row: BenchRow) -> tuple[str, str]:
    """Return the columns "frame bytes" and "x raw frames"."""
    size, times, every = row.frame_bytes, row.times_raw_frames, row.all_times_raw_frames
    spread = f" (n={len(every)}, {min(every):,.2f} to {max(every):,.2f})" if every else ""
    return "" if size is None else f"{size:,.0f}", "" if times is None else f"{times:,.2f}{spread}"


def _used(row: BenchRow) -> tuple[str, str]:
    """Return the text of the columns "PUTs/record" and "CPU us/record"."""
    return f"{row.puts_per_record or 0:,.4f}", f"{row.cpu_us or 0:,.1f}"


@dataclass(frozen=True, kw_only=True)
class BenchReport(TableReport):
    """The result of one `walkit bench write`; `raw` rows are the bare device, before, between and after."""

    bench = "write"

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
    """The modelled device, if all of it is virtual time."""

    @property
    def raw_per_s(self) -> float:
        """Median of all raw loops, writes per second."""
        raw = [r.records_per_s for r in self.rows if r.way == "raw"]
        return statistics.median(raw) if raw else float("nan")

    @property
    def notes(self) -> list[str]:
        """The machine of the numbers, and their limits."""
        where = self.location if self._on_objects else self.machine.where
        if self.model is not None:
            where = f"the modelled device {self.model}, in virtual time"
        sizes = ", ".join(f"{size:,}" for size in self.record_bytes)
        medians = "" if self.runs == 1 else f"; medians of {self.runs} runs, gone through one after the other"
        several = " (of the first size; a frame of one record for each)" if len(self.record_bytes) > 1 else ""
        notes = [
            f"values of {sizes} bytes, durability {self.durability}, on {where}{medians}",
            "raw: plain PUTs of objects as large as those above, as many at a time as can be in flight there"
            if self._on_objects
            else f"raw: pwrite of {self.raw_block_bytes:,} bytes{several}, O_DSYNC, on zeroed space"
            if self.model is None
            else f"raw: one writer, blocks of {self.raw_block_bytes:,} bytes, one frame in flight",
        ]
        if self.model is not None and (cpu_s := sum(row.cpu_s or 0 for row in self.rows)):
            pace = sum(row.records for row in self.rows) / cpu_s
            notes.append(
                f"virtual time: {pace:,.0f} records per second of one processor, "
                f"{pace / SIMULATED_PER_S:,.1f} times real time at {SIMULATED_PER_S:,} records per second"
            )
        if self.machine.in_memory:
            notes.append("tmpfs: sync means nothing here")
        if self.durability != "sync":
            notes.append(
                f"durability {self.durability}: no sync is waited for, and x raw compares unlike things"
            )
        return notes

    def _facts(self) -> dict[str, Any]:
        system = self.machine.file_system
        return {
            "record_bytes": self.record_bytes[0] if len(self.record_bytes) == 1 else list(self.record_bytes),
            "durability": self.durability,
            "model": self.model,
            "runs": self.runs,
            "file_system": None if system is None else system.type,
            "tmpfs": self.machine.in_memory,
            "raw_per_s": rounded(self.raw_per_s, 1),
            "raw_block_bytes": self.raw_block_bytes,
            "rows": [row.to_dict() for row in self.rows],
        }

    @property
    def _on_objects(self) -> bool:
        return is_object_url(self.location)

    @property
    def _own(self) -> list[BenchRow]:
        return [row for row in self.rows if row.way not in RAW]

    @property
    def _differing(self) -> list[str]:
        """The options that are not the same in all rows but the raw ones: each has a column."""
        names = ("record_bytes", "durability", "in_flight", "ack_order", "policy")
        return [
            name
            for name in names
            if name == "durability" or len({getattr(row, name) for row in self._own} - {None}) > 1
        ]

    @property
    def _peers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for row in self._own for name in row.times_peers))

    @property
    def _frame_columns(self) -> Cells:
        framed = any(row.times_raw_frames is not None for row in self._own)
        return ("frame bytes", "x plain puts" if self._on_objects else "x raw frames") if framed else ()

    def _head(self) -> Cells:
        options = (name.replace("_", " ") for name in self._differing)
        speed = ("records/s", "x raw", *(f"x {name}" for name in self._peers), "x raw bytes")
        used = ("PUTs/record", "CPU us/record") if self._on_objects else ()
        pace = ("x real time",) if self.model is not None else ()
        frames = ("frames", "records/frame", *self._frame_columns)
        return ("way in", "callers", *options, *speed, "p50 us", "p99 us", *frames, *used, *pace)

    def _cells(self) -> list[Cells]:
        shown, peers, framed = self._differing, self._peers, len(self._frame_columns)
        return [
            (
                row.way,
                f"{row.callers:,}",
                *(_cell(getattr(row, name)) for name in shown),
                f"{row.records_per_s:,.0f}",
                "" if row.way in RAW else f"{row.times_raw:,.2f}",
                *(f"{row.times_peers[name]:,.2f}" if name in row.times_peers else "" for name in peers),
                "" if row.times_raw_bytes is None else f"{row.times_raw_bytes:,.2f}",
                f"{row.p50_us:,.1f}",
                f"{row.p99_us:,.1f}",
                _cell(row.frames),
                "" if row.records_per_frame is None else f"{row.records_per_frame:,.1f}",
                *_framed(row)[:framed],
                *(_used(row) if self._on_objects else ()),
                *(
                    ("" if row.times_real is None else f"{row.times_real:,.1f}",)
                    if self.model is not None
                    else ()
                ),
            )
            for row in self.rows
        ]

    def _plain_notes(self) -> int:
        return 2 if self.model is None else 3

    def _row_titles(self) -> list[str]:
        return [f"latencies: {row.latency_of}" for row in self.rows]

    def _lines_below(self) -> list[str]:
        of = {row.way: row.latency_of for row in self.rows}
        return [f"p50, p99 of {way}: {what}" for way, what in of.items()]

    def _html_below(self) -> list[Markup]:
        return []  # the rows have titles that say it
