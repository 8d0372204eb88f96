"""`spark.read.format("walkit").load(path)`: a log's records as a DataFrame.

The ranges of frames are planned once, by `load()`, and kept in the DataFrame: it holds the durable prefix
that the log had then, however often it is used and however the log grows. Replay depends on this, as it reads
its input twice. `load()` again sees more.

`docs/spark.md` has the options (`walkit.spark.options`).

A user's schema picks columns: `.schema("lsn bigint, key binary")`.

Without `snapshot` the DataFrame is the log's records, no more. With it, it has the records of every state that can
still be restored: if the log's first records are gone, the records of the oldest snapshot from which the log
continues, with the LSNs that they had, and the log's records above the snapshot's LSN. With `lastLsn` it is the newest
snapshot with which the state at that LSN can be restored. If the log has all its records, they are enough, and no
snapshot is read. A snapshot is verified by `load()` and read as a separate partition. `load()` refuses
(HistoryTrimmedError, SnapshotError) if no snapshot will do. The facts of the log's history are in the metadata of
column `lsn`: see `walkit.spark.facts`.

`spark.readStream` takes the same path: see `walkit.spark.stream`.

Spark's Python Data Source API gives this its shape: it pickles source, reader and ranges to the workers,
takes Arrow batches (four times as fast as tuples), and has no column pruning. Its push-down of filters is not used:
Spark 4.3 keeps the reader's plan under a condition with the loaded DataFrame, so that its next use would miss rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from walkit._internal.arguments import refuse
from walkit.spark.columns import LOG_FIELDS, RECORD_STRUCT, require_subset
from walkit.spark.errors import noted
from walkit.spark.facts import SEVERAL_KEY, SOURCE_NAME, TOUCHED_KEY
from walkit.spark.linked import with_values
from walkit.spark.multi_log import ManyReader, of_one_log
from walkit.spark.multi_log_stream import ManyStreamReader
from walkit.spark.object_log import source_at
from walkit.spark.options import (
    NEWEST_OF,
    OF_A_STREAM,
    ONLY,
    OPTION_NAMES,
    LoadOptions,
    no_sink,
    read_options,
    table_path,
)
from walkit.spark.record_filter import newest_up_to, of_keys
from walkit.spark.scan import RangePart, Scan, SnapshotPart, parts_of, plan_log, share
from walkit.spark.stream import WalkitStreamReader
from walkit.spark.tables import STRUCTS, TablePlan, TableReader, plan_table
from walkit.spark.time_bounds import within_times
from walkit.spark.worker_errors import on_a_worker
from walkit.state.snapshot import snapshot_batches

if TYPE_CHECKING:
    from typing import Any


class WalkitDataSource(DataSource):
    """The data source `walkit`. Spark makes it on the machine of the driver, once for each `load()`.

    A path without a first `/` is relative to the folder of the session's start. Raises
    walkit's own errors (`LogNotFoundError`, `NotALogError`, `OptionsError`, ...); Spark shows their text in
    an AnalysisException.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return SOURCE_NAME

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Spark 4.3 hands over no option at all where a table of its catalog is read: see `Loaded.schema`.
        with noted():
            self.loaded = plan_load(options) if options else None

    def schema(self) -> StructType:
        """Return the columns; of records `walkit.RECORD_SCHEMA`, with the facts of each log at column `lsn`."""
        with noted():
            return (self.loaded or plan_load({})).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of these columns; `OptionsError` for one that the log does not have."""
        with noted():
            return (self.loaded or plan_load(options_of_table(schema))).reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a query; what a stream does not take is refused at its first question.

        An error raised here would come out under an error of Spark's about its own handling of it.
        """
        loaded = self.loaded or plan_load(options_of_table(schema))
        reader = ManyStreamReader if loaded.options.many else WalkitStreamReader
        return reader(loaded.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse: OptionsError, which says how records get into a log."""
        with noted():
            raise no_sink()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Refuse as `writer` does."""
        with noted():
            raise no_sink()


TABLE_KEY = "walkit_table"
"""Under this name the options of a table are in the metadata of its first column."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """One load: its options, and the plan of each of its logs. Picklable."""

    options: LoadOptions
    plans: tuple[Scan | TablePlan, ...]
    table: dict[str, str] | None
    """The options as text, where a table of Spark's catalog is made of them."""

    def schema(self) -> StructType:
        """Return the columns of the load.

        Those of a table carry its options. Spark's catalog keeps the columns, and Spark 4.3 forgets the options when
        it reads the table: so each query plans the table again, and nothing is noted of the log's history.
        """
        first, *others = self._of_one()
        if self.table is not None:
            first = StructField(first.name, first.dataType, first.nullable, {TABLE_KEY: self.table})
        return StructType([first, *others, *(LOG_FIELDS if self.options.many else ())])

    def _of_one(self) -> list[StructField]:
        if self.options.view != "records":
            return list(STRUCTS[self.options.view].fields)
        lsn, *others = RECORD_STRUCT.fields
        (first, *more) = self.plans
        own = self.options.given & {NEWEST_OF, ONLY} or self.options.resolve == "link"
        if not isinstance(first, Scan) or own:
            return [lsn, *others]
        noted = first.facts.to_metadata()
        if more:
            noted = {SEVERAL_KEY: [asdict(plan.facts) for plan in self.plans if isinstance(plan, Scan)]}
        if first.touched:
            noted[TOUCHED_KEY] = first.touched_from
        return [StructField(lsn.name, lsn.dataType, lsn.nullable, noted), *others]

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of these columns; `OptionsError` for one that the log does not have."""
        self.options.refuse(OF_A_STREAM, "is for spark.readStream, and this is spark.read")
        if self.options.view == "changes":
            refuse(
                "view",
                "changes",
                "spark.readStream has this; walkit.spark.changes(path, first_lsn) is for a range",
            )
        known = self.schema()
        require_subset(schema, known)
        if not self.options.many:
            return _reader_of(self.plans[0], schema)
        read = of_one_log(schema, known)
        names = [(plan.path, plan.log_id) for plan in self.plans]
        return ManyReader([_reader_of(plan, read) for plan in self.plans], names, schema)


def plan_load(options: Mapping[str, str]) -> Loaded:
    """Return what a load with these options reads, of the logs as they are now."""
    found = read_options(options)
    plan = plan_log if found.view == "records" else plan_table
    of_catalog = any(name.lower() == "provider" for name in options)
    table = {
        name: table_path(str(value)) if name.lower() == "path" and of_catalog else str(value)
        for name, value in options.items()
        if name.lower() in OPTION_NAMES
    }
    return Loaded(
        found,
        tuple(plan(path, bounded(path, found, at)) for at, path in enumerate(found.paths)),
        table if of_catalog else None,
    )


def bounded(path: str, options: LoadOptions, at: int) -> LoadOptions:
    """Return the options for the one log at `path`: LSNs for times, and the bounds of an earlier load."""
    if not options.planned:
        return within_times(path, options)
    facts, end = options.planned[at]
    return replace(
        options,
        first_lsn=max(options.first_lsn or 0, facts.from_lsn) or None,
        last_lsn=end,
        partitions=facts.partitions or None,
        planned=((facts, end),),
    )


def options_of_table(schema: StructType) -> dict[str, str]:
    """Return the options that a table's columns carry; no option for other columns."""
    found = next((field.metadata.get(TABLE_KEY) for field in schema.fields if field.metadata), None)
    return found if isinstance(found, dict) else {}


def _reader_of(plan: Scan | TablePlan, schema: StructType) -> DataSourceReader:
    return TableReader(plan, schema) if isinstance(plan, TablePlan) else WalkitReader(plan, schema)


class WalkitReader(DataSourceReader):
    """Reads what a `Scan` names, partition by partition. Pickled without its ranges: a partition has its own."""

    def __init__(self, scan: Scan, schema: StructType) -> None:
        self.scan = scan
        self.schema = schema

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker needs to read a partition."""
        bare = replace(self.scan.manifest, segments=())
        return {**self.__dict__, "scan": replace(self.scan, ranges=(), manifest=bare, bulks=None)}

    def partitions(self) -> Sequence[InputPartition]:
        """Return the snapshot and the ranges that hold a wanted LSN, shared out; none for an empty log."""
        scan = self.scan
        first = [scan.snapshot] if scan.snapshot is not None and scan.last_lsn else []
        ranges = [r for r in scan.ranges if r.last_lsn >= scan.frames_from and r.first_lsn <= scan.last_lsn]
        parts = parts_of(scan.manifest, scan.last_lsn, share(ranges, scan.parts), scan.bulks)
        return [InputPartition(part) for part in (*first, *parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a partition, every frame verified, as batches of the wanted columns."""
        wanted = to_arrow_schema(self.schema, timezone="UTC")
        # Without a partition Spark makes one whose value is None.
        part = partition.value
        if part is None:
            return
        batches = self._of_snapshot(part) if isinstance(part, SnapshotPart) else self._of_part(part)
        with on_a_worker(self.scan.path):
            for batch in filter(len, batches):  # of keys that are asked for, most have none
                columns = [batch.column(name) for name in wanted.names]
                yield pa.RecordBatch.from_arrays(columns, schema=wanted)

    def _of_part(self, part: RangePart) -> Iterator[pa.RecordBatch]:
        scan, batches = self.scan, self._of_ranges(part)
        if scan.newest_of:
            return newest_up_to(batches, scan.newest_of)
        if scan.touched is None:
            return batches
        records = self._of_ranges(scan.touched, scan.touched_from)
        keys = pa.chunked_array((batch.column("key").drop_null().unique() for batch in records), pa.binary())
        return of_keys(batches, keys.unique(), scan.touched_from)

    def _of_snapshot(self, part: SnapshotPart) -> Iterator[pa.RecordBatch]:
        files = source_at(self.scan.path, self.scan.storage_options).folder()
        found = (
            self._of_keys(batch.filter(pc.less_equal(batch.column("lsn"), self.scan.last_lsn)))
            for batch in snapshot_batches(files, part.lsn, part.identity)
        )
        return with_values(self.scan.path, self.scan.storage_options, found, self.scan.resolve)

    def _of_ranges(self, part: RangePart, first_lsn: int = 0) -> Iterator[pa.RecordBatch]:
        scan, first = self.scan, max(first_lsn, self.scan.frames_from)
        bounds: Any = {"first_lsn": first, "last_lsn": scan.last_lsn, "keys": self._keys()}
        for batch in part.batches(scan.path, resolve=scan.resolve, **bounds):
            yield self._of_keys(batch)

    def _of_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = self._keys()
        return batch if keys is None else batch.filter(pc.is_in(batch.column("key"), keys))

    def _keys(self) -> pa.Array | None:
        return None if self.scan.only is None else pa.array(self.scan.only, pa.binary())
