"""The book: figures of an executed notebook are on its page, with one plotly.js for all, and nothing from elsewhere."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from nbconvert import HTMLExporter

from scripts.book import execute, figures_of, make, offline
from walkit import plots

FIGURE = 'class="plotly-graph-div"'
CELLS = (
    "import numpy as np\nfrom walkit import plots\nlag = plots.replication_lag([(0.0, 2, 1), (1.0, 5, 5)])",
    "lag",
    "lag.show()",
    "plots.replication_lag(np.array([(0.0, 2, 1)]), marks=[(0.0, '<killed>')], theme='dark')",
    "1 + 1",
)


class Addresses(HTMLParser):
    """Collects what a page loads and links to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny notebook with three figures, executed once."""
    code = [nbformat.v4.new_code_cell(source) for source in CELLS]
    words = nbformat.v4.new_markdown_cell(
        "# Small & short\n\n[the other](other.ipynb), [far](https://example.org)"
    )
    notebook = nbformat.v4.new_notebook(cells=[words, *code])
    execute(notebook, tmp_path_factory.mktemp("cells"))
    return notebook


def test_every_figure_is_in_a_notebook_exported_with_nbconvert(executed: Any) -> None:
    """Export as `jupyter nbconvert --to html` does: each figure once, small, with its words, plotly.js in none."""
    assert len(figures_of(executed)) == 3
    html, _ = HTMLExporter().from_notebook_node(executed)
    assert html.count(FIGURE) == 3
    for output in figures_of(executed):
        piece = output["data"]["text/html"]
        assert len(piece) < 30_000
        assert 'role="img"' in piece and "Durable LSNs of primary and replica" in piece
        assert "<script" not in piece and "<svg" not in piece, "what cleans HTML has nothing to smear"


def test_the_book_is_offline_and_has_the_data(executed: Any, tmp_path: Path) -> None:
    """Make a book of it: figures on the page, plotly.js once beside it, nothing from elsewhere; the data is equal."""
    source = tmp_path / "tiny.ipynb"
    source.write_text(json.dumps(executed), encoding="utf-8")
    out = tmp_path / "book"
    (page,) = make([source], out, run=False)
    assert (page.title, page.figures) == ("Small & short", 3)
    html = (out / "tiny.html").read_text(encoding="utf-8")
    assert html.count(FIGURE) == 3
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


def test_what_a_page_would_load_from_elsewhere_goes() -> None:
    """Scripts and styles of other places are dropped, those of the page stay, and links to notebooks lead to pages."""
    html = (
        '<html><head><script src="https://a/x.js"></script><link href="https://b/c.css"><script>let one</script>'
        '<script>load("https://cdn.example/y.js")</script></head><body class="b"><a href="01.ipynb">x</a></body></html>'
    )
    assert offline(html) == (
        '<html><head><script>let one</script><script src="plotly.min.js"></script></head><body class="b">'
        '<p style="margin:1rem"><a href="index.html">All pages</a></p><a href="01.html">x</a></body></html>'
    )
