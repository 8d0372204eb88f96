"""A log as Spark loads it, and what that reads."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import walkit
from tests.support.histories import Row
from walkit.record import RECORD_SCHEMA
from walkit.spark.options import read_options
from walkit.spark.scan import Scan, plan_log
from walkit.spark.time_bounds import within_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    """Return the log at `path` as a DataFrame."""
    return spark.read.format("walkit").options(**options).load(str(path))  # type: ignore[arg-type]


def logged(spark: SparkSession, folder: Path, rows: Sequence[Row]) -> DataFrame:
    """Return a load of a new log of these records below `folder`, each with its LSN in seconds as its time."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "log"
    records = [
        {"kind": kind, "key": key, "value": value, "timestamp": dt.datetime.fromtimestamp(lsn, dt.UTC)}
        for lsn, (kind, key, value) in enumerate(rows, 1)
    ]
    schema = pa.schema([RECORD_SCHEMA.field(name) for name in ("kind", "key", "value", "timestamp")])
    with walkit.open(path, options=walkit.LogOptions(durability="none")) as log:
        log.append_arrow(pa.Table.from_pylist(records, schema))
        log.sync()
    return load(spark, path)


def plan_scan(options: Mapping[str, Any]) -> Scan:
    """Return what a `load()` of one log with these options reads."""
    found = read_options(options)
    (path,) = found.paths
    return plan_log(path, within_times(path, found))
