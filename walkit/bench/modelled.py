"""`walkit bench write --model`: the same table on a modelled device, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from time import process_time

from walkit._internal.arguments import refuse
from walkit.bench.write_report import BenchReport, BenchRow
from walkit.config import LogOptions
from walkit.measure import LatencyHistogram, MachineFacts
from walkit.models.device import NS_PER_S, Device, DeviceModel, device_model
from walkit.simulate import Call, CommitSimulation

RAW_BLOCK_BYTES = 4096
SEED = 0


def bench_modelled(
    model: str | DeviceModel,
    *,
    writers: Sequence[int],
    sizes: Sequence[int],
    options: Sequence[tuple[str, LogOptions]],
    seconds: float,
) -> BenchReport:
    """Drive closed loops of writers on a modelled device, each for `seconds` of virtual time.

    `options` go with the names of their policies. Rows of way "append", beside one writer's loop of blocks. Virtual
    time knows writers and frames, so tasks, tickets and bulk calls have no rows. OptionsError for a durability other
    than "sync" and an unknown device.
    """
    device = device_model(model)
    for _, chosen in options:
        if chosen.durability != "sync":
            refuse("durability", chosen.durability, "only 'sync' is simulated")
    raw = _row(device, LogOptions(), RAW_BLOCK_BYTES, 1, seconds, "raw")
    rows = [raw]
    for size in sizes:
        for policy, chosen in options:
            for count in writers:
                row = _row(device, chosen, size, count, seconds, "append", raw.records_per_s)
                rows.append(replace(row, policy=policy))
    return BenchReport(
        record_bytes=tuple(sizes),
        durability="sync",
        location=f"virtual time on {device.name}",
        raw_block_bytes=RAW_BLOCK_BYTES,
        machine=MachineFacts.here(None),
        rows=tuple(rows),
        model=device.name,
    )


def _row(
    device: DeviceModel,
    options: LogOptions,
    size: int,
    writers: int,
    seconds: float,
    way: str,
    raw_per_s: float = float("nan"),
) -> BenchRow:
    simulation = CommitSimulation(
        Device(device, SEED),
        in_flight=options.in_flight,
        completion=options.ack_order == "completion",
        policy=options.policy,
        frame_bytes_max=options.frame_bytes_max,
        segment_bytes=options.segment_bytes,
    )
    for _ in range(writers):
        simulation.add_writer(repeat(Call(1, 0, size)))
    began_s = process_time()
    simulation.run(until_ns=round(seconds * NS_PER_S))
    cpu_s = process_time() - began_s
    if simulation.error is not None:
        raise simulation.error
    requests, records, frames = simulation.requests(), simulation.acknowledged, len(simulation.frames)
    latency = LatencyHistogram.from_samples(requests["acknowledged_ns"] - requests["intended_ns"])
    return BenchRow(
        way=way,
        callers=writers,
        records=records,
        seconds=seconds,
        p50_us=latency.percentile(50) / 1000,
        p99_us=latency.percentile(99) / 1000,
        latency_of="a write" if way == "raw" else "a call",
        frames=None if way == "raw" else frames,
        records_per_frame=records / frames if way != "raw" and frames else None,
        raw_per_s=raw_per_s if way != "raw" else records / seconds,
        record_bytes=size,
        in_flight=None if way == "raw" else options.in_flight,
        ack_order=None if way == "raw" else options.ack_order or "append",
        cpu_s=cpu_s,
    )
