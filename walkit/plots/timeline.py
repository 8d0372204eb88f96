"""What happened when: a run on its clock, and a recovery by its phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Protocol

from walkit.measure import Run
from walkit.plots.style import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    TEXT,
    VERMILION,
    dress,
    duration_text,
    figure,
    go,
    make_subplots,
)


class PhaseLike(Protocol):
    """One timed phase of a recovery."""

    @property
    def name(self) -> str:
        """What was done: open, scan, verify, replay, ready."""

    @property
    def started_s(self) -> float:
        """Seconds from the start of the recovery."""

    @property
    def duration_s(self) -> float:
        """How long it took, seconds."""

    @property
    def detail(self) -> Mapping[str, Any]:
        """Facts of the phase: segments, frames, bytes, ..."""


class RecoveryReportLike(Protocol):
    """What a report of a recovery must have to be drawn; walkit's own have it."""

    @property
    def phases(self) -> Sequence[PhaseLike]:
        """In the order in which they began."""

    @property
    def verdict(self) -> object:
        """What recovery concluded."""

    @property
    def cuts(self) -> Sequence[object]:
        """What was cut."""


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


def recovery_timeline(report: RecoveryReportLike) -> go.Figure:
    """Draw one horizontal bar per phase of a recovery, on its clock, in milliseconds; first phase on top.

    The title says the verdict and how many cuts were made; hovering shows the details of a phase.
    """
    phases = list(report.phases)
    total_s = max((phase.started_s + phase.duration_s for phase in phases), default=0.0)
    verdict = getattr(report.verdict, "value", report.verdict)
    cuts = len(report.cuts)
    title = (
        f"Recovery: {escape(str(verdict))}, {cuts} {'cut' if cuts == 1 else 'cuts'}, {duration_text(total_s)}"
    )
    drawing = figure(title, height=170 + 40 * max(1, len(phases)), showlegend=False, bargap=0.35)
    drawing.add_trace(
        go.Bar(
            orientation="h",
            y=[phase.name for phase in phases],
            base=[phase.started_s * 1_000 for phase in phases],
            x=[phase.duration_s * 1_000 for phase in phases],
            marker={"color": BLUE},
            text=[duration_text(phase.duration_s) for phase in phases],
            textposition="outside",
            cliponaxis=False,
            hovertext=[
                "<br>".join(
                    f"{escape(str(name))}: {escape(str(value))}" for name, value in phase.detail.items()
                )
                for phase in phases
            ],
            hovertemplate="<b>%{y}</b> %{text}<br>%{hovertext}<extra></extra>",
        )
    )
    drawing.update_xaxes(title_text="milliseconds", rangemode="tozero", range=[0, max(total_s * 1_150, 1e-3)])
    drawing.update_yaxes(autorange="reversed", type="category")
    return drawing
