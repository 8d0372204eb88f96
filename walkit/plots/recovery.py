"""What a recovery takes: its time over the operations after the checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from walkit.plots.facts import Spread, drawn_by, error_bars, spread_words
from walkit.plots.style import Figure, Theme, colour, figure, go
from walkit.plots.units import LOG_COUNTS, LOG_SECONDS, count_text, duration_text

_DASHES = {"warm": "solid", "cold": "dash"}


class RecoveryRowLike(Protocol):
    """What a row of `walkit bench recovery` must have to be drawn; `all_ms`, of every run, it may have."""

    @property
    def way(self) -> str:
        """How it was opened."""

    @property
    def operations(self) -> int:
        """Operations in all."""

    @property
    def frame_records(self) -> int:
        """Records of a frame."""

    @property
    def checkpoint_age(self) -> float:
        """Share of the operations after the checkpoint."""

    @property
    def cache(self) -> str:
        """Warm or cold."""

    @property
    def open_ms(self) -> float:
        """How long it took."""


def recovery_time(
    rows: Iterable[RecoveryRowLike],
    *,
    ways: Sequence[str] = ("store",),
    subtitle: Sequence[str] = (),
    theme: Theme = None,
) -> Figure:
    """Draw how long opening took over the operations after the last checkpoint, both axes logarithmic.

    Each way of opening, number of records in a frame and state of the cache is a series: a colour for the first two,
    dashes where the cache was cold. A point is the median of the runs of its row, a whisker their spread. Without a
    checkpoint all operations follow it, so that rows of several log sizes draw recovery time over the size of the log.
    """
    series: dict[tuple[str, int], dict[str, list[tuple[float, Spread]]]] = {}
    for row in rows:
        if row.way in ways:
            curve = series.setdefault((row.way, row.frame_records), {}).setdefault(row.cache, [])
            taken_ms = getattr(row, "all_ms", ()) or (row.open_ms,)
            curve.append((row.operations * row.checkpoint_age, Spread.of([ms / 1e3 for ms in taken_ms])))
    points = [point for caches in series.values() for curve in caches.values() for point in curve]
    numbers = [spread.number for _, spread in points]
    repeated = spread_words(min(numbers), max(numbers)) if numbers else ""
    drawing = figure(
        "Recovery time over the operations after the checkpoint",
        subtitle=[*subtitle, *([repeated] if repeated else []), drawn_by()],
        warnings=["n = 1 each: no spread is known"] if numbers and not repeated else [],
        alt="Time to open over operations after the checkpoint, both logarithmic"
        + "".join(f"; {count_text(n)}: {duration_text(spread.median)}" for n, spread in sorted(points)[:12]),
        theme=theme,
        xaxis={"type": "log", "title": {"text": "operations after the checkpoint"}, **LOG_COUNTS},
        yaxis={"type": "log", "title": {"text": "time until ready"}, **LOG_SECONDS},
    )
    for index, ((way, frame_records), caches) in enumerate(series.items()):
        for cache, found in caches.items():
            found.sort()
            drawing.add_trace(
                go.Scatter(
                    x=[after for after, _ in found],
                    y=[spread.median for _, spread in found],
                    error_y=error_bars([spread for _, spread in found]),
                    mode="lines+markers",
                    name=f"{way}, {frame_records:,} a frame, {cache}",
                    line={"color": colour(index), "dash": _DASHES.get(cache, "dot")},
                    hovertemplate="%{x:,.0f} operations: %{y:.3s}s",
                )
            )
    return drawing
