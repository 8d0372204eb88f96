"""Figures as files: a picture or the data of one, on a page of its own or in the columns of a paper."""

from __future__ import annotations

import json
import os
import re
from html import unescape
from pathlib import Path
from typing import Any

from walkit._internal.arguments import check_choice, check_number, refuse
from walkit.errors import MissingExtraError
from walkit.plots.display import Figure, FileStyle, restored
from walkit.plots.export import save_data
from walkit.plots.style import COLOURS
from walkit.plots.svg import WIDTH_PX, svg_of

COLUMN_IN, PAGE_IN = 3.33, 7.0
"""Widths of a figure in one of two columns, and over both, in inches."""
DARKENING = ("#000000", "#3b528b", "#21918c", "#7ad151", "#b8b8b8")
"""Colours that print as five greys, in the order in which a paper's series take them."""
SVG_PX_PER_IN, PX_PER_IN = 108, 96
"""Pixels of an inch: 8 points are 12 pixels of a picture's own letters, and 10.7 of a browser's."""
DOTS_PER_IN = 300
BARE_PX = 26
"""Room above a paper's figure, which has no title."""


def save_figure(
    figure: Figure, path: str | os.PathLike[str], *, style: FileStyle = "screen", width_in: float = COLUMN_IN
) -> str:
    """Write a figure to a file by the suffix of its name, and return its caption; see `Figure.save`."""
    target = Path(path)
    check_choice(style, ("screen", "paper"), "style")
    check_number(width_in, "width_in", 1, 20)
    if target.suffix not in (".svg", ".pdf", ".png", ".csv", ".parquet"):
        refuse("path", target.name, ".svg, .pdf, .png, .csv or .parquet")
    drawn, is_paper = figure, style == "paper"
    per_in = SVG_PX_PER_IN if target.suffix == ".svg" else PX_PER_IN
    width = round(width_in * per_in) if is_paper else WIDTH_PX
    if is_paper:
        drawn = on_paper(figure, letters_px=per_in * 8 / 72)
    if target.suffix in (".csv", ".parquet"):
        save_data(figure, target)
    elif target.suffix == ".svg":
        picture = svg_of(drawn, width=width)
        if is_paper:
            picture = re.sub(
                r' width="(\d+)" height="(\d+)"',
                lambda found: f' width="{int(found[1]) / per_in:g}in" height="{int(found[2]) / per_in:g}in"',
                picture,
                count=1,
            )
        target.write_text(picture, encoding="utf-8")
    else:
        _write_image(drawn, target, width=width, scale=DOTS_PER_IN / PX_PER_IN if is_paper else 2)
    return caption(figure)


def caption(figure: Figure) -> str:
    """Return the caption of a figure in a paper: its title, then n, machine and version as far as they are known."""
    title = re.sub(r"<[^>]*>", "", (figure.layout.title.text or "").partition("<br>")[0])
    meta = figure.layout.meta if isinstance(figure.layout.meta, dict) else {}
    facts, warnings = meta.get("facts", []), meta.get("warnings", [])
    said = [unescape(title).rstrip("."), "; ".join(facts), "; ".join(warnings)]
    return " ".join(f"{text}." for text in said if text)


def on_paper(figure: Figure, *, letters_px: float = PX_PER_IN * 8 / 72) -> Figure:
    """Return a figure for a paper: black serif letters of one size, no title, and colours that print as greys."""
    text = figure.to_json()
    taken = sorted((c for c in COLOURS if c in text), key=text.index)
    found = {old: DARKENING[number % len(DARKENING)] for number, old in enumerate(taken)}
    made = restored(json.loads(re.sub("|".join(found) or "$^", lambda each: found[each[0]], text)))
    head = max((made.layout.margin.t or 0) - BARE_PX, 0)
    letters: Any = {"family": "Times New Roman, Times, serif", "size": letters_px, "color": "#000000"}
    made.update_layout(
        title={"text": ""},
        height=int((made.layout.height or 420) - head),
        margin={"t": BARE_PX},
        font=letters,
        paper_bgcolor="#ffffff",
        plot_bgcolor="#ffffff",
    )
    made.update_annotations(font=letters)
    made.update_xaxes(title_font=letters, tickfont=letters)
    made.update_yaxes(title_font=letters, tickfont=letters)
    return made


def _write_image(figure: Figure, target: Path, *, width: int, scale: float) -> None:
    """Write a PDF or PNG by kaleido, which draws in a browser. MissingExtraError; OptionsError without a browser."""
    try:
        from choreographer.errors import ChromeNotFoundError
    except ImportError as error:
        raise MissingExtraError(extra="plots", package="kaleido") from error
    try:
        figure.write_image(target, width=width, scale=scale)
    except (ChromeNotFoundError, RuntimeError) as error:
        reason = (
            "PDF and PNG are drawn by Chromium or Chrome, which is not installed here; .svg needs neither"
        )
        refuse("path", target.name, reason, cause=error)
