"""A view's face in a notebook's cell: a widget that only sends, and never waits for the browser.

While a cell runs, the kernel takes no message of the browser, and Run All leaves no moment between two cells. A widget
that waits for the browser's answer before it sends more (as Panel's do) stops for as long, and one that takes the
browser's messages on the kernel's thread (Plotly's FigureWidget) may be handling one when another thread moves it. This
widget has no messages of its own: its state is sentence, numbers and figures, and each change of it is sent. A browser
that comes late draws the state as it is then.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from walkit.errors import MissingExtraError
from walkit.plots import Figure, figure_html

try:
    import anywidget
    import traitlets
    from plotly.offline import get_plotlyjs
except ImportError as error:
    raise MissingExtraError(extra="notebooks", package="anywidget") from error


@cache
def _plotly_js() -> str:
    return str(get_plotlyjs())


class CellWidget(anywidget.AnyWidget):
    """The widget that the browser draws: see cell.js."""

    _esm = Path(__file__).with_name("cell.js")
    plotly_js = traitlets.Unicode().tag(sync=True)
    status = traitlets.Unicode().tag(sync=True)
    numbers = traitlets.Unicode().tag(sync=True)
    figures = traitlets.Unicode("[]").tag(sync=True)


class CellFace:
    """Sentence, numbers and figures in a cell. Any thread may change it, one at a time."""

    def __init__(self) -> None:
        self.widget = CellWidget(plotly_js=_plotly_js())

    def show(self, status: str, numbers: str) -> None:
        """Show another sentence and other numbers."""
        self.widget.status = status
        self.widget.numbers = numbers

    def draw(self, drawings: Iterable[Figure]) -> None:
        """Show other figures."""
        self.widget.figures = f"[{','.join(drawing.to_json() for drawing in drawings)}]"

    def mimebundle(self, drawings: Iterable[Figure], **named: Any) -> Any:
        """Return its view in a cell and, for a saved notebook that is not trusted, its text and `drawings` as HTML."""
        found = self.widget._repr_mimebundle_(**named)
        assert found is not None, "the widget is never closed"
        data, metadata = found
        still = self.widget.status + self.widget.numbers + "".join(map(figure_html, drawings))
        return {**data, "text/html": still, "text/plain": "a live view"}, metadata
