"""How a log looks in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from walkit._html import tag
from walkit.log.contents import segments_now
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
    manifest, begun = segments_now(manifest_store, segments)
    sealed = [
        SegmentShown(s.number, s.start_position, s.end_position, s.first_lsn, s.last_lsn, True)
        for s in manifest.sealed
    ]
    return sealed + [
        SegmentShown(s.number, header.start_position, s.end_position, header.first_lsn, s.last_lsn, False)
        for s, header in begun
    ]
