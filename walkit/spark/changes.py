"""The change feed in Spark: what each record did to its key, with the values before and after it.

Only records of the keys that the range touches are shuffled, by key, and a window over them in LSN order gives each
its predecessor. With a range of few bytes, each reader of a partition finds these keys itself, and gives Spark nothing
else. Else records are read twice, once for the keys. The window spills to disk, so that a key with most of the records
does not have to fit a worker's memory.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from walkit._internal.arguments import check_choice, check_whole, refuse
from walkit.record import Kind
from walkit.spark.loads import Load, Log

Style: TypeAlias = Literal["images", "cdc"]
"""`images`: one row a change, with both values. `cdc`: the columns and words of Delta Lake's change data feed."""

CDC_COLUMNS = ("key", "value", "_change_type", "_commit_version", "_commit_timestamp")


def changes(
    log: Log,
    first_lsn: int | None = None,
    last_lsn: int | None = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    style: Style = "images",
    net: bool = False,
) -> DataFrame:
    """Return what the records from `first_lsn` to `last_lsn`, both inclusive, changed in the state before them.

    `log` is one log, as in `walkit.spark.replay`; `last_lsn` None is its newest record. Bounds may also be times with a
    zone: records sealed after `since` and not after `until`. The state at
    `first_lsn - 1` with these changes made in LSN order is the state at `last_lsn`. Columns: `key`; `change`: I if
    the key was not live before, C if it was, whatever its values, D if the record deletes a live key; `pre_value` and
    `post_value`, null on a side without the live key; `lsn` of the record. A delete of a key that is not live changes
    nothing and has no row, and neither has a record without a key.

    With `net` one row per key: from its value before the range to that at its end, if these differ, as in
    `walkit.diff`; `lsn` is that of the key's newest record in the range.

    With `style="cdc"` the rows are Delta Lake's: `key`, `value`, `_change_type` (insert, update_preimage,
    update_postimage, delete), `_commit_version` (the LSN) and `_commit_timestamp` (the record's). A change C is two
    rows, and a delete has the value that was deleted.

    Lazy, in no order. Raises HistoryTrimmedError if trimming or compaction has dropped the state before the range or
    records in it, the errors of `replay`, and OptionsError for invalid LSNs or LSNs out of order, for several logs and
    for an unknown style.
    """
    _require_range(first_lsn, last_lsn, since, until)
    check_choice(style, ("images", "cdc"), "style")
    of = Load.of(log, "changes")
    first = first_lsn if since is None else of.lsn_at(of.log, since) + 1
    assert first is not None
    of = of.until(last_lsn, until)
    of.log.require_records(first)
    relevant = of.of_touched_keys(first).where(F.col("key").isNotNull())
    relevant = relevant.select("lsn", "kind", "key", "value", *(["timestamp"] if style == "cdc" else []))
    found = _net(relevant, first) if net else _each(relevant, first)
    return _as_cdc(found) if style == "cdc" else found.withMetadata("lsn", {})


def _require_range(first_lsn: object, last_lsn: object, since: object, until: object) -> None:
    for name, lsn, time, bound in (
        ("first_lsn", first_lsn, since, "since"),
        ("last_lsn", last_lsn, until, "until"),
    ):
        if lsn is not None and time is not None:
            refuse(bound, time, f"give {name} or {bound}, not both")
        check_whole(lsn, name, or_none=time is not None or name == "last_lsn")
    if type(first_lsn) is int and type(last_lsn) is int and first_lsn > last_lsn:
        refuse("first_lsn", first_lsn, f"not after last_lsn={last_lsn}", last_lsn)


def _each(relevant: DataFrame, first_lsn: int) -> DataFrame:
    in_order = Window.partitionBy("key").orderBy("lsn")
    before = F.lag(F.struct("kind", "value")).over(in_order)
    rows = relevant.withColumn("before", before)
    was_live, is_live = _is_live(F.col("before.kind")), _is_live(F.col("kind"))
    return _shown(rows, _change(was_live, is_live), F.col("lsn") >= first_lsn)


def _net(relevant: DataFrame, first_lsn: int) -> DataFrame:
    in_order = Window.partitionBy("key").orderBy("lsn")
    base = F.when(F.col("lsn") < first_lsn, F.struct("kind", "value"))
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = relevant.withColumn("next", F.lead("lsn").over(in_order))
    rows = rows.withColumn("before", F.last(base, ignorenulls=True).over(so_far))
    was_live, is_live = _is_live(F.col("before.kind")), _is_live(F.col("kind"))
    same = was_live & is_live & F.col("before.value").eqNullSafe(F.col("value"))
    wanted = F.col("next").isNull() & (F.col("lsn") >= first_lsn) & ~same
    return _shown(rows, _change(was_live, is_live), wanted)


def _is_live(kind: Column) -> Column:
    return F.coalesce(kind != int(Kind.DELETE), F.lit(False))


def _change(was_live: Column, is_live: Column) -> Column:
    return F.when(is_live, F.when(was_live, "C").otherwise("I")).otherwise(F.when(was_live, "D"))


def _shown(rows: DataFrame, change: Column, wanted: Column) -> DataFrame:
    """Return the rows that change something and are wanted."""
    return (
        rows.withColumn("change", change)
        .where(wanted & F.col("change").isNotNull())
        .select(
            "key",
            "change",
            F.when(F.col("change") != "I", F.col("before.value")).alias("pre_value"),
            F.when(F.col("change") != "D", F.col("value")).alias("post_value"),
            "lsn",
            *(["timestamp"] if "timestamp" in rows.columns else []),
        )
    )


def _as_cdc(found: DataFrame) -> DataFrame:
    def row(word: str, value: str) -> Column:
        return F.struct(F.lit(word).alias("word"), F.col(value).alias("value"))

    is_change = F.col("change") == "C"
    two = F.array(row("update_preimage", "pre_value"), row("update_postimage", "post_value"))
    rows = F.when(is_change, two).otherwise(
        F.when(F.col("change") == "I", F.array(row("insert", "post_value"))).otherwise(
            F.array(row("delete", "pre_value"))
        )
    )
    images = found.withColumn("image", F.explode(rows))
    return images.select(
        "key",
        F.col("image.value").alias("value"),
        F.col("image.word").alias("_change_type"),
        F.col("lsn").alias("_commit_version"),
        F.col("timestamp").alias("_commit_timestamp"),
    ).withMetadata("_commit_version", {})
