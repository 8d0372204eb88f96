"""The record of one run: workload, log, machine and measurements.

A Run holds everything that a number needs to be believed or repeated: options, seed, durability level,
machine and file system, a raw-device baseline of the same run, full latency histograms and a timeline. It can
be saved, loaded and compared; plots and dashboards read Runs and nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from walkit._internal.arguments import check_choice
from walkit._internal.html import facts, red_lines, tag, titled
from walkit.measure.baseline import Baseline
from walkit.measure.histogram import LatencyHistogram
from walkit.measure.machine import MachineFacts
from walkit.measure.timeline import Timeline
from walkit.metrics import LogStatistics

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
"""The types that JSON keeps equal."""


class RunEvent(NamedTuple):
    """Something that happened during a run, on the clock of its timeline."""

    time_s: float
    """Seconds from the start of the run; below 0 for events during its setup."""
    name: str
    attributes: dict[str, Plain]


@dataclass(frozen=True, kw_only=True)
class FrameSummary:
    """The frames that the records of a run went into. Quantiles: None if single frames were not seen."""

    frames: int
    records: int
    frame_bytes: int
    """Bytes of frames as written: headers and padding included."""
    padding_bytes: int = 0
    records_p50: float | None = None
    records_p99: float | None = None
    records_max: int | None = None

    @classmethod
    def from_sizes(
        cls, records: npt.ArrayLike, frame_bytes: npt.ArrayLike, *, padding_bytes: int = 0
    ) -> FrameSummary:
        """Summarise frames from two 1-d arrays with an element per frame: its records and its bytes."""
        counts, sizes = np.asarray(records, dtype=np.int64), np.asarray(frame_bytes, dtype=np.int64)
        if counts.ndim != 1 or counts.shape != sizes.shape:
            raise ValueError("records and frame_bytes must be 1-d and of one length")
        p50, p99 = np.percentile(counts, (50, 99)).tolist() if counts.size else (None, None)
        return cls(
            frames=counts.size,
            records=int(counts.sum()),
            frame_bytes=int(sizes.sum()),
            padding_bytes=padding_bytes,
            records_p50=p50,
            records_p99=p99,
            records_max=int(counts.max()) if counts.size else None,
        )

    @classmethod
    def between(cls, before: LogStatistics, after: LogStatistics) -> FrameSummary:
        """Return what a log wrote between two snapshots of its metrics."""
        frames = after.frames_written - after.marker_frames
        return cls(
            frames=frames - before.frames_written + before.marker_frames,
            records=after.records_acked - before.records_acked,
            frame_bytes=after.frame_bytes - before.frame_bytes,
            padding_bytes=after.padding_bytes - before.padding_bytes,
        )

    @property
    def records_mean(self) -> float:
        """Mean number of records in a frame; nan without frames."""
        return self.records / self.frames if self.frames else float("nan")

    @property
    def bytes_mean(self) -> float:
        """Mean size of a frame, bytes; nan without frames."""
        return self.frame_bytes / self.frames if self.frames else float("nan")

    def _repr_html_(self) -> str:
        pairs = [("frames", f"{self.frames:,}"), ("records", f"{self.records:,}")]
        if self.frames:
            pairs.append(("records in a frame, mean", f"{self.records_mean:,.1f}"))
        if self.records_p50 is not None:
            quantiles = (self.records_p50, self.records_p99, self.records_max)
            pairs.append(
                ("p50, p99, most", ", ".join("unknown" if n is None else f"{n:,.6g}" for n in quantiles))
            )
        pairs.append(("bytes of frames", f"{self.frame_bytes:,}"))
        if self.frames:
            pairs.append(("bytes of a frame, mean", f"{self.bytes_mean:,.0f}"))
        return titled("Frames", [*pairs, ("bytes of padding", f"{self.padding_bytes:,}")])


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a workload. Frozen; equal if everything in it is equal, which a saved and loaded Run is.

    `options`, `labels` and the attributes of events are brought to plain JSON values when the Run is made.
    """

    name: str
    started_at: datetime
    """Wall clock at time 0 of the run, with time zone."""
    duration_s: float
    records: int
    """Records acknowledged within the run, as the drivers saw it."""
    durability: str
    """The level promised by an acknowledgement: sync, interval or none."""
    machine: MachineFacts
    latency: dict[str, LatencyHistogram]
    """By name; "total" is from the start, or in an open loop the intended start, to the acknowledgement."""
    timeline: Timeline
    arrival: Literal["closed", "open"] = "closed"
    """How load arrived. Closed: a stall stops the callers too, so the waiting it would cause is not seen."""
    operations: dict[str, int] = field(default_factory=dict)
    """How many operations of each kind were driven."""
    seed: int | None = None
    options: dict[str, Plain] = field(default_factory=dict)
    """Options of the log and of the workload."""
    bytes_user: int | None = None
    """Bytes of keys and values."""
    bytes_written: int | None = None
    """Bytes written to the place for them."""
    syncs: int | None = None
    frames: FrameSummary | None = None
    events: tuple[RunEvent, ...] = ()
    baseline: Baseline | None = None
    interrupted: bool = False
    """True: stopped early; everything in the Run is about the part that ran."""
    failure: str | None = None
    """The error that ended the run early, in its words; everything in the Run is about the part before it."""
    crash_verdict: str | None = None
    """The result of exploring crashes of this configuration; None if not explored."""
    labels: dict[str, Plain] = field(default_factory=dict)
    """The settings that distinguish this run from its neighbours: writers, record bytes, ..."""
    walkit_version: str | None = None
    """The walkit that was measured; None: unknown, as of a Run that was saved before this was recorded."""

    def __post_init__(self) -> None:
        if self.started_at.tzinfo is None:
            raise ValueError("started_at needs a time zone")
        object.__setattr__(self, "options", {str(k): plain(v) for k, v in self.options.items()})
        object.__setattr__(self, "labels", {str(k): plain(v) for k, v in self.labels.items()})
        events = (RunEvent(t, n, {str(k): plain(v) for k, v in a.items()}) for t, n, a in self.events)
        object.__setattr__(self, "events", tuple(events))

    def __repr__(self) -> str:
        when, rate = self.started_at.isoformat(sep=" ", timespec="seconds"), self.records_per_s
        ended = ", failed" if self.failure is not None else ", interrupted" if self.interrupted else ""
        return (
            f"Run({self.name!r}, {self.records:,} records at {rate:,.0f}/s, {self.durability}, {when}{ended})"
        )

    @property
    def records_per_s(self) -> float:
        """Acknowledged records per second over the whole run; nan if it took no time."""
        return self.records / self.duration_s if self.duration_s > 0 else float("nan")

    @property
    def write_amplification(self) -> float | None:
        """Bytes written per user byte."""
        return (
            self.bytes_written / self.bytes_user
            if self.bytes_written is not None and self.bytes_user
            else None
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the caveats about the numbers, worst first."""
        place = self.machine.file_system
        return tuple(
            text
            for holds, text in (
                (place is not None and place.tmpfs, f"{place and place.type}: sync means nothing here"),
                (
                    self.durability == "none",
                    "durability none: sync means nothing, an acknowledged record may be lost",
                ),
                (self.failure is not None, f"failed, only the part before: {self.failure}"),
                (self.interrupted, "interrupted: only the part that ran"),
            )
            if holds
        )

    def summary(self) -> dict[str, Any]:
        """Return the run in a flat dict of plain values, as a table or `--json` shows it; unknown = None.

        Latencies are those of "total", in microseconds.
        """
        place, total = self.machine.file_system, self.latency.get("total", None)
        known = {} if total is None else total.percentiles_us()
        numbers: dict[str, Any] = {
            "name": self.name,
            "records_per_s": self.records_per_s,
            **{f"{name}_us": known.get(name) for name in ("p50", "p90", "p99", "p99.9", "p99.99", "max")},
            "durability": self.durability,
            "arrival": self.arrival,
            "file_system": place.type if place else None,
            "records": self.records,
            "duration_s": self.duration_s,
            "syncs_per_s": None
            if self.syncs is None
            else self.syncs / self.duration_s
            if self.duration_s
            else None,
            "records_per_frame": self.frames.records_mean if self.frames else None,
            "write_amplification": self.write_amplification,
            "raw_writes_per_s": self.baseline.writes_per_s if self.baseline else None,
            "raw_p50_us": self.baseline.latencies.percentile(50) / 1_000 if self.baseline else None,
            "raw_block_bytes": self.baseline.block_bytes if self.baseline else None,
            "seed": self.seed,
            "crash_verdict": self.crash_verdict,
            "interrupted": self.interrupted,
            "failure": self.failure,
            "walkit_version": self.walkit_version,
            "warnings": list(self.warnings),
        }
        return {name: None if value != value else value for name, value in numbers.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the Run as one Parquet file, `path` with the ending .parquet, over any file; load() gives it back.

        `path` may have the ending already. The columns are those of `to_pandas()`, and pandas
        reads them, and the settings as `attrs`, without walkit. Not synced: a Run can be measured again. OptionsError
        for a Run with a number that is not finite.
        """
        from walkit.measure.run_file import write_file

        write_file(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the bytes of the file that `save` writes. OptionsError for a Run with a number that is not finite."""
        from walkit.measure.run_file import encode

        return encode(self.name, self.facts(), self._series(), self.attributes())

    def facts(self) -> dict[str, Any]:
        """Return every field but the timeline, as JSON holds them; histograms as HdrHistogram's V2 payloads in base64.

        `walkit.measure.run_io` makes the Run of them again.
        """
        facts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "timeline"}
        baseline = self.baseline and {**vars(self.baseline), "latencies": self.baseline.latencies.encode()}
        return facts | {
            "started_at": self.started_at.isoformat(),
            "machine": dataclasses.asdict(self.machine),
            "latency": {name: histogram.encode() for name, histogram in self.latency.items()},
            "frames": self.frames and dataclasses.asdict(self.frames),
            "baseline": baseline,
        }

    def attributes(self) -> dict[str, Plain]:
        """Return the metadata of a table of the Run, as JSON gives it back equal: settings and results.

        It is `summary()`, with the start, machine, options, labels, operations, and for each histogram its count and
        percentiles in microseconds.
        """
        latencies = {
            name: {"records": histogram.count, **(histogram.percentiles_us() if histogram.count else {})}
            for name, histogram in self.latency.items()
        }
        return {
            **{name: plain(value) for name, value in self.summary().items()},
            "started_at": self.started_at.isoformat(),
            "machine": plain(self.machine),
            "options": self.options,
            "labels": self.labels,
            "operations": plain(self.operations),
            "latency_us": plain(latencies),
        }

    def _series(self) -> pa.Table:
        from walkit.measure.series import series_table

        known = self.bytes_user is not None and self.records > 0
        return series_table(
            self.timeline, self.started_at, (self.bytes_user or 0) / self.records if known else np.nan
        )

    def to_pandas(self, part: Literal["series", "latency"] = "series") -> pd.DataFrame:
        """Return the series over time, a row per interval, or the distributions of latency, a row per bucket.

        Columns of the series: `time` (UTC, when the interval begins), `start_s` (the same, seconds from the start of
        the run), `width_s`, `records` (acknowledged in it), `records_per_s`, `user_bytes_per_s` (keys and values, each
        record taken to have the run's mean), `p50_us`, `p99_us` and `max_us` (latency of those records, microseconds).
        Unknown values are nan. Columns of the latencies: `name` ("total", ...), `low_us` and `high_us` (edges of the
        bucket, inclusive, microseconds), `records` in it, and `share`: the part of all records of that name up to and
        with it, 0 to 1.

        `attrs` of both hold settings and results as plain values: `summary()`, start, machine, options, labels,
        operations, and the percentiles of each histogram. MissingExtraError without pandas.
        """
        from walkit.measure.series import PARTS, latency_frame, require_pandas

        check_choice(part, PARTS, "part")
        require_pandas()
        frame: pd.DataFrame = self._series().to_pandas() if part == "series" else latency_frame(self.latency)
        frame.attrs.update(self.attributes())
        return frame

    def _repr_html_(self) -> str:
        """Render the throughput over time and a compact table; caveats are in red above them."""
        rows = [
            (name, _shown(value))
            for name, value in self.summary().items()
            if name not in ("name", "warnings", "interrupted", "failure") and value is not None
        ]
        return tag("div", red_lines(self.warnings), tag("b", self.name), self.timeline.picture(), facts(rows))


def plain(value: object) -> Plain:
    """Return `value` as JSON can hold it and give it back equal.

    Dataclasses and mappings become dicts, sequences lists, enums their value, numpy numbers Python's, times
    ISO text; of anything else, bytes and nan included, the repr.
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if np.isfinite(value) else repr(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, np.ndarray)):
        return [plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime) else repr(value)


def _shown(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value if isinstance(value, str) else json.dumps(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if abs(value) >= 10 else f"{value:.4g}"
