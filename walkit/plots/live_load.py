"""A log under load as it works, in three figures: the stream of frames; rates and queue; latencies.

One or two series at a time: this disk, a modelled volume, or both. Each figure is moved in place to a newer series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from walkit.measure import FrameSample
from walkit.plots import style
from walkit.plots.style import Figure, curve, dress, figure, go, subplots
from walkit.plots.timeline import LiveSeries, event_text
from walkit.plots.units import CLOCK, COUNTS, LOG_SECONDS, SECONDS, bytes_text, duration_text

WAITS = (
    ("place in the segment", style.PURPLE, 0.72),
    ("write and sync", style.BLUE, 0.72),
    ("next sync", style.ORANGE, 0.3),
    ("frames before it", style.VERMILION, 0.3),
)
"""Causes of a frame's wait from its sealing to its acknowledgement, with colour and thickness of the bar."""


EXAMPLE = ((1, 1, 0, 4), (3, 1, 4, 2), (0, 2, 1, 1), (1, 2, 2, 4), (1, 1, 7, 5), (2, 1, 12, 2), (1, 2, 8, 3))
"""Bars of a figure without frames: kind of wait, slot, begin and length."""


def frame_bars(
    series: Sequence[tuple[str, FrameSample | None]],
) -> Iterator[tuple[int, str, float, float, tuple[int, int, str]]]:
    """Give (kind of wait, lane, begin, length, (position, series, words)) for each part of each frame, seconds."""
    for number, (label, frames) in enumerate(series):
        if frames is None:
            continue
        origin = int(frames.sealed_ns.min())
        for index in range(len(frames.position)):
            sealed, began, written, synced, acked = (
                int(getattr(frames, name)[index]) - origin
                for name in ("sealed_ns", "began_ns", "written_ns", "synced_ns", "acked_ns")
            )
            lane = _lane_name(int(frames.lane[index]), label if len(series) > 1 else "")
            words = _describe_frame(frames, index)
            for kind, (begins, ends) in enumerate(
                ((sealed, began), (began, written), (written, synced), (written, acked))
            ):
                if ends > begins:
                    tail = (int(frames.position[index]), number, words)
                    yield kind, lane, begins / 1e9, (ends - begins) / 1e9, tail


def lane_names(series: Sequence[tuple[str, FrameSample | None]]) -> list[str]:
    """Return the names of the lanes, those of one series after those of another, each from the first slot on."""
    return [
        _lane_name(lane, label if len(series) > 1 else "")
        for label, frames in series
        if frames is not None
        for lane in range(int(frames.lane.max()) + 1)
    ]


def _lane_name(lane: int, label: str) -> str:
    return f"{label.partition(',')[0].removeprefix('this ')} slot {lane + 1}".strip()


def _describe_frame(frames: FrameSample, index: int) -> str:
    first, records = int(frames.first_lsn[index]), int(frames.records[index])
    times = {
        name: duration_text(int(getattr(frames, f"{column}_ns")[index] - frames.sealed_ns[index]) / 1e9)
        for name, column in (("write begun", "began"), ("written", "written"), ("acknowledged", "acked"))
    }
    synced = int(frames.synced_ns[index])
    times["synced"] = (
        "not yet" if synced < 0 else duration_text((synced - int(frames.sealed_ns[index])) / 1e9)
    )
    head = f"<b>LSN {first:,} to {first + records - 1:,}</b>" if records > 1 else f"<b>LSN {first:,}</b>"
    if index == frames.slowest:
        head += ", the slowest"
    size = bytes_text(int(frames.frame_bytes[index]))
    what = f"{size} at position {int(frames.position[index]):,}; after its sealing:"
    return "<br>".join([head, what, *(f"{name} {when}" for name, when in times.items())])


OPEN_END_S = 60.0
LATE = 0.6
"""From this part of the clock on there may be no room for words after the beginning of a band."""
Where = Literal["left", "begin", "right"]


class Band(NamedTuple):
    """A configuration of the load, and when it began, seconds on the clock of its series; the next one ends it."""

    begin_s: float
    text: str


class OnClock(Protocol):
    """A series on the clock."""

    @property
    def time_s(self) -> npt.NDArray[np.float64]:
        """Its points, seconds, rising."""

    @property
    def bands(self) -> Sequence[Band]:
        """Its configurations."""


def set_clock(
    drawing: go.Figure,
    series: Sequence[OnClock],
    window_s: float | None,
    clocks: Sequence[str],
    *,
    band_axes: Sequence[tuple[str, str]],
    words: bool = False,
) -> None:
    """Set the range of the clocks, and the bands of the configurations; with `words` they are labelled."""
    begin_s, end_s = span_of(series, window_s)
    layout: dict[str, Any] = {
        name: drawing.layout[name].to_plotly_json() | {"range": [begin_s, end_s]} for name in clocks
    }
    in_view = [
        (index, band, ends_s)
        for index, (band, ends_s) in enumerate(_bands(series, end_s))
        if ends_s > begin_s and band.begin_s < end_s
    ]
    late_s = begin_s + LATE * (end_s - begin_s)
    labels: list[tuple[int, Band, Where]] = [
        (index, band, "left" if band.begin_s <= begin_s else "right" if band.begin_s > late_s else "begin")
        for index, band, _ in in_view
    ]
    # Bands change rarely, and a shape costs more than a curve: they are only set after a change.
    drawn = (in_view, labels)
    if getattr(drawing, "_bands_drawn", None) != drawn:
        drawing._bands_drawn = drawn
        layout["shapes"] = [
            _band_shape(axes, band.begin_s, ends_s)
            for axes in band_axes
            for index, band, ends_s in in_view
            if index % 2
        ]
        if words:
            layout["annotations"] = [_band_label(*each) for each in labels]
    drawing.update_layout(layout, overwrite=True)


def span_of(series: Sequence[OnClock], window_s: float | None) -> tuple[float, float]:
    """Return where the clock begins and ends, in seconds."""
    ends = [float(one.time_s[-1]) for one in series if len(one.time_s)]
    begins = [float(one.time_s[0]) for one in series if len(one.time_s)]
    end_s = max(ends, default=1.0)
    begin_s = min(begins, default=0.0)
    if window_s is not None:
        begin_s = max(begin_s, end_s - window_s)
    return begin_s, max(end_s, begin_s + 1.0)


def _band_shape(axes: tuple[str, str], begin_s: float, end_s: float) -> Mapping[str, Any]:
    """Return a rectangle over the whole height of a panel. Every second configuration has one."""
    return {
        "type": "rect",
        "xref": axes[0],
        "yref": f"{axes[1]} domain",
        "x0": begin_s,
        "x1": end_s,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": {"width": 0},
        "fillcolor": "rgba(128,128,128,0.10)",
    }


def _band_label(index: int, band: Band, where: Where) -> Mapping[str, Any]:
    """Return the words of a configuration: where it begins, or at an edge of the panel."""
    return {
        "text": escape(band.text),
        "x": {"left": 0.0, "begin": band.begin_s, "right": 1.0}[where],
        "xref": "x" if where == "begin" else "x domain",
        "y": 1,
        "yref": "y domain",
        "xanchor": "right" if where == "right" else "left",
        "yanchor": "bottom",
        "yshift": 13 * (index % 2),
        "showarrow": False,
        "font": {"size": 11, "color": style.NEUTRAL},
    }


def _bands(series: Sequence[OnClock], end_s: float) -> list[tuple[Band, float]]:
    """Return the configurations in the order of their beginnings, each with its end; one that continues is one band."""
    known = sorted({band for one in series for band in one.bands})
    bands = [band for index, band in enumerate(known) if index == 0 or band.text != known[index - 1].text]
    # The last one reaches beyond the end, so that it does not change with each point.
    begins = [band.begin_s for band in bands] + [end_s - end_s % OPEN_END_S + OPEN_END_S]
    return list(zip(bands, begins[1:], strict=True))


Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

LATENCY_EDGES_S = tuple((np.logspace(-6, 2, 65)).tolist())
"""Edges of the heat map's rows, seconds: from a microsecond to 100 s, eight rows for each power of ten."""
HEIGHT_PX = 505
FRAMES_PX = 250
MARGIN = {"l": 58, "r": 58, "t": 34, "b": 62}
SERIES_MAX = 2
CLOCKS = ["xaxis", "xaxis2"]
"""The clocks of the panels, one below the other."""
BAND_AXES = (("x", "y"), ("x2", "y3"))
"""The axes of the panels; each has another y axis for events and sizes."""
EVENTS_MAX = 60
"""Events that are drawn of each series, the newest ones."""
EVENTS_WHOLE = ("walkit.segment.rotate", "walkit.checkpoint.finish", "SIGKILL")
"""Events whose line is as high as the panel; those of others are ticks."""
SHAPES: tuple[tuple[str, str, str], ...] = (
    (style.BLUE, style.SKY, style.GREEN),
    (style.VERMILION, style.ORANGE, style.WINE),
)
"""Colours of the first series and of the second."""
HEAT = (
    (0.0, "rgba(86,180,233,0)"),
    (0.001, "rgba(86,180,233,0.22)"),
    (0.01, "rgba(86,180,233,0.4)"),
    (0.1, "rgba(86,180,233,0.65)"),
    (1.0, "rgba(86,180,233,1)"),
)
PERCENTILES = (
    ("p50_us", "p50", style.GREEN),
    ("p99_us", "p99", style.ORANGE),
    ("p999_us", "p99.9", style.VERMILION),
)
CLOCK_AXIS = "clock"
"""Axes of figures whose `layout.meta` has this are one clock: a page may draw one crosshair through all of them."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LoadSeries:
    """Observations of one log under load."""

    label: str
    """Where the log is, in a word or two."""
    live: LiveSeries
    latency_counts: Int64Array
    """Points by rows: records of each interval by latency, between one of LATENCY_EDGES_S and the next."""
    bands: Sequence[Band] = ()
    frames: FrameSample | None = None

    @property
    def time_s(self) -> Float64Array:
        """End of each interval, seconds on the clock of the history."""
        return self.live.time_s


def live_rates(series: Sequence[LoadSeries], *, window_s: float | None = None) -> Figure:
    """Draw records and frames per second with the bare device's writes per second; below, queue and sizes of frames.

    Of the queue the mean of each interval is drawn, and the most if it is known.

    `window_s` is how many seconds back from the newest point the view reaches; None: all of it. Labelled bands are the
    configurations of the load. `move_live_rates` gives the figure newer series of the same labels.
    """
    panels = subplots(
        rows=2,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.11 if len(series) < 2 else 0.17,
        row_heights=[0.56, 0.44],
        specs=[[{"secondary_y": True}], [{"secondary_y": True}]],
    )
    drawing = dress(
        panels,
        "",
        alt="Records and frames per second of a log under load, with the bare device; queue and sizes of frames",
        height=HEIGHT_PX,
        hovermode="x unified",
        margin=MARGIN,
    )
    for number, one in enumerate(series[:SERIES_MAX]):
        first, second, third = SHAPES[number]
        named = _namer(series, one)
        for name, row, secondary, line in (
            ("records/s", 1, False, {"color": first}),
            ("frames/s", 1, False, {"color": second}),
            ("raw device", 1, False, {"color": style.NEUTRAL, "dash": ("dash", "dot")[number]}),
            ("records that wait", 2, False, {"color": first}),
            ("most that wait", 2, False, {"color": first, "dash": "dot"}),
            ("records per frame", 2, False, {"color": second}),
            ("bytes per frame", 2, True, {"color": third, "dash": "dot"}),
        ):
            legend = "legend" if row == 1 else "legend2"
            shown = go.Scatter(mode="lines", name=named(name), line=line, connectgaps=False, legend=legend)
            drawing.add_trace(shown, row=row, col=1, secondary_y=secondary)
    drawing.update_yaxes(rangemode="tozero", **COUNTS)
    _add_events(drawing, 1)
    drawing.update_yaxes(title_text="per second", row=1, col=1, secondary_y=False)
    drawing.update_yaxes(title_text="records", row=2, col=1, secondary_y=False)
    drawing.update_yaxes(title_text="bytes per frame", showgrid=False, row=2, col=1, secondary_y=True)
    drawing.update_yaxes(nticks=5, tickmode="auto", secondary_y=True)
    drawing.update_xaxes(**CLOCK)
    _place_legends(drawing, 0.475 if len(series) < 2 else 0.505, -0.085, wide=len(series) > 1)
    drawing.layout.meta = {**drawing.layout.meta, CLOCK_AXIS: CLOCKS}
    move_live_rates(drawing, series, window_s=window_s)
    return drawing


def move_live_rates(
    drawing: go.Figure, series: Sequence[LoadSeries], *, window_s: float | None = None
) -> None:
    """Make a figure of `live_rates` show other series of the same labels, in place.

    Changed values are replaced as a whole, so a shallow copy (Panel keeps one) shows a difference.
    """
    traces = iter(drawing.data)
    for one in series[:SERIES_MAX]:
        live = one.live
        for values in (
            live.records_per_s,
            live.frames_per_s,
            live.raw_per_s,
            live.queue_records,
            live.queue_max,
            live.frame_records,
            live.frame_bytes,
        ):
            next(traces).update(x=live.time_s, y=values)
    _mark_events(next(traces), series)
    set_clock(drawing, series, window_s, CLOCKS, band_axes=BAND_AXES, words=True)
    _number_axes(drawing, series)


def live_latency(series: Sequence[LoadSeries], *, window_s: float | None = None) -> Figure:
    """Draw a heat map of latencies over time for each series, with p50, p99 and p99.9. Otherwise as `live_rates`."""
    heats = max(len(series[:SERIES_MAX]), 1)
    drawing = dress(
        subplots(rows=heats, cols=1, vertical_spacing=0.1, specs=[[{"secondary_y": True}]] * heats),
        "",
        alt="Latencies of a log under load over time",
        height=HEIGHT_PX,
        hovermode="closest",
        margin=MARGIN,
    )
    _add_heat_rows(drawing, series[:SERIES_MAX])
    drawing.update_xaxes(**CLOCK)
    _place_legends(drawing, 1.0)
    drawing.update_layout(legend={"x": 1, "xanchor": "right", "yanchor": "bottom"})
    drawing.layout.meta = {**drawing.layout.meta, CLOCK_AXIS: CLOCKS[:heats]}
    move_live_latency(drawing, series, window_s=window_s)
    return drawing


def live_frames(series: Sequence[LoadSeries]) -> Figure:
    """Draw single frames on a clock of their own, from the sealing of the first: a lane for each slot in flight.

    The colour shows the cause of a wait. `customdata` of a bar starts with (position, index of its series).
    """
    drawing = figure(
        "",
        alt="The stream of frames of a log under load, each from sealing to acknowledgement",
        height=FRAMES_PX,
        hovermode="closest",
        barmode="overlay",
        margin=MARGIN | {"l": 96, "t": 8, "b": 70},
    )
    for name, paint, width in WAITS:
        bar = go.Bar(
            orientation="h",
            name=name,
            showlegend=True,
            width=width,
            marker={"color": paint, "line": {"color": "rgba(255,255,255,0.55)", "width": 0.6}},
            hovertemplate="%{customdata[2]}<extra></extra>",
        )
        drawing.add_trace(bar)
    words = {"text": "time since the first of these frames was sealed", "font": {"size": 12}, "standoff": 0}
    drawing.update_xaxes(title=words, **SECONDS)
    drawing.update_yaxes(autorange="reversed", showgrid=False)
    _place_legends(drawing, -0.26)
    drawing.update_layout(legend={"title": {"text": "waits for "}})
    move_live_frames(drawing, series)
    return drawing


def _add_heat_rows(drawing: Figure, series: Sequence[LoadSeries]) -> None:
    for row, one in enumerate(series, start=1):
        named = _namer(series, one)
        heat = go.Heatmap(
            colorscale=[list(stop) for stop in HEAT],
            showscale=False,
            name=named("records by latency"),
            hovertemplate="%{z:,} records at %{y:.3s}s<extra></extra>",
        )
        drawing.add_trace(heat, row=row, col=1)
        for _, name, paint in PERCENTILES:
            line = curve(None, None, name, paint, line={"width": 1.6}, connectgaps=False, legendgroup=name)
            line.update(showlegend=row == 1, hovertemplate=f"{name} %{{y:.3s}}s<extra></extra>")
            drawing.add_trace(line, row=row, col=1)
        _add_events(drawing, row)
        looks = {**LOG_SECONDS, "nticks": None, "dtick": 1}
        drawing.update_yaxes(type="log", **looks, row=row, col=1, secondary_y=False)
        x_axis, y_axis = BAND_AXES[row - 1]
        drawing.add_annotation(
            text=escape(one.label) if len(series) > 1 else "latency",
            xref=f"{x_axis} domain",
            yref=f"{y_axis} domain",
            x=0,
            y=1,
            xanchor="left",
            yanchor="bottom",
            showarrow=False,
            font={"size": 12},
        )


def move_live_latency(
    drawing: go.Figure, series: Sequence[LoadSeries], *, window_s: float | None = None
) -> None:
    """Make a figure of `live_latency` show other series of the same labels, in place."""
    traces = iter(drawing.data)
    for one in series[:SERIES_MAX]:
        next(traces).update(**_heat(one))
        for column, _, _ in PERCENTILES:
            next(traces).update(x=one.live.time_s, y=getattr(one.live, column) / 1e6)
        _mark_events(next(traces), [one])
    heats = max(len(series[:SERIES_MAX]), 1)
    set_clock(drawing, series, window_s, CLOCKS[:heats], band_axes=BAND_AXES[:heats])
    _number_axes(drawing, series)


def move_live_frames(drawing: go.Figure, series: Sequence[LoadSeries]) -> None:
    """Make a figure of `live_frames` show other frames, in place."""
    frames = [(one.label, one.frames) for one in series[:SERIES_MAX]]
    rows, lanes, words = list(frame_bars(frames)), lane_names(frames), []
    is_empty = not any(len(one.live) for one in series)
    if is_empty:
        rows = [(kind, f"slot {n}", at, size, (0, 0, "an example")) for kind, n, at, size in EXAMPLE]
        lanes = ["slot 1", "slot 2"]
        words = [{"text": "An example", "xref": "paper", "yref": "paper", "showarrow": False}]
    for number, trace in enumerate(drawing.data):
        mine = [row for row in rows if row[0] == number]
        trace.update(
            y=[row[1] for row in mine],
            base=np.array([row[2] for row in mine]),
            x=np.array([row[3] for row in mine]),
            customdata=[row[4] for row in mine],
            opacity=0.35 if is_empty else 1,
        )
    order = {"categoryorder": "array", "categoryarray": lanes}
    look = {"yaxis": drawing.layout.yaxis.to_plotly_json() | order, "annotations": words}
    drawing.update_layout(look, overwrite=True)
    _number_axes(drawing, series)


def _number_axes(drawing: go.Figure, series: Sequence[LoadSeries]) -> None:
    """Show numbers on the axes once there is a point: plotly numbers an axis of nothing, from 100 ms to 10 ks."""
    shown = any(len(one.live) for one in series)
    for name, axis in drawing.layout.to_plotly_json().items():
        # The one that it matches has the numbers.
        if not name.startswith(("xaxis", "yaxis")) or "matches" in axis:
            continue
        if axis.get("showticklabels", True) != shown:
            drawing.update_layout({name: axis | {"showticklabels": shown}}, overwrite=True)


def _place_legends(drawing: go.Figure, *tops: float, wide: bool = False) -> None:
    look = {"orientation": "h", "yanchor": "top", "x": 0, "font": {"size": 11}, "traceorder": "normal"}
    if wide:  # names with a place: three in a row
        look |= {"entrywidth": 0.33, "entrywidthmode": "fraction"}
    drawing.update_layout(
        {name: {**look, "y": y} for name, y in zip(("legend", "legend2"), tops, strict=False)}
    )


def _namer(series: Sequence[LoadSeries], one: LoadSeries) -> Any:
    short = escape(one.label.partition(",")[0].removeprefix("this "))
    return (lambda name: name) if len(series) < 2 else (lambda name: f"{name}, {short}")


def _add_events(drawing: Figure, row: int) -> None:
    """Add the curve of the events of a panel, on an axis of its own from 0 to 1."""
    events = go.Scatter(
        mode="lines+markers",
        name="events",
        showlegend=False,
        line={"color": style.PURPLE, "width": 1},
        hovertemplate="%{text}<extra></extra>",
    )
    drawing.add_trace(events, row=row, col=1, secondary_y=True)
    drawing.update_yaxes(visible=False, range=[0, 1.04], fixedrange=True, row=row, col=1, secondary_y=True)


def _mark_events(trace: Any, series: Sequence[LoadSeries]) -> None:
    """Draw a line at each event, with a cross on top of a kill."""
    # One mark without a place if no event exists: for an empty curve alone plotly.js draws axes of NaN.
    marks: list[tuple[float | None, float | None, str | None, int]] = [(None, None, None, 0)]
    for event in (event for one in series[:SERIES_MAX] for event in one.live.events[-EVENTS_MAX:]):
        text, high = event_text(event), 1.0 if event.name in EVENTS_WHOLE else 0.04
        size = 9 if event.name == "SIGKILL" else 0
        marks += [(event.time_s, 0, text, 0), (event.time_s, high, text, size), (None, None, None, 0)]
    x, y, texts, sizes = zip(*(marks[1:] or marks), strict=True)
    marker = {"symbol": "x", "color": style.VERMILION, "size": sizes}
    trace.update(x=x, y=y, text=texts, marker=marker, overwrite=True)


def _heat(one: LoadSeries) -> dict[str, Any]:
    """Return x, y and z of a heat map of the rows in which there is something."""
    counts, time_s = one.latency_counts, one.live.time_s
    filled = np.flatnonzero(counts.any(axis=0))
    if not len(filled):
        return {"x": [0, 1], "y": [1e-4, 1e-3], "z": [[None]]}
    low, high = int(filled[0]), int(filled[-1]) + 1
    before_s = time_s[0] - (time_s[1] - time_s[0] if len(time_s) > 1 else 0.25)
    return {
        "x": np.concatenate([[before_s], time_s]),
        "y": np.asarray(LATENCY_EDGES_S[low : high + 1]),
        "z": counts[:, low:high].T.astype(np.float32),
    }
