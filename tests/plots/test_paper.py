"""Figures as files: pictures without a browser and with one, data, and the style and caption of a paper."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pandas as pd
import pytest

from scripts.browsing import find_browser
from tests.plots.test_figures import BASELINE, make_run
from walkit import plots
from walkit.errors import MissingExtraError, OptionsError
from walkit.measure import MachineFacts
from walkit.plots.paper import DARKENING, save_figure
from walkit.plots.style import COLOURS

RUNS = [
    make_run(name, n, baseline=BASELINE, machine=MachineFacts(cpu="a chip")) for n, name in enumerate("abc")
]


def figure() -> plots.Figure:
    """A figure of three series with facts and a warning."""
    return plots.latency_distribution(RUNS)


@pytest.mark.parametrize("width_in", [3.33, 7])
def test_paper_has_its_width_letters_and_greys(tmp_path: Path, width_in: float) -> None:
    """Save for both widths: inches, serif letters, no title, no colour of the screen, and a caption with the facts."""
    caption = figure().save(tmp_path / "a.svg", style="paper", width_in=width_in)
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    picture = ET.fromstring(text)
    assert float(picture.attrib["width"].removesuffix("in")) == pytest.approx(width_in, abs=0.01)
    assert "serif" in picture.attrib["font-family"] and not re.search("|".join(COLOURS), text)
    strokes = {found for found in re.findall(r'stroke="(#\w+)"', text) if found in DARKENING}
    assert strokes == set(DARKENING[:3])
    words = " ".join(each.text or "" for each in picture.iter() if each.tag.endswith("text"))
    assert "Latency" not in words and "a (sync" in words
    assert caption.startswith("Latency distribution") and "3 runs" in caption and "a chip" in caption
    assert "walkit" in caption and "n = 1" in caption


def test_screen_and_data_are_saved_by_suffix(tmp_path: Path) -> None:
    """Save SVG, CSV and Parquet in the usual style: the own renderer's picture, and the table of the figure."""
    drawn = figure()
    for name in ("a.svg", "a.csv", "a.parquet"):
        drawn.save(tmp_path / name)
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == plots.svg_of(drawn)
    assert len(pd.read_csv(tmp_path / "a.csv")) == len(pd.read_parquet(tmp_path / "a.parquet")) > 0


@pytest.mark.parametrize(
    ("name", "options"), [("a.gif", {}), ("a.svg", {"style": "poster"}), ("a.svg", {"width_in": 0})]
)
def test_wrong_files_are_refused(tmp_path: Path, name: str, options: dict[str, object]) -> None:
    """Ask for another suffix, style and width: an OptionsError, and no file."""
    with pytest.raises(OptionsError):
        save_figure(figure(), tmp_path / name, **options)  # type: ignore[arg-type]  # refused
    assert not list(tmp_path.iterdir())


def test_images_need_kaleido_and_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save a PNG without kaleido, then without a browser: an error in a sentence, which names a way out."""
    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, "choreographer.errors", None)
        with pytest.raises(MissingExtraError, match=r"\[plots\]"):
            figure().save(tmp_path / "a.png")
    pytest.importorskip("kaleido")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    with pytest.raises(OptionsError, match=r"Chromium or Chrome.*\.svg needs neither"):
        figure().save(tmp_path / "a.png")


# Slow: kaleido starts two browsers, 18 s. SVG is saved by default, and the error without a browser is there.
@pytest.mark.slow
def test_images_are_drawn_by_a_browser(tmp_path: Path) -> None:
    """Save PDF and PNG for a column: files of their kinds, the PNG with 300 dots per inch."""
    pytest.importorskip("kaleido")
    if find_browser() is None:
        pytest.skip("no Chromium on this machine")
    for name in ("a.pdf", "a.png"):
        figure().save(tmp_path / name, style="paper")
    assert (tmp_path / "a.pdf").read_bytes()[:5] == b"%PDF-"
    png = (tmp_path / "a.png").read_bytes()
    assert png[:4] == b"\x89PNG" and int.from_bytes(png[16:20], "big") == pytest.approx(3.33 * 300, abs=4)
