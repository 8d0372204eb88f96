"""Figures of replicas: lag in three units, lanes of states, bytes by codec; each survives its export."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from walkit import plots
from walkit.errors import OptionsError
from walkit.metrics import TrafficStatistics
from walkit.plots import LagSeries, StateBar, lag_over_time, sent_by_codec, state_lanes

ONE = LagSeries(
    name="<one>",
    time_s=np.array([0.0, 1.0, 2.0, 3.0]),
    records=np.array([0.0, 40.0, np.nan, 7.0]),
    bytes=np.array([0.0, 4096.0, np.nan, 700.0]),
    ms=np.array([0.0, 250.0, np.nan, 3.0]),
)
BARS = (
    StateBar(lane="<one>", state="connecting", start_s=0.0, end_s=1.0, detail="cut <off>"),
    StateBar(lane="<one>", state="streaming", start_s=1.0, end_s=3.0),
    StateBar(lane="two", state="killed", start_s=0.5, end_s=2.5),
)
TRAFFIC = {
    "<one>": TrafficStatistics(batches=2, frame_bytes=3000, plain_bytes=100, zstd_bytes=900, snappy_bytes=0),
    "two": TrafficStatistics(batches=1, frame_bytes=500, plain_bytes=500, zstd_bytes=0, snappy_bytes=0),
}
ALL = [
    *(lag_over_time([ONE], unit=unit) for unit in ("records", "bytes", "ms")),
    state_lanes(BARS),
    sent_by_codec(TRAFFIC),
]
NOTHING = [lag_over_time([]), state_lanes([]), sent_by_codec({})]


@pytest.mark.parametrize(("unit", "expected"), [("records", 40.0), ("bytes", 4096.0), ("ms", 0.25)], ids=str)
def test_a_lag_is_drawn_in_its_unit_and_unknown_is_a_gap(unit: plots.LagUnit, expected: float) -> None:
    """The values of the unit, a gap for an unknown lag, and the newest one in words; another unit is refused."""
    drawing = lag_over_time([ONE], unit=unit)
    (curve,) = drawing.data
    values = np.asarray(curve.y, dtype=float)
    assert values[1] == expected and np.isnan(values[2]) and curve.connectgaps is False
    assert "&lt;one&gt;" in curve.name and "<one>" in drawing.layout.meta["alt"]
    with pytest.raises(OptionsError, match="unit"):
        lag_over_time([ONE], unit="weeks")  # type: ignore[arg-type]


def test_an_unknown_lag_is_not_zero() -> None:
    """A series that ends in nan: the words are "unknown"."""
    ended = LagSeries(
        name="r", time_s=ONE.time_s[:3], records=ONE.records[:3], bytes=ONE.bytes[:3], ms=ONE.ms[:3]
    )
    assert "r: unknown" in lag_over_time([ended]).layout.meta["alt"]


def test_each_state_is_a_bar_in_its_lane() -> None:
    """Bars begin and last as given, a lane for each side with the first on top, reasons escaped."""
    drawing = state_lanes(BARS)
    bars = {bar.name: bar for bar in drawing.data}
    assert set(bars) == {"connecting", "streaming", "killed"}
    assert (bars["streaming"].base[0], bars["streaming"].x[0]) == (1.0, 2.0)
    assert "cut &lt;off&gt;" in bars["connecting"].customdata[0]
    assert list(drawing.layout.yaxis.categoryarray) == ["two", "&lt;one&gt;"]


def test_bytes_are_drawn_by_codec_beside_the_frames() -> None:
    """A stack for each name, and the size of its frames as a mark."""
    bars = {bar.name: bar for bar in sent_by_codec(TRAFFIC).data}
    assert list(bars["zstd"].x) == [900, 0] and list(bars["as stored"].x) == [100, 500]
    assert list(bars["frames, unpacked"].x) == [3000, 500]


@pytest.mark.parametrize("drawing", [*ALL, *NOTHING], ids=lambda drawing: drawing.layout.meta["alt"][:40])
def test_each_figure_survives_its_export(drawing: plots.Figure) -> None:
    """Packed JSON there and back, a picture without scripts, data as a table; also of a figure without data."""
    again = plots.restored(json.loads(drawing.to_json()))
    picture = plots.svg_of(again)
    ET.fromstring(picture)
    assert (
        picture == plots.svg_of(drawing) and "NaN" not in picture and "nan" not in picture.split("<desc")[0]
    )
    assert len(plots.data(drawing)) == len(plots.data(again))
