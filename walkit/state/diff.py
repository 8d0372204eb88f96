"""Diff: which keys differ between two states, and which records made them differ.

`diff_states` is the comparison; `walkit.diff` feeds it with logs, stores and points of their history, and Spark's
diff feeds it with one part of the keys at a time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walkit.config import as_lsn, check_progress
from walkit.errors import OptionsError
from walkit.log.logreader import LogReader
from walkit.log.opening import Place, storage_at
from walkit.log.report import report_html
from walkit.log.surface import ReadSurface
from walkit.state.final import StateProgress, exact_state
from walkit.state.surface import KeyedSurface
from walkit.state.table import KeyedTable

INSERTED, DELETED, CHANGED, UNCHANGED = "I", "D", "C", "N"

DIFF_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("change", pa.string(), nullable=False),
        pa.field("left_value", pa.binary()),
        pa.field("right_value", pa.binary()),
        pa.field("left_lsn", pa.int64()),
        pa.field("right_lsn", pa.int64()),
    ]
)
"""The columns of a diff. change: I only right, D only left, C another value, N the same value.

The LSN of a side is that of the record that set the key there; it is null, as the value is, where the key is not live.
A key that is live without a value has an LSN and a null value.
"""

NARROW_BYTES_MAX = (1 << 31) - 1
"""Most bytes that an Arrow `binary` column holds in one piece."""

Source: TypeAlias = ReadSurface | KeyedSurface | KeyedTable | Place
"""What has a state: an open log or reader, a Store, a table, or the place of a log."""
Side: TypeAlias = Source | tuple[Source, int]
"""A source as it is now, or (source, LSN): as it was after that record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffCounts:
    """How many keys differ, by kind of change."""

    inserted: int
    deleted: int
    changed: int

    @classmethod
    def of(cls, diff: pa.Table) -> DiffCounts:
        """Count the rows of a diff."""
        found = {row["values"]: row["counts"] for row in pc.value_counts(diff["change"]).to_pylist()}
        return cls(
            inserted=found.get(INSERTED, 0), deleted=found.get(DELETED, 0), changed=found.get(CHANGED, 0)
        )

    @property
    def total(self) -> int:
        """Keys that differ."""
        return self.inserted + self.deleted + self.changed

    @property
    def equal(self) -> bool:
        """Whether no key differs."""
        return self.total == 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"equal": self.equal, **asdict(self)}

    def text(self) -> str:
        """Return one line that says it."""
        if self.equal:
            return "equal"
        return f"different: {self.inserted:,} inserted, {self.deleted:,} deleted, {self.changed:,} changed"

    def _repr_html_(self) -> str:
        facts = [(name, f"{count:,}") for name, count in asdict(self).items()]
        return report_html("Diff: equal" if self.equal else "Diff", facts)


def diff(a: Side, b: Side, progress: StateProgress | None = None) -> pa.Table:
    """Return the keys whose values differ between the states of `a` and `b`: a table of `DIFF_SCHEMA`, by key.

    A side is an open log or LogReader, a Store, a KeyedTable, the place of a log (path, URL, storage), or a pair of one
    of these (not a table) and an LSN. change is seen from `a`: I is only in `b`, D only in `a`, C has another value;
    `DiffCounts.of` counts them. Values alone are compared, byte by byte: equal values set by other records are equal.
    Records without a key are no part of it. Of a log that is being written elsewhere, the durable prefix counts.

    In memory: both states, and the reading of one batch. `progress` is called for each side in turn with (LSNs passed,
    LSNs to pass). Raises HistoryTrimmedError where a state can no longer be told exactly, OptionsError for what is no
    side, and what opening and reading raise.
    """
    check_progress(progress, "(LSNs passed, LSNs to pass)")
    return narrowed(diff_states(_state(a, progress), _state(b, progress)), DIFF_SCHEMA)


def _state(side: Side, progress: StateProgress | None) -> pa.Table:
    source, at_lsn = _parts(side)
    if isinstance(source, KeyedSurface | KeyedTable) and at_lsn is None:
        return source.to_arrow()
    if isinstance(source, KeyedSurface):
        source = getattr(source, "log", source)
    if isinstance(source, ReadSurface):
        return exact_state(source, at_lsn, progress)
    if isinstance(source, KeyedSurface | KeyedTable):
        raise OptionsError(
            f"a {type(source).__name__} has no history to go back in; give its log and the LSN",
            option="at_lsn",
            wanted=at_lsn,
        )
    with LogReader(storage_at(source)) as reader:
        return exact_state(reader, at_lsn, progress)


def _parts(side: Side) -> tuple[Source, int | None]:
    if not isinstance(side, tuple):
        return side, None
    try:
        source, lsn = side
        return source, as_lsn(lsn)
    except ValueError:  # an OptionsError of as_lsn is one
        raise OptionsError("a side with an LSN is a pair: (log, LSN)", option="side", wanted=side) from None


def diff_states(left: pa.Table, right: pa.Table, *, unchanged: bool = False) -> pa.Table:
    """Compare two states with columns `key`, `value`, `lsn` (no key twice); rows by key, offsets of 64 bits.

    With `unchanged` also the keys whose values are equal. Null-safe: an absent value equals an absent one only.
    """
    wide = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary()), ("lsn", pa.int64())])
    left, right = (_whole(side.select(wide.names).cast(wide)) for side in (left, right))
    keys = pa.concat_arrays([left.column("key"), right.column("key")]).dictionary_encode()
    codes, count = keys.indices.to_numpy(), len(keys.dictionary)
    left_rows, right_rows = np.full(count, -1), np.full(count, -1)
    left_rows[codes[: len(left)]] = np.arange(len(left))
    right_rows[codes[len(left) :]] = np.arange(len(right))
    change = np.full(count, CHANGED)
    change[left_rows < 0], change[right_rows < 0] = INSERTED, DELETED
    common = np.flatnonzero((left_rows >= 0) & (right_rows >= 0))
    same = _same(
        left.column("value").take(pa.array(left_rows[common])),
        right.column("value").take(pa.array(right_rows[common])),
    )
    change[common[same]] = UNCHANGED
    picked = np.arange(count) if unchanged else np.flatnonzero(change != UNCHANGED)
    picked = picked[pc.sort_indices(keys.dictionary.take(pa.array(picked))).to_numpy()]
    columns: dict[str, pa.Array] = {
        "key": keys.dictionary.take(pa.array(picked)),
        "change": pa.array(change[picked].tolist(), pa.string()),
    }
    for name in ("value", "lsn"):
        for side, table, rows in (("left", left, left_rows[picked]), ("right", right, right_rows[picked])):
            columns[f"{side}_{name}"] = table.column(name).take(pa.array(rows, mask=rows < 0))
    return pa.table(columns)


def _whole(table: pa.Table) -> pa.RecordBatch:
    """Return the rows as one batch."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def _same(left: pa.Array, right: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    equal = pc.fill_null(pc.equal(left, right), False)
    same = pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
    found: np.ndarray[Any, np.dtype[np.bool_]] = same.to_numpy(zero_copy_only=False)
    return found


def narrowed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the 32-bit offsets of `schema`, in as many chunks as they need."""
    if table.nbytes <= NARROW_BYTES_MAX or len(table) < 2:
        return table.combine_chunks().cast(schema)
    half = len(table) // 2
    parts = (table.slice(0, half), table.slice(half))
    return pa.concat_tables([narrowed(part, schema) for part in parts])
