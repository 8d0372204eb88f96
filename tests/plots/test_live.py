"""The live figures of a load: every curve is a column of the history, on one clock, moved in place."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import pytest

from walkit.measure import RunEvent
from walkit.plots import LiveSeries
from walkit.plots.live_load import (
    LATENCY_EDGES_S,
    Band,
    LoadSeries,
    live_latency,
    live_rates,
    move_live_latency,
    move_live_rates,
)

CURVES = {
    "records/s": "records_per_s",
    "frames/s": "frames_per_s",
    "raw device": "raw_per_s",
    "records that wait": "queue_records",
    "most that wait": "queue_max",
    "records per frame": "frame_records",
    "bytes per frame": "frame_bytes",
    "p50": "p50_us",
    "p99": "p99_us",
    "p99.9": "p999_us",
}
EVENTS = (RunEvent(1.5, "walkit.segment.seal", {"segment": "<2>"}), RunEvent(2.0, "SIGKILL", {}))


def series(points: int, *, events: tuple[RunEvent, ...] = ()) -> LoadSeries:
    """Columns that all differ, with a gap in the middle, and records of two latencies."""
    columns: dict[str, object] = {"time_s": np.arange(points) / 4}
    for number, name in enumerate((*CURVES.values(), "max_us", "write_us", "in_flight"), start=1):
        values = np.arange(points, dtype=float) + 100 * number
        values[points // 2 : points // 2 + 1] = np.nan
        columns[name] = values
    counts = np.zeros((points, len(LATENCY_EDGES_S) - 1), np.int64)
    counts[:, 20:22] = 3
    return LoadSeries(
        label="this disk",
        live=LiveSeries(**columns, events=events),  # type: ignore[arg-type]
        latency_counts=counts,
        bands=(Band(0.0, "8 threads"), Band(1.0, "64 threads")),
    )


def both(given: LoadSeries, window_s: float | None = None) -> tuple[go.Figure, go.Figure]:
    """Both figures on the clock."""
    return live_rates([given], window_s=window_s), live_latency([given], window_s=window_s)


def test_each_curve_is_a_column() -> None:
    """Names, values (durations in seconds) and clock of all curves are those of the series; gaps stay gaps."""
    given = series(9)
    drawn = {t.name: t for drawing in both(given) for t in drawing.data if t.name in CURVES}
    assert drawn.keys() == CURVES.keys()
    for name, trace in drawn.items():
        wanted = given.live.columns()[CURVES[name]] / (1e6 if CURVES[name].endswith("_us") else 1)
        assert np.array_equal(np.asarray(trace.x), given.time_s)
        assert np.array_equal(np.asarray(trace.y, float), wanted, equal_nan=True)
        assert trace.connectgaps is False


def test_an_event_is_a_line() -> None:
    """A seal and a kill on each figure: a tick, and a line as high as the panel with a cross; both with their words."""
    for drawing in both(series(9, events=EVENTS)):
        marks = drawing.data[-1]
        assert list(marks.x) == [1.5, 1.5, None, 2.0, 2.0, None]
        assert list(marks.y) == [0, 0.04, None, 0, 1, None]
        assert list(marks.marker.size) == [0, 0, 0, 0, 9, 0]
        assert marks.text[0] == marks.text[1] == "<b>walkit.segment.seal</b><br>segment=&lt;2&gt;"
        assert "SIGKILL" in marks.text[3]
        assert list(drawing.layout[marks.yaxis.replace("y", "yaxis")].range) == [0, 1.04]


@pytest.mark.parametrize(
    ("window_s", "expected"), [(None, (0.0, 24.75)), (10.0, (14.75, 24.75)), (99.0, (0.0, 24.75))]
)
def test_the_first_view_is_the_newest_part(window_s: float | None, expected: tuple[float, float]) -> None:
    """The range ends at the newest point and reaches back as far as asked, at most to the first one."""
    for drawing in both(series(100), window_s):
        assert {tuple(drawing.layout[name].range) for name in drawing.layout.meta["clock"]} == {expected}


def test_moving_equals_drawing() -> None:
    """Figures moved from a gap, and from another series, to one are equal to the figures drawn of it."""
    wanted = series(50, events=EVENTS)
    fresh = [json.loads(drawing.to_json()) for drawing in both(wanted, 5)]
    for first in (series(1), series(80)):
        moved = both(first, 5)
        for drawing, move in zip(moved, (move_live_rates, move_live_latency), strict=True):
            move(drawing, [wanted], window_s=5)
        assert [json.loads(drawing.to_json()) for drawing in moved] == fresh
