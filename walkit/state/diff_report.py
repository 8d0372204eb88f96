"""The report of a diff: changed keys counted, so that the counts reconcile, samples, and the columns that changed most.

`diff_report` counts two states in this process; Spark's workers count a part of the keys each.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from walkit._internal.arguments import check_whole
from walkit._internal.html import Markup, table, tag
from walkit._internal.report import Cells, TableReport
from walkit._internal.text import aligned
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
from walkit.state.reconcile import DELETE
from walkit.state.state_at import StateProgress
from walkit.state.value_decoder import Columns, Decoder, Undecoded

CELL_MAX = 40
COLUMN_HEAD = ("column", "keys", "largest")
SAMPLE_HEAD = ("change", "key", "left value", "right value", "left record", "right record")
NAMES = {"I": "inserted", "D": "deleted", "C": "changed", "N": "unchanged"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChanges:
    """In how many changed keys a column of the decoded values differs, and by how much at most if it is a number."""

    name: str
    keys: int
    largest: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedDecode:
    """A record whose value the decoder failed on, with the error's type and message."""

    side: str
    """`left` or `right`; `both` if each was decoded, and their columns cannot be compared."""
    lsn: int
    """Of the record on that side; on the right one for `both`."""
    error: str


@dataclass(frozen=True, kw_only=True)
class DiffReport(TableReport):
    """The difference of two states. Picklable; the counts of both sides are made apart from those of the changes."""

    title = "Diff"
    left_columns = len(SAMPLE_HEAD)

    left: str
    right: str
    left_keys: int
    """Live keys of the left state."""
    right_keys: int
    inserted: int
    deleted: int
    changed: int
    unchanged: int
    """Live on both sides with values that are equal, or that decode to columns that are."""
    tolerated: int = 0
    """Of the unchanged keys those whose bytes differ."""
    undecoded: int = 0
    """Changed keys with a value that could not be decoded."""
    failed_decode: FailedDecode | None = None
    """The undecoded one at the lowest LSN; None if all were decoded."""
    columns: tuple[ColumnChanges, ...] = ()
    """The columns that changed, most often first; empty without a decoder."""
    samples: tuple[Mapping[str, Any], ...] = ()
    """Rows of `walkit.diff` or `walkit.spark.diff`, the first by key of each change."""
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether no key differs."""
        return not self.inserted + self.deleted + self.changed

    @property
    def reconciles(self) -> bool:
        """Whether left + I - D = right, and left = D + C + N."""
        both = self.changed + self.unchanged
        return (
            self.left_keys + self.inserted - self.deleted == self.right_keys
            and self.left_keys == self.deleted + both
        )

    @property
    def notes(self) -> list[str]:
        """The two sides, how many keys differ, and how the counts add up; red where that means less."""
        return [
            f"left   {self.left}",
            f"right  {self.right}",
            self._verdict(),
            self._sum(),
            *self._warnings(),
        ]

    def _plain_notes(self) -> int:
        return len(self.notes) - len(self._warnings())

    def _head(self) -> Cells:
        return SAMPLE_HEAD if self.samples else ()

    def _cells(self) -> list[Cells]:
        return [_sample(row) for row in self.samples]

    def _lines_below(self) -> list[str]:
        return ["", *aligned(COLUMN_HEAD, self._columns(), right=(1, 2))] if self.columns else []

    def _html_below(self) -> list[Markup]:
        return [table(self._columns(), COLUMN_HEAD, right=(1, 2))] if self.columns else []

    def _facts(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["samples"] = [
            {name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()}
            for row in self.samples
        ]
        plain["columns"] = [asdict(column) for column in self.columns]
        return {"equal": self.equal, "reconciles": self.reconciles, **plain}

    def to_json(self) -> str:
        """Return `to_dict` as JSON: bytes are hexadecimal."""
        return json.dumps(self.to_dict(), indent=2)

    def to_html(self) -> str:
        """Return the report as a page of its own."""
        head = tag("head", tag("meta", charset="utf-8"), tag("title", f"Diff: {self._verdict()}"))
        style = "font-family:system-ui,sans-serif;margin:1.5rem;color-scheme:light dark"
        return "<!DOCTYPE html>\n" + tag(
            "html", head, tag("body", Markup(self._repr_html_()), style=style), lang="en"
        )

    def _repr_html_(self) -> str:
        # Keys and values may be wide; then the records beside them are not broken into single words.
        style = tag("style", Markup(".walkit-diff td:nth-child(n+5) { min-width: 11rem; }"))
        return tag("div", style, Markup(super()._repr_html_()), class_="walkit-diff", style="overflow-x:auto")

    def _verdict(self) -> str:
        if self.equal:
            return f"equal, {self.unchanged:,} keys"
        counts = ", ".join(f"{getattr(self, name):,} {name}" for name in NAMES.values())
        return f"different: {counts}"

    def _sum(self) -> str:
        sign = "=" if self.reconciles else "does not give"
        return (
            f"{self.left_keys:,} left + {self.inserted:,} inserted - {self.deleted:,} deleted {sign} "
            f"{self.right_keys:,} right"
        )

    def _columns(self) -> list[Cells]:
        return [
            (column.name, f"{column.keys:,}", "" if column.largest is None else f"{column.largest:g}")
            for column in self.columns
        ]

    def _warnings(self) -> list[str]:
        found = []
        if self.tolerated:
            found.append(f"{self.tolerated:,} keys have other bytes, and columns that count as equal")
        if self.undecoded:
            found.append(
                f"{self.undecoded:,} changed keys have a value that the decoder fails on{self._first_failure()}"
            )
        return found if self.reconciles else [*found, "the counts do not reconcile"]

    def _first_failure(self) -> str:
        failed = self.failed_decode
        if failed is None:
            return ""
        place = "comparing both sides" if failed.side == "both" else f"{failed.side} side"
        return f"; first at LSN {failed.lsn:,} ({place}): {failed.error}"


def _sample(row: Mapping[str, Any]) -> Cells:
    change = row["change"]
    return (
        change,
        _bytes(row["key"]),
        "" if change == "I" else _bytes(row["left_value"]),
        "" if change == "D" else _bytes(row["right_value"]),
        _record(row, "left"),
        _record(row, "right"),
    )


def _bytes(data: bytes | None) -> str:
    if data is None:
        return "(no value)"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or (data and not text):
        text = f"0x{data[: CELL_MAX // 2].hex()}"
    return text if len(text) <= CELL_MAX and len(data) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"


def _record(row: Mapping[str, Any], side: str) -> str:
    """Return where the record of a side is, in words."""
    lsn, source = row[f"{side}_lsn"], row.get(f"{side}_source")
    if source == "dropped":
        return f"dropped, LSN {row[f'{side}_from_lsn']:,} to {row[f'{side}_to_lsn']:,}"
    if lsn is None:
        return ""
    if row.get(f"{side}_position") is None:
        return f"LSN {lsn:,}" + (f", {source}" if source else "")
    return f"LSN {lsn:,}, {source} at {row[f'{side}_position']:,} in segment {row[f'{side}_segment']}"


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
