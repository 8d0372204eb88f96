"""The device model: its limits, queue, stalls and failures, in whatever time the caller counts."""

from __future__ import annotations

import pickle
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkit.errors import OptionsError
from walkit.models.device import (
    MIB,
    NS_PER_S,
    PRESETS,
    ConstantLatency,
    Device,
    DeviceModel,
    Latency,
    LognormalLatency,
    MeasuredLatency,
    Service,
    Stalls,
    device_model,
)

LATENCIES: list[Latency] = [
    ConstantLatency(200),
    LognormalLatency(200, 0.5),
    MeasuredLatency((50.0, 100.0, 400.0)),
]


def saturated(device: Device, size_bytes: int, count: int) -> list[Service]:
    """Give the device `count` I/Os at time 0."""
    return [device.submit(0, size_bytes) for _ in range(count)]


@pytest.mark.parametrize(
    ("size_bytes", "per_s"),
    [(4096, 2_800), (64 * 1024, 120 * MIB / (64 * 1024)), (512 * 1024, 120 * MIB / (512 * 1024))],
)
def test_a_volume_gives_what_was_sold(size_bytes: int, per_s: float) -> None:
    """A second of work at once: small I/Os end at the IOPS limit, large ones at the bandwidth."""
    model = PRESETS["essd-pl1-20g"]
    services = saturated(Device(model), size_bytes, round(per_s))
    assert services[-1].done_ns / NS_PER_S == pytest.approx(1, rel=0.02)
    assert model.writes_per_s(size_bytes) == pytest.approx(per_s)


def test_an_idle_device_answers_in_its_latency() -> None:
    """I/Os that come slower than every limit take the latency and the time of their bytes, and wait for nothing."""
    device = Device(DeviceModel(name="d", iops=1000, bytes_per_s=1e6, latency=ConstantLatency(200)))
    for now_ns in range(0, NS_PER_S, 10_000_000):
        assert device.submit(now_ns, 1000) == Service(now_ns, now_ns + 1_200_000, False)


def test_a_full_queue_takes_the_next_one_when_a_slot_is_free() -> None:
    """With two slots and 100 us, five I/Os at once end in pairs."""
    device = Device(DeviceModel(name="d", queue_depth=2, latency=ConstantLatency(100)))
    assert [s.done_ns // 1000 for s in saturated(device, 1, 5)] == [100, 100, 200, 200, 300]


def test_a_large_io_counts_as_several() -> None:
    """1 MiB in units of 256 KiB costs four I/Os: the next one begins four intervals later."""
    device = Device(DeviceModel(name="d", iops=1000, latency=ConstantLatency(1)))
    first, second = saturated(device, MIB, 2)
    assert (first.begins_ns, second.begins_ns) == (0, 4_000_000)


def test_a_stall_delays_running_and_new_io() -> None:
    """With one I/O every 100 us for 30 s, each stall of 20 ms delays the I/O in its way, and no other."""
    model = DeviceModel(name="d", latency=ConstantLatency(50), stalls=Stalls(every_s=1, duration_ms=20))
    device = Device(model, seed=5)
    took_us = [(device.submit(now, 1).done_ns - now) // 1000 for now in range(0, 30 * NS_PER_S, 100_000)]
    slow = sum(t > 50 for t in took_us)
    assert max(took_us) <= 20_050
    assert 15 * 200 < slow < 45 * 201
    assert took_us.count(50) == len(took_us) - slow


def test_failures_have_the_requested_rate() -> None:
    """Of 10,000 I/Os at a rate of 0.1 about 1,000 fail; at 0 none and at 1 all."""
    for rate, low, high in ((0.0, 0, 0), (0.1, 900, 1100), (1.0, 10_000, 10_000)):
        device = Device(DeviceModel(name="d", latency=ConstantLatency(1), failure_rate=rate), seed=3)
        assert low <= sum(s.failed for s in saturated(device, 1, 10_000)) <= high


@pytest.mark.parametrize("latency", LATENCIES, ids=lambda latency: type(latency).__name__)
def test_a_distribution_has_the_mean_it_names(latency: Latency) -> None:
    """The mean of 20,000 draws is within 3 % of `mean_us`, and a pickled copy draws the same numbers."""
    random = Random(1)
    drawn = [latency.draw_ns(random) / 1000 for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(latency.mean_us, rel=0.03)
    again = pickle.loads(pickle.dumps(latency))
    other = Random(1)
    assert [again.draw_ns(other) / 1000 for _ in range(100)] == drawn[:100]


def test_draws_stay_within_the_quantiles() -> None:
    """A thousand draws of the quantiles 0..100 lie between the smallest and the largest of them."""
    measured = MeasuredLatency(tuple(float(n) for n in range(101)))
    random = Random(2)
    assert all(0 <= measured.draw_ns(random) <= 100_000 for _ in range(1000))


@given(
    load=st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(0, MIB)), min_size=1, max_size=30),
    iops=st.none() | st.integers(1, 100_000),
    bytes_per_s=st.none() | st.integers(1000, 10**9),
    depth=st.none() | st.integers(1, 8),
    stalls=st.none() | st.just(Stalls(every_s=0.005, duration_ms=2)),
    latency=st.sampled_from(LATENCIES),
    seed=st.integers(0, 5),
)
def test_services_are_in_order_and_the_same_again(
    load: list[tuple[int, int]],
    iops: int | None,
    bytes_per_s: int | None,
    depth: int | None,
    stalls: Stalls | None,
    latency: Latency,
    seed: int,
) -> None:
    """Any load: I/Os begin in order and not before they came, end after they began, never too many at once; twice."""
    model = DeviceModel(
        name="d", iops=iops, bytes_per_s=bytes_per_s, queue_depth=depth, stalls=stalls, latency=latency
    )
    runs = []
    for _ in range(2):
        device, now, services = Device(model, seed), 0, []
        for gap, size in load:
            now += gap
            services.append(device.submit(now, size))
            assert now <= services[-1].begins_ns <= services[-1].done_ns
        runs.append(services)
    services = runs[0]
    assert runs[1] == services
    assert all(a.begins_ns <= b.begins_ns for a, b in pairwise(services))
    if iops is not None:
        assert all(b.begins_ns - a.begins_ns >= round(NS_PER_S / iops) for a, b in pairwise(services))
    if depth is not None:
        for service in services:
            under_way = [s for s in services if s.begins_ns <= service.begins_ns < s.done_ns]
            assert len(under_way) <= depth


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConstantLatency(-1),
        lambda: LognormalLatency(0, 1),
        lambda: LognormalLatency(1, float("nan")),
        lambda: MeasuredLatency((1.0,)),
        lambda: MeasuredLatency((2.0, 1.0)),
        lambda: Stalls(every_s=0, duration_ms=1),
        lambda: DeviceModel(name="d", latency=700),  # type: ignore[arg-type]
        lambda: DeviceModel(name="d", latency=ConstantLatency(1), iops=0),
        lambda: DeviceModel(name="d", latency=ConstantLatency(1), queue_depth=0),
        lambda: DeviceModel(name="d", latency=ConstantLatency(1), failure_rate=1.5),
        lambda: device_model("floppy"),
    ],
)
def test_a_model_that_cannot_be_is_refused(make: object) -> None:
    """Each bad number, and a name that no preset has, is an OptionsError when the model is made."""
    assert callable(make)
    with pytest.raises(OptionsError):
        make()
