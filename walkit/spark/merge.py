"""Several logs replayed into one state: LSNs of different logs do not compare, so that the caller names their order."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from walkit.errors import OptionsError
from walkit.record import Kind

LOG_ID = "log_id"
"""The column that says which log a record is of, 16 hexadecimal digits, as a load of several logs has it."""

HINT = "; replay(df, logs=[...]) names the order in which logs are merged"


def merged(keyed: DataFrame, logs: Sequence[str] | None) -> DataFrame:
    """Return key, value and LSN of each live key: of the last of `logs` that has the key, its newest record.

    `keyed` has records with keys of several logs, and a column `log_id`. Without `logs` the query fails where a key is
    in two logs; with it, where a record is of a log that is not named; and in both where a record is there twice.
    """
    found = {field.name: field.dataType for field in keyed.schema.fields}
    if not isinstance(found.get(LOG_ID), StringType):
        raise OptionsError(
            "the order of several logs needs a column 'log_id' of strings, which says the log of each record",
            option="logs",
        )
    columns = keyed.select("lsn", "kind", "key", "value", LOG_ID).withMetadata("lsn", {})
    newest = columns.groupBy("key", LOG_ID).agg(F.max("lsn").alias("lsn"))
    newest = newest.withColumn("rank", F.lit(0) if logs is None else _rank(logs))
    by_key = Window.partitionBy("key")
    if logs is None:
        conflict = _failure("key 0x", F.hex("key"), " is in several logs, one of them ", F.col(LOG_ID), HINT)
        last = F.when(F.count("*").over(by_key) == 1, True).otherwise(conflict)
    else:
        last = F.col("rank") == F.max("rank").over(by_key)
    wanted = newest.withColumn("last", last).where("last").select("key", "lsn", LOG_ID)
    picked = columns.join(wanted, ["lsn", "key", LOG_ID], "left_semi")
    rows = F.count("*").over(Window.partitionBy("lsn", "key", LOG_ID))
    twice = _failure(
        "of key 0x", F.hex("key"), " there are several rows with the newest LSN ", F.col("lsn").cast("string")
    )
    live = F.when(F.col("rows") == 1, F.col("kind") != int(Kind.DELETE)).otherwise(twice)
    return picked.withColumn("rows", rows).where(live).select("key", "value", "lsn")


def refuse_log_ids(df: DataFrame, what: str) -> None:
    """Raise OptionsError where the DataFrame says of each record which log it is of: `what` takes those of one."""
    if LOG_ID in df.columns:
        raise OptionsError(
            f"{what} takes the records of one log: df.where(\"{LOG_ID} = '...'\").drop('{LOG_ID}') keeps those of one",
            option="df",
            wanted=LOG_ID,
        )


def _rank(logs: Sequence[str]) -> Column:
    if isinstance(logs, str) or not logs or len(set(logs)) != len(logs):
        raise OptionsError(
            "logs is a sequence of different log ids, the last one wins", option="logs", wanted=logs
        )
    missing = F.raise_error(
        F.concat(F.lit("walkit: the order of logs does not name the log "), F.coalesce(LOG_ID, F.lit("null")))
    )
    rank = F.when(F.col(LOG_ID) == logs[0], F.lit(0))
    for number, log in enumerate(logs[1:], 1):
        rank = rank.when(F.col(LOG_ID) == log, F.lit(number))
    return rank.otherwise(missing.cast("int"))


def _failure(*words: str | Column) -> Column:
    """Return the failure of a query, in these words."""
    parts = [F.lit(word) if isinstance(word, str) else word for word in words]
    return F.raise_error(F.concat(F.lit("walkit: "), *parts)).cast("boolean")
