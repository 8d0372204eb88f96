"""A diff counted: how many keys changed and how, in which columns of their values, and the first rows of each change.

`diff_report` counts two states in this process; Spark's workers count a part of the keys each.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from walkit._internal.arguments import check_whole
from walkit.events import EventSink
from walkit.state.diff import (
    CHANGED,
    DELETED,
    DIFF_SCHEMA,
    INSERTED,
    UNCHANGED,
    Side,
    compared,
    narrowed,
    parts_of_side,
)
from walkit.state.diff_report import ColumnChanges, DiffReport, FailedDecode
from walkit.state.exact_state import StateProgress
from walkit.state.reconcile import DELETE
from walkit.state.value_decoder import Columns, Decoder, Undecoded

SAMPLES_MAX = 1_000
SAMPLE_BYTES = 4_096
"""A sample has so many bytes of a value at most."""
COLUMNS_MAX = 10_000
"""So many names of columns are counted in a part of the keys; decoded values may have any."""


def diff_report(
    a: Side,
    b: Side,
    *,
    decoder: Decoder | None = None,
    ignore: Collection[str] = (),
    tolerance: float = 0.0,
    samples: int = 5,
    progress: StateProgress | None = None,
) -> DiffReport:
    """Return the counts, samples and most changed columns of `walkit.diff(a, b)`; for sides and errors see there.

    With a `decoder` (json, arrow, or a function of bytes that returns a mapping) changed values are compared by
    column: without the columns in `ignore`, and numbers that differ by at most `tolerance` are equal. A key whose
    columns are all equal counts as unchanged, and as tolerated. One that cannot be decoded stays changed and is
    counted; the failure at the lowest LSN is in the report, and is the event `walkit.diff.undecoded`. `samples` is how
    many rows of each change the report has, with at most 4,096 bytes of each value. OptionsError for an invalid
    decoder, tolerance or number of samples.
    """
    began = time.perf_counter()
    columns = report_columns(decoder, ignore, tolerance, samples)
    left, right, found = compared(a, b, progress, unchanged=True)
    found, sums = counted(left, right, found, columns)
    return sums.report(_named(a), _named(b), first_rows([first(found, samples)], samples), began)


def report_columns(
    decoder: Decoder | None, ignore: Collection[str], tolerance: float, samples: int
) -> Columns | None:
    """Return how the values of a report are compared; OptionsError for an invalid argument."""
    check_whole(samples, "samples", 0, SAMPLES_MAX)
    return Columns.of(decoder, ignore, tolerance)


def _named(side: Side) -> str:
    source, lsn = parts_of_side(side)
    log = getattr(source, "log", source)
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else getattr(log, "location", "a state")
    return f"{name}" if lsn is None else f"{name} at LSN {lsn:,}"


@dataclass(slots=True)
class DiffSums:
    """Counts of a part of the keys, or of all."""

    counts: Counter[str] = field(default_factory=Counter)
    columns: Counter[str] = field(default_factory=Counter)
    largest: dict[str, float] = field(default_factory=dict)
    failure: FailedDecode | None = None
    """The failure of the decoder at the lowest LSN."""

    def add(self, other: dict[str, Any]) -> None:
        """Add the counts of another part, as `to_dict` has them."""
        self.counts.update(other["counts"])
        self.columns.update(other["columns"])
        for name, value in other["largest"].items():
            self.largest[name] = max(value, self.largest.get(name, 0.0))
        if other["failure"] is not None:
            self._keep_first(FailedDecode(**other["failure"]))

    def note_failure(self, found: Undecoded, left_lsn: int, right_lsn: int) -> None:
        """Count a changed key whose values cannot be compared by column."""
        self.counts["undecoded"] += 1
        lsn = left_lsn if found.side == "left" else right_lsn
        self._keep_first(FailedDecode(side=found.side, lsn=lsn, error=found.error))

    def _keep_first(self, failure: FailedDecode) -> None:
        if self.failure is None or failure.lsn < self.failure.lsn:
            self.failure = failure

    def note(self, differences: dict[str, float | None]) -> None:
        """Count the columns in which one key differs."""
        for name, distance in differences.items():
            if name not in self.columns and len(self.columns) >= COLUMNS_MAX:
                continue
            self.columns[name] += 1
            if distance is not None:
                self.largest[name] = max(distance, self.largest.get(name, 0.0))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for `add`."""
        failure = None if self.failure is None else asdict(self.failure)
        return {"counts": self.counts, "columns": self.columns, "largest": self.largest, "failure": failure}

    def report(self, left: str, right: str, samples: Iterable[dict[str, Any]], began: float) -> DiffReport:
        """Return the report of two named sides; emit the event of values that could not be decoded."""
        if self.failure is not None:
            EventSink().emit(
                "walkit.diff.undecoded",
                keys=self.counts["undecoded"],
                first_lsn=self.failure.lsn,
                error=self.failure.error,
            )
        names = sorted(self.columns, key=lambda name: (-self.columns[name], name))
        return DiffReport(
            left=left,
            right=right,
            left_keys=self.counts["left"],
            right_keys=self.counts["right"],
            inserted=self.counts[INSERTED],
            deleted=self.counts[DELETED],
            changed=self.counts[CHANGED],
            unchanged=self.counts[UNCHANGED],
            tolerated=self.counts["tolerated"],
            undecoded=self.counts["undecoded"],
            failed_decode=self.failure,
            columns=tuple(
                ColumnChanges(name=name, keys=self.columns[name], largest=self.largest.get(name))
                for name in names
            ),
            samples=tuple(samples),
            seconds=time.perf_counter() - began,
        )


def counted(
    left: pa.Table, right: pa.Table, found: pa.Table, columns: Columns | None
) -> tuple[pa.Table, DiffSums]:
    """Return a diff of two states with its unchanged keys, some of them by their columns, and the counts."""
    sums = DiffSums()
    for name, state in (("left", left), ("right", right)):
        deleted = pc.sum(pc.equal(state["kind"], DELETE)).as_py() if "kind" in state.column_names else 0
        sums.counts[name] += len(state) - (deleted or 0)
    if columns is not None:
        found = _by_column(found, columns, sums)
    for row in pc.value_counts(found["change"]).to_pylist():
        sums.counts[row["values"]] += row["counts"]
    return found, sums


def _by_column(found: pa.Table, columns: Columns, sums: DiffSums) -> pa.Table:
    """Return the diff with the keys unchanged whose columns are all equal, and count the columns that differ."""
    change = found["change"].to_pylist()
    changed = [row for row, letter in enumerate(change) if letter == CHANGED]
    for row in changed:
        left, right, left_lsn, right_lsn = (
            found[name][row].as_py() for name in ("left_value", "right_value", "left_lsn", "right_lsn")
        )
        differences = columns.differences(left, right)
        if isinstance(differences, Undecoded):
            sums.note_failure(differences, left_lsn, right_lsn)
        elif differences:
            sums.note(differences)
        else:
            sums.counts["tolerated"] += 1
            change[row] = UNCHANGED
    at = found.column_names.index("change")
    return found.set_column(at, "change", pa.array(change, pa.string()))


def first(found: pa.Table, count: int) -> pa.Table:
    """Return the first rows of each change, with the beginnings of their values."""
    parts = [found.filter(pc.equal(found["change"], letter)).slice(0, count) for letter in "IDC"]
    shown = pa.concat_tables(parts)
    for name in ("left_value", "right_value"):
        cut = pc.binary_slice(shown[name], 0, SAMPLE_BYTES)
        shown = shown.set_column(shown.column_names.index(name), name, cut)
    return narrowed(shown, DIFF_SCHEMA)


def first_rows(tables: Iterable[pa.Table], count: int) -> Iterator[dict[str, Any]]:
    """Yield the first rows by key of each change in tables of `first`."""
    rows = [row for table in tables for row in table.to_pylist()]
    rows.sort(key=lambda row: ("IDC".index(row["change"]), row["key"]))
    taken: Counter[str] = Counter()
    for row in rows:
        if taken[row["change"]] < count:
            taken[row["change"]] += 1
            yield row
