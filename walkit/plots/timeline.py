"""What happened when: a run on its clock."""

from __future__ import annotations

from html import escape

from walkit.measure import Run
from walkit.plots.style import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    TEXT,
    VERMILION,
    dress,
    go,
    make_subplots,
)


def throughput_timeline(run: Run) -> go.Figure:
    """Draw records/s, below it p50, p99 and maximum latency, and below that the events, all on one clock.

    The dashed line is the raw-device baseline of the same run, in writes/s. Each point is one bucket of
    `run.timeline`, at its middle. Events from before the run stand left of the clock's 0, out of the first
    view.
    """
    line = run.timeline
    shown = list(run.events)
    names = list(dict.fromkeys(event.name for event in shown))
    # In pixels: each name of an event has a line of its own.
    heights = [220, 180, 20 * len(names) + 5] if shown else [220, 180]
    panels = make_subplots(
        rows=len(heights), cols=1, shared_xaxes=True, vertical_spacing=0.05, row_heights=heights
    )
    drawing = dress(
        panels,
        f"{escape(run.name)} ({run.durability}, {run.arrival} loop): {run.records_per_s:,.0f} records/s",
        warnings=run.warnings,
        height=520 + (20 * len(names) + 40 if shown else 0),
        hovermode="x unified",
    )
    middle = line.middle_s
    rate = go.Scatter(x=middle, y=line.records_per_s, mode="lines", name="records/s", line={"color": BLUE})
    drawing.add_trace(rate, row=1, col=1)
    if run.baseline is not None:
        raw = run.baseline.writes_per_s
        label = f"raw {run.baseline.mode} writes/s, {run.baseline.block_bytes:,} B"
        dashes = {"color": TEXT, "dash": "dash", "width": 1}
        across = go.Scatter(x=[0, run.duration_s], y=[raw, raw], mode="lines", name=label, line=dashes)
        drawing.add_trace(across, row=1, col=1)
    for label, values, paint in (
        ("p50", line.p50_us, GREEN),
        ("p99", line.p99_us, ORANGE),
        ("max", line.max_us, VERMILION),
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
    drawing.update_yaxes(title_text="records/s", rangemode="tozero", row=1, col=1)
    drawing.update_yaxes(title_text="latency, µs", type="log", row=2, col=1)
    drawing.update_xaxes(title_text="seconds", row=len(heights), col=1)
    drawing.update_xaxes(range=[0, run.duration_s or 1])
    return drawing
