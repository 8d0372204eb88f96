"""Replay in Spark: the state that a log's records lead to.

The rule is that of `walkit.state`: for each key the record with the newest LSN wins, a delete leaves nothing,
and a record without a key is an event, which is no part of keyed state.

The newest LSN of each key is found by an aggregation of numbers alone, and the records are then picked by it: where the
plan shows one read of one log, in which it is unique, by a bitmap of LSNs that every worker has, or, for a very long
log, by a left-semi join on the LSN; else by a left-semi join on key and LSN.
Spark has no hash aggregation over binary or struct buffers: `max(struct(lsn, value))`, `max_by` and a window all
sort the values instead. After a join on key and LSN the rows that are left are counted, where the join has put and
sorted them: a DataFrame that has a record twice fails there, for any reason (a union, a view, Connect).
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, ByteType, DataType, IntegerType, LongType, ShortType

from walkit.errors import OptionsError
from walkit.record import Kind
from walkit.spark.errors import require_open
from walkit.spark.facts import LogFacts
from walkit.spark.merge import LOG_ID, merged
from walkit.spark.reload import reload
from walkit.spark.whole import require_lsn, require_state

COLUMN_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "lsn": (LongType,),
    "kind": (ByteType, ShortType, IntegerType, LongType),
    "key": (BinaryType,),
    "value": (BinaryType,),
}
"""The columns that replay reads, and the types each may have."""


def replay(
    df: DataFrame, at_lsn: int | None = None, *, logs: Sequence[str] | None = None, keys: int | None = None
) -> DataFrame:
    """Return the live keys of the log in `df`: columns `key`, `value`, and `lsn` of the record that won.

    `df` has the columns of `walkit.RECORD_SCHEMA` (more do no harm) and holds records of one log, each once; in any
    order, from the log's first record or from a snapshot's worth of puts on. `at_lsn` stops the replay after this LSN,
    inclusive; 0 is the state before the first record.

    Records of several logs may come together where no key is in two of them: their LSNs do not compare. Where `df` has
    a column `log_id`, a key that two logs have fails the query, or with `logs`, the log ids in the order in which they
    are merged, has the record of the last log that has it; a delete there deletes it. Records of a log that is not
    named fail the query.

    Lazy, like any DataFrame; no Python worker beside those that read the log. The newest LSN of each key is sent to
    every worker as a bit, and no value is shuffled, where they are in at most `BROADCAST_WORDS` words of 64 LSNs: the
    log has no more LSNs, or `keys`, as many keys as there may be, is at most that. Else one shuffle by key and one by
    LSN. Of a load as it is, only keys are read to find them, and nothing after `at_lsn`.

    Raises HistoryTrimmedError, before Spark does anything, where trimming or compaction has dropped what the state is
    made of: option `snapshot` of `load()` may help. That is known from what `load()` notes in the metadata of column
    `lsn` (`walkit.spark.facts`), and from conditions such as `lsn <= 7` on the DataFrame. Records that were left out
    below, by `firstLsn` or a condition, are taken as left out on purpose. Raises `OptionsError` where the plan shows
    that the DataFrame leaves out other records, as `where("kind = 1")`, a sample or a limit does, that it has a log's
    records twice, or that the log was loaded with `pushFilters`; for a column that is missing or of another type; and
    for an `at_lsn` that is not an LSN or that the records do not reach.

    Nothing is known of a DataFrame whose `lsn` was computed anew, that was loaded with a custom schema or made
    from rows; `df.withMetadata("lsn", {})` takes off what is known. What the plan does not show, the data do: where two
    rows are the newest record of one key, Spark fails the query in words that name the key and the LSN.
    """
    if keys is not None and (type(keys) is not int or keys < 0):
        raise OptionsError(f"keys is {keys!r}; give how many there may be", option="keys", wanted=keys)
    records, have_unique_lsns = records_up_to(df, at_lsn, "replay")
    keyed = records.where(F.col("key").isNotNull())
    if logs is not None or LOG_ID in df.columns:
        return merged(keyed, logs)
    newest = keyed.groupBy("key").agg(F.max("lsn").alias("lsn"))
    if have_unique_lsns:
        if _words(LogFacts.of(df), at_lsn, keys) <= BROADCAST_WORDS:
            again = reload(df, "lsn bigint, key binary", last_lsn=at_lsn)
            numbers, whole = (keyed, keyed) if again is None else again
            return pick_newest(numbers, whole)
        picked = keyed.join(newest.select("lsn"), "lsn", "left_semi")
        live = picked.where(F.col("kind") != int(Kind.DELETE)).select("key", "value", "lsn")
        return live.withMetadata("lsn", {})
    picked = keyed.join(newest, ["lsn", "key"], "left_semi").select("lsn", "kind", "key", "value")
    # Spark computes it where the join's rows are already together and in order: no further shuffle.
    rows = F.count("*").over(Window.partitionBy("lsn", "key"))
    is_live = F.when(F.col(ROWS) == 1, F.col("kind") != int(Kind.DELETE)).otherwise(_twice())
    state = picked.withColumn(ROWS, rows).where(is_live).select("key", "value", "lsn")
    # The LSNs of a state are no log's records any more.
    return state.withMetadata("lsn", {})


def pick_newest(numbers: DataFrame, records: DataFrame) -> DataFrame:
    """Return key, value and LSN of the live keys of `records`, in which no LSN is there twice.

    `numbers` has the columns `lsn` and `key` of the same records. The newest LSN of each key becomes a bit of a word of
    64, and the words are sent to every worker: no value is shuffled or sorted.
    """
    keyed = numbers.where(F.col("key").isNotNull())
    newest = keyed.groupBy("key").agg(F.max("lsn").alias("lsn"))
    bit = F.call_function("shiftleft", F.lit(1).cast("long"), _bit_of("lsn"))
    words = newest.groupBy(_word_of("lsn").alias(WORD)).agg(F.bit_or(bit).alias(BITS))
    found = records.withColumn(WORD, _word_of("lsn")).join(F.broadcast(words), WORD)
    is_newest = F.getbit(BITS, _bit_of("lsn")) == 1
    live = found.where(is_newest & F.col("key").isNotNull() & (F.col("kind") != int(Kind.DELETE)))
    return live.select("key", "value", "lsn").withMetadata("lsn", {})


def of_touched_keys(records: DataFrame, numbers: DataFrame, first_lsn: int, *, few: bool) -> DataFrame:
    """Return the records of the keys that a record from `first_lsn` on touches.

    `numbers` has the columns `lsn` and `key` of the records from there on, or of all. With `few`, which is for at most
    `BROADCAST_LSNS` touched keys, a hash of 8 bytes of each goes to every worker, whatever the size of keys, and a key
    that shares the hash of a touched one is there, too.
    """
    touched = numbers.where(F.col("key").isNotNull() & (F.col("lsn") >= first_lsn))
    if not few:
        return records.join(touched.select("key").distinct(), "key", "left_semi")
    hashes = touched.select(F.xxhash64("key").alias(HASH)).distinct()
    return records.join(F.broadcast(hashes), F.xxhash64("key") == F.col(HASH), "left_semi")


def _word_of(lsn: str) -> Column:
    return F.shiftright(lsn, 6)


def _bit_of(lsn: str) -> Column:
    return F.col(lsn).bitwiseAND(63).cast("int")


def _words(facts: LogFacts | None, at_lsn: int | None, keys: int | None) -> int:
    """Return how many words of 64 LSNs the newest of each key may be in, at most."""
    if facts is None:
        return BROADCAST_WORDS + 1 if keys is None else keys
    last = facts.last_lsn if at_lsn is None else min(at_lsn, facts.last_lsn)
    words = (last >> 6) - ((0 if facts.snapshot_lsn else facts.first_lsn) >> 6) + 1
    return words if keys is None else min(words, keys)


ROWS, WORD, BITS, HASH = "walkit_rows", "walkit_word", "walkit_bits", "walkit_hash"
BROADCAST_LSNS = 1 << 17
"""The hashes of up to so many keys that a range touches go to each worker, in place of a shuffle; see decision 0098."""
BROADCAST_WORDS = 1 << 21
"""Up to so many words, of 64 LSNs each, go to each worker; see decision 0101."""


def _twice() -> Column:
    """Return the failure of a query where two rows are the newest record of one key."""
    words = (
        F.lit("walkit: replay needs each record once; of key 0x"),
        F.hex("key"),
        F.lit(" the DataFrame has "),
        F.col(ROWS).cast("string"),
        F.lit(" rows with the newest LSN "),
        F.col("lsn").cast("string"),
        F.lit(": a log is in it twice, or two logs that have this key"),
    )
    return F.raise_error(F.concat(*words))


def records_up_to(df: DataFrame, at_lsn: int | None, what: str) -> tuple[DataFrame, bool]:
    """Return the records up to `at_lsn`, inclusive, and whether each is known to have a distinct LSN.

    Raises as `replay` does where no state can be made of them.
    """
    require_columns(df, what)
    require_lsn(at_lsn)
    if df.isStreaming:
        raise OptionsError(
            f"{what} takes the records that a log has now, and no stream: spark.read in place of spark.readStream",
            option="df",
            wanted="readStream",
        )
    have_unique_lsns = require_state(df, at_lsn, what)
    return df if at_lsn is None else df.where(F.col("lsn") <= at_lsn), have_unique_lsns


def require_columns(df: DataFrame, what: str) -> None:
    """Raise `OptionsError` unless `df` has the columns of a log's records; `what` names the caller."""
    require_open(df, what)
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
