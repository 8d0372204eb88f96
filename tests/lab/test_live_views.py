"""Live views in a real JupyterLab, in a real browser: they move while cells run, one right after the other."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.labs import GUARD_S, RUN_ALL, Served, opened, write_notebook

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SEEN = """(number) => {
    const figure = document.querySelectorAll('.js-plotly-plot')[number];
    const numbers = curve => Array.from(curve.y ?? [], y => Number.isFinite(y) ? y : null);
    return figure && figure._fullData ? JSON.stringify(figure._fullData.map(numbers)) : null;
}"""
CELLS = (
    "import walkit\nfrom walkit.workload import OpenLoop, Workload, drive\nlog = walkit.scratch('lab')",
    "walkit.views.live(log)",
    # Until the page has said that it has seen enough, so that a slow machine sees as much as a fast one.
    (
        "from pathlib import Path\nspec = Workload(operations=2_000, writers=8, arrival=OpenLoop(rate=1_000))\n"
        "while not Path('enough').exists():\n"
        "    run = drive(log, spec, progress=False, baseline=False)"
    ),
    "walkit.views.recorded(run)",
    "print('acked', log.statistics().acked_lsn, 'rate', f'{run.records_per_s:,.0f}', 'end')",
)


def moved(page: Page, times: int) -> list[list[list[Any]]]:
    """Wait until the first figure has shown so many different curves; return them."""
    seen: list[str] = []
    deadline = time.monotonic() + GUARD_S
    while len(seen) < times:
        assert time.monotonic() < deadline, f"the figure has shown {len(seen)} states of {times}"
        drawn = page.evaluate(SEEN, 0)
        if drawn is not None and drawn not in seen:
            seen.append(drawn)
        page.wait_for_timeout(100)
    return [json.loads(one) for one in seen]


def until(what: Callable[[], object]) -> None:
    """Wait until `what` is true."""
    deadline = time.monotonic() + GUARD_S
    while not what():
        assert time.monotonic() < deadline, f"never true within {GUARD_S} s"
        time.sleep(0.05)


def percentiles(page: Page) -> list[list[float]]:
    """Return the points that the second figure shows now of p50, p99 and p99.9."""
    drawn = page.evaluate(SEEN, 1)
    curves = json.loads(drawn) if drawn is not None else [[], [], [], []]
    return [[y for y in curves[number] if y is not None] for number in (1, 2, 3)]


def check_run_all(page: Page, complaints: list[str], folder: Path) -> None:
    """Run All: the view moves while a later cell writes; its last numbers equal those of the log and the Run."""
    page.evaluate(RUN_ALL)
    states = moved(page, 6)
    assert len(states[-1][0]) > len(states[0][0]), "the curves grow"
    until(lambda: all(percentiles(page)))  # their first point is an interval later than one of rates
    (folder / "enough").touch()
    said = page.locator(".jp-OutputArea-output", has_text=re.compile(r"acked \d+ rate .* end"))
    said.wait_for()
    words = said.inner_text().split()
    acked, rate = f"{int(words[1]):,}", words[3]
    tiles = page.locator(".jp-OutputArea-output").nth(0)
    tiles.get_by_text(acked, exact=True).first.wait_for()  # the last refresh may still be on its way
    assert rate in page.locator(".jp-OutputArea-output").nth(1).inner_text(), "the whole Run's own rate"
    assert complaints == []


# Slow: 52 s. views/test_live moves a view of a log in each run, and test_launcher opens a real Lab.
@pytest.mark.slow
def test_a_view_moves_under_run_all(browser: Browser, served: Served) -> None:
    """Run all cells at once: six different pictures while one cell writes, right numbers, nothing of a network."""
    write_notebook(served.folder, CELLS)
    with opened(browser, served, "tested.ipynb") as (page, complaints):
        check_run_all(page, complaints, served.folder)
