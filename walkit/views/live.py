"""The live view: what a source tells, as a sentence, a row of numbers and a figure. It renders, nothing else."""

from __future__ import annotations

import math
from dataclasses import fields

from walkit.measure import Run
from walkit.metrics import LogStatistics
from walkit.plots import live_timeline, move_live_timeline
from walkit.views.history import History, Point
from walkit.views.parts import View, numbers_html, pn, sentence_html
from walkit.views.sources import Reading, RunSource, Source

WINDOW_S = 60.0
"""Seconds back that the figure reaches before it is moved."""
HELP = {f.name: f"{f.metadata['help']} ({f.metadata['unit']})" for f in fields(LogStatistics)}


class LiveView(View):
    """Shows a source. `refresh` takes what is new; nothing else changes the page. Used by one thread."""

    def __init__(self, source: Source, history: History | None = None) -> None:
        super().__init__()
        self.source = source
        self.history = History() if history is None else history
        self.status = pn.pane.HTML("", sizing_mode="stretch_width")
        self.numbers = pn.pane.HTML("", sizing_mode="stretch_width")
        self.window_s = None if isinstance(source, RunSource) else WINDOW_S
        self._drawing = live_timeline(self.history.series(), window_s=self.window_s)
        self._drawing.layout.uirevision = "live"  # what the reader zoomed into stays
        self.figure = pn.pane.Plotly(
            self._drawing,
            link_figure=False,  # else each curve that is moved is a message of its own, and a redraw
            config={"displaylogo": False, "responsive": True},
            sizing_mode="stretch_width",
        )
        self._layout = pn.Column(self.status, self.numbers, self.figure, sizing_mode="stretch_width")
        self.shown = True
        """Whether anybody can see the figure; one that nobody sees is drawn when it is seen again."""
        self._stale = False
        self.refresh()

    def __panel__(self) -> pn.viewable.Viewable:
        """Return what is shown."""
        return self._layout

    def refresh(self) -> bool:
        """Show what is new; False where nothing more will come."""
        reading = self.source.read()
        self.history.add(reading.points, reading.events)
        self.status.object = sentence_html(reading.status, warnings=reading.warnings, problem=reading.problem)
        self.numbers.object = numbers_html(_numbers(reading, self.history.last))
        self._stale = self._stale or bool(reading.points or reading.events)
        if self._stale and self.shown:
            self._stale = False
            move_live_timeline(self._drawing, self.history.series(), window_s=self.window_s)
            self.figure.param.trigger("object")
        return not reading.ended

    def close(self) -> None:
        """Stop watching. What is shown stays as it is."""
        self.source.close()


def view_of_run(run: Run) -> LiveView:
    """Return a view of a recorded Run, on its own clock."""
    return LiveView(RunSource(run), History(points_max=max(len(run.timeline), 1)))


def _numbers(reading: Reading, last: Point | None) -> list[tuple[str, str, str]]:
    point = last or Point(0.0)
    shown = [
        ("records/s", _count(point.records_per_s), "records acknowledged a second, in the newest interval"),
        ("records a frame", _count(point.frame_records), "mean of the newest interval"),
        ("frames in flight", _count(point.in_flight), "mean of the newest interval"),
        ("bytes a frame", _count(point.frame_bytes), "mean of the newest interval, padding included"),
    ]
    if reading.latency is not None:
        for name, us in reading.latency.percentiles_us().items():
            if name != "p90":
                shown.append((f"{name}, µs", _count(us), f"latency of all {reading.latency.count:,} records"))
    statistics = reading.statistics
    if statistics is not None:
        for name in ("queue_records", "acked_lsn", "durable_lsn", "segments"):
            shown.append((name.replace("_", " "), f"{getattr(statistics, name):,}", HELP[name]))
    return shown


def _count(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
