"""The live view: a source, as a sentence, a row of numbers and a figure. It renders, nothing else."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from walkit.measure import Run
from walkit.metrics import LogStatistics
from walkit.plots import Figure, live_timeline, move_live_timeline
from walkit.plots.timeline import seen_curves
from walkit.views.history import History, Point
from walkit.views.parts import View, figure_pane, numbers_html, pn, sentence_html
from walkit.views.sources import Reading, RunSource, Source

if TYPE_CHECKING:
    from walkit.views.cell import CellFace

WINDOW_S = 60.0
"""Seconds back that the figure reaches before it is moved."""
HELP = {f.name: f"{f.metadata['help']} ({f.metadata['unit']})" for f in fields(LogStatistics)}


class LiveView(View):
    """Shows a source. `refresh` takes new data; nothing else changes the page. Used by one thread.

    With `in_cell` it is for a notebook's cell (see `walkit.views.cell`), else for a page of Panel.
    """

    def __init__(self, source: Source, history: History | None = None, *, in_cell: bool = False) -> None:
        super().__init__()
        self.source = source
        self.history = History() if history is None else history
        self.status = pn.pane.HTML("", sizing_mode="stretch_width")
        self.numbers = pn.pane.HTML("", sizing_mode="stretch_width")
        self.window_s = None if isinstance(source, RunSource) else WINDOW_S
        self._seen: tuple[str, ...] = ()
        self._drawing = self._drawn()
        # Linked, each curve that is moved would be a message of its own, and a redraw.
        self.figure = figure_pane(self._drawing, link_figure=False)
        self._layout = pn.Column(self.status, self.numbers, self.figure, sizing_mode="stretch_width")
        self._stale = False
        self._cell: CellFace | None = None
        if in_cell:
            from walkit.views.cell import CellFace

            self._cell = CellFace()
            self._cell.draw(self._drawing)
        self.refresh()

    def _drawn(self) -> Figure:
        """Return the figure of the history: the one that there is, moved, while the same curves have values."""
        series = self.history.series()
        seen = seen_curves(series)
        if seen == self._seen:
            move_live_timeline(self._drawing, series, window_s=self.window_s)
            return self._drawing
        self._seen, drawing = seen, live_timeline(series, window_s=self.window_s)
        drawing.layout.update(uirevision="live", autosize=True)  # the zoom stays
        return drawing

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        if self._cell is not None:
            return self._cell.mimebundle(include=include, exclude=exclude)
        return super()._repr_mimebundle_(include, exclude)  # type: ignore[no-untyped-call]

    def refresh(self) -> bool:
        """Show the new points; False if nothing more will come."""
        reading = self.source.read()
        self.history.add(reading.points, reading.events)
        status = sentence_html(reading.status, warnings=reading.warnings, problem=reading.problem)
        numbers = numbers_html(_numbers(reading, reading.totals or self.history.last))
        self._stale = self._stale or bool(reading.points or reading.events)
        if self._cell is not None:
            self._cell.show(status, numbers)
            if self._stale:
                self._stale = False
                self._drawing = self._drawn()
                self._cell.draw(self._drawing)
            return not reading.ended
        self.status.object = status
        self.numbers.object = numbers
        if self._stale:
            self._stale = False
            before, self._drawing = self._drawing, self._drawn()
            self.figure.object = self._drawing
            if before is self._drawing:
                self.figure.param.trigger("object")
        return not reading.ended

    def close(self) -> None:
        """Stop watching. The view stays as it is."""
        self.source.close()


def view_of_run(run: Run, *, in_cell: bool = False) -> LiveView:
    """Return a view of a recorded Run, on its own clock."""
    return LiveView(RunSource(run), History(points_max=max(len(run.timeline), 1)), in_cell=in_cell)


def _numbers(reading: Reading, last: Point | None) -> list[tuple[str, str, str]]:
    point = last or Point(0.0)
    when = "of the newest interval" if reading.totals is None else "of the whole Run"
    shown = [
        ("records/s", _count(point.records_per_s), f"records acknowledged a second, {when}"),
        ("records per frame", _count(point.frame_records), f"mean {when}"),
        ("frames in flight", _count(point.in_flight), f"mean {when}"),
        ("bytes per frame", _count(point.frame_bytes), f"mean {when}, padding included"),
    ]
    if reading.latency is not None:
        for name, us in reading.latency.percentiles_us().items():
            if name != "p90":
                shown.append((f"{name}, µs", _count(us), f"latency of all {reading.latency.count:,} records"))
    statistics = reading.statistics
    if statistics is not None:
        for name in ("queue_records", "acked_lsn", "durable_lsn", "segments"):
            shown.append((name.replace("_", " "), f"{getattr(statistics, name):,}", HELP[name]))
    return [each for each in shown if each[1] != "-"]


def _count(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
