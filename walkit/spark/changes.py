"""The change feed in Spark: what each record did to its key, with the values before and after it.

Only records of the keys that the range touches are shuffled, by key, and a window over them in LSN order gives each
its predecessor. Of a load as it is (`walkit.spark.reload`), with a range of few bytes, each reader of a partition finds
these keys itself, and gives Spark nothing else. Else records are read twice, once for the keys. The window spills to
disk, so that a key with most of the records does not have to fit a worker's memory.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from walkit.errors import OptionsError
from walkit.record import Kind
from walkit.spark.facts import LogFacts
from walkit.spark.merge import refuse_log_ids
from walkit.spark.plan import records_of
from walkit.spark.reload import reload, reload_touched
from walkit.spark.replay import BROADCAST_LSNS, of_touched_keys, records_up_to

Style: TypeAlias = Literal["images", "cdc"]
"""`images`: one row a change, with both values. `cdc`: the columns and words of Delta Lake's change data feed."""

CDC_COLUMNS = ("key", "value", "_change_type", "_commit_version", "_commit_timestamp")


def changes(
    df: DataFrame, first_lsn: int, last_lsn: int | None = None, style: Style = "images", net: bool = False
) -> DataFrame:
    """Return what the records from `first_lsn` to `last_lsn`, both inclusive, changed in the state before them.

    `df` holds the records of one log, as in `walkit.spark.replay`; `last_lsn` None is its newest record. The state at
    `first_lsn - 1` with these changes made in LSN order is the state at `last_lsn`. Columns: `key`; `change`: I where
    the key was not live before, C where it was, whatever its values, D where the record deletes a live key;
    `pre_value`, `post_value`, null on the side where the key is not live; `lsn` of the record. A delete of a key that
    is not live changes nothing and has no row, and neither has a record without a key.

    With `net` one row a key: from its value before the range to that at its end, where these differ, as `walkit.diff`
    says it; `lsn` is that of the key's newest record in the range.

    With `style="cdc"` the rows are Delta Lake's: `key`, `value`, `_change_type` (insert, update_preimage,
    update_postimage, delete), `_commit_version` (the LSN) and `_commit_timestamp` (the record's). A change C is two
    rows, and a delete has the value that was deleted.

    Lazy, in no order. Raises HistoryTrimmedError where trimming or compaction has dropped the state before the range
    or records in it, and OptionsError for what `replay` refuses, for LSNs that are none or out of order, for a union
    of several logs and for a style that is none. Where a key has two records with one LSN, the query fails and names
    them.
    """
    _require_range(first_lsn, last_lsn)
    if style not in ("images", "cdc"):
        raise OptionsError(f"style is {style!r}; give images or cdc", option="style", wanted=style)
    records, _ = records_up_to(df, last_lsn, "changes")
    require_one_log(df, "changes")
    for noted in LogFacts.all_of(df):
        noted.require_records(first_lsn)
    facts = LogFacts.of(df)
    newest = last_lsn if facts is None else min(facts.last_lsn, last_lsn or facts.last_lsn)
    few = newest is not None and newest - first_lsn < BROADCAST_LSNS
    narrowed = reload_touched(df, first_lsn, last_lsn) if few else None
    if narrowed is None:
        again = reload(df, "lsn bigint, key binary", first_lsn=first_lsn, last_lsn=last_lsn)
        numbers, records = (records, records) if again is None else again
        keyed = _columns(records, style).where(F.col("key").isNotNull())
        # A key that only shares a hash has no record in the range, and so no row.
        relevant = of_touched_keys(keyed, numbers, first_lsn, few=few)
    else:
        relevant = _columns(narrowed, style)
    found = _net(relevant, first_lsn) if net else _each(relevant, first_lsn)
    return _as_cdc(found) if style == "cdc" else found.drop("timestamp").withMetadata("lsn", {})


def require_one_log(df: DataFrame, what: str) -> None:
    """Raise OptionsError where columns or plan show records of several logs, whose LSNs do not compare."""
    refuse_log_ids(df, what)
    logs = {read.facts.log_id for read in records_of(df).reads if read.facts is not None}
    if len(logs) > 1:
        raise OptionsError(
            f"{what} takes the records of one log, and the DataFrame has those of {', '.join(sorted(logs))}; LSNs of "
            "different logs do not compare",
            option="df",
            wanted=", ".join(sorted(logs)),
        )


def _require_range(first_lsn: object, last_lsn: object) -> None:
    for name, lsn in (("first_lsn", first_lsn), ("last_lsn", last_lsn)):
        if (lsn is None and name == "last_lsn") or (type(lsn) is int and lsn >= 1):
            continue
        raise OptionsError(f"{name} is {lsn!r}; give an LSN of 1 or more", option=name, wanted=lsn)
    if type(first_lsn) is int and type(last_lsn) is int and first_lsn > last_lsn:
        raise OptionsError(
            f"first_lsn {first_lsn:,} is after last_lsn {last_lsn:,}",
            option="first_lsn",
            wanted=first_lsn,
            stored=last_lsn,
        )


def _columns(records: DataFrame, style: Style) -> DataFrame:
    names = ["lsn", "kind", "key", "value"]
    if style == "cdc":
        found = {field.name: field.dataType for field in records.schema.fields}
        if not isinstance(found.get("timestamp"), TimestampType):
            raise OptionsError(
                "style cdc needs a column 'timestamp' of type timestamp, as a load gives it",
                option="timestamp",
            )
        names.append("timestamp")
    return records.select(*names)


def _each(relevant: DataFrame, first_lsn: int) -> DataFrame:
    in_order = Window.partitionBy("key").orderBy("lsn")
    before = F.lag(F.struct("lsn", "kind", "value")).over(in_order)
    rows = relevant.withColumn("before", before)
    was_live, is_live = _is_live(F.col("before.kind")), _is_live(F.col("kind"))
    return _shown(rows, _change(was_live, is_live), F.col("lsn") >= first_lsn)


def _net(relevant: DataFrame, first_lsn: int) -> DataFrame:
    in_order = Window.partitionBy("key").orderBy("lsn")
    base = F.when(F.col("lsn") < first_lsn, F.struct("kind", "value"))
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = relevant.withColumn("previous", F.lag("lsn").over(in_order))
    rows = rows.withColumn("next", F.lead("lsn").over(in_order))
    rows = rows.withColumn("base", F.last(base, ignorenulls=True).over(so_far))
    rows = rows.select(
        "*", F.struct(F.col("previous").alias("lsn"), "base.kind", "base.value").alias("before")
    )
    was_live, is_live = _is_live(F.col("before.kind")), _is_live(F.col("kind"))
    same = was_live & is_live & F.col("before.value").eqNullSafe(F.col("value"))
    wanted = F.col("next").isNull() & (F.col("lsn") >= first_lsn) & ~same
    return _shown(rows, _change(was_live, is_live), wanted)


def _is_live(kind: Column) -> Column:
    return F.coalesce(kind != int(Kind.DELETE), F.lit(False))


def _change(was_live: Column, is_live: Column) -> Column:
    return F.when(is_live, F.when(was_live, "C").otherwise("I")).otherwise(F.when(was_live, "D"))


def _shown(rows: DataFrame, change: Column, wanted: Column) -> DataFrame:
    """Return the rows that change something and are wanted; the query fails where two records have one LSN."""
    twice = F.concat(
        F.lit("walkit: changes needs each record once; of key 0x"),
        F.hex("key"),
        F.lit(" the DataFrame has more than one row with the LSN "),
        F.col("lsn").cast("string"),
    )
    kept = F.when(F.col("before.lsn") == F.col("lsn"), F.raise_error(twice).cast("boolean"))
    return (
        rows.withColumn("change", change)
        .where(kept.otherwise(wanted & F.col("change").isNotNull()))
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
    told = found.withColumn("image", F.explode(rows))
    return told.select(
        "key",
        F.col("image.value").alias("value"),
        F.col("image.word").alias("_change_type"),
        F.col("lsn").alias("_commit_version"),
        F.col("timestamp").alias("_commit_timestamp"),
    ).withMetadata("_commit_version", {})
