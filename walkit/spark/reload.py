"""A load made again with fewer columns or LSNs: Spark prunes neither columns nor records of a source written in Python.

Only for a DataFrame that is a load as it is. The second load has its own view of the log, so it counts only while the
log is known to give the same records: same log and history, same oldest record, nothing compacted in between. What is
trimmed or compacted after that is an error of either load when it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader

from walkit.spark.facts import SOURCE_NAME, TOUCHED_KEY, LogFacts
from walkit.spark.options import NEWEST_OF, PLANNED, TOUCHED_FROM
from walkit.spark.plan import is_load

RELOAD_LSNS = 1 << 17
"""A log of no more LSNs is not loaded again: that would save less than it takes."""


def reload(
    df: DataFrame,
    columns: str,
    *,
    first_lsn: int | None = None,
    last_lsn: int | None = None,
    newest_of: Sequence[int] = (),
) -> tuple[DataFrame, DataFrame] | None:
    """Return two loads of the log of `df` up to `last_lsn`: one with these columns only, one with all of them.

    `columns` is the text of a schema. With `first_lsn` the first load begins there; with `newest_of` it has of each
    partition the newest record of each key up to each of these LSNs. None where `df` is not a load as it is, is cached,
    has few records or those of a snapshot, or where the log was trimmed or compacted since it was made.
    """
    facts = _facts_of_load(df)
    if facts is None:
        return None
    try:
        given = _reader(df, facts, max(first_lsn or 0, facts.from_lsn), last_lsn).schema(columns)
        if newest_of:
            given = given.option(NEWEST_OF, ",".join(map(str, newest_of)))
        narrow = given.load(facts.path)
        # The last one: a log that is as it was for this load was so for the one before, too.
        whole = _reader(df, facts, facts.from_lsn, last_lsn).load(facts.path)
    except PySparkException:
        return None  # the load that there is says what is wrong, when it is read
    return (narrow, whole) if _is_same(facts, whole, last_lsn) else None


def reload_touched(df: DataFrame, first_lsn: int, last_lsn: int | None) -> DataFrame | None:
    """Return a load of the log of `df` up to `last_lsn`, of the keys alone that a record from `first_lsn` on has.

    Of the records of such a key before `first_lsn` it has the newest of each partition, without its time. None where
    `reload` would return None, and where the keys are found better by Spark: each reader of a partition reads the
    records from `first_lsn` on for itself.
    """
    facts = _facts_of_load(df)
    if facts is None:
        return None
    try:
        given = _reader(df, facts, facts.from_lsn, last_lsn)
        found = given.option(TOUCHED_FROM, first_lsn).load(facts.path)
    except PySparkException:
        return None
    is_narrowed = TOUCHED_KEY in found.schema["lsn"].metadata
    return found if is_narrowed and _is_same(facts, found, last_lsn) else None


def _facts_of_load(df: DataFrame) -> LogFacts | None:
    """Return what the load noted; None where `df` is not one that can be made again, or where that saves little."""
    facts = LogFacts.of(df)
    if facts is None or not facts.path or not facts.epoch_id or facts.push_filters or facts.snapshot_lsn:
        return None
    if facts.last_lsn - facts.first_lsn < RELOAD_LSNS or df.storageLevel.useMemory or df.storageLevel.useDisk:
        return None
    return facts if is_load(df) else None


def _reader(df: DataFrame, facts: LogFacts, from_lsn: int, last_lsn: int | None) -> DataFrameReader:
    planned = f"{facts.log_id},{facts.epoch_id},{facts.last_lsn}"
    last = _last(facts, last_lsn)
    given = df.sparkSession.read.format(SOURCE_NAME).option(PLANNED, planned).option("lastLsn", last)
    for name, number in (("partitions", facts.partitions), ("firstLsn", from_lsn)):
        given = given.option(name, number) if number else given
    return given


def _last(facts: LogFacts, last_lsn: int | None) -> int:
    return facts.last_lsn if last_lsn is None else min(last_lsn, facts.last_lsn)


def _is_same(facts: LogFacts, load: DataFrame, last_lsn: int | None) -> bool:
    """Return whether the log has the history still that `facts` says."""
    found = LogFacts.of(load)
    if found is None or found.last_lsn != _last(facts, last_lsn):
        return False
    return replace(found, last_lsn=facts.last_lsn, epoch_id=facts.epoch_id) == facts
