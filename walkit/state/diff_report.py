"""The report of a diff: counts that reconcile, samples of each change, and the columns that changed most."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from walkit._internal.html import Markup, table, tag
from walkit._internal.report import Cells, TableReport
from walkit._internal.text import aligned

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
    """`left` or `right`; `both` where each was decoded, and their columns cannot be compared."""
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
