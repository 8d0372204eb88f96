"""`walkit_state` and `walkit_changes`: table functions of SQL, each over one log, in one of Spark's workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.functions import udtf

from walkit._internal.arguments import refuse
from walkit.spark.change_rows import changed
from walkit.spark.columns import RECORD_STRUCT
from walkit.spark.errors import noted
from walkit.spark.facts import LogFacts
from walkit.spark.options import PLANNED
from walkit.spark.scan import Scan
from walkit.spark.source import plan_load
from walkit.spark.workers import make_importable
from walkit.state.latest_reducer import FinalState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FUNCTION_LSNS_MAX = 1 << 20
"""A function reads so many LSNs at most: one worker does it all, and has the state in memory."""


def sql_functions(spark: SparkSession) -> None:
    """Give a session the table functions `walkit_state(path, at_lsn)` and `walkit_changes(path, first_lsn, last_lsn)`.

    ::

        SELECT * FROM walkit_state('/data/orders.log', 1000)
        SELECT * FROM walkit_changes('/data/orders.log', 901, 1000)

    Their rows are those of `replay` and `changes`; the last LSN may be left out. One worker answers: of a log with more
    than 1,048,576 LSNs up to there it is an OptionsError, which names the function for DataFrames.
    """
    make_importable(spark)
    for name, function, columns in (
        ("walkit_state", StateFunction, "key binary, value binary, lsn bigint"),
        ("walkit_changes", ChangesFunction, CHANGES_COLUMNS),
    ):
        made: Any = udtf(function, returnType=columns)
        spark.udtf.register(name, made)


CHANGES_COLUMNS = "key binary, change string, pre_value binary, post_value binary, lsn bigint"


class StateFunction:
    """`walkit_state`."""

    def eval(self, path: str, at_lsn: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield key, value and LSN of each live key."""
        with noted():
            facts, batches = _records(path, at_lsn, "walkit.spark.replay(path, at_lsn)")
            facts.require_state(facts.last_lsn)
            state = FinalState()
            for batch in batches:
                state.add(batch)
            for row in state.live().to_pylist():
                yield row["key"], row["value"], row["lsn"]


class ChangesFunction:
    """`walkit_changes`."""

    def eval(self, path: str, first_lsn: int, last_lsn: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of `walkit.spark.changes`, in order of LSNs."""
        with noted():
            if first_lsn is None or first_lsn < 1 or (last_lsn or first_lsn) < first_lsn:
                refuse(
                    "first_lsn", first_lsn, f"give LSNs in order, from 1; last_lsn is {last_lsn}", last_lsn
                )
            facts, batches = _records(path, last_lsn, "walkit.spark.changes(path, first_lsn, last_lsn)")
            facts.require_records(first_lsn)
            before, late = FinalState(), []
            for batch in batches:
                is_early = pc.less(batch.column("lsn"), first_lsn)
                before.add(batch.filter(is_early))
                late.append(batch.filter(pc.invert(is_early)))
            for row in changed(before, late):
                yield tuple(row.values())


def _records(path: str, last_lsn: int | None, more: str) -> tuple[LogFacts, Iterator[pa.RecordBatch]]:
    """Return the facts of a log, and its records with keys up to an LSN; OptionsError if they are too many."""
    (whole,) = plan_load({"path": path, "snapshot": "true"}).plans
    assert isinstance(whole, Scan)
    facts, end = whole.facts, whole.facts.last_lsn if last_lsn is None else last_lsn
    if not 0 <= end <= facts.last_lsn:
        refuse("last_lsn", end, f"the log ends at {facts.last_lsn:,}", facts.last_lsn)
    if end - facts.first_lsn >= FUNCTION_LSNS_MAX:
        text = f"the log has more than {FUNCTION_LSNS_MAX:,} LSNs up to {end:,}, too many for one worker"
        refuse("path", path, f"{text}; use {more}, which all workers read")
    reader: Any = plan_load({"path": path, PLANNED: json.dumps([[asdict(facts), end]])}).reader(RECORD_STRUCT)
    return replace(facts, last_lsn=end), (
        batch.filter(batch.column("key").is_valid())
        for part in reader.partitions()
        for batch in reader.read(part)
    )
