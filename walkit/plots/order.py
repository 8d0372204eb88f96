"""What append order costs against completion order, over the number of writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from walkit.plots.style import CLEAR, GRID, colour, dress, go, make_subplots

if TYPE_CHECKING:
    import pandas as pd

_PANELS = (
    ("throughput_ratio", "throughput, append / completion"),
    ("p99_ratio", "p99 latency, append / completion"),
    ("append_mean_in_flight", "mean frames in flight, append order"),
)
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def order_cost(table: pd.DataFrame) -> go.Figure:
    """Draw the table of `walkit.simulate.order_cost`: ratios of throughput and p99, and the frames in flight.

    A colour for each device, a dash for each policy; x is the number of writers. A ratio of 1 means that order is free.
    Ratios say nothing where hardly a frame is in flight, so that number has a panel of its own.
    """
    drawing = make_subplots(rows=1, cols=len(_PANELS), subplot_titles=[title for _, title in _PANELS])
    devices, policies = list(dict.fromkeys(table.device)), list(dict.fromkeys(table.policy))
    for (device, policy), rows in table.groupby(["device", "policy"], sort=False):
        name = f"{device}, {policy}"
        line = {
            "color": colour(devices.index(device)),
            "dash": _DASHES[policies.index(policy) % len(_DASHES)],
        }
        for column, (quantity, _) in enumerate(_PANELS, start=1):
            drawing.add_trace(
                go.Scatter(
                    x=rows.writers,
                    y=rows[quantity],
                    name=name,
                    legendgroup=name,
                    showlegend=column == 1,
                    mode="lines+markers",
                    line=line,
                    hovertemplate="%{x} writers: %{y:.3g}",
                ),
                row=1,
                col=column,
            )
    writers = sorted(set(table.writers))
    dress(drawing, "What append order costs", height=480)
    drawing.update_xaxes(type="log", tickvals=writers, ticktext=[f"{n}" for n in writers], title="writers")
    drawing.update_yaxes(rangemode="tozero")
    for column in (1, 2):
        drawing.add_hline(y=1, line={"color": GRID, "width": 2}, row=1, col=column)
    drawing.update_annotations(font={"size": 12}, bgcolor=CLEAR)
    drawing.update_layout(margin={"b": 150})
    return drawing
