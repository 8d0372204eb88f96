"""Space amplification: what was written for each byte of the user's."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from walkit.measure import Run
from walkit.plots.facts import run_facts, run_warnings
from walkit.plots.style import BLUE, ORANGE, SKY, Figure, Theme, figure, go, hatch


def space_amplification(runs: Run | Iterable[Run], *, theme: Theme = None) -> Figure:
    """Draw for each run the bytes written per user byte, as one bar of three parts.

    keys and values: 1 by definition, or less where frames are compressed; headers and columns: frame headers, kinds,
    lengths, timestamps; padding: zeros up to the alignment. Segment headers and zeroed space ahead are not in it. Runs
    that wrote no user bytes are left out.
    """
    chosen = [runs] if isinstance(runs, Run) else list(runs)
    known = [run for run in chosen if run.bytes_user and run.bytes_written is not None]
    parts: dict[str, list[float]] = {"keys and values": [], "headers and columns": [], "padding": []}
    for run in known:
        assert run.bytes_user and run.bytes_written is not None
        padding = run.frames.padding_bytes if run.frames else 0
        full = run.bytes_written - padding
        user = min(run.bytes_user, full)
        for part, size in zip(parts, (user, full - user, padding), strict=True):
            parts[part].append(size / run.bytes_user)
    labels = [f"{at}. {escape(run.name)} ({run.durability})" for at, run in enumerate(known, 1)]
    drawing = figure(
        "Bytes written per user byte",
        subtitle=run_facts(known),
        warnings=run_warnings(known, single=False),  # bytes are counted, not measured
        alt="Stacked bars, bytes written per user byte: "
        + "; ".join(f"{run.name} {run.write_amplification:.2f}" for run in known),
        theme=theme,
        barmode="stack",
        yaxis={"title": {"text": "bytes per user byte"}, "rangemode": "tozero"},
    )
    for index, ((part, sizes), paint) in enumerate(zip(parts.items(), (BLUE, ORANGE, SKY), strict=True)):
        drawing.add_trace(
            go.Bar(
                x=labels,
                y=sizes,
                name=part,
                marker={"color": paint, "pattern": hatch(index)},
                hovertemplate="%{y:.3f} bytes per user byte",
            )
        )
    for label, run in zip(labels, known, strict=True):
        drawing.add_annotation(
            x=label,
            y=run.write_amplification,
            text=f"{run.write_amplification:.2f}",
            yshift=10,
            showarrow=False,
        )
    return drawing
