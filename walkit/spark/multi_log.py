"""Several logs in one load: the rows of each, with the columns `log` and `log_id`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from walkit.spark.columns import LOG_FIELDS


class ManyReader(DataSourceReader):
    """Reads the logs one after the other, each by a reader of its own; a partition belongs to one log.

    `names` are (path, log id) of each. A reader yields at least the columns of `schema` that are not of `LOG_FIELDS`.
    """

    def __init__(
        self, readers: Sequence[DataSourceReader], names: Sequence[tuple[str, str]], schema: StructType
    ) -> None:
        self.readers, self.names, self.schema = list(readers), list(names), schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of all logs, each with the number of its log."""
        return [
            InputPartition((number, part.value))
            for number, reader in enumerate(self.readers)
            for part in reader.partitions()
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one partition with the columns of its log."""
        if partition.value is None:  # Spark's own, if no log has anything to read
            return
        number, value = partition.value
        yield from with_log(self.readers[number].read(InputPartition(value)), self.names[number], self.schema)


def of_one_log(schema: StructType, known: StructType) -> StructType:
    """Return the columns of a schema without those of `LOG_FIELDS`; for none of them the first known one."""
    added = {field.name for field in LOG_FIELDS}
    return StructType([field for field in schema.fields if field.name not in added] or [known.fields[0]])


def with_log(
    batches: Iterable[pa.RecordBatch], name: tuple[str, str], schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of `schema`, of batches and of the log that they are of: its path and id."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    own = {field.name: text for field, text in zip(LOG_FIELDS, name, strict=True)}
    for batch in batches:
        columns = [
            pa.repeat(own[name], len(batch)) if name in own else batch.column(name) for name in wanted.names
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)
