"""The lines below a title: where, how and how often something was measured, and the caveats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from walkit._internal.text import counted
from walkit.measure import Run
from walkit.measure.machine import MachineFacts, walkit_version
from walkit.plots.style import colour, curve, go, symbol

QUARTILES_FROM = 5
"""From this many measurements on the spread is that of the middle half, below it from the least to the most."""


def short_name(location: str) -> str:
    """Return the last name of a path: a figure's title has no room for the folders above a log."""
    return location.rstrip("/").rpartition("/")[2] or location


class Spread(NamedTuple):
    """Repeated measurements of one quantity: their median and range."""

    median: float
    low: float
    high: float
    number: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise at least one value: median, and quartiles of five and more, else least and most."""
        low, median, high = np.percentile(values, (25, 50, 75))
        if len(values) < QUARTILES_FROM:
            low, high = min(values), max(values)
        return cls(float(median), float(low), float(high), len(values))


def spread_words(least: int, most: int) -> str:
    """Return the meaning of a figure's whiskers, for points of `least` to `most` measurements; "" for single ones."""
    if most < 2:
        return ""
    number = f"n = {least}" if least == most else f"n = {least} to {most}"
    way = (
        "quartiles" if least >= QUARTILES_FROM else "min to max" if most < QUARTILES_FROM else "their spread"
    )
    return f"median and {way}, {number}"


def error_bars(spreads: Sequence[Spread]) -> dict[str, object]:
    """Return plotly's error bars from the median to both ends."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [s.high - s.median for s in spreads],
        "arrayminus": [s.median - s.low for s in spreads],
        "visible": any(s.number > 1 for s in spreads),
        "thickness": 1.5,
    }


def spread_curve(
    x: Iterable[float], spreads: Sequence[Spread], name: str, index: int, **look: Any
) -> go.Scatter:
    """Return a line of medians with whiskers, in the look of the series with this index; `name` is HTML."""
    medians = [spread.median for spread in spreads]
    look = {"mark": symbol(index), "error_y": error_bars(spreads)} | look
    return curve(list(x), medians, name, colour(index), **look)


def machine_words(machine: MachineFacts) -> list[str]:
    """Return processor and file system as facts of a subtitle; unknown facts are left out."""
    cores = f", {counted(machine.cores, 'core')}" if machine.cores else ""
    found = [f"{machine.cpu}{cores}"] if machine.cpu else []
    place = machine.file_system
    if place is not None and place.type:
        found.append(f"{place.type} on {place.device}" if place.device else place.type)
    return found


def drawn_by() -> str:
    """Return the name and version of walkit that draws."""
    version = walkit_version()
    return "walkit, not installed" if version is None else f"walkit {version}"


def is_modelled(run: Run) -> bool:
    """Return whether the device of a run was a model, or its time virtual."""
    return bool(run.labels.get("virtual_time")) or run.labels.get("modelled") is True


def run_facts(runs: Iterable[Run]) -> list[str]:
    """Return the facts of a subtitle that these runs share or differ in: machine, place, durability, n, version."""
    chosen = list(runs)
    places = list(dict.fromkeys(tuple(machine_words(r.machine)) for r in chosen if not is_modelled(r)))
    facts = list(places[0]) if len(places) == 1 else [f"{len(places)} machines or places"] if places else []
    levels = list(dict.fromkeys(run.durability for run in chosen))
    if levels:
        facts.append(f"durability {', '.join(levels)}")
        sizes = [run.records for run in chosen]
        least, most = min(sizes), max(sizes)
        records = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        facts.append(f"{counted(len(chosen), 'run')}, {records} records{' each' if len(chosen) > 1 else ''}")
    measured = list(dict.fromkeys(run.walkit_version for run in chosen if run.walkit_version))
    if measured and measured != [walkit_version()]:
        facts.append(f"measured: walkit {', '.join(measured)}; drawn: {drawn_by()}")
    else:
        facts.append(drawn_by())
    return facts


def run_warnings(runs: Iterable[Run], *, single: bool = True, named: bool = True) -> list[str]:
    """Return the banner of these runs: their own warnings, a model instead of a device, and n = 1.

    With `single` each of them is shown as one measurement, with `named` each warning starts with the name of its run.
    """
    chosen = list(runs)
    said = list(
        dict.fromkeys(f"{run.name}: {text}" if named else text for run in chosen for text in run.warnings)
    )
    if any(is_modelled(run) for run in chosen):
        said.append("a modelled device, not a disk")
    if chosen and single:
        said.append("n = 1: no spread is known" if len(chosen) == 1 else "n = 1 each: no spread is known")
    return said
