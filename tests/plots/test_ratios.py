"""Ratios with their intervals as a figure: each where it belongs, 1 in the middle."""

from __future__ import annotations

from math import log10

import pytest

from walkit.measure import ratio_of
from walkit.plots import alt_text, ratios


def test_each_ratio_is_a_point_with_its_interval() -> None:
    """Three ratios: with an interval beside 1, around 1, and of one measurement; points, whiskers, fill and words."""
    found = {
        "records/s": ratio_of([200.0, 210, 220], [100.0, 100, 100]),
        "<p99>": ratio_of([90.0, 110], [100.0, 100]),
        "p50": ratio_of([50.0], [100.0]),
    }
    drawing = ratios(found, warnings=["one disk"])
    whiskers, points = drawing.data
    assert list(points.x) == [2.1, 1.0, 0.5]
    assert list(points.y) == ["records/s", "&lt;p99&gt;", "p50"]
    assert [x for x in whiskers.x if x is not None] == pytest.approx([2.0, 2.2, 0.9, 1.1])
    assert whiskers.y == ("records/s", "records/s", None, "&lt;p99&gt;", "&lt;p99&gt;", None)
    assert list(points.marker.symbol) == ["circle", "circle-open", "circle-open"]
    assert list(drawing.layout.xaxis.ticktext) == ["0.5", "0.667", "1", "1.5", "2"]
    low, high = drawing.layout.xaxis.range
    assert -low == high > log10(2.2)
    assert alt_text(drawing).endswith("p50 0.5 (no interval known, n = 1)")
    assert drawing.layout.meta["warnings"] == ["one disk"]


def test_no_ratio_and_equal_ones_have_an_axis() -> None:
    """Nothing to compare, and a ratio of exactly 1: an axis of some width around 1."""
    for found in ({}, {"p50": ratio_of([3.0, 3], [3.0, 3])}):
        low, high = ratios(found).layout.xaxis.range
        assert low < 0 < high
