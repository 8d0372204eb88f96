"""How segments, and what a reader sees of them, look in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from walkit._internal.html import CYAN, RED, YELLOW, Mark, Markup, Part, bar, facts, join, swatch, tag
from walkit._internal.text import bounds, counted, lsn_range
from walkit.recovery.report import Cut

if TYPE_CHECKING:
    from walkit.read.view import LogView


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


def reader_html(location: str, view: LogView, last_lsn: int) -> str:
    """Return what a reader sees as HTML: the marks, and the segments up to the last record it may read."""
    segments = [
        SegmentShown(
            s.record.number,
            s.record.start_position,
            s.end_position,
            s.record.first_lsn,
            last_lsn if s.last_lsn is None else s.last_lsn,
            s.last_lsn is not None,
        )
        for s in view.spans
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
    said = [
        tag(
            "div",
            tag(
                "small", f"last opening cut {counted(c.bytes, 'byte')} at position {c.position:,}: {c.reason}"
            ),
        )
        for c in cuts
    ]
    return join([bar([s.part() for s in segments], lines), tag("small", *legend), *said])


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
    # What was cut is in no segment any more: the mark is where it was, at the end of what was kept before it.
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
