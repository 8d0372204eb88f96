"""The traces of a figure's static picture: lines, points, bars and cells as SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import unescape
from typing import Any

import numpy as np

from walkit._internal.html import Markup, join, tag
from walkit.plots.picture_axes import PictureAxis, numbers

DASHES = {"dash": "9 6", "dot": "2 4", "dashdot": "9 4 2 4", "longdash": "14 6"}
_HATCHES = {
    "/": "M0 8L8 0", "\\": "M0 0L8 8", "x": "M0 8L8 0M0 0L8 8", "-": "M0 4L8 4", "|": "M4 0L4 8",
    "+": "M0 4L8 4M4 0L4 8", ".": "M3 4L5 4",
}  # fmt: skip
POINTS_MAX = 4000
"""A line of more points is thinned: a picture has no room to show them."""


class TracePainter:
    """Draws the traces of one figure, and keeps the hatches that they use."""

    def __init__(self, figure: Any) -> None:
        self._data = figure.data
        self._bar_gap = figure.layout.bargap
        self._is_overlaid = figure.layout.barmode == "overlay"
        self.patterns: dict[tuple[str, str], Markup] = {}

    def tops(self, trace: Any) -> list[float]:
        """Return the upper ends of a trace's bars, on top of those before it on the same axes, unless they overlay."""
        if self._is_overlaid:
            return numbers(trace.y)
        heights: dict[Any, float] = {}
        for other in self._data:
            if other.type != "bar" or (other.xaxis, other.yaxis) != (trace.xaxis, trace.yaxis):
                continue
            for at, value in zip(other.x, numbers(other.y), strict=True):
                heights[at] = heights.get(at, 0.0) + (value if math.isfinite(value) else 0.0)
            if other is trace:
                break
        return [heights[at] for at in trace.x]

    def draw(self, trace: Any, x: PictureAxis, y: PictureAxis) -> Markup:
        """Return a trace drawn between its axes."""
        if trace.type == "heatmap":
            return self._cells(trace, x, y)
        if trace.type == "bar":
            return self._bars(trace, x, y)
        return self._points(trace, x, y)

    def _points(self, trace: Any, x: PictureAxis, y: PictureAxis) -> Markup:
        if trace.x is None or trace.y is None:
            return Markup()
        places = [(x.place(a), y.place(b)) for a, b in zip(trace.x, trace.y, strict=False)]
        paint = trace.line.color or trace.marker.color
        mode, parts = trace.mode or "lines", []
        colour = paint if isinstance(paint, str) else "#808080"
        left, right = sorted((x.begin_px, x.end_px))
        if "lines" in mode:
            for run in _unbroken(places, left, right):
                path = _path(run[:: max(len(run) // POINTS_MAX, 1)], trace.line.shape == "hv")
                if trace.fill == "tozeroy":
                    base = y.place(0) if not y.is_log else y.begin_px
                    area = f"{path}L{short(run[-1][0])} {short(base)}L{short(run[0][0])} {short(base)}Z"
                    parts.append(tag("path", d=area, fill=colour, fill_opacity="0.35"))
                dash = DASHES.get(trace.line.dash or "")
                width = trace.line.width or 2
                parts.append(
                    tag("path", d=path, fill="none", stroke=colour, stroke_width=width, stroke_dasharray=dash)
                )
        for (px, _), (low, high) in zip(places, whiskers(trace), strict=False):
            ends = {"x1": short(px), "x2": short(px), "y1": short(y.place(low)), "y2": short(y.place(high))}
            if low != high and math.isfinite(px):
                parts.append(tag("line", **ends, stroke=colour, stroke_width=1.5))
        if "markers" in mode:
            parts += self._markers(trace, places, colour, left, right)
        return join(parts)

    def _markers(
        self, trace: Any, places: Sequence[tuple[float, float]], colour: str, left: float, right: float
    ) -> list[Markup]:
        parts, size = (
            [],
            float(trace.marker.size or 6) if not isinstance(trace.marker.size, Sequence) else 6.0,
        )
        for number, (px, py) in enumerate(places):
            if not (math.isfinite(px) and math.isfinite(py) and left - 1 <= px <= right + 1):
                continue
            symbol = str(_one(trace.marker.symbol, number) or "circle")
            paint = str(_one(trace.marker.color, number) or colour)
            half = size / 2
            if symbol in ("line-ns-open", "line-ew-open", "x"):
                whole, over = short(size), short(-size)
                path = {
                    "line-ns-open": f"M{short(px)} {short(py - half)}v{whole}",
                    "line-ew-open": f"M{short(px - half)} {short(py)}h{whole}",
                    "x": f"M{short(px - half)} {short(py - half)}l{whole} {whole}m0 {over}l{over} {whole}",
                }[symbol]
                parts.append(tag("path", d=path, stroke=paint, stroke_width=2.5, fill="none"))
                continue
            hollow = symbol.endswith("-open")
            look = {"fill": "none" if hollow else paint, "stroke": paint, "stroke_width": 2 if hollow else 0}
            if symbol.startswith("square"):
                box = {"x": short(px - half), "y": short(py - half), "width": size, "height": size}
                parts.append(tag("rect", **box, **look))
            else:
                parts.append(tag("circle", cx=short(px), cy=short(py), r=half, **look))
        return parts

    def _bars(self, trace: Any, x: PictureAxis, y: PictureAxis) -> Markup:
        gap = self._bar_gap
        thick = 1 - (0.2 if gap is None else gap)
        across = trace.orientation == "h"
        parts, names, sizes = [], trace.y if across else trace.x, numbers(trace.x if across else trace.y)
        along, rows = (x, y) if across else (y, x)
        if across:
            lows = numbers(trace.base) if trace.base is not None else [0.0] * len(sizes)
        else:
            lows = [top - size for top, size in zip(self.tops(trace), sizes, strict=True)]
        left, right = sorted((along.begin_px, along.end_px))
        step = abs(rows.place_of_range(1) - rows.place_of_range(0)) * thick
        for number, (name, low, size) in enumerate(
            zip(names if names is not None else (), lows, sizes, strict=True)
        ):
            base = along.begin_px if along.is_log else along.place(low)
            ends = sorted((base, along.place(low + size)))
            begin, end = (min(max(e, left), right) for e in ends)
            middle = rows.place(name)
            if not math.isfinite(middle) or end < begin or (begin == end and not left < begin < right):
                continue
            span, width = (short(begin), short(max(end - begin, 0.6)))
            where = (
                {"x": span, "width": width, "y": short(middle - step / 2), "height": short(step)}
                if across
                else {"y": span, "height": width, "x": short(middle - step / 2), "width": short(step)}
            )
            paint, shape = (
                str(_one(trace.marker.color, number)),
                str(_one(trace.marker.pattern.shape, number) or ""),
            )
            edge = _one(trace.marker.line.color, number)
            opacity = _one(trace.marker.opacity, number)
            parts.append(
                tag("rect", **where, fill=self._fill(paint, shape), fill_opacity=opacity, stroke=edge)
            )
            if trace.text is not None and trace.textposition == "outside":
                place = (
                    {"x": short(end + 5), "y": short(middle + 4)}
                    if across
                    else {"x": short(middle), "y": short(begin - 5)}
                )
                parts.append(tag("text", plain(str(_one(trace.text, number))), **place))
        return join(parts)

    def _fill(self, paint: str, shape: str) -> str:
        if shape not in _HATCHES:
            return paint
        made = self.patterns.get((paint, shape))
        name = f"hatch{list(self.patterns).index((paint, shape)) if made else len(self.patterns)}"
        if made is None:
            self.patterns[paint, shape] = tag(
                "pattern",
                tag("rect", width=8, height=8, fill=paint),
                tag("path", d=_HATCHES[shape], stroke="#fff", stroke_opacity="0.75", stroke_width=1.6),
                id=name,
                width=8,
                height=8,
                patternUnits="userSpaceOnUse",
            )
        return f"url(#{name})"

    def _cells(self, trace: Any, x: PictureAxis, y: PictureAxis) -> Markup:
        z, texts = np.asarray(trace.z, dtype=float), np.asarray(trace.text, dtype=object)
        scale = [(float(at), str(paint)) for at, paint in trace.colorscale]
        wide, high = (
            abs(axis.place(1) - axis.place(0)) - gap for axis, gap in ((x, trace.xgap), (y, trace.ygap))
        )
        parts = []
        for row, column in zip(*np.nonzero(np.isfinite(z)), strict=True):
            share = (z[row, column] - trace.zmin) / ((trace.zmax - trace.zmin) or 1)
            paint = [stop for at, stop in scale if at <= share][-1]  # a band begins where the last ended
            px, py = x.place(int(column)), y.place(int(row))
            box = {
                "x": short(px - wide / 2),
                "y": short(py - high / 2),
                "width": short(wide),
                "height": short(high),
            }
            red, green, blue = bytes.fromhex(paint[1:])
            ink = "#fff" if 0.299 * red + 0.587 * green + 0.114 * blue < 100 else "#111"
            look = {"text_anchor": "middle", "font_family": "monospace", "fill": ink}
            parts.append(tag("rect", **box, fill=paint))
            parts.append(tag("text", texts[row, column], x=short(px), y=short(py + 4), **look))
        return join(parts)

    def sample(self, trace: Any, x: float, y: float) -> Markup:
        """Return the sample of a trace in the legend."""
        paint = trace.line.color if trace.type == "scatter" and trace.line.color else trace.marker.color
        colour = str(_one(paint, 0) or "#808080")
        if trace.type == "scatter" and "lines" in (trace.mode or "lines"):
            look = {
                "stroke": colour,
                "stroke_width": 2,
                "stroke_dasharray": DASHES.get(trace.line.dash or ""),
            }
            return tag("line", x1=short(x), x2=short(x + 22), y1=short(y), y2=short(y), **look)
        shape = str(_one(trace.marker.pattern.shape, 0) or "") if trace.type == "bar" else ""
        return tag(
            "rect", x=short(x + 5), y=short(y - 6), width=12, height=12, fill=self._fill(colour, shape)
        )


def _one(given: Any, number: int) -> Any:
    """Return the element for one point of what may be one value for all."""
    if given is None or isinstance(given, str | int | float):
        return given
    return given[number] if number < len(given) else None


def whiskers(trace: Any) -> list[tuple[float, float]]:
    """Return both ends of each whisker of a trace, if it has any."""
    bars = trace.error_y if trace.type == "scatter" else None
    if bars is None or bars.array is None or bars.visible is False:
        return []
    ends = zip(numbers(trace.y), numbers(bars.arrayminus), numbers(bars.array), strict=True)
    return [(at - low, at + high) for at, low, high in ends]


def _unbroken(
    places: Sequence[tuple[float, float]], left: float, right: float
) -> list[list[tuple[float, float]]]:
    """Return the stretches of a line between its gaps; points outside of the axis are gaps, too."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in places:
        if math.isfinite(x) and math.isfinite(y) and left - 1 <= x <= right + 1:
            runs[-1].append((x, y))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _path(places: Sequence[tuple[float, float]], stepped: bool) -> str:
    (x, y), *rest = places
    parts = [f"M{short(x)} {short(y)}"]
    for px, py in rest:
        parts.append(f"H{short(px)}V{short(py)}" if stepped else f"L{short(px)} {short(py)}")
    return "".join(parts)


def plain(text: str) -> str:
    """Return the words of plotly's bit of HTML."""
    return unescape(re.sub(r"<[^>]*>", " ", text)).strip()


def short(value: float) -> str:
    """Return a number of pixels with as many digits as are seen."""
    return f"{value:.1f}".removesuffix(".0")
