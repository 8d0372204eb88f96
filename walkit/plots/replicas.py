"""Replicas over time: lag, states, bytes by codec, durable LSNs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from walkit._internal.arguments import check_choice, refuse
from walkit.metrics import TrafficStatistics
from walkit.plots import style
from walkit.plots.facts import drawn_by
from walkit.plots.style import (
    Figure,
    colour,
    curve,
    dash,
    dress,
    figure,
    go,
    hatch,
    lane_bars,
    order_lanes,
    subplots,
)
from walkit.plots.units import CLOCK, COUNTS, SECONDS, bytes_axis, bytes_text, count_text, duration_text


def replication_lag(
    samples: npt.ArrayLike,
    *,
    marks: Iterable[tuple[float, str]] = (),
    subtitle: Sequence[str] = (),
) -> Figure:
    """Draw the durable LSNs of a primary and its replica, and below them the lag in records, on one clock.

    `samples` has rows of (time in s, durable LSN of the primary, durable LSN of the replica), times not falling.
    `marks` are moments, (time in s, what happened), drawn as dotted lines with their words. A replica that is
    sampled after its primary can look ahead of it for a moment; that is drawn as no lag. OptionsError for another
    shape.
    """
    rows = np.asarray(samples, np.float64)
    if rows.ndim != 2 or rows.shape[1] != 3:
        refuse("samples", rows.shape, "rows of (time, primary's LSN, replica's LSN)")
    at, primary, replica = rows.T
    lag = np.maximum(primary - replica, 0)
    most = f"at most {lag.max():,.0f} records, {lag[-1]:,.0f} in the end" if len(rows) else "no samples"
    panels = subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.07, row_heights=[0.55, 0.45])
    moments = list(marks)
    drawing = dress(
        panels,
        f"Replication lag: {most}",
        subtitle=[*subtitle, drawn_by()],
        alt=f"Durable LSNs of primary and replica over time, and below them the lag in records: {most}"
        + "".join(f"; {what} at {time_s:.1f} s" for time_s, what in moments),
        height=520,
        hovermode="x unified",
    )
    for label, values, paint in (("primary", primary, style.BLUE), ("replica", replica, style.ORANGE)):
        drawing.add_trace(curve(at, values, label, paint, line={"shape": "hv"}), row=1, col=1)
    behind = curve(at, lag, "lag", style.VERMILION, line={"shape": "hv"}, fill="tozeroy")
    drawing.add_trace(behind, row=2, col=1)
    times = [*at.tolist(), *(time_s for time_s, _ in moments)]
    start, end = min(times, default=0.0), max(times, default=0.0)
    for number, (time_s, what) in enumerate(moments):
        drawing.add_vline(x=time_s, line={"color": style.NEUTRAL, "dash": "dot", "width": 1})
        drawing.add_annotation(
            x=time_s,
            y=1.0,
            yref="paper",
            yanchor="bottom",
            # Words of moments that lie close together alternate between two heights, the last ones left of their line.
            yshift=16 * (number % 2),
            xanchor="left" if time_s - start < 0.85 * (end - start) else "right",
            showarrow=False,
            text=escape(what),
            font={"size": 12},
        )
    if moments:
        drawing.update_layout(margin_t=drawing.layout.margin.t + 36)
    drawing.update_yaxes(title_text="durable LSN", rangemode="tozero", **COUNTS, row=1, col=1)
    drawing.update_yaxes(title_text="lag, records", rangemode="tozero", **COUNTS, row=2, col=1)
    drawing.update_xaxes(range=[start, max(end, start + 1e-3)], **CLOCK)
    return drawing


Float64Array = npt.NDArray[np.float64]
LagUnit: TypeAlias = Literal["records", "bytes", "ms"]
UNITS: tuple[LagUnit, ...] = ("records", "bytes", "ms")
LEFT_PX = 90
"""The same room before both axes of time: events of one moment are aligned."""
STATES = {
    "serving": (style.BLUE, 0),
    "streaming": (style.GREEN, 0),
    "following": (style.GREEN, 0),
    "catching up": (style.ORANGE, 1),
    "reading the log": (style.ORANGE, 1),
    "connecting": (style.SKY, 3),
    "greeting": (style.SKY, 3),
    "failed": (style.WINE, 2),
    "killed": (style.VERMILION, 2),
    "stopped": (style.NEUTRAL, 4),
    "new": (style.PURPLE, 5),
}
"""Colour and hatch of each state; one that is not here is blue."""
CODECS = (
    ("as stored", "plain_bytes", style.BLUE, 0),
    ("zstd", "zstd_bytes", style.ORANGE, 1),
    ("snappy", "snappy_bytes", style.GREEN, 2),
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LagSeries:
    """The lag of one replica over time: arrays of one length, nan if unknown."""

    name: str
    time_s: Float64Array
    """Seconds on the clock of the figure; never falling."""
    records: Float64Array
    bytes: Float64Array
    """Bytes of frames, padding included."""
    ms: Float64Array
    """For how long the replica has known of a record that it does not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateBar:
    """For how long one side was in one state, on the clock of the figure."""

    lane: str
    state: str
    start_s: float
    end_s: float
    detail: str = ""


def lag_over_time(
    series: Sequence[LagSeries],
    *,
    unit: LagUnit = "records",
    span_s: tuple[float, float] | None = None,
) -> Figure:
    """Draw the lag of each replica, in one of three units. A curve has gaps while the lag is unknown.

    `span_s` is the time that the axis shows; None: all of it. OptionsError for another unit.
    """
    check_choice(unit, UNITS, "unit")
    curves = [(one, one.ms / 1000 if unit == "ms" else getattr(one, unit)) for one in series]
    told = "; ".join(f"{one.name}: {_last(values, unit)}" for one, values in curves) or "no replica yet"
    drawing = figure(
        "Replication lag",
        subtitle=[told, drawn_by()],
        alt=f"The lag of each replica over time, in {'milliseconds' if unit == 'ms' else unit}: {told}",
        height=300,
        hovermode="x unified",
        margin={"l": LEFT_PX},
    )
    for index, (one, values) in enumerate(curves):
        line = {"dash": dash(index), "shape": "hv"}
        drawing.add_trace(
            curve(one.time_s, values, escape(one.name), colour(index), line=line, connectgaps=False)
        )
    # Room for one unit if the lag is 0: an axis from 0 to 0 has no height.
    most = max((float(v) for _, values in curves for v in values[np.isfinite(values)]), default=0.0)
    axis: Mapping[str, Any] = SECONDS if unit == "ms" else COUNTS
    if unit == "bytes":
        axis = bytes_axis(0.0, max(most * 1.05, 1.0))
    drawing.update_yaxes(title_text="lag" if unit == "ms" else f"lag, {unit}", rangemode="tozero", **axis)
    if not most:
        drawing.update_yaxes(range=[0, 0.001 if unit == "ms" else 1])
    drawing.update_xaxes(range=None if span_s is None else list(span_s), **CLOCK)
    return drawing


def _last(values: Float64Array, unit: LagUnit) -> str:
    if not len(values) or not np.isfinite(values[-1]):
        return "unknown"
    last = float(values[-1])
    return {"records": count_text, "bytes": bytes_text, "ms": duration_text}[unit](last)


def state_lanes(bars: Sequence[StateBar], *, span_s: tuple[float, float] | None = None) -> Figure:
    """Draw a lane for each side and in it a bar for each state that it was in, on one clock; the first lane on top.

    `span_s` is the time that the axis shows; None: all of it.
    """
    lanes = list(dict.fromkeys(bar.lane for bar in bars))
    last = {bar.lane: bar for bar in bars}
    told = "; ".join(f"{lane}: {bar.state}" for lane, bar in last.items()) or "no replica yet"
    drawing = figure(
        "States",
        subtitle=[told, drawn_by()],
        alt=f"The states of each replica over time as bars in a lane. Now: {told}",
        height=150 + 36 * max(len(lanes), 1),
        barmode="overlay",
        bargap=0.35,
        margin={"l": LEFT_PX},
    )
    for state in dict.fromkeys(bar.state for bar in bars):
        found = [bar for bar in bars if bar.state == state]
        paint, shape = STATES.get(state, (style.BLUE, 0))
        drawing.add_trace(
            lane_bars(
                [
                    (
                        escape(bar.lane),
                        bar.start_s,
                        max(bar.end_s - bar.start_s, 0.0),
                        "<br>".join(
                            filter(None, (duration_text(bar.end_s - bar.start_s), escape(bar.detail)))
                        ),
                    )
                    for bar in found
                ],
                escape(state),
                paint,
                marker={"pattern": hatch(shape), "line": {"width": 0}},
                hovertemplate=f"<b>%{{y}}: {escape(state)}</b><br>%{{customdata}}<extra></extra>",
            )
        )
    end_s = max((bar.end_s for bar in bars), default=1.0)
    start_s = min((bar.start_s for bar in bars), default=0.0)
    drawing.update_xaxes(range=list(span_s or (start_s, max(end_s, start_s + 1.0))), **CLOCK)
    order_lanes(drawing, [escape(lane) for lane in reversed(lanes)])
    return drawing


def sent_by_codec(traffic: Mapping[str, TrafficStatistics]) -> Figure:
    """Draw the bytes that travelled, a bar for each name, by codec; a mark shows the unpacked bytes of the frames."""
    told = (
        "; ".join(
            f"{name} {bytes_text(each.travelled_bytes)} for {bytes_text(each.frame_bytes)} of frames"
            for name, each in traffic.items()
        )
        or "nothing yet"
    )
    drawing = figure(
        "Bytes sent",
        subtitle=[drawn_by()],
        alt=f"Bytes that travelled by codec, and the bytes of the frames: {told}",
        height=150 + 36 * max(len(traffic), 1),
        barmode="stack",
        bargap=0.35,
    )
    names = [escape(name) for name in traffic]
    for label, column, paint, shape in CODECS:
        sizes = [getattr(each, column) for each in traffic.values()]
        drawing.add_trace(
            go.Bar(
                orientation="h",
                y=names,
                x=sizes,
                name=label,
                marker={"color": paint, "pattern": hatch(shape)},
                customdata=[bytes_text(size) for size in sizes],
                hovertemplate=f"<b>%{{y}}: {label}</b><br>%{{customdata}}<extra></extra>",
            )
        )
    frames = [each.frame_bytes for each in traffic.values()]
    drawing.add_trace(
        go.Scatter(
            x=frames,
            y=names,
            mode="markers",
            name="frames, unpacked",
            marker={"symbol": "line-ns-open", "size": 18, "color": style.NEUTRAL, "line": {"width": 2}},
            customdata=[bytes_text(size) for size in frames],
            hovertemplate="<b>%{y}: frames, unpacked</b><br>%{customdata}<extra></extra>",
        )
    )
    most = max([1.0, *map(float, frames), *(float(each.travelled_bytes) for each in traffic.values())])
    drawing.update_xaxes(**bytes_axis(0.0, most * 1.05))
    order_lanes(drawing, names[::-1])
    return drawing
