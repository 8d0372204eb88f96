"""A figure as a static picture (SVG), for viewers in which no script runs.

It knows the elements of this room's figures: lines, points, bars, cells, lines across, words. It draws them as plotly
does, closely enough to read the same values off, and needs no browser. Hovering, zooming and modes of plotly that no
figure here uses are not in it.
"""

from __future__ import annotations

import math
import re
from html import unescape
from typing import Any

import numpy as np

from walkit._internal.html import Markup, join, tag
from walkit.plots.picture_axes import PictureAxis, numbers
from walkit.plots.picture_traces import DASHES, TracePainter, plain, short, whiskers

WIDTH_PX = 900
CHARACTER_PX = 7.0


def svg_of(figure: Any, *, width: int = WIDTH_PX) -> str:
    """Return the picture of a figure as the text of an SVG file, `width` pixels wide and as high as its layout says."""
    return _Picture(figure, width).draw()


class _Picture:
    """One picture while it is drawn."""

    def __init__(self, figure: Any, width: int) -> None:
        self.figure, self.width = figure, width
        layout = figure.layout
        self.height = int(layout.height or 420)
        self.font = layout.font.color or layout.template.layout.font.color or "#808080"
        self.traces = TracePainter(figure)
        margin = layout.margin
        labels = max((len(label) for label in self._y_labels()), default=4)
        self.left = max(margin.l or 60, min(labels * CHARACTER_PX + 36, width * 0.4))
        self.right, self.top = width - (margin.r or 20) - 14, margin.t or 60
        self.legend, legend_px = self._legend()
        below = max(margin.b or 60, legend_px + 62)
        self.bottom = max(self.height - below, self.top + 60)
        self.height = int(self.bottom + below)
        self.axes: dict[str, PictureAxis] = {}
        self._make_axes()

    def draw(self) -> str:
        """Return the SVG."""
        body = [self._grid(axis) for axis in self.axes.items()]
        body += [self._shape(shape) for shape in self.figure.layout.shapes if shape.layer == "below"]
        body += [self._trace(trace) for trace in self.figure.data]
        body += [self._shape(shape) for shape in self.figure.layout.shapes if shape.layer != "below"]
        body += [self._annotation(note) for note in self.figure.layout.annotations]
        body += [self._title(), self.legend]
        picture = tag(
            "svg",
            tag("defs", *self.traces.patterns.values()),
            *body,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {self.width} {self.height}",
            width=self.width,
            height=self.height,
            font_family=self.figure.layout.font.family or "system-ui, sans-serif",
            font_size=12,
            fill=self.font,
        )
        return str(picture)

    # -- axes

    def _y_labels(self) -> list[str]:
        found = []
        for axis in self.figure.select_yaxes():
            found += list(axis.ticktext or axis.categoryarray or ())
        for trace in self.figure.data:
            found += [
                y
                for y in (() if trace.type == "heatmap" or trace.y is None else trace.y)
                if isinstance(y, str)
            ]
        return [unescape(str(label)) for label in found]

    def _make_axes(self) -> None:
        layout = self.figure.layout
        wide, high = self.right - self.left, self.bottom - self.top
        for settings in [*self.figure.select_xaxes(), *self.figure.select_yaxes()]:
            name = settings.plotly_name.replace("axis", "")
            low, end = settings.domain or (0, 1)
            if name[0] == "x":
                axis = PictureAxis(settings, begin_px=self.left + low * wide, end_px=self.left + end * wide)
            else:
                axis = PictureAxis(
                    settings, begin_px=self.bottom - low * high, end_px=self.bottom - end * high
                )
            self.axes[name] = axis
        for name in ("x", "y"):
            if name not in self.axes:
                settings = layout[f"{name}axis"]
                ends = (self.left, self.right) if name == "x" else (self.bottom, self.top)
                self.axes[name] = PictureAxis(settings, begin_px=ends[0], end_px=ends[1])
        for trace in self.figure.data:
            self._see(trace)
        for axis in self.axes.values():
            axis.settle()
        for name, axis in self.axes.items():
            root = axis.settings.matches or name
            group = [a for other, a in self.axes.items() if (a.settings.matches or other) == root]
            if len(group) > 1:
                axis.share(group)

    def _see(self, trace: Any) -> None:
        x, y = self.axes[trace.xaxis or "x"], self.axes[trace.yaxis or "y"]
        if trace.type == "heatmap":
            rows, columns = np.asarray(trace.z).shape
            x.grid_like = y.grid_like = True
            x.see([0, columns - 1])
            y.see([0, rows - 1])
        elif trace.type == "bar" and trace.orientation == "h":
            bases = numbers(trace.base) if trace.base is not None else [0.0] * len(trace.x or ())
            y.see(trace.y)
            x.see([*bases, *(b + w for b, w in zip(bases, numbers(trace.x), strict=True))])
        elif trace.type == "bar":
            x.see(trace.x)
            y.see(self.traces.tops(trace), zero=True)
        else:
            x.see(trace.x)
            y.see(trace.y, zero=trace.fill == "tozeroy")
            y.see([end for ends in whiskers(trace) for end in ends])

    def _grid(self, item: tuple[str, PictureAxis]) -> Markup:
        name, axis = item
        if axis.settings.visible is False:
            return Markup()
        across = self.axes[self._other(name)]
        begin, end = sorted((across.begin_px, across.end_px))
        parts = []
        above = axis.settings.side == "top"
        for at, words in axis.ticks():
            if name[0] == "x":
                line = {"x1": short(at), "x2": short(at), "y1": short(begin), "y2": short(end)}
                label = {
                    "x": short(at),
                    "y": short(begin - 6 if above else end + 16),
                    "text_anchor": "middle",
                }
            else:
                line = {"x1": short(begin), "x2": short(end), "y1": short(at), "y2": short(at)}
                label = {"x": short(begin - 7), "y": short(at + 4), "text_anchor": "end"}
            if axis.settings.showgrid is not False and not axis.is_category:
                parts.append(tag("line", **line, stroke="#808080", stroke_opacity="0.25"))
            if axis.settings.showticklabels is not False:
                parts.append(tag("text", unescape(words), **label))
        title = axis.settings.title.text
        if title:
            middle = (axis.begin_px + axis.end_px) / 2
            if name[0] == "x":
                parts.append(
                    tag("text", plain(title), x=short(middle), y=short(end + 36), text_anchor="middle")
                )
            else:
                turned = f"translate(16 {short(middle)}) rotate(-90)"
                beside = f"translate({short(begin - 52)} {short(middle)}) rotate(-90)"
                place = turned if begin < self.left + 5 else beside
                parts.append(tag("text", plain(title), transform=place, text_anchor="middle"))
        return join(parts)

    def _other(self, name: str) -> str:
        anchor = self.axes[name].settings.anchor
        if anchor in self.axes:
            return str(anchor)
        return ("y" if name[0] == "x" else "x") + name[1:]

    def _trace(self, trace: Any) -> Markup:
        return self.traces.draw(trace, self.axes[trace.xaxis or "x"], self.axes[trace.yaxis or "y"])

    # -- axes, legend and words

    def _where(self, ref: str | None, value: Any, default: str, *, note: bool = False) -> float:
        name = ref or default
        if name == "paper":
            ends = (self.left, self.right) if default == "x" else (self.bottom, self.top)
            return ends[0] + float(value) * (ends[1] - ends[0])
        axis = self.axes[name.removesuffix(" domain")]
        if name.endswith(" domain"):
            return axis.begin_px + float(value) * (axis.end_px - axis.begin_px)
        if axis.is_category and not isinstance(value, str):
            return axis.place_of_range(float(value))
        return axis.place_of_range(float(value)) if note and axis.is_log else axis.place(value)

    def _shape(self, shape: Any) -> Markup:
        x0, x1 = (self._where(shape.xref, v, "x") for v in (shape.x0, shape.x1))
        y0, y1 = (self._where(shape.yref, v, "y") for v in (shape.y0, shape.y1))
        if not all(map(math.isfinite, (x0, x1, y0, y1))):
            return Markup()
        look = {
            "stroke": shape.line.color or "#808080",
            "stroke_width": shape.line.width or 1,
            "stroke_dasharray": DASHES.get(shape.line.dash or ""),
        }
        if shape.type == "rect":
            box = {
                "x": short(min(x0, x1)),
                "y": short(min(y0, y1)),
                "width": short(abs(x1 - x0)),
                "height": short(abs(y1 - y0)),
            }
            return tag("rect", **box, fill="none", **look)
        return tag("line", x1=short(x0), x2=short(x1), y1=short(y0), y2=short(y1), **look)

    def _annotation(self, note: Any) -> Markup:
        x = self._where(note.xref, note.x, "x", note=True) + (note.xshift or 0)
        y = self._where(note.yref, note.y, "y", note=True) - (note.yshift or 0)
        anchor = {"left": "start", "right": "end"}.get(note.xanchor or "", "middle")
        down = {"bottom": -3, "top": 12}.get(note.yanchor or "", 4)
        size = note.font.size or 12
        return tag(
            "text", plain(note.text), x=short(x), y=short(y + down), text_anchor=anchor, font_size=size
        )

    def _title(self) -> Markup:
        parts, y = [], 12.0
        for number, line in enumerate((self.figure.layout.title.text or "").split("<br>")):
            size = 16 if number == 0 and "font-size" not in line else 12
            y += size * 1.4
            painted = re.search(r"color:(#\w+)", line)
            look = {"fill": painted[1] if painted else None, "font_weight": "bold" if "<b>" in line else None}
            parts.append(tag("text", plain(line), x=9, y=short(y), font_size=size, **look))
        return join(parts)

    def _legend(self) -> tuple[Markup, float]:
        """Return the legend, at the lower end of the picture, and how high it is."""
        layout = self.figure.layout
        named = [t for t in self.figure.data if t.name and t.showlegend is not False]
        if layout.showlegend is False or (len(named) < 2 and not any(t.showlegend for t in named)):
            return Markup(), 0.0
        rows: list[list[tuple[float, Any]]] = [[]]
        at = 12.0
        for trace in named:
            need = 40 + len(plain(trace.name)) * CHARACTER_PX
            if at + need > self.width and rows[-1]:
                rows.append([])
                at = 12.0
            rows[-1].append((at, trace))
            at += need
        parts, high = [], 20.0 * len(rows)
        for number, row in enumerate(rows):
            y = self.height - high + 20.0 * number + 8
            for x, trace in row:
                parts += [
                    self.traces.sample(trace, x, y),
                    tag("text", plain(trace.name), x=short(x + 26), y=short(y + 4)),
                ]
        return join(parts), high
