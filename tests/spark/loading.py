"""A log as Spark loads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    """Return the log at `path` as a DataFrame."""
    return spark.read.format("walkit").options(**options).load(str(path))  # type: ignore[arg-type]
