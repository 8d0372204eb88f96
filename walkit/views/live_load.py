"""Logs under load, live: a sentence, four cards, and two figures on one clock. It renders, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from walkit.plots import (
    LiveSeries,
    LoadSeries,
    live_latency,
    live_rates,
    move_live_latency,
    move_live_rates,
)
from walkit.plots.live_load import SERIES_MAX
from walkit.plots.units import count_text, duration_text
from walkit.views.cards import Card, CardRow, cards_html
from walkit.views.history import History
from walkit.views.parts import View, figure_pane, pn, sentence_html
from walkit.views.session import Session
from walkit.views.sources import Reading

WINDOWS: Mapping[str, float | None] = {"10 s": 10.0, "1 min": 60.0, "all": None}
"""The windows of time; all: since the first writers, with points that cover more time as it grows."""
MEANINGS = {
    "records/s": "records acknowledged per second, in the newest interval",
    "p99": "latency that 99 % of the records of the newest interval did not exceed",
    "frames in flight \N{MULTIPLICATION SIGN} records per frame": "means of the newest interval",
    "share of the raw device": "frames written per second, as a share of the bare device's durable writes per second",
}

OVER = 1.1
"""A share above this says that the bare device was measured at a slower time."""


class LoadView(View):
    """Shows the work of a session's writers, by place. Used by one thread.

    `inspect(place, position)` is called with a frame that was clicked.
    """

    def __init__(self, session: Session, inspect: Callable[[str, int], None]) -> None:
        super().__init__()
        self.session = session
        self.histories: dict[str, History] = {}
        """By place, in the order in which they were first written to."""
        self.window = "1 min"
        """One of WINDOWS."""
        self.slowest = False
        """Show the frames around the slowest one in the window, not those of the newest interval."""
        self.paused = False
        """The figures are frozen; new points are kept."""
        self.status = pn.pane.HTML("", sizing_mode="stretch_width", margin=(0, 5))
        self.cards = pn.pane.HTML("", sizing_mode="stretch_width", margin=(2, 5))
        self._raw: dict[str, str] = {}
        self._drawn_as: tuple[object, ...] = ()
        self._series: list[LoadSeries] = []
        self._stale = True
        nothing = [nothing_yet()]
        self._figures = [live_rates(nothing, window_s=10.0), live_latency(nothing, window_s=10.0)]
        # Linked, each curve that is moved would be a message of its own, and a redraw.
        self.rates, self.latency = (
            figure_pane(figure, link_figure=False, styles=WIDE) for figure in self._figures
        )
        self._inspect = inspect
        self.latency.param.watch(self._clicked, "click_data")
        self._layout = pn.Column(
            self.status,
            self.cards,
            pn.FlexBox(self.rates, self.latency, gap="0", sizing_mode="stretch_width"),
            sizing_mode="stretch_width",
            margin=0,
        )

    def refresh(self, shown: bool = True) -> None:
        """Take the new points; show them, unless this is paused or hidden."""
        readings = self.session.readings()
        for place, reading in readings.items():
            history = self.histories.setdefault(place, History())
            history.add(reading.points, reading.events, details=reading.details, bands=reading.bands)
            self._raw[place] = reading.raw
            self._stale = self._stale or bool(reading.points or reading.events)
        if not shown:
            return
        self.status.object = self._sentence(readings)
        if self.paused:
            return
        wanted = (self.window, self.slowest)
        if self._stale or wanted != self._drawn_as[1:]:
            self._stale = False
            self._draw(wanted)

    def _sentence(self, readings: Mapping[str, Reading]) -> str:
        warnings = dict.fromkeys(warning for each in readings.values() for warning in each.warnings)
        status = self.session.status()
        if self.paused:
            status += " Paused: the figures are frozen, and new points are kept."
        return sentence_html(status, warnings=warnings, problem=self.session.jobs.problem)

    def in_view(self) -> list[LoadSeries]:
        """Return the series of the places that have points in the window, at most two, the newest ones."""
        window_s = WINDOWS[self.window]
        ends = {place: history.last.time_s for place, history in self.histories.items() if history.last}
        begin_s = -np.inf if window_s is None else max(ends.values(), default=0.0) - window_s
        counts = {place: self.histories[place].since(begin_s) for place in ends}
        places = [place for place in ends if counts[place]]
        newest = sorted(places, key=lambda place: ends[place])[-SERIES_MAX:]
        shown = [(place, self.histories[place]) for place in places if place in newest]
        if window_s is None:
            return [history.whole_series(place, slowest=self.slowest) for place, history in shown]
        return [
            # One point more, so that the curves begin at the edge.
            history.load_series(place, counts[place] + 1, slowest=self.slowest)
            for place, history in shown
        ]

    def _draw(self, wanted: tuple[object, ...]) -> None:
        series = self._series = self.in_view()
        labels = tuple(one.label for one in series)
        window_s = WINDOWS[self.window]
        drawn = series or [nothing_yet()]
        if (labels, wanted[0]) != self._drawn_as[:2]:
            self._figures = [live_rates(drawn, window_s=window_s), live_latency(drawn, window_s=window_s)]
            for figure, pane in zip(self._figures, (self.rates, self.latency), strict=True):
                # The zoom stays until another window is chosen or other places are shown.
                figure.layout.uirevision = f"{labels} {wanted[0]}"
                pane.object = figure
        else:
            move_live_rates(self._figures[0], drawn, window_s=window_s)
            move_live_latency(self._figures[1], drawn, window_s=window_s)
            for pane in (self.rates, self.latency):
                pane.param.trigger("object")
        self._drawn_as = (labels, *wanted)
        self.cards.object = cards_html(cards_of(series, self._raw))

    def _clicked(self, change: Any) -> None:
        for point in (change.new or {}).get("points", ()):
            custom = point.get("customdata")
            if custom and len(self._series) > int(custom[1]):
                self._inspect(self._series[int(custom[1])].label, int(custom[0]))
                return

    def slowest_frame(self) -> tuple[str, int] | None:
        """Return (place, position) of the slowest drawn frame, or None."""
        found = [(one.label, one.frames) for one in self._series if one.frames is not None]
        if not found:
            return None
        label, frames = max(found, key=lambda each: _took_ns(each[1]))
        return label, int(frames.position[frames.slowest])


WIDE = {"flex": "1 1 430px", "min-width": "min(430px, 100%)"}


def _took_ns(frames: Any) -> int:
    return int(frames.acked_ns[frames.slowest] - frames.sealed_ns[frames.slowest])


def nothing_yet() -> LoadSeries:
    """Return a series without points, to draw before there is any."""
    return History().load_series("", 0)


def cards_of(series: Sequence[LoadSeries], raw: Mapping[str, str]) -> list[Card]:
    """Return the four cards of these series; `raw` says by place how the bare device's rate was found."""
    rows: list[list[CardRow]] = [[] for _ in MEANINGS]
    for one in series or [nothing_yet()]:
        live = one.live
        with np.errstate(divide="ignore", invalid="ignore"):
            share = live.frames_per_s / live.raw_per_s
        last = {name: _last(values) for name, values in live.columns().items()}
        flight = f"{_number(last['in_flight'])} \N{MULTIPLICATION SIGN} {_number(last['frame_records'])}"
        told = raw.get(one.label, "")
        for row, value, curve, note in (
            (0, _number(last["records_per_s"]), live.records_per_s, ""),
            (1, _duration(last["p99_us"]), live.p99_us, ""),
            (2, flight, live.in_flight * live.frame_records, ""),
            (3, _share(share), share, _raw_note(live, told, _last(share))),
        ):
            rows[row].append(CardRow(place=one.label, value=value, curve=curve, note=note))
    return [
        Card(title=title, meaning=meaning, rows=each)
        for (title, meaning), each in zip(MEANINGS.items(), rows, strict=True)
    ]


def _raw_note(live: LiveSeries, told: str, share: float) -> str:
    if not told:
        return "the raw device was not measured" if len(live) else ""
    faster = "; it is faster now than it was then: stop and start to measure again" if share > OVER else ""
    return f"raw: {told}{faster}"


def _last(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    seen = values[np.isfinite(values)]
    return float(seen[-1]) if len(seen) else float("nan")


def _number(value: float) -> str:
    return "-" if value != value else count_text(value)


def _duration(us: float) -> str:
    return "-" if us != us else duration_text(us / 1e6)


def _share(share: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    last = _last(share)
    return "-" if last != last else f"{last:.0%}"
