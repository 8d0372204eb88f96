"""What append order costs, where it can be said beforehand."""

from __future__ import annotations

import pytest

from walkit.commit.policy import OneRecordPerFrame
from walkit.simulate import (
    PRESETS,
    ConstantLatency,
    DeviceModel,
    LognormalLatency,
    MeasuredLatency,
    Stalls,
    order_cost,
)
from walkit.simulate.order import expected_completion_per_s, slowest_of

VOLUME = PRESETS["essd-pl1-20g"]


def test_the_bar_of_the_seed_issue() -> None:
    """The volume at its published limits, 8 to 64 writers, one record a frame: the bar holds, and deep."""
    table = order_cost({"volume": VOLUME}, {"one": OneRecordPerFrame()}, seconds=1)
    assert (table.throughput_ratio >= 0.95).all()
    assert (table.p99_ratio <= 1.1).all()
    assert (table.append_mean_in_flight >= 4).all()
    assert table.completion_records_per_s.to_numpy() == pytest.approx(
        table.expected_per_s.to_numpy(), rel=0.02
    )


def test_take_all_in_a_closed_loop_shows_nothing() -> None:
    """With one frame in flight there is nothing to order: both ratios are exactly 1, whatever the latencies do."""
    device = DeviceModel(name="d", latency=LognormalLatency(200, 1))
    table = order_cost({"d": device}, {"take all": None}, in_flight=1, writers=(8, 64), seconds=1)
    assert (table.throughput_ratio == 1).all()
    assert (table.p99_ratio == 1).all()
    assert (table.append_records_per_frame >= 4).all()


def test_varying_latency_has_its_price() -> None:
    """Eight writers of one record on lognormal latencies: append order costs throughput, within bounds."""
    device = DeviceModel(name="d", latency=LognormalLatency(200, 1))
    row = order_cost({"d": device}, {"one": OneRecordPerFrame()}, writers=(8,), seconds=1).iloc[0]
    assert row.completion_records_per_s == pytest.approx(row.expected_per_s, rel=0.1)
    assert 1 / row.slowest_of_n <= row.throughput_ratio < 0.9


def test_the_slowest_of_constant_latencies_is_as_fast_as_all() -> None:
    """Constant latencies have no slowest; of two uniform ones the slower takes 4/3 of the mean."""
    assert slowest_of(VOLUME, 8) == 1
    uniform = DeviceModel(name="u", latency=MeasuredLatency((0.0, 100.0)))
    assert slowest_of(uniform, 2) == pytest.approx(4 / 3, rel=0.02)


def test_stalls_and_limits_are_expected() -> None:
    """A device that stands still half of the time is expected to give half; its limits bound what depth would give."""
    free = DeviceModel(name="d", latency=ConstantLatency(100))
    half = free.with_latency(ConstantLatency(100), stalls=Stalls(every_s=0.01, duration_ms=10))
    assert expected_completion_per_s(free, 4, 1, 100) == 40_000
    assert expected_completion_per_s(half, 4, 1, 100) == 20_000
    assert expected_completion_per_s(VOLUME, 64, 2, 100) == 5_600
