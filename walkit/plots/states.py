"""The places of two states on the timelines of their logs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from walkit._internal.text import counted
from walkit.plots.facts import drawn_by
from walkit.plots.style import BLUE, NEUTRAL, ORANGE, Figure, figure, go
from walkit.plots.units import COUNTS

LEFT, RIGHT = BLUE, ORANGE
"""Colours of the two states."""
SEGMENTS_DRAWN_MAX = 200
"""A log of more segments is drawn as one bar."""


@dataclass(frozen=True, slots=True)
class StateLane:
    """One log's line of a timeline: its segments, and the states that are looked at."""

    name: str
    segments: tuple[tuple[int, int, int], ...]
    """(number, first LSN, last LSN) of each segment that holds records, in order."""
    marks: tuple[tuple[str, int], ...]
    """(name, LSN) of each state: "left" or "right"."""


def states_timeline(lanes: Iterable[StateLane]) -> Figure:
    """Draw each log's segments over its LSNs as a line of bars, and the states that are compared as marks on it."""
    drawn = list(lanes)
    names = [f"{at}. {escape(lane.name)}" for at, lane in enumerate(drawn, 1)]
    drawing = figure(
        "States on the log's timeline",
        subtitle=["each area is a segment", drawn_by()],
        alt="Segments over LSN: " + "; ".join(_describe(lane) for lane in drawn),
        height=240 + 50 * len(drawn),
        barmode="overlay",
        xaxis={"title": {"text": "LSN"}, "rangemode": "tozero", **COUNTS},
        yaxis={"autorange": "reversed", "showticklabels": len(drawn) > 1},
    )
    for name, lane in zip(names, drawn, strict=True):
        for start, pieces in enumerate(_alternating(_pieces(lane))):
            drawing.add_trace(
                go.Bar(
                    y=[name] * len(pieces),
                    x=[last - first + 1 for _, first, last in pieces],
                    base=[first - 1 for _, first, _ in pieces],
                    text=[f"{label}: LSN {first:,} to {last:,}" for label, first, last in pieces],
                    textposition="none",
                    orientation="h",
                    width=0.5,
                    name="segments",
                    showlegend=False,
                    marker={"color": NEUTRAL, "opacity": (0.35, 0.55)[start]},
                    hovertemplate="%{text}<extra></extra>",
                )
            )
    for side, symbol, paint in (("left", "triangle-down", LEFT), ("right", "triangle-up", RIGHT)):
        at = [
            (lsn, name) for name, lane in zip(names, drawn, strict=True) for s, lsn in lane.marks if s == side
        ]
        drawing.add_trace(
            go.Scatter(
                x=[lsn for lsn, _ in at],
                y=[name for _, name in at],
                mode="markers",
                name=side,
                marker={"symbol": symbol, "size": 16, "color": paint, "line": {"width": 1}},
                hovertemplate=f"{side} state: LSN %{{x:,d}}<extra></extra>",
            )
        )
    return drawing


def _pieces(lane: StateLane) -> list[tuple[str, int, int]]:
    if len(lane.segments) <= SEGMENTS_DRAWN_MAX:
        return [(f"segment {number}", first, last) for number, first, last in lane.segments]
    return [(counted(len(lane.segments), "segment"), lane.segments[0][1], lane.segments[-1][2])]


def _alternating(pieces: list[tuple[str, int, int]]) -> tuple[list[tuple[str, int, int]], ...]:
    """Return every second segment apart, so that neighbours have two colours."""
    return pieces[::2], pieces[1::2]


def _describe(lane: StateLane) -> str:
    marks = ", ".join(f"{side} state at LSN {lsn:,}" for side, lsn in lane.marks)
    return f"{lane.name} with {counted(len(lane.segments), 'segment')}, {marks}"
