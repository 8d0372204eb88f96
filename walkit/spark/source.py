"""`spark.read.format("walkit").load(path)`: a log's records as a DataFrame.

The ranges of frames are planned once, by `load()`, and kept in the DataFrame: it holds the durable prefix
that the log had then, however often it is used and however the log grows. Replay depends on this, as it reads
its input twice. `load()` again sees more.

| option | what it does |
|---|---|
| `firstLsn`, `lastLsn` | bounds of the records, inclusive; segments and ranges of frames outside are not read |
| `snapshot` | "true": where the log was trimmed, the records of a snapshot come first; default "false" |
| `partitions` | how many partitions there should be, which is reached as far as the log has frames |
| `pushFilters` | "true": conditions on the LSN skip ranges of frames; default "false" |

A user's schema picks columns: `.schema("lsn bigint, key binary")`.

Without `snapshot` the DataFrame is the log's records, no more. With it, it is what every state is made of that can
still be restored: where the log's first records are gone, the records of the oldest snapshot from which the log
continues, with the LSNs that they had, and the log's records above the snapshot's LSN. With `lastLsn` it is the newest
snapshot with which the state at that LSN can be restored. Where the log has all its records, they are enough, and no
snapshot is read. A snapshot is verified by `load()` and read as a separate partition. `load()` refuses
(HistoryTrimmedError, SnapshotError) where no snapshot will do. What it noted of the log's history is in the metadata of
column `lsn`: see `walkit.spark.facts`.

A stream is not built yet: `spark.readStream` accepts the format, and its query ends with the words of `NoStream`.

`pushFilters` lets conditions on the LSN (`=`, `<=>`, `<`, `<=`, `>`, `>=`, `IN`,
AND-ed) skip ranges of frames as well, where Spark's switch `spark.sql.python.filterPushdown.enabled` is on, as in
`walkit.spark.session()`. It is for a DataFrame that is used under one condition only, once. Spark 4.3 keeps what the
reader planned under a condition with the loaded DataFrame, not with the query: another query of the same DataFrame
that has no condition, or two uses of it in one query (a self-join, a union, a diff), then read those ranges alone,
and rows are missing without an error. So it is not the default, and `walkit.spark.replay` and `diff` refuse it;
`firstLsn` and `lastLsn` have no such catch.

Spark's Python Data Source API gives this its shape: it pickles source, reader and ranges to the workers,
takes Arrow batches (four times as fast as tuples), and has no column pruning.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, ByteType, LongType, StructField, StructType, TimestampType

from walkit.errors import OptionsError
from walkit.format.frame import FrameIdentity
from walkit.read.ranges import FrameRange, ranges_of, read_ranges
from walkit.read.reader import view_of
from walkit.spark.facts import SOURCE_NAME, LogFacts
from walkit.spark.filters import LsnFilter, take_filters
from walkit.state.base_snapshots import base_at, base_of_all
from walkit.state.snapshot import identity_at, snapshot_batches
from walkit.storage.address import storage_at

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

OPTIONS = ("path", "firstLsn", "lastLsn", "partitions", "pushFilters", "snapshot")

PARTITION_BYTES = 128 << 20
"""How many bytes of frames a partition has at most, about, where the user does not say how many he wants."""


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """A snapshot that is read before the frames: of which LSN, and of which log and epoch it has to be. Picklable."""

    lsn: int
    identity: FrameIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What one `load()` will read: a snapshot, ranges of frames of the log at `path`, and which LSNs of them."""

    path: str
    facts: LogFacts
    snapshot: SnapshotPart | None
    ranges: tuple[FrameRange, ...]
    frames_from: int
    """The first LSN that is taken from the frames: above the low watermark and above the snapshot's LSN."""
    parts: int | None
    """The number of partitions asked for."""
    lsns: LsnFilter


class WalkitDataSource(DataSource):
    """The data source `walkit`. Spark makes it on the machine of the driver, once for each `load()`.

    A path that does not begin with `/` is relative to the folder in which the session was started. Raises
    walkit's own errors (`LogNotFoundError`, `NotALogError`, `OptionsError`, ...); Spark shows their text in
    an AnalysisException.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return SOURCE_NAME

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.scan = plan_scan(options)

    def schema(self) -> StructType:
        """Return `walkit.RECORD_SCHEMA` as Spark has it, with what is known of the log at column `lsn`."""
        lsn, *others = RECORD_STRUCT.fields
        noted = StructField(lsn.name, lsn.dataType, lsn.nullable, self.scan.facts.to_metadata())
        return StructType([noted, *others])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of these columns; `OptionsError` for one that the log does not have."""
        require_subset(schema)
        pushes = self.scan.facts.push_filters and pushdown_is_on()
        return (FilteringReader if pushes else WalkitReader)(self.scan, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return what refuses the query. `readStream.load()` itself asks nothing that a batch would not ask."""
        return NoStream(self.scan.path)


class NoStream(DataSourceStreamReader):
    """Refuses a stream in walkit's words, at the first thing that a query asks.

    An error in `streamReader` itself would come out under an error of Spark's about its own handling of it.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Refuse: where a new query begins."""
        raise self._refusal()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Refuse: where a query continues from a checkpoint."""
        raise self._refusal()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Refuse."""
        raise self._refusal()

    def _refusal(self) -> OptionsError:
        return OptionsError(
            f"a log cannot be read as a stream yet. spark.read.format('{SOURCE_NAME}').load({self.path!r}) reads what "
            "it holds now; walkit.open(path, mode='r').follow(lsn) continues with what comes",
            option="readStream",
            wanted=self.path,
        )


class WalkitReader(DataSourceReader):
    """Reads what a `Scan` names, partition by partition. Pickled without its ranges: a partition has its own."""

    def __init__(self, scan: Scan, schema: StructType) -> None:
        self.scan = scan
        self.lsns = scan.lsns
        self.schema = schema

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker needs to read a partition."""
        return {**self.__dict__, "scan": replace(self.scan, ranges=())}

    def partitions(self) -> Sequence[InputPartition]:
        """Return the snapshot and the ranges that hold a wanted LSN, shared out; none for an empty log."""
        snapshot, of_frames = self.scan.snapshot, self._of_frames
        first = [snapshot] if snapshot is not None and self.lsns.overlaps(1, snapshot.lsn) else []
        ranges = [frames for frames in self.scan.ranges if of_frames.meets(frames)]
        return [InputPartition(part) for part in (*first, *share(ranges, self.scan.parts))]

    @property
    def _of_frames(self) -> LsnFilter:
        return self.lsns.and_from(self.scan.frames_from)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a partition, every frame verified, as batches of the wanted columns."""
        wanted = to_arrow_schema(self.schema, timezone="UTC")
        # Where there is no partition, Spark makes one whose value is None.
        part = partition.value or ()
        batches = self._of_snapshot(part) if isinstance(part, SnapshotPart) else self._of_ranges(part)
        for batch in batches:
            columns = [batch.column(name) for name in wanted.names]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)

    def _of_snapshot(self, part: SnapshotPart) -> Iterator[pa.RecordBatch]:
        for batch in snapshot_batches(storage_at(self.scan.path), part.lsn, part.identity):
            yield self.lsns.pick_within(batch)

    def _of_ranges(self, ranges: Iterable[FrameRange]) -> Iterator[pa.RecordBatch]:
        lsns = self._of_frames
        first_lsn, last_lsn = lsns.bounds()
        for batch in read_ranges(self.scan.path, ranges, first_lsn=first_lsn, last_lsn=last_lsn):
            yield lsns.pick(batch)


class FilteringReader(WalkitReader):
    """One that takes conditions on the LSN. Spark fails the read of such a reader where its switch is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take the conditions that the log applies exactly; return the others."""
        self.lsns, handed_back = take_filters(filters, self.scan.lsns)
        return handed_back


PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def pushdown_is_on() -> bool:
    """Return whether this process is Spark's push-down worker, which it runs only where the switch is on.

    The reader is made in a separate process, to which the session's settings are not sent: Spark names the worker on
    the command line, of its daemon or of a process for it alone. Should Spark rename its worker, nothing is pushed down
    and everything else works.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return PUSHDOWN_WORKER in sys.argv or (spec is not None and spec.name == PUSHDOWN_WORKER)


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
    with_snapshot = _switch(given, "snapshot")
    if with_snapshot and first_lsn is not None:
        raise OptionsError(
            "option firstLsn leaves out what option snapshot puts first; give one of them", option="firstLsn"
        )
    # One view for all: what is noted of the log's history has to be of the moment of the ranges.
    view, newest = view_of(storage_at(path))
    end = newest if last_lsn is None else min(last_lsn, newest)
    base = 0
    if with_snapshot and end:
        base = base_of_all(view, newest) if last_lsn is None else base_at(view, end)
    ranges: list[FrameRange] = []
    if base < end or not base:
        begin = base + 1 if base else first_lsn
        ranges = ranges_of(view, newest, parts=parts, first_lsn=begin, last_lsn=last_lsn)
    facts = LogFacts(
        log_id=f"{view.manifest.log_id:016x}",
        first_lsn=view.first_lsn,
        last_lsn=end,
        exact_from_lsn=view.manifest.exact_from_lsn,
        snapshot_lsn=base,
        from_lsn=first_lsn or 0,
        push_filters=_switch(given, "pushFilters"),
    )
    return Scan(
        path=path,
        facts=facts,
        snapshot=SnapshotPart(base, identity_at(view.manifest, base)) if base else None,
        ranges=tuple(ranges),
        frames_from=max(view.manifest.low_watermark, base) + 1,
        parts=parts,
        lsns=LsnFilter(first_lsn=first_lsn, last_lsn=last_lsn),
    )


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


def _switch(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise OptionsError(f"option {name} is {text!r}; give true or false", option=name)
    return text == "true"


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
