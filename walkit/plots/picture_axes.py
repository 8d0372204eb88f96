"""Axes of a figure's static picture: ranges, places in pixels, and ticks with their words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from walkit.plots.units import SPACE, count_text

PAD = 0.05
"""Share of the data's width that is left free at both ends."""
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def numbers(values: Iterable[Any] | None) -> list[float]:
    """Return values as floats; missing and other values are nan."""
    found = []
    for value in () if values is None else values:
        try:
            found.append(float("nan") if value is None else float(value))
        except (TypeError, ValueError):
            found.append(float("nan"))
    return found


class PictureAxis:
    """One axis of a picture. `begin_px` and `end_px` are where its range begins and ends; y runs upwards."""

    def __init__(self, settings: Any, *, begin_px: float, end_px: float) -> None:
        self.settings = settings
        self.begin_px, self.end_px = begin_px, end_px
        self.categories: list[str] = []
        self.low, self.high = math.inf, -math.inf
        self._values: list[float] = []
        self._texts = 0
        self._zero = False
        self.grid_like = False

    def see(self, values: Sequence[Any] | None, *, zero: bool = False) -> None:
        """Take values of a trace into the range, and words among them as categories."""
        given = [] if values is None else list(values)
        self._zero = self._zero or zero
        for value in given:
            if isinstance(value, str):
                if value not in self.categories:
                    self.categories.append(value)
            else:
                self._values += [v for v in numbers([value]) if math.isfinite(v)]

    @property
    def is_category(self) -> bool:
        """Whether its places are words."""
        return self.settings.type == "category" or bool(self.categories)

    @property
    def is_log(self) -> bool:
        """Whether it is logarithmic."""
        return bool(self.settings.type == "log")

    def settle(self) -> None:
        """Fix the range, after everything was seen."""
        given = self.settings.range
        if self.is_category:
            if self.settings.categoryarray is not None:
                known = [str(name) for name in self.settings.categoryarray]
                self.categories = [*known, *(c for c in self.categories if c not in known)]
            self.low, self.high = -0.5, max(len(self.categories), 1) - 0.5
        elif self.is_log:
            logs = [math.log10(v) for v in self._values if v > 0] or [0.0, 1.0]
            pad = (max(logs) - min(logs)) * PAD or 0.3
            self.low, self.high = min(logs) - pad, max(logs) + pad
        else:
            values = self._values or [0.0, 1.0]
            pad = 0.0 if self.grid_like else (max(values) - min(values)) * PAD or abs(values[0]) * PAD or 1.0
            edge = 0.5 if self.grid_like else 0.0
            self.low, self.high = min(values) - pad - edge, max(values) + pad + edge
            if (self._zero or self.settings.rangemode == "tozero") and min(values) >= 0:
                self.low = 0.0
        if given is not None:
            self.low, self.high = (float(end) for end in given)
        if self.settings.autorange == "reversed":
            self.low, self.high = self.high, self.low
        if self.low == self.high:
            self.high = self.low + 1.0

    def share(self, base: Iterable[PictureAxis]) -> None:
        """Take the range that spans those of other axes that match this one."""
        others = [axis for axis in base if axis.settings.range is None]
        if self.settings.range is None and others:
            self.low, self.high = min(a.low for a in others), max(a.high for a in others)

    def place(self, value: Any) -> float:
        """Return the place of a value, px; nan for a value without one."""
        if isinstance(value, str):
            value = self.categories.index(value) if value in self.categories else float("nan")
        (number,) = numbers([value])
        if self.is_log:
            number = math.log10(number) if number > 0 else float("nan")
        return self.place_of_range(number)

    def place_of_range(self, number: float) -> float:
        """Return the place of a number of the range, px: on a logarithmic axis its logarithm."""
        return self.begin_px + (number - self.low) / (self.high - self.low) * (self.end_px - self.begin_px)

    def ticks(self) -> list[tuple[float, str]]:
        """Return (place in px, words) of each tick that lies on the axis."""
        low, high = sorted((self.low, self.high))
        found: list[tuple[float, str]] = []
        settings = self.settings
        if settings.visible is False:
            return []
        if settings.tickvals is not None:
            texts = (
                settings.ticktext
                if settings.ticktext is not None
                else [count_text(v) for v in settings.tickvals]
            )
            logs = [math.log10(v) if self.is_log else float(v) for v in settings.tickvals]
            found = [
                (self.place_of_range(v), str(t)) for v, t in zip(logs, texts, strict=True) if low <= v <= high
            ]
        elif self.is_category:
            found = [(self.place_of_range(n), name) for n, name in enumerate(self.categories)]
        elif self.is_log:
            steps = (1, 2, 5) if high - low < 3 else (1,)
            values = [m * 10.0**p for p in range(math.floor(low), math.ceil(high) + 1) for m in steps]
            found = [(self.place(v), self._tick_text(v)) for v in values if low <= math.log10(v) <= high]
        else:
            found = [(self.place_of_range(v), self._tick_text(v)) for v in _nice(low, high, self._wanted())]
        return found

    def _wanted(self) -> int:
        level = self.begin_px < self.end_px
        return max(int(abs(self.end_px - self.begin_px) / (80 if level else 38)), 2)

    def _tick_text(self, value: float) -> str:
        suffix = self.settings.ticksuffix or ""
        if self.settings.tickformat == "~s":
            scale, prefix = next(((s, p) for s, p in _PREFIXES if abs(value) >= s * 0.9999), (1.0, ""))
            return f"{value / scale:.4g}{SPACE if suffix else ''}{prefix}{suffix}"
        if suffix:
            return f"{value:,.6g}{suffix}"
        return count_text(value) if abs(value) >= 10_000 else f"{value:.6g}"


def _nice(low: float, high: float, wanted: int) -> list[float]:
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    return [
        round(n * step, 12)
        for n in np.arange(math.ceil(low / step), math.floor(high / step + 1e-9) + 1).tolist()
    ]
