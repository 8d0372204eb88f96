"""Counts and sizes of a log that Spark need not read its records for, and the heat of its keys."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from walkit._internal.arguments import as_lsn, refuse
from walkit.read.record_count import count_records
from walkit.spark.facts import SOURCE_NAME
from walkit.spark.options import local_path
from walkit.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUCKETS_DEFAULT = 50


def count(path: str | os.PathLike[str], first_lsn: int | None = None, last_lsn: int | None = None) -> int:
    """Return how many records a log has between two LSNs, inclusive; None is the oldest and the newest there is.

    From the manifest and frame headers, in this process: no session is started. Spark's own `df.count()` reads every
    record, as Spark pushes no aggregation down to a source written in Python. GapError where `first_lsn` is trimmed.
    """
    if first_lsn is not None and as_lsn(first_lsn, "first_lsn") < 0:
        refuse("first_lsn", first_lsn, "0 or more")
    return count_records(local_path(os.fspath(path)), first_lsn, last_lsn)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """The sizes of a log over its LSNs, and its keys by how often they were written. Both are lazy DataFrames."""

    over_lsn: DataFrame
    """`first_lsn`, `last_lsn`, `frames`, `records`, `bytes` on storage, `raw_bytes` of the bodies before compression,
    and `amplification`, the first by the second: headers, padding and compression. One row for each part of the log, in
    order; a frame is in the part that its first LSN is in. From frame headers."""
    keys: DataFrame
    """`key`, `records`, `deletes`, `value_bytes`, `first_lsn`, `last_lsn`, most records first. Reads every record."""


def stats(path: str | os.PathLike[str], *, buckets: int = BUCKETS_DEFAULT) -> LogStats:
    """Return how a log's bytes lie over its LSNs, in at most `buckets` parts, and how hot its keys are.

    Raises what `load()` raises; `OptionsError` for `buckets` below 1.
    """
    if as_lsn(buckets, "buckets") < 1:
        refuse("buckets", buckets, "1 or more")
    spark = session()
    location = local_path(os.fspath(path))
    records = spark.read.format(SOURCE_NAME).load(location)
    noted = records.schema["lsn"].metadata[SOURCE_NAME]
    first, last = noted["first_lsn"], noted["last_lsn"]
    width = max(1, -(-(last - first + 1) // buckets))
    frames = (
        spark.read.format(SOURCE_NAME).option("view", "frames").option("lastLsn", str(last)).load(location)
    )
    part = F.greatest(F.lit(0), F.floor((F.col("first_lsn") - first) / width)).alias("part")
    sums = frames.groupBy(part).agg(
        F.min("first_lsn").alias("first_lsn"),
        F.max("last_lsn").alias("last_lsn"),
        F.count("*").alias("frames"),
        F.sum("records").alias("records"),
        F.sum("bytes").alias("bytes"),
        F.sum("raw_bytes").alias("raw_bytes"),
    )
    over = (
        sums.withColumn("amplification", F.col("bytes") / F.col("raw_bytes"))
        .orderBy("first_lsn")
        .drop("part")
    )
    keyed = records.where(F.col("key").isNotNull()).groupBy("key")
    keys = keyed.agg(
        F.count("*").alias("records"),
        F.sum((F.col("kind") == 2).cast("long")).alias("deletes"),
        F.coalesce(F.sum(F.octet_length("value")), F.lit(0)).alias("value_bytes"),
        F.min("lsn").alias("first_lsn"),
        F.max("lsn").alias("last_lsn"),
    ).orderBy(F.desc("records"), "key")
    return LogStats(over_lsn=over, keys=keys)
