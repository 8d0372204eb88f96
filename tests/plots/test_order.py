"""The figure of what append order costs: every row of the table is a point of it."""

from __future__ import annotations

import pytest

from walkit.commit.policy import OneRecordPerFrame
from walkit.plots import order_cost
from walkit.simulate import PRESETS
from walkit.simulate import order_cost as order_cost_table


def test_every_row_is_a_point_in_each_panel() -> None:
    """A table of one device, two policies and two numbers of writers gives two curves a panel, with its numbers."""
    table = order_cost_table(
        {"volume": PRESETS["essd-pl1-20g"]},
        {"one": OneRecordPerFrame(), "all": None},
        writers=(2, 8),
        seconds=0.1,
    )
    drawing = order_cost(table)
    assert [curve.name for curve in drawing.data] == ["volume, one"] * 3 + ["volume, all"] * 3
    first = table[table.policy == "one"]
    for curve, column in zip(
        drawing.data, ("throughput_ratio", "p99_ratio", "append_mean_in_flight"), strict=False
    ):
        assert list(curve.x) == [2, 8]
        assert list(curve.y) == pytest.approx(list(first[column]))
    assert sum(bool(curve.showlegend) for curve in drawing.data) == 2
