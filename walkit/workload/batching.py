"""A log under one load, with its frames batched in different ways, on modelled devices and on real storage."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Final, Literal, TypeAlias

from walkit._internal.arguments import check_choice
from walkit.commit.policy import CappedFrames, Linger
from walkit.config import MIB, LogOptions
from walkit.measure import Run
from walkit.models.device import OBJECT_STORES, PRESETS
from walkit.objects.entrance import object_store_of, open_log
from walkit.objects.layout import CLAIMS_KEY, MANIFEST_KEY
from walkit.objects.remove import remove_log
from walkit.simulate import drive as simulate
from walkit.storage.address import is_object_url
from walkit.workload.drive import drive
from walkit.workload.spec import OpenLoop, Workload

Batching: TypeAlias = Literal["interval, ms", "bytes of an object", "in flight"]
IN_FLIGHT: Final = 16
LATENCY_MAX_S: Final = 0.5
"""So long a call may take before the next one of an open loop has no task."""


def batched(batching: Batching, value: int) -> LogOptions:
    """Return the options of a log whose frames are batched in one way: 16 in flight, unless that is varied.

    An interval ends early when a MiB has come together. Bytes are the most that a frame takes. OptionsError.
    """
    check_choice(batching, ("interval, ms", "bytes of an object", "in flight"), "batching")
    if batching == "in flight":
        return LogOptions(in_flight=value, policy=Linger(0, MIB))
    policy = Linger(value * 1000, MIB) if batching == "interval, ms" else CappedFrames(size_bytes=value)
    return LogOptions(in_flight=IN_FLIGHT, policy=policy)


def paced(rate: float, record_bytes: int, seconds: float) -> Workload:
    """Return an open loop of records of one size, with as many tasks as calls of half a second need."""
    return Workload(
        operations=max(int(rate * seconds), 1),
        tasks=max(int(rate * LATENCY_MAX_S), 64),
        arrival=OpenLoop(rate=rate),
        keys="uniform",
        value_bytes=record_bytes,
    )


def batching_sweep(
    places: Mapping[str, str],
    batching: Batching,
    values: Sequence[int],
    load: Workload,
    *,
    seeds: Iterable[int] = range(3),
    step: Callable[[int, int], object] = lambda done, total: None,
) -> list[Run]:
    """Drive the load once for each place, value and seed, in turns; return the Runs, named after their places.

    A place is the name of a preset, in virtual time, or a folder or URL: there each Run has a new log below it, which
    is removed. The label of a Run that is named `batching` has its value. `step` is called with the Runs that are done
    and all. Draw them with `walkit.plots.batching_cost`. Raises the errors of `drive` and `walkit.open`.
    """
    asked = [(seed, value, name) for seed in seeds for value in values for name in places]
    runs: list[Run] = []
    for seed, value, name in asked:
        step(len(runs), len(asked))
        options, once = batched(batching, value), replace(load, seed=seed)
        place = places[name]
        run = simulate(once, place, options) if place in PRESETS else _on(place, once, options)
        labels = {**run.labels, batching: value, "objects": is_object_url(place) or place in OBJECT_STORES}
        runs.append(replace(run, name=name, labels=labels))
    return runs


def _on(place: str, load: Workload, options: LogOptions) -> Run:
    # A name of its own: no log is made again where one was removed.
    below = f"{place.rstrip('/')}/batching-{token_hex(6)}"
    try:
        with open_log(below, "x", options) as log:
            return drive(log, load, progress=False, baseline=None)
    finally:
        if not is_object_url(below):
            shutil.rmtree(below, ignore_errors=True)
        elif (store := object_store_of(below)) is not None:
            remove_log(store)
            store.delete_many([CLAIMS_KEY, MANIFEST_KEY])
            store.close()
