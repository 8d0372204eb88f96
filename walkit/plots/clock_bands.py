"""One clock for several panels: which part of it is shown, and the configurations of a load as labelled bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from walkit.plots.style import NEUTRAL, go

OPEN_END_S = 60.0
LATE = 0.6
"""From this part of the clock on there may be no room for words after the beginning of a band."""
Where = Literal["left", "begin", "right"]


class Band(NamedTuple):
    """A configuration of the load, and when it began, seconds on the clock of its series; the next one ends it."""

    begin_s: float
    text: str


class OnClock(Protocol):
    """A series on the clock."""

    @property
    def time_s(self) -> npt.NDArray[np.float64]:
        """Its points, seconds, rising."""

    @property
    def bands(self) -> Sequence[Band]:
        """Its configurations."""


def set_clock(
    drawing: go.Figure,
    series: Sequence[OnClock],
    window_s: float | None,
    clocks: Sequence[str],
    *,
    band_axes: Sequence[tuple[str, str]],
    words: bool = False,
) -> None:
    """Set the range of the clocks, and the bands of the configurations; with `words` they are labelled."""
    begin_s, end_s = span_of(series, window_s)
    layout: dict[str, Any] = {
        name: drawing.layout[name].to_plotly_json() | {"range": [begin_s, end_s]} for name in clocks
    }
    in_view = [
        (index, band, ends_s)
        for index, (band, ends_s) in enumerate(_bands(series, end_s))
        if ends_s > begin_s and band.begin_s < end_s
    ]
    late_s = begin_s + LATE * (end_s - begin_s)
    labels: list[tuple[int, Band, Where]] = [
        (index, band, "left" if band.begin_s <= begin_s else "right" if band.begin_s > late_s else "begin")
        for index, band, _ in in_view
    ]
    # Bands change rarely, and a shape costs more than a curve: they are only set after a change.
    drawn = (in_view, labels)
    if getattr(drawing, "_bands_drawn", None) != drawn:
        drawing._bands_drawn = drawn
        layout["shapes"] = [
            _band_shape(axes, band.begin_s, ends_s)
            for axes in band_axes
            for index, band, ends_s in in_view
            if index % 2
        ]
        if words:
            layout["annotations"] = [_band_label(*each) for each in labels]
    drawing.update_layout(layout, overwrite=True)


def span_of(series: Sequence[OnClock], window_s: float | None) -> tuple[float, float]:
    """Return where the clock begins and ends, in seconds."""
    ends = [float(one.time_s[-1]) for one in series if len(one.time_s)]
    begins = [float(one.time_s[0]) for one in series if len(one.time_s)]
    end_s = max(ends, default=1.0)
    begin_s = min(begins, default=0.0)
    if window_s is not None:
        begin_s = max(begin_s, end_s - window_s)
    return begin_s, max(end_s, begin_s + 1.0)


def _band_shape(axes: tuple[str, str], begin_s: float, end_s: float) -> Mapping[str, Any]:
    """Return a rectangle over the whole height of a panel. Every second configuration has one."""
    return {
        "type": "rect",
        "xref": axes[0],
        "yref": f"{axes[1]} domain",
        "x0": begin_s,
        "x1": end_s,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": {"width": 0},
        "fillcolor": "rgba(128,128,128,0.10)",
    }


def _band_label(index: int, band: Band, where: Where) -> Mapping[str, Any]:
    """Return the words of a configuration: where it begins, or at an edge of the panel."""
    return {
        "text": escape(band.text),
        "x": {"left": 0.0, "begin": band.begin_s, "right": 1.0}[where],
        "xref": "x" if where == "begin" else "x domain",
        "y": 1,
        "yref": "y domain",
        "xanchor": "right" if where == "right" else "left",
        "yanchor": "bottom",
        "yshift": 13 * (index % 2),
        "showarrow": False,
        "font": {"size": 11, "color": NEUTRAL},
    }


def _bands(series: Sequence[OnClock], end_s: float) -> list[tuple[Band, float]]:
    """Return the configurations in the order of their beginnings, each with its end; one that continues is one band."""
    known = sorted({band for one in series for band in one.bands})
    bands = [band for index, band in enumerate(known) if index == 0 or band.text != known[index - 1].text]
    # The last one reaches beyond the end, so that it does not change with each point.
    begins = [band.begin_s for band in bands] + [end_s - end_s % OPEN_END_S + OPEN_END_S]
    return list(zip(bands, begins[1:], strict=True))
