"""How a log looks in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from walkit._html import tag
from walkit.read.html import SegmentShown, segments_html
from walkit.recovery.report import Cut
from walkit.segments.manifest_store import ManifestStore
from walkit.segments.segment_set import SegmentSet


def log_html(
    title: str, state: str, marks: Mapping[str, int], segments: Sequence[SegmentShown], cuts: Sequence[Cut]
) -> str:
    """Return LSN marks, segments and the last cuts as HTML, readable on dark and on light."""
    return tag(
        "div",
        tag("b", title),
        f" ({state})",
        tag(
            "table",
            tag("tr", *(tag("td", name, " ", tag("b", f"{lsn:,}")) for name, lsn in marks.items())),
        ),
        segments_html(segments, marks, cuts),
    )


def segments_of(manifest_store: ManifestStore, segments: SegmentSet) -> list[SegmentShown]:
    """Return the segments that are the log now, in order."""
    # The open ones first: one that is sealed meanwhile is in the manifest then, and not in neither.
    opened = list(segments.open_segments)
    manifest = manifest_store.current
    found = [
        SegmentShown(s.number, s.start_position, s.end_position, s.first_lsn, s.last_lsn, True)
        for s in manifest.sealed
    ]
    numbers = {s.number for s in found}
    for segment in opened:
        header = segment.header
        if header is not None and segment.number not in numbers:
            found.append(
                SegmentShown(
                    segment.number,
                    header.start_position,
                    segment.end_position,
                    header.first_lsn,
                    segment.last_lsn,
                    False,
                )
            )
    return found
