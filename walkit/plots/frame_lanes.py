"""Single frames as bars: from sealing to acknowledgement, by the cause of each wait, a lane for each slot in flight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from walkit.measure import FrameSample
from walkit.plots.style import BLUE, ORANGE, PURPLE, VERMILION
from walkit.plots.units import bytes_text, duration_text

WAITS = (
    ("place in the segment", PURPLE, 0.72),
    ("write and sync", BLUE, 0.72),
    ("next sync", ORANGE, 0.3),
    ("frames before it", VERMILION, 0.3),
)
"""Causes of a frame's wait from its sealing to its acknowledgement, with colour and thickness of the bar."""


def frame_bars(
    series: Sequence[tuple[str, FrameSample | None]],
) -> Iterator[tuple[int, str, float, float, tuple[int, int, str]]]:
    """Give (kind of wait, lane, begin, length, (position, series, words)) for each part of each frame, seconds."""
    for number, (label, frames) in enumerate(series):
        if frames is None:
            continue
        origin = int(frames.sealed_ns.min())
        for index in range(len(frames.position)):
            sealed, began, written, synced, acked = (
                int(getattr(frames, name)[index]) - origin
                for name in ("sealed_ns", "began_ns", "written_ns", "synced_ns", "acked_ns")
            )
            lane = _lane_name(int(frames.lane[index]), label if len(series) > 1 else "")
            words = _frame_words(frames, index)
            for kind, (begins, ends) in enumerate(
                ((sealed, began), (began, written), (written, synced), (written, acked))
            ):
                if ends > begins:
                    tail = (int(frames.position[index]), number, words)
                    yield kind, lane, begins / 1e9, (ends - begins) / 1e9, tail


def lane_names(series: Sequence[tuple[str, FrameSample | None]]) -> list[str]:
    """Return the names of the lanes, those of one series after those of another, each from the first slot on."""
    return [
        _lane_name(lane, label if len(series) > 1 else "")
        for label, frames in series
        if frames is not None
        for lane in range(int(frames.lane.max()) + 1)
    ]


def _lane_name(lane: int, label: str) -> str:
    return f"{label.partition(',')[0].removeprefix('this ')} slot {lane + 1}".strip()


def _frame_words(frames: FrameSample, index: int) -> str:
    first, records = int(frames.first_lsn[index]), int(frames.records[index])
    times = {
        name: duration_text(int(getattr(frames, f"{column}_ns")[index] - frames.sealed_ns[index]) / 1e9)
        for name, column in (("write begun", "began"), ("written", "written"), ("acknowledged", "acked"))
    }
    synced = int(frames.synced_ns[index])
    times["synced"] = (
        "not yet" if synced < 0 else duration_text((synced - int(frames.sealed_ns[index])) / 1e9)
    )
    head = f"<b>LSN {first:,} to {first + records - 1:,}</b>" if records > 1 else f"<b>LSN {first:,}</b>"
    if index == frames.slowest:
        head += ", the slowest"
    size = bytes_text(int(frames.frame_bytes[index]))
    what = f"{size} at position {int(frames.position[index]):,}; after its sealing:"
    return "<br>".join([head, what, *(f"{name} {when}" for name, when in times.items())])
