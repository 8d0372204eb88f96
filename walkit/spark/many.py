"""Several logs in one load: the rows of each, with the columns `log` and `log_id`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from walkit.spark.columns import LOG_FIELDS


class ManyReader(DataSourceReader):
    """Reads the logs one after the other, each by a reader of its own; a partition is of one log.

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
        if partition.value is None:  # Spark's own, where no log has anything to read
            return
        number, value = partition.value
        wanted = to_arrow_schema(self.schema, timezone="UTC")
        own = {field.name: name for field, name in zip(LOG_FIELDS, self.names[number], strict=True)}
        for batch in self.readers[number].read(InputPartition(value)):
            columns = [
                pa.repeat(own[name], len(batch)) if name in own else batch.column(name)
                for name in wanted.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)
