"""What is in a log and who needs it: segments, live keys, marks, holds and cursors over the LSNs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from walkit.log.inventory import LogInventory, SegmentStock
from walkit.plots.style import BLUE, GREEN, ORANGE, PURPLE, SKY, TEXT, VERMILION, figure, go
from walkit.text import counted, lsn_range

_STATES = {"sealed": BLUE, "compacted": GREEN, "open": ORANGE}


def upkeep(inventory: LogInventory) -> go.Figure:
    """Draw a log over its LSNs: segments, below them which part holds live keys, then marks, holds and cursors.

    `inventory` is of `log.inventory()` or `store.inventory()`; live keys are drawn for a store's only. What is at or
    below the low watermark, and what a hold keeps, have a colour of their own. TypeError for anything but an inventory.
    """
    if not isinstance(inventory, LogInventory):
        raise TypeError(f"a figure is made of a report: give log.inventory(), not {type(inventory).__name__}")
    rows = ["segments", *(["live keys"] if any(s.live_keys is not None for s in inventory.segments) else [])]
    rows += ["marks", *(f"hold {h.name}" for h in inventory.holds)]
    rows += [f"cursor {c.name}" for c in inventory.cursors if c.lsn is not None]
    drawing = figure(
        f"{escape(inventory.location)}: {counted(len(inventory.segments), 'segment')}, "
        f"{counted(inventory.size_bytes, 'byte')}",
        height=190 + 42 * len(rows),
        barmode="overlay",
        bargap=0.35,
    )
    for state, paint in _STATES.items():
        _bars(
            drawing, "segments", state, paint,
            [(_above(s, inventory), s.last_lsn, _words(s)) for s in inventory.segments if s.state == state],
        )  # fmt: skip
    low = inventory.low_watermark
    _bars(
        drawing, "segments", "below the low watermark", PURPLE,
        [(s.first_lsn, min(low, s.last_lsn), _words(s)) for s in inventory.segments if s.first_lsn <= low],
    )  # fmt: skip
    _live(drawing, inventory.segments)
    _marks(drawing, inventory)
    for hold in inventory.holds:
        words = f"hold {escape(hold.name)}: needs LSN {hold.first_lsn:,} and what follows"
        _bars(
            drawing, f"hold {hold.name}", "held", VERMILION,
            [(hold.first_lsn, max(inventory.last_lsn, hold.first_lsn), words)],
        )  # fmt: skip
    for cursor in inventory.cursors:
        if cursor.lsn is not None:
            words = f"cursor {escape(cursor.name)}: done up to LSN {cursor.lsn:,}"
            _points(drawing, f"cursor {cursor.name}", [(cursor.lsn, f"{cursor.lsn:,}", words)])
    drawing.update_xaxes(title_text="LSN", separatethousands=True, exponentformat="none")
    drawing.update_yaxes(categoryorder="array", categoryarray=list(reversed(rows)), type="category")
    return drawing


def _above(segment: SegmentStock, inventory: LogInventory) -> int:
    return max(segment.first_lsn, inventory.low_watermark + 1)


def _words(segment: SegmentStock) -> str:
    records = "" if segment.records is None else f"{counted(segment.records, 'record')}, "
    live = "" if segment.live_keys is None else f"<br>{segment.live_keys:,} live keys"
    return (
        f"<b>{escape(segment.name)}</b> ({segment.state})<br>{lsn_range(segment.first_lsn, segment.last_lsn)}<br>"
        f"{records}{segment.size_bytes:,} bytes{live}"
    )


def _live(drawing: go.Figure, segments: Sequence[SegmentStock]) -> None:
    """Draw how many of a segment's LSNs are the newest of a live key, as the part of its width."""
    known = [s for s in segments if s.live_keys is not None]
    for name, paint, take in (("live", SKY, True), ("superseded, deleted or events", TEXT, False)):
        boxes = []
        for s in known:
            assert s.live_keys is not None
            border = s.first_lsn + s.live_keys
            boxes.append((s.first_lsn, border - 1, _words(s)) if take else (border, s.last_lsn, _words(s)))
        _bars(drawing, "live keys", name, paint, boxes)


def _bars(drawing: go.Figure, row: str, name: str, paint: str, boxes: Sequence[tuple[int, int, str]]) -> None:
    """Draw bars from a first to a last LSN; empty ones are left out."""
    found = [(first, last, words) for first, last, words in boxes if last >= first]
    if found:
        drawing.add_trace(
            go.Bar(
                orientation="h",
                y=[row] * len(found),
                base=[first for first, _, _ in found],
                x=[last - first + 1 for first, last, _ in found],
                customdata=[words for _, _, words in found],
                hovertemplate="%{customdata}<extra></extra>",
                marker={"color": paint, "line": {"width": 1, "color": TEXT}},
                name=name,
                legendgroup=name,
                showlegend=name not in {trace.name for trace in drawing.data},
            )
        )


def _marks(drawing: go.Figure, inventory: LogInventory) -> None:
    """Draw the marks; those at one LSN share a text."""
    marks = {
        "first": inventory.first_lsn,
        "low watermark": inventory.low_watermark,
        "snapshot": inventory.checkpoint_lsn,
        "exact from": inventory.exact_from_lsn,
        "complete from": inventory.complete_from_lsn,
        "last": inventory.last_lsn,
    }
    names: dict[int, list[str]] = {}
    for name, lsn in marks.items():
        if lsn:
            names.setdefault(lsn, []).append(name)
    _points(
        drawing,
        "marks",
        [(lsn, f"{', '.join(called)} {lsn:,}", f"LSN {lsn:,}") for lsn, called in sorted(names.items())],
    )


def _points(drawing: go.Figure, row: str, points: Sequence[tuple[int, str, str]]) -> None:
    middle = max((lsn for lsn, _, _ in points), default=0) / 2
    sides = [
        f"{('top', 'bottom')[i % 2]} {'left' if p[0] > middle else 'right'}" for i, p in enumerate(points)
    ]
    drawing.add_trace(
        go.Scatter(
            x=[lsn for lsn, _, _ in points],
            y=[row] * len(points),
            text=[escape(text) for _, text, _ in points],
            customdata=[words for _, _, words in points],
            mode="markers+text",
            textposition=sides,
            marker={"symbol": "line-ns-open", "size": 16, "color": TEXT, "line": {"width": 2}},
            hovertemplate="<b>%{text}</b><br>%{customdata}<extra></extra>",
            showlegend=False,
            cliponaxis=False,
            name=row,
        )
    )
