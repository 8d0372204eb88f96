"""What had to hold, judged from what the demo saw: pure, so that each check can be shown to fail.

Every state is judged by the oracle, which pandas computes from the CSV and the acknowledgements. A check that compared
nothing did not hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from walkit.workload.child import ChildOutcome
from walkit.workload.oracle import OracleReport, check_recovered, compare_states, state_after

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
GOES_ON: Final = "the log goes on after the recovery"
SPARK_STATE: Final = "the state that Spark replays from the log"
SPARK_RECOVERED: Final = "the state that Spark replays from the recovered log"
SPARK_AGREES: Final = "Spark and the recovered Store agree on every key"

CHECKS: Final = (
    *(STORE_STATE, ONE_RECORD_EACH, KILLED_AT_WORK, RECOVERED_STATE, NOTHING_MISSING),
    *(GOES_ON, SPARK_STATE, SPARK_RECOVERED, SPARK_AGREES),
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
    """What the demo saw. Nothing in it comes from the oracle."""

    operations: int
    """Operations of the stream."""
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
    spark_state: State
    """What Spark replays from the log that was driven to the end."""
    spark_recovered_state: State
    """What Spark replays from the recovered log."""


def judge(table: pd.DataFrame, seen: Evidence) -> Iterator[Check]:
    """Make every check, in the order of CHECKS. `table` has the operations of the stream, as the oracle makes them."""
    expected = state_after(table)
    acked, sent = int(seen.outcome.acknowledged.sum()), int(seen.outcome.submitted.sum())
    yield _of(STORE_STATE, compare_states(expected, seen.store_state, subject="the Store"))
    yield Check(
        name=ONE_RECORD_EACH,
        ok=seen.operations == len(table) == seen.store_lsn == seen.run_records,
        compared=seen.operations,
        text=f"{seen.operations:,} operations, {len(table):,} known to the oracle; "
        f"{seen.run_records:,} acknowledgements, last LSN {seen.store_lsn:,}",
    )
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
    yield _of(SPARK_STATE, compare_states(expected, seen.spark_state, subject="Spark"))
    # The log that Spark read had gone on: with one more record, and its tombstone.
    yield _of(SPARK_RECOVERED, _recovered(table, seen.outcome, seen.spark_recovered_state, "Spark"))
    yield _of(SPARK_AGREES, compare_states(seen.recovered_state, seen.spark_recovered_state, subject="Spark"))


def _of(name: str, report: OracleReport) -> Check:
    return Check(name=name, ok=report.ok, compared=report.compared, text=str(report), oracle=report)


def _recovered(table: pd.DataFrame, outcome: ChildOutcome, state: State, subject: str) -> OracleReport:
    return check_recovered(table, outcome.acknowledged, outcome.submitted, state, subject=subject)
