"""How a log looks in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from walkit._html import tag
from walkit.read.html import SegmentShown, segments_html

if TYPE_CHECKING:
    from walkit.log.engine import LogEngine


def log_html(engine: LogEngine) -> str:
    """Return LSN marks, segments and the last cut as HTML, readable on dark and on light."""
    core = engine.core
    state = "closed" if engine.closed else "poisoned" if core.failure is not None else "open"
    marks = {
        "first": engine.first_lsn,
        "durable": core.durable_lsn,
        "acked": core.acked_lsn,
        "appended": core.appended_lsn,
    }
    segments = segments_of(engine)
    cuts = () if engine.recovery is None else engine.recovery.cuts
    title = f" ({state}, durability {engine.options.durability})"
    return tag(
        "div",
        tag("b", f"log {engine.storage.location}"),
        title,
        tag(
            "table",
            tag("tr", *(tag("td", name, " ", tag("b", f"{lsn:,}")) for name, lsn in marks.items())),
        ),
        segments_html(segments, marks, cuts),
    )


def segments_of(engine: LogEngine) -> list[SegmentShown]:
    """Return the segments that are the log now, in order."""
    # The open ones first: one that is sealed meanwhile is in the manifest then, and not in neither.
    opened = list(engine.segments.open_segments)
    manifest = engine.store.current
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
