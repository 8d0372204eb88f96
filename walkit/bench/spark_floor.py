"""Parquet read through Spark's Python data source API: the limit of a source that is written in Python.

Each partition is some of the file's row groups, as pyarrow decodes them. No frame is verified and no record decoded, so
what this takes beyond Spark's own Parquet is the way through the Python worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from walkit.read.view import BATCH_RECORDS
from walkit.spark.columns import RECORD_STRUCT

PARTITIONS = 2


class ParquetFloor(DataSource):
    """The data source `walkit_parquet_floor`: one Parquet file with the columns of a log, option `path`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "walkit_parquet_floor"

    def schema(self) -> StructType:
        """Return the columns of a log's records."""
        return RECORD_STRUCT

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of these columns."""
        return ParquetFloorReader(self.options["path"], schema)


class ParquetFloorReader(DataSourceReader):
    """Reads row groups of one file. Picklable."""

    def __init__(self, path: str, schema: StructType) -> None:
        self.path, self.struct = path, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the row groups, shared out."""
        groups = range(pq.ParquetFile(self.path).metadata.num_row_groups)
        return [InputPartition(tuple(groups[number::PARTITIONS])) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, in batches as large as a log's."""
        wanted = to_arrow_schema(self.struct, timezone="UTC")
        groups = partition.value or ()
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(BATCH_RECORDS, row_groups=list(groups), columns=wanted.names):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=wanted)
