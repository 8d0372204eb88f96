"""History in Spark: each value of a key with the LSNs between which it held, and states at many LSNs in one pass."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from walkit._internal.arguments import check_whole, refuse
from walkit.record import Kind
from walkit.spark.loads import Load, Log, keys_of
from walkit.spark.replay import with_next

STATES_MAX = 1_000
"""Most LSNs in one pass: they are part of the query's plan."""


def history(log: Log, keys: bytes | Iterable[bytes] | None = None, first_lsn: int = 1) -> DataFrame:
    """Return every value that a key had from `first_lsn` on, with the LSNs between which it held.

    `keys` is one key or several, at most 10,000; None is every key. `log` is one log, as in
    `walkit.spark.replay`. Columns: `key`; `value`; `valid_from_lsn`, the record that set it; `valid_to_lsn`, the last
    LSN at which it held, inclusive, null while it holds. Where a key is deleted no row covers its LSNs.

    Lazy, in no order. Raises HistoryTrimmedError where trimming or compaction has dropped what held at `first_lsn` or
    later, what `replay` raises, and OptionsError for keys that are not bytes and for several logs.
    """
    check_whole(first_lsn, "first_lsn")
    wanted, of = keys_of(keys, "keys"), Load.of(log, "history").until()
    of.log.require_records(first_lsn)
    rows, ended = with_next(of.part(only=wanted)), F.col("next") - 1
    return rows.where(
        (F.col("kind") != int(Kind.DELETE)) & F.coalesce(ended >= first_lsn, F.lit(True))
    ).select("key", "value", F.col("lsn").alias("valid_from_lsn"), ended.alias("valid_to_lsn"))


def states(log: Log, lsns: Iterable[int]) -> DataFrame:
    """Return the states at several LSNs: columns `at_lsn`, `key`, `value`, `lsn` of the record that won.

    One read of the log and one shuffle, whatever the number of LSNs, at most 1,000; a live key is a row for each. `log`
    is one log. Lazy, in no order. Raises for each LSN what `walkit.spark.replay` raises, and OptionsError for several
    logs.
    """
    wanted = sorted(set(lsns))
    if not wanted or len(wanted) > STATES_MAX:
        refuse("lsns", len(wanted), f"give 1 to {STATES_MAX:,} LSNs")
    of = Load.of(log, "states")
    for lsn in wanted:
        last = of.until(lsn)
    rows = with_next(last.part())
    requested = F.array(*(F.lit(lsn).cast("bigint") for lsn in wanted))
    held = F.filter(requested, lambda at: (at >= F.col("lsn")) & F.coalesce(at < F.col("next"), F.lit(True)))
    live = rows.where(F.col("kind") != int(Kind.DELETE))
    return live.select(F.explode(held).alias("at_lsn"), "key", "value", "lsn")
