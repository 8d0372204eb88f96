"""Pieces of HTML: nothing from outside becomes markup, bars are as wide as they say, and no room writes its own."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

import walkit
from walkit import AppendResult, LogOptions, Retention, StoreOptions
from walkit._internal.html import (
    BAR_UNITS,
    PARTS_MAX,
    Mark,
    Markup,
    Part,
    bar,
    facts,
    join,
    red_lines,
    table,
    tag,
)
from walkit.commit.policy import TakeAll
from walkit.format.file_names import cursor_file_name
from walkit.measure import FrameSummary, Timeline
from walkit.models import CrashingStorage
from walkit.models.device import PRESETS, MeasuredLatency
from walkit.workload import OpenLoop, UniformBytes, Workload, ycsb

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
texts = st.text(st.characters(exclude_characters="\x00\r", exclude_categories=["Cs"]), min_size=1)


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
    assert "".join(page.text).count(text) >= 6
    assert page.attributes.count(text) >= 5
    tags = "p table tr th th tr td td table tr td td span div div span span span"
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
    """(x, width) of each piece of a bar, and x of each mark, in units of the bar."""
    boxes, lines, x = [], [], 0.0
    for span in ET.fromstring(bar(parts, marks or [])).iter("span"):
        found = re.search(r"width:([\d.]+)%", span.attrib["style"])
        if found is None:
            lines.append(round(x, 2))
            continue
        width = float(found[1]) / 100 * BAR_UNITS
        boxes.append((round(x, 2), width))
        x += width
    return boxes, lines


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


def test_marks_are_in_their_parts() -> None:
    """Marks at both ends and in the middle of parts, one beyond its part, and one on a part that is not drawn."""
    parts = [Part(100, "#8888", ""), Part(300, "#8888", "")]
    boxes, marks = drawing(
        parts, [Mark(0, 0, ""), Mark(1, 0.5, ""), Mark(1, 7, ""), Mark(2, 0, ""), Mark(-1, 0, "")]
    )
    assert [width for _, width in boxes] == [0, 250, 375, 375]
    assert marks == [0, 625, 1000]
    many = [Part(1, "#8888", "")] * (PARTS_MAX + 1)
    assert drawing(many, [Mark(0, 0, ""), Mark(1, 0, "")])[1] == [0]
    assert bar([]) == ""


NO_TIME = Timeline(start_s=[], width_s=[], records=[], p50_us=[], p99_us=[], max_us=[])  # type: ignore[arg-type]
SOME_TIME = Timeline.from_samples([1_000_000, 7_000_000], [2_000, 9_000], duration_s=0.01, bucket_s=0.005)
SIZES = UniformBytes(low=1, high=100)
MET: dict[str, tuple[Any, list[str]]] = {
    "options": (
        LogOptions(in_flight=4, policy=TakeAll(), retention=Retention(age_s=2.5)),
        ["LogOptions", "in_flight", "4", "TakeAll()", "Retention(age_s=2.5)", "67,108,864", "sync"],
    ),
    "store options": (StoreOptions(journal_slots=4096), ["StoreOptions", "journal_slots", "4,096"]),
    "retention": (Retention(below_claims=True), ["below_claims", "True", "bytes_max", "None"]),
    "one record": (AppendResult(7, 7, 64, 1280, 0x1F), ["Appended: 1 record", "next_position", "1,280"]),
    "records": (AppendResult(1, 2000, 0, 64, 0x1F), ["Appended: 2,000 records", "last_lsn", "2,000"]),
    "workload": (
        ycsb("A"),
        ["Workload YCSB A", "KeyChoice(kind=zipfian)", "Mix(put=0.5, read=0.5)", "1,000"],
    ),
    "arrivals": (
        Workload(arrival=OpenLoop(rate=3), value_bytes=SIZES),
        ["OpenLoop(rate=3)", "UniformBytes(low=1, high=100)"],
    ),
    "trace": (Workload(source=ycsb("C", operations=9).stream()), ["9 operations"]),
    "device": (PRESETS["gp3"], ["Device gp3", "125,000,000", "3,000", "mean 700 µs"]),
    "fit": (PRESETS["gp3"].with_latency(MeasuredLatency((2.5,) * 101)), ["101 values", "mean 2.5 µs"]),
    "timeline": (SOME_TIME, ["2 of 0.005 s", "0.01 s", "at most 200", "9.0 µs"]),
    "nothing done": (NO_TIME, ["Timeline", "none"]),
    "frames": (FrameSummary.from_sizes([1, 3], [64, 128]), ["p50, p99, most", "2, 2.98, 3", "192", "96"]),
    "sums": (FrameSummary(frames=4, records=10, frame_bytes=256, padding_bytes=8), ["2.5", "64", "8"]),
    "no frame": (FrameSummary(frames=0, records=0, frame_bytes=0), ["frames", "0"]),
}


@pytest.mark.parametrize("what", MET)
def test_what_a_person_meets_in_a_notebook_draws_itself(what: str) -> None:
    """Draw each: sound HTML that says its values, in tables, and no nan."""
    thing, texts = MET[what]
    page = Seen(thing._repr_html_())
    said = " ".join(page.text)
    assert "table" in page.tags and "nan" not in said
    assert [text for text in texts if text not in said] == []


def test_what_is_not_its_default_is_bold() -> None:
    """Draw options of which two were given, one of them as it is anyway: only the other is bold."""
    page = LogOptions(in_flight=2, codec=None)._repr_html_()
    assert page.count("<b>") == 2 and "<b>LogOptions</b>" in page and "<b>2</b>" in page


def test_claims_and_cursors_show_their_state() -> None:
    """Draw a claim while it is held, once released, and when its log is closed; a cursor before, after, and damaged."""
    storage = CrashingStorage()
    with walkit.open(storage=storage) as log:
        log.append_many([b"v"] * 5)
        hold, other, cursor = log.hold("a", 2), log.hold("b", 1), log.cursor("c")
        said = " ".join(Seen(hold._repr_html_() + cursor._repr_html_()).text)
        assert all(text in said for text in ("Claim a", "held", "3,600 s", "Cursor c", "never"))
        hold.release()
        cursor.advance(4)
        assert "released" in hold._repr_html_() and " UTC" in cursor._repr_html_()
        file = storage.open(cursor_file_name("c"), "write")
        file.write(0, [b"damage"])
        file.close()
        damaged = log.cursor("c")._repr_html_()
        assert "color" in damaged and "never" in damaged
    assert "log closed" in other._repr_html_()


WRITTEN_BY_HAND = re.compile(r"</?(?:table|tr|td|th|div|svg)\b")


def test_no_room_writes_tables_of_its_own(checkout: Checkout) -> None:
    """Of the package, only this room and the demo's page (a document of its own) contain tags of tables and blocks."""
    found = {path for path, source in checkout.files(".py").items() if WRITTEN_BY_HAND.search(source)}
    assert "walkit/demo/report.py" in found, "the search finds nothing at all"
    own = {path for path in found if path.startswith(("walkit/", "dashboards/", "pyspark_walkit/"))}
    assert own <= {
        "walkit/demo/report.py",
        "walkit/demo/result.py",
    }  # the page, and its parts in common with a cell


def test_a_wide_table_shows_its_words_whole() -> None:
    """The decision table in a notebook, and parts of it: every meaning is there from its first to its last word."""
    table = walkit.recovery_table()
    for shown in (table, table.head(30), table[["decision", "meaning"]]):
        html: Any = shown._repr_html_  # the stubs know no such method
        page = " ".join(Seen(html()).text)
        assert all(meaning in page for meaning in table.meaning)
        assert "..." not in page and "…" not in page
        assert all(meaning in repr(shown) for meaning in table.meaning)
