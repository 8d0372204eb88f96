"""How an open log is described: its named metrics, and its HTML for a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from walkit._internal.html import tag
from walkit.log.contents import segments_now
from walkit.log.parts import LogParts
from walkit.metrics import LogStatistics
from walkit.read.html import SegmentShown, segments_html
from walkit.recovery.report import Cut
from walkit.segments.manifest_store import ManifestStore
from walkit.segments.segment_set import SegmentSet


def statistics_of(parts: LogParts) -> LogStatistics:
    """Return a frozen snapshot of the named metrics."""
    core, driver, segments = parts.core, parts.driver, parts.segments
    counters = driver.counters
    manifest, begun = segments_now(parts.manifest_store, segments)
    open_bytes = sum(segment.end_position - header.start_position for segment, header in begun)
    return LogStatistics(
        appended_lsn=core.appended_lsn,
        acked_lsn=core.acked_lsn,
        durable_lsn=core.durable_lsn,
        first_lsn=parts.contents.first_lsn,
        records_appended=core.appended_lsn - segments.epoch_began.last_lsn,
        records_acked=core.acked_lsn - segments.epoch_began.last_lsn,
        user_bytes=counters.user_bytes,
        frames_written=counters.frames_written,
        frame_bytes=counters.frame_bytes,
        padding_bytes=counters.padding_bytes,
        alignment=core.alignment,
        marks_written=counters.marks_written,
        syncs=counters.syncs,
        write_ns=counters.write_ns,
        prepare_ns=counters.prepare_ns,
        queue_records=core.pending_records,
        queue_bytes=core.pending_bytes,
        queue_bytes_max=driver.queue_bytes_max,
        deliveries_waiting=driver.delivery.waiting,
        callback_errors=driver.delivery.errors,
        rotations=segments.rotations,
        segments=len(manifest.sealed) + len(begun),
        log_bytes=sum(s.size_bytes for s in manifest.sealed) + open_bytes,
        poisoned=int(core.failure is not None),
    )


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
