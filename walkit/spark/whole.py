"""Whether the records in a DataFrame give a state: known before Spark does anything, or not known."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from walkit.errors import HistoryTrimmedError, OptionsError
from walkit.spark.facts import LogFacts
from walkit.spark.plan import LogRead, Records, records_of

logger = logging.getLogger("walkit.spark")

AS_IT_IS = "df.withMetadata('lsn', {}) takes the records as they are, unchecked"


def require_lsn(at_lsn: object) -> None:
    """Raise `OptionsError` unless it is an LSN, 0, or None."""
    if at_lsn is not None and (type(at_lsn) is not int or at_lsn < 0):
        raise OptionsError(
            f"at_lsn is {at_lsn!r}; give an LSN, or 0 for the state before the first record",
            option="at_lsn",
            wanted=at_lsn,
        )


def require_state(df: DataFrame, at_lsn: int | None, what: str) -> bool:
    """Say whether no two records of `df`, up to `at_lsn`, can have the same LSN, as far as the plan shows it.

    Raises what there is to raise where the records are known not to give a state.

    Known is what column `lsn` carries from `load()`, and what the plan shows: bounds on the LSN, other conditions and
    samples, unions. Where the column carries nothing and the log is still to be seen under `df`, the log
    "walkit.spark" says that nothing was checked; where a load with a schema is to be seen whole, the plan still counts.
    """
    facts, found = LogFacts.of(df), records_of(df)
    several = LogFacts.all_of(df) if facts is None else []
    if several:
        _require_histories(df, several, at_lsn)
    elif facts is None:
        if found.reads:
            logger.warning(
                "column 'lsn' does not carry what load() noted of the log (a custom schema, or a computed "
                "column): whether the records give the state was not checked"
            )
        if is_remote() or any(read.facts is not None for read in found.reads):
            return False  # what was known was taken off
    else:
        _require_history(facts, found.reads, at_lsn)
    if (facts is not None and facts.push_filters) or any(read.pushes for read in found.reads):
        raise OptionsError(
            f"the log was loaded with pushFilters=true, and {what} uses the DataFrame more than once: Spark may give "
            "it the rows of another condition. Load the log without pushFilters; firstLsn and lastLsn bound it safely",
            option="pushFilters",
            wanted=True,
        )
    _require_whole(found, what)
    if facts is not None and (found.unseen or not found.reads):
        logger.warning(
            "the plan does not show all that became of the records (%s): whether some are left out was not checked",
            ", ".join(dict.fromkeys(found.unseen)) or "no log in it",
        )
    return facts is not None and found.have_unique_lsns


def _require_history(facts: LogFacts, reads: Sequence[LogRead], at_lsn: int | None) -> None:
    known = [read for read in reads if read.facts is not None] or [LogRead(facts=facts)]
    logs: dict[str, list[tuple[LogFacts, int]]] = {}
    for read in known:
        noted = read.facts or facts
        last = noted.last_lsn if read.last_lsn is None else min(noted.last_lsn, read.last_lsn)
        logs.setdefault(noted.log_id, []).append((noted, last))
    newest = max(noted.last_lsn for parts in logs.values() for noted, _ in parts)
    if at_lsn is not None and at_lsn > newest:
        raise OptionsError(
            f"there is no state at LSN {at_lsn:,}: the DataFrame holds records up to {newest:,}",
            option="at_lsn",
            wanted=at_lsn,
            stored=newest,
        )
    for parts in logs.values():
        last = max(last for _, last in parts)
        _require_one(parts, last if at_lsn is None else min(last, at_lsn))
    if len(logs) > 1:
        logger.warning(
            "the DataFrame has records of %d logs (%s), whose LSNs do not compare: of a key that is in two of them the "
            "record with the higher LSN counts",
            len(logs),
            ", ".join(logs),
        )


def _require_histories(df: DataFrame, logs: Sequence[LogFacts], at_lsn: int | None) -> None:
    """Raise where one of the logs of a load does not give the state; also where `at_lsn` is of several at once."""
    if at_lsn is not None and "log_id" in df.columns:
        raise OptionsError(
            f"there is no state of several logs at LSN {at_lsn:,}: the LSNs of several do not compare. Take one: "
            "df.where(\"log_id = '...'\").drop('log', 'log_id')",
            option="at_lsn",
            wanted=at_lsn,
        )
    newest = max(noted.last_lsn for noted in logs)
    if at_lsn is not None and at_lsn > newest:
        raise OptionsError(
            f"there is no state at LSN {at_lsn:,}: the DataFrame holds records up to {newest:,}",
            option="at_lsn",
            wanted=at_lsn,
            stored=newest,
        )
    for noted in logs:
        noted.require_state(noted.last_lsn if at_lsn is None else min(noted.last_lsn, at_lsn))


def _require_one(parts: Sequence[tuple[LogFacts, int]], lsn: int) -> None:
    """Raise HistoryTrimmedError where none of several reads of one log begins the state at this LSN."""
    refused: HistoryTrimmedError | None = None
    for noted, _ in parts:
        try:
            noted.require_state(lsn)
        except HistoryTrimmedError as error:
            refused = refused or error
        else:
            return
    if refused is not None:
        raise refused


def _require_whole(found: Records, what: str) -> None:
    if found.left_out and found.reads:
        reasons = "; ".join(dict.fromkeys(found.left_out))
        raise OptionsError(
            f"{what} needs all records of a key, and the DataFrame leaves some out by {reasons}. Give it the records "
            f"as they were loaded, and filter the result; {AS_IT_IS}",
            option="df",
            wanted=reasons,
        )
    if found.twice:
        logs = ", ".join(dict.fromkeys(found.twice))
        raise OptionsError(
            f"{what} needs each record once, and the DataFrame has records of the log {logs} twice, by a union; "
            f"dropDuplicates(['key', 'lsn']) keeps one of each",
            option="df",
            wanted=logs,
        )
