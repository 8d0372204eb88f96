"""Replay in Spark: the state that a log's records leave behind.

The rule is that of `walkit.state`: for each key the record with the newest LSN wins, a delete leaves nothing,
and a record without a key is an event, which is no part of keyed state.

The newest LSN of each key is found by an aggregation of numbers alone, and the records are then picked by a
left-semi join on the LSN. Spark has no hash aggregation over binary or struct buffers: `max(struct(lsn,
value))`, `max_by` and a window all sort the values instead, and took 2 to 3 times as long where this was
measured.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, ByteType, DataType, IntegerType, LongType, ShortType

from walkit.errors import OptionsError
from walkit.record import Kind
from walkit.spark.facts import require_lsn, require_state

COLUMN_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "lsn": (LongType,),
    "kind": (ByteType, ShortType, IntegerType, LongType),
    "key": (BinaryType,),
    "value": (BinaryType,),
}
"""The columns that replay reads, and the types each may have."""


def replay(df: DataFrame, at_lsn: int | None = None) -> DataFrame:
    """Return the live keys of the log in `df`: columns `key`, `value`, and `lsn` of the record that won.

    `df` has the columns of `walkit.RECORD_SCHEMA` (more do no harm) and holds records of one log, because the
    rule needs an LSN to name one record; in any order, from the log's first record or from a snapshot's worth
    of puts on. `at_lsn` stops the replay after this LSN, inclusive; 0 is the state before the first record.

    Lazy, like any DataFrame; one shuffle by key and one by LSN; no Python worker beside those that read the
    log.

    Raises HistoryTrimmedError, before Spark does anything, where trimming or compaction has dropped what the state is
    made of: option `snapshot` of `load()` may help. That is known from what `load()` notes in the metadata of column
    `lsn` (`walkit.spark.facts`), and from conditions such as `lsn <= 7` on the DataFrame. Records that were left out
    below, by `firstLsn` or a condition, are taken as left out on purpose. Nothing is known of a DataFrame whose `lsn`
    was computed anew, that was loaded with a schema of one's own or made from rows; `df.withMetadata("lsn", {})` takes
    off what is known. Raises `OptionsError` for a column that is missing or of another type, and for an `at_lsn` that
    is not an LSN or that the records do not reach.
    """
    keyed = records_up_to(df, at_lsn, "replay").where(F.col("key").isNotNull())
    newest = keyed.groupBy("key").agg(F.max("lsn").alias("lsn")).select("lsn")
    put = keyed.where(F.col("kind") != int(Kind.DELETE))
    state = put.join(newest, "lsn", "left_semi").select("key", "value", "lsn")
    # The LSNs of a state are no log's records any more.
    return state.withMetadata("lsn", {})


def records_up_to(df: DataFrame, at_lsn: int | None, what: str) -> DataFrame:
    """Return the records up to `at_lsn`, inclusive, of which a state can be made; else raise as `replay` does."""
    require_columns(df, what)
    require_lsn(at_lsn)
    require_state(df, at_lsn)
    return df if at_lsn is None else df.where(F.col("lsn") <= at_lsn)


def require_columns(df: DataFrame, what: str) -> None:
    """Raise `OptionsError` unless `df` has the columns of a log's records; `what` names who needs them."""
    found = {field.name: field.dataType for field in df.schema.fields}
    for name, allowed in COLUMN_TYPES.items():
        if name not in found:
            raise OptionsError(
                f"the DataFrame has no column {name!r} (it has {', '.join(found) or 'none'}); "
                f'{what} takes records as spark.read.format("walkit") gives them',
                option=name,
            )
        if not isinstance(found[name], allowed):
            wanted = allowed[0]().simpleString()
            raise OptionsError(
                f"column {name!r} is {found[name].simpleString()}; {what} needs {wanted}",
                option=name,
                wanted=wanted,
                stored=found[name].simpleString(),
            )
