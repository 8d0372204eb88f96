"""The plan of one `load()`: made once, by the process that loads, from one view of the log."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from walkit.errors import GapError, HistoryTrimmedError
from walkit.format.file_names import lsn_of_name
from walkit.format.frame import FrameHeader, FrameIdentity
from walkit.format.manifest import Manifest
from walkit.objects.view import ObjectView
from walkit.read.ranges import FrameRange, PlannedSegments, ranges_of, read_headers, read_ranges
from walkit.read.read_api import Resolve
from walkit.recovery.scan_report import Verdict
from walkit.recovery.verify import scan as scan_log
from walkit.segments.history import LogPoint
from walkit.segments.manifest_store import load_manifest
from walkit.spark.facts import LogFacts
from walkit.spark.linked import with_values
from walkit.spark.object_log import (
    AnyView,
    BulkRange,
    PlannedBulks,
    bulk_ranges,
    seen_at,
    segments_of,
)
from walkit.spark.options import LoadOptions
from walkit.spark.worker_errors import LOAD_AGAIN
from walkit.state.load_snapshot import base_at, base_of_all
from walkit.state.snapshot import identity_at
from walkit.storage.address import StorageOptions, storage_at

PARTITION_BYTES = 128 << 20
"""How many bytes of frames a partition has at most, about, unless a user gives their number."""

TOUCHED_BYTES = 32 << 20
"""Each partition reads so many bytes more, at most, and no more than its own, for the keys that are wanted."""


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """A snapshot that is read before the frames: of which LSN, and of which log and epoch it has to be. Picklable."""

    lsn: int
    identity: FrameIdentity


AnyRange: TypeAlias = FrameRange | BulkRange


class RangePart(NamedTuple):
    """Ranges of frames that are read together, and their segments, or the bulks of object storage. Picklable."""

    ranges: tuple[Any, ...]
    planned: PlannedSegments | PlannedBulks

    def batches(
        self,
        path: str,
        *,
        first_lsn: int,
        last_lsn: int,
        keys: pa.Array | None = None,
        resolve: Resolve = "value",
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records within the bounds, which are inclusive, of the log at `path`, with values of links.

        See `read_ranges` and `with_values`.
        """
        if isinstance(self.planned, PlannedBulks):
            found = self.planned.batches(first_lsn=first_lsn, last_lsn=last_lsn, keys=keys)
            return with_values(path, self.planned.options, found, resolve)
        bounds: Any = {"first_lsn": first_lsn, "last_lsn": last_lsn}
        found = read_ranges(path, self.ranges, planned=self.planned, keys=keys, **bounds)
        return with_values(path, None, found, resolve)

    def headers(
        self, path: str, first_lsn: int | None, last_lsn: int | None, *, bodies: bool
    ) -> Iterator[tuple[str, FrameHeader]]:
        """Yield the headers of the frames with records within the bounds: see `read_headers`."""
        if isinstance(self.planned, PlannedBulks):
            frames = self.planned.frames(first_lsn or 0, last_lsn, body=bodies)
            return ((key, header) for header, _, key in frames)
        bounds: Any = {"first_lsn": first_lsn, "last_lsn": last_lsn}
        return read_headers(path, self.ranges, bodies=bodies, planned=self.planned, **bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The plan of one `load()`: a snapshot, ranges of frames of the log at `path`, and which LSNs of them."""

    path: str
    facts: LogFacts
    manifest: Manifest
    """As the log had it: a partition has its segments, so that a worker reads no other log, and no other history."""
    bulks: PlannedBulks | None = None
    """In their place for a log on object storage."""
    storage_options: StorageOptions | None = None
    snapshot: SnapshotPart | None
    ranges: tuple[AnyRange, ...]
    frames_from: int
    """The first LSN that is taken from the frames: above the low watermark and above the snapshot's LSN."""
    parts: int | None
    """The number of partitions asked for."""
    last_lsn: int
    """The last LSN that is taken from either."""
    resolve: Resolve = "value"
    only: frozenset[bytes] | None = None
    """Where there are keys: only their records."""
    newest_of: tuple[int, ...] = ()
    """Where there are LSNs: of each partition, only the newest record of each key up to one of them."""
    touched_from: int = 0
    """Where it is an LSN: only records of the keys that the records in `touched` have from there on."""
    touched: RangePart | None = None

    @property
    def log_id(self) -> str:
        """Id of the log, 16 hexadecimal digits."""
        return self.facts.log_id


def plan_log(path: str, options: LoadOptions) -> Scan:
    """Return what a load reads of the log at `path`.

    Raises walkit's own errors: LogNotFoundError, NotALogError, CorruptionError, GapError where `firstLsn` is trimmed,
    HistoryTrimmedError and SnapshotError if no snapshot gives the state that `snapshot` asks for.
    """
    if options.mode == "permissive":
        return _plan_intact(path, options)
    first_lsn, last_lsn, parts = options.first_lsn, options.last_lsn, options.partitions
    # One view for all: what is noted of the log's history has to be of the moment of the ranges.
    seen = seen_at(path, options.storage_options)
    view, newest = seen.view, seen.last_lsn
    end = newest if last_lsn is None else min(last_lsn, newest)
    if 0 < (last_lsn or 0) < view.first_lsn and not (options.snapshot or options.planned):
        raise GapError(end, view.first_lsn)
    base = 0
    for planned, _ in options.planned:
        _require_same(planned, view, path)
        base = planned.snapshot_lsn
    if options.snapshot and end:
        base = _base(view, newest, end, whole=last_lsn is None)
    ranges: Sequence[AnyRange] = ()
    if base < end or not base:
        begin = base + 1 if base else first_lsn
        total = size_of(view)
        # Of a log with more partitions than processors, whole segments are ranges: no index of theirs is read.
        coarse = _count(total, parts) if total > PARTITION_BYTES * (os.cpu_count() or 1) else parts
        ranges = ranges_in(view, newest, parts=coarse, first_lsn=begin, last_lsn=last_lsn)
    bulks = PlannedBulks.of(view, end, options.storage_options)
    touched = _touched(ranges, options.touched_from, parts)
    point = LogPoint.of(view.manifest, end)
    facts = LogFacts(
        log_id=f"{view.manifest.log_id:016x}",
        first_lsn=view.first_lsn,
        last_lsn=end,
        exact_from_lsn=view.manifest.exact_from_lsn,
        snapshot_lsn=base,
        from_lsn=first_lsn or 0,
        path=path,
        partitions=parts or 0,
        epoch_id=f"{point.epoch_id:016x}",
    )
    return Scan(
        path=path,
        facts=facts,
        manifest=view.manifest,
        bulks=bulks,
        storage_options=options.storage_options,
        snapshot=SnapshotPart(base, identity_at(view.manifest, base))
        if base >= max(first_lsn or 0, 1)
        else None,
        ranges=tuple(ranges),
        frames_from=max(view.manifest.low_watermark + 1, base + 1, first_lsn or 0),
        parts=parts,
        last_lsn=end,
        resolve=options.resolve,
        only=options.only,
        newest_of=options.newest_of,
        touched_from=(options.touched_from or 0) if touched else 0,
        touched=parts_of(view.manifest, end, [touched], bulks)[0] if touched else None,
    )


def _require_same(planned: LogFacts, view: AnyView, path: str) -> None:
    """Raise if a log is not as it was at an earlier load: DivergenceError, or GapError for dropped records."""
    point = LogPoint(int(planned.log_id, 16), int(planned.epoch_id, 16), planned.last_lsn)
    point.require(view.manifest, path)
    if (view.first_lsn, view.manifest.exact_from_lsn) == (planned.first_lsn, planned.exact_from_lsn):
        return
    error = GapError(planned.first_lsn, max(view.first_lsn, view.manifest.exact_from_lsn))
    error.add_note(f"The log at {path} {LOAD_AGAIN}")
    raise error


def _base(view: AnyView, newest: int, end: int, *, whole: bool) -> int:
    try:
        return base_of_all(view, newest) if whole else base_at(view, end)
    except HistoryTrimmedError as error:
        error.add_note(
            "The log has no snapshot that begins the state: Store.checkpoint() makes one. Without option snapshot "
            "the records that are left are read"
        )
        raise


def _plan_intact(path: str, options: LoadOptions) -> Scan:
    """Return what a load with mode "permissive" reads: the ranges that are intact, as `walkit.scan` judges them.

    Reads the whole log, in this process. Where a range is damaged, the facts of the log say that no state is exact.
    """
    report = scan_log(path)
    manifest = load_manifest(storage_at(path))
    numbers = {record.name: record.number for record in manifest.segments}
    intact = [r for r in report.verdict if r.verdict is Verdict.INTACT and r.segment in numbers]
    ranges = [
        FrameRange(numbers[r.segment], r.start_position, r.end_position, r.first_lsn, r.last_lsn, r.records)
        for r in intact
        if r.records and r.first_lsn is not None and r.last_lsn is not None
    ]
    damaged = any(lsn_of_name(problem.segment or "") is None for problem in report.problems)  # not a snapshot
    low = report.low_watermark
    end = report.last_lsn if options.last_lsn is None else min(report.last_lsn, options.last_lsn)
    point = LogPoint.of(manifest, end)
    facts = LogFacts(
        log_id=f"{report.log_id:016x}",
        first_lsn=max(report.first_lsn, low + 1),
        last_lsn=end,
        exact_from_lsn=report.last_lsn + 1 if damaged else manifest.exact_from_lsn,
        snapshot_lsn=0,
        from_lsn=options.first_lsn or 0,
        path=path,
        partitions=options.partitions or 0,
        epoch_id=f"{point.epoch_id:016x}",
    )
    return Scan(
        path=path,
        facts=facts,
        manifest=manifest,
        snapshot=None,
        ranges=tuple(ranges),
        frames_from=max(low + 1, options.first_lsn or 0),
        parts=options.partitions,
        last_lsn=end,
        resolve=options.resolve,
    )


def _touched(ranges: Sequence[AnyRange], first_lsn: int | None, parts: int | None) -> tuple[AnyRange, ...]:
    """Return the ranges with records from `first_lsn` on; none where each partition would read much more by them."""
    found = [frames for frames in ranges if first_lsn is not None and first_lsn <= frames.last_lsn]
    size = sum(_bytes_from(frames, first_lsn or 0) for frames in found)
    total = sum(_bytes_from(frames, 0) for frames in ranges)
    return tuple(found) if size <= min(TOUCHED_BYTES, total // _count(total, parts)) else ()


def _bytes_from(frames: AnyRange, first_lsn: int) -> int:
    """Return how many bytes of a range are those of records from `first_lsn` on, about."""
    size, lsns = frames.end_position - frames.start_position, frames.last_lsn - frames.first_lsn + 1
    return size * (frames.last_lsn - max(first_lsn, frames.first_lsn) + 1) // lsns


def size_of(view: AnyView) -> int:
    """Return how many bytes of frames a view has."""
    bulks = view.end.position - view.floor.position if isinstance(view, ObjectView) else 0
    return bulks + sum(span.end_position - span.record.start_position for span in segments_of(view).spans)


def ranges_in(view: AnyView, newest: int, **bounds: int | None) -> Sequence[AnyRange]:
    """Return what `ranges_of` returns, of a log in segments or on object storage."""
    if isinstance(view, ObjectView):
        return bulk_ranges(view, newest, **bounds)
    return ranges_of(view, newest, **bounds)


def parts_of(
    manifest: Manifest, last_lsn: int, groups: Sequence[tuple[Any, ...]], bulks: PlannedBulks | None = None
) -> list[RangePart]:
    """Return groups of ranges with their segments, of a log with this manifest that is read up to `last_lsn`."""
    if bulks is not None:
        return [RangePart(group, bulks.within(group)) for group in groups]
    planned = PlannedSegments.of(manifest, last_lsn, groups)
    return [RangePart(*part) for part in zip(groups, planned, strict=True)]


def _count(total: int, parts: int | None) -> int:
    return parts or max(os.cpu_count() or 1, -(-total // PARTITION_BYTES))


def share(ranges: Sequence[AnyRange], parts: int | None) -> tuple[tuple[AnyRange, ...], ...]:
    """Put neighbouring ranges together into at most `parts` partitions of about the same size in bytes.

    Without `parts`: one for each processor of the driver's machine, and more if they would pass
    `PARTITION_BYTES`. Each one costs about 60 ms, so the ranges themselves would be too many.
    """
    total = sum(frames.end_position - frames.start_position for frames in ranges)
    count = _count(total, parts)
    groups: list[list[AnyRange]] = [[] for _ in range(count)]
    before = 0
    for frames in ranges:
        groups[before * count // total].append(frames)
        before += frames.end_position - frames.start_position
    return tuple(tuple(group) for group in groups if group)
