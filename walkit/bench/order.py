"""`walkit bench order`: the cost of append order against completion order on real files, beside virtual time.

Closed loops of threads, one record a call, on a fresh log for each measurement. Both orders are measured right after
each other, round after round, and a ratio is taken within its round: drift affects both. Shown is the median of the
ratios. Beside it is the mean number of frames in flight: if that is one, nothing is ordered.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from walkit._internal.arguments import check_bool, check_number, refuse
from walkit._internal.report import Cells, TableReport
from walkit.bench.runner import Case, check_counts, in_turns, plain_value, stepping, work_folder
from walkit.config import LogOptions
from walkit.log.validate import require_fits
from walkit.log.wal import WriteAheadLog
from walkit.measure import MachineFacts, Run, RunRecorder
from walkit.measure.frame_timer import FrameWatch
from walkit.metrics import LogStatistics
from walkit.models import ThrottledStorage
from walkit.models.device import device_model
from walkit.objects.entrance import open_log
from walkit.simulate import order_cost
from walkit.storage.address import storage_at
from walkit.storage.mounts import require_folder
from walkit.workload.closedloop import appending, drive_threads
from walkit.workload.drive import finish_run
from walkit.workload.policies import policy_named

if TYPE_CHECKING:
    import pandas as pd

DISK = "disk"
VIRTUAL = "virtual time"
ORDERS: tuple[Literal["append", "completion"], ...] = ("append", "completion")
SEEN = ("records_per_s", "p50_us", "p99_us", "mean_in_flight", "records_per_frame")
SHOWN = {
    "device": "device",
    "policy": "policy",
    "writers": "writers",
    "throughput_ratio": "throughput",
    "p99_ratio": "p99",
    "append_mean_in_flight": "in flight",
    "append_records_per_frame": "records/frame",
    "append_records_per_s": "records/s",
    "append_p99_us": "p99 us",
}


@dataclass(frozen=True, kw_only=True)
class OrderReport(TableReport):
    """The result of one `walkit bench order`."""

    bench = "order"
    left_columns = 2

    table: pd.DataFrame
    """A row for each load, with the columns of `walkit.simulate.order_cost`; `walkit.plots.order_cost` draws it.

    Of each order the median of the rounds; `throughput_ratios` and `p99_ratios` are those of all rounds, in order.
    """
    runs: tuple[Run, ...]
    """Each measurement on real files; labels: device, policy, writers, ack_order, round, mean_in_flight."""
    machine: MachineFacts
    in_flight: int
    rounds: int
    direct_io: bool

    @property
    def notes(self) -> list[str]:
        """The meaning of the numbers, and their machine."""
        of = "ratios of one round" if self.rounds == 1 else f"medians of the ratios of {self.rounds} rounds"
        way = "past the page cache" if self.direct_io else "through the page cache"
        notes = [
            f"append order over completion order, {self.in_flight} frames in flight, durability sync",
            f"{of}, {way} on {self.machine.where}",
            "the other columns are of append order; a ratio means little if almost no frame is in flight",
        ]
        if self.machine.in_memory:
            notes.append("tmpfs: sync means nothing here")
        return notes

    def _head(self) -> Cells:
        return tuple(SHOWN.values())

    def _cells(self) -> list[Cells]:
        def cell(value: Any) -> str:
            if isinstance(value, float):
                return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
            return str(value)

        rows = self.table[list(SHOWN)].itertuples(index=False)
        return [tuple(cell(value) for value in row) for row in rows]

    def _facts(self) -> dict[str, Any]:
        rows = [plain_value({str(n): v for n, v in row.items()}) for row in self.table.to_dict("records")]
        return {"notes": self.notes, "rows": rows}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save every Run into a folder, a Parquet file each, as `walkit.measure.read_runs` and `load` read them."""
        os.makedirs(folder, exist_ok=True)
        for number, run in enumerate(self.runs):
            run.save(os.path.join(folder, f"order-{number:04}"))


def bench_order(
    *,
    writers: Sequence[int] = (8, 16, 32, 64),
    in_flight: int = 8,
    policies: Sequence[str] = ("one-record", "capped:4", "take-all"),
    models: Sequence[str] = ("essd-pl1-20g",),
    value_bytes: int = 1024,
    seconds: float = 0.6,
    rounds: int = 5,
    path: str | None = None,
    direct_io: bool = True,
    progress: bool = True,
) -> OrderReport:
    """Measure both orders for every load: on the disk that `path` is on, on it as slow as each model, in virtual time.

    `policies` by the names that `policy_named` knows. `direct_io` writes past the page cache if the place supports it;
    a modelled device in real time (`ThrottledStorage`) is written through it. Each measurement takes `seconds` and a
    tenth more: `2 * rounds * len(writers) * len(policies) * (1 + len(models))` of them. Nothing is left in `path`
    (default: the folder for temporary files). Blocks; OptionsError for invalid options, and the errors of the log.
    """
    check_bool(progress, "progress")
    _check(writers, rounds, seconds, path)
    chosen = {name: policy_named(name) for name in policies}
    devices = {name: device_model(name) for name in models}
    options = {
        order: LogOptions(in_flight=in_flight, ack_order=order, direct_io=direct_io) for order in ORDERS
    }
    require_fits("value_bytes", value_bytes, options["append"])
    loads = list(product([DISK, *models], policies, writers))
    with work_folder(path) as folder:
        machine = MachineFacts.here(folder)

        def case(device: str, policy: str, count: int, order: Literal["append", "completion"]) -> Case[Run]:
            labels = {"device": device, "policy": policy, "writers": count, "ack_order": order}

            def measure(place: str) -> Run:
                made = replace(options[order], policy=policy_named(policy))
                return _in_folder(place, labels, made, value_bytes, seconds, machine)

            return Case(f"{device}, {policy}", measure)

        cases = [case(*load, order) for load in loads for order in ORDERS]
        with stepping("order", rounds * len(cases), progress) as step:
            found = in_turns(cases, rounds, folder, step)
    found = [
        [replace(run, labels={**run.labels, "round": number}) for number, run in enumerate(each)]
        for each in found
    ]
    turns = enumerate(zip(*found, strict=True))
    runs = [run for number, turn in turns for run in (reversed(turn) if number % 2 else turn)]
    rows = [
        _row(load, dict(zip(ORDERS, found[2 * number : 2 * number + 2], strict=True)), in_flight)
        for number, load in enumerate(loads)
    ]
    virtual = order_cost(
        {f"{name}, {VIRTUAL}": model for name, model in devices.items()},
        chosen,
        writers=writers,
        in_flight=in_flight,
        value_bytes=value_bytes,
        seconds=1.0,
    )
    return OrderReport(
        table=_table(rows, virtual),
        runs=tuple(runs),
        machine=machine,
        in_flight=in_flight,
        rounds=rounds,
        direct_io=direct_io,
    )


def _check(writers: Sequence[int], rounds: int, seconds: float, path: str | None) -> None:
    if not writers:
        refuse("writers", writers, "at least one number")
    check_counts(writers=writers, rounds=[rounds])
    check_number(seconds, "seconds", above=True)
    require_folder(path)


def _in_folder(
    folder: str,
    labels: dict[str, Any],
    options: LogOptions,
    value_bytes: int,
    seconds: float,
    machine: MachineFacts,
) -> Run:
    place = storage_at(os.path.join(folder, "log"))
    device = labels["device"]
    if device != DISK:
        place, options = ThrottledStorage(place, device), replace(options, direct_io=False)
    with open_log(mode="x", storage=place, options=options, events=lambda *_: None) as log:
        log.append(bytes(value_bytes))  # makes the first segment
        return measured(log, labels, os.urandom(value_bytes), seconds, machine)


def measured(
    log: WriteAheadLog, labels: dict[str, Any], value: bytes, seconds: float, machine: MachineFacts
) -> Run:
    """Append by `labels["writers"]` threads in a closed loop for `seconds`; return the Run and its frames in flight."""
    options = log.options
    recorder = RunRecorder(
        f"{labels['device']}, {labels['policy']}, {labels['writers']} writers, {labels['ack_order']} order",
        durability=options.durability,
        options=options.as_dict(),
        labels=labels,
        machine=machine,
    )

    def begin() -> tuple[int, LogStatistics]:
        before = log.statistics()
        recorder.start()
        return recorder.start_ns, before

    threads = [recorder.thread() for _ in range(labels["writers"])]
    watch = FrameWatch(log)
    with watch:
        (_, before), (end_ns, after) = drive_threads(
            appending(log, value), threads, seconds, begin, lambda: (perf_counter_ns(), log.statistics())
        )
    run = finish_run(recorder, before, after, operations={"put": len(threads)}, end_ns=end_ns)
    in_flight = mean_in_flight(watch, recorder.start_ns, end_ns)
    return replace(run, operations={"put": run.records}, labels={**run.labels, "mean_in_flight": in_flight})


def mean_in_flight(watch: FrameWatch, start_ns: int, end_ns: int) -> float:
    """Return the mean number of frames being written between start and end."""
    frames = watch.frames()
    inside = np.minimum(frames.ended_ns, end_ns) - np.maximum(frames.began_ns, start_ns)
    return float(inside.clip(0).sum() / (end_ns - start_ns))


def _seen(run: Run) -> dict[str, float]:
    total, frames = run.latency["total"], run.frames
    return {
        "records_per_s": run.records_per_s,
        "p50_us": total.percentile(50) / 1e3,
        "p99_us": total.percentile(99) / 1e3,
        "mean_in_flight": float(run.labels["mean_in_flight"]),  # type: ignore[arg-type]  # put there above
        "records_per_frame": frames.records_mean if frames is not None else float("nan"),
    }


def _row(load: tuple[str, str, int], runs: dict[str, list[Run]], in_flight: int) -> dict[str, Any]:
    """Return the row of a load: medians of each order, and of the ratios of each round."""
    device, policy, writers = load
    found = {order: [_seen(run) for run in each] for order, each in runs.items()}
    pairs = list(zip(found["append"], found["completion"], strict=True))
    ratios = {
        name: [append[key] / (completion[key] or float("nan")) for append, completion in pairs]
        for name, key in (("throughput", "records_per_s"), ("p99", "p99_us"))
    }
    return {
        "device": device,
        "policy": policy,
        "writers": writers,
        "in_flight": in_flight,
        **{f"{name}_ratio": statistics.median(each) for name, each in ratios.items()},
        **{
            f"{order}_{name}": statistics.median(seen[name] for seen in found[order])
            for order in ORDERS
            for name in SEEN
        },
        **{f"{name}_ratios": each for name, each in ratios.items()},
    }


def _table(rows: list[dict[str, Any]], virtual: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    return pd.concat([pd.DataFrame(rows), virtual], ignore_index=True) if len(virtual) else pd.DataFrame(rows)
