"""How long the batches of a stream take, by their size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from walkit.plots.facts import Spread, drawn_by, error_bars, spread_words
from walkit.plots.style import BLUE, NEUTRAL, Figure, Theme, figure, go
from walkit.plots.units import SECONDS, count_text, duration_text, sizes_axis


def batch_times(
    seconds: Mapping[int, npt.ArrayLike], *, subtitle: Sequence[str] = (), theme: Theme = None
) -> Figure:
    """Draw each batch's seconds over its records, with the median and the range of each size.

    `seconds` are those of the batches, by the records of a batch. ValueError for a size without any.
    """
    sizes = sorted(seconds)
    known = [np.asarray(seconds[size], np.float64) for size in sizes]
    if not sizes or any(len(some) == 0 for some in known):
        raise ValueError("give the seconds of at least one batch for each size")
    medians = [float(np.median(some)) for some in known]
    words = "; ".join(
        f"{count_text(size)} records {duration_text(median)} ({duration_text(some.min())} to "
        f"{duration_text(some.max())}, n {len(some)})"
        for size, median, some in zip(sizes, medians, known, strict=True)
    )
    counts = [len(some) for some in known]
    drawing = figure(
        "How long a batch takes",
        subtitle=[spread_words(min(counts), max(counts)), *subtitle, drawn_by()],
        alt=f"Seconds of a batch over its records, medians and ranges: {words}",
        theme=theme,
        height=330,
        xaxis={"type": "log", "title": {"text": "records in the batch"}, **sizes_axis(sizes)},
        yaxis={"title": {"text": "time of a batch"}, "rangemode": "tozero", **SECONDS},
    )
    drawing.add_trace(
        go.Scatter(
            x=np.repeat(sizes, counts),
            y=np.concatenate(known),
            name="each batch",
            mode="markers",
            marker={"color": NEUTRAL, "symbol": "circle-open", "size": 7},
            hovertemplate="%{y:.3f} s",
        )
    )
    drawing.add_trace(
        go.Scatter(
            x=sizes,
            y=medians,
            name="median and spread",
            mode="lines+markers",
            line={"color": BLUE},
            marker={"symbol": "square", "size": 9},
            error_y=error_bars([Spread.of(some.tolist()) for some in known]),
            hovertemplate="%{y:.3f} s",
        )
    )
    return drawing
