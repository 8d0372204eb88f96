"""`walkit_state` and `walkit_changes`: table functions of SQL, each over one log, in one of Spark's workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import udtf

from walkit._internal.arguments import refuse
from walkit.objects.entrance import open_log
from walkit.segments.history import LogPoint
from walkit.spark.change_rows import changes_of
from walkit.spark.errors import noted
from walkit.spark.object_log import seen_at
from walkit.spark.options import local_path, read_options
from walkit.spark.scan import parts_of, plan_log
from walkit.spark.workers import make_importable
from walkit.state.state_at import exact_state

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
            place = local_path(path)
            end = _last_of(place, at_lsn, "at_lsn", "walkit.spark.replay(path, at_lsn)")
            for row in exact_state(open_log(place, "r"), end).records.live().to_pylist():
                yield row["key"], row["value"], row["lsn"]


class ChangesFunction:
    """`walkit_changes`."""

    def eval(self, path: str, first_lsn: int, last_lsn: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of `walkit.spark.changes`, in order of LSNs."""
        with noted():
            if first_lsn is None or not 1 <= first_lsn <= (last_lsn or first_lsn):
                text = f"give LSNs in order, from 1; last_lsn is {last_lsn}"
                refuse("first_lsn", first_lsn, text, last_lsn)
            place = local_path(path)
            more = "walkit.spark.changes(path, first_lsn, last_lsn)"
            end = _last_of(place, last_lsn, "last_lsn", more)
            scan = plan_log(place, read_options({"path": place, "lastLsn": end}))
            (part,) = parts_of(scan.manifest, end, [scan.ranges], scan.bulks)
            records = part.batches(place, first_lsn=first_lsn, last_lsn=end)
            for batch in changes_of(place, first_lsn, records, LogPoint.of(scan.manifest, end)):
                yield from (tuple(row.values()) for row in batch.to_pylist())


def _last_of(place: str, last_lsn: int | None, option: str, more: str) -> int:
    """Return the last LSN that counts; OptionsError if the log ends before it, or has too many LSNs up to there."""
    seen = seen_at(place)
    view, newest = seen.view, seen.last_lsn
    end = newest if last_lsn is None else last_lsn
    if not 0 <= end <= newest:
        refuse(option, end, f"the log ends at {newest:,}", newest)
    if end - view.first_lsn >= FUNCTION_LSNS_MAX:
        text = f"the log has more than {FUNCTION_LSNS_MAX:,} LSNs up to {end:,}, too many for one worker"
        refuse("path", place, f"{text}; use {more}, which all workers read")
    return end
