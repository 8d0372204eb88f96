"""Pieces of HTML: nothing from outside becomes markup, bars are as wide as they say, and no room writes its own."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkit.html import BAR_UNITS, PARTS_MAX, Mark, Markup, Part, bar, facts, join, red_lines, table, tag

if TYPE_CHECKING:
    from tests.conftest import Checkout


class Seen(HTMLParser):
    """Collects tags, attributes and text; tags must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[str] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        self.attributes += [value or "" for _, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


# HTML has no NUL, and reads a lone carriage return as a line's end.
texts = st.text(st.characters(exclude_characters="\x00\r", exclude_categories=("Cs",)), min_size=1)


@given(texts)
def test_no_text_becomes_markup(text: str) -> None:
    """Any text, as content, cell, title, attribute or mark: a browser reads that text, in the tags that were made."""
    page = Seen(
        join(
            [
                tag("p", text, title=text),
                table([(text, 1)], (text, "n"), titles=[text]),
                facts([(text, text)]),
                red_lines([text]),
                bar([Part(1, "#8888", text)], [Mark(0, 0.5, text)]),
            ]
        )
    )
    assert "".join(page.text).count(text) >= 8
    assert page.attributes.count(text) >= 2
    tags = "p table tr th th tr td td table tr td td div svg rect title line title"
    assert page.tags == tags.split()


def test_markup_is_not_escaped_twice_and_none_leaves_an_attribute_out() -> None:
    """Nest elements, and pass None, a trailing underscore and an inner one in names of attributes."""
    inner = tag("b", "a & b")
    assert tag("p", inner, 1, class_="x", stroke_width=2, title=None) == (
        '<p class="x" stroke-width="2"><b>a &amp; b</b>1</p>'
    )
    assert isinstance(join([inner, "<"]), Markup) and join([inner, "<"]) == "<b>a &amp; b</b>&lt;"


def drawing(
    parts: list[Part], marks: list[Mark] | None = None
) -> tuple[list[tuple[float, float]], list[float]]:
    """(x, width) of each part of a bar, and x of each mark."""
    svg = ET.fromstring(bar(parts, marks or []))
    boxes = [(float(r.attrib["x"]), float(r.attrib["width"])) for r in svg.iter("rect")]
    return boxes, [float(line.attrib["x1"]) for line in svg.iter("line")]


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=300))
def test_parts_fill_the_bar_and_are_all_to_be_seen(sizes: list[float]) -> None:
    """Any sizes: the parts stand side by side over the whole width, larger ones are wider, and none vanishes."""
    boxes, _ = drawing([Part(size, "#8888", "") for size in sizes])
    assert len(boxes) == min(len(sizes), PARTS_MAX)
    edge = 0.0
    for x, width in boxes:
        assert x == pytest.approx(edge, abs=0.02) and width >= 1
        edge = x + width
    assert edge == pytest.approx(BAR_UNITS, abs=0.02)
    shown = sizes[-PARTS_MAX:]
    order = sorted(range(len(shown)), key=shown.__getitem__)
    widths = [boxes[i][1] for i in order]
    assert all(b >= a - 0.02 for a, b in pairwise(widths))


def test_marks_stand_in_their_parts() -> None:
    """Marks at both ends and in the middle of parts, one beyond its part, and one on a part that is not drawn."""
    parts = [Part(100, "#8888", ""), Part(300, "#8888", "")]
    boxes, marks = drawing(
        parts, [Mark(0, 0, ""), Mark(1, 0.5, ""), Mark(1, 7, ""), Mark(2, 0, ""), Mark(-1, 0, "")]
    )
    assert boxes == [(0, 250), (250, 750)]
    assert marks == [0, 625, 1000]
    many = [Part(1, "#8888", "")] * (PARTS_MAX + 1)
    assert drawing(many, [Mark(0, 0, ""), Mark(1, 0, "")])[1] == [0]
    assert bar([]) == ""


WRITTEN_BY_HAND = re.compile(r"</?(?:table|tr|td|th|div|svg)\b")


def test_no_room_writes_tables_of_its_own(checkout: Checkout) -> None:
    """Of the package, only this room and the demo's page (a document of its own) contain tags of tables and blocks."""
    found = {path for path, source in checkout.files(".py").items() if WRITTEN_BY_HAND.search(source)}
    assert "walkit/demo/report.py" in found, "the search finds nothing at all"
    own = {path for path in found if path.startswith(("walkit/", "dashboards/", "pyspark_walkit/"))}
    assert own <= {"walkit/demo/report.py"}
