"""What `load()` notes of a log's history, and whether the records of a DataFrame can tell a state.

The records of a log that was trimmed or compacted do not tell every state. The manifest says which ones they tell, so
`load()` puts what it says into the metadata of column `lsn`, of the same moment as the ranges of frames that it plans.
There it goes with the column through select, where, rename, cache, join and SQL views. A union has that of its first
side.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from walkit.errors import HistoryTrimmedError, OptionsError

logger = logging.getLogger("walkit.spark")

METADATA_KEY = "walkit"
"""Under this name the facts stand in the metadata of the column."""

SOURCE_NAME = "walkit"
"""The name of the data source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """What one `load()` saw of a log: `df.schema["lsn"].metadata["walkit"]`, as a dict of these. LSNs are inclusive."""

    log_id: str
    """16 hexadecimal digits; Spark's metadata have no unsigned numbers of 64 bits."""
    first_lsn: int
    """The oldest LSN that the log then had."""
    last_lsn: int
    """The newest LSN on stable storage, or option `lastLsn`."""
    exact_from_lsn: int
    """Below, trimming or compaction has dropped what states are made of."""
    snapshot_lsn: int
    """The records begin with the snapshot at this LSN; 0 where they are the log's alone."""
    from_lsn: int
    """Option `firstLsn`; 0 where it was not given."""

    def to_metadata(self) -> dict[str, Any]:
        """Return the metadata of the column."""
        return {METADATA_KEY: asdict(self)}

    @classmethod
    def of(cls, df: DataFrame) -> LogFacts | None:
        """Return what column `lsn` carries; None where it carries nothing."""
        found = df.schema["lsn"].metadata.get(METADATA_KEY)
        if not isinstance(found, dict) or set(found) != {f.name for f in fields(cls)}:
            return None
        return cls(**found)

    def require_state(self, lsn: int) -> None:
        """Raise HistoryTrimmedError where the records do not tell the state at this LSN.

        With `firstLsn` the records from there on are asked for, and not the state before them.
        """
        if lsn <= 0 or lsn == self.snapshot_lsn:
            return
        if lsn < self.exact_from_lsn:
            raise self._refusal(lsn, self.exact_from_lsn)
        begun = self.first_lsn == 1 or self.from_lsn or 0 < self.snapshot_lsn < lsn
        if not begun:
            raise self._refusal(1, self.first_lsn)

    def _refusal(self, wanted: int, exact_from_lsn: int) -> HistoryTrimmedError:
        error = HistoryTrimmedError(wanted, exact_from_lsn)
        error.add_note(
            "The records in the DataFrame do not tell this state. A snapshot may: load the log with option "
            "snapshot=true, and with lastLsn for the one nearest to an LSN."
        )
        return error


def require_lsn(at_lsn: object) -> None:
    """Raise `OptionsError` unless it is an LSN, 0, or None."""
    if at_lsn is not None and (type(at_lsn) is not int or at_lsn < 0):
        raise OptionsError(
            f"at_lsn is {at_lsn!r}; give an LSN, or 0 for the state before the first record",
            option="at_lsn",
            wanted=at_lsn,
        )


def require_state(df: DataFrame, at_lsn: int | None) -> None:
    """Raise what there is to raise where the records of `df`, up to `at_lsn`, are known not to tell a state.

    Known is what column `lsn` carries from `load()`, and conditions on it that bound it from above. Where it carries
    nothing and the log is still to be seen behind `df`, the log "walkit.spark" says that nothing was checked.
    """
    facts = LogFacts.of(df)
    if facts is None:
        if _reads_a_log(df):
            logger.warning(
                "column 'lsn' does not carry what load() noted of the log (a schema of one's own, or a computed "
                "column): whether the records tell the state was not checked"
            )
        return
    if at_lsn is not None and at_lsn > facts.last_lsn:
        raise OptionsError(
            f"there is no state at LSN {at_lsn:,}: the DataFrame holds records up to {facts.last_lsn:,}",
            option="at_lsn",
            wanted=at_lsn,
            stored=facts.last_lsn,
        )
    bounds = [facts.last_lsn, *_upper_bounds(df)]
    facts.require_state(min(bounds if at_lsn is None else [*bounds, at_lsn]))


def _reads_a_log(df: DataFrame) -> bool:
    if is_remote():
        return False
    leaves = df._jdf.queryExecution().analyzed().collectLeaves()
    relations = (leaves.apply(n) for n in range(leaves.size()))
    return any(
        leaf.getClass().getSimpleName() == "DataSourceV2Relation" and leaf.name().strip() == SOURCE_NAME
        for leaf in relations
    )


# Class names of Spark's expressions, by where the LSN stands; the value is what is taken off for the last LSN.
_LSN_LEFT = {"LessThan": 1, "LessThanOrEqual": 0, "EqualTo": 0, "EqualNullSafe": 0}
_LSN_RIGHT = {"GreaterThan": 1, "GreaterThanOrEqual": 0, "EqualTo": 0, "EqualNullSafe": 0}


def _upper_bounds(df: DataFrame) -> Iterator[int]:
    """Yield the LSNs that no row of `df` can be above, as far as its conditions say so in a simple way.

    Spark knows the conditions that hold for every row of a plan; over Spark Connect they are not to be had.
    """
    if is_remote():
        return
    conditions = df._jdf.queryExecution().analyzed().constraints().iterator()
    while conditions.hasNext():
        yield from _bounds_of(conditions.next())


def _bounds_of(condition: Any) -> Iterator[int]:
    kind = condition.getClass().getSimpleName()
    if kind in _LSN_LEFT and _is_lsn(condition.left()) and condition.right().foldable():
        yield from _number(condition.right(), _LSN_LEFT[kind])
    if kind in _LSN_RIGHT and _is_lsn(condition.right()) and condition.left().foldable():
        yield from _number(condition.left(), _LSN_RIGHT[kind])
    if kind == "Between" and _is_lsn(condition.input()) and condition.upper().foldable():
        yield from _number(condition.upper(), 0)


def _is_lsn(expression: Any) -> bool:
    return bool(expression.getClass().getSimpleName() == "AttributeReference" and expression.name() == "lsn")


def _number(expression: Any, off: int) -> Iterator[int]:
    value = expression.eval(None)
    if type(value) is int:
        yield value - off
