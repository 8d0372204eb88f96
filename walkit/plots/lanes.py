"""Boxes and marks in rows over one axis of bytes: a log by where things are, in one panel, or in two to compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

from walkit.plots.style import NEUTRAL, Figure, dress, go, hatch, lane_bars, subplots
from walkit.plots.units import bytes_axis

FLAG = "triangle-right"
"""A mark that is somebody's claim or progress, with its dotted line for a pole."""
ROW_PX = 30
PANEL_GAP_PX = 70


class Look(NamedTuple):
    """How a kind of boxes is painted: its colour, and the index of its hatch."""

    colour: str
    hatch: int


class Box(NamedTuple):
    """A range of the axis, bytes; `hover` is HTML."""

    start: float
    size: float
    hover: str


class Mark(NamedTuple):
    """A place on the axis with its own row, so that no text lies over another; texts are escaped when drawn."""

    at: float
    text: str
    """The label of its row; if a row of boxes has it already, the mark is drawn in that."""
    more: str
    symbol: str = "line-ns-open"
    """plotly's name of the symbol."""


@dataclass
class RowPanel:
    """One log at one moment. Rows are drawn from the top in the order in which they were added; marks come last."""

    title: str = ""
    rows: list[str] = field(default_factory=list)
    boxes: list[tuple[str, str, Look, list[Box]]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def row(self, name: str) -> None:
        """Add a row, which may stay empty."""
        if name not in self.rows:
            self.rows.append(name)

    def add(self, row: str, kind: str, look: Look, boxes: Sequence[Box]) -> None:
        """Add boxes of one kind to a row; those without size are left out."""
        self.row(row)
        found = [box for box in boxes if box.size > 0]
        if found:
            self.boxes.append((row, kind, look, found))

    def labels(self) -> list[str]:
        """Return the labels of all rows, those of marks included, from the top."""
        return list(dict.fromkeys([*self.rows, *(mark.text for mark in self.marks)]))


def draw_rows(
    title: str,
    panels: Sequence[RowPanel],
    low: float,
    high: float,
    axis: str,
    **look: Any,
) -> Figure:
    """Draw panels one below the other over one axis from `low` to `high`, bytes; `look` is that of `dress`."""
    heights = [ROW_PX * max(len(panel.labels()), 1) for panel in panels]
    inner = sum(heights) + PANEL_GAP_PX * (len(panels) - 1)
    drawing = subplots(
        rows=len(panels),
        cols=1,
        row_heights=heights,
        vertical_spacing=PANEL_GAP_PX / inner if len(panels) > 1 else None,
        subplot_titles=[panel.title for panel in panels] if len(panels) > 1 else None,
    )
    dress(
        drawing,
        title,
        height=inner + 150 + 20 * (len(panels) > 1),
        barmode="overlay",
        bargap=0.25,
        **look,
    )
    if len(panels) > 1:
        drawing.update_layout(margin_t=drawing.layout.margin.t + 20, height=drawing.layout.height + 20)
    # On a phone half of the width is labels: a panel's title begins above them.
    drawing.update_annotations(x=0, xanchor="left", xshift=-60, font={"size": 13})
    margin = (high - low) * 0.02 or 1.0
    for number, panel in enumerate(panels, start=1):
        _draw(drawing, panel, number)
        drawing.update_xaxes(bytes_axis(low - margin, high + margin), row=number, col=1)
        labels = [escape(label) for label in panel.labels()]
        drawing.update_yaxes(
            categoryorder="array",
            categoryarray=labels[::-1],
            type="category",
            range=[-0.6, len(labels) - 0.4],
            showgrid=False,
            row=number,
            col=1,
        )
    drawing.update_xaxes(title_text=axis, row=len(panels), col=1)
    return drawing


def _draw(drawing: Figure, panel: RowPanel, number: int) -> None:
    for row, kind, look, boxes in panel.boxes:
        trace = lane_bars(
            [(escape(row), *box) for box in boxes],
            kind,
            look.colour,
            # Between two boxes there is a line that is seen on either page.
            marker={"line": {"width": 1, "color": NEUTRAL}, "pattern": hatch(look.hatch)},
            legendgroup=kind,
            showlegend=kind not in {trace.name for trace in drawing.data},
        )
        drawing.add_trace(trace, row=number, col=1)
    top = len(panel.labels()) - 0.6
    for mark in panel.marks:
        # From the mark's row up to the boxes: its place is seen there.
        drawing.add_shape(
            type="line",
            x0=mark.at,
            x1=mark.at,
            y0=panel.labels()[::-1].index(mark.text),
            y1=top,
            line={"color": NEUTRAL, "width": 1, "dash": "dot"},
            row=number,
            col=1,
        )
    drawing.add_trace(
        go.Scatter(
            x=[mark.at for mark in panel.marks],
            y=[escape(mark.text) for mark in panel.marks],
            text=[escape(mark.text) for mark in panel.marks],
            customdata=[escape(mark.more) for mark in panel.marks],
            mode="markers",
            marker={
                "symbol": [mark.symbol for mark in panel.marks],
                "size": [12 if mark.symbol == FLAG else 18 for mark in panel.marks],
                "color": NEUTRAL,
                "line": {"width": 3, "color": NEUTRAL},
            },
            hovertemplate="<b>%{text}</b><br>%{customdata}<extra></extra>",
            showlegend=False,
            cliponaxis=False,
            name="marks",
        ),
        row=number,
        col=1,
    )
