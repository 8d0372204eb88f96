"""The cost of append order against completion order, over the number of writers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from walkit.plots.facts import Spread, drawn_by, error_bars, spread_words
from walkit.plots.style import NEUTRAL, Figure, colour, curve, dash, dress, subplots, symbol

if TYPE_CHECKING:
    import pandas as pd

_PANELS = (
    ("throughput_ratio", "throughput,<br>append /<br>completion"),
    ("p99_ratio", "p99 latency,<br>append /<br>completion"),
    ("append_mean_in_flight", "frames in flight,<br>mean,<br>append order"),
)
"""Titles of short lines: beside each other on a phone too."""
_TITLES_PX = 32


def order_cost(table: pd.DataFrame, *, subtitle: Sequence[str] = ()) -> Figure:
    """Draw the table of `walkit.simulate.order_cost`: ratios of throughput and p99, and the frames in flight.

    A colour for each device, a dash and a symbol for each policy; x is the number of writers. A ratio of 1 means that
    order is free. Ratios mean little if almost no frame is in flight, so that number has a separate panel. If the table
    has the ratios of several rounds (`walkit bench order`), whiskers span them. `subtitle` are more facts.
    """
    drawing = subplots(rows=1, cols=len(_PANELS), subplot_titles=[title for _, title in _PANELS])
    devices, policies = list(dict.fromkeys(table.device)), list(dict.fromkeys(table.policy))
    for (device, policy), rows in table.groupby(["device", "policy"], sort=False):
        name = f"{device}, {policy}"
        which = policies.index(policy)
        paint = colour(devices.index(device))
        for column, (quantity, _) in enumerate(_PANELS, start=1):
            drawing.add_trace(
                curve(
                    rows.writers,
                    rows[quantity],
                    name,
                    paint,
                    mark=symbol(which),
                    line={"dash": dash(which)},
                    error_y=_whiskers(rows, quantity),
                    legendgroup=name,
                    showlegend=column == 1,
                    hovertemplate="%{x} writers: %{y:.3g}",
                ),
                row=1,
                col=column,
            )
    writers = sorted(set(table.writers))
    rounds = _rounds(table)
    repeated = spread_words(min(rounds), max(rounds)) if rounds else ""
    once = bool(rounds) and not repeated
    # A table without rounds comes from the simulator, which repeats exactly.
    model = ["a modelled device, in virtual time: the same again for the same seed"] if not rounds else []
    dress(
        drawing,
        "Cost of append order",
        subtitle=[*subtitle, *([repeated] if repeated else []), *model, drawn_by()],
        warnings=["n = 1: one round, so no spread is known"] if once else [],
        alt="Lines over the number of writers: " + "; ".join(_describe(table)),
        height=480,
    )
    drawing.update_xaxes(type="log", tickvals=writers, ticktext=[f"{n}" for n in writers], title="writers")
    drawing.update_yaxes(rangemode="tozero")
    for column in (1, 2):
        drawing.add_hline(y=1, line={"color": NEUTRAL, "width": 1}, row=1, col=column)
    drawing.update_annotations(font={"size": 12})
    drawing.update_layout(
        height=drawing.layout.height + _TITLES_PX, margin_t=drawing.layout.margin.t + _TITLES_PX
    )
    return drawing


def _of_rounds(rows: pd.DataFrame, quantity: str) -> list[list[float]]:
    """Return the rounds of each row; none of a row that has no rounds, as those of a model."""
    column = quantity.replace("_ratio", "_ratios")
    if column == quantity or column not in rows:
        return []
    return [[] if isinstance(found, float) else list(found) for found in rows[column]]


def _rounds(table: pd.DataFrame) -> list[int]:
    return [len(found) for found in _of_rounds(table, "throughput_ratio")]


def _whiskers(rows: pd.DataFrame, quantity: str) -> dict[str, Any]:
    rounds = _of_rounds(rows, quantity)
    return error_bars([Spread.of(found) for found in rounds]) if rounds and all(rounds) else {}


def _describe(table: pd.DataFrame) -> list[str]:
    most = table[table.writers == table.writers.max()]
    return [
        f"{row.device}, {row.policy}, {row.writers} writers: throughput {row.throughput_ratio:.2f}, "
        f"p99 {row.p99_ratio:.2f} of completion order"
        for row in most.itertuples()
    ]
