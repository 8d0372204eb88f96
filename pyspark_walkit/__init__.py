"""Lets Spark find walkit by itself.

Spark imports every top-level module whose name starts with `pyspark_` and registers its `DefaultSource`, so
where walkit is installed `spark.read.format("walkit")` works without a word to `walkit.spark.register`.
"""

from walkit.spark.source import WalkitDataSource as DefaultSource

__all__ = ["DefaultSource"]
