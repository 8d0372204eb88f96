"""Latency over percentile, in the manner of HdrHistogram's plots."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from walkit.measure import LatencyHistogram, Run
from walkit.plots.style import colour, figure, go

_TICKS = {1: "0", 2: "50", 10: "90", 100: "99", 1_000: "99.9", 10_000: "99.99", 100_000: "99.999"}
_TICKS |= {1_000_000: "99.9999", 10_000_000: "99.99999"}


def latency_distribution(
    runs: Run | Iterable[Run], *, name: str = "total", baseline: bool = True
) -> go.Figure:
    """Draw the whole latency distribution of each run, and of its raw-device baseline as a dotted line.

    x is 1 / (1 - percentile / 100) on a log axis: at x = 1000 stands the latency that one record in a
    thousand reached or passed. y is microseconds, log. `name` is that of the histogram. Runs without records
    in it are left out. A curve ends at its maximum, at x = number of records.
    """
    chosen = [runs] if isinstance(runs, Run) else list(runs)
    warnings = tuple(dict.fromkeys(f"{run.name}: {text}" for run in chosen for text in run.warnings))
    drawing = figure(
        f"Latency distribution ({name})",
        warnings=warnings,
        xaxis={
            "type": "log",
            "title": {"text": "percentile"},
            "tickvals": list(_TICKS),
            "ticktext": list(_TICKS.values()),
        },
        yaxis={"type": "log", "title": {"text": "latency, µs"}},
    )
    for index, run in enumerate(chosen):
        found = run.latency.get(name)
        if found is not None and found.count:
            label = f"{run.name} ({run.durability}, {run.arrival} loop)"
            drawing.add_trace(_curve(found, label, {"color": colour(index), "width": 2}))
        if baseline and run.baseline is not None:
            label = f"{run.name}: raw {run.baseline.mode}, {run.baseline.block_bytes:,} B"
            drawing.add_trace(_curve(run.baseline.latencies, label, {"color": colour(index), "dash": "dot"}))
    return drawing


def _curve(histogram: LatencyHistogram, label: str, line: dict[str, object]) -> go.Scatter:
    # A step: from the share of records that are at or above a bucket to the share that are above it.
    _, high_ns, counts = histogram.buckets()
    below = np.concatenate(([0], np.cumsum(counts)))
    at_or_above = np.append(below[-1] - below[:-1], 1)
    latency_us = np.append(high_ns, high_ns[-1]) / 1_000
    return go.Scatter(
        x=below[-1] / at_or_above,
        y=latency_us,
        customdata=100 * (1 - at_or_above / below[-1]),
        mode="lines",
        line={**line, "shape": "hv"},
        name=label,
        hovertemplate="p%{customdata:.5g}: %{y:,.1f} µs",
    )
