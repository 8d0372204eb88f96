"""Reading a damaged log: the records of intact frames, and those that damaged ones still hold, marked.

Only `read(damaged="unverified")` and `walkit dump --damaged` come here. States, replicas, consumers and Spark read
through `LogView`, which raises at damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from walkit._internal.arrow import numbers_of, pa
from walkit.errors import SegmentMissingError
from walkit.format.frame import FrameHeader
from walkit.format.frame_fields import header_left, records_left
from walkit.format.layout import FRAME_BYTES_LIMIT, FRAME_HEADER_BYTES, LSN_MAX
from walkit.format.manifest import HoleRecord
from walkit.format.segment import SegmentHeader
from walkit.read.damage_seen import DamageSeen, Seen
from walkit.read.view import LogView, Span, frames_to_batches
from walkit.record import Batch, Kind, Record, UnverifiedRecord, to_datetime
from walkit.recovery.log_scan import salvaged_segment, survey_segment
from walkit.recovery.survey import Region, TolerantFile, frame_headers
from walkit.segments.frame_walk import FrameWalk
from walkit.segments.history import open_segment

BATCH_RECORDS = 4096
_ELSEWHERE = "it belongs to another place"


def unverified(rows: pa.RecordBatch) -> Iterator[Record]:
    """Yield the records of a damaged frame, marked; a time that no calendar has is None."""
    batch = Batch.from_arrow(rows)
    stamps = batch.timestamps or [None] * len(batch)
    lsns = rows.column("lsn").to_pylist()  # damaged ones need not grow, as a Batch takes for granted
    for lsn, (_, kind, key, value), stamp in zip(lsns, batch.rows(), stamps, strict=True):
        yield UnverifiedRecord(lsn, Kind(kind), key, value, to_datetime(stamp))


def records_with_damage(view: LogView, first_lsn: int, last_lsn: int | None, seen: Seen) -> Iterator[Record]:
    """Yield the records of a view in log order; those of damaged frames are `UnverifiedRecord`s."""
    for rows, verified in batches_with_damage(view, first_lsn, last_lsn, seen):
        yield from Batch.from_arrow(rows) if verified else unverified(rows)


def batches_with_damage(
    view: LogView, first_lsn: int, last_lsn: int | None, seen: Seen
) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Yield (batch of RECORD_SCHEMA, whether its frames are intact) from `first_lsn` to `last_lsn`, in log order.

    In memory: one frame, and the regions of one segment. A segment that cannot be read is noted, too.
    """
    reading = _Reading(view, first_lsn, LSN_MAX if last_lsn is None else last_lsn, seen)
    for span in view.spans:
        if reading.overlaps(span.record.first_lsn, span.last_lsn):
            yield from reading.segment(span)
    inside = {gap for span in view.spans for gap in view.manifest.gaps_of(span.record)}
    for gap in view.manifest.lost:
        if gap not in inside and reading.overlaps(gap.first_lsn, gap.last_lsn):
            reason = "given up earlier; lost+found may have its bytes"
            seen(DamageSeen(gap.segment, gap.start_position, gap.end_position, gap.first_lsn, 0, reason))


@dataclass(slots=True)
class _Reading:
    """One reading of a view."""

    view: LogView
    first_lsn: int
    last_lsn: int
    seen: Seen
    reached: int = 0
    """The last LSN that was passed: a frame in a wrong place repeats none."""

    def overlaps(self, first: int | None, last: int | None) -> bool:
        return (last is None or last >= self.first_lsn) and (first is None or first <= self.last_lsn)

    def segment(self, span: Span) -> Iterator[tuple[pa.RecordBatch, bool]]:
        storage, manifest, name = self.view.storage, self.view.manifest, span.record.name
        finding = salvaged_segment(storage, manifest, span.record)
        start, first_lsn = span.record.start_position, span.record.first_lsn or None
        if finding.header is None:
            self.seen(DamageSeen(name, start, span.end_position, first_lsn, 0, finding.reason))
            return
        if finding.error is not None:
            self.seen(DamageSeen(name, start, start, first_lsn, 0, finding.reason))
            # A fitted header knows the intact frames alone, and a damaged one may be larger.
            finding.header = replace(finding.header, frame_bytes_max=FRAME_BYTES_LIMIT)
        try:
            survey_segment(storage, manifest, finding, until=span.end_position, decode=True, tolerant=True)
            file = TolerantFile(open_segment(storage, span.record))
        except SegmentMissingError as error:  # a trim has removed it since it was looked at
            self.seen(DamageSeen(name, start, span.end_position, first_lsn, 0, str(error)))
            return
        with closing(file):
            for region in finding.regions:
                start = region.end_position
                if not self.overlaps(region.first_lsn, region.last_lsn) or isinstance(region.gap, HoleRecord):
                    continue
                if region.intact and region.before.last_lsn < self.reached:
                    at = region.start_position, region.end_position
                    self.seen(DamageSeen(name, *at, region.first_lsn, 0, _ELSEWHERE))
                elif region.intact:
                    yield from self._intact(file, finding.header, region, span)
                    self.reached = max(self.reached, region.after.last_lsn)
                elif region.end_position > region.start_position:
                    yield from self._damaged(file, finding.header, region)
        if start < span.end_position:
            reason = "the file ends before its frames do"
            self.seen(DamageSeen(name, start, span.end_position, self.reached + 1, 0, reason))

    def _intact(
        self, file: TolerantFile, header: SegmentHeader, region: Region, span: Span
    ) -> Iterator[tuple[pa.RecordBatch, bool]]:
        before = region.before
        walk = FrameWalk(
            file,
            header,
            position=region.start_position,
            end_position=region.end_position,
            next_lsn=before.last_lsn + 1,
            chain=before.chain,
        )
        wanted = ((h, frame) for h, frame in walk if h.records and self.overlaps(h.first_lsn, h.last_lsn))
        for rows in frames_to_batches(wanted, self.first_lsn, self.last_lsn, records=BATCH_RECORDS):
            yield rows, True
        self.view.refuse(walk, span)

    def _damaged(
        self, file: TolerantFile, segment: SegmentHeader, region: Region
    ) -> Iterator[tuple[pa.RecordBatch, bool]]:
        position, end = region.start_position, region.end_position
        whole = segment.offset_of(end) < file.size()
        while position < end:
            offset = segment.offset_of(position)
            header = header_left(file.read(offset, FRAME_HEADER_BYTES), segment, position)
            if header is None or (header.end_position > end and whole):
                until = _next_header(file, segment, position, end)
                reason = str(region.error or "no header of a frame can be read there")
                self.seen(DamageSeen(file.name, position, until, region.first_lsn, 0, reason))
                position = until
                continue
            if self.overlaps(header.first_lsn, header.last_lsn):
                yield from self._rows(file, header, file.read(offset, header.footprint), region.last_lsn)
            position = header.end_position

    def _rows(
        self, file: TolerantFile, header: FrameHeader, frame: bytes, last_lost: int | None
    ) -> Iterator[tuple[pa.RecordBatch, bool]]:
        first, last = header.first_lsn, header.last_lsn
        rows, reason = records_left(header, frame)
        if header.records and (first <= self.reached or last > (last_lost or last)):
            rows, reason = rows.slice(0, 0), _ELSEWHERE
        lsns = numbers_of(rows.column("lsn"), np.int64)
        rows = rows.filter(pa.array((lsns >= self.first_lsn) & (lsns <= self.last_lsn)))
        self.seen(DamageSeen(file.name, header.position, header.end_position, first, len(rows), reason))
        self.reached = max(self.reached, last)
        for begin in range(0, len(rows), BATCH_RECORDS):
            yield rows.slice(begin, BATCH_RECORDS), False


def _next_header(file: TolerantFile, segment: SegmentHeader, position: int, end: int) -> int:
    """Return the position of the next frame of a segment whose header is right, else `end`."""
    start = segment.offset_of(position) + segment.alignment
    limits = segment.alignment, segment.frame_bytes_max
    for offset, header in frame_headers(file, *limits, start, segment.offset_of(end)):
        ours = (header.log_id, header.epoch_id) == (segment.log_id, segment.epoch_id)
        if ours and segment.offset_of(header.position) == offset:
            return header.position
    return end
