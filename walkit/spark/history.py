"""History in Spark: each value of a key with the LSNs between which it held, and states at many LSNs in one pass."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from walkit.errors import OptionsError
from walkit.record import Kind
from walkit.spark.changes import require_one_log
from walkit.spark.facts import LogFacts
from walkit.spark.replay import records_up_to

KEYS_MAX = 10_000
"""Most keys of which the history is asked at once: they are part of the query's plan."""
STATES_MAX = 1_000
"""Most LSNs in one pass: they are part of the query's plan."""


def history(df: DataFrame, key: bytes | Iterable[bytes] | None, first_lsn: int = 1) -> DataFrame:
    """Return every value that a key had from `first_lsn` on, with the LSNs between which it held.

    `key` is one key or several, at most 10,000; None is every key. `df` holds the records of one log, as in
    `walkit.spark.replay`. Columns: `key`; `value`; `valid_from_lsn`, the record that set it; `valid_to_lsn`, the last
    LSN at which it held, inclusive, null while it holds. Where a key is deleted no row covers its LSNs.

    Lazy, in no order. Raises HistoryTrimmedError where trimming or compaction has dropped what held at `first_lsn` or
    later, and OptionsError for what `replay` refuses, for keys that are no bytes and for a union of several logs.
    """
    if type(first_lsn) is not int or first_lsn < 1:
        raise OptionsError(
            f"first_lsn is {first_lsn!r}; give an LSN of 1 or more", option="first_lsn", wanted=first_lsn
        )
    records, _ = records_up_to(df, None, "history")
    require_one_log(df, "history")
    for noted in LogFacts.all_of(df):
        noted.require_records(first_lsn)
    keys = _keys(key)
    wanted = F.col("key").isNotNull() if keys is None else F.col("key").isin(*keys)
    rows = _with_next(records.where(wanted))
    ended = F.col("next") - 1
    return rows.where(
        (F.col("kind") != int(Kind.DELETE)) & F.coalesce(ended >= first_lsn, F.lit(True))
    ).select("key", "value", F.col("lsn").alias("valid_from_lsn"), ended.alias("valid_to_lsn"))


def states(df: DataFrame, lsns: Iterable[int]) -> DataFrame:
    """Return the states at several LSNs: columns `at_lsn`, `key`, `value`, `lsn` of the record that won.

    One read of the log and one shuffle, whatever the number of LSNs, at most 1,000; a live key is a row for each. `df`
    holds the records of one log. Lazy, in no order. Raises for each LSN what `walkit.spark.replay` raises, and
    OptionsError for a union of several logs.
    """
    wanted = sorted(set(lsns))
    if not wanted or len(wanted) > STATES_MAX:
        raise OptionsError(
            f"give 1 to {STATES_MAX:,} LSNs, and not {len(wanted):,}", option="lsns", wanted=len(wanted)
        )
    for lsn in wanted:
        records, _ = records_up_to(df, lsn, "states")
    require_one_log(df, "states")
    rows = _with_next(records.where(F.col("key").isNotNull()))
    asked = F.array(*(F.lit(lsn).cast("bigint") for lsn in wanted))
    held = F.filter(asked, lambda at: (at >= F.col("lsn")) & F.coalesce(at < F.col("next"), F.lit(True)))
    live = rows.where(F.col("kind") != int(Kind.DELETE))
    return live.select(F.explode(held).alias("at_lsn"), "key", "value", "lsn").withMetadata("lsn", {})


def _keys(key: bytes | Iterable[bytes] | None) -> list[bytes] | None:
    if key is None:
        return None
    keys = [key] if isinstance(key, bytes) else list(key)
    if not keys or len(keys) > KEYS_MAX or not all(isinstance(one, bytes) for one in keys):
        raise OptionsError(f"give a key of bytes, or 1 to {KEYS_MAX:,} of them", option="key", wanted=key)
    return keys


def _with_next(records: DataFrame) -> DataFrame:
    """Return the records with the LSN of the next one of their key; the query fails where two have one LSN."""
    twice = F.concat(
        F.lit("walkit: a history needs each record once; of key 0x"),
        F.hex("key"),
        F.lit(" the DataFrame has more than one row with the LSN "),
        F.col("lsn").cast("string"),
    )
    rows = records.select("lsn", "kind", "key", "value").withMetadata("lsn", {})
    rows = rows.withColumn("next", F.lead("lsn").over(Window.partitionBy("key").orderBy("lsn")))
    is_twice = F.when(F.col("next") == F.col("lsn"), F.raise_error(twice).cast("bigint"))
    return rows.withColumn("next", is_twice.otherwise(F.col("next")))
