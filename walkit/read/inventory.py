"""The content of a log at one moment, and its consumers: segments, marks, claims, cursors, to draw, show, test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from walkit._internal.html import CYAN, RED, YELLOW, Mark, Markup, Part, bar, facts, join, swatch, table, tag
from walkit._internal.report import report_html
from walkit._internal.text import bounds, counted, lsn_range
from walkit.format.layout import SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import SegmentState
from walkit.read.view import LogView, View
from walkit.record import wall_us
from walkit.recovery.report import Cut
from walkit.segments.consumer_files import ClaimFact, CursorFact


class SegmentShown(NamedTuple):
    """One segment of a log's bar; positions are half-open, LSNs inclusive."""

    number: int
    start_position: int
    end_position: int
    first_lsn: int
    last_lsn: int
    sealed: bool

    def part(self) -> Part:
        """Return it as a part of a bar."""
        size = self.end_position - self.start_position
        lsns = lsn_range(self.first_lsn, self.last_lsn)
        kind = "sealed" if self.sealed else "open"
        return Part(
            size,
            CYAN if self.sealed else YELLOW,
            f"segment {self.number}: {counted(size, 'byte')}, {lsns}, {kind}",
        )


def reader_html(location: str, view: View, last_lsn: int) -> str:
    """Return a reader's view as HTML: the marks, and the segments up to the last record it may read."""
    segments = [
        SegmentShown(
            s.record.number,
            s.record.start_position,
            s.end_position,
            s.record.first_lsn,
            last_lsn if s.last_lsn is None else s.last_lsn,
            s.last_lsn is not None,
        )
        for s in (view.spans if isinstance(view, LogView) else ())
    ]
    return tag(
        "div",
        tag("b", f"reader of {location}"),
        facts([("LSN", bounds(view.first_lsn, last_lsn))]),
        segments_html(segments, {"first": view.first_lsn, "last": last_lsn}, ()),
    )


def segments_html(segments: Sequence[SegmentShown], marks: Mapping[str, int], cuts: Sequence[Cut]) -> Markup:
    """Return the bar of segments with its LSN marks and cuts, and the legend below it."""
    lines = [*_lsn_marks(segments, marks), *_cut_marks(segments, cuts)]
    size = sum(s.end_position - s.start_position for s in segments)
    legend = [
        f"{counted(len(segments), 'segment')}, {counted(size, 'byte')} of frames (",
        swatch(CYAN),
        " sealed ",
    ]
    legend += [swatch(YELLOW), " open", *([" ", swatch(RED), " cut"] if cuts else []), ")"]
    notes = [
        tag(
            "div",
            tag(
                "small", f"last opening cut {counted(c.bytes, 'byte')} at position {c.position:,}: {c.reason}"
            ),
        )
        for c in cuts
    ]
    return join([bar([s.part() for s in segments], lines), tag("small", *legend), *notes])


def _lsn_marks(segments: Sequence[SegmentShown], marks: Mapping[str, int]) -> list[Mark]:
    """Return one mark for each LSN, named by all that are there; LSN 0 and such as are not in a segment have none."""
    names: dict[int, list[str]] = {}
    for name, lsn in marks.items():
        names.setdefault(lsn, []).append(name)
    found = []
    for lsn, called in names.items():
        for index, segment in enumerate(segments):
            if segment.first_lsn <= lsn <= segment.last_lsn:
                done = lsn - segment.first_lsn + (called != ["first"])
                share = done / (segment.last_lsn - segment.first_lsn + 1)
                found.append(Mark(index, share, f"{', '.join(called)}: LSN {lsn:,}"))
    return found


def _cut_marks(segments: Sequence[SegmentShown], cuts: Sequence[Cut]) -> list[Mark]:
    # Cut records are in no segment now: the mark is at their old place, the end of the records kept before it.
    ends = {s.end_position: index for index, s in reversed(list(enumerate(segments)))}
    return [
        Mark(
            ends[c.position],
            1.0,
            f"cut: {counted(c.bytes, 'byte')} at position {c.position:,} of {c.segment}",
            RED,
        )
        for c in cuts
        if c.position in ends
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentStock:
    """One segment of an inventory. LSNs are inclusive."""

    name: str
    state: str
    """"sealed", "compacted" (sealed, too), or "open"."""
    first_lsn: int
    last_lsn: int
    records: int | None
    """Records in it; None if it is not sealed, and may have holes."""
    size_bytes: int
    """Bytes of the file that are used, header included."""
    live_keys: int | None = None
    """Keys of the state whose newest record is in it; None without a state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogInventory:
    """The content of a log, and its consumers. A frozen snapshot."""

    location: str
    taken_us: int
    """When, microseconds since 1970."""
    segments: tuple[SegmentStock, ...]
    """In the order of the log."""
    first_lsn: int
    last_lsn: int
    """The last that can be read."""
    low_watermark: int
    checkpoint_lsn: int
    """A snapshot of the state at this LSN is beside the log; 0 without one."""
    exact_from_lsn: int
    complete_from_lsn: int
    cursors: tuple[CursorFact, ...]
    claims: tuple[ClaimFact, ...] = ()
    """By name, and how they stand."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(s.size_bytes for s in self.segments)

    @property
    def slowest(self) -> ClaimFact | None:
        """The claim that keeps the most; None if none counts."""
        return min((c for c in self.claims if c.counts), key=lambda c: c.needed_lsn, default=None)

    @property
    def held_bytes(self) -> int:
        """Bytes of the segments that no trim can drop, because of a claim."""
        slowest = self.slowest
        first = None if slowest is None else slowest.needed_lsn
        return sum(s.size_bytes for s in self.segments if first is not None and s.last_lsn >= first)

    def _repr_html_(self) -> str:
        marks = report_html(
            f"Inventory of {self.location}",
            [
                ("segments", f"{len(self.segments):,}"),
                ("bytes", f"{self.size_bytes:,}"),
                ("LSNs", bounds(self.first_lsn, self.last_lsn)),
                ("low watermark", f"{self.low_watermark:,}"),
                ("snapshot at LSN", f"{self.checkpoint_lsn:,}" if self.checkpoint_lsn else "none"),
                ("states are exact from LSN", f"{self.exact_from_lsn:,}"),
                ("records are complete from LSN", f"{self.complete_from_lsn:,}"),
                ("bytes that claims keep", f"{self.held_bytes:,}"),
            ],
        )
        needs = [
            (
                f"claim {c.name}",
                "?" if c.first_lsn is None else f"{c.first_lsn:,}",
                c.fault or f"the first record still needed: {c.state}",
            )
            for c in self.claims
        ]
        needs += [
            (f"cursor {c.name}", "?" if c.lsn is None else f"{c.lsn:,}", c.fault or "the last record done")
            for c in self.cursors
        ]
        return marks + (table(needs, ("who", "LSN", "what it is"), right=(1,)) if needs else "")


def inventory_of(
    location: str,
    view: View,
    last_lsn: int,
    cursors: tuple[CursorFact, ...],
    claims: tuple[ClaimFact, ...] = (),
) -> LogInventory:
    """Return the inventory of a view. Reads no file."""
    manifest, spans, found = view.manifest, view.parts(), []
    for index, span in enumerate(spans):
        record = span.record
        following = spans[index + 1].record.first_lsn - 1 if index + 1 < len(spans) else last_lsn
        sealed = record.state is SegmentState.SEALED
        found.append(
            SegmentStock(
                name=record.name,
                state="open"
                if not sealed
                else "compacted"
                if record.flags & SegmentFlag.COMPACTED
                else "sealed",
                first_lsn=record.first_lsn,
                last_lsn=following if span.last_lsn is None else span.last_lsn,
                records=record.records if sealed else None,
                size_bytes=SEGMENT_HEADER_BYTES + span.end_position - record.start_position,
            )
        )
    now_us = wall_us()
    return LogInventory(
        location=location,
        taken_us=now_us,
        segments=tuple(found),
        first_lsn=view.first_lsn,
        last_lsn=last_lsn,
        low_watermark=manifest.low_watermark,
        checkpoint_lsn=manifest.checkpoint_lsn,
        exact_from_lsn=manifest.exact_from_lsn,
        complete_from_lsn=view.complete_from_lsn,
        cursors=cursors,
        claims=claims,
    )
