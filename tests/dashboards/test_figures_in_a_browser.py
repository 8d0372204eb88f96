"""Figures on a page, in a headless Chromium: drawn with plotly.js, pictures without it, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from walkit import plots

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Slow: 12 s. The site's test draws figures in a browser in each run.
pytestmark = pytest.mark.slow
LAG = plots.replication_lag([(0.0, 2, 1), (1.0, 5, 5)], subtitle=["a fact that is long"] * 9)
STYLE = "element => getComputedStyle(element.querySelector('.gtitle')).fill"
SIZE = """element => {
    const title = element.querySelector('.gtitle').getBoundingClientRect();
    return [title.width, title.top - element.getBoundingClientRect().top];
}"""


def page_of(path: Path, *, script: str, background: str, width: int) -> str:
    """Write a page with two figures, and return its address."""
    figures = plots.figure_html(LAG, cdn=False) * 2
    path.write_text(
        f"<!doctype html><meta charset='utf-8'><script>{script}</script>"
        f"<body style='background:{background};width:{width}px'>{figures}</body>",
        encoding="utf-8",
    )
    return path.as_uri()


@pytest.mark.parametrize(
    ("background", "width", "fill"),
    [("#ffffff", 900, "rgb(51, 55, 61)"), ("#111111", 390, "rgb(214, 217, 222)")],
)
def test_figures_are_drawn_once_plotly_is_there(
    browser: Browser, tmp_path: Path, background: str, width: int, fill: str
) -> None:
    """Two figures on a light and on a narrow dark page: drawn, text in the page's colour, titles within the box."""
    url = page_of(tmp_path / "a.html", script=plots.plotly_script(), background=background, width=width)
    page = browser.new_page()
    complaints: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    try:
        page.goto(url)
        page.locator(".js-plotly-plot .gtitle").nth(1).wait_for()
        figures = page.locator(".js-plotly-plot[role=img]")
        assert figures.count() == 2 and page.locator("img").count() == 0
        assert figures.first.evaluate(STYLE) == fill
        title_width, title_top = figures.first.evaluate(SIZE)
        assert title_width <= width and title_top >= 0
        assert str(figures.first.get_attribute("aria-label")).startswith("Durable LSNs")
        assert complaints == [] and not [url for url in asked if url.startswith("http")]
    finally:
        page.close()


def test_the_picture_stays_where_plotly_is_not(browser: Browser, tmp_path: Path) -> None:
    """The same page without plotly.js, and without scripts at all: the pictures are there, as wide as they are made."""
    url = page_of(tmp_path / "a.html", script="", background="#ffffff", width=900)
    for scripts in (True, False):
        context = browser.new_context(java_script_enabled=scripts)
        try:
            page = context.new_page()
            page.goto(url)
            page.wait_for_load_state("networkidle")
            boxes = [image.bounding_box() for image in page.locator(".plotly-graph-div img").all()]
            assert len(boxes) == 2
            assert all(box is not None and box["width"] == 900 and box["height"] > 400 for box in boxes)
        finally:
            context.close()
