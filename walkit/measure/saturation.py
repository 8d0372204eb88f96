"""Offered load: the rate of an open loop, whether it was kept up with, and the highest such rate."""

from __future__ import annotations

from collections.abc import Iterable

from walkit.measure.run import Run

KEPT_UP = 0.95
"""A run has kept up if the time its calls arrived in is at least this share of its whole time."""


def offered_per_s(run: Run) -> float | None:
    """Return the calls per second that an open loop offered; None for a closed loop."""
    rate = run.labels.get("offered_per_s")
    return float(rate) if run.arrival == "open" and isinstance(rate, int | float) else None


def kept_up(run: Run) -> bool | None:
    """Return whether an open loop was answered as fast as it asked; None if that is not known (a partial run)."""
    due_s = run.options.get("due_s")
    if offered_per_s(run) is None or run.interrupted or not isinstance(due_s, int | float):
        return None
    return due_s >= KEPT_UP * run.duration_s


def knee(runs: Iterable[Run]) -> float | None:
    """Return the highest offered load that was kept up with, with all lower ones; None if none was, or all were.

    Beyond it the queue grows for as long as the load lasts, so a latency there says how long somebody looked. Where all
    runs kept up, the knee was not reached.
    """
    found = [(rate, run) for run in runs if (rate := offered_per_s(run)) is not None]
    good: float | None = None
    for rate, run in sorted(found, key=lambda pair: pair[0]):
        if kept_up(run) is False:
            return good
        good = rate
    return None
