"""The lag of a replica to its primary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from walkit._internal.arguments import refuse
from walkit.plots.facts import drawn_by
from walkit.plots.style import BLUE, NEUTRAL, ORANGE, VERMILION, Figure, Theme, dress, go, subplots
from walkit.plots.units import CLOCK, COUNTS


def replication_lag(
    samples: npt.ArrayLike,
    *,
    marks: Iterable[tuple[float, str]] = (),
    subtitle: Sequence[str] = (),
    theme: Theme = None,
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
        theme=theme,
        hovermode="x unified",
    )
    for label, values, paint in (("primary", primary, BLUE), ("replica", replica, ORANGE)):
        line = go.Scatter(x=at, y=values, mode="lines", name=label, line={"color": paint, "shape": "hv"})
        drawing.add_trace(line, row=1, col=1)
    behind = go.Scatter(
        x=at, y=lag, mode="lines", name="lag", line={"color": VERMILION, "shape": "hv"}, fill="tozeroy"
    )
    drawing.add_trace(behind, row=2, col=1)
    times = [*at.tolist(), *(time_s for time_s, _ in moments)]
    start, end = min(times, default=0.0), max(times, default=0.0)
    for number, (time_s, what) in enumerate(moments):
        drawing.add_vline(x=time_s, line={"color": NEUTRAL, "dash": "dot", "width": 1})
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
