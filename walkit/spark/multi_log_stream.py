"""A stream of several logs: a reader for each, and one offset that holds the offset of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from walkit._internal.arguments import refuse
from walkit.spark.columns import LOG_FIELDS, RECORD_STRUCT, require_subset
from walkit.spark.errors import noted
from walkit.spark.multi_log import of_one_log, with_log
from walkit.spark.options import LoadOptions
from walkit.spark.stream import WalkitStreamReader
from walkit.spark.tables import STRUCTS

OF_LOGS = "logs"
"""The one member of an offset: the offset of each log by its path."""


class ManyStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of one query over several logs. Limits and claims are of each log.

    The logs of a query stay the same: a checkpoint of other paths is an OptionsError.
    """

    def __init__(self, options: LoadOptions, schema: StructType) -> None:
        self.schema = schema
        self.known = RECORD_STRUCT if options.view == "records" else STRUCTS[options.view]
        one = of_one_log(schema, self.known)
        self.readers = {
            path: WalkitStreamReader(replace(options, paths=(path,), many=False), one)
            for path in sorted(options.paths)
        }

    @noted()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins in each log."""
        require_subset(self.schema, StructType([*self.known.fields, *LOG_FIELDS]))
        return {OF_LOGS: {path: reader.initialOffset() for path, reader in self.readers.items()}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit if an option sets one: it counts for each log."""
        return next(iter(self.readers.values())).getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note where a query with Trigger.AvailableNow ends in each log."""
        for reader in self.readers.values():
            reader.prepareForTriggerAvailableNow()

    @noted()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the batch after `start` ends in each log; `start` if there is nothing new in any."""
        starts = self._offsets(start)
        return {
            OF_LOGS: {path: reader.latestOffset(starts[path], limit) for path, reader in self.readers.items()}
        }

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return how far each log is durable."""
        return {OF_LOGS: {path: reader.reportLatestOffset() for path, reader in self.readers.items()}}

    @noted()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, each of one log."""
        starts, ended = self._offsets(start), self._offsets(end)
        return [
            InputPartition((path, ended[path]["log_id"], part.value))
            for path, reader in self.readers.items()
            for part in reader.partitions(starts[path], ended[path])
        ]

    @noted()
    def commit(self, end: dict[str, Any]) -> None:
        """Let each log drop what was processed."""
        for path, offset in self._offsets(end).items():
            self.readers[path].commit(offset)

    def stop(self) -> None:
        """Release what each reader holds."""
        for reader in self.readers.values():
            reader.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one task with the columns of its log."""
        path, log_id, part = partition.value
        return with_log(self.readers[path].read(InputPartition(part)), (path, log_id), self.schema)

    def _offsets(self, saved: dict[str, Any]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = saved.get(OF_LOGS, {})
        if found.keys() != self.readers.keys():
            names = ", ".join(sorted(found)) or "(none)"
            text = f"the checkpoint names the logs {names}, not these; give the query a new one"
            refuse("checkpointLocation", sorted(self.readers), text, sorted(found))
        return found
