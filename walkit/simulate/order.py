"""The cost of append order: the question of AutoMQ #1718, asked of the simulator for many devices and loads at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from walkit.commit.policy import Policy
from walkit.models.device import NS_PER_S, Device, DeviceModel
from walkit.simulate.commit import Call, CommitSimulation, Host

if TYPE_CHECKING:
    import pandas as pd

DRAWS = 20_000


@dataclass(frozen=True, kw_only=True)
class MeasuredOrder:
    """One load under one order of acknowledgement, after the run."""

    records_per_s: float
    p50_us: float
    p99_us: float
    mean_in_flight: float
    """Frames being written, over the time of the run."""
    records_per_frame: float


def measure_order(
    device: DeviceModel,
    *,
    completion: bool,
    writers: int,
    in_flight: int,
    policy: Policy | None,
    value_bytes: int,
    seconds: float,
    seed: int,
    host: Host | None,
) -> MeasuredOrder:
    """Drive a closed loop of writers for `seconds` of virtual time, the first tenth of which does not count."""
    simulation = CommitSimulation(
        Device(device, seed), in_flight=in_flight, completion=completion, policy=policy, host=host
    )
    for _ in range(writers):
        simulation.add_writer(repeat(Call(1, 0, value_bytes)))
    end_ns = round(seconds * NS_PER_S)
    simulation.run(until_ns=end_ns)
    if simulation.error is not None:
        raise simulation.error
    begin_ns = end_ns // 10
    column = simulation.requests()
    inside = column["acknowledged_ns"] > begin_ns
    latency = (column["acknowledged_ns"] - column["intended_ns"])[inside] / 1_000
    frames = {name: np.asarray(simulation.frames.column(name)) for name in simulation.frames.names}
    late = frames["acknowledged_ns"] > begin_ns
    writing_ns = (frames["landed_ns"] - np.maximum(frames["sealed_ns"], begin_ns))[late].clip(0).sum()
    return MeasuredOrder(
        records_per_s=len(latency) * NS_PER_S / (end_ns - begin_ns),
        p50_us=float(np.percentile(latency, 50)),
        p99_us=float(np.percentile(latency, 99)),
        mean_in_flight=float(writing_ns / (end_ns - begin_ns)),
        records_per_frame=float(frames["records"][late].mean()),
    )


def order_cost(
    devices: Mapping[str, DeviceModel],
    policies: Mapping[str, Policy | None],
    *,
    writers: Sequence[int] = (8, 16, 32, 64),
    in_flight: int = 8,
    value_bytes: int = 1024,
    seconds: float = 2.0,
    seed: int = 0,
    host: Host | None = None,
) -> pd.DataFrame:
    """Compare append order with completion order, load by load; a DataFrame with a row for each.

    `devices` and `policies` by the names that the rows get. Columns: device, policy, writers, in_flight;
    throughput_ratio and p99_ratio (append over completion); of each order the records a second, p50, p99 (us), mean
    frames in flight and records in a frame; `expected_per_s`, see `expected_completion_per_s`; and `slowest_of_n`, the
    mean of the slowest of `in_flight` writes over the mean write: how much longer a frame waits for its neighbours
    in append order at the most, if all begin together. If it is 1, order is free.
    """
    import pandas as pd

    rows = []
    for device_name, device in devices.items():
        slowest = slowest_of(device, in_flight, seed)
        for policy_name, policy in policies.items():
            for count in writers:
                look = partial(
                    measure_order,
                    device,
                    writers=count,
                    in_flight=in_flight,
                    policy=policy,
                    value_bytes=value_bytes,
                    seconds=seconds,
                    seed=seed,
                    host=host,
                )
                append, completion = look(completion=False), look(completion=True)
                rows.append(
                    {
                        "device": device_name,
                        "policy": policy_name,
                        "writers": count,
                        "in_flight": in_flight,
                        "throughput_ratio": append.records_per_s / completion.records_per_s,
                        "p99_ratio": append.p99_us / completion.p99_us,
                        **{f"append_{name}": value for name, value in vars(append).items()},
                        **{f"completion_{name}": value for name, value in vars(completion).items()},
                        "expected_per_s": expected_completion_per_s(
                            device, min(count, in_flight), completion.records_per_frame, value_bytes
                        ),
                        "slowest_of_n": slowest,
                    }
                )
    return pd.DataFrame(rows)


def expected_completion_per_s(
    device: DeviceModel, in_flight: int, records_per_frame: float, value_bytes: int
) -> float:
    """Return the records a second that queueing theory expects in completion order with this many frames in flight.

    Little's law: frames in flight over the mean time of a write, or what the device's limits let through, if that is
    less; stalls take their share of the time.
    """
    frame_bytes = math.ceil((records_per_frame * value_bytes + 128) / 64) * 64
    frames_per_s = min(in_flight * 1e6 / device.service_us(frame_bytes), device.writes_per_s(frame_bytes))
    stalls = device.stalls
    moving = 1.0 if stalls is None else stalls.every_s / (stalls.every_s + stalls.duration_ms / 1e3)
    return frames_per_s * records_per_frame * moving


def slowest_of(device: DeviceModel, count: int, seed: int = 0) -> float:
    """Return the mean of the slowest of `count` latencies over their mean, by drawing them; stalls left out."""
    random = Random(seed)
    drawn = np.array([device.latency.draw_ns(random) for _ in range(DRAWS // count * count)])
    return float(drawn.reshape(-1, count).max(axis=1).mean() / max(drawn.mean(), 1))
