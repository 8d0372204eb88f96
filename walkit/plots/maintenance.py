"""The segments of a store before and after upkeep, and the cost of space and writing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape
from itertools import accumulate
from typing import NamedTuple

from walkit._internal.text import counted, lsn_range
from walkit.plots import style
from walkit.plots.facts import drawn_by, short_name
from walkit.plots.lanes import FLAG, Box, Look, Mark, RowPanel, draw_rows
from walkit.plots.style import Figure, colour, curve, dash, figure, symbol
from walkit.plots.units import bytes_text
from walkit.read.inventory import LogInventory, SegmentStock


class Amplification(NamedTuple):
    """The cost of a store's log after one step."""

    step: str
    space: float
    """Bytes of the log's segments for each byte of live keys and values."""
    written: float
    """Bytes written so far, by appending, compacting, trimming and checkpoints, for each byte of the user's."""


def amplification(steps: Sequence[Amplification]) -> Figure:
    """Draw both over the steps, in their order. ValueError without a step."""
    if not steps:
        raise ValueError("no step to draw")
    last = steps[-1]
    drawing = figure(
        f"Amplification: space {last.space:.2f}, writes {last.written:.2f}",
        subtitle=["after each step", drawn_by()],
        alt="Space and write amplification after each step: "
        + "; ".join(f"{s.step} {s.space:.2f}, {s.written:.2f}" for s in steps[-12:]),
        height=330,
        yaxis={"title": {"text": "times"}, "rangemode": "tozero"},
        hovermode="x unified",
    )
    numbers = list(range(1, len(steps) + 1))
    costs = {"space: bytes of the log per live byte": [s.space for s in steps]}
    costs["writes: bytes written per user byte"] = [s.written for s in steps]
    for index, (name, values) in enumerate(costs.items()):
        line = curve(numbers, values, name, colour(index), mark=symbol(index), line={"dash": dash(index)})
        drawing.add_trace(line.update(hovertemplate="%{y:.2f}"))
    drawing.add_hline(1.0, line={"color": style.NEUTRAL, "dash": "dot", "width": 1})
    texts = [f"{number}. {step.step}" for number, step in zip(numbers, steps, strict=True)]
    every = -(-len(numbers) // 12)
    drawing.update_xaxes(tickvals=numbers[::every], ticktext=texts[::every])
    return drawing


_STATES = {"sealed": Look(style.BLUE, 0), "compacted": Look(style.GREEN, 1), "open": Look(style.ORANGE, 5)}
_GOING = Look(style.WINE, 2)
_BELOW = Look(style.PURPLE, 4)
_LIVE, _DEAD, _HELD = Look(style.SKY, 0), Look(style.NEUTRAL, 2), Look(style.VERMILION, 3)


def maintenance(
    inventory: LogInventory,
    *,
    before: LogInventory | None = None,
    going: Collection[str] = (),
) -> Figure:
    """Draw a log by its bytes: segments, below them which part holds live keys, then marks, claims and cursors.

    `inventory` is of `log.inventory()` or `store.inventory()`; live keys are drawn for a store's only. `before` is an
    earlier one of the same log: it is drawn above, on the same axis, to show the saved space. The axis is the used
    bytes of the segments' files, one after the other; an LSN within a segment is drawn in proportion to the LSNs of the
    segment, and live keys as their share of it. The records up to the low watermark, and those that a claim keeps, have
    a colour of their own. `going` names segments that a trim would drop: they are drawn in a row of their own. Claims
    and cursors are flags at the record that they need first, and have done last. TypeError for anything but
    inventories.
    """
    for given in (inventory, *([] if before is None else [before])):
        if not isinstance(given, LogInventory):
            raise TypeError(f"a figure is made of a report: give log.inventory(), not {type(given).__name__}")
    panels = [] if before is None else [_panel(before, "before")]
    panels.append(_panel(inventory, "after", going))
    summary = f"{counted(len(inventory.segments), 'segment')}, {bytes_text(inventory.size_bytes)}"
    was = "" if before is None else f" (before: {bytes_text(before.size_bytes)})"
    return draw_rows(
        f"{escape(short_name(inventory.location))}: {summary}{was}",
        panels,
        0,
        max(found.size_bytes for found in (inventory, *([] if before is None else [before]))) or 1,
        "bytes of the segments, in the order of the log",
        subtitle=[lsn_range(inventory.first_lsn, inventory.last_lsn), drawn_by()],
        alt=f"Segments of {inventory.location} by bytes: {summary}{was}. Marks: "
        + "; ".join(mark.text for mark in panels[-1].marks),
    )


class _Bytes:
    """The place of an LSN, in bytes from the beginning of the first segment's file."""

    def __init__(self, segments: Sequence[SegmentStock]) -> None:
        self._segments = segments
        self.starts = [0, *accumulate(s.size_bytes for s in segments)]

    def begin(self, lsn: int) -> float:
        """Return about where the record with this LSN begins, or the first one after it; the end for a later one."""
        for start, segment in zip(self.starts, self._segments, strict=False):
            if lsn <= segment.last_lsn:
                lsns = segment.last_lsn - segment.first_lsn + 1
                return start + max(lsn - segment.first_lsn, 0) / lsns * segment.size_bytes
        return self.starts[-1]

    def end(self, lsn: int) -> float:
        """Return about where the record with this LSN ends."""
        return self.begin(lsn + 1)


def _panel(inventory: LogInventory, when: str, going: Collection[str] = ()) -> RowPanel:
    segments, low = inventory.segments, inventory.low_watermark
    panel = RowPanel(
        f"{when}: {counted(len(segments), 'segment')}, {bytes_text(inventory.size_bytes)}", ["segments"]
    )
    place = _Bytes(segments)
    placed = list(zip(place.starts, segments, strict=False))
    for state, look in _STATES.items():
        boxes = [_above(start, s, place, low) for start, s in placed if s.state == state]
        panel.add("segments", state, look, boxes)
    below = [
        Box(start, min(place.end(low), start + s.size_bytes) - start, _describe(s))
        for start, s in placed
        if s.first_lsn <= low
    ]
    panel.add("segments", "below the low watermark", _BELOW, below)
    _live(panel, placed)
    dropped = [Box(start, s.size_bytes, _describe(s)) for start, s in placed if s.name in going]
    if dropped:
        panel.add("a trim drops", "would go", _GOING, dropped)
    panel.marks = _marks(inventory, place)
    for claim in inventory.claims:
        if claim.counts:
            at = place.begin(claim.needed_lsn)
            words = f"claim {claim.name}: needs LSN {claim.needed_lsn:,} and later ones"
            panel.add(f"claim {claim.name}", "held", _HELD, [Box(at, place.starts[-1] - at, words)])
            panel.marks.append(Mark(at, f"claim {claim.name}", words, FLAG))
    for cursor in inventory.cursors:
        if cursor.lsn is not None:
            words = f"done up to LSN {cursor.lsn:,}"
            panel.marks.append(
                Mark(place.end(cursor.lsn), f"cursor {cursor.name} {cursor.lsn:,}", words, FLAG)
            )
    return panel


def _above(start: float, segment: SegmentStock, place: _Bytes, low: int) -> Box:
    """Return the part of a segment above the low watermark."""
    end = start + segment.size_bytes
    begin = max(start, min(place.end(low), end)) if segment.first_lsn <= low else start
    return Box(begin, end - begin, _describe(segment))


def _describe(segment: SegmentStock) -> str:
    records = "" if segment.records is None else f"{counted(segment.records, 'record')}, "
    live = "" if segment.live_keys is None else f"<br>{segment.live_keys:,} live keys"
    return (
        f"<b>{escape(segment.name)}</b> ({segment.state})<br>{lsn_range(segment.first_lsn, segment.last_lsn)}<br>"
        f"{records}{segment.size_bytes:,} bytes{live}"
    )


def _live(panel: RowPanel, placed: Sequence[tuple[float, SegmentStock]]) -> None:
    """Add how many of a segment's records are the newest of a live key, as the part of its width."""
    live, dead = [], []
    for start, segment in placed:
        if segment.live_keys is None:
            continue
        lsns = segment.last_lsn - segment.first_lsn + 1
        width = segment.size_bytes * min(segment.live_keys / max(segment.records or lsns, 1), 1.0)
        live.append(Box(start, width, _describe(segment)))
        dead.append(Box(start + width, segment.size_bytes - width, _describe(segment)))
    if live:
        panel.add("live keys", "live", _LIVE, live)
        panel.add("live keys", "superseded, deleted or events", _DEAD, dead)


def _marks(inventory: LogInventory, place: _Bytes) -> list[Mark]:
    """Return the marks, in the order of LSNs; those at one LSN are one."""
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
    found = []
    for lsn, called in sorted(names.items()):
        begins = called[0] in ("first", "exact from", "complete from")
        at = place.begin(lsn) if begins else place.end(lsn)
        found.append(Mark(at, f"{', '.join(called)} {lsn:,}", f"LSN {lsn:,}"))
    return found
