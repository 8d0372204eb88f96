"""The book: figures of an executed notebook are on its page, with one plotly.js for all, and nothing from elsewhere."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from nbconvert import HTMLExporter

from scripts.book import WIDGET_MIME, Page, figures_of, links_of, make, offline, write_page
from walkit import plots

FIGURE = 'class="plotly-graph-div"'
CELLS = (
    "import numpy as np\nfrom walkit import plots\nlag = plots.replication_lag([(0.0, 2, 1), (1.0, 5, 5)])",
    "lag",
    "lag.show()",
    "plots.replication_lag(np.array([(0.0, 2, 1)]), marks=[(0.0, '<killed>')])",
    "from pathlib import Path\nassert Path('drawing.svg').exists() and Path('tiny.ipynb').exists()",
)
WORDS = "# Small & short\n\n![a dot](drawing.svg) [the other](other.ipynb), [far](https://example.org)"
DRAWING = '<svg xmlns="http://www.w3.org/2000/svg" width="2" height="2"><circle r="1"/></svg>'


class Addresses(HTMLParser):
    """Collects what a page loads and links to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


@dataclass(frozen=True, kw_only=True)
class Book:
    """A book of one page, and the notebook that it was made of."""

    out: Path
    page: Page
    executed: Any


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Book:
    """The book of a tiny notebook with three figures and a picture beside it, executed once."""
    place = tmp_path_factory.mktemp("book")
    cells = [nbformat.v4.new_markdown_cell(WORDS), *map(nbformat.v4.new_code_cell, CELLS)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), place / "tiny.ipynb")
    (place / "drawing.svg").write_text(DRAWING)
    (page,) = make([place / "tiny.ipynb"], place / "out", executed=place / "executed")
    executed = nbformat.read(place / "executed" / "tiny.ipynb", as_version=4)
    return Book(out=place / "out", page=page, executed=executed)


def test_every_figure_is_in_a_notebook_exported_with_nbconvert(book: Book) -> None:
    """Export as `jupyter nbconvert --to html` does: each figure once, small, with its words, plotly.js in none."""
    assert len(figures_of(book.executed)) == 3
    html, _ = HTMLExporter().from_notebook_node(book.executed)
    assert html.count(FIGURE) == 3
    for output in figures_of(book.executed):
        piece = output["data"]["text/html"]
        assert len(piece) < 30_000
        assert 'role="img"' in piece and "Durable LSNs of primary and replica" in piece
        assert "<script" not in piece and "<svg" not in piece, "what cleans HTML has nothing to smear"


def test_the_book_is_offline_and_has_the_data(book: Book) -> None:
    """Look at its page: figures, plotly.js once beside it, the picture in it, nothing from elsewhere; equal data."""
    out, page = book.out, book.page
    assert (page.title, page.figures) == ("Small & short", 3)
    html = (out / "tiny.html").read_text(encoding="utf-8")
    assert html.count(FIGURE) == 3
    assert b64encode(DRAWING.encode()).decode() in html
    assert html.count('<script src="plotly.min.js"></script>') == 1 and "plotly.js v" not in html
    assert (out / "plotly.min.js").stat().st_size > 1_000_000
    addresses = [a for a in Addresses(html).found if not a.startswith(("data:", "#"))]
    assert set(addresses) - {"https://example.org"} == {
        *("plotly.min.js", "index.html", "other.html"),
        *(f"data/tiny-{n:02}.{suffix}" for n in (1, 2, 3) for suffix in ("csv", "parquet")),
    }
    assert "cdn" not in re.sub(r"/\*.*?\*/", "", html, flags=re.DOTALL)
    index = (out / "index.html").read_text(encoding="utf-8")
    assert '<a href="tiny.html">Small &amp; short</a>' in index and "3 figures" in index
    first = plots.data(plots.replication_lag([(0.0, 2, 1), (1.0, 5, 5)]))
    pd.testing.assert_frame_equal(pd.read_parquet(out / "data" / "tiny-01.parquet"), first, check_dtype=False)
    assert len(pd.read_csv(out / "data" / "tiny-01.csv")) == len(first)


def test_a_page_is_dark_on_a_dark_system(book: Book) -> None:
    """Look at the page's styles: the colours of JupyterLab's dark theme come last, for systems that are dark."""
    html = (book.out / "tiny.html").read_text(encoding="utf-8")
    light, _, dark = html.partition("@media (prefers-color-scheme: dark)")
    assert "--jp-layout-color0: white" in light and "color-scheme: light dark" in light
    assert re.search(r"--jp-layout-color0: (?!white)", dark.partition("</style>")[0])


def test_what_a_page_would_load_from_elsewhere_goes() -> None:
    """Scripts and styles of other places are dropped, those of the page stay, and links to notebooks lead to pages."""
    html = (
        '<html><head><script src="https://a/x.js"></script><link href="https://b/c.css"><script>let one</script>'
        '<script>load("https://cdn.example/y.js")</script></head><body class="b"><a href="01.ipynb">x</a></body></html>'
    )
    made = re.sub(r"<style>.*</style>", "", offline(html, "<nav></nav>"), flags=re.DOTALL)
    assert made == (
        '<html><head><script>let one</script><script src="plotly.min.js"></script></head><body class="b">'
        '<nav></nav><a href="01.html">x</a></body></html>'
    )


def test_a_widget_leaves_words(tmp_path: Path) -> None:
    """Write the page of a notebook with sliders and a bar: a sentence for the sliders, and no script from elsewhere."""
    views = [
        nbformat.v4.new_output("display_data", {WIDGET_MIME: {"model_id": "a"}, "text/plain": plain})
        for plain in ("interactive(children=())", "  0%|          | 0/5")
    ]
    cell = nbformat.v4.new_code_cell("sliders", outputs=views)
    (tmp_path / "data").mkdir()
    write_page(nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": {}}), "sliders", tmp_path)
    html = (tmp_path / "sliders.html").read_text(encoding="utf-8")
    assert html.count("These controls need a kernel") == 1
    assert "interactive(" not in html and "0/5" not in html
    assert "unpkg" not in html


def test_a_page_leads_to_its_neighbours() -> None:
    """Ask for the links of the first, a middle and the last page, and of one alone: index, before and next."""
    pages = ("a", "b", "c")
    found = {name: re.findall(r'href="(\w+)\.html"', links_of(name, pages)) for name in (*pages, "alone")}
    assert found == {
        "a": ["index", "b"],
        "b": ["index", "a", "c"],
        "c": ["index", "b"],
        "alone": ["index"],
    }
