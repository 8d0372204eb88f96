"""Several recoveries on one clock: the newest beside the earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from walkit.plots.facts import drawn_by
from walkit.plots.phases import RecoveryReportLike
from walkit.plots.style import Figure, Theme, figure, go, phase_colour, phase_hatch
from walkit.plots.units import SECONDS, duration_text


def recoveries(
    reports: Sequence[tuple[str, RecoveryReportLike]], *, subtitle: Sequence[str] = (), theme: Theme = None
) -> Figure:
    """Draw one bar for each (name, report), its phases one after the other in seconds; the last one on top.

    Names that are there twice are named apart by a number. ValueError without a report.
    """
    if not reports:
        raise ValueError("no report to draw")
    names: dict[str, RecoveryReportLike] = {}
    for name, report in reports:
        free = next(
            n for n in (name, *(f"{name} ({i})" for i in range(2, len(reports) + 1))) if n not in names
        )
        names[free] = report
    taken = {n: max((p.started_s + p.duration_s for p in r.phases), default=0.0) for n, r in names.items()}
    drawing = figure(
        "Phases of recovery",
        subtitle=[*subtitle, "the newest on top", drawn_by()],
        alt="Bars of phases, newest first. "
        + "; ".join(
            f"{name}, {duration_text(taken[name])}: "
            + ", ".join(f"{p.name} {duration_text(p.duration_s)}" for p in names[name].phases)
            for name in reversed(names)
        ),
        theme=theme,
        height=170 + 34 * len(names),
        barmode="overlay",
        bargap=0.3,
    )
    for phase in dict.fromkeys(p.name for report in names.values() for p in report.phases):
        found = [(name, p) for name, report in names.items() for p in report.phases if p.name == phase]
        drawing.add_trace(
            go.Bar(
                orientation="h",
                y=[escape(name) for name, _ in found],
                base=[p.started_s for _, p in found],
                x=[p.duration_s for _, p in found],
                name=phase,
                marker={"color": phase_colour(phase), "pattern": phase_hatch(phase)},
                customdata=[
                    "<br>".join(
                        [
                            duration_text(p.duration_s),
                            *(f"{escape(str(k))}: {escape(str(v))}" for k, v in p.detail.items()),
                        ]
                    )
                    for _, p in found
                ],
                hovertemplate=f"<b>%{{y}}: {escape(phase)}</b><br>%{{customdata}}<extra></extra>",
            )
        )
    drawing.update_xaxes(rangemode="tozero", range=[0, max(*taken.values(), 1e-6) * 1.05], **SECONDS)
    drawing.update_yaxes(
        type="category", categoryorder="array", categoryarray=[escape(name) for name in names]
    )
    return drawing
