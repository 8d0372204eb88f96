"""`spark.read.format("walkit").load(path)`: a log's records as a DataFrame.

The ranges of frames are planned once, by `load()`, and kept in the DataFrame: it holds the durable prefix
that the log had then, however often it is used and however the log grows. Replay depends on this, as it reads
its input twice. `load()` again sees more.

Options: `firstLsn` and `lastLsn` (inclusive) bound the records, `partitions` asks for a number of partitions,
which is reached as far as the log has frames. A user's schema picks columns: `.schema("lsn bigint, key
binary")`.

Spark's Python Data Source API gives this its shape: it pickles source, reader and ranges to the workers,
takes Arrow batches (four times as fast as tuples), and has no column pruning. A reader that overrides
`pushFilters` fails where `spark.sql.python.filterPushdown.enabled` is false, which is Spark's default, so
this one does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, ByteType, LongType, StructField, StructType, TimestampType

from walkit.errors import OptionsError
from walkit.log.ranges import FrameRange, plan_ranges, read_range

if TYPE_CHECKING:
    from typing import Any

RECORD_STRUCT = StructType(
    [
        StructField("lsn", LongType(), nullable=False),
        StructField("kind", ByteType(), nullable=False),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("timestamp", TimestampType()),
    ]
)
"""`walkit.RECORD_SCHEMA` as Spark has it."""

OPTIONS = ("path", "firstLsn", "lastLsn", "partitions")

PARTITION_BYTES = 128 << 20
"""How many bytes of frames a partition has at most, about, where the user does not say how many he wants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What one `load()` will read: ranges of frames of the log at `path`, shared out, and the LSNs wanted."""

    path: str
    partitions: tuple[tuple[FrameRange, ...], ...]
    first_lsn: int | None
    last_lsn: int | None


class WalkitDataSource(DataSource):
    """The data source `walkit`. Spark makes it on the machine of the driver, once for each `load()`.

    A path that does not begin with `/` is relative to the folder in which the session was started. Raises
    walkit's own errors (`LogNotFoundError`, `NotALogError`, `OptionsError`, ...); Spark shows their text in
    an AnalysisException.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "walkit"

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.scan = plan_scan(options)

    def schema(self) -> StructType:
        """Return `walkit.RECORD_SCHEMA` as Spark has it."""
        return RECORD_STRUCT

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of these columns; `OptionsError` for one that the log does not have."""
        require_subset(schema)
        return WalkitReader(self.scan, schema)


class WalkitReader(DataSourceReader):
    """Reads what a `Scan` names, partition by partition."""

    def __init__(self, scan: Scan, schema: StructType) -> None:
        self.scan = scan
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions that `load()` planned; none for an empty log."""
        return [InputPartition(ranges) for ranges in self.scan.partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a partition, every frame verified, as batches of the wanted columns."""
        scan, wanted = self.scan, to_arrow_schema(self.schema, timezone="UTC")
        # Where there is no partition, Spark makes one whose value is None.
        for frames in partition.value or ():
            for batch in read_range(scan.path, frames, first_lsn=scan.first_lsn, last_lsn=scan.last_lsn):
                columns = [batch.column(name) for name in wanted.names]
                yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def plan_scan(options: Mapping[str, Any]) -> Scan:
    """Return what a `load()` with these options reads; the case of an option's name does not matter."""
    given = {name.lower(): str(value) for name, value in options.items()}
    known = {name.lower(): name for name in OPTIONS}
    for name in given:
        if name not in known:
            raise OptionsError(f"unknown option {name!r}; walkit knows {', '.join(OPTIONS)}", option=name)
    if "path" not in given:
        raise OptionsError("give the path of one log: load(path)", option="path")
    path = os.path.abspath(given["path"])
    first_lsn, last_lsn, parts = (
        _number(given, known[name]) for name in ("firstlsn", "lastlsn", "partitions")
    )
    ranges = plan_ranges(path, parts=parts, first_lsn=first_lsn, last_lsn=last_lsn)
    return Scan(path=path, partitions=share(ranges, parts), first_lsn=first_lsn, last_lsn=last_lsn)


def share(ranges: Sequence[FrameRange], parts: int | None) -> tuple[tuple[FrameRange, ...], ...]:
    """Put neighbouring ranges together into at most `parts` partitions of about the same size in bytes.

    Without `parts`: one for each processor of the driver's machine, and more where they would pass
    `PARTITION_BYTES`. Each one costs about 60 ms, so the ranges themselves would be too many.
    """
    total = sum(frames.end_position - frames.start_position for frames in ranges)
    count = parts or max(os.cpu_count() or 1, -(-total // PARTITION_BYTES))
    groups: list[list[FrameRange]] = [[] for _ in range(count)]
    before = 0
    for frames in ranges:
        groups[before * count // total].append(frames)
        before += frames.end_position - frames.start_position
    return tuple(tuple(group) for group in groups if group)


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise OptionsError(f"option {name} is {text!r}; give a whole number of 1 or more", option=name)
    return int(text)


def require_subset(schema: StructType) -> None:
    """Raise `OptionsError` unless each column of `schema` is one of the log's, with its type."""
    types = {field.name: field.dataType for field in RECORD_STRUCT.fields}
    for field in schema.fields:
        if types.get(field.name) != field.dataType:
            columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
            raise OptionsError(
                f"the schema asks for {field.name} {field.dataType.simpleString()}; a log has {columns}",
                option="schema",
            )
