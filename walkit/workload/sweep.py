"""Runs at rising offered loads, up to the knee, which a single point of throughput does not show."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise

from walkit._internal.arguments import check_bool, check_number, check_whole, refuse
from walkit.log.wal import WriteAheadLog
from walkit.measure import Run
from walkit.measure.saturation import kept_up
from walkit.store import Store
from walkit.workload.drive import drive
from walkit.workload.spec import OpenLoop, Workload


def sweep(
    make: Callable[[], AbstractContextManager[WriteAheadLog | Store]],
    workload: Workload,
    rates: Iterable[float],
    *,
    seconds: float = 5.0,
    past_the_knee: int = 1,
    progress: bool = True,
) -> list[Run]:
    """Drive the workload in an open loop at each rate (calls per second, rising), for about `seconds`; return the Runs.

    `make()` gives a log or Store for each, as a context manager: an empty one, so that no run meets another's segments.
    Ends after `past_the_knee` rates that were not kept up with. The arrival process is the workload's if it has one,
    else Poisson. Draw them with `walkit.plots.latency_over_load`. OptionsError for rates that do not rise; otherwise
    raises the errors of `drive`.
    """
    check_bool(progress, "progress")
    chosen = list(rates)
    if not chosen or any(b <= a for a, b in pairwise(chosen)):
        refuse("rates", chosen, "at least one, each above the one before")
    check_number(seconds, "seconds", above=True)
    check_whole(past_the_knee, "past_the_knee")
    loop = workload.arrival if isinstance(workload.arrival, OpenLoop) else OpenLoop(rate=1)
    runs: list[Run] = []
    behind = 0
    for rate in chosen:
        with make() as target:
            at_rate = replace(
                workload, arrival=replace(loop, rate=rate), operations=max(int(rate * seconds), 1)
            )
            runs.append(drive(target, at_rate, progress=progress))
        behind += kept_up(runs[-1]) is False
        if behind >= past_the_knee or runs[-1].interrupted:
            break
    return runs
