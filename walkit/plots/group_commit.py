"""Frames per second and records per frame of group commit, over the writers or the load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from walkit.measure import Run
from walkit.measure.saturation import offered_per_s
from walkit.plots.facts import Spread, run_facts, run_warnings, spread_curve, spread_words
from walkit.plots.style import NEUTRAL, Figure, curve, dash, dress, go, label_ends, subplots
from walkit.plots.units import COUNTS, LOG_COUNTS, LOG_SECONDS, count_text

SHORT_AXIS = 5, 100
"""From and to this ratio of its ends a logarithmic axis of a panel has ticks at 1, 2 and 5."""
_TITLES = ("records/s", "latency, p50", "frames/s", "records in a frame")
Expected = Sequence[tuple[float, float, float]]
"""Points of a theory: x, frames per second, records per frame."""


class _Point(NamedTuple):
    """One run."""

    x: float
    panels: tuple[float, float, float, float]
    """In the order of the titles."""


def group_commit(runs: Run | Iterable[Run], *, theory: Mapping[str, Expected] | None = None) -> Figure:
    """Draw records/s, the two factors of it (frames/s, records in a frame) and the median latency, as four panels.

    Runs of one name are a series, a colour. x is the number of writers (label `writers`) of closed-loop runs, the calls
    a second that were offered of open-loop ones. Several runs of a series at one x are a point: their median, with a
    whisker for their spread. A dotted line is the raw device's rate of writes if runs have a baseline (the median).
    `theory` has by name points (x, frames/s, records in a frame): a grey broken line over the others, named at its end
    in the last panel if there is one. Axes are logarithmic, except that of frames/s, which begins at 0. ValueError
    without a run that has frames, or with loops of both kinds.
    """
    chosen = [run for run in ([runs] if isinstance(runs, Run) else runs) if run.frames and run.frames.frames]
    if len({run.arrival for run in chosen}) != 1:
        raise ValueError("runs with frames, all of a closed loop or all of an open one, are drawn")
    series: dict[str, dict[float, list[_Point]]] = {}
    for run in chosen:
        point = _point(run)
        series.setdefault(run.name, {}).setdefault(point.x, []).append(point)
    numbers = [len(repeated) for points in series.values() for repeated in points.values()]
    words = spread_words(min(numbers), max(numbers))
    drawing = subplots(rows=2, cols=2, subplot_titles=_TITLES, vertical_spacing=0.16, horizontal_spacing=0.11)
    for index, (name, points) in enumerate(series.items()):
        for panel, trace in enumerate(_curves(name, dict(sorted(points.items())), index)):
            drawing.add_trace(trace, row=panel // 2 + 1, col=panel % 2 + 1)
    for index, (name, expected) in enumerate((theory or {}).items()):
        for panel, trace in _expected(name, expected, dash(index + 1)):
            drawing.add_trace(trace, row=panel // 2 + 1, col=panel % 2 + 1)
    dress(
        drawing,
        "Group commit: records/s = frames/s * records in a frame",
        subtitle=[*([words] if words else []), *run_facts(chosen)],
        warnings=run_warnings(chosen, single=not words, named=False),
        alt="Four panels of lines: " + "; ".join(_describe(name, points) for name, points in series.items()),
        height=640,
    )
    _axes(drawing, chosen)
    known = [n for n, trace in enumerate(drawing.data) if trace.line.color == NEUTRAL and trace.showlegend]
    label_ends(drawing, {n: drawing.data[n].name if len(known) > 1 else "theory" for n in known})
    return drawing


def _point(run: Run) -> _Point:
    """Return the place of a run. ValueError if its number of writers is unknown."""
    writers = run.labels.get("writers")
    x = offered_per_s(run) if run.arrival == "open" else writers
    if not isinstance(x, int | float) or not x > 0:
        raise ValueError(f"run {run.name!r} says neither its writers nor the load that it was offered")
    assert run.frames is not None
    p50_s = run.latency["total"].percentile(50) / 1e9
    frames_per_s = run.frames.frames / run.duration_s
    return _Point(float(x), (run.records_per_s, p50_s, frames_per_s, run.frames.records_mean))


def _curves(name: str, points: Mapping[float, list[_Point]], index: int) -> list[go.Scatter]:
    """Return a trace of one series for each panel."""
    traces = []
    for panel, title in enumerate(_TITLES):
        spreads = [Spread.of([point.panels[panel] for point in each]) for each in points.values()]
        unit = "%{y:.3s}s" if title.startswith("latency") else "%{y:,.4~g}"
        shown = {"legendgroup": name, "showlegend": panel == 0, "hovertemplate": f"%{{x:,.0f}}: {unit}"}
        traces.append(spread_curve(points, spreads, escape(name), index, **shown))
    return traces


def _expected(name: str, points: Expected, kind: str) -> Iterable[tuple[int, go.Scatter]]:
    """Yield the broken lines of a theory: in the panels of the product and of both factors."""
    for panel in (0, 2, 3):
        y = [(frames * records, 0, frames, records)[panel] for _, frames, records in points]
        line = {"dash": kind, "width": 2.5}
        trace = curve([x for x, *_ in points], y, f"{escape(name)}: theory", NEUTRAL, line=line)
        trace.update(
            legendgroup=f"{name} theory", showlegend=panel == 3, hovertemplate="%{x:,.0f}: %{y:,.4~g}"
        )
        yield panel, trace


def _axes(drawing: Figure, runs: Sequence[Run]) -> None:
    """Give the panels their axes, and the panel of frames/s the raw device's line."""
    raw = [run.baseline.writes_per_s for run in runs if run.baseline is not None]
    if raw:
        drawing.add_hline(
            y=Spread.of(raw).median, line={"color": NEUTRAL, "dash": "dot", "width": 1.5}, row=2, col=1
        )
        title = drawing.layout.annotations[2]
        title.text += f"<br>(dotted: raw writes/s, {count_text(Spread.of(raw).median)})"
    ticks: dict[str, Any] = dict(LOG_COUNTS)
    if runs[0].arrival == "closed":
        writers = sorted({run.labels["writers"] for run in runs})  # type: ignore[type-var]  # numbers, see _point
        ticks = {"tickvals": writers, "ticktext": [str(count) for count in writers]}
    drawing.update_xaxes(type="log", **ticks)
    x = "writers" if runs[0].arrival == "closed" else "offered, calls per second"
    drawing.update_xaxes(title_text=x, row=2)
    panels = zip(*(_point(run).panels for run in runs), strict=True)
    looks = (LOG_COUNTS, LOG_SECONDS, None, LOG_COUNTS)
    for number, (values, look) in enumerate(zip(panels, looks, strict=True)):
        if look is not None:
            # At 1, 2 and 5 of a short axis: plotly would name each of nine, one over the other. A very short one
            # has room for them.
            is_short = SHORT_AXIS[0] < max(values) / max(min(values), 1e-9) < SHORT_AXIS[1]
            few = {"dtick": "D2"} if is_short else {}
            drawing.update_yaxes(type="log", **look, **few, row=number // 2 + 1, col=number % 2 + 1)
    drawing.update_yaxes(rangemode="tozero", **COUNTS, row=2, col=1)
    drawing.update_annotations(font={"size": 12})


def _describe(name: str, points: Mapping[float, list[_Point]]) -> str:
    last = max(points)
    rate, _, frames, records = (
        Spread.of([p.panels[panel] for p in points[last]]).median for panel in range(4)
    )
    return (
        f"{name}, at {last:,.0f}: {count_text(rate)} records/s, {count_text(frames)} frames/s of "
        f"{count_text(records)} records"
    )
