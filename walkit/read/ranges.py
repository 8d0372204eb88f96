"""Ranges of frames: how a log is cut into parts that can be read apart from each other, in other processes too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from walkit.errors import CorruptionError, GapError, WalkitError
from walkit.format.batch_builder import BatchBuilder
from walkit.format.frame import FrameHeader
from walkit.format.index import IndexEntry, SegmentIndex
from walkit.format.layout import INDEX_STEP_BYTES
from walkit.format.manifest import Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader
from walkit.read.reader import view_of
from walkit.read.vectorised import FrameRows
from walkit.read.view import BATCH_BYTES, BATCH_RECORDS, LogView, Span
from walkit.segments.frame_walk import FrameWalk, RowSeen, last_chain_of
from walkit.segments.history import LogPoint
from walkit.segments.index_file import read_index
from walkit.segments.manifest_store import load_manifest
from walkit.storage.address import Place, storage_at
from walkit.storage.interface import Storage, StorageFile

RANGE_BYTES = 8 << 20
"""Frames are gathered into ranges of about this size if the caller does not say how many parts are wanted."""


class FrameRange(NamedTuple):
    """Frames of one segment: positions [start_position, end_position), on frame borders, without a gap.

    A tuple, because a plan of thousands is pickled several times on its way to its readers.
    """

    segment: int
    start_position: int
    end_position: int
    first_lsn: int
    last_lsn: int
    records: int


@dataclass(frozen=True, slots=True)
class PlannedSegments:
    """The segments of some ranges, as the manifest had them at the plan: who reads the ranges reads no manifest.

    Picklable. A reader proves by a segment's header that it is the planned one: log, epoch, number, start, first LSN,
    and that it is not of a later generation of the manifest.
    """

    manifest: Manifest
    """With these segments alone."""
    end: LogPoint
    """The end of the log that the ranges belong to."""

    @classmethod
    def of(
        cls, manifest: Manifest, last_lsn: int, groups: Iterable[Sequence[FrameRange]]
    ) -> list[PlannedSegments]:
        """Return the segments of each group of ranges of a log that has this manifest and is read up to `last_lsn`."""
        records = {record.number: record for record in manifest.segments}
        bare, end = replace(manifest, segments=(), extra={}), LogPoint.of(manifest, last_lsn)
        numbers = (sorted({frames.segment for frames in group}) for group in groups)
        return [cls(replace(bare, segments=tuple(records[n] for n in found)), end) for found in numbers]


@contextmanager
def _manifest_for(storage: Storage, planned: PlannedSegments | None) -> Iterator[Manifest]:
    """Give the manifest that ranges are read by; DivergenceError if the log has been replaced."""
    if planned is None:
        yield load_manifest(storage)
        return
    try:
        yield planned.manifest
    except (CorruptionError, GapError) as error:
        now = load_manifest(storage)
        planned.end.require(now, storage.location)
        if isinstance(error, GapError):
            raise GapError(error.wanted, max(now.complete_from_lsn, now.first_lsn)) from error
        raise


def plan_ranges(
    path: Place, *, parts: int | None = None, first_lsn: int | None = None, last_lsn: int | None = None
) -> list[FrameRange]:
    """Cut the readable records into ranges, in log order; `parts` is about how many. [] without any.

    With a living writer these are the records on stable storage; otherwise those that recovery would keep, which may be
    more (`LogReader.durable_lsn` is the proven part). Segments outside the LSN bounds (inclusive) are not opened. Only
    frame headers are read, or a segment's index instead. GapError if `first_lsn` is trimmed.
    """
    view, newest = view_of(storage_at(path))
    return ranges_of(view, newest, parts=parts, first_lsn=first_lsn, last_lsn=last_lsn)


def ranges_of(
    view: LogView,
    newest: int,
    *,
    parts: int | None = None,
    first_lsn: int | None = None,
    last_lsn: int | None = None,
) -> list[FrameRange]:
    """As `plan_ranges`, for a view whose last LSN is `newest`."""
    low = view.manifest.low_watermark
    if first_lsn is not None and first_lsn <= low:
        raise GapError(first_lsn, low + 1)
    first = low + 1 if first_lsn is None else first_lsn
    last = newest if last_lsn is None else min(last_lsn, newest)
    total = sum(s.end_position - s.record.start_position for s in view.spans)
    goal = RANGE_BYTES if parts is None else max(total // max(parts, 1), 1)
    ranges: list[FrameRange] = []
    for span in view.spans:
        if (span.last_lsn is None or span.last_lsn >= first) and span.record.first_lsn <= last:
            ranges.extend(_gather(view, span, first, last, goal))
    return ranges


def _gather(view: LogView, span: Span, first: int, last: int, goal_bytes: int) -> Iterator[FrameRange]:
    whole = first <= span.record.first_lsn and span.last_lsn is not None and span.last_lsn <= last
    coarse = goal_bytes >= 4 * INDEX_STEP_BYTES  # else frames between the noted ones matter
    known = whole and not view.manifest.gaps_of(span.record)
    if known and span.end_position - span.record.start_position <= goal_bytes:
        yield from _sealed(span.record)
        return
    if known and coarse:
        index = read_index(view.storage, view.manifest.log_id, span.record)
        if index is not None:
            yield from _noted(index, span.record, goal_bytes)
            return
    yield from _walked(replace(view, spans=(span,)), first, last, goal_bytes)


def _sealed(record: SegmentRecord) -> Iterator[FrameRange]:
    """Yield a whole segment as one range, of which the manifest says all there is to say: no file is opened."""
    if record.records:
        start, end = record.start_position, record.end_position
        yield FrameRange(record.number, start, end, record.first_lsn, record.last_lsn, record.records)


def _noted(index: SegmentIndex, record: SegmentRecord, goal_bytes: int) -> Iterator[FrameRange]:
    """Yield the ranges of a whole segment from its index alone. Its reader verifies its bounds."""
    end = IndexEntry(record.end_position, record.last_lsn + 1, record.records)
    first = index.entry(0)
    for at in range(1, len(index.positions) + 1):
        entry = index.entry(at) if at < len(index.positions) else end
        if entry is not end and entry.position - first.position < goal_bytes:
            continue
        records = entry.records - first.records
        if records:
            yield FrameRange(
                record.number, first.position, entry.position, first.first_lsn, entry.first_lsn - 1, records
            )
        first = entry


def _walked(view: LogView, first: int, last: int, goal_bytes: int) -> Iterator[FrameRange]:
    """Yield the ranges of a view's one segment, as the headers of its frames have them."""
    segment = view.spans[0].record.number
    first_header: FrameHeader | None = None
    header: FrameHeader | None = None
    records = 0
    # A later reader of a range may not know the gaps yet: those of a log not opened since its writer died.
    gaps = view.manifest.gaps_of(view.spans[0].record)
    for frame, _, _ in view.frames(first, last, body=False):
        passed = header and any(header.end_position <= g.start_position < frame.position for g in gaps)
        if passed and first_header is not None and header is not None:
            yield _range(segment, first_header, header, records)
            first_header, records = None, 0
        header = frame
        first_header = first_header or header
        records += header.records
        if header.end_position - first_header.position >= goal_bytes:
            yield _range(segment, first_header, header, records)
            first_header, records = None, 0
    if first_header is not None and header is not None:
        yield _range(segment, first_header, header, records)


def _range(segment: int, first: FrameHeader, last: FrameHeader, records: int) -> FrameRange:
    return FrameRange(segment, first.position, last.end_position, first.first_lsn, last.last_lsn, records)


def read_range(
    path: Place, frames: FrameRange, *, first_lsn: int | None = None, last_lsn: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of one range, as `read_ranges` does."""
    return read_ranges(path, (frames,), first_lsn=first_lsn, last_lsn=last_lsn)


def read_ranges(
    path: Place,
    ranges: Iterable[FrameRange],
    *,
    first_lsn: int | None = None,
    last_lsn: int | None = None,
    planned: PlannedSegments | None = None,
    keys: pa.Array | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of ranges, one after the other, as batches of `walkit.RECORD_SCHEMA`, cut to the LSN bounds.

    The bounds are inclusive. Every frame with a record within them is verified; of those before them only the headers
    are read, those after them are not. The first frame of a range is checked against the range's facts of it, each
    one after against the one before. The manifest is read once for all, or not at all with `planned`, the segments of
    the ranges: a concurrent trim or compaction is found as any reader finds it. DivergenceError if another log
    or history is at `path` than was planned. With `keys` batches that have none of them are left out, before values are
    copied.
    """
    wanted = [frames for frames in ranges if _within(frames, first_lsn, last_lsn)]
    if not wanted:
        return
    first = max(first_lsn or 0, min(frames.first_lsn for frames in wanted))
    last = max(frames.last_lsn for frames in wanted)
    last = last if last_lsn is None else min(last, last_lsn)
    builder = BatchBuilder(first, last, records=BATCH_RECORDS, whole_bytes=BATCH_BYTES, keys=keys)
    rows = FrameRows(first, last, builder)
    try:
        for _ in _steps_of(storage_at(path), wanted, first_lsn or 0, last_lsn, planned, rows):
            if rows.builder.full:
                yield from rows.builder.batches()
    except WalkitError:
        yield from rows.builder.batches()
        raise
    yield from rows.builder.batches()


def _within(frames: FrameRange, first_lsn: int | None, last_lsn: int | None) -> bool:
    first = max(first_lsn or 0, frames.first_lsn)
    return first <= frames.last_lsn and (last_lsn is None or first <= last_lsn)


def _steps_of(
    storage: Storage,
    ranges: Iterable[FrameRange],
    first_lsn: int,
    last_lsn: int | None,
    planned: PlannedSegments | None,
    rows: FrameRows,
) -> Iterator[None]:
    """Let `rows` see the frames of ranges; yield after each few of them."""
    with _manifest_for(storage, planned) as manifest:
        for view, frames in _views_of(storage, manifest, ranges):
            yield from _steps_in(view, frames, max(first_lsn, frames.first_lsn), last_lsn, rows)


class _PlannedView(LogView):
    """A view of one segment, which its manifest names."""

    __slots__ = ()

    def check(self, record: SegmentRecord, segment: SegmentHeader | None) -> None:
        """Refuse as `LogView` does; GapError for a segment that was made after its manifest."""
        LogView.check(self, record, segment)
        later = segment is not None and segment.manifest_generation > self.manifest.generation
        if later and record is self.spans[0].record:  # else it is the copy that a trim has made of its end
            raise GapError(record.first_lsn, max(self.manifest.complete_from_lsn, self.manifest.first_lsn))


def _views_of(
    storage: Storage, manifest: Manifest, ranges: Iterable[FrameRange]
) -> Iterator[tuple[LogView, FrameRange]]:
    """Yield each range with a view of its segment; GapError if the manifest has dropped it."""
    records = {record.number: record for record in manifest.segments}
    for frames in ranges:
        record = records.get(frames.segment) or manifest.uncompacted_at(frames.end_position)
        if record is None:
            raise GapError(frames.first_lsn, max(manifest.complete_from_lsn, manifest.first_lsn))
        yield _PlannedView(storage, manifest, (Span(record, frames.end_position, frames.last_lsn),)), frames


def _steps_in(
    view: LogView, frames: FrameRange, first_lsn: int, last_lsn: int | None, rows: FrameRows
) -> Iterator[None]:
    (span,) = view.spans
    file, segment = view.opened(span)
    with closing(file):
        if frames.start_position < segment.start_position:
            raise GapError(frames.first_lsn, max(view.manifest.complete_from_lsn, view.manifest.first_lsn))
        last_chain = last_chain_of(span.record, segment, frames.end_position)
        rows.last_lsn = 0  # of this range: they may come in any order
        # A row may have frames after the last LSN, which need not be intact.
        row_seen = None if rows.large or (last_lsn is not None and last_lsn < frames.last_lsn) else rows.see
        walk = _walk_from(file, segment, frames, first_lsn, last_chain, row_seen)
        for found in walk.steps():
            if found is not None:
                if last_lsn is not None and found[0].first_lsn > last_lsn:
                    break
                rows.see_one(*found, copied=row_seen is not None)
            yield
            if last_lsn is not None and rows.last_lsn >= last_lsn:
                break
        view.refuse(walk, span)


def _walk_from(
    file: StorageFile,
    segment: SegmentHeader,
    frames: FrameRange,
    first_lsn: int,
    last_chain: int | None,
    row_seen: RowSeen | None,
) -> FrameWalk:
    """Return the walk from the frame of `first_lsn`, or over the whole range if that is not reached."""

    def walk(position: int, next_lsn: int, chain: int | None, body: bool) -> FrameWalk:
        return FrameWalk(
            file,
            segment,
            position=position,
            end_position=frames.end_position,
            next_lsn=next_lsn,
            chain=chain,
            last_chain=last_chain,
            body=body,
            row_seen=row_seen if body else None,
        )

    if first_lsn > frames.first_lsn:
        for header, _ in walk(frames.start_position, frames.first_lsn, None, False):
            if header.records and header.last_lsn >= first_lsn:
                return walk(header.position, header.first_lsn, header.chain, True)
    return walk(frames.start_position, frames.first_lsn, None, True)


def read_headers(
    path: Place,
    ranges: Iterable[FrameRange],
    *,
    first_lsn: int | None = None,
    last_lsn: int | None = None,
    bodies: bool = False,
    planned: PlannedSegments | None = None,
) -> Iterator[tuple[str, FrameHeader]]:
    """Yield segment name and header of each frame of ranges that has a record within the LSN bounds (inclusive).

    Each header is verified by its checksum and against the one before; with `bodies` the body is read and verified by
    its checksum too, and not decoded. GapError if a range was trimmed or compacted since it was planned. `planned` is
    as for `read_ranges`.
    """
    storage = storage_at(path)
    wanted = [frames for frames in ranges if _within(frames, first_lsn, last_lsn)]
    with _manifest_for(storage, planned) as manifest:
        for view, frames in _views_of(storage, manifest, wanted):
            last = frames.last_lsn if last_lsn is None else min(frames.last_lsn, last_lsn)
            for header, _, name in view.frames(max(first_lsn or 0, frames.first_lsn), last, body=bodies):
                yield name, header
