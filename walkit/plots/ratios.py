"""How many times one Run is another, with the interval of each ratio, on one axis around 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log10

from walkit.measure import Ratio
from walkit.plots.facts import drawn_by
from walkit.plots.style import BLUE, NEUTRAL, Figure, figure, go

ROW_PX = 40
STEPS = ((1.1, (1.02, 1.05)), (1.5, (1.1, 1.25)), (4.0, (1.5, 2.0, 3.0)), (25.0, (2.0, 5.0, 10.0)))
"""Up to which reach of the axis which ticks stand above 1; below 1 stand one over these."""
ROOM = 1.06
"""The axis ends by this factor beyond the last whisker, and is never narrower than this to either side of 1."""


def ratios(
    found: Mapping[str, Ratio],
    *,
    title: str = "Ratio",
    subtitle: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> Figure:
    """Draw each ratio as a point with its interval as a whisker, a row each, in order; the axis is logarithmic.

    1 is a line: twice and half are as far from it. A point is filled if its interval excludes 1, and hollow if it does
    not or is unknown. `title` is HTML, `subtitle` and `warnings` are texts.
    """
    ends = [end for one in found.values() for end in (one.value, one.low, one.high) if end is not None]
    reach = max(ROOM, *(max(end, 1 / end) * ROOM for end in ends)) if ends else 2.0
    above = next((steps for most, steps in STEPS if reach <= most), (10.0, 100.0, 1000.0))
    steps = [step for step in above if step <= reach]
    ticks = [*(1 / step for step in reversed(steps)), 1.0, *steps]
    drawing = figure(
        title,
        subtitle=[*subtitle, drawn_by()],
        warnings=warnings,
        alt="Points with whiskers, a ratio each: " + "; ".join(map(_describe, found, found.values())),
        height=140 + ROW_PX * max(len(found), 1),
        margin={"l": 80},
        showlegend=False,
        xaxis={
            "type": "log",
            "title": {"text": "ratio"},
            "tickvals": ticks,
            "ticktext": [f"{tick:.3g}" for tick in ticks],
            "range": [-log10(reach), log10(reach)],
        },
        yaxis={"range": [len(found) - 0.5, -0.9], "showgrid": False},  # room for the words above the first
    )
    drawing.add_vline(x=1, line={"color": NEUTRAL, "width": 1})
    known = [(escape(name), one) for name, one in found.items() if one.low is not None]
    drawing.add_trace(
        go.Scatter(  # a curve, and no error bars: those of x are in no picture of a figure
            x=[end for _, one in known for end in (one.low, one.high, None)],
            y=[end for name, _ in known for end in (name, name, None)],
            mode="lines",
            line={"color": BLUE, "width": 2},
            hoverinfo="skip",
            name="interval",
        )
    )
    drawing.add_trace(
        go.Scatter(
            x=[one.value for one in found.values()],
            y=[escape(name) for name in found],
            mode="markers+text",
            text=[f"{one.value:.3g}" for one in found.values()],
            textposition=[_place_of_number(one.value, reach) for one in found.values()],
            marker={
                "size": 11,
                "symbol": ["circle" if one.differs else "circle-open" for one in found.values()],
                "color": BLUE,
                "line": {"color": BLUE, "width": 2},
            },
            customdata=[_describe(*each) for each in found.items()],
            hovertemplate="%{customdata}<extra></extra>",
            cliponaxis=False,
            name="ratio",
        )
    )
    return drawing


def _place_of_number(value: float, reach: float) -> str:
    """Return the place of a number beside its point: near 1, on the same side of the line as the point."""
    if max(value, 1 / value) > reach**0.2:
        return "top center"
    return "top right" if value >= 1 else "top left"


def _describe(name: str, one: Ratio) -> str:
    interval = "no interval known" if one.low is None else f"{one.low:.3g} to {one.high:.3g}"
    return f"{name} {one.value:.3g} ({interval}, n = {one.number})"
