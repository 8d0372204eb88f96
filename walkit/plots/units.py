"""Axes and words in the unit that suits the numbers: µs, ms, s; k, M; KiB, MiB."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

SECONDS: Mapping[str, Any] = {"tickformat": "~s", "ticksuffix": "s"}
"""For an axis of durations in seconds: 50µs, 20ms, 1s, at every zoom. plotly has no format with a space there."""
SPACE = "\u202f"
"""Between a number and its unit: narrow, and no line breaks at it."""
COUNTS: Mapping[str, Any] = {"exponentformat": "SI", "separatethousands": True}
"""For an axis of counts and rates: 500, 20k, 3M."""
LOG_SECONDS: Mapping[str, Any] = {
    **SECONDS,
    "nticks": 5,
    "labelalias": {
        f"{digit * ten}{prefix}{suffix}": f"{digit * ten}{SPACE}{prefix}s"
        for prefix in ("n", "µ", "m", "")
        for ten in (1, 10, 100)
        for digit in range(1, 10)
        for suffix in ("", "s")
    },
}
"""SECONDS on a logarithmic axis: 50 µs, 20 ms. plotly leaves the suffix out between the powers of ten."""
LOG_COUNTS: Mapping[str, Any] = {"tickformat": "~s", "nticks": 5}
"""COUNTS on a logarithmic axis."""
CLOCK: Mapping[str, Any] = {"ticksuffix": " s", "separatethousands": True, "exponentformat": "none"}
"""For an axis of time since a beginning, in seconds."""

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
BYTE_TICKS_MAX = 7


def log_counts(low: float, high: float) -> Mapping[str, Any]:
    """Return a logarithmic axis of counts from `low` to `high`: within two decades only 1, 2 and 5 have words.

    plotly itself would name every digit there, and on a phone they lie on each other.
    """
    return {"tickformat": "~s", "dtick": "D2"} if high < 100 * low else LOG_COUNTS


def log_seconds(low: float, high: float) -> Mapping[str, Any]:
    """Return a logarithmic axis of seconds from `low` to `high`: within two decades only 1, 2 and 5 have words."""
    return {**LOG_SECONDS, "nticks": None, "dtick": "D2"} if high < 100 * low else LOG_SECONDS


def duration_text(seconds: float) -> str:
    """Return a duration in the unit that suits it: 12 µs, 3.4 ms, 1.25 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return (
                f"{seconds / scale:.3g} {unit}"
                if seconds < 1000 * scale
                else f"{seconds / scale:,.0f} {unit}"
            )
    return f"{seconds / 1e-6:.3g} µs"


def count_text(number: float) -> str:
    """Return a count or a rate, short: 7, 950, 12.3k, 4M."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= scale * 0.9995:
            return f"{number / scale:.3g}{unit}"
    return f"{number:.3g}"


SIZES_NAMED_MAX = 6
"""A logarithmic axis of more sizes has its own marks."""


def sizes_axis(sizes: Iterable[float]) -> dict[str, Any]:
    """Return ticks for the measured sizes at a logarithmic axis, if they are few: 200 and 3.2k, nothing between."""
    named = sorted(set(sizes))
    if len(named) > SIZES_NAMED_MAX:
        return {**log_counts(named[0], named[-1])}
    return {"tickmode": "array", "tickvals": named, "ticktext": [count_text(size) for size in named]}


def bytes_text(size: float) -> str:
    """Return a number of bytes in the binary unit that suits it: 512 B, 1.5 KiB, 64 MiB."""
    power = 0 if abs(size) < 1 else min(int(math.log2(abs(size)) // 10), len(_BYTE_UNITS) - 1)
    return f"{size / 1024**power:.4g} {_BYTE_UNITS[power]}" if size else "0"


def bytes_axis(low: float, high: float) -> dict[str, Any]:
    """Return an axis of bytes from `low` to `high`: at most seven ticks, at multiples of a power of two."""
    span = max(high - low, 1.0)
    step = 2.0 ** max(math.ceil(math.log2(span / BYTE_TICKS_MAX)), 0)
    first = math.ceil(low / step) * step
    ticks = [first + n * step for n in range(int((high - first) // step) + 1)]
    return {"range": [low, high], "tickvals": ticks, "ticktext": [_tick_text(tick, step) for tick in ticks]}


def _tick_text(tick: float, step: float) -> str:
    """Return a tick in the largest unit in which two decimals say it exactly, at most down to the step's."""
    for power in range(len(_BYTE_UNITS) - 1, -1, -1):
        value = tick / 1024**power
        if abs(value) >= 1 and (round(value, 2) == value or 1024**power <= step):
            return f"{value:,.2f}".rstrip("0").rstrip(".") + f" {_BYTE_UNITS[power]}"
    return "0"
