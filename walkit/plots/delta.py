"""How a delta reader came by its records: latencies as histograms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from walkit.plots.facts import drawn_by
from walkit.plots.style import Figure, colour, curve, figure
from walkit.plots.units import LOG_SECONDS, duration_text

BINS_PER_DECADE = 10


def delta_latencies(latencies: Mapping[str, npt.ArrayLike]) -> Figure:
    """Draw each kind of latency of a delta reader as a histogram; `latencies` are those of `reader.latencies()`, ns.

    x is seconds, log, in bins of a tenth of a decade; y the share of the kind's samples in a bin. A kind without
    samples is left out.
    """
    known = {name: np.maximum(np.asarray(ns, np.float64), 1.0) / 1e9 for name, ns in latencies.items()}
    known = {name: seconds for name, seconds in known.items() if len(seconds)}
    words = "; ".join(f"{name}: p50 {duration_text(np.median(s))}" for name, s in known.items())
    drawing = figure(
        "Latencies of a delta reader",
        subtitle=[drawn_by()],
        alt=f"Histograms of latencies: {words or 'no samples'}",
        xaxis={"type": "log", "title": {"text": "latency"}, **LOG_SECONDS},
        yaxis={"title": {"text": "share of samples"}, "tickformat": ".0%", "rangemode": "tozero"},
    )
    for index, (name, seconds) in enumerate(known.items()):
        low = np.floor(np.log10(seconds.min()) * BINS_PER_DECADE)
        high = np.floor(np.log10(seconds.max()) * BINS_PER_DECADE) + 1
        edges = 10 ** (np.arange(low, high + 1) / BINS_PER_DECADE)
        shares = np.histogram(seconds, edges)[0] / len(seconds)
        label = f"{name}, p50 {duration_text(np.median(seconds))}, n {len(seconds):,}"
        drawing.add_trace(curve(edges, np.append(shares, 0.0), label, colour(index), line={"shape": "hv"}))
    return drawing
