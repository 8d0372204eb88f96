"""The committed notebooks in a real JupyterLab: sliders that run the simulator again, the map, and Run All."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.labs import RUN_ALL, notebook_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
SLIDERS = "06-group-commit.ipynb"
NEEDED = ("import", "LATENCY_US", "WRITERS =", "def simulated", "sliders =", "POLICIES =")
"""Text of the cells that the sliders need; none of them measures on the disk."""


DRAWN = """() => {
    const figure = document.querySelector('.widget-interact .js-plotly-plot');
    return figure && figure._fullData ? figure._fullData.map(trace => Array.from(trace.x)) : null;
}"""


def cells_of(name: str, needed: tuple[str, ...]) -> list[str]:
    """Return the code cells of a notebook that contain one of these texts."""
    cells: list[dict[str, Any]] = json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [
        source for source in code if any(text in source for text in needed) and "measured = []" not in source
    ]


@pytest.mark.slow
def test_the_sliders_run_the_simulator_again(browser: Browser, tmp_path: Path) -> None:
    """Set the sliders of 06 and press the button: a figure for that number of writers, drawn by the simulator."""
    with notebook_page(browser, tmp_path / "lab", cells_of(SLIDERS, NEEDED)) as (page, complaints):
        page.evaluate(RUN_ALL)
        controls = page.locator(".widget-interact")
        readouts = controls.locator(".widget-readout")
        readouts.nth(2).wait_for()
        assert page.evaluate(DRAWN) is None, "the button draws, and nothing before it"
        for number, value in enumerate(("16", "1000", "1")):
            readouts.nth(number).fill(value)
            readouts.nth(number).press("Enter")
        controls.get_by_role("button", name="simulate").click()
        page.wait_for_function(DRAWN)
        drawn = page.evaluate(DRAWN)
        assert len(drawn) == 2 * 4 and all(xs == [1, 2, 4, 8, 16] for xs in drawn)
        assert complaints == []
