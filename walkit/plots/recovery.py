"""What a recovery takes: its time over the operations behind the checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from walkit.plots.style import colour, figure, go

_DASHES = {"warm": "solid", "cold": "dash"}


class RecoveryRowLike(Protocol):
    """What a row of `walkit bench recovery` must have to be drawn."""

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
        """Share of the operations behind the checkpoint."""

    @property
    def cache(self) -> str:
        """warm or cold."""

    @property
    def open_ms(self) -> float:
        """How long it took."""


def recovery_time(rows: Iterable[RecoveryRowLike], *, ways: Sequence[str] = ("store",)) -> go.Figure:
    """Draw how long opening took over the operations behind the last checkpoint, both axes logarithmic.

    Each way of opening, number of records in a frame and state of the cache is a series: a colour for the first two,
    dashes where the cache was cold. Without a checkpoint all operations are behind it, so that rows of several log
    sizes draw recovery time over the size of the log.
    """
    series: dict[tuple[str, int], dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if row.way in ways:
            curve = series.setdefault((row.way, row.frame_records), {}).setdefault(row.cache, [])
            curve.append((row.operations * row.checkpoint_age, row.open_ms))
    drawing = figure(
        "Recovery time over the operations behind the checkpoint",
        xaxis={"type": "log", "title": {"text": "operations behind the checkpoint"}},
        yaxis={"type": "log", "title": {"text": "milliseconds until ready"}},
    )
    for index, ((way, frame_records), caches) in enumerate(series.items()):
        for cache, points in caches.items():
            points.sort()
            drawing.add_trace(
                go.Scatter(
                    x=[behind for behind, _ in points],
                    y=[ms for _, ms in points],
                    mode="lines+markers",
                    name=f"{way}, {frame_records:,} a frame, {cache}",
                    line={"color": colour(index), "dash": _DASHES.get(cache, "dot")},
                    hovertemplate="%{x:,.0f} operations: %{y:,.1f} ms",
                )
            )
    return drawing
