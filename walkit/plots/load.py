"""Latency over offered load: the curve that bends up at the knee."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from math import log10

from walkit.measure import Run
from walkit.measure.histogram import percentile_name
from walkit.measure.saturation import kept_up, knee, offered_per_s
from walkit.plots.facts import Spread, run_facts, run_warnings, spread_curve, spread_words
from walkit.plots.style import Figure, colour, dash, figure, go, label_ends
from walkit.plots.units import LOG_SECONDS, count_text, log_counts

PERCENTILES = (50.0, 99.0, 99.9)


def latency_over_load(
    runs: Run | Iterable[Run],
    *,
    percentiles: Iterable[float] = PERCENTILES,
    name: str = "total",
) -> Figure:
    """Draw latency percentiles of open-loop runs over the offered calls per second.

    Runs of one name and durability level are one series, a colour; percentiles are dashes, named at their ends if
    there is one series. x and y are logarithmic, y
    is seconds. Several runs of a series at one load are one point: their median, with a whisker for their spread. A
    hollow point was not kept up with: its latency grew for as long as the run lasted. The dotted line is the knee, the
    highest load that was kept up with. Closed-loop runs are left out: they offer no load.
    """
    chosen, shown = [runs] if isinstance(runs, Run) else list(runs), tuple(percentiles)
    found = [(rate, run) for run in chosen if (rate := offered_per_s(run)) is not None]
    series: dict[str, dict[float, list[Run]]] = {}
    for rate, run in sorted(found, key=lambda pair: pair[0]):
        series.setdefault(f"{run.name} ({run.durability})", {}).setdefault(rate, []).append(run)
    numbers = [len(repeated) for points in series.values() for repeated in points.values()]
    words = spread_words(min(numbers), max(numbers)) if numbers else ""
    loads = (min(rate for rate, _ in found), max(rate for rate, _ in found)) if found else (1.0, 1.0)
    limits = {
        label: knee(run for each in points.values() for run in each) for label, points in series.items()
    }
    drawing = figure(
        f"Latency over offered load ({escape(name)}, from the intended start)",
        subtitle=[
            *(series if len(series) == 1 else ()),
            *([words] if words else []),
            *run_facts(r for _, r in found),
        ],
        warnings=run_warnings((run for _, run in found), single=not words),
        alt="Latency percentiles over offered load, both logarithmic"
        + "".join(
            f"; {label}: knee {f'at {count_text(limit)} calls/s' if limit is not None else 'not seen'}"
            for label, limit in limits.items()
        ),
        xaxis={"type": "log", "title": {"text": "offered, calls per second"}, **log_counts(*loads)},
        yaxis={"type": "log", "title": {"text": "latency"}, **LOG_SECONDS},
    )
    for index, (label, points) in enumerate(series.items()):
        for which, percentile in enumerate(shown):
            drawing.add_trace(_curve(points, label, name, percentile, index, dash(which)))
        limit = limits[label]
        if limit is not None:
            drawing.add_vline(x=limit, line={"color": colour(index), "dash": "dot", "width": 1})
            # On a log axis a shape is placed by its value, and an annotation by the logarithm of it.
            drawing.add_annotation(
                x=log10(limit),
                y=1,
                yref="paper",
                yanchor="top",
                xanchor="left",
                yshift=-16 * index,  # knees at one load do not overprint each other
                text=f"knee {limit:,.0f}/s",
                showarrow=False,
            )
    if len(series) == 1:
        label_ends(drawing, {n: percentile_name(percentile) for n, percentile in enumerate(shown)})
    return drawing


def _curve(
    points: dict[float, list[Run]], label: str, name: str, percentile: float, index: int, kind: str
) -> go.Scatter:
    """Return one percentile of a series over its loads; loads without such a histogram are left out."""
    known = [
        (rate, [run for run in each if name in run.latency and run.latency[name].count])
        for rate, each in points.items()
    ]
    known = [(rate, each) for rate, each in known if each]
    spreads = [
        Spread.of([run.latency[name].percentile(percentile) / 1e9 for run in each]) for _, each in known
    ]
    late = [any(kept_up(run) is False for run in each) for _, each in known]
    return spread_curve(
        (rate for rate, _ in known),
        spreads,
        f"{escape(label)}: {percentile_name(percentile)}",
        index,
        line={"dash": kind},
        marker={"symbol": ["circle-open" if hollow else "circle" for hollow in late]},
        customdata=[Spread.of([run.records_per_s for run in each]).median for _, each in known],
        hovertemplate="%{x:,.0f} offered, %{customdata:,.0f} records/s done: %{y:.3s}s",
    )
