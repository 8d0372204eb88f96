"""Latency over percentile, in the manner of HdrHistogram's plots."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from walkit.measure import LatencyHistogram, Run
from walkit.plots.facts import run_facts, run_warnings
from walkit.plots.style import Figure, Theme, colour, figure, go
from walkit.plots.units import LOG_SECONDS, duration_text

_TICKS = {1: "0", 2: "50", 10: "90", 100: "99", 1_000: "99.9", 10_000: "99.99", 100_000: "99.999"}
_TICKS |= {1_000_000: "99.9999", 10_000_000: "99.99999"}


def latency_distribution(
    runs: Run | Iterable[Run], *, name: str = "total", baseline: bool = True, theme: Theme = None
) -> Figure:
    """Draw the whole latency distribution of each run, and of its raw-device baseline as a dotted line.

    x is 1 / (1 - percentile / 100) on a log axis: at x = 1000 is the latency that one record in a
    thousand reached or passed. y is seconds, log. `name` is that of the histogram. Runs without records
    in it are left out. A curve ends at its maximum, at x = number of records.
    """
    chosen = [runs] if isinstance(runs, Run) else list(runs)
    drawing = figure(
        f"Latency distribution ({name})",
        subtitle=run_facts(chosen),
        warnings=run_warnings(chosen),
        alt="Latency over percentile, both logarithmic: "
        + "; ".join(
            f"{run.name}: p50 {_at(run, name, 50)}, p99 {_at(run, name, 99)}, max {_at(run, name, 100)}"
            for run in chosen
            if name in run.latency and run.latency[name].count
        ),
        theme=theme,
        xaxis={
            "type": "log",
            "title": {"text": "percentile"},
            "tickvals": list(_TICKS),
            "ticktext": list(_TICKS.values()),
        },
        yaxis={"type": "log", "title": {"text": "latency"}, **LOG_SECONDS},
    )
    for index, run in enumerate(chosen):
        histogram = run.latency.get(name)
        if histogram is not None and histogram.count:
            label = f"{run.name} ({run.durability}, {run.arrival} loop)"
            drawing.add_trace(_curve(histogram, label, {"color": colour(index), "width": 2}))
        if baseline and run.baseline is not None:
            label = f"{run.name}: raw {run.baseline.mode}, {run.baseline.block_bytes:,} B"
            drawing.add_trace(_curve(run.baseline.latencies, label, {"color": colour(index), "dash": "dot"}))
    return drawing


def _at(run: Run, name: str, percentile: float) -> str:
    return duration_text(run.latency[name].percentile(percentile) / 1e9)


def _curve(histogram: LatencyHistogram, label: str, line: dict[str, object]) -> go.Scatter:
    # A step: from the share of records that are at or above a bucket to the share that are above it.
    _, high_ns, counts = histogram.buckets()
    below = np.concatenate(([0], np.cumsum(counts)))
    at_or_above = np.append(below[-1] - below[:-1], 1)
    latency_s = np.append(high_ns, high_ns[-1]) / 1e9
    return go.Scatter(
        x=below[-1] / at_or_above,
        y=latency_s,
        customdata=100 * (1 - at_or_above / below[-1]),
        mode="lines",
        line={**line, "shape": "hv"},
        name=label,
        hovertemplate="p%{customdata:.5g}: %{y:.3s}s",
    )
