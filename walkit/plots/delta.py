"""How a delta reader came by its records: latencies as histograms, and lags side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from walkit.plots.facts import Spread, drawn_by, error_bars
from walkit.plots.style import Figure, colour, figure, go
from walkit.plots.units import LOG_SECONDS, duration_text, log_seconds

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
        drawing.add_trace(
            go.Scatter(
                x=edges,
                y=np.append(shares, 0.0),
                mode="lines",
                name=f"{name}, p50 {duration_text(np.median(seconds))}, n {len(seconds):,}",
                line={"color": colour(index), "shape": "hv"},
            )
        )
    return drawing


def delta_lags(
    lags_ms: Mapping[str, Mapping[float, Sequence[float]]],
    *,
    x: str,
    subtitle: Sequence[str] = (),
) -> Figure:
    """Draw the lags of ways of reading over the varied value; `lags_ms` has one lag per round for each way and value.

    x is the varied value, log, titled `x`; y the lag, log, in seconds: the median of the rounds, with bars to the
    quartiles of five rounds and more, else to the least and most. A way without lags is left out.
    """
    known = {
        way: {
            value: Spread.of([ms / 1e3 for ms in found]) for value, found in sorted(row.items()) if len(found)
        }
        for way, row in lags_ms.items()
    }
    known = {way: row for way, row in known.items() if row}
    counts = sorted({spread.number for row in known.values() for spread in row.values()})
    rounds = (
        f"{' to '.join(f'{n:,}' for n in dict.fromkeys((counts[0], counts[-1])))} rounds" if counts else ""
    )
    words = "; ".join(
        f"{way}: {duration_text(min(s.median for s in row.values()))} to "
        f"{duration_text(max(s.median for s in row.values()))}"
        for way, row in known.items()
    )
    ends = [each for row in known.values() for spread in row.values() for each in (spread.low, spread.high)]
    least, most = min(ends, default=1e-3), max(ends, default=1.0)
    drawing = figure(
        "Lag by way of reading",
        subtitle=[*subtitle, *([f"medians of {rounds}"] if rounds else []), drawn_by()],
        alt=f"Lag over {x}, medians of {rounds or 'no rounds'}: {words or 'no lags'}",
        xaxis={
            "type": "log",
            "title": {"text": x},
            "tickvals": sorted({v for row in known.values() for v in row}),
        },
        yaxis={"type": "log", "title": {"text": "lag"}, **log_seconds(least, most)},
    )
    for index, (way, row) in enumerate(known.items()):
        spreads = list(row.values())
        drawing.add_trace(
            go.Scatter(
                x=list(row),
                y=[spread.median for spread in spreads],
                error_y=error_bars(spreads),
                mode="lines+markers",
                name=way,
                line={"color": colour(index)},
            )
        )
    return drawing
