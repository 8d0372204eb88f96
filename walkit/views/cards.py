"""Stat cards: a number, its meaning, and a small curve of its past. Plain HTML with SVG, no panel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from walkit._internal.html import Markup, tag
from walkit.plots.units import count_text

Float64Array = npt.NDArray[np.float64]

SPARK_POINTS_MAX = 120
WIDTH, HEIGHT = 120, 26

CARDS_CSS = """
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 8px; color: var(--ink); }
.card { border: 1px solid var(--line); border-radius: 6px; background: var(--raised); padding: 4px 10px; min-width: 0; }
.card h2 { font-size: 12px; font-weight: 500; color: var(--soft); margin: 0; overflow-wrap: anywhere; }
.card .line { display: flex; align-items: center; gap: 8px; flex-wrap: wrap; }
.card .value { font-size: 20px; font-variant-numeric: tabular-nums; line-height: 1.25; }
.card .place, .card .note { font-size: 11px; color: var(--soft); overflow-wrap: anywhere; }
.card .note { margin: 0; line-height: 1.25; }
.card svg { flex: 1 1 60px; max-width: 160px; height: 24px; min-width: 50px; }
.card polyline { fill: none; stroke: var(--accent); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
"""


@dataclass(frozen=True, kw_only=True)
class CardRow:
    """The number of one place, and its earlier values, oldest first; nan if unknown."""

    place: str
    value: str
    curve: Float64Array
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A measured quantity, and a row for each place."""

    title: str
    meaning: str
    rows: Sequence[CardRow]


def cards_html(cards: Iterable[Card]) -> str:
    """Return the cards side by side, two in a row on a narrow page."""
    return tag("style", Markup(CARDS_CSS)) + tag("div", *map(_card_html, cards), class_="cards")


def _card_html(card: Card) -> Markup:
    rows: list[Markup] = []
    for row in card.rows:
        place = row.place if len(card.rows) > 1 else ""
        curve = spark_svg(row.curve, spark_words(", ".join(filter(None, (card.title, place))), row.curve))
        named = [tag("span", place, class_="place")] if place else []
        rows.append(tag("div", tag("span", row.value, class_="value"), *named, curve, class_="line"))
        if row.note:
            rows.append(tag("p", row.note, class_="note"))
    return tag("section", tag("h2", card.title, title=card.meaning), *rows, class_="card")


def spark_words(what: str, curve: Float64Array) -> str:
    """Return a small curve in words."""
    seen = curve[np.isfinite(curve)]
    if not len(seen):
        return f"{what}: nothing seen yet"
    low, high, last = (count_text(float(number)) for number in (seen.min(), seen.max(), seen[-1]))
    return f"{what}: last {last}, between {low} and {high}"


def spark_svg(curve: Float64Array, words: str) -> Markup:
    """Return the newest values as a small curve from 0 up, with gaps for unknown values."""
    curve = curve[-SPARK_POINTS_MAX:]
    seen = curve[np.isfinite(curve)]
    top = float(seen.max()) if len(seen) else 0.0
    step = WIDTH / max(len(curve) - 1, 1)
    runs: list[list[str]] = [[]]
    for index, value in enumerate(curve.tolist()):
        if value != value:
            runs.append([])
            continue
        height = HEIGHT - 1 - (HEIGHT - 2) * (value / top if top > 0 else 0.0)
        runs[-1].append(f"{index * step:.1f},{height:.1f}")
    lines = [Markup(f"<polyline points='{' '.join(run)}'/>") for run in runs if len(run) > 1]
    return tag(
        "svg",
        tag("title", words),
        *lines,
        role="img",
        aria_label=words,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
    )
