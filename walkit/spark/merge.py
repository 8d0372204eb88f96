"""Several logs replayed into one state: LSNs of different logs do not compare, so that the caller names their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from walkit._internal.arguments import refuse
from walkit.record import Kind
from walkit.spark.facts import LogFacts

LOG_ID = "log_id"
"""The column with the id of a record's log, 16 hexadecimal digits, as a load of several logs has it."""


def merged(keyed: DataFrame, rank: Mapping[str, int] | None) -> DataFrame:
    """Return key, value and LSN of each live key: of the log with the highest rank that has the key, its newest record.

    `keyed` has records with keys of several logs, and a column `log_id`. Without ranks the query fails if a key is
    in two logs.
    """
    columns = keyed.select("lsn", "kind", "key", "value", LOG_ID).withMetadata("lsn", {})
    newest = columns.groupBy("key", LOG_ID).agg(F.max("lsn").alias("lsn"))
    by_key = Window.partitionBy("key")
    if rank is None:
        parts = ("walkit: key 0x", F.hex("key"), " is in several logs, one of them ", F.col(LOG_ID), HINT)
        conflict = F.concat(*(F.lit(word) if isinstance(word, str) else word for word in parts))
        last = F.when(F.count("*").over(by_key) == 1, True).otherwise(F.raise_error(conflict).cast("boolean"))
    else:
        of_log = F.create_map(*(F.lit(each) for pair in rank.items() for each in pair))[F.col(LOG_ID)]
        last = of_log == F.max(of_log).over(by_key)
    wanted = newest.withColumn("last", last).where("last").select("key", "lsn", LOG_ID)
    picked = columns.join(wanted, ["lsn", "key", LOG_ID], "left_semi")
    return picked.where(F.col("kind") != int(Kind.DELETE)).select("key", "value", "lsn")


HINT = "; replay(logs, order=[...]) names the order in which logs are merged"


def ranks(order: Sequence[str], logs: Sequence[LogFacts]) -> dict[str, int]:
    """Return the place of each log in an order; OptionsError unless that names the id of each log once."""
    if isinstance(order, str) or sorted(order) != sorted(facts.log_id for facts in logs):
        ids = ", ".join(facts.log_id for facts in logs)
        refuse(
            "order", order, f"name each log once by its log_id, the last one wins; the logs are {ids}", ids
        )
    return {log_id: place for place, log_id in enumerate(order)}
