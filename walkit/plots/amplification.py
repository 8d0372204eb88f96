"""Space and write amplification of a store, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from walkit.plots.facts import drawn_by
from walkit.plots.style import BLUE, NEUTRAL, VERMILION, Figure, Theme, figure, go


class Amplification(NamedTuple):
    """The cost of a store's log after one step."""

    step: str
    space: float
    """Bytes of the log's segments for each byte of live keys and values."""
    written: float
    """Bytes written so far, by appending, compacting, trimming and checkpoints, for each byte of the user's."""


def amplification(steps: Sequence[Amplification], *, theme: Theme = None) -> Figure:
    """Draw both over the steps, in their order. ValueError without a step."""
    if not steps:
        raise ValueError("no step to draw")
    last = steps[-1]
    drawing = figure(
        f"Amplification: space {last.space:.2f}, writes {last.written:.2f}",
        subtitle=["after each step", drawn_by()],
        alt="Space and write amplification after each step: "
        + "; ".join(f"{s.step} {s.space:.2f}, {s.written:.2f}" for s in steps[-12:]),
        theme=theme,
        height=330,
        yaxis={"title": {"text": "times"}, "rangemode": "tozero"},
        hovermode="x unified",
    )
    numbers = list(range(1, len(steps) + 1))
    for name, values, paint, symbol, dash in (
        ("space: bytes of the log per live byte", [s.space for s in steps], BLUE, "circle", "solid"),
        ("writes: bytes written per user byte", [s.written for s in steps], VERMILION, "square", "dash"),
    ):
        drawing.add_trace(
            go.Scatter(
                x=numbers,
                y=values,
                name=name,
                mode="lines+markers",
                line={"color": paint, "dash": dash},
                marker={"symbol": symbol, "size": 8},
                hovertemplate="%{y:.2f}",
            )
        )
    drawing.add_hline(1.0, line={"color": NEUTRAL, "dash": "dot", "width": 1})
    texts = [f"{number}. {step.step}" for number, step in zip(numbers, steps, strict=True)]
    every = -(-len(numbers) // 12)
    drawing.update_xaxes(tickvals=numbers[::every], ticktext=texts[::every])
    return drawing
