"""Latency over percentile, in the manner of HdrHistogram's plots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from walkit.measure import LatencyHistogram, Run
from walkit.plots.facts import Spread, error_bars, run_facts, run_warnings, spread_words
from walkit.plots.style import Figure, colour, curve, figure, go
from walkit.plots.units import LOG_SECONDS, duration_text

_TICKS = {1: "0", 2: "50", 10: "90", 100: "99", 1_000: "99.9", 10_000: "99.99", 100_000: "99.999"}
_WHISKERS_AT = (50.0, 90.0, 99.0, 99.9, 99.99)
"""Percentiles at which the spread of repeated runs is shown."""
_POINTS_OF_A_DECADE = 24
Values = npt.NDArray[np.float64]
_TICKS |= {1_000_000: "99.9999", 10_000_000: "99.99999"}


def latency_distribution(
    runs: Run | Iterable[Run],
    *,
    name: str = "total",
    baseline: bool = True,
    repeated: bool = False,
) -> Figure:
    """Draw the whole latency distribution of each run, and of its raw-device baseline as a dotted line.

    x is 1 / (1 - percentile / 100) on a log axis: at x = 1000 is the latency that one record in a
    thousand reached or passed. y is seconds, log. `name` is that of the histogram. Runs without records
    in it are left out. A curve ends at its maximum, at x = number of records.

    With `repeated`, runs of one name, durability level and arrival are one curve: their median at each percentile, as
    far as the smallest of them goes, with whiskers for their spread at p50, p90 and so on. Baselines are left out then.
    """
    chosen = [runs] if isinstance(runs, Run) else list(runs)
    series = _series(chosen, name) if repeated else {}
    each = [
        (run.name, [run.latency[name]]) for run in chosen if name in run.latency and run.latency[name].count
    ]
    numbers = [len(group) for group in series.values()]
    words = spread_words(min(numbers), max(numbers)) if numbers else ""
    drawing = figure(
        f"Latency distribution ({name})",
        subtitle=[*([words] if words else []), *run_facts(chosen)],
        warnings=run_warnings(chosen, single=not words),
        alt="Latency over percentile, both logarithmic: "
        + "; ".join(
            f"{label}: p50 {_at(group, 50)}, p99 {_at(group, 99)}, max {_at(group, 100)}"
            for label, group in (series.items() if repeated else each)
        ),
        xaxis={
            "type": "log",
            "title": {"text": "percentile"},
            "tickvals": list(_TICKS),
            "ticktext": list(_TICKS.values()),
        },
        yaxis={"type": "log", "title": {"text": "latency"}, **LOG_SECONDS},
    )
    for index, (label, group) in enumerate(series.items()):
        drawing.add_traces(_median_curve(group, label, colour(index)))
    for index, run in enumerate([] if repeated else chosen):
        histogram = run.latency.get(name)
        if histogram is not None and histogram.count:
            label = f"{run.name} ({run.durability}, {run.arrival} loop)"
            drawing.add_trace(_curve(histogram, label, colour(index), "solid"))
        if baseline and run.baseline is not None:
            label = f"{run.name}: raw {run.baseline.mode}, {run.baseline.block_bytes:,} B"
            drawing.add_trace(_curve(run.baseline.latencies, label, colour(index), "dot"))
    return drawing


def _series(runs: Iterable[Run], name: str) -> dict[str, list[LatencyHistogram]]:
    """Return the histograms of runs that repeat each other, by the name of their curve, in the order of the runs."""
    found: dict[str, list[LatencyHistogram]] = {}
    for run in runs:
        histogram = run.latency.get(name)
        if histogram is not None and histogram.count:
            found.setdefault(f"{run.name} ({run.durability}, {run.arrival} loop)", []).append(histogram)
    return found


def _median_curve(histograms: Sequence[LatencyHistogram], label: str, paint: str) -> list[go.Scatter]:
    """Return the median of several histograms at each percentile, and whiskers at some of them."""
    end = min(histogram.count for histogram in histograms)
    x = np.geomspace(1, end, max(round(_POINTS_OF_A_DECADE * np.log10(end)), 2))
    known = [p for p in _WHISKERS_AT if 1 / (1 - p / 100) <= end]
    wanted = [*(100 * (1 - 1 / x)), *known]
    seconds = np.array([[ns / 1e9 for ns in _latencies(h, wanted)] for h in histograms])
    spreads = [Spread.of(list(column)) for column in seconds[:, len(x) :].T]
    line = _step(x, np.median(seconds[:, : len(x)], axis=0), 100 * (1 - 1 / x), label, paint)
    whiskers = go.Scatter(
        x=[1 / (1 - p / 100) for p in known],
        y=[spread.median for spread in spreads],
        error_y=error_bars(spreads),
        mode="markers",
        marker={"color": paint, "size": 6},
        name=label,
        showlegend=False,
        customdata=[f"{s.low:.3g} to {s.high:.3g} s, n = {s.number}" for s in spreads],
        hovertemplate="%{y:.3s}s: %{customdata}",
    )
    return [line, whiskers] if known else [line]


def _latencies(histogram: LatencyHistogram, percentiles: Sequence[float]) -> list[float]:
    found = histogram.percentiles(percentiles)
    return [found[p] for p in percentiles]


def _at(histograms: Sequence[LatencyHistogram], percentile: float) -> str:
    return duration_text(float(np.median([h.percentile(percentile) for h in histograms])) / 1e9)


def _curve(histogram: LatencyHistogram, label: str, paint: str, kind: str) -> go.Scatter:
    # A step: from the share of records that are at or above a bucket to the share that are above it.
    _, high_ns, counts = histogram.buckets()
    below = np.concatenate(([0], np.cumsum(counts)))
    at_or_above = np.append(below[-1] - below[:-1], 1)
    latency_s = np.append(high_ns, high_ns[-1]) / 1e9
    percentiles = 100 * (1 - at_or_above / below[-1])
    return _step(below[-1] / at_or_above, latency_s, percentiles, label, paint, kind)


def _step(
    x: Values, y: Values, percentiles: Values, label: str, paint: str, kind: str = "solid"
) -> go.Scatter:
    line, hover = {"dash": kind, "shape": "hv"}, "p%{customdata:.5g}: %{y:.3s}s"
    return curve(x, y, label, paint, line=line, customdata=percentiles, hovertemplate=hover)
