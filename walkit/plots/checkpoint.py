"""What checkpoints save: how long opening takes, over how much of the log is behind the last one."""

from __future__ import annotations

from collections.abc import Mapping

from walkit.plots.style import colour, duration_text, figure, go
from walkit.recovery.report import RecoveryReport


def recovery_over_checkpoint(reports: Mapping[int, RecoveryReport]) -> go.Figure:
    """Draw the time of each opening of a store, phase on phase, over the records behind its last checkpoint.

    `reports` has `store.recovery` by that number of records. Phases of less than a thousandth of the longest opening
    are left out. ValueError where there is no report.
    """
    if not reports:
        raise ValueError("there is no report to draw")
    behind = sorted(reports)
    longest = max(r.duration_s for r in reports.values())
    drawing = figure(
        "Opening a store, over the records behind its last checkpoint", barmode="stack", bargap=0.4
    )
    names = dict.fromkeys(phase.name for n in behind for phase in reports[n].phases)
    for index, name in enumerate(names):
        seconds = [sum(p.duration_s for p in reports[n].phases if p.name == name) for n in behind]
        if max(seconds) < longest / 1000:
            continue
        drawing.add_trace(
            go.Bar(
                x=[f"{n:,}" for n in behind],
                y=[s * 1000 for s in seconds],
                text=[duration_text(s) for s in seconds],
                textposition="none",
                name=name,
                marker={"color": colour(index)},
                hovertemplate=f"{name}: %{{text}}<extra></extra>",
            )
        )
    drawing.update_xaxes(title_text="records behind the last checkpoint", type="category")
    drawing.update_yaxes(title_text="ms", rangemode="tozero")
    return drawing
