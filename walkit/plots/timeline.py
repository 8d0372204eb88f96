"""A run over its time: a recorded one, and a log as it works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from html import escape

import numpy as np
import numpy.typing as npt

from walkit.measure import Run, RunEvent
from walkit.plots import style
from walkit.plots.facts import run_facts, run_warnings
from walkit.plots.style import Figure, curve, dress, go, subplots
from walkit.plots.units import CLOCK, COUNTS, LOG_SECONDS, duration_text, log_seconds

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LiveSeries:
    """Observations of a log: arrays of one length, one element per interval, nan for unseen values.

    A point with only its time is a gap: the curves end before it and start again after it.
    """

    time_s: Float64Array
    """End of the interval, seconds on the clock of the history; never falling."""
    records_per_s: Float64Array
    """Records acknowledged a second."""
    p50_us: Float64Array
    """Median latency of the records acknowledged in the interval, microseconds."""
    p99_us: Float64Array
    """Their 99th percentile."""
    max_us: Float64Array
    """Their longest latency."""
    write_us: Float64Array
    """Mean time of the write and sync of one frame, microseconds."""
    queue_records: Float64Array
    """Records that waited for their frame: the mean of the interval, or, without `queue_max`, at its end."""
    frame_records: Float64Array
    """Mean number of records in a frame."""
    frame_bytes: Float64Array
    """Mean size of a frame, bytes, padding included."""
    in_flight: Float64Array
    """Mean number of frames that were being written."""
    p999_us: Float64Array = field(default_factory=lambda: np.empty(0))
    """Their 99.9th percentile, microseconds. Left out, this and the next three are nan."""
    frames_per_s: Float64Array = field(default_factory=lambda: np.empty(0))
    """Frames with records written per second."""
    raw_per_s: Float64Array = field(default_factory=lambda: np.empty(0))
    """Durable writes per second of the bare device, if known in the interval."""
    queue_max: Float64Array = field(default_factory=lambda: np.empty(0))
    """The most records that waited in the interval."""
    events: Sequence[RunEvent] = ()
    """Events, on the same clock."""

    def __post_init__(self) -> None:
        for name in ("p999_us", "frames_per_s", "raw_per_s", "queue_max"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.full(len(self.time_s), np.nan))

    def columns(self) -> dict[str, Float64Array]:
        """Return the arrays by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "events"}

    def __len__(self) -> int:
        """Return the number of points, gaps included."""
        return len(self.time_s)


def event_text(event: RunEvent) -> str:
    """Return an event and its attributes, as HTML for a hover label."""
    facts = (f"{escape(name)}={escape(str(value))}" for name, value in event.attributes.items())
    return "<br>".join([f"<b>{escape(event.name)}</b>", *facts])


def throughput_timeline(run: Run) -> Figure:
    """Draw records/s, below it p50, p99 and maximum latency, and below that the events, all on one clock.

    The dashed line is the raw-device baseline of the same run, in writes/s. Each point is one bucket of
    `run.timeline`, at its middle. Events from before the run are left of the clock's 0, out of the first
    view.
    """
    line = run.timeline
    shown = list(run.events)
    names = list(dict.fromkeys(event.name for event in shown))
    # In pixels: each name of an event has its own line.
    heights = [220, 180, 20 * len(names) + 5] if shown else [220, 180]
    panels = subplots(
        rows=len(heights), cols=1, shared_xaxes=True, vertical_spacing=0.05, row_heights=heights
    )
    drawing = dress(
        panels,
        f"{escape(run.name)} ({run.durability}, {run.arrival} loop): {run.records_per_s:,.0f} records/s",
        subtitle=run_facts([run]),
        warnings=run_warnings([run], named=False),
        alt=_describe(run),
        height=520 + (20 * len(names) + 40 if shown else 0),
        hovermode="x unified",
    )
    middle = line.middle_s
    drawing.add_trace(curve(middle, line.records_per_s, "records/s", style.BLUE), row=1, col=1)
    if run.baseline is not None:
        raw = run.baseline.writes_per_s
        label = f"raw {run.baseline.mode} writes/s, {run.baseline.block_bytes:,} B"
        dashes = {"dash": "dash", "width": 1}
        across = curve([0, run.duration_s], [raw, raw], label, style.NEUTRAL, line=dashes)
        drawing.add_trace(across, row=1, col=1)
    for label, values, paint in (
        ("p50", line.p50_us / 1e6, style.GREEN),
        ("p99", line.p99_us / 1e6, style.ORANGE),
        ("max", line.max_us / 1e6, style.VERMILION),
    ):
        # A bucket without records has no latency: the line has a gap there.
        drawing.add_trace(curve(middle, values, label, paint, connectgaps=False), row=2, col=1)
    if shown:
        marks = go.Scatter(
            x=[event.time_s for event in shown],
            y=[event.name for event in shown],
            text=[
                ", ".join(f"{name}={value}" for name, value in event.attributes.items()) for event in shown
            ],
            mode="markers",
            marker={"symbol": "line-ns-open", "color": style.PURPLE, "size": 12},
            name="events",
            showlegend=False,
        )
        drawing.add_trace(marks, row=3, col=1)
        drawing.update_yaxes(tickmode="linear", dtick=1, row=3, col=1)
    drawing.update_yaxes(title_text="records/s", rangemode="tozero", **COUNTS, row=1, col=1)
    drawn = np.concatenate([line.p50_us, line.max_us]) / 1e6
    drawn = drawn[drawn > 0]
    seconds = log_seconds(drawn.min(), drawn.max()) if len(drawn) else LOG_SECONDS
    drawing.update_yaxes(title_text="latency", type="log", hoverformat=".3s", **seconds, row=2, col=1)
    drawing.update_xaxes(range=[0, run.duration_s or 1], **CLOCK)
    return drawing


def _describe(run: Run) -> str:
    total = run.latency.get("total")
    latency = ""
    if total is not None and total.count:
        p50, p99 = (duration_text(total.percentile(p) / 1e9) for p in (50, 99))
        latency = f"; latency p50 {p50}, p99 {p99}"
    raw = "" if run.baseline is None else f"; the bare device does {run.baseline.writes_per_s:,.0f} writes/s"
    return (
        f"Throughput and latency over {duration_text(run.duration_s)} of {run.name}: {run.records:,} records, "
        f"{run.records_per_s:,.0f} records/s{latency}{raw}"
    )
