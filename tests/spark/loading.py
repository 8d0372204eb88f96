"""A log as Spark loads it, and what that reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walkit.spark.options import read_options
from walkit.spark.scan import Scan, plan_log
from walkit.spark.times import within_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    """Return the log at `path` as a DataFrame."""
    return spark.read.format("walkit").options(**options).load(str(path))  # type: ignore[arg-type]


def plan_scan(options: Mapping[str, Any]) -> Scan:
    """Return what a `load()` of one log with these options reads."""
    found = read_options(options)
    (path,) = found.paths
    return plan_log(path, within_times(path, found))
