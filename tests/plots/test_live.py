"""The live figure: every curve is a column of the history, on one clock, moved in place."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import pytest

from walkit.measure import RunEvent
from walkit.plots import LiveSeries, live_timeline, move_live_timeline

CURVES = {
    "records/s": "records_per_s",
    "p50": "p50_us",
    "p99": "p99_us",
    "max": "max_us",
    "write and sync of a frame, mean": "write_us",
    "records that wait": "queue_records",
    "frames in flight, mean": "in_flight",
    "records per frame, mean": "frame_records",
    "bytes per frame, mean": "frame_bytes",
}
EVENTS = (RunEvent(1.5, "walkit.segment.seal", {"segment": "<2>"}), RunEvent(2.0, "SIGKILL", {}))


def series(points: int, *, events: tuple[RunEvent, ...] = (), **changes: object) -> LiveSeries:
    """Columns that all differ, with a gap in the middle."""
    columns: dict[str, object] = {"time_s": np.arange(points) / 4}
    for number, name in enumerate(CURVES.values(), start=1):
        values = np.arange(points, dtype=float) + 100 * number
        values[points // 2 : points // 2 + 1] = np.nan
        columns[name] = values
    return LiveSeries(**(columns | changes), events=events)  # type: ignore[arg-type]


def drawn(drawing: go.Figure) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    return {trace.name: np.asarray(trace.y, dtype=float) for trace in drawing.data if trace.mode == "lines"}


def test_each_curve_is_a_column() -> None:
    """Names, values (durations in seconds) and clock of all curves are those of the series; gaps stay gaps."""
    given = series(9)
    drawing = live_timeline(given)
    assert drawn(drawing).keys() == CURVES.keys()
    for trace in drawing.data[:-1]:
        assert np.array_equal(np.asarray(trace.x), given.time_s)
        column = CURVES[trace.name]
        wanted = given.columns()[column] / (1e6 if column.endswith("_us") else 1)
        assert np.array_equal(drawn(drawing)[trace.name], wanted, equal_nan=True)
        assert trace.connectgaps is False


def test_all_panels_share_the_clock() -> None:
    """Six panels, events the lowest; the upper clocks are the lowest one's, and all show the same range."""
    drawing = live_timeline(series(9, events=EVENTS))
    axes = list(drawing.select_xaxes())
    assert len(axes) == 6
    assert [axis.matches for axis in axes] == ["x6"] * 5 + [None]
    assert {tuple(axis.range) for axis in axes} == {(0.0, 2.0)}
    marks = drawing.data[-1]
    assert marks.xaxis == "x6"
    assert list(marks.x) == [1.5, 2.0]
    assert marks.text[0] == "<b>walkit.segment.seal</b><br>segment=&lt;2&gt;"
    assert list(marks.marker.symbol) == ["line-ns-open", "x"]


@pytest.mark.parametrize(
    ("window_s", "expected"), [(None, (0.0, 24.75)), (10.0, (14.75, 24.75)), (99.0, (0.0, 24.75))]
)
def test_the_first_view_is_the_newest_part(window_s: float | None, expected: tuple[float, float]) -> None:
    """The range ends at the newest point and reaches back as far as asked, at most to 0."""
    drawing = live_timeline(series(100), window_s=window_s)
    assert tuple(drawing.layout.xaxis.range) == expected


def test_moving_equals_drawing() -> None:
    """A figure moved from nothing, and from another series, to one is equal to the figure drawn of it."""
    wanted = series(50, events=EVENTS)
    fresh = json.loads(live_timeline(wanted, window_s=5).to_json())
    for first in (series(0), series(80)):
        moved = live_timeline(first, window_s=5)
        move_live_timeline(moved, wanted, window_s=5)
        assert json.loads(moved.to_json()) == fresh


def test_what_was_not_seen_is_left_out() -> None:
    """Columns of nothing but nan have no curve and no panel; before the first point all are there."""
    nothing = np.full(5, np.nan)
    wanted = series(5, p99_us=nothing, queue_records=nothing, in_flight=nothing)
    unseen = live_timeline(wanted)
    assert {"p99", "records that wait"}.isdisjoint(drawn(unseen)) and "p50" in drawn(unseen)
    assert len(list(unseen.select_xaxes())) == 5
    for empty in (series(0), series(1)):  # the one point of the second is a gap
        assert drawn(live_timeline(empty)).keys() == CURVES.keys()
    with pytest.raises(ValueError, match="other curves"):
        move_live_timeline(unseen, series(9))


def test_warnings_and_title_stand_above() -> None:
    """A title is escaped, warnings follow it in red; the look is that of the other figures."""
    layout = live_timeline(series(3), title="<a>", warnings=("tmpfs: sync means nothing here",)).layout
    assert layout.title.text.startswith("&lt;a&gt;")
    assert "sync means nothing here" in layout.title.text
    assert layout.template.layout.paper_bgcolor == "rgba(0,0,0,0)"
