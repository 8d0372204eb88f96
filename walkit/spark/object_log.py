"""A log on object storage as Spark reads it.

The driver plans by the headers of a few bulks, and each task gets the bulks between two places of the log: it proves
that they follow each other from the one place to the other, and reads neither the manifest nor a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from walkit.errors import GapError, WalkitError
from walkit.format.batch_builder import BatchBuilder
from walkit.format.frame import FrameHeader
from walkit.format.manifest import SegmentRecord
from walkit.objects.bulks import PARALLEL
from walkit.objects.layout import BulkHeader, LogPlace
from walkit.objects.view import ObjectEnd, ObjectView
from walkit.read.ranges import RANGE_BYTES
from walkit.read.reader import FolderViews, ReaderView, ViewSource, reader_view_of
from walkit.read.record_count import as_time_us, lsn_in
from walkit.read.vectorised import FrameRows
from walkit.read.view import BATCH_BYTES, BATCH_RECORDS, LogView
from walkit.segments.history import LogPoint
from walkit.storage.address import StorageOptions, is_object_url, open_store, storage_at

AnyView: TypeAlias = LogView | ObjectView
CUTS_MAX = 1024
"""A plan looks at the headers of so many bulks, or of one for each partition."""


def object_end(url: str, options: StorageOptions | None, **how: Any) -> ObjectEnd:
    """Return what follows the end of a log on object storage, by headers alone."""
    return ObjectEnd(open_store(url, options), bodies=False, **how)


def source_at(path: str, options: StorageOptions | None) -> ViewSource:
    """Return where views of a log come from; its folder has the snapshots and claims."""
    return object_end(path, options) if is_object_url(path) else FolderViews(storage_at(path))


def seen_at(path: str, options: StorageOptions | None = None) -> ReaderView[AnyView]:
    """Return what a reader may see now of a log in a folder or on object storage."""
    return object_end(path, options).now() if is_object_url(path) else reader_view_of(storage_at(path))


def segments_of(view: AnyView) -> LogView:
    """Return the part of a view that is in segments: of a log on object storage the part that was compacted."""
    return view.files if isinstance(view, ObjectView) else view


class BulkRange(NamedTuple):
    """The bulks after one place of a log up to another, or one segment of compaction; bounds as in `FrameRange`."""

    begin: LogPlace
    end: LogPlace
    start_position: int
    end_position: int
    first_lsn: int
    last_lsn: int

    @classmethod
    def of(cls, begin: LogPlace, end: LogPlace) -> BulkRange:
        """Return the range between two places."""
        return cls(begin, end, begin.position, end.position, begin.lsn + 1, end.lsn)

    @classmethod
    def of_segment(cls, number: int, s: SegmentRecord) -> BulkRange:
        """Return the range of a segment that replaces bulks up to this number."""
        begin = LogPlace(number, s.start_position, s.first_lsn - 1, s.start_chain, s.epoch)
        return cls.of(begin, LogPlace(number, s.end_position, s.last_lsn, s.end_chain, s.epoch))


def bulk_ranges(
    view: ObjectView,
    newest: int,
    *,
    parts: int | None = None,
    first_lsn: int | None = None,
    last_lsn: int | None = None,
) -> list[BulkRange]:
    """Return what `ranges_of` returns of a log in segments. Reads headers: one for each range, and a few for a bound.

    With `parts` there are some for each part, as bulks between two places may differ in size. Each segment by which
    compaction has replaced bulks is a range, for which nothing is read.
    """
    if first_lsn is not None and first_lsn < view.first_lsn:
        raise GapError(first_lsn, view.first_lsn)
    first = view.first_lsn if first_lsn is None else first_lsn
    last = newest if last_lsn is None else min(last_lsn, newest)
    segments = (span.record for span in view.files.spans)
    found = [
        BulkRange.of_segment(view.floor.number, s)
        for s in segments
        if first <= s.last_lsn and s.first_lsn <= last
    ]
    first = max(first, view.floor.lsn + 1)
    if last < first:
        return found
    begin, end = view.number_of(first) - 1, view.end.number if last >= view.end.lsn else view.number_of(last)
    total = _place(view, end).position - _place(view, begin).position
    count = -(-total // RANGE_BYTES) if parts is None else max(parts, min(4 * parts, CUTS_MAX))
    count = max(1, min(count, end - begin))
    numbers = [begin + (end - begin) * at // count for at in range(count + 1)]
    with ThreadPoolExecutor(PARALLEL, "walkit-plan") as pool:
        places = list(pool.map(lambda number: _place(view, number), numbers))
    return found + [BulkRange.of(*pair) for pair in pairwise(places) if pair[0].lsn < pair[1].lsn]


def _place(view: ObjectView, number: int) -> LogPlace:
    known = next((place for place in (view.floor, view.end) if place.number == number), None)
    return known or view.source.header(number, view.first_lsn).end


def headers_of(view: ObjectView, first_lsn: int, last_lsn: int) -> Iterator[BulkHeader]:
    """Yield the headers of the bulks that have these LSNs, read ahead; nothing for LSNs that compaction has moved."""
    first_lsn = max(first_lsn, view.floor.lsn + 1)
    if last_lsn < first_lsn:
        return
    number = view.number_of(first_lsn)
    with closing(view.source.bulks.ahead(number, view.end.number, bodies=False)) as found:
        for bulk in found:
            if bulk is None:
                view.source.refuse_missing(number, first_lsn)
            number += 1
            if bulk.header.first_lsn > last_lsn:
                return
            if not bulk.header.is_fence:
                yield bulk.header


def lsn_at(view: ObjectView, time: datetime) -> int:
    """Return what `walkit.lsn_at` returns of a log in a folder. Reads headers by bisection, and one bulk."""
    wanted_us = as_time_us(time)
    low, high = view.floor.number, view.end.number
    while low < high:
        middle = (low + high + 1) // 2
        header = view.source.header(middle, view.first_lsn)
        low, high = (middle, high) if header.sealed_us <= wanted_us else (low, middle - 1)
    if low == view.floor.number and view.files.spans:
        return lsn_in(view.files, wanted_us)
    # From its first frame on: a bulk of a copy has many, and fences after it have its time.
    while low > view.floor.number and view.source.header(low, view.first_lsn).is_fence:
        low -= 1
    after = _place(view, max(low - 1, view.floor.number)).lsn
    for frame, _, _ in view.frames(after + 1, body=False):
        if frame.sealed_us > wanted_us:
            break
        after = frame.last_lsn
    return max(after, view.first_lsn - 1)


@dataclass(frozen=True, slots=True)
class PlannedBulks:
    """Bulks of a log as it was at the plan. Picklable; the repr shows no credentials."""

    view: ObjectView
    """Of these bulks; without its source and its folder, which have locks and a client."""
    location: str
    end: LogPoint
    """The end of the log at the plan."""
    options: StorageOptions | None

    @classmethod
    def of(cls, view: AnyView, last_lsn: int, options: StorageOptions | None) -> PlannedBulks | None:
        """Return the plan of a view that is read up to `last_lsn`; None for a log in a folder."""
        if not isinstance(view, ObjectView):
            return None
        nothing: Any = None  # a task makes its own
        end = LogPoint.of(view.manifest, last_lsn)
        return cls(replace(view, source=nothing, storage=nothing), view.storage.location, end, options)

    def within(self, ranges: Sequence[BulkRange]) -> PlannedBulks:
        """Return the segments and bulks of ranges that follow each other; between two of them are fences at most."""
        view = self.view
        begin, end = (ranges[0].begin, ranges[-1].end) if ranges else (view.end, view.end)
        spans = (span.record for span in view.files.spans)
        manifest = replace(
            view.manifest, segments=tuple(s for s in spans if begin.lsn < s.last_lsn <= end.lsn)
        )
        floor = max(begin, min(view.floor, end))
        return replace(self, view=replace(view, manifest=manifest, floor=floor, end=end))

    def batches(self, *, first_lsn: int, last_lsn: int, keys: pa.Array | None) -> Iterator[pa.RecordBatch]:
        """Yield what `read_ranges` yields of segments. Each bulk is asked for once, many at a time.

        GapError if one was trimmed since; DivergenceError or LogNotFoundError if another log, or none, is there now.
        """
        last = min(last_lsn, self.view.end.lsn)
        builder = BatchBuilder(first_lsn, last, records=BATCH_RECORDS, whole_bytes=BATCH_BYTES, keys=keys)
        rows = FrameRows(first_lsn, last, builder)
        try:
            for frame, data, _ in self.frames(first_lsn, last):
                rows.see_one(frame, data, copied=False)
                if builder.full:
                    yield from builder.batches()
        except WalkitError:
            yield from builder.batches()
            raise
        yield from builder.batches()

    def frames(
        self, first_lsn: int, last_lsn: int | None, *, body: bool = True
    ) -> Iterator[tuple[FrameHeader, memoryview, str]]:
        """Yield frames as a `View` does."""
        view = self.view
        source = object_end(self.location, self.options, planned=view.manifest)
        first = first_lsn if view.files.spans else max(first_lsn, view.floor.lsn + 1)
        return replace(view, source=source, storage=source.folder()).frames(first, last_lsn, body=body)
