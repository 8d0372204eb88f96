"""Workloads in virtual time: the Run that comes out, the same one each time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

import walkit
from walkit.commit.policy import OneRecordPerFrame
from walkit.errors import OptionsError
from walkit.measure import Run, load, raw_baseline
from walkit.simulate import (
    ConstantLatency,
    DeviceModel,
    Host,
    LognormalLatency,
    Replicas,
    drive,
    fitted_device,
)
from walkit.workload import OpenLoop, Workload, flight_operations
from walkit.workload.spec import ycsb

SMALL = Workload(operations=2_000, writers=16, value_bytes=100, seed=3)
ONE_EACH = walkit.LogOptions(in_flight=8, policy=OneRecordPerFrame())


def at_one_time(run: Run) -> Run:
    """The Run without the time of day, which alone may differ."""
    return replace(
        run,
        started_at=run.started_at.replace(
            year=2000, month=1, day=1, hour=0, minute=0, second=0, microsecond=0
        ),
    )


@pytest.mark.parametrize("device", ["essd-pl1-20g", DeviceModel(name="d", latency=LognormalLatency(100, 1))])
@pytest.mark.parametrize("order", ["append", "completion"])
def test_the_same_run_for_the_same_seed(
    device: str | DeviceModel, order: Literal["append", "completion"]
) -> None:
    """Twice the same arguments give an equal Run, bit for bit; another seed does not."""
    options = replace(ONE_EACH, ack_order=order)
    first, second = (at_one_time(drive(SMALL, device, options)) for _ in range(2))
    assert first == second
    assert at_one_time(drive(replace(SMALL, seed=4), device, options)) != first


def test_a_run_holds_what_was_seen(tmp_path: Path) -> None:
    """Counts, sizes, parts of latency, frames in flight and the device are in the Run, and survive saving."""
    run = drive(SMALL, options=ONE_EACH)
    assert run.frames is not None
    assert run.records == run.frames.records == 2_000
    assert run.bytes_user is not None and run.bytes_written is not None
    assert 2_000 * 100 < run.bytes_user < run.bytes_written
    assert set(run.latency) == {"total", "queue", "write", "order"}
    assert run.latency["total"].count == 2_000
    assert run.labels["mean_in_flight"] == pytest.approx(8, rel=0.02)
    assert run.labels["virtual_time"] is True and run.options["device"] is not None
    assert run.syncs == 2_000 and run.durability == "sync" and run.arrival == "closed"
    run.save(tmp_path / "run")
    assert load(tmp_path / "run") == run


def test_a_run_with_replicas_shows_how_long_it_waits_for_them() -> None:
    """Wait for 1, 2 and 3 of three varying replicas: the wait grows with the number, and a Run repeats itself."""
    varying = DeviceModel(name="varying", latency=LognormalLatency(200, 1))
    runs = [drive(SMALL, varying, replicas=Replicas(devices=[varying] * 3, acks=acks)) for acks in (1, 2, 3)]
    waits = [run.latency["replicas"].percentile(50) for run in runs]
    assert 200_000 < waits[0] < waits[1] < waits[2]
    again = drive(SMALL, varying, replicas=Replicas(devices=[varying] * 3, acks=3))
    assert at_one_time(again) == at_one_time(runs[2])
    assert [run.labels["ack_replicas"] for run in runs] == [1, 2, 3]
    with pytest.raises(OptionsError):
        drive(
            SMALL,
            varying,
            walkit.LogOptions(in_flight=2, ack_order="completion"),
            replicas=Replicas(devices=[varying]),
        )
    with pytest.raises(OptionsError):
        Replicas(devices=[varying], acks=2)


def test_an_open_loop_is_late_when_the_device_is_full() -> None:
    """Offered twice what one frame at a time can take, latency grows with the run; at half of it, it does not."""
    device = DeviceModel(name="d", latency=ConstantLatency(1_000))
    options = walkit.LogOptions(policy=OneRecordPerFrame())
    late, early = (
        drive(replace(SMALL, operations=1_000, arrival=OpenLoop(rate=rate, process="fixed")), device, options)
        for rate in (2_000, 500)
    )
    assert late.arrival == "open"
    assert late.latency["total"].percentile(100) > 400_000_000
    assert early.latency["total"].percentile(100) < 20_000_000


def test_transactions_stay_whole() -> None:
    """The flights, whose transactions have several records: a frame for each call holds all its records."""
    stream = flight_operations(2_000)
    run = drive(Workload(source=stream, writers=8), options=ONE_EACH)
    assert run.records == len(stream)
    assert run.frames is not None and run.frames.records_max is not None
    assert run.frames.records_max > 1
    assert run.frames.frames == stream.group_count


def test_a_failing_device_ends_the_run() -> None:
    """A device that fails now and then: the Run is of the part before, and says why it ended."""
    device = DeviceModel(name="worn", latency=ConstantLatency(50), failure_rate=0.01)
    run = drive(SMALL, device, ONE_EACH)
    assert run.failure is not None and "modelled device" in run.failure
    assert 0 < run.records < 2_000


def test_slow_hosts_and_rotations_are_in_the_run() -> None:
    """A host that needs 1 ms a frame bounds the run; segments that begin are events on its clock."""
    options = walkit.LogOptions(policy=OneRecordPerFrame(), segment_bytes=64 << 10, frame_bytes_max=4096)
    device = DeviceModel(name="d", latency=ConstantLatency(1))
    run = drive(SMALL, device, options, host=Host(frame_us=1_000))
    assert run.duration_s == pytest.approx(2, rel=0.01)
    assert len(run.events) > 1
    assert {event.name for event in run.events} == {"walkit.segment.rotate"}
    assert all(0 <= event.time_s <= run.duration_s for event in run.events)


def test_this_machine_becomes_a_device(tmp_path: Path) -> None:
    """A device fitted to the raw baseline gives one writer about the baseline's rate."""
    baseline = raw_baseline(tmp_path, block_bytes=4096, operations=500)
    device = fitted_device(baseline)
    run = drive(replace(SMALL, writers=1), device)
    measured_us = baseline.latencies.mean / 1_000
    assert 1e6 / run.records_per_s == pytest.approx(measured_us, rel=0.25)


@pytest.mark.parametrize(
    ("workload", "options", "device"),
    [
        (SMALL, walkit.LogOptions(durability="none"), "gp3"),
        (SMALL, walkit.LogOptions(codec="zstd"), "gp3"),
        (SMALL, walkit.LogOptions(), "floppy"),
        (ycsb("A", operations=100), walkit.LogOptions(), "gp3"),
    ],
)
def test_what_is_not_simulated_is_refused(
    workload: Workload, options: walkit.LogOptions, device: str
) -> None:
    """Other durability levels, a codec, an unknown device and reads are OptionsErrors."""
    with pytest.raises(walkit.OptionsError):
        drive(workload, device, options)
