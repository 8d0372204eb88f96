"""`walkit.spark.diff_report`: a diff summed up in the workers, in one job; only counts and samples reach the driver."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from walkit._arrow import stream_table
from walkit.errors import OptionsError
from walkit.events import EventSink
from walkit.spark.causes import SideLog, with_causes
from walkit.spark.decoded import Columns, Decoder, Undecoded
from walkit.spark.diff import Side, Sides, SideSpec, states_of
from walkit.spark.errors import errors
from walkit.spark.report import ColumnChanges, DiffReport, FailedDecode
from walkit.state.diff import CHANGED, DELETED, DIFF_SCHEMA, INSERTED, UNCHANGED, diff_states, narrowed
from walkit.state.reconcile import DELETE

PART_STRUCT = StructType([StructField("counts", StringType()), StructField("samples", BinaryType())])
SAMPLES_MAX = 1_000
SAMPLE_BYTES = 4_096
"""A sample has so many bytes of a value at most."""
COLUMNS_MAX = 10_000
"""So many names of columns are counted in a part of the keys; decoded values may have any."""


@errors()
def diff_report(
    left: Side,
    right: Side,
    *,
    decoder: Decoder | None = None,
    ignore: Collection[str] = (),
    tolerance: float = 0.0,
    samples: int = 5,
) -> DiffReport:
    """Return the counts, samples and most changed columns of `diff(left, right)`, by one Spark job that runs now.

    With a `decoder` (json, arrow, or a function of bytes that returns a mapping, which workers can be sent) changed
    values are compared by column: without the columns in `ignore`, and numbers that differ by at most `tolerance` are
    equal, infinities and NaN only to themselves. A key whose columns are all equal counts as unchanged, and as
    tolerated. One that cannot be decoded on either side stays changed, and is counted; so is one whose
    columns cannot be compared. The failure at the lowest LSN is in the report, with the decoder's error, and is the
    event `walkit.diff.undecoded`. Arrays of numpy are compared by their elements.

    `samples` is how many rows of each change the report has, with at most 4,096 bytes of each value. Raises what `diff`
    raises, and OptionsError for a decoder, tolerance or number of samples that is none.
    """
    if type(samples) is not int or not 0 <= samples <= SAMPLES_MAX:
        raise OptionsError(
            f"samples is {samples!r}; give a number from 0 to {SAMPLES_MAX:,}",
            option="samples",
            wanted=samples,
        )
    columns = Columns.of(decoder, ignore, tolerance)
    started = time.perf_counter()
    sides = Sides.of(left, right)
    work = partial(sum_up, sides=sides.spec, columns=columns, samples=samples)
    parts = sides.apart_by_key(work, PART_STRUCT).toArrow().to_pylist()
    total = _Sums()
    for part in parts:
        total.add(json.loads(part["counts"]))
    if total.failure is not None:
        EventSink().emit(
            "walkit.diff.undecoded",
            keys=total.counts["undecoded"],
            first_lsn=total.failure.lsn,
            error=total.failure.error,
        )
    return DiffReport(
        left=_named(sides.spec.left),
        right=_named(sides.spec.right),
        left_keys=total.counts["left"],
        right_keys=total.counts["right"],
        inserted=total.counts[INSERTED],
        deleted=total.counts[DELETED],
        changed=total.counts[CHANGED],
        unchanged=total.counts[UNCHANGED],
        tolerated=total.counts["tolerated"],
        undecoded=total.counts["undecoded"],
        failed_decode=total.failure,
        columns=total.most_changed(),
        samples=tuple(_first_rows([stream_table(p["samples"]) for p in parts], samples)),
        seconds=time.perf_counter() - started,
    )


@dataclass(slots=True)
class _Sums:
    """Counts of a part of the keys, or of all."""

    counts: Counter[str] = field(default_factory=Counter)
    columns: Counter[str] = field(default_factory=Counter)
    largest: dict[str, float] = field(default_factory=dict)
    failure: FailedDecode | None = None
    """The failure of the decoder at the lowest LSN."""

    def add(self, other: dict[str, Any]) -> None:
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

    def to_json(self) -> str:
        failure = None if self.failure is None else asdict(self.failure)
        return json.dumps(
            {"counts": self.counts, "columns": self.columns, "largest": self.largest, "failure": failure}
        )

    def most_changed(self) -> tuple[ColumnChanges, ...]:
        names = sorted(self.columns, key=lambda name: (-self.columns[name], name))
        return tuple(
            ColumnChanges(name=name, keys=self.columns[name], largest=self.largest.get(name))
            for name in names
        )


def sum_up(
    batches: Iterable[pa.RecordBatch], *, sides: SideSpec, columns: Columns | None, samples: int
) -> Iterator[pa.RecordBatch]:
    """Yield one row for the keys whose records are in `batches`, all of them: counts as JSON, samples as Arrow."""
    left, right = states_of(batches, sides)
    sums = _Sums()
    for name, state in (("left", left), ("right", right)):
        sums.counts[name] += int(pc.sum(pc.not_equal(state["kind"], DELETE)).as_py() or 0)
    found = diff_states(left, right, unchanged=True)
    if columns is not None:
        found = _by_column(found, columns, sums)
    for row in pc.value_counts(found["change"]).to_pylist():
        sums.counts[row["values"]] += row["counts"]
    shown = narrowed(_first(found, samples), DIFF_SCHEMA)
    sink = pa.BufferOutputStream()
    table = with_causes(shown, sides.left, sides.right)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    yield pa.RecordBatch.from_pydict(
        {"counts": [sums.to_json()], "samples": [sink.getvalue().to_pybytes()]},
        pa.schema([("counts", pa.string()), ("samples", pa.binary())]),
    )


def _by_column(found: pa.Table, columns: Columns, sums: _Sums) -> pa.Table:
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


def _first(found: pa.Table, count: int) -> pa.Table:
    """Return the first rows of each change, with the beginnings of their values."""
    parts = [found.filter(pc.equal(found["change"], letter)).slice(0, count) for letter in "IDC"]
    first = pa.concat_tables(parts)
    for name in ("left_value", "right_value"):
        cut = pc.binary_slice(first[name], 0, SAMPLE_BYTES)
        first = first.set_column(first.column_names.index(name), name, cut)
    return first


def _first_rows(tables: list[pa.Table], count: int) -> Iterator[dict[str, Any]]:
    rows = [row for table in tables for row in table.to_pylist()]
    rows.sort(key=lambda row: ("IDC".index(row["change"]), row["key"]))
    taken: Counter[str] = Counter()
    for row in rows:
        if taken[row["change"]] < count:
            taken[row["change"]] += 1
            yield row


def _named(side: SideLog) -> str:
    return f"{side.facts.path} at LSN {side.at_lsn:,}"
