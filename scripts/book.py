#!/usr/bin/env python3
"""Make the book: every notebook executed once and put into one offline site. `make book`.

    python scripts/book.py [--out build/book] [--notebook PATH ...] [--executed FOLDER] [--no-execute]

The site is an index, a page for each notebook, plotly.js once as a file that all pages share, and the data of each
figure as CSV and Parquet. It needs no network and no server: open index.html. A figure is a picture if scripts do not
run; pages are light or dark as the system is. `--executed` is where notebooks with their outputs are kept, or taken
from with `--no-execute`.

It is a script that uses nbconvert, which JupyterLab brings, and no generator of sites: a book of six pages needs no
theme of its own, no search and no configuration, and a generator would be one more thing to install without a network.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from time import monotonic
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from traitlets.config import Config

ROOT = Path(__file__).resolve().parent.parent
if not __package__:  # run as a script: use the checkout, installed or not
    sys.path.insert(0, str(ROOT))

from walkit import plots  # noqa: E402
from walkit._internal.html import tag  # noqa: E402
from walkit.plots.display import PLOTLY_MIME  # noqa: E402

NOTEBOOKS = ROOT / "notebooks"
OUT = ROOT / "build" / "book"
CELL_TIMEOUT_S = 900
SCRIPT = "plotly.min.js"
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
BESIDE = ("*.ipynb", "*.svg")
"""Files of a notebook's folder that are also put where it is executed."""
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.6 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; padding: 0 1rem; }
li { margin: .6rem 0; } small { opacity: .75; }
"""
PAGE_STYLE = """
:root { color-scheme: light dark; }
.jp-Notebook { max-width: 76rem; margin: 0 auto; }
.walkit-pages { max-width: 76rem; margin: 1rem auto; font: 14px system-ui, sans-serif; }
.walkit-pages a { margin-right: 1.5rem; color: var(--jp-content-link-color); }
.plotly-graph-div { margin-top: .6rem; }
.heatmap-label text[style*="rgb(68, 68, 68)"] { fill: #000000 !important; }
.modebar-btn:focus-visible { outline: 2px solid var(--jp-brand-color1) !important; }
.jp-InputArea-editor { overflow-x: auto; }
.jp-OutputArea-output pre { word-break: normal; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page of the book."""

    name: str
    title: str
    figures: int
    cells: int


def execute(notebook: Any, folder: Path) -> None:
    """Run a notebook in a kernel of its own, in `folder`; its outputs are in it afterwards.

    The kernel listens on Unix sockets that only this user can open: on TCP it would say for each notebook that anybody
    can listen. Their paths are short (Linux has 107 bytes for one, macOS 103), which those below a TMPDIR may not be.
    """
    with tempfile.TemporaryDirectory(prefix="walkit-book-", dir="/tmp") as sockets:
        NotebookClient(
            notebook,
            timeout=CELL_TIMEOUT_S,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
            coalesce_streams=True,  # else what is printed in parts is shown in parts
            config=Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}}),
        ).execute()


def beside(path: Path, folder: Path) -> Path:
    """Return a copy below `folder` of the place of a notebook: with the files that it needs beside it."""
    place = folder / path.stem
    place.mkdir()
    for file in (found for pattern in BESIDE for found in path.parent.glob(pattern)):
        shutil.copy(file, place)
    return place


def figures_of(notebook: Any) -> list[Any]:
    """Return the outputs that are figures, in order."""
    return [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if PLOTLY_MIME in output.get("data", {})
    ]


def title_of(notebook: Any, name: str) -> str:
    """Return the first heading of a notebook, else its name."""
    for cell in notebook.cells:
        found = re.search(r"^# (.+)$", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else None
        if found:
            return found[1].strip()
    return name


def write_page(
    notebook: Any, name: str, out: Path, *, pages: Sequence[str] = (), folder: Path = NOTEBOOKS
) -> Page:
    """Write the page of an executed notebook, and the data of its figures; links to notebooks lead to pages.

    `pages` are the names of all pages, so that this one leads to its neighbours; `folder` has the pictures that its
    text shows, which are put into the page.
    """
    figures = draw_still(notebook, name, out / "data")
    exporter = HTMLExporter(exclude_input_prompt=True, exclude_output_prompt=True, embed_images=True)
    resources = {"metadata": {"name": title_of(notebook, name), "path": str(folder)}}
    body, _ = exporter.from_notebook_node(notebook, resources)
    dark = Path(exporter.environment.get_template("static/theme-dark.css").filename or "").read_text("utf-8")
    (out / f"{name}.html").write_text(offline(body, links_of(name, pages), dark), encoding="utf-8")
    return Page(name=name, title=title_of(notebook, name), figures=figures, cells=len(notebook.cells))


def draw_still(notebook: Any, name: str, data: Path) -> int:
    """Change an executed notebook's outputs for a page without a kernel; return how many figures it has.

    A figure becomes a picture that scripts redraw, with links to its data, which is written to the folder `data` beside
    the page; controls become words. The notebook itself is changed.
    """
    found = figures_of(notebook)
    _still_widgets(notebook)
    for number, output in enumerate(found, start=1):
        figure = plots.restored(output["data"][PLOTLY_MIME])
        links: list[str] = []
        for suffix in ("csv", "parquet"):
            target = data / f"{name}-{number:02}.{suffix}"
            plots.save_data(figure, target)
            link = tag("a", suffix.upper(), href=f"{data.name}/{target.name}", download=target.name)
            links += [" ", link]
        about = tag("small", f"Figure {number}, its data:", *links)
        # plotly.js is the site's own: no page of it asks another place.
        output["data"] = {"text/html": plots.figure_html(figure, cdn=False) + about}
    return len(found)


def _still_widgets(notebook: Any) -> None:
    """Replace controls, which need a kernel, by words, and remove progress bars.

    The script that would draw them comes from elsewhere.
    """
    notebook.metadata.pop("widgets", None)
    words = tag("p", tag("i", "These controls need a kernel: open the notebook in JupyterLab."))
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if WIDGET_MIME in output.get("data", {}):
                controls = output["data"].get("text/plain", "").startswith("interactive(")
                output["data"] = {"text/html": words if controls else ""}


def links_of(name: str, pages: Sequence[str]) -> str:
    """Return the line of links at the top of a page: to the index, and to the pages before and after it."""
    at = list(pages).index(name) if name in pages else len(pages)
    beside = [("before: ", pages[at - 1])] if 0 < at < len(pages) else []
    beside += [("next: ", pages[at + 1])] if at + 1 < len(pages) else []
    found = [("All pages", "index"), *((f"{word}{page}", page) for word, page in beside)]
    return tag("nav", *(tag("a", word, href=f"{page}.html") for word, page in found), class_="walkit-pages")


def offline(html: str, top: str = "", dark: str = "") -> str:
    """Return a page of nbconvert without what it loads from elsewhere, with the book's script and style.

    `top` is set above the text, `dark` is the style that takes the place of the light one on a dark system.
    """
    html = re.sub(r'<script\b[^>]*\bsrc="https?://[^"]*"[^>]*>\s*</script>', "", html)
    html = re.sub(r'<link\b[^>]*\bhref="https?://[^"]*"[^>]*>', "", html)
    html = re.sub(
        r"<script\b[^>]*>(?:(?!</script>).)*?https?://(?:cdn|unpkg)(?:(?!</script>).)*?</script>",
        "",
        html,
        flags=re.DOTALL,
    )
    html = re.sub(r'(<a\b[^>]*\bhref="[^":#]+)\.ipynb', r"\1.html", html)
    style = f"<style>{PAGE_STYLE}@media (prefers-color-scheme: dark) {{ {dark} }}</style>"
    html = html.replace("</head>", f'{style}<script src="{SCRIPT}"></script></head>', 1)
    return re.sub(r"(<body\b[^>]*>)", lambda found: found[1] + top, html, count=1)


def write_index(pages: list[Page], out: Path) -> None:
    """Write the index: a line for each page."""
    lines = "".join(
        f'<li><a href="{escape(page.name)}.html">{escape(page.title)}</a> '
        f"<small>{page.cells} cells, {page.figures} figures</small></li>"
        for page in pages
    )
    text = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'><title>walkit: the book</title>"
        f"<style>{STYLE}</style></head><body><h1>walkit: the book</h1>"
        f"<p>Every notebook, executed once.</p><ol>{lines}</ol></body></html>\n"
    )
    (out / "index.html").write_text(text, encoding="utf-8")


def make(paths: list[Path], out: Path, *, executed: Path | None = None, run: bool = True) -> list[Page]:
    """Make the book of these notebooks in `out`, replacing the one that is there; return its pages.

    With `run` false the outputs are those of the notebooks in `executed`, by name.
    """
    shutil.rmtree(out, ignore_errors=True)
    (out / "data").mkdir(parents=True)
    pages, names = [], [path.stem for path in paths]
    with tempfile.TemporaryDirectory(prefix="walkit-book-") as folder:
        for path in paths:
            print(f"{path.stem} ...", end=" ", flush=True)
            began = monotonic()
            source = path if run or executed is None else executed / path.name
            notebook = nbformat.read(source, as_version=4)
            if run:
                execute(notebook, beside(path, Path(folder)))
                if executed is not None:
                    executed.mkdir(parents=True, exist_ok=True)
                    (executed / path.name).write_text(json.dumps(notebook, indent=1), encoding="utf-8")
            pages.append(write_page(notebook, path.stem, out, pages=names, folder=path.parent))
            print(f"{monotonic() - began:.1f} s", flush=True)
    (out / SCRIPT).write_text(plots.plotly_script(), encoding="utf-8")
    write_index(pages, out)
    return pages


def main() -> int:
    """Make the book as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--notebook", type=Path, action="append", help="one of these alone; may be repeated")
    parser.add_argument("--executed", type=Path, help="keep the notebooks with their outputs in this folder")
    parser.add_argument("--no-execute", action="store_true", help="take them from there instead")
    given = parser.parse_args()
    if given.no_execute and given.executed is None:
        parser.error("--no-execute takes the outputs from --executed FOLDER")
    paths = given.notebook or sorted(NOTEBOOKS.glob("*.ipynb"))
    pages = make(paths, given.out, executed=given.executed, run=not given.no_execute)
    print(f"{len(pages)} pages, {sum(page.figures for page in pages)} figures: {given.out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
