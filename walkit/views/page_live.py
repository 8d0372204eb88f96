"""The Live page: a load on a scratch log, a modelled volume or both, and its effects as they happen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from walkit._internal.html import Markup, tag
from walkit.errors import OptionsError
from walkit.plots.live_load import (
    SERIES_MAX,
    LoadSeries,
    live_frames,
    live_latency,
    live_rates,
    move_live_frames,
    move_live_latency,
    move_live_rates,
)
from walkit.plots.units import count_text, duration_text
from walkit.views.base import (
    FOCUS_CSS,
    Button,
    Form,
    Select,
    View,
    figure_pane,
    pn,
    sentence_html,
    tool_bar,
)
from walkit.views.history import History, slowest_ns
from walkit.views.load_controls import CHOSEN_CSS, PRESETS, LoadControls, code_of
from walkit.views.session import Session
from walkit.views.sources import Reading
from walkit.views.workspace import Workspace

Float64Array = npt.NDArray[np.float64]

SPARK_POINTS_MAX = 120
WIDTH, HEIGHT = 120, 26

CARDS_CSS = """
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 8px; color: var(--ink); }
.card { border: 1px solid var(--line); border-radius: 6px; background: var(--raised); padding: 4px 10px; min-width: 0; }
.card h2 { font-size: 12px; font-weight: 500; color: var(--soft); margin: 0; overflow-wrap: anywhere; }
.card .line { display: flex; align-items: center; gap: 8px; flex-wrap: wrap; }
.card .value { font-size: 20px; font-variant-numeric: tabular-nums; line-height: 1.25; }
.card .place, .card .note { font-size: 11px; color: var(--soft); overflow-wrap: anywhere; }
.card .note { margin: 0; line-height: 1.25; }
.card svg { flex: 1 1 60px; max-width: 160px; height: 24px; min-width: 50px; }
.card polyline { fill: none; stroke: var(--accent); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
"""


@dataclass(frozen=True, kw_only=True)
class CardRow:
    """The number of one place, and its earlier values, oldest first; nan if unknown."""

    place: str
    value: str
    curve: Float64Array
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A measured quantity, and a row for each place."""

    title: str
    meaning: str
    rows: Sequence[CardRow]


def cards_html(cards: Iterable[Card]) -> str:
    """Return the cards side by side, two in a row on a narrow page."""
    return tag("style", Markup(CARDS_CSS)) + tag("div", *map(_card_html, cards), class_="cards")


def _card_html(card: Card) -> Markup:
    rows: list[Markup] = []
    for row in card.rows:
        place = row.place if len(card.rows) > 1 else ""
        curve = spark_svg(row.curve, spark_words(", ".join(filter(None, (card.title, place))), row.curve))
        named = [tag("span", place, class_="place")] if place else []
        rows.append(tag("div", tag("span", row.value, class_="value"), *named, curve, class_="line"))
        if row.note:
            rows.append(tag("p", row.note, class_="note"))
    return tag("section", tag("h2", card.title, title=card.meaning), *rows, class_="card")


def spark_words(what: str, curve: Float64Array) -> str:
    """Return a small curve in words."""
    seen = curve[np.isfinite(curve)]
    if not len(seen):
        return f"{what}: nothing seen yet"
    low, high, last = (count_text(float(number)) for number in (seen.min(), seen.max(), seen[-1]))
    return f"{what}: last {last}, between {low} and {high}"


def spark_svg(curve: Float64Array, words: str) -> Markup:
    """Return the newest values as a small curve from 0 up, with gaps for unknown values."""
    curve = curve[-SPARK_POINTS_MAX:]
    seen = curve[np.isfinite(curve)]
    top = float(seen.max()) if len(seen) else 0.0
    step = WIDTH / max(len(curve) - 1, 1)
    runs: list[list[str]] = [[]]
    for index, value in enumerate(curve.tolist()):
        if value != value:
            runs.append([])
            continue
        height = HEIGHT - 1 - (HEIGHT - 2) * (value / top if top > 0 else 0.0)
        runs[-1].append(f"{index * step:.1f},{height:.1f}")
    lines = [Markup(f"<polyline points='{' '.join(run)}'/>") for run in runs if len(run) > 1]
    return tag(
        "svg",
        tag("title", words),
        *lines,
        role="img",
        aria_label=words,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
    )


FRAMES = {"of the newest interval": "newest", "around the slowest in view": "slowest"}
WINDOWS: Mapping[str, float | None] = {"10 s": 10.0, "1 min": 60.0, "all": None}
"""The windows of time; all: since the first writers, with points that cover more time as it grows."""
MEANINGS = {
    "records/s": "records acknowledged per second, in the newest interval",
    "p99": "latency that 99 % of the records of the newest interval did not exceed",
    "records per frame": "mean of the newest interval",
    "frames in flight": "mean of the newest interval",
    "share of the raw device": "frames written per second, as a share of the bare device's durable writes per second",
}


class LoadView(View):
    """Shows the work of a session's writers, by place. Used by one thread.

    `inspect(place, position)` is called with a frame that was clicked.
    """

    def __init__(
        self, session: Session, inspect: Callable[[str, int], None], *tools: pn.viewable.Viewable
    ) -> None:
        """`tools` are shown above the figures."""
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
        self._figures = figures_of([nothing_yet()], 10.0)
        # Linked, each curve that is moved would be a message of its own, and a redraw.
        self.frames, self.rates, self.latency = self.panes = [
            figure_pane(figure, link_figure=False, styles=styles)
            for figure, styles in zip(self._figures, ({}, WIDE, WIDE), strict=True)
        ]
        self._inspect = inspect
        self.frames.param.watch(self._clicked, "click_data")
        self._layout = pn.Column(
            self.status,
            self.cards,
            *tools,
            self.frames,
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
            self._figures = figures_of(drawn, window_s)
            for figure, pane in zip(self._figures, self.panes, strict=True):
                # The zoom stays until another window is chosen or other places are shown.
                figure.layout.uirevision = f"{labels} {wanted[0]}"
                pane.object = figure
        else:
            frames, rates, latency = self._figures
            move_live_frames(frames, drawn)
            move_live_rates(rates, drawn, window_s=window_s)
            move_live_latency(latency, drawn, window_s=window_s)
            for pane in self.panes:
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
        label, frames = max(found, key=lambda each: slowest_ns(each[1]))
        return label, int(frames.position[frames.slowest])


WIDE = {"flex": "1 1 430px", "min-width": "min(430px, 100%)"}


def figures_of(series: Sequence[LoadSeries], window_s: float | None) -> list[Any]:
    """Return the figures of the page: frames, rates, latencies."""
    return [
        live_frames(series),
        live_rates(series, window_s=window_s),
        live_latency(series, window_s=window_s),
    ]


def nothing_yet() -> LoadSeries:
    """Return a series without points, to draw before there is any."""
    return History().load_series("", 0)


def cards_of(series: Sequence[LoadSeries], raw: Mapping[str, str]) -> list[Card]:
    """Return the cards of these series; `raw` says by place how the bare device's rate was found."""
    rows: list[list[CardRow]] = [[] for _ in MEANINGS]
    for one in series or [nothing_yet()]:
        live = one.live
        with np.errstate(divide="ignore", invalid="ignore"):
            share = live.frames_per_s / live.raw_per_s
        last = {name: _last(values) for name, values in live.columns().items()}
        told = raw.get(one.label)
        measured = f"raw: {told}" if told else "the raw device was not measured" if len(live) else ""
        for row, value, curve, note in (
            (0, _told(last["records_per_s"], count_text), live.records_per_s, ""),
            (1, _told(last["p99_us"] / 1e6, duration_text), live.p99_us, ""),
            (2, _told(last["frame_records"], count_text), live.frame_records, ""),
            (3, _told(last["in_flight"], count_text), live.in_flight, ""),
            (4, _told(_last(share), "{:.0%}".format), share, measured),
        ):
            rows[row].append(CardRow(place=one.label, value=value, curve=curve, note=note))
    return [
        Card(title=title, meaning=meaning, rows=each)
        for (title, meaning), each in zip(MEANINGS.items(), rows, strict=True)
    ]


def _last(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    seen = values[np.isfinite(values)]
    return float(seen[-1]) if len(seen) else float("nan")


def _told(value: float, text: Callable[[float], str]) -> str:
    return "-" if value != value else text(value)


class LivePage(Form):
    """Start and stop writers; throughput, latency, single frames and queue move while they write."""

    def __init__(self, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]) -> None:
        super().__init__()
        self.session = workspace.session
        self._go = go
        self.controls = LoadControls()
        button: Any = Button
        choice: Any = Select
        group: Any = pn.widgets.RadioButtonGroup
        toggle: Any = pn.widgets.Toggle
        near: dict[str, Any] = {"margin": (0, 4)}
        self.start = button(label="Start", color="primary", width=80, **near)
        self.stop = button(label="Stop", width=70, disabled=True, **near)
        self.new_log = button(label="New log", width=80, **near)
        self.presets = {name: button(label=name, variant="outline", **near) for name in PRESETS}
        self.window = group(
            label="window of the figures",
            options=list(WINDOWS),
            value="1 min",
            width=150,
            stylesheets=[CHOSEN_CSS, FOCUS_CSS],
            **near,
        )
        self.frames = choice(label="frames drawn", options=FRAMES, width=190, **near)
        self.named = {"window": self.window, "frames": self.frames}
        self.pause = toggle(label="Pause", width=70, stylesheets=[CHOSEN_CSS, FOCUS_CSS], **near)
        self.inspect = button(label="Inspect the slowest frame", disabled=True, **near)
        tools = tool_bar(self.window, self.pause, self.frames, self.inspect)
        self.live = LoadView(self.session, self._inspect, tools)
        drawers = self.controls.drawers.values()
        self._layout = pn.Column(
            tool_bar(self.start, self.stop, self.new_log, *self.presets.values(), *drawers),
            self.controls,
            self.live,
            sizing_mode="stretch_width",
            margin=0,
        )
        self.start.on_click(self._start)
        self.stop.on_click(lambda _: self.session.stop())
        self.new_log.on_click(self._new_log)
        self.inspect.on_click(lambda _: self._inspect_slowest())
        for name, preset in self.presets.items():
            preset.on_click(lambda _, name=name: self.choose(name))
        for widget in (self.window, self.frames, self.pause):
            widget.param.watch(lambda _: self._apply_view(), "value")

    def choose(self, preset: str) -> None:
        """Set the controls as a preset has them; writers that are at work go on as they are."""
        self.controls.choose(PRESETS[preset])

    def _start(self, _: Any) -> None:
        try:
            self.session.start(*self.controls.loads)
        except OptionsError as error:
            self.session.refuse(f"{error}.")
        self.refresh()

    def _new_log(self, _: Any) -> None:
        self.session.new_log()
        self.refresh()

    def _apply_view(self) -> None:
        self.live.window = self.window.value
        self.live.slowest = self.frames.value == "slowest"
        self.live.paused = bool(self.pause.value)
        self.refresh()

    def _inspect_slowest(self) -> None:
        found = self.live.slowest_frame()
        if found is not None:
            self._inspect(*found)

    def _inspect(self, place: str, position: int) -> None:
        if place != "this disk":
            self.session.refuse(f"A log on {place} is in its writers' memory, without a file to inspect.")
            self.refresh()
            return
        self._go("inspector", {"log": "scratch", "position": str(position)})

    def refresh(self, shown: bool = True) -> None:
        """Show new data."""
        self.live.refresh(shown)
        if not shown:
            return
        busy, writing = self.session.busy, self.session.writing
        for button, disabled in (
            (self.start, busy or writing),
            (self.stop, busy or not writing),
            (self.new_log, busy or writing),
            (self.inspect, self.live.slowest_frame() is None),
        ):
            button.disabled = disabled

    def code(self) -> str:
        """Return Python that drives the chosen load into a log."""
        try:
            load = self.controls.loads[0]
        except OptionsError:
            return ""
        options, workload = code_of(load, 20_000)
        return f"""import walkit
from walkit.workload import OpenLoop, Workload, drive

log = walkit.open("orders", {options})
view = walkit.views.live(log)
run = drive(log, {workload})"""

    def state(self) -> dict[str, str]:
        """Return the chosen load, and the chosen view."""
        return self.controls.state() | super().state()

    def restore(self, state: Mapping[str, str]) -> None:
        """Set the controls from a URL."""
        self.controls.restore(state)
        super().restore(state)
