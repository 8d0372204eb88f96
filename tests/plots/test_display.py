"""Figures travel: what a cell gets, the picture without scripts, the words, and the data as a table."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from tests.plots.test_figures import BASELINE, figures, make_run, phase, report_of
from tests.plots.test_load import LATE, at_load
from walkit import plots
from walkit.errors import OptionsError
from walkit.plots.display import PLOTLY_MIME

RUN = make_run("<a>", 1, baseline=BASELINE, bytes_user=100, bytes_written=150)
ALL = [
    *figures(),
    plots.latency_over_load([at_load(10), at_load(20), at_load(20), at_load(40, **LATE)]),
    plots.replication_lag([(0.0, 2, 1), (1.0, 5, 5)], marks=[(0.5, "killed")]),
]


class Elements(HTMLParser):
    """Collects the tags of a piece of HTML with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def picture_of(html: str) -> ET.Element:
    """The picture in a figure's HTML."""
    ((_, box), (_, image)) = Elements(html).tags
    assert box["role"] == "img" and box["aria-label"] == image["alt"]
    return ET.fromstring(b64decode(str(image["src"]).partition("base64,")[2]))


@pytest.mark.parametrize("drawing", ALL, ids=lambda drawing: drawing.layout.title.text[:20])
def test_a_cell_gets_every_form(drawing: plots.Figure) -> None:
    """The bundle has plotly's JSON, HTML without a script element that has the same, and words; its picture is SVG."""
    bundle = drawing._repr_mimebundle_()
    assert set(bundle) == {PLOTLY_MIME, "text/html", "text/plain"}
    assert drawing._ipython_display_ is None, "plotly's own way of displaying drops the HTML"
    json.dumps(bundle)
    html = bundle["text/html"]
    (_, image) = Elements(html).tags[1]
    assert json.loads(str(image["data-figure"])) == json.loads(drawing.to_json())
    assert "<script" not in html and len(html) < 150_000
    svg = picture_of(html)
    texts = [element.text or "" for element in svg.iter() if element.tag.endswith("text")]
    title = re.sub(r"<[^>]*>", "", drawing.layout.title.text.split("<br>")[0])
    assert any(title.replace("&lt;", "<").replace("&gt;", ">") == text for text in texts)
    assert not {"nan", "inf"} & set(
        re.findall(r"[a-z]+", " ".join(str(e.attrib) for e in svg.findall(".//{*}path")))
    )
    drawn = [e for e in svg.iter() if e.tag.rpartition("}")[2] in ("path", "rect", "circle", "line")]
    assert len(drawn) > 5


def test_the_bars_of_the_picture_have_plotlys_proportions() -> None:
    """Bars of a known figure: their widths in the picture are in proportion to their values."""
    report = report_of(phase("open", 0.0, 0.1), phase("scan", 0.1, 0.3), phase("ready", 0.4, 0.2))
    svg = ET.fromstring(plots.svg_of(plots.recovery_timeline(report)))
    bars = [e for e in svg.findall(".//{*}rect") if "x" in e.attrib]
    widths = [float(e.attrib["width"]) for e in bars]
    assert [w / widths[0] for w in widths] == pytest.approx([1, 3, 2], rel=0.01)
    starts = [float(e.attrib["x"]) for e in bars]
    assert starts[1] == pytest.approx(starts[0] + widths[0], abs=0.2)


def test_a_figure_comes_back_from_a_notebook() -> None:
    """A figure of plotly's JSON, whose arrays are packed, has the same data and the same picture."""
    drawing = plots.latency_distribution(RUN)
    again = plots.restored(json.loads(drawing.to_json()))
    pd.testing.assert_frame_equal(plots.data(again), plots.data(drawing))
    assert plots.svg_of(again) == plots.svg_of(drawing)


def test_the_data_equals_the_figure(tmp_path: Path) -> None:
    """Curves, whiskers, bars and cells as rows; CSV and Parquet hold them; another suffix is refused."""
    rows = plots.data(plots.replication_lag([(0.5, 10, 0), (1.0, 20, 15)]))
    lag = rows[rows.series == "lag"]
    assert (lag.x.tolist(), lag.y.tolist(), lag.panel.tolist()) == ([0.5, 1.0], [10, 5], [2, 2])
    assert set(rows.y_title) == {"durable LSN", "lag, records"}
    repeated = plots.data(plots.latency_over_load([at_load(10), at_load(30), at_load(30)], percentiles=(50,)))
    assert repeated.low.le(repeated.high).all()
    phases = plots.data(plots.recovery_timeline(report_of(phase("open", 0.0, 0.1), phase("scan", 0.1, 0.3))))
    assert phases.y.tolist() == ["open", "scan"] and phases.base.tolist() == [0.0, 0.1]
    plots.save_data(plots.latency_distribution(RUN), tmp_path / "a.csv")
    plots.save_data(plots.latency_distribution(RUN), tmp_path / "a.parquet")
    table = plots.data(plots.latency_distribution(RUN))
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a.parquet"), table, check_dtype=False)
    assert np.allclose(pd.read_csv(tmp_path / "a.csv").y, table.y)
    with pytest.raises(OptionsError, match=r"\.csv or \.parquet"):
        plots.save_data(plots.latency_distribution(RUN), tmp_path / "a.xlsx")


def test_words_are_escaped_and_a_plain_figure_has_some() -> None:
    """A run named as markup stays text everywhere in the HTML; a figure that is not walkit's has its title."""
    html = plots.figure_html(plots.throughput_timeline(RUN))
    assert [tag for tag, _ in Elements(html).tags] == ["div", "img"]
    assert "over 1 s of <a>: " in str(Elements(html).tags[0][1]["aria-label"])
    assert plots.alt_text(go.Figure(layout={"title": {"text": "<b>mine</b>"}})) == "mine"


def test_a_page_with_its_own_plotly_needs_no_network() -> None:
    """Without `cdn` the figure's HTML names no address; with it plotly's, the version and its digest."""
    drawing = plots.throughput_timeline(RUN)
    alone: Any = Elements(plots.figure_html(drawing, cdn=False)).tags[1][1]
    assert "http" not in "".join(str(value) for name, value in alone.items() if name != "src")
    asked = json.loads(str(Elements(plots.figure_html(drawing)).tags[1][1]["data-source"]))
    assert asked["src"].startswith("https://cdn.plot.ly/plotly-") and asked["integrity"].startswith("sha256-")


@pytest.mark.parametrize(("names", "width"), [(["p50", "p99"], None), (["a name of a field"] * 9, 0.327)])
def test_a_long_legend_has_as_many_columns_at_every_width(names: list[str], width: float | None) -> None:
    """Show short and long legends in a cell: the long one's entries have a share of the width; restored, none has."""
    drawing = plots.style.figure("Names")
    for name in names:
        drawing.add_trace(go.Scatter(x=[1], y=[1], name=name))
    shown = drawing._repr_mimebundle_()[PLOTLY_MIME]
    assert shown["layout"]["legend"].get("entrywidth") == width
    assert plots.restored(shown).layout.legend == drawing.layout.legend
