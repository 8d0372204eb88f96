"""Pieces of HTML for notebooks: every text escaped, readable on dark pages and on light ones.

Text and lines take the page's own colour (`currentColor`); areas take mid-tones of Paul Tol's bright palette
(personal.sron.nl/~pault), which both pages carry and which the colour-blind can distinguish.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from html import escape
from typing import Any, NamedTuple

BLUE, CYAN, GREEN, YELLOW, RED, PURPLE = "#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377"
COLOURS = (BLUE, CYAN, GREEN, YELLOW, RED, PURPLE)
"""In the order in which the parts of a bar take them."""
GREY = "#999999"
WARNING = "var(--bad, #d9534f)"
"""A red of the page, if its theme has one."""
LEFT, RIGHT = "text-align:left", "text-align:right;white-space:nowrap"
WRAPS = "white-space:normal;overflow-wrap:anywhere"

BAR_UNITS = 1000.0
PART_UNITS_MIN = 3.0
"""Least width of a part of a bar, so that it can be seen and pointed at."""
PARTS_MAX = 200
"""Most parts that a bar shows: the last ones."""
VALUES_MAX = 8
"""Of more values than these only the number is shown."""


class Markup(str):
    """HTML that is made already, and is not escaped again."""

    __slots__ = ()


def tag(name: str, *content: object, **attributes: object) -> Markup:
    """Return one element. Content that is not Markup is escaped; an attribute that is None is left out.

    Underscores in names of attributes become hyphens, except a last one, which is dropped (`class_`).
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{join(content)}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    """Return the parts one after the other; those that are not Markup are escaped."""
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
            *(tag("td", c, style=RIGHT if i in right else LEFT) for i, c in enumerate(row)),
            title=titles[number] if titles else None,
        )
        for number, row in enumerate(rows)
    ]
    top = (
        [tag("tr", *(tag("th", c, style=RIGHT if i in right else LEFT) for i, c in enumerate(head)))]
        if head
        else []
    )
    return tag("table", *top, *lines)


def facts(pairs: Iterable[tuple[str, object]]) -> Markup:
    """Return a table of names and values, which wrap on a narrow page."""
    return table(((name, tag("span", value, style=WRAPS)) for name, value in pairs), right=(1,))


def titled(title: object, pairs: Iterable[tuple[str, object]]) -> Markup:
    """Return a table of names and values below a title."""
    return tag("div", tag("b", title), facts(pairs))


def options(title: object, given: Any, texts: Mapping[str, object] | None = None) -> Markup:
    """Return a table of the fields of a dataclass below a title; values that are not the default are bold.

    `texts` maps names to the text shown instead of a value.
    """
    rows = []
    for field in fields(given):
        value = getattr(given, field.name)
        text = shown((texts or {}).get(field.name, value))
        rows.append((field.name, text if _is_default(field, value) else tag("b", text)))
    return titled(title, rows)


def shown(value: object) -> str:
    """Return a value as a person reads it: thousands apart, many values counted, a dataclass without its defaults."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.6g}"
    if is_dataclass(value) and not isinstance(value, type):
        given = [(f, getattr(value, f.name)) for f in fields(value) if f.repr]
        listed = ", ".join(f"{f.name}={shown(v)}" for f, v in given if not _is_default(f, v))
        return f"{type(value).__name__}({listed})"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return f"{len(value):,} values" if len(value) > VALUES_MAX else ", ".join(map(shown, value))
    return str(value)


def _is_default(field: Field[Any], value: object) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return type(default) is type(value) and bool(default == value)


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


def bar(parts: Sequence[Part], marks: Iterable[Mark] = (), *, label: str | None = None) -> Markup:
    """Return parts side by side, with marks across them; empty without a part. `label` describes it.

    The last 200 parts are drawn, and only marks on those. The bar is made of plain elements: the sanitizer of an
    untrusted notebook keeps those, and would turn a drawing (SVG) into loose words.
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
    placed: dict[int, list[tuple[float, Mark]]] = {}
    for mark in marks:
        if 0 <= mark.part - hidden < len(shown):
            at = min(max(mark.fraction, 0.0), 1.0)
            placed.setdefault(mark.part - hidden, []).append((at, mark))
    cells = []
    for index, part in enumerate(shown):
        width, reached = edges[index + 1] - edges[index], 0.0
        for at, mark in sorted(placed.get(index, ()), key=lambda pair: pair[0]):
            cells += [_cell(part, (at - reached) * width, reached > 0), _line(mark)]
            reached = at
        cells.append(_cell(part, (1 - reached) * width, reached > 0))
    style = "width:36em;max-width:100%;height:28px;line-height:28px;white-space:nowrap;overflow:hidden"
    return tag("div", *cells, style=style, role="img", aria_label=label or f"bar of {len(parts):,} parts")


def column_chart(heights: Sequence[tuple[float, str]], *, label: str) -> Markup:
    """Return columns as high as their values, with `label` below; a text shows when its column is pointed at."""
    most = max((value for value, _ in heights), default=0.0) or 1.0
    look = f"display:inline-block;vertical-align:bottom;background-color:{BLUE};width:{100 / max(len(heights), 1):.3f}%"
    cells = [
        tag("span", title=text, style=f"{look};height:{value / most * 48:.0f}px") for value, text in heights
    ]
    style = "width:36em;max-width:100%;height:48px;line-height:48px;white-space:nowrap;overflow:hidden"
    return tag("div", tag("div", *cells, style=style, role="img", aria_label=label), tag("small", label))


def _cell(part: Part, units: float, continued: bool) -> Markup:
    """Return a part, or a piece of it; a piece that follows another has no edge."""
    if units <= 0 and continued:
        return Markup()
    edge = "" if continued else ";border-left:1px solid currentColor"
    return tag(
        "span",
        title=part.title,
        style=f"display:inline-block;box-sizing:border-box;vertical-align:middle;height:20px;"
        f"width:{units / BAR_UNITS * 100:.4f}%;background-color:{part.colour}{edge}",
    )


def _line(mark: Mark) -> Markup:
    return tag(
        "span",
        title=mark.title,
        style="display:inline-block;vertical-align:middle;height:28px;width:3px;margin-left:-2px;"
        f"margin-right:-1px;background-color:{mark.colour}",
    )
