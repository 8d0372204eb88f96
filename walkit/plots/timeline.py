"""Draws the events of a run on its clock."""

from __future__ import annotations

from html import escape

from walkit.measure import Run
from walkit.plots.facts import run_facts, run_warnings
from walkit.plots.style import (
    BLUE,
    GREEN,
    NEUTRAL,
    ORANGE,
    PURPLE,
    VERMILION,
    Figure,
    Theme,
    dress,
    go,
    subplots,
)
from walkit.plots.units import CLOCK, COUNTS, LOG_SECONDS, duration_text


def throughput_timeline(run: Run, *, theme: Theme = None) -> Figure:
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
        alt=_words(run),
        theme=theme,
        height=520 + (20 * len(names) + 40 if shown else 0),
        hovermode="x unified",
    )
    middle = line.middle_s
    rate = go.Scatter(x=middle, y=line.records_per_s, mode="lines", name="records/s", line={"color": BLUE})
    drawing.add_trace(rate, row=1, col=1)
    if run.baseline is not None:
        raw = run.baseline.writes_per_s
        label = f"raw {run.baseline.mode} writes/s, {run.baseline.block_bytes:,} B"
        dashes = {"color": NEUTRAL, "dash": "dash", "width": 1}
        across = go.Scatter(x=[0, run.duration_s], y=[raw, raw], mode="lines", name=label, line=dashes)
        drawing.add_trace(across, row=1, col=1)
    for label, values, paint in (
        ("p50", line.p50_us / 1e6, GREEN),
        ("p99", line.p99_us / 1e6, ORANGE),
        ("max", line.max_us / 1e6, VERMILION),
    ):
        # A bucket without records has no latency: the line has a gap there.
        curve = go.Scatter(
            x=middle, y=values, mode="lines", name=label, line={"color": paint}, connectgaps=False
        )
        drawing.add_trace(curve, row=2, col=1)
    if shown:
        marks = go.Scatter(
            x=[event.time_s for event in shown],
            y=[event.name for event in shown],
            text=[
                ", ".join(f"{name}={value}" for name, value in event.attributes.items()) for event in shown
            ],
            mode="markers",
            marker={"symbol": "line-ns-open", "color": PURPLE, "size": 12},
            name="events",
            showlegend=False,
        )
        drawing.add_trace(marks, row=3, col=1)
        drawing.update_yaxes(tickmode="linear", dtick=1, row=3, col=1)
    drawing.update_yaxes(title_text="records/s", rangemode="tozero", **COUNTS, row=1, col=1)
    drawing.update_yaxes(title_text="latency", type="log", hoverformat=".3s", **LOG_SECONDS, row=2, col=1)
    drawing.update_xaxes(range=[0, run.duration_s or 1], **CLOCK)
    return drawing


def _words(run: Run) -> str:
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
