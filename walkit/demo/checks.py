"""Checks of the demo's observations: pure, so that each check can be shown to fail.

Every state is judged by the oracle, which pandas computes from the CSV and the acknowledgements. A check that compared
nothing did not hold.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from walkit.workload.child import ChildOutcome
from walkit.workload.expected_state import (
    Changes,
    OracleReport,
    change_counts,
    check_recovered,
    compare_changes,
    compare_states,
    expected_changes,
    state_after,
)

if TYPE_CHECKING:
    import pandas as pd

State = Mapping[bytes, bytes]

AFTER_RECOVERY: Final = (b"demo/after-recovery", b"one more")
"""Key and value of the record that is written after the recovery."""

STORE_STATE: Final = "the Store's final state"
ONE_RECORD_EACH: Final = "every operation is one record"
KILLED_AT_WORK: Final = "the kill hit the child in mid-stream"
RECOVERED_STATE: Final = "the state recovered after the kill"
NOTHING_MISSING: Final = "no acknowledged record is missing, none is invented"
GOES_ON: Final = "the log continues after the recovery"
REPLICA_KILLED: Final = "the replica was killed in mid-stream, fell behind, and caught up"
REPLICA_RECORDS: Final = "the replica has the records of the primary, every one"
REPLICA_STATE: Final = "the replica's state"
COMPACTED: Final = "checkpoint and compaction made the log smaller and left its state"
JOINED: Final = "a new replica gets the compacted log by itself, and its state"
PAST_STATES: Final = "the Store's states at two LSNs, after the compaction"
SPARK_STATE: Final = "the state that Spark replays from the compacted log"
SPARK_PAST: Final = "the states that Spark replays at two LSNs"
SPARK_CHANGES: Final = "what Spark finds inserted, deleted and changed between two LSNs"
SPARK_REPLICA: Final = "Spark finds no difference between primary and replica"
SPARK_RECOVERED: Final = "the state that Spark replays from the recovered log"
SPARK_AGREES: Final = "Spark and the recovered Store agree on every key"

CHECKS: Final = (
    *(STORE_STATE, ONE_RECORD_EACH, KILLED_AT_WORK, RECOVERED_STATE, NOTHING_MISSING, GOES_ON),
    *(REPLICA_KILLED, REPLICA_RECORDS, REPLICA_STATE, COMPACTED, JOINED, PAST_STATES),
    *(SPARK_STATE, SPARK_PAST, SPARK_CHANGES, SPARK_REPLICA, SPARK_RECOVERED, SPARK_AGREES),
)
"""Every check that the demo makes. One that was not made did not hold."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that had to hold, and whether it did."""

    name: str
    ok: bool
    compared: int
    """How many things were compared: keys of states, records of counts."""
    text: str
    oracle: OracleReport | None = None

    @property
    def held(self) -> bool:
        """It did, and it compared something."""
        return self.ok and self.compared > 0


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The demo's observations. Nothing in it comes from the oracle."""

    operations: int
    """Operations of the stream."""
    moments: tuple[int, int]
    """Operations of the stream up to each of the two moments whose states are compared."""
    moment_lsns: tuple[int, int]
    """Last LSN of the Store at these moments."""
    store_state: State
    store_lsn: int
    """Last LSN of the Store that was driven to the end."""
    run_records: int
    """Records that its writers saw acknowledged."""
    outcome: ChildOutcome
    recovered_state: State
    recovered_lsn: int
    """Last LSN that recovery found after the kill."""
    continued_state: State
    """After one more record, `AFTER_RECOVERY`, and another opening."""
    continued_lsn: int
    replica_returncode: int
    """Exit status of the replica that was killed: negative for a signal."""
    replica_killed_lsn: int
    """The replica's LSN when it was killed."""
    replica_behind: int
    """Records that it lacked when it was started again."""
    replica_lsn: int
    """Its LSN in the end."""
    replica_equal_records: int
    """Records of its log, if they are those of the primary, all of them; else 0."""
    replica_state: State
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int
    compacted_state: State
    """The opening after checkpoint and compaction."""
    joined_state: State
    """The state of a new replica of the compacted primary."""
    joined_bootstraps: int
    """How often its log was replaced: once, as the records that it lacked are gone."""
    first_state: State
    second_state: State
    """The Store's states at the two moments, after compaction."""
    spark_state: State
    """Spark's replay of the complete, compacted log."""
    spark_first_state: State
    spark_second_state: State
    """Spark's replay of it at the two moments."""
    spark_changes: Changes
    """Spark's diff between them."""
    spark_replica_counts: Mapping[str, int]
    """Keys by change (N: none) that Spark finds when it compares primary and replica."""
    spark_recovered_state: State
    """Spark's replay of the recovered log."""


def judge(table: pd.DataFrame, seen: Evidence) -> Iterator[Check]:
    """Make every check, in the order of CHECKS. `table` has the operations of the stream, as the oracle makes them."""
    expected = state_after(table)
    # Each part of the stream was driven to its end before the next began.
    first, second = (state_after(table.iloc[:operations]) for operations in seen.moments)
    yield from _driven(table, expected, seen)
    yield from _killed(table, seen)
    yield from _replica(len(table), expected, seen)
    yield _compacted(len(table), expected, seen)
    joined = compare_states(expected, seen.joined_state, subject="the new replica")
    yield Check(
        name=JOINED,
        ok=joined.ok and seen.joined_bootstraps == 1,
        compared=joined.compared,
        text=f"its log came as a whole {seen.joined_bootstraps} time{'s' * (seen.joined_bootstraps != 1)}; {joined}",
        oracle=joined,
    )
    past = [
        compare_states(first, seen.first_state, subject=f"at LSN {seen.moment_lsns[0]:,}"),
        compare_states(second, seen.second_state, subject=f"at LSN {seen.moment_lsns[1]:,}"),
    ]
    yield _of(PAST_STATES, *past)
    yield from _spark(expected, first, second, seen)
    # The log that Spark read had gone on: with one more record, and its tombstone.
    yield _of(SPARK_RECOVERED, _recovered(table, seen.outcome, seen.spark_recovered_state, "Spark"))
    yield _of(SPARK_AGREES, compare_states(seen.recovered_state, seen.spark_recovered_state, subject="Spark"))


def _driven(table: pd.DataFrame, expected: State, seen: Evidence) -> Iterator[Check]:
    yield _of(STORE_STATE, compare_states(expected, seen.store_state, subject="the Store"))
    yield Check(
        name=ONE_RECORD_EACH,
        ok=seen.operations == len(table) == seen.store_lsn == seen.run_records
        and seen.moments == seen.moment_lsns,
        compared=seen.operations,
        text=f"{seen.operations:,} operations, {len(table):,} known to the oracle; "
        f"{seen.run_records:,} acknowledgements, last LSN {seen.store_lsn:,}; "
        f"{' and '.join(f'{n:,}' for n in seen.moments)} operations at the moments to compare, "
        f"LSN {' and '.join(f'{lsn:,}' for lsn in seen.moment_lsns)}",
    )


def _killed(table: pd.DataFrame, seen: Evidence) -> Iterator[Check]:
    acked, sent = int(seen.outcome.acknowledged.sum()), int(seen.outcome.submitted.sum())
    yield Check(
        name=KILLED_AT_WORK,
        ok=seen.outcome.killed and 0 < acked < seen.operations,
        compared=acked,
        text=f"exit status {seen.outcome.returncode}, {acked:,} of {seen.operations:,} operations acknowledged",
    )
    yield _of(RECOVERED_STATE, _recovered(table, seen.outcome, seen.recovered_state, "the recovered Store"))
    yield Check(
        name=NOTHING_MISSING,
        ok=acked <= seen.recovered_lsn <= sent,
        compared=acked,
        text=f"{acked:,} acknowledged <= {seen.recovered_lsn:,} recovered <= {sent:,} submitted",
    )
    key, value = AFTER_RECOVERY
    again = compare_states({**seen.recovered_state, key: value}, seen.continued_state, subject="opened again")
    yield Check(
        name=GOES_ON,
        ok=again.ok and seen.continued_lsn == seen.recovered_lsn + 1,
        compared=again.compared,
        text=f"{again}; one more record after LSN {seen.recovered_lsn:,} is LSN {seen.continued_lsn:,}",
        oracle=again,
    )


def _replica(records: int, expected: State, seen: Evidence) -> Iterator[Check]:
    yield Check(
        name=REPLICA_KILLED,
        ok=seen.replica_returncode == -signal.SIGKILL
        and 0 < seen.replica_killed_lsn < records == seen.replica_lsn
        and seen.replica_behind > 0,
        compared=seen.replica_behind,
        text=f"exit status {seen.replica_returncode} at LSN {seen.replica_killed_lsn:,}; {seen.replica_behind:,} "
        f"records behind when it was started again; in the end at LSN {seen.replica_lsn:,} of {records:,}",
    )
    yield Check(
        name=REPLICA_RECORDS,
        ok=seen.replica_equal_records == records,
        compared=seen.replica_equal_records,
        text=f"{seen.replica_equal_records:,} of {records:,} records: LSN, kind, key, value and timestamp",
    )
    yield _of(REPLICA_STATE, compare_states(expected, seen.replica_state, subject="the replica"))


def _compacted(records: int, expected: State, seen: Evidence) -> Check:
    left = compare_states(expected, seen.compacted_state, subject="the Store, opened again")
    return Check(
        name=COMPACTED,
        ok=left.ok
        and 0 < seen.records_after < seen.records_before == records
        and 0 < seen.bytes_after < seen.bytes_before,
        compared=left.compared,
        text=f"{seen.records_before:,} records to {seen.records_after:,}, {seen.bytes_before:,} bytes to "
        f"{seen.bytes_after:,}; {left}",
        oracle=left,
    )


def _spark(expected: State, first: State, second: State, seen: Evidence) -> Iterator[Check]:
    yield _of(SPARK_STATE, compare_states(expected, seen.spark_state, subject="Spark"))
    at = [f"Spark at LSN {lsn:,}" for lsn in seen.moment_lsns]
    yield _of(
        SPARK_PAST,
        compare_states(first, seen.spark_first_state, subject=at[0]),
        compare_states(second, seen.spark_second_state, subject=at[1]),
    )
    wanted = expected_changes(first, second)
    diff = compare_changes(wanted, seen.spark_changes, subject="the diff")
    counts, found = change_counts(wanted), change_counts(seen.spark_changes)
    yield Check(
        name=SPARK_CHANGES,
        ok=diff.ok and counts == found and min(found.values()) > 0,
        compared=diff.compared,
        text=f"{_counts_text(found)}; the oracle: {_counts_text(counts)}; {diff}",
        oracle=diff,
    )
    same = dict(seen.spark_replica_counts)
    compared = sum(same.values())
    yield Check(
        name=SPARK_REPLICA,
        ok=same == {"N": len(expected)},
        compared=compared,
        text=f"{compared:,} keys compared, {compared - same.get('N', 0):,} differ",
    )


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{change} {count:,}" for change, count in counts.items())


def _of(name: str, *reports: OracleReport) -> Check:
    """Return the check that all these reports are ok; it shows the keys of the first that is not."""
    return Check(
        name=name,
        ok=all(report.ok for report in reports),
        compared=min(report.compared for report in reports),
        text="; ".join(map(str, reports)),
        oracle=next((report for report in reports if not report.ok), reports[0]),
    )


def _recovered(table: pd.DataFrame, outcome: ChildOutcome, state: State, subject: str) -> OracleReport:
    return check_recovered(table, outcome.acknowledged, outcome.submitted, state, subject=subject)
