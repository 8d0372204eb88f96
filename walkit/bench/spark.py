"""`walkit bench spark`: a log read by Spark, beside Parquet of the same rows in the same run.

Each query runs on both, one after the other, several times; a first round warms the JVM and the page cache and does
not count. A time is from `load()` to the answer. Both have to give the same answer.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from walkit._report import Cells, TableReport
from walkit.config import LogOptions, check_progress
from walkit.errors import OptionsError, WalkitError
from walkit.log.limits import require_fits
from walkit.log.open import open_log
from walkit.record import RECORD_SCHEMA
from walkit.spark.replay import replay
from walkit.spark.session import PUSHDOWN_SWITCH, session
from walkit.storage.mounts import require_folder

BenchProgress = Callable[[int, int], None]
"""Called after each query with (queries done, queries to do)."""
Load: TypeAlias = Callable[[], DataFrame]
Query: TypeAlias = Callable[[DataFrame], DataFrame]

RECORDS_PER_KEY = 3
DELETES_PER_CALL, PUTS_PER_CALL = 2_000, 18_000
CALL_BYTES_MAX = 64 << 20
"""Of large values a call has fewer."""
KEY_BYTES = len(b"key-%012d" % 0)
WRITTEN_WITH = LogOptions(durability="none")
FILTERED_SHARE = 0.01
SEED = 7


@dataclass(frozen=True, kw_only=True)
class SparkBenchRow:
    """One query, on the log and on Parquet. Times in seconds, of each run that counts."""

    query: str
    answer_rows: int
    """Rows that the query aggregated: the first of its answers."""
    log_s: tuple[float, ...]
    parquet_s: tuple[float, ...]

    @property
    def log_median_s(self) -> float:
        """Median time on the log."""
        return statistics.median(self.log_s)

    @property
    def parquet_median_s(self) -> float:
        """Median time on Parquet."""
        return statistics.median(self.parquet_s)

    @property
    def times_parquet(self) -> float:
        """How many times as long as on Parquet it took on the log."""
        return self.log_median_s / self.parquet_median_s

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "query": self.query,
            "answer_rows": self.answer_rows,
            "log_s": [round(s, 4) for s in self.log_s],
            "parquet_s": [round(s, 4) for s in self.parquet_s],
            "log_median_s": round(self.log_median_s, 4),
            "parquet_median_s": round(self.parquet_median_s, 4),
            "times_parquet": round(self.times_parquet, 3),
        }


@dataclass(frozen=True, kw_only=True)
class SparkBenchReport(TableReport):
    """What one `walkit bench spark` measured."""

    bench = "spark"

    records: int
    record_bytes: int
    log_bytes: int
    parquet_bytes: int
    master: str
    location: str
    rows: tuple[SparkBenchRow, ...]

    @property
    def notes(self) -> list[str]:
        """What the numbers were taken on."""
        what = f"{self.records:,} records, a tenth deletes, {RECORDS_PER_KEY} to a key"
        where = f"Spark {pyspark.__version__}, {self.master}, in {self.location}"
        sizes = f"log {self.log_bytes:,} bytes, not compressed; Parquet {self.parquet_bytes:,} bytes, snappy"
        return [
            f"{what}, random values of {self.record_bytes:,} bytes; {where}",
            f"{sizes}, written by pyarrow",
            "medians of warm runs, from load() to the answer; every frame of the log that is read is verified",
        ]

    def _facts(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "record_bytes": self.record_bytes,
            "log_bytes": self.log_bytes,
            "parquet_bytes": self.parquet_bytes,
            "spark": pyspark.__version__,
            "master": self.master,
            "rows": [row.to_dict() for row in self.rows],
        }

    def _head(self) -> Cells:
        return ("query", "rows", "log s", "Parquet s", "x Parquet")

    def _cells(self) -> list[Cells]:
        return [
            (
                row.query,
                f"{row.answer_rows:,}",
                f"{row.log_median_s:,.2f}",
                f"{row.parquet_median_s:,.2f}",
                f"{row.times_parquet:,.2f}",
            )
            for row in self.rows
        ]


def bench_spark(
    *,
    records: int = 1_000_000,
    record_bytes: int = 64,
    runs: int = 3,
    path: str | None = None,
    progress: BenchProgress | None = None,
) -> SparkBenchReport:
    """Measure reading, filtering and replaying a log with Spark, and the same on Parquet of the same rows.

    `path` is a folder to work in (default: the folder for temporary files); nothing is left in it. Uses the active
    Spark session, or starts one, which stays. Raises OptionsError, and what starting Spark raises; WalkitError where
    the log and Parquet give different answers.
    """
    for name, value in (("records", records), ("record_bytes", record_bytes), ("runs", runs)):
        if value < 1:
            raise OptionsError(f"{name}={value}: a whole number from 1 on", option=name, wanted=value)
    require_folder(path)
    require_fits("record_bytes", record_bytes, WRITTEN_WITH, KEY_BYTES)
    check_progress(progress, "(queries done, queries to do)")
    folder = tempfile.mkdtemp(prefix="walkit-bench-", dir=path)
    try:
        log, parquet = os.path.join(folder, "log"), os.path.join(folder, "rows.parquet")
        written = _write_log(log, records, record_bytes)
        _write_parquet(log, parquet)
        spark = session()
        with _pushing(spark):
            rows = _measure(spark, log, parquet, written, runs, progress)
        return SparkBenchReport(
            records=written,
            record_bytes=record_bytes,
            log_bytes=sum(file.stat().st_size for file in os.scandir(log) if file.name.endswith(".segment")),
            parquet_bytes=os.path.getsize(parquet),
            master=spark.conf.get("spark.master") or "",
            location=os.path.dirname(folder),
            rows=tuple(rows),
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_log(path: str, records: int, record_bytes: int) -> int:
    """Write puts and deletes over a third as many keys; return how many records."""
    rng = np.random.default_rng(SEED)
    written = 0
    most = max(min(PUTS_PER_CALL + DELETES_PER_CALL, CALL_BYTES_MAX // record_bytes), 1)
    with open_log(path, "x", WRITTEN_WITH) as log:
        while written < records:
            count = min(most, records - written)
            deletes = count * DELETES_PER_CALL // (PUTS_PER_CALL + DELETES_PER_CALL)
            numbers = rng.integers(0, records // RECORDS_PER_KEY + 1, count)
            keys = [b"key-%012d" % number for number in numbers.tolist()]
            data = rng.bytes((count - deletes) * record_bytes)
            values = [data[at : at + record_bytes] for at in range(0, len(data), record_bytes)]
            log.append_many(values, keys[deletes:])
            if deletes:
                with log.transaction() as tx:
                    for key in keys[:deletes]:
                        tx.delete(key)
            written += count
    return written


def _write_parquet(log: str, path: str) -> None:
    with (
        open_log(log, mode="r") as reader,
        pq.ParquetWriter(path, RECORD_SCHEMA, compression="snappy") as writer,
    ):
        for batch in reader.read_batches():
            writer.write_batch(batch)


@contextmanager
def _pushing(spark: SparkSession) -> Iterator[None]:
    """Set Spark's switch for filters on for a while."""
    before = spark.conf.get(PUSHDOWN_SWITCH, "false")
    spark.conf.set(PUSHDOWN_SWITCH, "true")
    try:
        yield
    finally:
        spark.conf.set(PUSHDOWN_SWITCH, str(before))


def _measure(
    spark: SparkSession, log: str, parquet: str, records: int, runs: int, progress: BenchProgress | None
) -> list[SparkBenchRow]:
    first = records // 2
    last = first + max(round(records * FILTERED_SHARE), 1) - 1
    between = F.col("lsn").between(first, last)

    def whole() -> DataFrame:
        return spark.read.format("walkit").load(log)

    def pushing() -> DataFrame:
        return spark.read.format("walkit").option("pushFilters", True).load(log)

    queries: list[tuple[str, Load, Query]] = [
        ("read and aggregate all columns", whole, lambda df: df.agg(*_all_columns())),
        ("filter 1% by LSN, pushed down", pushing, lambda df: df.where(between).agg(*_all_columns())),
        ("filter 1% by LSN, not pushed", whole, lambda df: df.where(between).agg(*_all_columns())),
        ("replay", whole, lambda df: replay(df).agg(*_state_columns())),
        ("replay at half of the LSNs", whole, lambda df: replay(df, records // 2).agg(*_state_columns())),
    ]
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name, _, _ in queries}
    answers: dict[str, tuple[Any, ...]] = {}
    done, total = 0, (runs + 1) * len(queries) * 2
    for run in range(runs + 1):
        for name, load, query in queries:
            for side, source in enumerate((load, lambda: spark.read.parquet(parquet))):
                seconds, answer = _ask(source, query)
                if answers.setdefault(name, answer) != answer:
                    raise WalkitError(f"{name}: the log and Parquet differ: {answers[name]} and {answer}")
                if run:
                    times[name][side].append(seconds)
                done += 1
                if progress is not None:
                    progress(done, total)
    return [
        SparkBenchRow(
            query=name,
            answer_rows=answers[name][0],
            log_s=tuple(times[name][0]),
            parquet_s=tuple(times[name][1]),
        )
        for name, _, _ in queries
    ]


def _ask(load: Load, query: Query) -> tuple[float, tuple[Any, ...]]:
    began = time.perf_counter()
    (row,) = query(load()).collect()
    return time.perf_counter() - began, tuple(row)


def _all_columns() -> list[Column]:
    return [
        F.count("*"),
        F.sum("lsn"),
        F.sum("kind"),
        F.sum(F.length("key")),
        F.sum(F.length("value")),
        F.max("timestamp"),
    ]


def _state_columns() -> list[Column]:
    return [F.count("*"), F.sum("lsn"), F.sum(F.length("key")), F.sum(F.length("value"))]
