"""Replay in Spark: the state that a log's records lead to.

The rule is that of `walkit.state`: for each key the record with the newest LSN wins, a delete leaves nothing,
and a record without a key is an event, which keyed state leaves out.

The newest LSN of each key is found by an aggregation of numbers alone, and the records are then picked by it: those of
one log by a bitmap of LSNs that every worker has; rows of unknown origin, and those of a very long log, by a
left-semi join on key and LSN. Spark has no hash aggregation over binary or struct buffers: `max(struct(lsn, value))`,
`max_by` and a window all sort the values instead. After the join the rows that are left are counted, in the
partitions and the order of the join: a DataFrame that has a record twice fails there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, ByteType, DataType, IntegerType, LongType, ShortType

from walkit._internal.arguments import check_whole, refuse
from walkit.record import Kind
from walkit.spark.errors import require_open
from walkit.spark.facts import LogFacts
from walkit.spark.loads import Load, Log, keys_of
from walkit.spark.merge import merged, ranks

COLUMN_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "lsn": (LongType,),
    "kind": (ByteType, ShortType, IntegerType, LongType),
    "key": (BinaryType,),
    "value": (BinaryType,),
}
"""The columns that `replay_rows` reads, and the types each may have."""

ROWS, WORD, BITS = "walkit_rows", "walkit_word", "walkit_bits"
BROADCAST_WORDS = 1 << 21
"""Up to so many words, of 64 LSNs each, go to each worker; see decision 0101."""


def replay(
    log: Log,
    at_lsn: int | None = None,
    *,
    at_time: datetime | None = None,
    only: bytes | Iterable[bytes] | None = None,
    order: Sequence[str] | None = None,
) -> DataFrame:
    """Return the live keys of a log: columns `key`, `value`, and `lsn` of the record that won.

    `at_lsn` is the last LSN that counts, inclusive; 0 is the state before the first record. `at_time`, with a time
    zone, is the last LSN that the log had then (`walkit.lsn_at`). `only` is a key or up to 10,000 that are asked for.

    Of several logs each key belongs to the one log that has it; if two have it, the query fails. With `order`, all
    log ids in the order in which the logs are merged, the last one that has the key wins; a delete there deletes it.

    Lazy, like any DataFrame. Only keys are read to find the newest records, nothing after the LSN that is asked for,
    and no value is shuffled: each worker has the newest LSNs, a bit each, if the log has at most 134 million.

    Raises NotALoadError for a DataFrame that is not a load; HistoryTrimmedError, before Spark does anything, if
    trimming or compaction has dropped records of the state; for a path the errors of `load()`; GapError or
    DivergenceError if the log of a DataFrame was trimmed, compacted or replaced since its load; and OptionsError for
    an LSN that the log does not have, and for an LSN of several logs. Records that `firstLsn` leaves out are left out
    on purpose.
    """
    if at_lsn is not None and at_time is not None:
        refuse("at_time", at_time, "give at_lsn or at_time, not both")
    wanted, of = keys_of(only, "only"), Load.of(log, "replay").until(at_lsn, at_time)
    rank = None if order is None else ranks(order, of.logs)
    if len(of.logs) > 1:
        return merged(of.part(only=wanted).where(F.col("key").isNotNull()), rank)
    if wanted is not None:
        last = with_next(of.part(only=wanted)).where(
            F.col("next").isNull() & (F.col("kind") != int(Kind.DELETE))
        )
        return last.select("key", "value", "lsn")
    if _word_count(of.log, of.end) <= BROADCAST_WORDS:
        return pick_newest(of.part("lsn bigint, key binary"), of.part())
    return _by_join(of.part())


def replay_rows(df: DataFrame, at_lsn: int | None = None) -> DataFrame:
    """Return the state of the records in any DataFrame with columns `lsn`, `kind`, `key`, `value`: unchecked.

    The rows are taken as the records of one log, each once, in any order: no error reports filtered or trimmed
    records. If two rows are the newest record of one key, the query fails and names the key and the LSN.
    OptionsError for a column that is missing or of another type, a stream, and an invalid `at_lsn`.
    """
    require_columns(df, "replay_rows")
    if df.isStreaming:
        refuse("df", "readStream", "replay_rows takes rows that exist, and no stream")
    check_whole(at_lsn, "at_lsn", 0, or_none=True)
    return _by_join(df if at_lsn is None else df.where(F.col("lsn") <= at_lsn))


def with_next(records: DataFrame) -> DataFrame:
    """Return the records that have a key, with the LSN of the next one of their key."""
    rows = (
        records.where(F.col("key").isNotNull()).select("lsn", "kind", "key", "value").withMetadata("lsn", {})
    )
    return rows.withColumn("next", F.lead("lsn").over(Window.partitionBy("key").orderBy("lsn")))


def _by_join(records: DataFrame) -> DataFrame:
    keyed = records.where(F.col("key").isNotNull())
    newest = keyed.groupBy("key").agg(F.max("lsn").alias("lsn"))
    picked = keyed.join(newest, ["lsn", "key"], "left_semi").select("lsn", "kind", "key", "value")
    # Spark computes it where the join's rows are already together and in order: no further shuffle.
    rows = F.count("*").over(Window.partitionBy("lsn", "key"))
    is_live = F.when(F.col(ROWS) == 1, F.col("kind") != int(Kind.DELETE)).otherwise(_twice())
    state = picked.withColumn(ROWS, rows).where(is_live).select("key", "value", "lsn")
    # The rows of a state are no longer the records of a log.
    return state.withMetadata("lsn", {})


def pick_newest(numbers: DataFrame, records: DataFrame) -> DataFrame:
    """Return key, value and LSN of the live keys of `records`, in which no LSN is there twice.

    `numbers` has the columns `lsn` and `key` of the same records. The newest LSN of each key becomes a bit of a word of
    64, and the words are sent to every worker: no value is shuffled or sorted.
    """
    keyed = numbers.where(F.col("key").isNotNull())
    newest = keyed.groupBy("key").agg(F.max("lsn").alias("lsn"))
    bit = F.call_function("shiftleft", F.lit(1).cast("long"), _bit_of("lsn"))
    words = newest.groupBy(_word_number("lsn").alias(WORD)).agg(F.bit_or(bit).alias(BITS))
    found = records.withColumn(WORD, _word_number("lsn")).join(F.broadcast(words), WORD)
    is_newest = F.getbit(BITS, _bit_of("lsn")) == 1
    live = found.where(is_newest & F.col("key").isNotNull() & (F.col("kind") != int(Kind.DELETE)))
    return live.select("key", "value", "lsn").withMetadata("lsn", {})


def _word_number(lsn: str) -> Column:
    return F.shiftright(lsn, 6)


def _bit_of(lsn: str) -> Column:
    return F.col(lsn).bitwiseAND(63).cast("int")


def _word_count(facts: LogFacts, last: int) -> int:
    """Return how many words of 64 LSNs the newest of each key may be in, at most."""
    return (last >> 6) - ((0 if facts.snapshot_lsn else facts.first_lsn) >> 6) + 1


def _twice() -> Column:
    """Return the failure of a query where two rows are the newest record of one key."""
    parts = (
        F.lit("walkit: replay_rows needs each record once; of key 0x"),
        F.hex("key"),
        F.lit(" the DataFrame has "),
        F.col(ROWS).cast("string"),
        F.lit(" rows with the newest LSN "),
        F.col("lsn").cast("string"),
        F.lit(": a log is in it twice, or two logs that have this key"),
    )
    return F.raise_error(F.concat(*parts))


def require_columns(df: DataFrame, what: str) -> None:
    """Raise `OptionsError` unless `df` has the columns of a log's records; `what` names the caller."""
    require_open(df, what)
    found = {field.name: field.dataType for field in df.schema.fields}
    for name, allowed in COLUMN_TYPES.items():
        if name not in found:
            text = f'the DataFrame lacks this column; {what} takes records as spark.read.format("walkit") gives them'
            refuse(name, None, text, list(found))
        if not isinstance(found[name], allowed):
            wanted = allowed[0]().simpleString()
            refuse(name, found[name].simpleString(), f"{what} needs {wanted}")
