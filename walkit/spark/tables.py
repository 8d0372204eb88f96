"""Views of a log other than its records: its frames, its segments, and its damage, as tables.

They answer from headers and the manifest: `sum(records)` of the frames reads no record. (Spark pushes no aggregation
down to a source written in Python, so `count(*)` of the records reads them all.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from walkit.format.layout import CODEC_ZSTD
from walkit.format.manifest import Manifest
from walkit.read.view import LogView
from walkit.record import calendar_us
from walkit.recovery.scan_report import Verdict
from walkit.recovery.verify import scan
from walkit.spark.object_log import PlannedBulks, seen_at
from walkit.spark.options import LoadOptions, View
from walkit.spark.scan import AnyRange, RangePart, parts_of, ranges_in, share
from walkit.spark.worker_errors import on_a_worker

TABLE_ROWS = 10_000
"""Most rows in a batch."""


def _struct(*fields: tuple[str, type[Any], bool]) -> StructType:
    return StructType([StructField(name, kind(), nullable=nullable) for name, kind, nullable in fields])


FRAMES_STRUCT = _struct(
    ("segment", StringType, False),
    ("position", LongType, False),
    ("first_lsn", LongType, False),
    ("last_lsn", LongType, False),
    ("records", LongType, False),
    ("bytes", LongType, False),
    ("body_bytes", LongType, False),
    ("raw_bytes", LongType, False),
    ("codec", StringType, True),
    ("epoch", LongType, False),
    ("checksum", LongType, False),
    ("sealed_at", TimestampType, True),
)
"""A frame with records: `bytes` it takes in its segment, `body_bytes` stored of `raw_bytes`, CRC-32C of the body."""

SEGMENTS_STRUCT = _struct(
    ("segment", StringType, False),
    ("sealed", BooleanType, False),
    ("epoch", LongType, False),
    ("start_position", LongType, False),
    ("end_position", LongType, False),
    ("first_lsn", LongType, False),
    ("last_lsn", LongType, True),
    ("records", LongType, True),
    ("frames", LongType, True),
    ("bytes", LongType, False),
)
"""A segment as far as it can be read; what only the frames of one that is not sealed know is null."""

DAMAGE_STRUCT = _struct(
    ("segment", StringType, False),
    ("start_position", LongType, False),
    ("end_position", LongType, False),
    ("verdict", StringType, False),
    ("first_lsn", LongType, True),
    ("last_lsn", LongType, True),
    ("reason", StringType, False),
)
"""A range that is not intact, as `walkit.scan` judges it: damaged, torn, given up or never written."""

CHANGES_STRUCT = _struct(
    ("key", BinaryType, False),
    ("change", StringType, False),
    ("pre_value", BinaryType, True),
    ("post_value", BinaryType, True),
    ("lsn", LongType, False),
)
"""A change by a record of a stream, as in `walkit.spark.changes`."""

STRUCTS: dict[View, StructType] = {
    "frames": FRAMES_STRUCT,
    "segments": SEGMENTS_STRUCT,
    "damage": DAMAGE_STRUCT,
    "changes": CHANGES_STRUCT,
}

DAMAGE = frozenset(Verdict) - {Verdict.INTACT, Verdict.UNUSED, Verdict.IN_PROGRESS, Verdict.STALE}


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """The plan of one load of a view, for one log. Picklable."""

    path: str
    log_id: str
    rows: tuple[dict[str, Any], ...]
    """The rows of a view that the load has made already."""
    ranges: tuple[AnyRange, ...]
    """Where the frames are, for a view that is read by Spark's workers."""
    manifest: Manifest | None
    """Of the log that these ranges belong to."""
    bulks: PlannedBulks | None
    end_lsn: int
    first_lsn: int | None
    last_lsn: int | None
    parts: int | None
    bodies: bool


def plan_table(path: str, options: LoadOptions) -> TablePlan:
    """Return the plan of a view of the log at `path`. The damage view reads the whole log here, in one process."""
    rows: list[dict[str, Any]] = []
    ranges: Sequence[AnyRange] = ()
    bulks: PlannedBulks | None = None
    manifest: Manifest | None = None
    newest = 0
    if options.view == "damage":
        report = scan(path)
        log_id = report.log_id
        for found in report.verdict:
            if found.verdict in DAMAGE and _overlaps(options, found.first_lsn, found.last_lsn):
                rows.append({**found.to_dict(), "verdict": found.verdict.value})
    else:
        seen = seen_at(path, options.storage_options)
        view, newest = seen.view, seen.last_lsn
        log_id = view.manifest.log_id
        if options.view == "frames":
            ranges = ranges_in(view, newest, first_lsn=options.first_lsn, last_lsn=options.last_lsn)
            manifest, bulks = view.manifest, PlannedBulks.of(view, newest, options.storage_options)
        for span in view.spans if options.view == "segments" and isinstance(view, LogView) else ():
            record = span.record
            if not _overlaps(options, record.first_lsn, span.last_lsn):
                continue
            sealed = span.last_lsn is not None
            rows.append(
                {
                    "segment": record.name,
                    "sealed": sealed,
                    "epoch": record.epoch,
                    "start_position": record.start_position,
                    "end_position": span.end_position,
                    "first_lsn": record.first_lsn,
                    "last_lsn": span.last_lsn,
                    "records": record.records if sealed else None,
                    "frames": record.frames if sealed else None,
                    "bytes": span.end_position - record.start_position,
                }
            )
    return TablePlan(
        path=path,
        log_id=f"{log_id:016x}",
        rows=tuple(rows),
        ranges=tuple(ranges),
        manifest=manifest,
        bulks=bulks,
        end_lsn=newest,
        first_lsn=options.first_lsn,
        last_lsn=options.last_lsn,
        parts=options.partitions,
        bodies=options.bodies,
    )


def _overlaps(options: LoadOptions, first_lsn: int | None, last_lsn: int | None) -> bool:
    """Whether LSNs, of which None is not known, may be among those that a load wants."""
    if options.last_lsn is not None and first_lsn is not None and first_lsn > options.last_lsn:
        return False
    return options.first_lsn is None or last_lsn is None or last_lsn >= options.first_lsn


class TableReader(DataSourceReader):
    """Reads a view of one log."""

    def __init__(self, plan: TablePlan, schema: StructType) -> None:
        self.plan, self.schema = plan, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges of frames, shared out; one partition for rows that are there."""
        if self.plan.rows:
            return [InputPartition(None)]
        if self.plan.manifest is None:
            return []
        groups = share(self.plan.ranges, self.plan.parts)
        parts = parts_of(self.plan.manifest, self.plan.end_lsn, groups, self.plan.bulks)
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition as batches of the wanted columns."""
        wanted = to_arrow_schema(self.schema, timezone="UTC")
        rows: list[dict[str, Any]] = []
        with on_a_worker(self.plan.path):
            for row in self._rows(partition.value):
                rows.append(row)
                if len(rows) == TABLE_ROWS:
                    yield pa.RecordBatch.from_pylist(rows, schema=wanted)
                    rows = []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=wanted)

    def _rows(self, part: RangePart | None) -> Iterator[dict[str, Any]]:
        if part is None:
            yield from self.plan.rows
            return
        plan = self.plan
        headers = part.headers(plan.path, plan.first_lsn, plan.last_lsn, bodies=plan.bodies)
        for segment, header in headers:
            yield {
                "segment": segment,
                "position": header.position,
                "first_lsn": header.first_lsn,
                "last_lsn": header.last_lsn,
                "records": header.records,
                "bytes": header.footprint,
                "body_bytes": header.body_stored_bytes,
                "raw_bytes": header.body_raw_bytes,
                "codec": "zstd" if header.codec == CODEC_ZSTD else None,
                "epoch": header.epoch,
                "checksum": header.body_crc,
                "sealed_at": calendar_us(header.sealed_us),
            }
