"""`spark.readStream.format("walkit").load(path)`: a log's records as they become durable.

One Python process beside the driver plans the batches of a query (`WalkitStreamReader` except `read`), and Spark's
workers read them. Where the query stands is in its checkpoint alone (`StreamOffset`); the log only keeps what was not
read yet (`StreamClaim`). A batch is the records between two offsets, so that Spark reads the same batch again after a
crash, and a sink that is exactly-once (files, Delta, `foreachBatch` with the batch's number) has each LSN once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from walkit._internal.arguments import refuse
from walkit.errors import GapError
from walkit.events import EventSink
from walkit.objects.view import ObjectView
from walkit.read.reader import ReaderView
from walkit.read.view import Span
from walkit.record import to_microseconds
from walkit.spark.change_rows import changes_of
from walkit.spark.columns import RECORD_STRUCT, require_subset
from walkit.spark.errors import noted
from walkit.spark.object_log import AnyView, PlannedBulks, headers_of, segments_of
from walkit.spark.options import LoadOptions
from walkit.spark.scan import PARTITION_BYTES, AnyRange, RangePart, parts_of, ranges_in, share
from walkit.spark.stream_claim import StreamClaim
from walkit.spark.stream_offset import GAP_ADVICE, StreamOffset, epoch_at, require_here
from walkit.spark.tables import CHANGES_STRUCT
from walkit.spark.time_bounds import first_lsn_since
from walkit.spark.worker_errors import on_a_worker

TASK_BYTES = 8 << 20
"""A batch has about one task for so many bytes of frames, up to the processors: a small batch is one task."""

CHANGES_RECORDS = 1 << 17
"""A batch of changes has so many records without option `maxRecordsPerTrigger`: one task has them in memory."""


@dataclass(frozen=True, slots=True)
class StreamPart:
    """The reading of one task of a batch: ranges of frames, and of their records those of [first_lsn, last_lsn]."""

    first_lsn: int
    last_lsn: int
    frames: RangePart
    """With their segments and the end of the batch: a task reads no other log, and no other history."""


class WalkitStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of one query. Spark calls it from one thread.

    Only what is on stable storage is read, at any durability level of the log. Rotation, compaction below the query's
    claim and reopening by other writers change nothing. Every method raises DivergenceError where the log at the path
    is another one or has another history, and GapError where records that were not read are gone.
    """

    def __init__(self, options: LoadOptions, schema: StructType) -> None:
        if options.view == "changes" and options.max_records is None:
            options = replace(options, max_records=CHANGES_RECORDS)
        self.options, self.schema = options, schema
        self.path = options.paths[0]
        self._claim = StreamClaim(options)
        self._until: int | None = None
        """The last LSN of a query with Trigger.AvailableNow: what the log had when it began."""

    def _seen(self) -> ReaderView[AnyView]:
        """Return what a reader may see now."""
        seen: ReaderView[Any] = self._claim.source().now()
        return seen

    @noted()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins: before option `firstLsn`, else before the oldest record there is."""
        require_streamable(self.options, self.schema)
        seen = self._seen()
        view, newest = seen.view, seen.durable_lsn()
        first_lsn = self.options.first_lsn or view.first_lsn
        if self.options.since is not None:
            # A frame sealed by then may be durable a moment later: the query starts before it, and not after.
            first_lsn = min(
                first_lsn_since(self.path, self.options.since, self.options.storage_options), newest + 1
            )
        if first_lsn > newest + 1:
            refuse("firstLsn", first_lsn, f"the log ends at {newest}", newest)
        named = self.options.given & {"firstLsn", "since"}
        if named and first_lsn < view.complete_from_lsn:
            error = GapError(first_lsn, view.complete_from_lsn)
            error.add_note(f"Leave option {min(named)} out to start with the oldest record.")
            raise error
        return StreamOffset(
            log_id=f"{view.manifest.log_id:016x}",
            epoch_id=epoch_at(view.manifest, first_lsn - 1),
            lsn=first_lsn - 1,
            complete_from_lsn=view.complete_from_lsn,
            owner="",
        ).to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit where an option sets one. `latestOffset` knows both limits; Spark passes one on."""
        limited = self.options.max_records is not None or self.options.max_bytes is not None
        return ReadMaxRows(self.options.max_records or 0) if limited else ReadAllAvailable()

    @noted()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note where a query with Trigger.AvailableNow ends."""
        require_streamable(self.options, self.schema)
        self._until = self._seen().durable_lsn()

    @noted()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the batch after `start`; `start` if nothing is new."""
        offset, seen = self._look_from(start)
        ends = (seen.durable_lsn(), self.options.last_lsn, self._until)
        last_lsn = min(lsn for lsn in ends if lsn is not None)
        if last_lsn <= offset.lsn:
            return start
        if not isinstance(limit, ReadAllAvailable):
            last_lsn = end_within(
                seen.view,
                offset.lsn + 1,
                last_lsn,
                max_records=self.options.max_records,
                max_bytes=self.options.max_bytes,
            )
        if self.options.until is not None:
            last_lsn = end_sealed_by(seen.view, offset.lsn + 1, last_lsn, self.options.until)
            if last_lsn <= offset.lsn:
                return start
        # Taken here and not before: this offset is the first that the checkpoint keeps.
        owner = offset.owner or self._claim.begin(offset.lsn + 1, offset.complete_from_lsn)
        end = offset.moved(last_lsn, seen.view.manifest, owner)
        self._check(offset, end)
        return end.to_dict()

    @noted()
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return how far the log is durable, for the query's progress."""
        seen = self._seen()
        return {"log_id": f"{seen.view.manifest.log_id:016x}", "lsn": seen.durable_lsn()}

    @noted()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch: the records after `start` up to `end`, inclusive."""
        last = StreamOffset.of(end)
        offset, seen = self._look_from(start, last.owner)
        if last.lsn <= offset.lsn:
            return []
        require_here(replace(last, complete_from_lsn=seen.view.complete_from_lsn), seen, self.path)
        ranges = ranges_in(seen.view, seen.last_lsn, first_lsn=offset.lsn + 1, last_lsn=last.lsn)
        # The changes of a key are in the order of its records: one task has them all.
        parts = 1 if self.options.view == "changes" else self.options.partitions or _tasks(ranges)
        bulks = PlannedBulks.of(seen.view, last.lsn, self.options.storage_options)
        groups = parts_of(seen.view.manifest, last.lsn, share(ranges, parts), bulks)
        return [InputPartition(StreamPart(offset.lsn + 1, last.lsn, group)) for group in groups]

    @noted()
    def commit(self, end: dict[str, Any]) -> None:
        """Let the log drop what was processed: the claim moves after `end`."""
        offset = StreamOffset.of(end)
        self._claim.advance(offset.owner, offset.lsn + 1, offset.complete_from_lsn)

    def stop(self) -> None:
        """Release what is held; the claim stays, for the query's next start."""
        self._claim.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task, every frame verified, as batches of the wanted columns."""
        part = partition.value
        wanted = to_arrow_schema(self.schema, timezone="UTC")
        bounds = {"first_lsn": part.first_lsn, "last_lsn": part.last_lsn}
        batches = part.frames.batches(self.path, **bounds, resolve=self.options.resolve)
        if self.options.view == "changes":
            options = self.options.storage_options
            batches = changes_of(self.path, part.first_lsn, batches, part.frames.planned.end, options)
        with on_a_worker(self.path, GAP_ADVICE):
            for batch in batches:
                columns = [batch.column(name) for name in wanted.names]
                yield pa.RecordBatch.from_arrays(columns, schema=wanted)

    def _check(self, start: StreamOffset, end: StreamOffset) -> None:
        """Assert that a batch continues at its start, in the same log, and ends within the bounds of the query."""
        assert start.log_id == end.log_id == f"{int(end.log_id, 16):016x}" and start.lsn < end.lsn
        assert (
            start.complete_from_lsn == end.complete_from_lsn and start.owner in ("", end.owner) and end.owner
        )
        assert all(limit is None or end.lsn <= limit for limit in (self._until, self.options.last_lsn))

    def _look_from(self, start: dict[str, Any], owner: str = "") -> tuple[StreamOffset, ReaderView[AnyView]]:
        """Return an offset and the log as it is now, its claim in force; `owner` is for a start without one."""
        require_streamable(self.options, self.schema)
        offset = StreamOffset.of(start)
        seen = self._seen()
        try:
            require_here(offset, seen, self.path)
        except GapError as error:
            if self.options.fail_on_data_loss:
                raise
            EventSink().emit(
                "walkit.stream.skip", path=self.path, first_lsn=error.wanted, oldest=error.oldest
            )
            after = max(offset.lsn, seen.view.first_lsn - 1)
            offset = replace(
                offset.moved(after, seen.view.manifest, offset.owner), complete_from_lsn=error.oldest
            )
        self._claim.ensure(offset.owner or owner, offset.lsn + 1, offset.complete_from_lsn)
        return offset, seen


def require_streamable(options: LoadOptions, schema: StructType) -> None:
    """Raise `OptionsError` for options and columns that a stream does not take."""
    known = {"records": RECORD_STRUCT, "changes": CHANGES_STRUCT}.get(options.view)
    if known is None or options.mode != "failfast":
        name, value = ("view", options.view) if known is None else ("mode", options.mode)
        refuse(
            name,
            value,
            "a stream has view 'records' or 'changes' and mode 'failfast'; spark.read has the others",
        )
    options.refuse(("snapshot",), "is for spark.read; a stream takes firstLsn, lastLsn, since and until")
    if options.since is not None and options.since > datetime.now(UTC):
        text = "this time has not come, and records written until then would be in the stream: start the query then"
        refuse("since", options.since.isoformat(), text)
    require_subset(schema, known)


def end_within(
    view: AnyView, first_lsn: int, last_lsn: int, *, max_records: int | None, max_bytes: int | None
) -> int:
    """Return the last LSN of the frames from `first_lsn` on that fit into the limits; one frame at least.

    If all up to `last_lsn` fits, that is `last_lsn`. Reads frame headers; for sealed segments that fit as a whole
    the manifest is enough. On object storage a bulk counts as a frame.
    """
    records = size = 0
    end = first_lsn - 1

    def fits(more_records: int, more_bytes: int) -> bool:
        return (max_records is None or records + more_records <= max_records) and (
            max_bytes is None or size + more_bytes <= max_bytes
        )

    segments = segments_of(view)
    for span in segments.spans:
        if span.last_lsn is not None and span.last_lsn < first_lsn:
            continue
        if span.record.first_lsn > last_lsn:
            break
        whole = _whole(span, first_lsn, last_lsn)
        if whole is not None and fits(*whole):
            records, size, end = records + whole[0], size + whole[1], span.record.last_lsn
            continue
        for header, _, _ in replace(segments, spans=(span,)).frames(first_lsn, last_lsn, body=False):
            if end >= first_lsn and not fits(header.records, header.footprint):
                return end
            records, size = records + header.records, size + header.footprint
            end = min(header.last_lsn, last_lsn)
    for bulk in headers_of(view, first_lsn, last_lsn) if isinstance(view, ObjectView) else ():
        if end >= first_lsn and not fits(bulk.records, bulk.body_bytes):
            return end
        records, size, end = records + bulk.records, size + bulk.body_bytes, min(bulk.end.lsn, last_lsn)
    return last_lsn


def end_sealed_by(view: AnyView, first_lsn: int, last_lsn: int, until: datetime) -> int:
    """Return the last LSN before the first frame of [first_lsn, last_lsn] that was sealed after `until`.

    That is `last_lsn` without such a frame, and below `first_lsn` if the first one is such. By LSN, so the answer
    stays the same while the log grows, also if the writer's clock was set back. Reads frame headers.
    """
    until_us = to_microseconds(until)
    assert until_us is not None
    end = first_lsn - 1
    frames = segments_of(view).frames(first_lsn, last_lsn, body=False)
    bulks = headers_of(view, first_lsn, last_lsn) if isinstance(view, ObjectView) else ()
    ends = chain(
        ((frame.sealed_us, frame.last_lsn) for frame, _, _ in frames),
        ((bulk.sealed_us, bulk.end.lsn) for bulk in bulks),
    )
    for sealed_us, lsn in ends:
        if sealed_us > until_us:
            return end
        end = min(lsn, last_lsn)
    return last_lsn


def _whole(span: Span, first_lsn: int, last_lsn: int) -> tuple[int, int] | None:
    """Return the records and bytes of a sealed segment that lies within the bounds; None for another."""
    record = span.record
    if span.last_lsn is None or record.first_lsn < first_lsn or span.last_lsn > last_lsn:
        return None
    return record.records, span.end_position - record.start_position


def _tasks(ranges: Sequence[AnyRange]) -> int:
    total = sum(frames.end_position - frames.start_position for frames in ranges)
    return max(1, min(os.cpu_count() or 1, -(-total // TASK_BYTES)), -(-total // PARTITION_BYTES))
