"""The named metrics of an open log, put together from its parts."""

from __future__ import annotations

from walkit.log.contents import segments_now
from walkit.log.parts import LogParts
from walkit.metrics import LogStatistics


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
