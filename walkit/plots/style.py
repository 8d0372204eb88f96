"""One look for every figure, on light and on dark pages: colours, hatches, templates, titles.

The first colours are Okabe and Ito's (jfly.uni-koeln.de/color) without black and yellow, which vanish on one of the two
pages. Where areas are distinguished by colour, a hatch distinguishes them too. Paper is transparent: the page shows
through.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from html import escape, unescape
from typing import Any

from walkit.plots.display import Figure, go, make_subplots

__all__ = ["Figure", "go"]  # from `display`; what is defined here needs no list

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#A63A78", "#7F7F7F")
"""In the order in which series take them."""

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, WINE, _ = COLOURS

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "hexagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""Marks and lines of series: they differ without colour too."""

HATCHES = ("", "/", "x", "-", "\\", ".", "|", "+")
"""Patterns of areas, in the order of the colours."""

PHASES = ("open", "scan", "verify", "apply", "snapshot", "replay", "log", "ready")
"""Phases with a colour of their own, the same in every figure; others take what follows."""

NEUTRAL = "#808080"
"""Marks and lines that belong to no series; both pages carry it."""
GRID = "rgba(128,128,128,0.25)"
CLEAR = "rgba(0,0,0,0)"
WARNING = "#d9534f"
FONT = "system-ui, sans-serif"
ENDS_MAX, LETTERS_MAX = 4, 16
"""The most labels at the ends of lines, and the letters of each: a phone has room for them."""
LINE_CHARACTERS = 120
"""A subtitle that is longer continues in a line below."""

HOVER = {"bgcolor": "rgba(48,48,48,0.95)", "font": {"color": "#e8e8e8"}}
"""A label of its own colours: over a transparent page a unified label would be transparent too."""
_HEAD_PX, _TITLE_PX, _LINE_PX, _BELOW_PX = 12, 24, 21, 56
_LABEL_PX, _LETTER_PX = 17, 7
_ASCENT_PX = 12
"""Height of a title's letters."""


def colour(index: int) -> str:
    """Return the colour of the series with this index, from 0; they repeat after eight."""
    return COLOURS[index % len(COLOURS)]


def symbol(index: int) -> str:
    """Return the mark of the series with this index, from 0."""
    return SYMBOLS[index % len(SYMBOLS)]


def dash(index: int) -> str:
    """Return the kind of line of the series with this index, from 0; the first is solid."""
    return DASHES[index % len(DASHES)]


def hatch(index: int) -> dict[str, Any]:
    """Return the pattern of the area with this index, from 0, for a bar's marker; the first has none."""
    return _pattern(HATCHES[index % len(HATCHES)])


def phase_colour(name: str) -> str:
    """Return the colour of a phase, the same wherever it is drawn."""
    return colour(_phase_index(name))


def phase_hatch(name: str | Sequence[str]) -> dict[str, Any]:
    """Return the pattern of a phase's bars, or of a bar for each of several, the same wherever they are drawn."""
    if isinstance(name, str):
        return hatch(_phase_index(name))
    return _pattern([HATCHES[_phase_index(each) % len(HATCHES)] for each in name])


def _phase_index(name: str) -> int:
    # The sum of its bytes: any order would do that is the same in every process, which hash() is not.
    return PHASES.index(name) if name in PHASES else sum(name.encode()) % len(COLOURS)


def _pattern(shape: str | Sequence[str]) -> dict[str, Any]:
    return {
        "shape": shape,
        "fgcolor": "rgba(255,255,255,0.75)",
        "fillmode": "overlay",
        "size": 7,
        "solidity": 0.2,
    }


def _template() -> go.layout.Template:
    """Return the plotly template: colours, paper, lines."""
    axis = {
        "gridcolor": GRID,
        "linecolor": GRID,
        "zerolinecolor": GRID,
        "ticks": "",
        "automargin": True,
        "title": {"standoff": 8, "font": {"size": 13}},
    }
    return go.layout.Template(
        layout={
            "paper_bgcolor": CLEAR,
            "plot_bgcolor": CLEAR,
            "font": {"color": NEUTRAL, "family": FONT, "size": 13},
            "colorway": list(COLOURS),
            "hoverlabel": HOVER,
            "xaxis": axis,
            "yaxis": axis,
            "legend": {"orientation": "h", "x": 0, "yanchor": "top", "traceorder": "normal"},
            "modebar": {"bgcolor": CLEAR, "color": NEUTRAL, "activecolor": BLUE},
        }
    )


def figure(title: str, **look: Any) -> Figure:
    """Return an empty figure in the look of walkit; `look` is that of `dress`."""
    return dress(Figure(), title, **look)


def subplots(**grid: Any) -> Figure:
    """Return an empty figure of panels; `grid` is that of plotly's make_subplots."""
    made: Figure = make_subplots(figure=Figure(), **grid)
    return made


def curve(
    x: Any,
    y: Any,
    name: str,
    paint: str,
    *,
    mark: str = "",
    line: Mapping[str, Any] | None = None,
    **look: Any,
) -> go.Scatter:
    """Return a line over points, with a mark at each if `mark` is a symbol; `name` is HTML."""
    marks = {"mode": "lines+markers", "marker": {"symbol": mark, "size": 8}} if mark else {"mode": "lines"}
    return go.Scatter(x=x, y=y, name=name, line={"color": paint, **(line or {})}, **(marks | look))


def label_ends(drawing: Figure, labels: Mapping[int, str]) -> None:
    """Write the label (HTML) of each of these traces, by index, beside its last point, and take them off the legend.

    All traces are in one panel, with its final axes. Labels that would overlap are moved apart. The legend keeps
    labels that are too many or too long, and a label whose point has no place on a logarithmic axis.
    """
    layout, ends = drawing.layout, []
    letters = max(map(len, labels.values()), default=0)
    if not 0 < len(labels) <= ENDS_MAX or letters > LETTERS_MAX:
        return
    drawing.update_layout(margin_r=layout.margin.r + _LETTER_PX * letters)
    for index, text in labels.items():
        trace = drawing.data[index]
        axis = (trace.yaxis or "y").replace("y", "yaxis")
        begin, end = layout[axis].domain or (0, 1)
        panel_px = (layout.height - layout.margin.t - layout.margin.b) * (end - begin)
        seen = _places(
            layout[axis], (v for each in drawing.data if each.yaxis == trace.yaxis for v in each.y)
        )
        xs = _places(layout[axis.replace("y", "x", 1)], trace.x[-1:])
        for x, y in zip(xs, _places(layout[axis], trace.y[-1:]), strict=False):
            at_px = (y - min(seen)) / ((max(seen) - min(seen)) or 1) * panel_px
            ends.append(
                (at_px, {"x": x, "y": y, "text": text, "xref": trace.xaxis, "yref": trace.yaxis}, trace)
            )
    free_px = -math.inf
    for at_px, look, trace in sorted(ends, key=lambda end: end[0]):
        free_px = max(at_px, free_px + _LABEL_PX)
        trace.showlegend = False
        look |= {"xanchor": "left", "xshift": 8, "yshift": free_px - at_px, "font": {"size": 12}}
        drawing.add_annotation(showarrow=False, **look)


def _places(axis: Any, values: Iterable[float]) -> list[float]:
    """Return where values are on an axis: of a logarithmic one their logarithms, without those that have none."""
    if axis.type != "log":
        return [float(value) for value in values]
    return [math.log10(value) for value in values if value > 0]


def lane_bars(rows: Iterable[tuple[str, float, float, str]], name: str, paint: str, **more: Any) -> go.Bar:
    """Return bars in lanes: of each its lane, begin, length and the words that show when it is pointed at; all HTML."""
    lanes, begins, lengths, words = zip(*rows, strict=True)
    look: dict[str, Any] = {"hovertemplate": "%{customdata}<extra></extra>"} | more
    marker = {"color": paint} | look.pop("marker", {})
    shown = {"orientation": "h", "y": lanes, "base": begins, "x": lengths, "customdata": words}
    return go.Bar(name=name, marker=marker, **shown, **look)


def order_lanes(drawing: Figure, lanes: Iterable[str], **at: int) -> None:
    """Draw these lanes from the bottom up, all of them."""
    drawing.update_yaxes(type="category", categoryorder="array", categoryarray=list(lanes), **at)


def dress(
    bare: Figure,
    title: str,
    *,
    subtitle: Sequence[str] = (),
    warnings: Sequence[str] = (),
    alt: str = "",
    height: int = 420,
    **layout: Any,
) -> Figure:
    """Give an existing figure the look of walkit, and return it.

    `subtitle` are facts, set below the title with dots between them; `warnings` is the banner below those. `alt`
    describes the figure in a sentence or two, for people who do not see it: it is in `layout.meta["alt"]`, and without
    it the title is used. Texts are escaped here, except the title, which is HTML.
    """
    # A line ends between two facts, unless one is long.
    unbroken = [each.replace(" ", "\xa0") if len(each) < LINE_CHARACTERS / 2 else each for each in subtitle]
    facts = [line.replace("\xa0", " ") for line in textwrap.wrap(" · ".join(unbroken), LINE_CHARACTERS)]
    banner = textwrap.wrap("⚠ " + "; ".join(warnings), LINE_CHARACTERS) if warnings else []
    lines = [f"<span style='font-size:12px'>{escape(line)}</span>" for line in facts]
    lines += [f"<span style='font-size:12px;color:{WARNING}'><b>{escape(line)}</b></span>" for line in banner]
    head = _HEAD_PX + _TITLE_PX * bool(title) + _LINE_PX * len(lines)
    added = head - _HEAD_PX - _TITLE_PX
    margin = {"l": 70, "r": 20, "t": head + 18, "b": _BELOW_PX, **layout.pop("margin", {})}
    inner = max(height + max(added, 0) - margin["t"] - margin["b"], 50)
    bare.update_layout(
        template=_template(),
        title={
            "text": "<br>".join([*([title] if title else []), *lines]),
            "x": 0.01,
            "xanchor": "left",
            "yref": "container",
            "y": 1 - (_HEAD_PX + _ASCENT_PX) / (height + max(added, 0)),
            "yanchor": "bottom",  # plotly heeds it for one line, and puts the first of several on y in any case
            "font": {"size": 16},
        },
        height=height + max(added, 0),
        margin=margin,
        legend={
            "y": -_BELOW_PX / inner
        },  # below the titles of axes; plotly makes room for what rows it needs
        meta={
            "alt": alt or _plain(title),
            "facts": list(subtitle),
            "warnings": list(warnings),
        },
        **layout,
    )
    return bare


def _plain(title: str) -> str:
    return unescape(title.replace("<br>", ". "))
