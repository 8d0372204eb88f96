"""The fifth step: Spark replays the logs to their states, at two LSNs as well, and diffs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walkit.demo.parts import Parts
from walkit.demo.progress_printer import ProgressPrinter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from walkit.workload.expected_state import Changes

WORDS = {"I": "inserted", "D": "deleted", "C": "changed", "N": "unchanged"}
"""The difference of a key, in words."""


def replay_with_spark(out: Path, parts: Parts, printer: ProgressPrinter) -> dict[str, Any]:
    """Return Spark's replays of the driven log, of the recovered one, and of the replica's."""
    from walkit import spark as walkit_spark

    with printer.part("starting Spark", bar=True):
        walkit_spark.session()

    log, lsns = walkit_spark.load(out / "log"), (parts.first_lsn, parts.second_lsn)
    states = {}
    for name, what, place, at_lsn in (
        ("spark_state", "the log", log, None),
        ("spark_first_state", f"the log at LSN {lsns[0]:,}", log, lsns[0]),
        ("spark_second_state", f"the log at LSN {lsns[1]:,}", log, lsns[1]),
        ("spark_recovered_state", "the recovered log", out / "killed-log", None),
    ):
        with printer.part(f"replaying {what}"):
            states[name] = _state(walkit_spark.replay(place, at_lsn))
    with printer.part("changes from the first LSN to the second"):
        changes = _changes(walkit_spark.diff((log, lsns[0]), (log, lsns[1])))
    with printer.part("differences of primary and replica"):
        both = walkit_spark.diff(log, out / "replica-log", unchanged=True)
        counts = {row["change"]: row["count"] for row in both.groupBy("change").count().collect()}
    found = Counter(change for change, _, _ in changes.values())
    printer.print_line(
        f"   from LSN {lsns[0]:,} to {lsns[1]:,}: {_counts_text(found)}; primary and replica: {_counts_text(counts)}"
    )
    return {**states, "spark_changes": changes, "spark_replica_counts": counts}


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[change]:,} {word}" for change, word in WORDS.items() if counts.get(change))


def _state(frame: DataFrame) -> dict[bytes, bytes]:
    rows = frame.select("key", "value").toArrow()
    return dict(zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True))


def _changes(frame: DataFrame) -> Changes:
    rows = frame.select("key", "change", "left_value", "right_value").toArrow()
    keys, *sides = (column.to_pylist() for column in rows.columns)
    return dict(zip(keys, zip(*sides, strict=True), strict=True))
