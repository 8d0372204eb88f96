"""One look for every figure: readable on light and dark pages, and by the colour-blind.

The colours are Okabe and Ito's (jfly.uni-koeln.de/color) without black and yellow, which vanish on one of the
two pages. Backgrounds are transparent and text is a grey that both pages carry.
"""

from __future__ import annotations

from typing import Any

from walkit.errors import MissingExtraError

try:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots
except ImportError as error:
    raise MissingExtraError(extra="dashboard", package="plotly") from error

__all__ = [
    "BLUE",
    "CLEAR",
    "COLOURS",
    "GREEN",
    "GRID",
    "ORANGE",
    "PURPLE",
    "SKY",
    "TEXT",
    "VERMILION",
    "WARNING",
    "colour",
    "dress",
    "duration_text",
    "figure",
    "go",
    "make_subplots",
]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
"""In the order in which series take them."""

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = COLOURS

TEXT = "#808080"
GRID = "rgba(128,128,128,0.25)"
CLEAR = "rgba(0,0,0,0)"
WARNING = "#d9534f"


def colour(index: int) -> str:
    """Return the colour of the series with this index, from 0; they repeat after six."""
    return COLOURS[index % len(COLOURS)]


def figure(title: str, *, warnings: tuple[str, ...] = (), height: int = 420, **layout: Any) -> go.Figure:
    """Return an empty figure in the look of walkit; `warnings` stand in red below the title."""
    return dress(go.Figure(), title, warnings=warnings, height=height, **layout)


def dress(
    bare: go.Figure, title: str, *, warnings: tuple[str, ...] = (), height: int = 420, **layout: Any
) -> go.Figure:
    """Give an existing figure (one of subplots) the look of walkit, and return it."""
    red = f"<br><span style='color:{WARNING};font-size:12px'>{'; '.join(warnings)}</span>" if warnings else ""
    bare.update_layout(
        template="none",
        title={"text": f"{title}{red}", "x": 0.01, "xanchor": "left"},
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        font={"color": TEXT, "family": "system-ui, sans-serif", "size": 13},
        colorway=list(COLOURS),
        height=height,
        margin={"l": 70, "r": 20, "t": 75 if red else 55, "b": 95},
        # A label of its own colours: over a transparent page a unified label would be transparent too.
        hoverlabel={"bgcolor": "rgba(48,48,48,0.95)", "font": {"color": "#e8e8e8"}},
        legend={"orientation": "h", "x": 0, "yref": "container", "y": 0.01, "yanchor": "bottom"},
        **layout,
    )
    axis = {"gridcolor": GRID, "linecolor": GRID, "zerolinecolor": GRID, "ticks": "", "automargin": True}
    bare.update_xaxes(**axis)
    bare.update_yaxes(**axis)
    return bare


def duration_text(seconds: float) -> str:
    """Return a duration in the unit that suits it: 12 µs, 3.4 ms, 1.25 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return (
                f"{seconds / scale:.3g} {unit}"
                if seconds < 1000 * scale
                else f"{seconds / scale:,.0f} {unit}"
            )
    return f"{seconds / 1e-6:.3g} µs"
