"""Two Runs side by side on a page: ratios and distributions as figures, what differs, and files to take away."""

from __future__ import annotations

import io
from collections.abc import Callable

from walkit.plots import latency_distribution, svg_of
from walkit.plots.style import Figure
from walkit.views.parts import FOCUS_CSS, View, figure_pane, pn
from walkit.views.run_list import (
    Comparison,
    differences_html,
    ratios_drawn,
    ratios_html,
    report_page,
    runs_zip,
)

PAGE_CSS = """
h2 { font-size: 1.05em; margin: 0.6em 0 0.2em; }
table { font-size: 13px; border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: 2px 14px 2px 2px; } th { color: var(--soft); text-align: left; font-weight: normal; }
.scroll { overflow: auto; }
"""


class ComparisonFace(View):
    """Two Runs: their latency distributions, the ratio with its interval, what differs, and files to take away."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Comparison | None = None
        self.drawing: Figure | None = None
        self.figure, self.points = figure_pane(), figure_pane()
        self.ratios, self.differences = (
            pn.pane.HTML("", sizing_mode="stretch_width", stylesheets=[PAGE_CSS]) for _ in range(2)
        )
        self.files = [
            pn.widgets.FileDownload(
                callback=made, filename=name, label=label, width=210, embed=False, stylesheets=[FOCUS_CSS]
            )
            for label, name, made in (
                ("Export as HTML", "runs.html", self._as_html),
                ("Export as Parquet (zip)", "runs.zip", self._as_zip),
                ("Export as SVG", "latency.svg", self._as_svg),
            )
        ]
        self._layout = pn.Column(
            self.ratios,
            self.points,
            self.figure,
            self.differences,
            pn.FlexBox(*self.files),
            sizing_mode="stretch_width",
            margin=0,
            visible=False,
        )

    def tell(self, found: Comparison | None) -> None:
        """Show a comparison; None hides the face."""
        self.found = found
        self._layout.visible = found is not None
        if found is None:
            return
        self.drawing = latency_distribution(found.runs)
        self.points.param.update(object=ratios_drawn(found), visible=bool(found.ratios))
        self.figure.param.update(object=self.drawing, visible=True)
        self.ratios.object = f"<h2>Ratio</h2>{ratios_html(found)}"
        self.differences.object = f"<h2>Difference of the settings</h2>{differences_html(found)}"

    def _made(self, make: Callable[[Comparison, Figure], bytes]) -> io.BytesIO:
        if self.found is None or self.drawing is None:
            return io.BytesIO()
        return io.BytesIO(make(self.found, self.drawing))

    def _as_html(self) -> io.BytesIO:
        return self._made(report_page)

    def _as_zip(self) -> io.BytesIO:
        return self._made(lambda found, _: runs_zip(found))

    def _as_svg(self) -> io.BytesIO:
        return self._made(lambda _, drawing: svg_of(drawing).encode())
