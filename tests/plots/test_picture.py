"""The picture of a figure, for places without scripts: bars stand where plotly puts them."""

from __future__ import annotations

import re

import plotly.graph_objects as go
import pytest
from plotly.subplots import make_subplots

from walkit.plots import svg_of


def bars(figure: go.Figure, colour: str) -> list[dict[str, float]]:
    """Return x, y, height and opacity of each bar of a colour in the picture."""
    found = []
    for attributes in re.findall(r"<rect ([^>]*)>", str(svg_of(figure))):
        named = dict(re.findall(r'([\w-]+)="([^"]*)"', attributes))
        if named.get("fill") == colour and "height" in named and float(named["width"]) > 15:
            opacity = float(named.get("fill-opacity", 1))
            found.append({n: float(named[n]) for n in ("x", "y", "height")} | {"opacity": opacity})
    return found


def test_overlaid_bars_on_a_logarithmic_axis_begin_at_its_end() -> None:
    """Draw two traces over each other: all end at the bottom, ten times is a decade, pale bars are pale."""
    pale = go.Bar(x=[0, 1], y=[10, 100], marker={"color": "#111111", "opacity": 0.3})
    full = go.Bar(x=[0, 1], y=[10, 10], marker={"color": "#222222"})
    figure = go.Figure([pale, full], {"barmode": "overlay", "yaxis": {"type": "log", "range": [0, 3]}})
    (low, high), judged = bars(figure, "#111111"), bars(figure, "#222222")
    bottoms = {round(bar["y"] + bar["height"]) for bar in (low, high, *judged)}
    assert len(bottoms) == 1 and [bar["opacity"] for bar in (low, high, *judged)] == [0.3, 0.3, 1, 1]
    assert high["height"] == pytest.approx(2 * low["height"], rel=0.02)
    assert [bar["height"] for bar in judged] == pytest.approx([low["height"]] * 2)


def test_bars_are_stacked_on_those_of_their_own_axes() -> None:
    """Draw stacked bars in one panel and single ones below: the ones below are not stacked on those above."""
    figure = make_subplots(rows=2, cols=1)
    for colour, row in (("#111111", 1), ("#222222", 1), ("#333333", 2)):
        figure.add_trace(go.Bar(x=[0, 1], y=[5, 5], marker={"color": colour}), row=row, col=1)
    figure.update_layout(barmode="stack")
    figure.update_yaxes(range=[0, 10])
    first, second, below = (bars(figure, colour) for colour in ("#111111", "#222222", "#333333"))
    assert first[0]["y"] == pytest.approx(second[0]["y"] + second[0]["height"], abs=0.6)
    assert below[0]["height"] == pytest.approx(first[0]["height"], rel=0.02)
