"""The live view: a source, as a sentence, a row of numbers and figures. It renders, nothing else."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from walkit.metrics import LogStatistics
from walkit.plots import Figure, throughput_timeline
from walkit.plots.live_load import live_latency, live_rates, move_live_latency, move_live_rates
from walkit.views.base import View, figure_pane, numbers_html, pn, sentence_html
from walkit.views.history import History, Point
from walkit.views.sources import Reading, RunSource, Source

if TYPE_CHECKING:
    from walkit.views.cell import CellFace

WINDOW_S = 60.0
"""Seconds back that the figures reach."""
HELP = {f.name: f"{f.metadata['help']} ({f.metadata['unit']})" for f in fields(LogStatistics)}


class LiveView(View):
    """Shows a source. `refresh` takes new data; nothing else changes the page. Used by one thread.

    With `in_cell` it is for a notebook's cell (see `walkit.views.cell`), else for a page of Panel.
    """

    def __init__(self, source: Source, *, in_cell: bool = False) -> None:
        super().__init__()
        self.source = source
        self.history = History()
        self.status = pn.pane.HTML("", sizing_mode="stretch_width")
        self.numbers = pn.pane.HTML("", sizing_mode="stretch_width")
        self.drawings: list[Figure] = []
        """The rates, and the latencies once some are seen; of a Run its timeline alone."""
        # Linked, each curve that is moved would be a message of its own, and a redraw.
        self.panes = [figure_pane(link_figure=False) for _ in range(2)]
        self._layout = pn.Column(self.status, self.numbers, *self.panes, sizing_mode="stretch_width")
        self._stale = True
        self._cell: CellFace | None = None
        if in_cell:
            from walkit.views.cell import CellFace

            self._cell = CellFace()
        self.refresh()

    def _drawn(self) -> list[Figure]:
        """Return the figures of the history: those that there are, moved, or others once latencies are seen."""
        if isinstance(self.source, RunSource):
            return [throughput_timeline(self.source.run)]
        last = self.history.last
        newest = self.history.since(last.time_s - WINDOW_S) + 1 if last is not None else 0
        series = [self.history.load_series("", newest)]
        if len(self.drawings) < 2 and np.isfinite(series[0].live.p50_us).any():
            return [live_rates(series, window_s=WINDOW_S), live_latency(series, window_s=WINDOW_S)]
        if not self.drawings:
            return [live_rates(series, window_s=WINDOW_S)]
        for drawing, move in zip(self.drawings, (move_live_rates, move_live_latency), strict=False):
            move(drawing, series, window_s=WINDOW_S)
        return self.drawings

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        if self._cell is not None:
            # Only plotly can draw the others.
            lasting = self.drawings if isinstance(self.source, RunSource) else []
            return self._cell.mimebundle(lasting, include=include, exclude=exclude)
        return super()._repr_mimebundle_(include, exclude)  # type: ignore[no-untyped-call]

    def refresh(self) -> bool:
        """Show the new points; False if nothing more will come."""
        reading = self.source.read()
        self.history.add(reading.points, reading.events, details=reading.details)
        status = sentence_html(reading.status, warnings=reading.warnings, problem=reading.problem)
        numbers = numbers_html(_numbers(reading, reading.totals or self.history.last))
        if self._cell is not None:
            self._cell.show(status, numbers)
        else:
            self.status.object, self.numbers.object = status, numbers
        if self._stale or reading.points or reading.events:
            self._stale = False
            self._draw()
        return not reading.ended

    def _draw(self) -> None:
        self.drawings = self._drawn()
        for drawing in self.drawings:
            drawing.layout.update(uirevision="live", autosize=True)  # the zoom stays
        if self._cell is not None:
            self._cell.draw(self.drawings)
            return
        for pane, drawing in zip(self.panes, self.drawings, strict=False):
            if pane.object is drawing:
                pane.param.trigger("object")
            pane.param.update(object=drawing, visible=True)

    def close(self) -> None:
        """Stop watching. The view stays as it is."""
        self.source.close()


def _numbers(reading: Reading, last: Point | None) -> list[tuple[str, str, str]]:
    point = last or Point(0.0)
    when = "of the newest interval" if reading.totals is None else "of the whole Run"
    shown = [
        ("records/s", _count(point.records_per_s), f"records acknowledged a second, {when}"),
        ("records per frame", _count(point.frame_records), f"mean {when}"),
        ("frames in flight", _count(point.in_flight), f"mean {when}"),
        ("bytes per frame", _count(point.frame_bytes), f"mean {when}, padding included"),
        ("write and sync of a frame, µs", _count(point.write_us), f"mean {when}"),
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
