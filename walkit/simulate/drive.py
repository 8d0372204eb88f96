"""The driver of virtual time: a workload on a modelled device, as a Run like any other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import repeat
from typing import Any, NamedTuple, Protocol

import numpy as np

from walkit._internal.arguments import check_kind, refuse
from walkit.config import LogOptions
from walkit.format.layout import ALIGNMENT_BUFFERED, ALIGNMENT_DIRECT
from walkit.measure import FrameSummary, LatencyHistogram, Run, RunRecorder
from walkit.models.device import Device, DeviceModel, device_model
from walkit.simulate.commit import CommitSimulation, Host, Int64s, Sizes
from walkit.simulate.replicas import Replicas


class CallColumns(NamedTuple):
    """The calls of one writer, in order: arrays of one length. A call is a record or a transaction."""

    records: Int64s
    key_bytes: Int64s
    value_bytes: Int64s
    due_ns: Int64s | None
    """When each call is meant to begin, from the start of the run; None: when the one before is done."""


class Driven(Protocol):
    """The simulated part of a `walkit.workload.Workload`."""

    @property
    def name(self) -> str:
        """The name of the Run."""

    @property
    def seed(self) -> int:
        """Fixes operations and arrivals, and the device's own chances."""

    def calls(self) -> Sequence[CallColumns]:
        """Return the calls of each writer. OptionsError for what a log cannot do."""

    def as_dict(self) -> dict[str, Any]:
        """Return what was asked for as plain values."""


def drive(
    workload: Driven,
    device: str | DeviceModel = "essd-pl1-20g",
    options: LogOptions | None = None,
    *,
    host: Host | None = None,
    replicas: Replicas | None = None,
    bucket_s: float | None = None,
) -> Run:
    """Drive a workload into a log on a modelled device, in virtual time, and return the Run.

    Of the options, `in_flight`, `ack_order`, `policy`, `direct_io` (its alignment), `frame_bytes_max` and
    `segment_bytes` count; durability is "sync", and OptionsError says so of another, and of a codec. The same
    arguments give an equal Run, but for the time of day. Its histograms: "total"; "queue" until the frame is sealed;
    "write" until it has landed; "order" until all before it have, which is what append order costs; with `replicas`
    "replicas" from there until enough of them have it. Its
    label `mean_in_flight` is the number of frames that were being written, over the time of the run; the load of an
    open loop stands in its label `offered_per_s`, as in a Run on a real log.
    If the model lets an I/O fail, the Run is of the part before and says so in `failure`.
    """
    options = LogOptions() if options is None else options
    if not hasattr(workload, "calls"):
        refuse("workload", workload, "a Workload")
    check_kind(options, LogOptions, "options", or_none=False)
    model = device_model(device)
    _require_simulated(options)
    check_kind(replicas, Replicas, "replicas")
    if replicas is not None and options.ack_order == "completion":
        refuse("replicas", replicas, "a log of ack_order='completion' does not wait for replicas")
    simulation = CommitSimulation(
        Device(model, workload.seed),
        in_flight=options.in_flight,
        completion=options.ack_order == "completion",
        policy=options.policy,
        frame_bytes_max=options.frame_bytes_max,
        segment_bytes=options.segment_bytes,
        alignment=ALIGNMENT_DIRECT if options.direct_io else ALIGNMENT_BUFFERED,
        host=host,
        replicas=replicas,
    )
    writers = workload.calls()
    asked = workload.as_dict()
    due_ns = [int(calls.due_ns[-1]) for calls in writers if calls.due_ns is not None and len(calls.due_ns)]
    recorder = RunRecorder(
        workload.name,
        durability="sync",
        seed=workload.seed,
        options={
            **options.as_dict(),
            "workload": asked,
            "device": asdict(model),
            "host": asdict(host or Host()),
            **({} if replicas is None else {"replicas": replicas.as_dict()}),
            **({"due_s": max(due_ns) / 1e9} if due_ns else {}),
        },
        labels={
            "writers": len(writers),
            "device": model.name,
            "virtual_time": True,
            **({} if replicas is None else {"ack_replicas": replicas.acks}),
            **_offered(asked.get("arrival")),
        },
        arrival="open" if any(calls.due_ns is not None for calls in writers) else "closed",
        clock=lambda: simulation.now_ns,
    )
    simulation.on_event = recorder.event
    for calls in writers:
        simulation.add_writer(_calls(calls))
    simulation.run()
    return _finish(recorder, simulation, bucket_s, waits=replicas is not None)


def _offered(arrival: object) -> dict[str, Any]:
    """Return the labels by which an open loop's load is known, as the driver of real logs gives them."""
    if not isinstance(arrival, Mapping) or "rate" not in arrival:
        return {}
    return {"offered_per_s": arrival["rate"], "process": arrival.get("process")}


def _require_simulated(options: LogOptions) -> None:
    for name, wanted in (("durability", "sync"), ("codec", None)):
        value = getattr(options, name)
        if value != wanted:
            refuse(name, value, f"only {wanted!r} is simulated", wanted)


def _calls(columns: CallColumns) -> Iterator[Sizes]:
    due = repeat(None) if columns.due_ns is None else columns.due_ns.tolist()
    sizes = (columns.records.tolist(), columns.key_bytes.tolist(), columns.value_bytes.tolist())
    return zip(*sizes, due, strict=False)


def _finish(
    recorder: RunRecorder, simulation: CommitSimulation, bucket_s: float | None, *, waits: bool
) -> Run:
    requests = simulation.requests()
    frames = {name: np.asarray(simulation.frames.column(name)) for name in simulation.frames.names}
    counts, acknowledged = requests["count"], requests["acknowledged_ns"]
    recorder.thread().record_many(requests["intended_ns"], acknowledged, counts)
    parts = {
        "queue": requests["sealed_ns"] - requests["intended_ns"],
        "write": requests["landed_ns"] - requests["sealed_ns"],
        "order": requests["passed_ns"] - requests["landed_ns"],
    }
    if waits:
        parts["replicas"] = acknowledged - requests["passed_ns"]
    run = recorder.finish(
        operations={"records": int(counts.sum())},
        bytes_user=simulation.user_bytes,
        bytes_written=int(frames["footprint"].sum()),
        syncs=len(frames["records"]),
        frames=FrameSummary.from_sizes(
            frames["records"], frames["footprint"], padding_bytes=simulation.padding_bytes
        ),
        failure=None if simulation.error is None else f"StorageError: {simulation.error}",
        latency={name: LatencyHistogram.from_samples(ns, counts=counts) for name, ns in parts.items()},
        end_ns=simulation.now_ns,
        bucket_s=bucket_s,
    )
    in_flight = (frames["landed_ns"] - frames["sealed_ns"]).sum() / max(simulation.now_ns, 1)
    return replace(run, labels={**run.labels, "mean_in_flight": float(in_flight)})
