"""Latency over offered load: the curve that bends up at the knee."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from math import log10

from walkit.measure import Run
from walkit.measure.histogram import percentile_name
from walkit.measure.knee import kept_up, knee, offered_per_s
from walkit.plots.style import TEXT, colour, figure, go

PERCENTILES = (50.0, 99.0, 99.9)
_DASHES = ("solid", "dash", "dot", "dashdot")


def latency_over_load(
    runs: Run | Iterable[Run], *, percentiles: Iterable[float] = PERCENTILES, name: str = "total"
) -> go.Figure:
    """Draw latency percentiles of open-loop runs over the calls a second that were offered.

    Runs of one name and durability level are one series, a colour; percentiles are dashes. x and y are logarithmic, y
    is microseconds. A hollow point was not kept up with: its latency grew for as long as the run lasted. The dotted
    line is the knee, the highest load that was kept up with. Closed-loop runs are left out: they offer no load.
    """
    chosen, shown = [runs] if isinstance(runs, Run) else list(runs), tuple(percentiles)
    found = [(rate, run) for run in chosen if (rate := offered_per_s(run)) is not None]
    series: dict[str, list[tuple[float, Run]]] = {}
    for rate, run in sorted(found, key=lambda pair: pair[0]):
        series.setdefault(f"{run.name} ({run.durability})", []).append((rate, run))
    warnings = tuple(dict.fromkeys(f"{run.name}: {text}" for _, run in found for text in run.warnings))
    drawing = figure(
        f"Latency over offered load ({escape(name)}, from the intended start)",
        warnings=warnings,
        xaxis={"type": "log", "title": {"text": "offered, calls a second"}},
        yaxis={"type": "log", "title": {"text": "latency, µs"}},
    )
    for index, (label, points) in enumerate(series.items()):
        known = [(rate, run) for rate, run in points if name in run.latency and run.latency[name].count]
        for which, percentile in enumerate(shown):
            drawing.add_trace(
                go.Scatter(
                    x=[rate for rate, _ in known],
                    y=[run.latency[name].percentile(percentile) / 1000 for _, run in known],
                    mode="lines+markers",
                    name=f"{escape(label)}: {percentile_name(percentile)}",
                    line={"color": colour(index), "dash": _DASHES[which % len(_DASHES)]},
                    marker={
                        "symbol": ["circle-open" if kept_up(run) is False else "circle" for _, run in known]
                    },
                    customdata=[run.records_per_s for _, run in known],
                    hovertemplate="%{x:,.0f} offered, %{customdata:,.0f} records/s done: %{y:,.1f} µs",
                )
            )
        limit = knee(run for _, run in points)
        if limit is not None:
            drawing.add_vline(x=limit, line={"color": colour(index), "dash": "dot", "width": 1})
            # On a log axis a shape stands at its value, and an annotation at the logarithm of it.
            drawing.add_annotation(
                x=log10(limit),
                y=1,
                yref="paper",
                yanchor="bottom",
                text=f"knee {limit:,.0f}/s",
                showarrow=False,
                font={"color": TEXT},
            )
    return drawing
