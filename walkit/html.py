"""Pieces of HTML for notebooks: every text escaped, readable on dark pages and on light ones.

Text and lines take the page's own colour (`currentColor`); areas take mid-tones of Paul Tol's bright palette
(personal.sron.nl/~pault), which both pages carry and which the colour-blind can tell apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import NamedTuple

BLUE, CYAN, GREEN, YELLOW, RED, PURPLE = "#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377"
COLOURS = (BLUE, CYAN, GREEN, YELLOW, RED, PURPLE)
"""In the order in which the parts of a bar take them."""
GREY = "#8888"
WARNING = "#d9534f"

BAR_UNITS = 1000.0
PART_UNITS_MIN = 3.0
"""Least width of a part of a bar, so that it can be seen and pointed at."""
PARTS_MAX = 200
"""Most parts that a bar shows: the last ones."""


class Markup(str):
    """HTML that is made already, and is not escaped again."""

    __slots__ = ()


def tag(name: str, *content: object, **attributes: object) -> Markup:
    """Return one element. Content that is no Markup is escaped; an attribute that is None is left out.

    Underscores in names of attributes become hyphens, but for a last one, which is dropped (`class_`).
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{join(content)}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    """Return the parts one after the other; those that are no Markup are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else escape(str(part)) for part in parts))


def table(
    rows: Iterable[Sequence[object]],
    head: Sequence[object] = (),
    *,
    right: Collection[int] = (),
    titles: Sequence[str] = (),
) -> Markup:
    """Return a table; the columns in `right` are set to the right, `titles` show when a row is pointed at."""
    lines = [
        tag(
            "tr",
            *(
                tag("td", c, style=f"text-align:{'right' if i in right else 'left'}")
                for i, c in enumerate(row)
            ),
            title=titles[number] if titles else None,
        )
        for number, row in enumerate(rows)
    ]
    top = [tag("tr", *(tag("th", cell) for cell in head))] if head else []
    return tag("table", *top, *lines)


def facts(pairs: Iterable[tuple[str, object]]) -> Markup:
    """Return a table of names and values."""
    return table(pairs, right=(1,))


def red_lines(texts: Iterable[str]) -> Markup:
    """Return a red line for each text."""
    return join(tag("div", text, style=f"color:{WARNING};font-weight:bold") for text in texts)


def swatch(colour: str) -> Markup:
    """Return a small square in the colour, for a legend."""
    return tag("span", "■", style=f"color:{colour}")


class Part(NamedTuple):
    """One part of a bar, as wide as its share of all sizes; `title` shows when it is pointed at."""

    size: float
    colour: str
    title: str


class Mark(NamedTuple):
    """A line across a bar: at a fraction (0 left, 1 right) of the part with this index."""

    part: int
    fraction: float
    title: str
    colour: str = "currentColor"


def bar(parts: Sequence[Part], marks: Iterable[Mark] = ()) -> Markup:
    """Return parts side by side as a drawing (SVG), with marks across it; nothing where there is no part.

    Of more than 200 parts the last are drawn, and only marks on those.
    """
    hidden = max(len(parts) - PARTS_MAX, 0)
    shown = parts[hidden:]
    if not shown:
        return Markup()
    total = sum(part.size for part in shown) or 1
    widths = [max(part.size / total * BAR_UNITS, PART_UNITS_MIN) for part in shown]
    scale = BAR_UNITS / sum(widths)
    edges = [0.0]
    for width in widths:
        edges.append(edges[-1] + width * scale)
    boxes = [
        tag(
            "rect",
            tag("title", part.title),
            x=f"{edges[i]:.2f}",
            y=4,
            width=f"{edges[i + 1] - edges[i]:.2f}",
            height=20,
            fill=part.colour,
            stroke="currentColor",
            stroke_opacity="0.35",
            vector_effect="non-scaling-stroke",
        )
        for i, part in enumerate(shown)
    ]
    lines = [_line(mark, edges, mark.part - hidden) for mark in marks if 0 <= mark.part - hidden < len(shown)]
    return tag(
        "svg",
        *boxes,
        *lines,
        viewBox=f"0 0 {BAR_UNITS:g} 28",
        preserveAspectRatio="none",
        style="width:36em;max-width:100%;height:1.9em;display:block",
        role="img",
    )


def _line(mark: Mark, edges: Sequence[float], part: int) -> Markup:
    x = f"{edges[part] + (edges[part + 1] - edges[part]) * min(max(mark.fraction, 0.0), 1.0):.2f}"
    return tag(
        "line",
        tag("title", mark.title),
        x1=x,
        x2=x,
        y1=0,
        y2=28,
        stroke=mark.colour,
        stroke_width=3,
        vector_effect="non-scaling-stroke",
    )
