"""A log's number of records, and its LSN at a time: from the manifest, indexes and frame headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from walkit._internal.arguments import as_lsn, refuse
from walkit.format.frame import FrameHeader
from walkit.read.ranges import FrameRange, ranges_of, read_headers, read_range
from walkit.read.reader import view_of
from walkit.read.view import LogView, Span
from walkit.record import to_microseconds
from walkit.storage.address import Place, storage_at


def count_records(path: Place, first_lsn: int | None = None, last_lsn: int | None = None) -> int:
    """Return the number of records of a log between two LSNs, inclusive; None leaves a side open.

    Counts a reader's view of now. A record is decoded only if a bound lies within a frame that compaction has
    thinned. GapError if `first_lsn` is trimmed; LogNotFoundError, NotALogError, CorruptionError.
    """
    for name, lsn in (("first_lsn", first_lsn), ("last_lsn", last_lsn)):
        if lsn is not None:
            as_lsn(lsn, name)
    view, newest = view_of(storage_at(path))
    first = max(first_lsn or 0, view.manifest.low_watermark + 1)
    last = newest if last_lsn is None else min(last_lsn, newest)
    if first_lsn == 0:
        first_lsn = None
    ranges = ranges_of(view, newest, first_lsn=first_lsn, last_lsn=last)
    return sum(_count(path, frames, first, last) for frames in ranges)


def _count(path: Place, frames: FrameRange, first: int, last: int) -> int:
    if first <= frames.first_lsn and frames.last_lsn <= last:
        return frames.records
    headers = read_headers(path, [frames], first_lsn=first, last_lsn=last)
    return sum(_count_frame(path, frames, header, first, last) for _, header in headers)


def _count_frame(path: Place, frames: FrameRange, header: FrameHeader, first: int, last: int) -> int:
    first, last = max(first, header.first_lsn), min(last, header.last_lsn)
    if (first, last) == (header.first_lsn, header.last_lsn):
        return header.records
    if header.records == header.span:
        return last - first + 1
    return sum(len(batch) for batch in read_range(path, frames, first_lsn=first, last_lsn=last))


def lsn_at(path: Place, time: datetime) -> int:
    """Return the last LSN that a log had given at a time: that of the last frame sealed at or before it; 0 before all.

    `time` has a time zone. Frames carry the wall clock of the writer's machine, not the records' own timestamps: if
    that clock was set back, the answer is for one of the moments that it showed twice. Compacted records have the time
    of their newest frame. If the time is before the oldest record left, the answer is the LSN before it.
    Reads a few frame headers of each segment, and those of one segment. OptionsError for a time without a time zone.
    """
    wanted_us = as_time_us(time)
    view, _ = view_of(storage_at(path))
    return lsn_in(view, wanted_us)


def lsn_in(view: LogView, wanted_us: int) -> int:
    """Return what `lsn_at` returns, for a view and a time in microseconds."""
    found = view.first_lsn - 1
    spans = [span for span in view.spans if span.last_lsn is None or span.record.records]
    at = _last_begun(view, spans, wanted_us)
    if at is None:
        return found
    one = replace(view, spans=(spans[at],))
    for header, _, _ in one.frames(0, body=False):
        if header.sealed_us > wanted_us:
            break
        found = max(found, header.last_lsn)
    return found


def _last_begun(view: LogView, spans: Sequence[Span], wanted_us: int) -> int | None:
    """Return the number of the last span whose first frame was sealed by then, by bisection; None before the first."""
    low, high = 0, len(spans)
    while low < high:
        middle = (low + high) // 2
        first = next(replace(view, spans=(spans[middle],)).frames(0, body=False), None)
        if first is not None and first[0].sealed_us <= wanted_us:
            low = middle + 1
        else:
            high = middle
    return low - 1 if low else None


def as_time_us(time: datetime) -> int:
    """Return a time as microseconds; OptionsError unless it is a datetime with a time zone."""
    if not isinstance(time, datetime) or time.tzinfo is None:
        refuse("time", time, "a datetime with a time zone, such as datetime.now(UTC)")
    wanted_us = to_microseconds(time)
    assert wanted_us is not None
    return wanted_us
