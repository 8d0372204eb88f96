"""The crash states of a run: at each point how many there may be, how many were judged, which break a rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from walkit._internal.arguments import refuse
from walkit._internal.text import counted
from walkit.crashlab.exploration import large
from walkit.plots import style
from walkit.plots.facts import drawn_by
from walkit.plots.style import Figure, dress, go, hatch, subplots
from walkit.plots.units import COUNTS

if TYPE_CHECKING:
    from walkit.crashlab import Exploration, PointResult

_KINDS = (
    ("write", ("write", "synced"), style.BLUE),
    ("sync", ("sync",), style.ORANGE),
    ("name", ("create", "replace", "remove"), style.PURPLE),
    ("size", ("allocate", "shorten"), style.GREEN),
    ("end of the run", (), style.NEUTRAL),
)
"""Names of operations in the legend, the first words of each, and their colours."""
DECADES_MAX = 200
"""Counts above ten to this power are drawn there: a float holds little more."""
LABELS_MAX = 5
"""The most powers of ten that are named at an axis."""
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
PANEL_PX, AROUND_PX = 190, 130
BAR_WIDTH = 0.9
"""Share of the distance between two points. plotly would make bars wider if points of their kind are rare."""


def crash_states(explored: Exploration | Sequence[Exploration]) -> Figure:
    """Draw for each crash point the states that a cut may leave, pale, and those that were judged, full; a panel a run.

    Points are in the order of the run; the colour is the kind of the operation that was under way. A diamond is a point
    of which every state was judged, a red cross one with states that break a rule. OptionsError for no run.
    """
    runs = list(explored) if isinstance(explored, Sequence) else [explored]
    if not runs:
        refuse("explored", explored, "at least one exploration")
    several = len(runs) > 1
    panels = subplots(
        rows=len(runs),
        cols=1,
        vertical_spacing=0.3 / len(runs) if several else 0,
        subplot_titles=[escape(_title(run)) for run in runs] if several else None,
    )
    broken = sum(run.broken for run in runs)
    drawing = dress(
        panels,
        "Crash states" if several else f"Crash states of {escape(_title(runs[0]))}",
        subtitle=[
            "pale: states that a power cut may leave, full: judged",
            "no state breaks a rule" if not broken else f"{counted(broken, 'state')} break a rule",
            drawn_by(),
        ],
        warnings=["interrupted: not all points were looked at"] if any(r.interrupted for r in runs) else [],
        alt="Possible and judged crash states over the points of a run, logarithmic; "
        + "; ".join(map(_describe, runs)),
        height=AROUND_PX + PANEL_PX * max(len(runs), 1 + (not several)),
        barmode="overlay",
    )
    named: set[str] = set()
    for row, run in enumerate(runs, 1):
        for trace in _traces(run.points, named):
            drawing.add_trace(trace, row=row, col=1)
        drawing.update_yaxes(title_text="states", **_axis(run.points), row=row, col=1)
        drawing.update_xaxes(range=[-0.7, max(len(run.points), 1) - 0.3], **COUNTS, row=row, col=1)
    drawing.update_xaxes(title_text="crash point, in order of the run", row=len(runs), col=1)
    return drawing


def _title(run: Exploration) -> str:
    return f"{run.scenario}, {run.profile}" + (f", with {run.mutant}" if run.mutant else "")


def _describe(run: Exploration) -> str:
    return (
        f"{_title(run)}: {counted(len(run.points), 'point')}, {run.whole_points:,} of them whole, "
        f"{counted(run.states, 'state')} judged, {run.broken:,} distinct ones break a rule"
    )


def _traces(points: Sequence[PointResult], named: set[str]) -> list[Any]:
    """Return bars for each kind of operation, and marks for points; a name that is new comes into the legend."""
    traces: list[Any] = []
    for index, (name, _, colour) in enumerate(_KINDS):
        mine = [point for point in points if _kind(point.operation) == name]
        if not mine:
            continue
        shared = {
            "x": [point.number for point in mine],
            "width": BAR_WIDTH,
            "customdata": [_hover(point) for point in mine],
            "hovertemplate": "%{customdata}<extra></extra>",
            "legendgroup": name,
        }
        possible = {"color": colour, "opacity": 0.3}
        traces.append(
            go.Bar(
                y=[_height(point.possible) for point in mine],
                name=f"{name}: possible",
                showlegend=False,
                marker=possible,
                **shared,
            )
        )
        judged = {"color": colour, "pattern": hatch(index)}
        judged_y = [_height(point.explored) for point in mine]
        traces.append(go.Bar(y=judged_y, name=name, showlegend=name not in named, marker=judged, **shared))
        named.add(name)
    whole = [point for point in points if point.is_whole]
    broken = [point for point in points if point.violations]
    for name, mine, symbol, colour, top in (
        ("all states judged", whole, "diamond", style.NEUTRAL, "possible"),
        ("breaks a rule", broken, "x", style.VERMILION, "explored"),
    ):
        if mine:
            traces.append(
                go.Scatter(
                    x=[point.number for point in mine],
                    y=[_height(getattr(point, top)) for point in mine],
                    mode="markers",
                    name=name,
                    legendgroup=name,
                    showlegend=name not in named,
                    marker={"symbol": symbol, "size": 8, "color": colour},
                    customdata=[_hover(point) for point in mine],
                    hovertemplate="%{customdata}<extra></extra>",
                )
            )
            named.add(name)
    return traces


def _kind(operation: str) -> str:
    first = operation.split(" ", 1)[0]
    return next((name for name, words, _ in _KINDS if first in words), _KINDS[-1][0])


def _hover(point: PointResult) -> str:
    breaking = f", {point.violations:,} break a rule" if point.violations else ""
    return (
        f"point {point.number:,}: {escape(point.operation)}<br>"
        f"{large(point.possible)} possible, {point.explored:,} judged{breaking}"
    )


def _height(number: int) -> float | None:
    return float(min(number, 10**DECADES_MAX)) if number else None


def _decades(number: int) -> float:
    return math.log10(max(number, 1))


def _axis(points: Sequence[PointResult]) -> dict[str, Any]:
    """Return a logarithmic axis from one state to all, with few powers of ten named."""
    most = min(max((_decades(point.possible) for point in points), default=1), DECADES_MAX)
    named = range(0, math.floor(most) + 1, max(math.ceil(most / LABELS_MAX), 1))
    return {
        "type": "log",
        "range": [-0.25, max(most, 1) * 1.08],
        "tickmode": "array",
        "tickvals": [10.0**power for power in named],
        "ticktext": [
            f"10{str(power).translate(RAISED)}" if power > 3 else f"{10**power:,}" for power in named
        ],
    }
