"""A page of the dashboard's shell with one plot and one table: what `scripts/bench_pages.py` compares with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from walkit.plots.style import figure, go
from walkit.views.page import served
from walkit.views.parts import Button, View, figure_pane, pn, ready
from walkit.views.pick_table import PickTable, Row
from walkit.views.shell import PageKind, Shell
from walkit.views.workspace import DataRoot, Workspace


class MinimalPage(View):
    """One plot and one table, and the button that says that the page can be used."""

    def __init__(self, workspace: Workspace, go_to: Callable[[str, Mapping[str, str]], None]) -> None:
        super().__init__()
        drawing = figure("one curve")
        drawing.add_trace(go.Scatter(x=list(range(100)), y=[n * n for n in range(100)]))
        table = PickTable("rows", ("n", "n times n"), lambda row_id, on: None)
        table.tell([Row(id=str(n), cells=(str(n), str(n * n))) for n in range(10)])
        self._layout = pn.Column(Button(label="Start"), figure_pane(drawing), table)

    def __panel__(self) -> pn.viewable.Viewable:
        """Return what is shown."""
        return self._layout

    def refresh(self, shown: bool = True) -> None:
        """Do nothing."""

    def state(self) -> dict[str, str]:
        """Return nothing."""
        return {}

    def restore(self, state: Mapping[str, str]) -> None:
        """Do nothing."""


if __name__.startswith("bokeh_app"):
    ready()
    served(Shell(Workspace(DataRoot(".")), (PageKind("minimal", "Minimal", MinimalPage),))).servable()
