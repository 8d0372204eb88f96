"""The logs that `walkit bench spark` reads, and the same rows as Parquet."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from walkit.config import LogOptions
from walkit.objects.entrance import open_log
from walkit.record import RECORD_SCHEMA

RECORDS_PER_KEY = 3
DELETES_PER_CALL, PUTS_PER_CALL = 2_000, 18_000
CALL_BYTES_MAX = 64 << 20
"""Of large values a call has fewer."""
KEY_BYTES = len(b"key-%012d" % 0)
WRITTEN_WITH = LogOptions(durability="none")
HOT_SHARE = 0.9
"""Share of the records with one key, in the skewed log."""
GROUP_RECORDS = 1 << 18
"""Records of a row group of the Parquet file, about."""
SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLogs:
    """Where the logs of one size are, and Parquet of the rows of the first."""

    folder: str
    records: int
    record_bytes: int

    @property
    def log(self) -> str:
        """The log: a third as many keys as records, all as likely."""
        return os.path.join(self.folder, "log")

    @property
    def parquet(self) -> str:
        """The same rows as one Parquet file, written by pyarrow, snappy."""
        return os.path.join(self.folder, "rows.parquet")

    @property
    def copy(self) -> str:
        """The same log in another folder, byte for byte."""
        return os.path.join(self.folder, "copy")

    @property
    def skewed(self) -> str:
        """A log of as many records, `HOT_SHARE` of them with one key."""
        return os.path.join(self.folder, "skewed")

    def write(self, *, copy: bool, skewed: bool) -> None:
        """Write the log and the Parquet file, and the other logs on request."""
        os.makedirs(self.folder, exist_ok=True)
        write_log(self.log, self.records, self.record_bytes)
        write_parquet(self.log, self.parquet)
        if copy:
            shutil.copytree(self.log, self.copy)
        if skewed:
            write_log(self.skewed, self.records, self.record_bytes, hot_share=HOT_SHARE)

    @property
    def log_bytes(self) -> int:
        """Bytes of the log's segments."""
        return sum(file.stat().st_size for file in os.scandir(self.log) if file.name.endswith(".segment"))

    @property
    def parquet_bytes(self) -> int:
        """Bytes of the Parquet file."""
        return os.path.getsize(self.parquet)


def write_log(path: str, records: int, record_bytes: int, *, hot_share: float = 0.0) -> None:
    """Write puts and a tenth deletes over a third as many keys; `hot_share` of the records have one key."""
    rng = np.random.default_rng(SEED)
    written = 0
    most = max(min(PUTS_PER_CALL + DELETES_PER_CALL, CALL_BYTES_MAX // record_bytes), 1)
    with open_log(path, "x", WRITTEN_WITH) as log:
        while written < records:
            count = min(most, records - written)
            deletes = count * DELETES_PER_CALL // (PUTS_PER_CALL + DELETES_PER_CALL)
            numbers = rng.integers(0, records // RECORDS_PER_KEY + 1, count)
            if hot_share:
                numbers[rng.random(count) < hot_share] = 0
            keys = [b"key-%012d" % number for number in numbers.tolist()]
            data = rng.bytes((count - deletes) * record_bytes)
            values = [data[at : at + record_bytes] for at in range(0, len(data), record_bytes)]
            log.append_many(values, keys[deletes:])
            if deletes:
                with log.transaction() as tx:
                    for key in keys[:deletes]:
                        tx.delete(key)
            written += count


def write_parquet(log: str, path: str) -> None:
    """Write the records of a log as one Parquet file, compressed by snappy as Spark does it."""
    waiting: list[pa.RecordBatch] = []
    with (
        open_log(log, mode="r") as reader,
        pq.ParquetWriter(path, RECORD_SCHEMA, compression="snappy") as writer,
    ):
        for batch in reader.read_batches():
            waiting.append(batch)
            if sum(map(len, waiting)) >= GROUP_RECORDS:
                writer.write_table(pa.Table.from_batches(waiting, RECORD_SCHEMA))
                waiting = []
        writer.write_table(pa.Table.from_batches(waiting, RECORD_SCHEMA))
