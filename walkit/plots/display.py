"""Figures in a cell, an exported notebook and a report.

Each is plotly's JSON, for viewers that know it, and a picture with the same JSON beside it: a browser that finds
plotly.js (in the page, else from plotly's own address) draws the figure in the picture's place. The picture stays if
scripts do not run. A script element is not used: the sanitizer of an untrusted notebook may turn one into text, but
drops attributes.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from html import escape
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from walkit._internal.arrow import load
from walkit._internal.html import Markup, tag
from walkit.errors import MissingExtraError

try:
    import plotly.graph_objects as go
    from plotly.offline import get_plotlyjs, get_plotlyjs_version
    from plotly.subplots import make_subplots
except ImportError as error:
    raise MissingExtraError(extra="dashboard", package="plotly") from error

__all__ = ["Figure", "figure_html", "go", "make_subplots"]

FileStyle: TypeAlias = Literal["screen", "paper"]
OFFLINE: Mapping[str, Any] = {"displaylogo": False, "plotlyServerURL": "", "showSendToCloud": False}
"""How plotly shows a figure: without a logo, and without a button that would send its data to plotly's cloud."""
CONFIG: Mapping[str, Any] = {"responsive": True, **OFFLINE}
PLOTLY_MIME = "application/vnd.plotly.v1+json"
STEADY = ("entrywidthmode", "entrywidth")
"""Settings of a legend that keep the number of its columns at every width."""
LETTER_PX, SYMBOL_PX, LEGEND_PX = 7, 45, 600
"""Width of a letter of a legend, of the symbol before a name, and of a legend at the narrowest in JupyterLab."""
_numbers = count(1)


class Figure(go.Figure):  # type: ignore[misc]  # plotly has no types
    """A plotly figure that a cell shows in every form that some viewer can read, under any renderer of plotly."""

    _ipython_display_ = None  # plotly's own shows its JSON alone, which an exported notebook drops

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **_: Any) -> dict[str, Any]:
        drawn = json.loads(self.to_json())
        return {
            PLOTLY_MIME: {**_steady(drawn), "config": dict(OFFLINE)},
            "text/html": figure_html(self),
            "text/plain": f"Figure: {alt_text(self)}",
        }

    def _repr_html_(self) -> str:
        return figure_html(self)

    def save(self, path: str | PathLike[str], *, style: FileStyle = "screen", width_in: float = 3.33) -> str:
        """Write it to a file by the suffix of `path`, and return a caption with its title, n, machine and version.

        .svg needs no browser; .pdf and .png are drawn by one, with kaleido (`walkit[plots]`). .csv and .parquet have
        the data. `style="paper"` is for print: `width_in` inches wide (3.33 for a column, 7 for a page), serif letters
        of 8 points, no title, and colours that stay apart in grey. MissingExtraError, OptionsError.
        """
        # By its name: files of figures are built on figures.
        return str(load("walkit.plots.paper").save_figure(self, path, style=style, width_in=width_in))

    def show(self, *args: Any, **named: Any) -> None:
        """Show it: in a notebook as a cell does; elsewhere, or with a renderer named, as plotly does."""
        if args or named or not _in_notebook():
            super().show(*args, **named)
            return
        from IPython.display import display

        display(self)  # type: ignore[no-untyped-call]


def alt_text(figure: go.Figure) -> str:
    """Return a figure's description: its `layout.meta["alt"]`, else its title."""
    meta = figure.layout.meta
    if isinstance(meta, dict) and meta.get("alt"):
        return str(meta["alt"])
    return re.sub(r"<[^>]*>", " ", figure.layout.title.text or "a figure").strip()


def figure_html(figure: go.Figure, *, config: Mapping[str, Any] = CONFIG, cdn: bool = True) -> str:
    """Return a figure as a small piece of HTML, with its alternative text.

    plotly.js is not in it: the page that takes several of them has it once, as `window.Plotly`. A page without it asks
    plotly's address for the version that this figure was made with, unless `cdn` is false, and shows the picture
    without an answer.
    """
    from walkit.plots.svg import svg_of

    alt = alt_text(figure)
    height = int(figure.layout.height or 420)
    picture = b64encode(svg_of(figure).encode()).decode()
    facts = {
        "data-figure": figure.to_json(),
        "data-config": json.dumps(dict(config)),
        "data-source": _source() if cdn else "null",
        "onload": _drawing_js(),
    }
    attributes = " ".join(f"{name}='{_attribute(value)}'" for name, value in facts.items())
    # Written by hand: the JSON is between single quotes, so that its own are not escaped, and it stays small.
    image = f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{picture}" style="max-width:100%" {attributes}>'
    return tag(
        "div",
        Markup(image),
        id=f"walkit-figure-{next(_numbers)}",
        class_="plotly-graph-div",
        role="img",
        aria_label=alt,
        style=f"width:100%;min-height:{height}px",
    )


def restored(drawn: Mapping[str, Any]) -> Figure:
    """Return the figure of plotly's JSON, as in an executed notebook; its arrays are arrays again."""
    layout = _decoded(drawn["layout"])
    legend = {key: value for key, value in layout.get("legend", {}).items() if key not in STEADY}
    return Figure(data=_decoded(drawn["data"]), layout={**layout, "legend": legend})


def _steady(drawn: dict[str, Any]) -> dict[str, Any]:
    """Return plotly's JSON with as many columns in a long legend at every width, for a viewer that resizes figures.

    JupyterLab draws a figure at a width of its own and then resizes it. If the legend has fewer rows afterwards,
    plotly.js does not move it, and it covers the data.
    """
    entries = [
        len(trace["name"]) for trace in drawn["data"] if trace.get("name") and trace.get("showlegend", True)
    ]
    widths = [LETTER_PX * letters + SYMBOL_PX for letters in entries]
    if sum(widths) <= LEGEND_PX:
        return drawn
    columns = max(LEGEND_PX // max(widths), 1)
    steady = dict(zip(STEADY, ("fraction", round(0.98 / columns, 3)), strict=True))
    layout = drawn["layout"]
    return {**drawn, "layout": {**layout, "legend": {**layout.get("legend", {}), **steady}}}


def plotly_script() -> str:
    """Return plotly.js, to be put into a page once."""
    return str(get_plotlyjs())


def _decoded(value: Any) -> Any:
    """Return plain values and arrays for JSON in which plotly packs arrays as base64."""
    if isinstance(value, Mapping):
        if "bdata" in value:
            array = np.frombuffer(b64decode(value["bdata"]), dtype=np.dtype(value["dtype"]).newbyteorder("<"))
            return (
                array.reshape([int(n) for n in str(value["shape"]).split(",")]) if "shape" in value else array
            )
        return {key: _decoded(item) for key, item in value.items()}
    return [_decoded(item) for item in value] if isinstance(value, list) else value


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("'", "&#39;")


@cache
def _source() -> str:
    digest = b64encode(sha256(get_plotlyjs().encode()).digest()).decode()
    return json.dumps(
        {
            "src": f"https://cdn.plot.ly/plotly-{get_plotlyjs_version()}.min.js",
            "integrity": f"sha256-{digest}",
        }
    )


@cache
def _drawing_js() -> str:
    return _script("figure.js").replace("WALKIT_NARROW", narrow_js())


def narrow_js() -> str:
    """Return a function of JavaScript, `(layout, width)`, that makes a figure's layout fit a box of this width, px."""
    return _script("narrow.js")


def _script(name: str) -> str:
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return "\n".join(line.strip() for line in lines if not line.lstrip().startswith("//"))


def _in_notebook() -> bool:
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    shell = get_ipython()
    return shell is not None and hasattr(shell, "kernel")
